"""The coordinator in a locator: which it is, its file, and what happens when that is lost or full."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

from pywan.base.processes import has_ended, this_process
from pywan.base.versions import VERSION
from pywan.coordination import encoding
from pywan.coordination.claims import CLAIM_FILE, JOURNAL_FILE
from pywan.coordination.journal import Journal
from pywan.coordination.tables import BucketKey, Incarnation, Kind, MemberProfile, Reach, RegionAttributes
from pywan.site import coordinator_driver
from pywan.site.probes import reach_of
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer, call_once
from pywan.transport.sockets import listen
from support.ports import free_port
from support.shown import coordination
from support.small_members import OtherProcess, SmallMember, locator, small_members


def both(one, other) -> str:
    return f"{one.address},{other.address}"


def test_the_first_locator_of_a_site_coordinates_and_the_second_names_it(tmp_path):
    with locator("z", dir=tmp_path) as first, locator("a", dir=tmp_path, locators=str(first.address)) as second:
        eventually(lambda: coordination(second)["coordinator"] == "z")
        assert coordination(first)["decides"] and not coordination(second)["decides"]
        assert (tmp_path / "a" / CLAIM_FILE).exists() and (tmp_path / "z" / JOURNAL_FILE).exists()


def test_members_with_their_locators_in_different_orders_have_one_coordinator(tmp_path):
    with (
        locator("one", dir=tmp_path) as one,
        locator("two", dir=tmp_path, locators=str(one.address)) as two,
        small_members(both(one, two), "a") as (a,),
        small_members(both(two, one), "b") as (b,),
    ):
        assert a.host() and b.host()
        eventually(lambda: set(a.agent.tables.members) == set(b.agent.tables.members))
        assert len(a.agent.tables.members) == 2
        assert a.agent.tables.coordinator == b.agent.tables.coordinator == "one"


def test_a_locator_that_only_the_second_one_knows_is_told_who_coordinates(tmp_path):
    with locator("one", dir=tmp_path) as one:
        with locator("two", dir=tmp_path, locators=str(one.address)) as two:
            eventually(lambda: coordination(two)["coordinator"] == "one")
        # It starts again, and the coordinator is away.
        port = two.port
        one.stop()
        with locator("two", port=port, dir=tmp_path, locators=str(one.address)) as again:
            answer = call_once(again.address, "coordination-poll", version=VERSION, me=["a", 1], stored=[0, 0])
            assert answer["decides"] is False and answer["coordinator"] == "one"
            assert answer["address"] == str(one.address)


def test_an_empty_locator_takes_no_member_in_that_knows_another_coordinator(tmp_path):
    with locator("one", dir=tmp_path) as one, small_members(str(one.address), "a", file=tmp_path / "site.json"):
        pass
    with locator("two", dir=tmp_path) as two:
        member = SmallMember("a", str(two.address), file=tmp_path / "site.json")
        try:
            assert not member.agent.wait_joined(LIMIT_S)
            assert "names one as the coordinator" in member.agent.status()["problem"]
            assert not coordination(two)["members"]
        finally:
            member.end()


def settled(member: SmallMember) -> bool:
    buckets = [bucket for key, bucket in member.buckets.items() if key.region == "data"]
    return len(buckets) == 4 and all(bucket.primary is not None and not bucket.leaving for bucket in buckets)


def with_its_file(folder, copy):
    pass


def with_an_empty_file(folder, copy):
    (folder / JOURNAL_FILE).unlink()


def with_an_older_file(folder, copy):
    for file in folder.glob(f"{JOURNAL_FILE}*"):
        file.unlink()
    shutil.copy(copy, folder / JOURNAL_FILE)


def with_no_folder(folder, copy):
    shutil.rmtree(folder)


# A member that is not heard for so long counts as gone: on a busy machine one may be late by a second.
TIMEOUT_MS = 2500


def restarted(tmp_path, lose, same_recovery_epoch: bool) -> None:
    folder = tmp_path / "L"
    with locator(dir=tmp_path, member_timeout_ms=TIMEOUT_MS) as site:
        port = site.port
        a, b = (SmallMember(name, str(site.address)) for name in "ab")
        assert a.host()
        site.stop()  # A whole file of an earlier time.
        shutil.copy(folder / JOURNAL_FILE, tmp_path / "older.db")
    try:
        with locator(dir=tmp_path, port=port, member_timeout_ms=TIMEOUT_MS):
            eventually(b.host)
            a.see_all()
            # A replica that is in sync, and has not heard of it yet, would not report the bucket after the restart.
            eventually(lambda: settled(a) and a.buckets == b.buckets and a.agent.tables.newest == b.agent.tables.newest)
            eventually(lambda: all(len(bucket.isr) == 2 for bucket in b.buckets.values()))
            timelines = {key: bucket.timeline for key, bucket in a.buckets.items()}
            me = a.agent.me, b.agent.me
            first = a.agent.tables.newest
        lose(folder, tmp_path / "older.db")
        with locator(dir=tmp_path, port=port, member_timeout_ms=TIMEOUT_MS) as site:
            a.host("later")
            eventually(lambda: settled(a) and a.buckets == b.buckets, what="the tables after the restart")
            eventually(lambda: a.agent.tables.newest.number > first.number)
            recovery_epoch = coordination(site)["generation"]
            assert (
                recovery_epoch <= first.controller_epoch
                if same_recovery_epoch
                else first.controller_epoch < recovery_epoch <= a.agent.tables.newest.controller_epoch
            )
            assert all(
                a.buckets[key].timeline == timeline or a.buckets[key].goes_on_with(timeline)
                for key, timeline in timelines.items()
            )
            assert (a.agent.me, b.agent.me) == me and coordination(site)["lost_buckets"] == 0
    finally:
        a.end()
        b.end()


def test_a_coordinator_goes_on_where_its_file_ends(tmp_path):
    restarted(tmp_path, with_its_file, same_recovery_epoch=True)


def test_a_coordinator_with_an_empty_file_learns_everything_from_the_members(tmp_path):
    restarted(tmp_path, with_an_empty_file, same_recovery_epoch=False)


def test_a_coordinator_with_an_older_file_learns_everything_from_the_members(tmp_path):
    restarted(tmp_path, with_an_older_file, same_recovery_epoch=False)


def test_a_coordinator_that_lost_its_folder_learns_everything_from_the_members(tmp_path):
    restarted(tmp_path, with_no_folder, same_recovery_epoch=False)


def test_a_member_that_comes_first_to_a_coordinator_without_its_file_joins_the_others(tmp_path):
    with locator(dir=tmp_path, member_timeout_ms=TIMEOUT_MS) as site:
        address, port = site.address, site.port
        identity = coordination(site)["site_identity"]
        earlier = OtherProcess("a", address)
    try:
        earlier.stop()
        with_no_folder(tmp_path / "L", None)
        with (
            locator(dir=tmp_path, port=port, member_timeout_ms=TIMEOUT_MS) as site,
            small_members(str(address), "b") as (b,),
        ):
            first = b.agent.me
            assert b.agent.site_identity not in ("", identity)  # The coordinator made it up.
            earlier.go_on()
            eventually(lambda: b.agent.is_joined and b.agent.site_identity == identity)
            assert b.agent.me != first  # It begins anew, with nothing.
            names = {"a", "b"}
            eventually(lambda: {each["name"] for each in coordination(site)["members"]} == names)
    finally:
        earlier.end()


def test_another_locator_takes_the_place_of_one_that_is_gone_for_good_if_an_operator_says_so(tmp_path):
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(locator("first", dir=tmp_path, member_timeout_ms=TIMEOUT_MS))
        second = opened.enter_context(
            locator("second", dir=tmp_path, locators=str(first.address), member_timeout_ms=TIMEOUT_MS)
        )
        spare = free_port()
        locators = f"{both(first, second)},127.0.0.1[{spare}]"
        a, b = (SmallMember(name, locators) for name in "ab")
        opened.callback(a.end)
        opened.callback(b.end)
        assert a.host() and b.host()
        eventually(lambda: settled(a) and all(len(each.isr) == 2 for each in a.buckets.values()))
        eventually(lambda: a.buckets == b.buckets and a.agent.tables.newest == b.agent.tables.newest)
        timelines, controller_epoch = (
            {key: each.timeline for key, each in a.buckets.items()},
            a.agent.tables.newest.controller_epoch,
        )
        me, identity = (a.agent.me, b.agent.me), a.agent.site_identity
        first.stop()
        with locator(
            "third",
            port=spare,
            dir=tmp_path,
            locators=str(second.address),
            member_timeout_ms=TIMEOUT_MS,
            recover_from_members=True,
        ) as third:
            eventually(
                lambda: (
                    a.agent.tables.newest.controller_epoch > controller_epoch and settled(a) and a.buckets == b.buckets
                )
            )
            assert {key: each.timeline for key, each in a.buckets.items()} == timelines and (
                a.agent.me,
                b.agent.me,
            ) == me
            told = coordination(third)
            assert told["decides"] and told["site_identity"] == identity and told["lost_buckets"] == 0
            eventually(lambda: coordination(second)["coordinator"] == "third")
            assert not coordination(third)["problem"] and not coordination(second)["problem"]


def test_members_of_a_new_site_come_back_as_often_as_they_like(tmp_path):
    file = tmp_path / "site.json"
    with locator(dir=tmp_path) as site, small_members(str(site.address), "a"):
        for _ in range(3):  # The first one that comes back tells the site's name, which the coordinator made up.
            with small_members(str(site.address), "b", file=file) as (b,):
                me = b.agent.me
                assert b.host() and b.agent.me == me


def test_nobody_is_told_of_a_decision_that_is_not_on_the_disk(tmp_path, monkeypatch):
    with locator(dir=tmp_path) as site, small_members(str(site.address), "a") as (a,):
        journal = site._coordination._driver._journal
        real = journal._database

        class Full:
            in_transaction = False

            def execute(self, *words):
                raise sqlite3.OperationalError("database or disk is full")

            def close(self):
                real.close()

        monkeypatch.setattr(coordinator_driver, "REOPEN_S", 0.2)
        journal._database = Full()
        eventually(a.host, what="the region is known as soon as the file is there again")
        assert not coordination(site)["problem"]
        journal = sqlite3.connect(f"file:{tmp_path / 'L' / JOURNAL_FILE}?mode=ro&immutable=1", uri=True)
        journal.close()


def test_a_port_says_whether_its_member_lives():
    me = Incarnation("a", 7)
    port = ControlServer("127.0.0.1", 0, lambda request, peer: {"incarnation": 7}, name="a").start()
    unresponsive = listen("127.0.0.1", 0, what="silent")
    try:
        there = MemberProfile(me, "127.0.0.1", port.port, 1)
        assert reach_of(there) is Reach.ANSWERED
        assert reach_of(MemberProfile(Incarnation("a", 8), "127.0.0.1", port.port, 1)) is Reach.REFUSED
        assert reach_of(MemberProfile(me, "127.0.0.1", unresponsive.getsockname()[1], 1)) is Reach.ANSWERED
    finally:
        port.stop()
        unresponsive.close()
    assert reach_of(there) is Reach.REFUSED


def test_a_process_is_known_by_machine_pid_and_start():
    machine, pid, start = this_process().split("/")
    assert not has_ended(this_process())
    assert has_ended(f"{machine}/{pid}/{int(start) + 1}")
    assert not has_ended(f"elsewhere/{pid}/{int(start) + 1}") and not has_ended("")


def test_an_operator_revokes_a_member_that_never_comes_back(tmp_path):
    with locator(dir=tmp_path, member_timeout_ms=1000) as site, small_members(str(site.address), "a") as (a,):
        answer = call_once(site.address, "coordination-revoke", name="a")
        assert answer["revoked"] == [] and answer["alive"] == [str(a.agent.me)]


def test_requests_that_are_no_requests_are_refused_and_change_nothing(tmp_path):
    with locator(dir=tmp_path) as site, small_members(str(site.address), "a") as (a,):
        before = coordination(site)["decision"]
        for requests in ([["dance"]], [[]], ["x"], [["host"]], [["want", 5]], [["host", "a", [], -1]]):
            try:
                call_once(site.address, "coordination-ask", **a.speaks, requests=requests)
            except Exception as error:
                assert type(error).__name__ == "ProtocolError", (requests, error)
            else:
                raise AssertionError(f"{requests} was taken")
        assert coordination(site)["decision"] == before and BucketKey("data", 0) not in a.buckets


def hosts(region: str, *, buckets: int = 7) -> list:
    return ["host", region, encoding.plain_attributes(RegionAttributes(Kind.PARTITION, buckets)), 100]


def test_what_the_requests_of_one_message_decide_is_stored_once(tmp_path, monkeypatch):
    stored = []
    append = Journal.append

    def noted(journal, store):
        stored.append({region for region, _ in store.regions})
        append(journal, store)

    with locator("l", dir=tmp_path) as site, small_members(str(site.address), "a") as (a,):
        monkeypatch.setattr(Journal, "append", noted)
        names = {f"r{n}" for n in range(20)}
        requests = [hosts(each) for each in sorted(names)]
        reply = call_once(site.address, "coordination-ask", **a.speaks, requests=requests)
        assert reply["decides"] and [each for each in stored if each] == [names]
        eventually(lambda: names <= a.agent.tables.regions.keys())


def test_a_refusal_in_a_message_names_its_request(tmp_path):
    with locator("l", dir=tmp_path) as site, small_members(str(site.address), "a", "b") as (a, b):
        call_once(site.address, "coordination-ask", **a.speaks, requests=[hosts("r")])
        requests = [hosts("s"), hosts("r", buckets=9), hosts("t")]
        reply = call_once(site.address, "coordination-ask", **b.speaks, requests=requests)
        ((index, refused),) = reply["refused_requests"]
        assert index == 1 and "total-num-buckets is 9 here and 7" in refused[0]
        eventually(lambda: {"r", "s", "t"} <= b.agent.tables.regions.keys())
