"""The order in which a remote site applies what several members of a site put: for each key, and for each bucket where
one dispatcher sends it, that in which the primary of the bucket queued it. Members that die change nothing about it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.testing.waiting import eventually
from support.sites_of_members import Sites, sites
from support.wan_site import WanMember, WanSite

REPLICATE = {"name": "data", "type": "REPLICATE"}
PARTITION = {"name": "data", "type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1}
KEYS, PUTS = 40, 400

Received = list[list[Any]]  # Bucket, key and value of each change, in order.


def by(place: int, received: Iterable[list[Any]]) -> dict[Any, list[tuple[Any, Any]]]:
    """What was heard, by bucket (0) or by key (1)."""
    found = defaultdict(list)
    for each in received:
        found[each[place]].append((each[1], each[2]))
    return dict(found)


def listen(both: Sites) -> None:
    for each in (*both.ny.living().values(), both.remote):
        each.ask("listen", "data")


def put_at_all(members: Iterable[WanMember], *more: Any) -> None:
    for each in (members := list(members)):
        each.begin("put_shared", "data", KEYS, PUTS, each.name, *more)
    for each in members:
        each.finish()


def wait_notified(member: WanMember, count: int) -> Received:
    eventually(lambda: len(member.ask("notified", "data")) >= count, what=f"{count} changes at {member.name}")
    received = member.ask("notified", "data")
    assert len(received) == count
    return received


def wait_led(ny: WanSite, buckets: int) -> None:
    """Returns when the primaries are spread: then nobody moves them any more."""

    def is_even() -> bool:
        led = [each.get("primary", 0) for each in ny.counts("data").values()]
        return sum(led) == buckets and max(led) - min(led) < 2

    eventually(is_even, what="as many primaries at each member")


def notified_by_leaders(both: Sites, count: int) -> Received:
    """What the leaders of all buckets have heard together, each of its buckets."""

    def received() -> Received:
        return [each for member in both.ny.living().values() for each in member.ask("notified", "data")]

    eventually(lambda: len(received()) == count, what=f"{count} changes at the leaders of all buckets")
    return received()


@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.parametrize("order_policy", ["key", "thread", "partition"])
def test_C_026_five_dispatchers_keep_the_order_of_each_key_that_many_members_put_over_a_death(tmp_path, order_policy):
    with sites(
        tmp_path, REPLICATE, members=("a", "b", "c"), dispatcher_threads=5, order_policy=order_policy, batch_size=7
    ) as both:
        listen(both)
        put_at_all(both.ny.living().values())
        here = wait_notified(both.ny.living()["b"], 3 * PUTS)
        there = wait_notified(both.remote, 3 * PUTS)
        assert by(1, there) == by(1, here)
        victim = both.wait_primary()
        putting = next(each for name, each in both.ny.living().items() if name != victim)
        putting.begin("put_shared", "data", KEYS, PUTS, "last", 3)
        eventually(lambda: len(both.remote.ask("notified", "data")) > 3 * PUTS, what="more events there")
        both.ny.living()[victim].kill()
        putting.finish()
        here = wait_notified(putting, 6 * PUTS)
        assert by(1, wait_notified(both.remote, 6 * PUTS)) == by(1, here)
        both.wait_empty()
        both.balance()


def by_thread(received: Iterable[list[Any]]) -> dict[str, list[int]]:
    """The numbers that were heard of each thread of `put_counting`, in order."""
    found = defaultdict(list)
    for _, key, value in received:
        found[key.split()[0]].append(value)
    return dict(found)


@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.parametrize("region", [pytest.param(REPLICATE, id="RR"), pytest.param(PARTITION, id="PR")])
@pytest.mark.parametrize("dispatcher_threads", [1, 3])
def test_C_026_what_one_thread_puts_under_many_keys_is_applied_in_its_order_over_the_death_of_the_primary(
    tmp_path, region, dispatcher_threads
):
    """Two members hold all buckets, so one member sends them all, before the death and after it."""
    threads = 4
    policy = {} if dispatcher_threads == 1 else {"order_policy": "thread"}  # With one dispatcher it is the default.
    with sites(tmp_path, region, dispatcher_threads=dispatcher_threads, batch_size=20, **policy) as both:
        listen(both)
        victim = both.wait_primary()
        members = both.ny.living()
        (other,) = (each for name, each in members.items() if name != victim)
        for each in members.values():
            each.begin("put_counting", "data", 30, PUTS, each.name, threads)
        for each in members.values():
            each.finish()
        first = by_thread(wait_notified(both.remote, 2 * threads * PUTS))
        assert len(first) == 2 * threads and all(own == list(range(PUTS)) for own in first.values())
        other.begin("put_counting", "data", 30, 3 * PUTS, other.name, threads, PUTS)
        eventually(lambda: len(both.remote.ask("notified", "data")) > 3 * threads * PUTS, what="more events there")
        members[victim].kill()
        other.finish()
        received = by_thread(wait_notified(both.remote, (2 + 3) * threads * PUTS))
        for thread in range(threads):
            assert received[f"{other.name}{thread}"] == list(range(4 * PUTS))
        both.wait_empty()
        both.balance()


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("region", [pytest.param(REPLICATE, id="RR"), pytest.param(PARTITION, id="PR")])
def test_C_028_primary_and_secondary_have_one_order_and_the_remote_site_applies_it(tmp_path, region):
    """The primary sends the first half. It dies before it sends the second one, which another member sends."""
    with sites(tmp_path, region, members=("a", "b", "c"), dispatcher_threads=1, batch_size=7) as both:
        wait_led(both.ny, 113 if region is REPLICATE else 7)
        listen(both)
        members = both.ny.living()
        put_at_all(members.values())
        wait_notified(both.remote, 3 * PUTS)
        for each in members.values():
            each.sender("ln", "pause")
        put_at_all(members.values())
        here = wait_notified(members["a"], 6 * PUTS) if region is REPLICATE else notified_by_leaders(both, 6 * PUTS)
        members[both.wait_primary()].kill()
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        there = wait_notified(both.remote, 6 * PUTS)
        assert by(0, there) == by(0, here)
        both.wait_empty()


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("dispatcher_threads", [1, 3])
def test_C_070_each_of_four_buckets_with_three_redundant_copies_is_applied_in_the_order_of_its_queue(
    tmp_path, dispatcher_threads
):
    region = {**PARTITION, "total_num_buckets": 4, "redundant_copies": 3}
    with sites(
        tmp_path,
        region,
        members=("a", "b", "c", "d"),
        parallel=True,
        dispatcher_threads=dispatcher_threads,
        batch_size=7,
    ) as both:
        wait_led(both.ny, 4)
        listen(both)
        members = both.ny.living()
        put_at_all(members.values())
        for each in members.values():
            each.sender("ln", "pause")
        put_at_all(members.values())
        here = notified_by_leaders(both, 8 * PUTS)
        members["b"].kill()
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        there = wait_notified(both.remote, 8 * PUTS)
        assert by(0, there) == by(0, here) and len(by(0, there)) == 4
        both.wait_empty()
        both.balance()


@contextlib.contextmanager
def colocated(folder: Path, *, here: int, there: int, **sender: Any) -> Iterator[tuple[WanSite, WanMember]]:
    """Two sites with two colocated regions, whose numbers of buckets differ. Three members send, one receives."""

    def regions(buckets: int, **more: Any) -> list[dict[str, Any]]:
        data = {**PARTITION, "total_num_buckets": buckets, **more}
        return [data, {**data, "name": "more", "colocated_with": "data"}]

    attributes = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True, **sender}
    with (
        WanSite(folder / "ln", 2, regions=regions(there)) as ln,
        WanSite(folder / "ny", 1, remotes=[ln], regions=regions(here, gateway_sender_ids=["ln"])) as ny,
    ):
        remote = ln.start_member("l", receiver={})
        for name in ("a", "b", "c"):
            ny.start_member(name, senders=[attributes])
        for region in ("data", "more"):
            ny.wait_shared(region, here, 2)
        yield ny, remote


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("order_policy", ["key", "partition"])
def test_C_071_several_dispatchers_lose_nothing_over_unequal_buckets_colocated_regions_and_a_death(
    tmp_path, order_policy
):
    with colocated(tmp_path, here=7, there=11, dispatcher_threads=3, order_policy=order_policy) as (ny, remote):
        members, count = [ny.living()["b"], ny.living()["c"]], 5000
        for region, each in zip(("data", "more"), members, strict=True):
            each.begin("put_each", region, 0, count)
        eventually(lambda: all(remote.ask("size", region) > 300 for region in ("data", "more")), what="events there")
        ny.living()["a"].kill()
        for each in members:
            each.finish()
        members[0].ask("put_shared", "data", KEYS, PUTS, "b", 3)
        for region in ("data", "more"):
            wait_equal(region, count, remote, *members)
        for each in members:
            eventually(lambda each=each: each.ask("statistics", "ln")["event_queue_bytes"] == 0, what="empty queues")
            assert each.ask("ledger", "ln")["balanced"] and each.sender("ln", "parked_count") == 0


def wait_equal(region: str, count: int, *members: WanMember) -> None:
    """Returns when all members, of both sites, have the same of a region: so many entries."""

    def is_equal() -> bool:
        if any(each.ask("size", region) != count for each in members):
            return False
        first, *others = (each.ask("content", region) for each in members)
        return all(each == first for each in others)

    eventually(is_equal, what=f"equal content of {region}")


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize(
    "region", [pytest.param(REPLICATE, id="replicated"), pytest.param(PARTITION, id="partitioned")]
)
def test_C_031_senders_with_primaries_on_different_members_and_listeners_that_put_hold_up_nobody(tmp_path, region):
    """Each member puts into both regions from several threads, and what it hears of one it puts into the other one."""
    regions = [{**region, "name": name, "gateway_sender_ids": [f"to_{name}"]} for name in ("one", "two")]
    remotes = [{**region, "name": name} for name in ("one", "two")]
    senders = [
        {"id": f"to_{name}", "remote_distributed_system_id": 2, "batch_time_interval": 20} for name in ("one", "two")
    ]
    with (
        WanSite(tmp_path / "ln", 2, regions=remotes) as ln,
        WanSite(tmp_path / "ny", 1, remotes=[ln], regions=regions) as ny,
    ):
        remote = ln.start_member("l", receiver={})
        for name in ("a", "b", "c"):
            ny.start_member(name, senders=senders)
        members = ny.living()

        def primaries(id: str) -> set[str]:
            return {name for name, each in members.items() if each.sender(id, "is_primary")}

        eventually(lambda: len(primaries("to_one")) == len(primaries("to_two")) == 1, what="a primary of each sender")
        if primaries("to_one") == primaries("to_two"):
            (name,) = primaries("to_two")
            members[name].sender("to_two", "stop")
            members[name].sender("to_two", "start")
            eventually(lambda: primaries("to_two") not in (set(), {name}), what="another primary")
        assert primaries("to_one") != primaries("to_two")
        for each in members.values():
            each.ask("listen", "one", "two")
            each.ask("listen", "two", "one")
        for each in members.values():
            each.begin("put_all_over", ["one", "two"], 150, each.name, 4)
        for each in members.values():
            each.finish()
        for name in ("one", "two"):
            wait_equal(name, 2 * 3 * 4 * 150, remote, *members.values())
