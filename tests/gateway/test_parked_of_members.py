"""Parked events of a site of several members: each holder of a bucket's queue keeps them, one member leads, shows and
replays them, and none is lost with a member (docs/decisions/0108)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.testing.processes import ProcessFailed
from pywan.testing.waiting import eventually
from support.sites_of_members import BUCKETS, PARTITION, SELDOM, WAYS, Sites, sites, wait_replicas
from support.wan_site import WanSite

EVENTS = 200
WRONG = {"name": "another", "type": "REPLICATE"}


@contextlib.contextmanager
def parked(
    folder: Path,
    region: dict[str, Any],
    *,
    parallel: bool,
    members: tuple[str, ...] = ("a", "b"),
    **sender: Any,
) -> Iterator[Sites]:
    """Two sites, of which the remote one lacks the region: what was put is parked."""
    with sites(folder, region, members=members, remote=WRONG, parallel=parallel, **sender) as both:
        both.ny.living()["a"].ask("put_many", "data", 0, EVENTS)
        wait_parked(both, EVENTS)
        wait_kept(both, region, parallel)
        yield both


def counts(both: Sites) -> dict[str, int]:
    return {name: each.sender("ln", "parked_count") for name, each in both.ny.living().items()}


def wait_parked(both: Sites, count: int) -> None:
    """Returns when the members count so many parked events together."""
    seen: list[dict[str, int]] = []
    try:
        eventually(lambda: seen.append(counts(both)) or sum(seen[-1].values()) == count, what=f"{count} parked events")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen[-1]} are counted, and {kept(both)} kept") from None


def wait_kept(both: Sites, region: dict[str, Any], parallel: bool, events: int = EVENTS) -> None:
    """Returns when each event is kept by all holders of its bucket's queue: of a serial sender, by all members."""
    living = len(both.ny.living())
    replicas = living if not parallel else min(living, 1 + region["redundant_copies"])
    try:
        eventually(lambda: sum(kept(both).values()) == replicas * events)
    except AssertionError:
        raise AssertionError(f"{replicas} replicas of each of {events} events: {kept(both)} are kept") from None


def kept(both: Sites) -> dict[str, int]:
    return {name: each.ask("parked_kept", "ln") for name, each in both.ny.living().items()}


def accept(both: Sites, region: dict[str, Any]) -> None:
    """The remote site takes the events from now on."""
    both.remote.ask("create", "region", **region)


def a_leader(both: Sites) -> str:
    return max(counts(both).items(), key=lambda each: each[1])[0]


def another(both: Sites, name: str) -> str:
    return next(each for each in both.ny.living() if each != name)


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_parked_events_outlive_the_member_that_sent_them(tmp_path, parallel, region):
    with parked(tmp_path, region, parallel=parallel) as both:
        both.balance()
        both.ny.living()[a_leader(both)].kill()
        wait_parked(both, EVENTS)
        (left,) = both.ny.living().values()
        assert left.sender("ln", "parked_count") == len(left.sender("ln", "parked", 1000)) == EVENTS
        assert {each["reason"] for each in left.sender("ln", "parked", 1000)} == {
            "the region does not exist at the remote site"
        }
        both.balance()
        accept(both, region)
        assert left.sender("ln", "replay_parked") == EVENTS
        both.wait_remote(EVENTS)
        both.wait_empty()
        wait_parked(both, 0)
        both.balance()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_any_member_shows_and_replays_the_parked_events_of_all(tmp_path, parallel, region):
    with parked(tmp_path, region, members=("a", "b", "c"), parallel=parallel) as both:
        both.ny.living()["b"].ask("put_each", "data", 0, 30, "newer")
        wait_parked(both, EVENTS + 30)
        shown = [each.sender("ln", "parked", 1000) for each in both.ny.living().values()]
        assert len(shown[0]) == EVENTS + 30 and shown[0] == shown[1] == shown[2]
        of_first_key = [each["value"] for each in shown[0] if each["key"] == "key 3"]
        assert of_first_key == ["value 3", "newer 3"]  # In the order in which they were put.
        assert shown[0][:50] == both.ny.living()["c"].sender("ln", "parked", 50)
        accept(both, region)
        asked = both.ny.living()[another(both, a_leader(both))]
        assert asked.sender("ln", "replay_parked") == EVENTS + 30
        both.wait_remote(EVENTS)
        both.wait_empty()
        wait_parked(both, 0)
        assert both.remote.do("data", "get", "key 3") == "newer 3"
        eventually(lambda: set(kept(both).values()) == {0}, what="members that keep nothing more")
        both.balance()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_what_is_dropped_at_any_member_does_not_come_back(tmp_path, parallel, region):
    with parked(tmp_path, region, members=("a", "b", "c"), parallel=parallel) as both:
        first = a_leader(both)
        assert both.ny.living()[another(both, first)].sender("ln", "drop_parked") == EVENTS
        assert set(kept(both).values()) == {0}
        both.ny.living()[first].kill()
        both.ny.living()[another(both, first)].ask("put_many", "data", EVENTS, 1)
        wait_parked(both, 1)
        assert len(both.ny.living()[another(both, first)].sender("ln", "parked", 1000)) == 1


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_leader_that_dies_amid_a_replay_leaves_the_events_parked(tmp_path, parallel, region):
    with parked(tmp_path, region, parallel=parallel) as both:
        accept(both, region)
        victim = a_leader(both)
        for each in both.ny.living().values():
            each.sender("ln", "pause")
        assert both.ny.living()[victim].sender("ln", "replay_parked") == EVENTS
        assert set(counts(both).values()) == {0}  # They are queued again, and have not left.
        led = both.ny.living()[victim].sender("ln", "local_queue_size")
        both.ny.living()[victim].kill()
        wait_parked(both, led)
        (left,) = both.ny.living().values()
        left.sender("ln", "resume")
        assert left.sender("ln", "replay_parked") == led
        both.wait_remote(EVENTS)
        both.wait_empty()
        wait_parked(both, 0)


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_leader_that_dies_after_a_replay_leaves_nothing_parked(tmp_path, parallel, region):
    with parked(tmp_path, region, parallel=parallel) as both:
        accept(both, region)
        victim = a_leader(both)
        assert both.ny.living()[victim].sender("ln", "replay_parked") == EVENTS
        both.wait_remote(EVENTS)
        eventually(lambda: set(kept(both).values()) == {0}, what="members that keep nothing more")
        both.ny.living()[victim].kill()
        (left,) = both.ny.living().values()
        left.ask("put_many", "data", EVENTS, 1)  # It leads now.
        both.wait_remote(EVENTS + 1)
        assert left.sender("ln", "parked_count") == 0
        both.balance()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_what_is_refused_again_is_parked_again_once(tmp_path, parallel, region):
    with parked(tmp_path, region, parallel=parallel) as both:
        for _ in range(3):
            assert both.ny.living()["b"].sender("ln", "replay_parked") == EVENTS
            both.wait_empty()
            wait_parked(both, EVENTS)
            wait_kept(both, region, parallel)
        both.balance()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_member_that_joins_later_keeps_what_was_parked_before(tmp_path, parallel, region):
    with parked(tmp_path, region, parallel=parallel) as both:
        sender = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": parallel}
        both.ny.living()["b"].kill()
        both.ny.start_member("c", senders=[sender])
        wait_replicas(both.ny, region)
        wait_kept(both, region, parallel)
        both.ny.living()["a"].kill()
        wait_parked(both, EVENTS)
        accept(both, region)
        assert both.ny.living()["c"].sender("ln", "replay_parked") == EVENTS
        both.wait_remote(EVENTS)


@pytest.mark.whole
def test_a_member_that_gives_a_replica_away_keeps_its_parked_events_no_longer(tmp_path):
    with parked(tmp_path, PARTITION, members=("a", "b", "c"), parallel=True) as both:
        (primary, holders) = both.ny.locator.ask("layout", "data")[0]
        (source,) = {*holders} - {primary}
        (to,) = {*both.ny.living()} - {*holders}
        before = kept(both)[source]
        both.ny.move("data", 0, "copy", to, source)
        eventually(lambda: kept(both)[source] < before, what=f"{source} forgets the parked events of the bucket")
        wait_kept(both, PARTITION, parallel=True)
        wait_parked(both, EVENTS)


@pytest.mark.whole
def test_a_member_that_ends_leaves_its_parked_events_with_the_others(tmp_path):
    region = {**PARTITION, "redundant_copies": 0}
    with parked(tmp_path, region, parallel=True) as both:
        both.ny.living()["a"].end()
        wait_parked(both, EVENTS)


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_withheld_events_outlive_their_member_too(tmp_path, parallel, region):
    more = {"gateway_event_substitution_filter": "support.wan_site:Fails"}
    with sites(tmp_path, region, remote=WRONG, parallel=parallel, **more) as both:
        both.ny.living()["a"].ask("put_many", "data", 0, 50)
        wait_parked(both, 50)
        wait_kept(both, region, parallel, 50)
        both.ny.living()[a_leader(both)].kill()
        wait_parked(both, 50)
        (left,) = both.ny.living().values()
        assert left.sender("ln", "replay_parked") == 0  # The filter fails still.
        assert left.sender("ln", "parked_count") == 50


@pytest.mark.whole
def test_a_withheld_event_of_a_put_in_doubt_is_parked_where_the_put_is_replicated(tmp_path):
    region = {"name": "data", "type": "REPLICATE", "gateway_sender_ids": ["ln"]}
    sender = {"id": "ln", "remote_distributed_system_id": 2, "parallel": False}
    sender["gateway_event_substitution_filter"] = "support.wan_site:Fails"
    with WanSite(tmp_path, 1, regions=[region], member_timeout_ms=20_000) as ny:
        a, b = (ny.start_member(name, senders=[sender], call_timeout=1) for name in "ab")
        wait_replicas(ny, region)
        b.stop()
        for n in range(4):
            with pytest.raises(ProcessFailed, match="ConnectivityError"):
                a.do("data", "put", f"key {n}", n)
        b.go_on()
        a.do("data", "put", "key 4", 4)

        def is_parked() -> bool:
            keys = {each["key"] for each in a.sender("ln", "parked", 100)}
            return len(keys) > 1 and keys == a.ask("content", "data").keys() == b.ask("content", "data").keys()

        eventually(is_parked, what="a parked event for each entry")


@pytest.mark.whole
@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("parallel", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_no_parked_event_is_lost_over_kills(tmp_path, parallel, rounds):
    sender = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": parallel}
    with parked(tmp_path, PARTITION, members=("a", "b", "c"), parallel=parallel) as both:
        names = iter(f"m{n}" for n in range(rounds))
        events = EVENTS
        for n in range(rounds):
            victim = sorted(both.ny.living())[n % 3]
            both.ny.living()[another(both, victim)].ask("put_many", "data", events, 10)
            events += 10
            both.ny.living()[victim].kill()
            both.ny.start_member(next(names), senders=[sender])
            both.ny.wait_shared("data", BUCKETS, 2)
            wait_parked(both, events)
            wait_kept(both, PARTITION, parallel, events)
            both.balance()
        accept(both, PARTITION)
        assert next(iter(both.ny.living().values())).sender("ln", "replay_parked") == events
        both.wait_remote(events)
        wait_parked(both, 0)
