"""Messages about the coordination of a site from those who are none of its members and locators: nothing that is said
about a member is believed but from itself, and nothing of a coordinator but from its own address."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import pywan
from pywan.base.addresses import Address
from pywan.base.nonces import NONCE_BYTES, mark_of
from pywan.base.versions import VERSION
from pywan.coordination import encoding
from pywan.coordination.admission import ASKED_MAX, POLL_PERIODS_A_TIMEOUT, Admission
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.outbox import Outbox
from pywan.coordination.reports import Reports
from pywan.coordination.tables import MEMBER_TIMEOUT_US, NO_DECISION, Incarnation, MemberProfile, Reach
from pywan.errors import ConnectivityError, IllegalStateError
from pywan.site import asking, locator_claims, probes
from pywan.site.locator import Locator
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlClient, ControlServer, call_once
from support.small_members import OtherProcess, SmallMember, locator, small_members


def coordination(site: Locator) -> dict:
    return call_once(site.address, "coordination-show", timeout=LIMIT_S)["coordination"]


class Liar:
    """Somebody who reaches the locator's port, and says that it is a member."""

    def __init__(self, site: Locator, name: str, member_id: int = 0, *, before: tuple[int, ...] = ()) -> None:
        self.site, self.nonce = site, os.urandom(NONCE_BYTES)
        self.profile = MemberProfile(
            Incarnation(name, member_id or int.from_bytes(os.urandom(4), "little")),
            "127.0.0.1",
            1,
            1,
            version=pywan.__version__,
            before=before,
            mark=mark_of(self.nonce),
        )

    def joins(self, **fields: object) -> list[str]:
        """Returns why it is refused."""
        message = {
            "profile": encoding.plain_profile(self.profile),
            "stored": encoding.plain_decision_id(NO_DECISION),
            "nonce": self.nonce,
            **fields,
        }
        reply = call_once(self.site.address, "coordination-join", timeout=LIMIT_S, version=VERSION, **message)
        return [encoding.refused_of(each).reason for each in reply["refused"]]


@contextlib.contextmanager
def site_of_two(folder: Path | None = None) -> Iterator[tuple[Locator, SmallMember, SmallMember]]:
    """Both members have replicas of all buckets."""
    with locator(dir=folder) as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host() and b.host()
        for each in (a, b):
            eventually(lambda each=each: settled(each), what="replicas of both in sync")
        yield site, a, b


def settled(member: SmallMember) -> bool:
    buckets = list(member.buckets.values())
    return len(buckets) == 4 and all(len(each.isr) == 2 and not each.leaving for each in buckets)


def decided(member: SmallMember) -> dict:
    return {key: (each.timeline, each.epoch, each.isr) for key, each in member.buckets.items()}


def goes_on(site: Locator, *members: SmallMember) -> None:
    """Both are in the view as they were, and are heard."""
    received = {each: each.agent.received_us for each in members}
    eventually(lambda: all(each.agent.received_us > received[each] for each in members))
    assert not any(each.given_up for each in members) and coordination(site)["lost_buckets"] == 0


@pytest.mark.parametrize("nonce", [None, bytes(NONCE_BYTES)], ids=["without a nonce", "with another nonce"])
@pytest.mark.parametrize(
    "request_", [["left"], ["leave"], ["unhost", "data"], ["destroy-region", "data"]], ids=lambda each: each[0]
)
def test_a_request_in_the_name_of_a_member_is_refused_and_changes_nothing(request_, nonce):
    with site_of_two() as (site, a, b):
        before = decided(b)
        me = encoding.plain_incarnation(a.agent.me)
        with pytest.raises(IllegalStateError, match="this is not member a"):
            call_once(site.address, "coordination-ask", version=VERSION, me=me, nonce=nonce, requests=[request_])
        goes_on(site, a, b)
        assert decided(b) == before and not coordination(site)["problem"]


def test_a_request_to_take_a_replica_out_in_the_name_of_its_primary_is_refused():
    with site_of_two() as (site, a, b):
        before = decided(b)
        key, bucket = next((key, each) for key, each in b.buckets.items() if each.primary == a.agent.me)
        pair = [encoding.plain_key(key), encoding.plain_epoch(bucket.epoch)]
        request_ = ["unreachable", encoding.plain_incarnation(b.agent.me), pair]
        with pytest.raises(IllegalStateError, match="this is not member a"):
            call_once(site.address, "coordination-ask", version=VERSION, me=[*a.agent.me], requests=[request_])
        goes_on(site, a, b)
        assert decided(b) == before


def test_a_question_in_the_name_of_a_member_that_has_died_renews_no_lease():
    with locator(member_timeout_ms=1500) as site, small_members(str(site.address), "a", "b") as (a, b):
        a.end()
        me, stored = encoding.plain_incarnation(a.agent.me), encoding.plain_decision_id(a.agent.tables.newest)

        def is_gone() -> bool:
            with contextlib.suppress(IllegalStateError):
                call_once(
                    site.address, "coordination-poll", version=VERSION, me=me, stored=stored, nonce=bytes(NONCE_BYTES)
                )
            return a.agent.me not in b.agent.tables.members

        eventually(is_gone, what="the end of the lease")


def test_whoever_names_a_member_has_no_connection_of_it_whose_end_would_make_it_suspected():
    with site_of_two() as (site, a, b), ControlClient(site.address) as client:
        host = site._coordination
        with host._changed:
            before = set(host._connections)
        with pytest.raises(IllegalStateError, match="this is not member a"):
            client.call("coordination-ask", version=VERSION, me=[*a.agent.me], requests=[])
        with host._changed:
            assert set(host._connections) <= before
        goes_on(site, a, b)


def test_the_incarnation_of_a_member_is_not_joined_by_another_process():
    with site_of_two() as (site, a, b):
        liar = Liar(site, *a.agent.me)
        (reason,) = liar.joins()
        assert "another process has joined as member a" in reason
        # The public mark without the nonce is of no use either.
        known = b.agent.tables.members[a.agent.me]
        (reason,) = liar.joins(profile=encoding.plain_profile(replace(known, hosting=())))
        assert "does not have the nonce" in reason
        goes_on(site, a, b)


@pytest.mark.parametrize("is_lost", [False, True], ids=["with its file", "without its file"])
def test_a_member_is_told_from_a_liar_after_the_coordinator_has_started_again(tmp_path, is_lost):
    with locator(dir=tmp_path) as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host() and b.host()
        eventually(lambda: settled(a) and settled(b))
        port, me = site.port, a.agent.me
        site.stop()
        if is_lost:
            shutil.rmtree(tmp_path / "L")
        with locator(dir=tmp_path, port=port) as again:
            goes_on(again, a, b)
            with pytest.raises(IllegalStateError, match="this is not member a"):
                call_once(again.address, "coordination-ask", version=VERSION, me=[*me], requests=[["left"]])
            assert a.agent.me == me
            goes_on(again, a, b)


@pytest.mark.parametrize("says", ["ended", "before", "both"])
def test_a_living_member_is_not_thrown_out_by_who_takes_its_name(says):
    with site_of_two() as (site, a, b):
        before = decided(b)
        named = () if says == "ended" else (a.agent.me.member_id,)
        liar = Liar(site, "a", before=named)
        fields = {} if says == "before" else {"ended": encoding.plain_incarnation(a.agent.me)}
        nonces = [[a.agent.me.member_id, os.urandom(NONCE_BYTES)]]
        reasons = [liar.joins(**fields, nonces_before=nonces) for _ in range(30)]
        assert all(reasons), "it was taken in beside the living one"
        eventually(lambda: "may still be alive" in liar.joins(**fields, nonces_before=nonces)[0])
        goes_on(site, a, b)
        assert decided(b) == before


def test_a_member_whose_port_is_refused_and_that_goes_on_asking_has_not_ended(monkeypatch):
    monkeypatch.setattr(probes, "reach_of", lambda profile: Reach.REFUSED)  # As behind some firewalls.
    with locator() as site, small_members(str(site.address), "a") as (a,):
        liar = Liar(site, "a")
        since = time.monotonic()
        while time.monotonic() < since + 3 * MEMBER_TIMEOUT_US / POLL_PERIODS_A_TIMEOUT / 1e6:
            assert liar.joins(ended=encoding.plain_incarnation(a.agent.me)), "it was taken in"
        goes_on(site, a)


def test_a_member_that_was_killed_starts_again_at_once_with_the_nonce_of_its_folder(tmp_path, monkeypatch):
    # The coordinator is on another machine than the member, and finds nothing out.
    monkeypatch.setattr(probes, "has_ended", lambda process: False)
    monkeypatch.setattr(probes, "reach_of", lambda profile: Reach.SILENT)
    with locator(member_timeout_ms=60_000) as site:
        first = OtherProcess("a", site.address, folder=tmp_path)
        file = tmp_path / "site.json"
        eventually(lambda: "nonces" in file.read_text())
        assert file.stat().st_mode & 0o777 == 0o600
        first.kill()
        again = SmallMember("a", str(site.address), file=file)
        try:
            assert again.agent.wait_joined(LIMIT_S)
            assert list(again.agent.tables.members) == [again.agent.me]
            assert again.agent.tables.members[again.agent.me].before == (first.me.member_id,)
        finally:
            again.end()


def test_a_member_without_a_folder_that_was_killed_starts_again_at_once(monkeypatch):
    monkeypatch.setattr(probes, "has_ended", lambda process: False)  # The coordinator is on another machine.
    with locator(member_timeout_ms=60_000) as site:
        first = OtherProcess("a", site.address)
        first.kill()
        again = SmallMember("a", str(site.address))
        try:
            assert again.agent.wait_joined(LIMIT_S)
            eventually(lambda: list(again.agent.tables.members) == [again.agent.me])
        finally:
            again.end()


def test_a_flood_of_words_in_the_name_of_a_member_writes_one_line(caplog):
    with site_of_two() as (site, a, b), caplog.at_level(logging.INFO, "pywan"):
        for _ in range(400):
            with contextlib.suppress(IllegalStateError):
                call_once(site.address, "coordination-ask", version=VERSION, me=[*a.agent.me], requests=[["left"]])
        goes_on(site, a, b)
        told = [each for each in caplog.records if "in the name of member" in each.getMessage()]
        assert len(told) == 1 and len(caplog.records) < 20


def test_many_who_take_the_name_of_an_unresponsive_member_are_not_all_remembered():
    site = Decisions([], draw_step=lambda: 1, site_identity="site")
    liveness = Liveness(site, Outbox(), member_timeout_us=1000, machine="", now_us=0)
    admission = Admission(site, liveness, Reports(site, liveness))
    unresponsive = Incarnation("a", 0)
    site.set_member(unresponsive, MemberProfile(unresponsive, "127.0.0.1", 1, 1))
    liveness.give_up(unresponsive, 0)
    for number in range(1, 2 * ASKED_MAX):
        me = Incarnation("a", number)
        assert admission.refusal_of(MemberProfile(me, "127.0.0.1", 1, 1), NO_DECISION, 0) is not None
        assert admission.unproved_end_of(unresponsive, me, 0) is not None
    assert len(admission._asked_about) == len(admission._said_ended) == ASKED_MAX


def test_no_nonce_is_told_in_tables_status_or_log(caplog):
    with caplog.at_level(logging.DEBUG, "pywan"), site_of_two() as (site, a, b):
        nonce = a.speaks["nonce"]
        told = [
            repr(a.agent.status()),
            repr(coordination(site)),
            repr(b.agent.tables.members),
            repr(a.agent._session.remembered),
        ]
        told += [each.getMessage() for each in caplog.records]
        assert not any(nonce.hex() in text or repr(nonce) in text for text in told)


# --- who coordinates ---

CLAIM = {"site": 1, "coordinator": "evil", "site_identity": "feed", "decided": True, "recovers": True}


class FakeLocator:
    """Answers as a locator would, with what the test says, and notes what it was asked."""

    def __init__(self, who: dict | None = None, **reply: object) -> None:
        self.asked: list[str] = []
        self.who, self.reply = who or {}, {"version": VERSION, **reply}
        self.server = ControlServer("127.0.0.1", 0, self._answer, name="fake locator").start()
        self.address = Address("127.0.0.1", self.server.port)

    def _answer(self, request: dict, peer: tuple) -> dict:
        self.asked.append(request["op"])
        return self.who if request["op"] == "coordination-who" else self.reply

    def __enter__(self) -> FakeLocator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()


def claims(site: Locator, count: int = 1, **claim: object) -> None:
    """Somebody claims that in a request."""
    for number in range(count):
        told = {"locator": "evil", "coordinator_address": f"127.0.0.1[{1 + number}]", **CLAIM, **claim}
        call_once(site.address, "coordination-who", timeout=LIMIT_S, **told)


def test_a_coordinator_that_has_decided_nothing_does_not_give_way_to_a_claim_in_a_request(tmp_path):
    with locator(dir=tmp_path) as site:
        eventually(lambda: coordination(site)["decides"])
        claims(site)
        claims(site, coordinator="A", locator="L")
        with small_members(str(site.address), "a") as (a,):
            assert a.host() and coordination(site)["decides"]


def test_a_locator_that_follows_takes_no_address_and_no_other_coordinator_from_a_request(tmp_path):
    with locator("one", dir=tmp_path) as one, locator("two", dir=tmp_path, locators=str(one.address)) as two:
        eventually(lambda: coordination(two)["coordinator"] == "one")
        before = coordination(two)
        claims(two)
        claims(two, coordinator="one", locator="one", site_identity=before["site_identity"])
        claims(two, coordinator="two", locator="one")
        assert coordination(two) == before and before["address"] == str(one.address)


def test_a_flood_of_claims_writes_no_line_and_asks_the_others_now_and_then(caplog, monkeypatch):
    monkeypatch.setattr(locator_claims, "PEERS_INTERVAL_S", 3600.0)
    with FakeLocator({"site": 7}) as peer, locator(locators=str(peer.address)) as site:
        eventually(lambda: coordination(site)["decides"])
        asked = peer.asked.count("coordination-who")
        caplog.clear()
        with caplog.at_level(logging.INFO, "pywan"):
            began = time.monotonic()
            claims(site, 400)
            eventually(lambda: peer.asked.count("coordination-who") > asked, what="a question to the other locator")
            rounds = peer.asked.count("coordination-who") - asked
        assert rounds <= 2 + (time.monotonic() - began) / locator_claims.HINT_GAP_S
        assert not [each for each in caplog.records if each.name == "pywan.coordinator"]


def test_a_member_that_names_another_coordinator_changes_nothing(tmp_path):
    with locator(dir=tmp_path) as site:
        eventually(lambda: coordination(site)["decides"])
        before = coordination(site)
        liar = Liar(site, "x")
        reply = call_once(
            site.address,
            "coordination-join",
            version=VERSION,
            profile=encoding.plain_profile(liar.profile),
            nonce=liar.nonce,
            stored=[0, 0],
            coordinator="evil",
        )
        assert reply["decides"] is False and "start locator evil" in reply["problem"]
        assert coordination(site) == before
        with small_members(str(site.address), "a") as (a,):
            assert a.host()


def test_what_a_locator_says_of_a_third_one_is_not_believed_until_that_one_says_it_itself(tmp_path):
    with FakeLocator({"site": 7}) as evil:
        third = {**CLAIM, "locator": "peer", "coordinator_address": str(evil.address)}
        with FakeLocator(third) as peer, locator(dir=tmp_path, locators=str(peer.address)) as site:
            eventually(lambda: peer.asked.count("coordination-who") > 2)
            told = coordination(site)
            assert not told["coordinator"] and not told["address"] and "names evil" in told["problem"]
            assert not evil.asked
            peer.who = {**third, "coordinator": "peer"}
            eventually(lambda: coordination(site)["coordinator"] == "peer")
            assert coordination(site)["address"] == str(peer.address), "the one at which it has answered"


def test_a_locator_that_is_given_a_follower_only_finds_the_coordinator_at_its_own_address(tmp_path):
    with (
        locator("z", dir=tmp_path) as first,
        locator("y", dir=tmp_path, locators=str(first.address)) as second,
    ):
        eventually(lambda: coordination(second)["coordinator"] == "z")
        with locator("a", dir=tmp_path, locators=str(second.address)) as third:
            eventually(lambda: coordination(third)["coordinator"] == "z")
            assert coordination(third)["address"] == str(first.address)


def test_a_member_sends_nothing_to_an_address_that_does_not_answer_as_the_coordinator(tmp_path):
    with FakeLocator({**CLAIM, "locator": "other"}, decides=True) as evil:
        led = {"decides": False, "coordinator": "evil", "address": str(evil.address)}
        with FakeLocator(**led) as liar, locator(dir=tmp_path) as site:
            member = SmallMember("a", f"{liar.address},{site.address}")
            try:
                assert member.agent.wait_joined(LIMIT_S) and member.host()
                assert "coordination-join" in liar.asked and set(evil.asked) == {"coordination-who"}
            finally:
                member.end()


def test_a_member_is_led_from_locator_to_locator_no_further_than_the_limit():
    with contextlib.ExitStack() as stack:
        chain = [stack.enter_context(FakeLocator()) for _ in range(asking.LED_MAX + 4)]
        for each, after in itertools.pairwise(chain):
            each.who = {**CLAIM, "locator": "evil"}
            each.reply = {"version": VERSION, "decides": False, "coordinator": "evil", "address": str(after.address)}
        client = asking.CoordinatorClient("a", 1, lambda: [chain[0].address])
        with pytest.raises(ConnectivityError):
            client.ask("coordination-join", "", (), {})
        client.close()
        assert sum("coordination-join" in each.asked for each in chain) == 1 + asking.LED_MAX
        assert sum(bool(each.asked) for each in chain) == 1 + asking.LED_MAX


def test_an_address_that_is_none_leads_nowhere_and_the_next_locator_is_asked(tmp_path):
    with FakeLocator(decides=False, coordinator="evil", address="[[") as liar, locator(dir=tmp_path) as site:
        member = SmallMember("a", f"{liar.address},{site.address}")
        try:
            assert member.agent.wait_joined(LIMIT_S)
        finally:
            member.end()


def test_what_an_operator_asks_is_logged_with_the_address(caplog):
    with caplog.at_level(logging.INFO, "pywan"), locator() as site, small_members(str(site.address), "a"):
        call_once(site.address, "coordination-revoke", name="a")
        call_once(site.address, "coordination-end-site")
        told = [each.getMessage() for each in caplog.records if "an operator at 127.0.0.1[" in each.getMessage()]
        assert len(told) == 2
