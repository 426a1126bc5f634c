"""Gateway senders of a site of several members: every event leaves, over members that die, stop and come, and each
member says what it has. One remote member receives, or several that share the region. The numbers are those of Geode's
own tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan.testing.waiting import eventually
from support.sites_of_members import BUCKETS, PARTITION, REPLICATE, SELDOM, WAYS, Sites, sites, wait_replicas
from support.wan_site import WanMember, WanSite


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_what_any_member_puts_arrives_and_leaves_all_queues(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel) as both:
        for first, name in ((0, "a"), (500, "b")):
            both.ny.living()[name].ask("put_many", "data", first, 500)
        both.wait_remote(1000)
        both.wait_empty()
        both.balance()
        assert both.remote.ask("content", "data") == both.ny.living()["b"].ask("content", "data")


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_nothing_is_lost_when_a_member_is_killed_amid_puts(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel, members=("a", "b", "c")) as both:
        victim = "a" if parallel else both.wait_primary()
        other = next(name for name in both.ny.living() if name != victim)
        putting = both.ny.living()[other]
        putting.begin("put_each", "data", 0, 10_000)
        eventually(lambda: both.remote_size() > 500, what="events on their way")
        both.ny.living()[victim].kill()
        putting.finish()
        both.wait_remote(10_000)
        both.wait_empty()
        both.balance()


@pytest.mark.nightly
@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_nothing_is_lost_when_one_of_two_remote_members_is_killed_amid_puts(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel, receivers=("l", "m")) as both:
        for each in both.ny.living().values():
            each.ask("begin_putting", "data")
        eventually(lambda: both.received("l") > 500 and both.received("m") > 500, what="events at both receivers")
        both.ln.living()["m"].kill()
        at = both.received("l")
        eventually(lambda: both.received("l") > at + 1000, what="events at the receiver that is left")
        both.ln.start_member("m", receiver={})
        wait_replicas(both.ln, region)
        puts = {name: each.ask("stop_putting") for name, each in both.ny.living().items()}
        both.wait_empty()
        both.balance()
        put = {f"{name} {n}": n for name, count in puts.items() for n in range(count)}
        for name, each in both.ln.living().items():
            assert each.ask("content", "data") == put, name


@pytest.mark.nightly
@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_what_waits_in_the_queue_of_a_member_that_dies_leaves_from_another(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel) as both:
        both.remote.kill()
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.ny.living()["a"].kill()
        both.ln.start_member("l", receiver={})
        both.wait_remote(1000)
        both.wait_empty()


def sender_of_site(parallel: bool) -> dict[str, Any]:
    return {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": parallel}


LATER = [
    pytest.param(True, PARTITION, id="parallel"),
    pytest.param(False, REPLICATE, id="serial"),
]


@contextlib.contextmanager
def sites_with_a_later_sender(
    folder: Path, region: dict[str, Any], parallel: bool, events: int, first: str = "a"
) -> Iterator[tuple[Sites, int]]:
    """`first` alone has the sender when so many events come, and the remote site is away. The other one of two members
    gets it then, and some more events come. It yields the sites and how many events are queued, as soon as both members
    have them all."""
    with (
        WanSite(folder / "ln", 2, regions=[region]) as ln,
        WanSite(folder / "ny", 1, remotes=[ln], regions=[{**region, "gateway_sender_ids": ["ln"]}]) as ny,
    ):
        for name in ("a", "b"):
            ny.start_member(name, senders=[sender_of_site(parallel)] if name == first else [])
        both = Sites(ny, ln)
        wait_replicas(ny, region)
        # The member that leads a bucket says which senders its events enter. The site may move some back meanwhile.
        for bucket in range(BUCKETS if region is PARTITION else 113):
            ny.move("data", bucket, "primary", to=first)
        ny.living()[first].ask("put_many", "data", 0, events)
        queued = ny.living()[first].ask("ledger", "ln")["in_queue"] + 100
        assert queued > events * 3 / 4
        other = "b" if first == "a" else "a"
        ny.living()[other].ask("create", "gateway_sender", **sender_of_site(parallel))
        ny.living()[other].ask("put_many", "data", events, 100)
        eventually(lambda: both.sizes_of_queues() == {"a": queued, "b": queued}, what="all events at both")
        yield both, queued


@pytest.mark.whole
@pytest.mark.parametrize(
    ("parallel", "region", "end"),
    [  # Each end, and each way, is there by day.
        pytest.param(*way.values, end, id=f"{end}-{way.id}", marks=[] if by_day == way.id else pytest.mark.nightly)
        for way in LATER
        for end, by_day in (
            ("stays", "serial"),
            ("sender-stops", "serial"),
            ("stops", "parallel"),
            ("dies", "parallel"),
        )
    ],
)
def test_a_member_that_gets_its_sender_later_sends_what_was_queued_before(tmp_path, parallel, region, end):
    with sites_with_a_later_sender(tmp_path, region, parallel, 1000) as (both, queued):
        if end == "stays":  # The younger one leads now.
            for bucket in range(BUCKETS if region is PARTITION else 113):
                both.ny.move("data", bucket, "primary", to="b")
            if not parallel:  # It does not matter who leads the buckets: the first one is the sender's primary.
                assert both.wait_primary() == "a"
        elif end == "sender-stops":  # The younger one is primary of a serial sender now; it leads no bucket.
            both.ny.living()["a"].sender("ln", "stop")
            if parallel:
                for bucket in range(BUCKETS):
                    both.ny.move("data", bucket, "primary", to="b")
        elif end == "stops":
            both.ny.living()["a"].end()
        else:
            both.ny.living()["a"].kill()
        both.ln.start_member("l", receiver={})
        both.wait_remote(queued)
        both.wait_empty()
        both.balance()
        assert both.remote.ask("content", "data").items() <= both.ny.living()["b"].ask("content", "data").items()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), LATER)
def test_what_was_acknowledged_since_all_members_had_the_sender_arrives_over_a_change_of_primaries(
    tmp_path, parallel, region
):
    """The region gets its sender by `alter region` while both members put."""
    with (
        WanSite(tmp_path / "ln", 2, regions=[region]) as ln,
        WanSite(tmp_path / "ny", 1, remotes=[ln], regions=[region]) as ny,
    ):
        for name in ("a", "b"):
            ny.start_member(name, senders=[sender_of_site(parallel)])
        wait_replicas(ny, region)
        both = Sites(ny, ln)
        for each in ny.living().values():
            each.ask("begin_putting", "data")
        eventually(lambda: ny.living()["b"].ask("size", "data") > 200, what="some load")
        for each in ny.living().values():
            each.ask("do", "data", "alter", gateway_sender_ids=["ln"])
        before = ny.living()["a"].ask("content", "data").keys() | ny.living()["b"].ask("content", "data").keys()
        eventually(lambda: ny.living()["b"].ask("size", "data") > len(before) + 400, what="more load")
        put = {name: each.ask("stop_putting") for name, each in ny.living().items()}
        wanted = {f"{name} {n}" for name in put for n in range(put[name])} - before
        assert len(wanted) > 200
        # Whoever leads and sends, all is at both members.
        eventually(lambda: all(size >= len(wanted) for size in both.sizes_of_queues().values()), what="all at both")
        ny.living()["a"].kill()
        ln.start_member("l", receiver={})
        both.wait_empty()
        assert wanted <= both.remote.ask("content", "data").keys()


@pytest.mark.whole
def test_a_second_member_gets_the_events_that_wait_with_its_replica(tmp_path):
    with sites(tmp_path, PARTITION, members=("a",), parallel=True) as both:
        both.remote.kill()
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.ny.start_member(
            "b", senders=[{"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True}]
        )
        both.ny.wait_shared("data", BUCKETS, 2)
        eventually(lambda: both.sizes()["b"][0] == 1000, what="the events at the second member")
        both.ny.living()["a"].kill()
        both.ln.start_member("l", receiver={})
        both.wait_remote(1000)
        both.wait_empty()


@pytest.mark.whole
def test_a_member_that_numbers_its_regions_otherwise_sends_what_it_copied(tmp_path):
    """Region numbers are those of a process. Half of the events come to it with a snapshot, half as they are made."""
    sender = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True}
    with sites(tmp_path, PARTITION, members=("a",), parallel=True) as both:
        both.remote.kill()
        both.ny.living()["a"].ask("put_many", "data", 0, 500)
        own = [{"name": name, "type": "NORMAL"} for name in ("first", "second")]
        both.ny.start_member("b", senders=[sender], regions=[*own, *both.ny.regions])
        both.ny.wait_shared("data", BUCKETS, 2)
        both.ny.living()["a"].ask("put_many", "data", 500, 500)
        both.ny.living()["a"].kill()
        both.ln.start_member("l", receiver={})
        both.wait_remote(1000)
        both.wait_empty()
        assert both.ny.living()["b"].sender("ln", "parked_count") == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("parallel", "region", "first", "all_of_it"), [(True, PARTITION, 50, 950), (False, REPLICATE, 100, 1000)]
)
def test_a_sender_that_is_stopped_on_one_member(tmp_path, parallel, region, first, all_of_it):
    """A parallel one drops what that member leads; a serial one runs on elsewhere and loses nothing."""
    with sites(tmp_path, {**region, **({"total_num_buckets": 2} if parallel else {})}, parallel=parallel) as both:
        stopped = "a" if parallel else both.wait_primary()
        one, other = both.ny.living()[stopped], next(m for n, m in both.ny.living().items() if n != stopped)
        one.sender("ln", "stop")
        if not parallel:
            eventually(lambda: other.sender("ln", "is_primary"), what="the other member as primary")
        dropped = lambda: sum(  # noqa: E731
            each.ask("ledger", "ln")["dropped"]["sender not running"] for each in both.ny.living().values()
        )
        other.ask("put_many", "data", 0, 100)
        both.wait_remote(100 - dropped())
        assert dropped() == 0 if not parallel else 0 < dropped() < 100
        one.sender("ln", "start")
        kept = 100 - dropped()
        other.ask("put_many", "data", 100, 900)
        both.wait_remote(kept + 900)
        both.wait_empty()


@pytest.mark.long
@pytest.mark.whole
def test_a_parallel_sender_that_is_stopped_everywhere_leaves_nothing_in_the_replicas(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True) as both:
        for each in both.ny.living().values():
            each.sender("ln", "stop")
        both.ny.living()["a"].ask("put_many", "data", 0, 100)
        assert both.sizes() == {"a": (0, 0, 0), "b": (0, 0, 0)} and both.remote_size() == 0
        for each in both.ny.living().values():
            each.sender("ln", "start")
        both.ny.living()["a"].ask("put_many", "data", 100, 900)
        both.wait_remote(900)


@pytest.mark.long
@pytest.mark.whole
def test_a_serial_sender_that_is_stopped_at_its_primary_goes_on_at_another_and_nothing_waits(tmp_path):
    with sites(tmp_path, REPLICATE) as both:
        first = both.wait_primary()
        second = ({"a", "b"} - {first}).pop()
        both.remote.kill()
        both.ny.living()["a"].ask("put_many", "data", 0, 500)
        both.ny.living()[first].sender("ln", "stop")
        eventually(lambda: both.primaries() == {second}, what="the other member as primary")
        both.ln.start_member("l", receiver={})
        both.wait_remote(500)
        both.ny.living()[second].sender("ln", "stop")
        both.ny.living()[first].sender("ln", "start")
        eventually(lambda: both.primaries() == {first}, what="the first member as primary again")
        both.ny.living()["b"].ask("put_many", "data", 500, 500)
        both.wait_remote(1000)
        both.wait_empty()


@pytest.mark.whole
def test_each_member_says_how_much_it_sends_and_how_much_waits_in_all(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True) as both:
        for each in both.ny.living().values():
            each.sender("ln", "pause")
        both.ny.living()["a"].ask("put_many", "data", 0, 10)
        found = both.sizes()
        assert [found[name][0] for name in ("a", "b")] == [10, 10]
        assert sum(size[1] for size in found.values()) == sum(size[2] for size in found.values()) == 10
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        both.wait_remote(10)
        both.wait_empty()
        assert set(both.sizes().values()) == {(0, 0, 0)}


@pytest.mark.whole
def test_a_member_that_holds_events_for_another_one_says_that_it_waits_for_that(tmp_path):
    with sites(tmp_path, REPLICATE) as both:
        first = both.wait_primary()
        other = next(each for name, each in both.ny.living().items() if name != first)
        both.ny.living()[first].sender("ln", "pause")
        other.ask("put_many", "data", 0, 10)
        eventually(
            lambda: other.sender("ln", "lag")["cause"] == "held for another member",
            what="the reason why events wait at the other member",
        )
        assert both.ny.living()[first].sender("ln", "lag")["cause"] == "paused"
        both.ny.living()[first].sender("ln", "resume")
        both.wait_remote(10)
        both.wait_empty()
        assert other.sender("ln", "lag")["cause"] == "none"


@pytest.mark.nightly
@pytest.mark.whole
def test_a_member_without_entries_sends_nothing_and_its_sender_starts_without_an_error(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True, manual_start=True) as both:
        sender = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True}
        proxy = both.ny.start_member(
            "p",
            senders=[sender],
            regions=[{**PARTITION, "type": "PARTITION_PROXY", "gateway_sender_ids": ["ln"]}],
        )
        proxy.ask("put_many", "data", 0, 100)
        assert both.remote_size() == 0
        for each in both.ny.living().values():
            each.sender("ln", "start")
        proxy.ask("put_many", "data", 100, 100)
        both.wait_remote(100)
        both.wait_empty()


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_senders_stop_on_all_members_at_once_under_load_while_their_sizes_are_read(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel) as both:
        members = list(both.ny.living().values())
        for each in members:
            each.begin("load_and_stop", "data", "ln", 2000)
        for each in members:
            each.finish()
        assert not any(each.sender("ln", "is_running") for each in members)
        both.balance()


@pytest.mark.nightly
@pytest.mark.whole
def test_updates_that_take_each_others_place_do_so_at_the_replicas_too(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True, enable_batch_conflation=True) as both:
        for each in both.ny.living().values():
            each.sender("ln", "pause")
        for text in ("first", "second", "third"):
            both.ny.living()["a"].ask("put_many", "data", 0, 100, text)
        found = both.sizes()
        assert all(size[0] == 200 for size in found.values())  # The create and the last update.
        assert sum(size[2] for size in found.values()) == 200
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        both.wait_remote(100)
        both.wait_empty()
        assert set(both.remote.ask("content", "data").values()) == {f"third {n}" for n in range(100)}


@pytest.mark.whole
def test_a_sender_is_created_alike_on_all_members(tmp_path):
    with WanSite(tmp_path, 1, regions=[]) as ny:
        made = {"id": "ln", "remote_distributed_system_id": 2}
        ny.start_member("a", senders=[made])
        other = ny.start_member("b")
        for differs in (
            {"remote_distributed_system_id": 3},
            {"parallel": True},
            {"enable_batch_conflation": True},
            {"alert_threshold": 10},
            {"order_policy": "thread"},
            {"enforce_threads_connect_same_receiver": True},
            {"acknowledge_once": True},
            {"gateway_event_filters": ["support.wan_site:RefusesAtBothPlaces"]},
            {"gateway_event_substitution_filter": "support.wan_site:Substitutes"},
        ):
            (name,) = differs
            with pytest.raises(AssertionError, match=f"gateway sender ln: {name.replace('_', '-')} is .* here and"):
                other.ask("create", "gateway_sender", **{**made, **differs})
        other.ask("create", "gateway_sender", **made, batch_size=7)
        other.sender("ln", "alter", alert_threshold=10)
        with pytest.raises(AssertionError, match="alert-threshold is 0 here and 10 at the other members"):
            ny.start_member("c", senders=[made])


@pytest.mark.nightly
@pytest.mark.whole
def test_queues_are_cleaned_everywhere_at_once(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True) as both:
        both.remote.kill()
        members = both.ny.living()
        members["a"].ask("put_many", "data", 0, 100)
        members["a"].sender("ln", "stop")
        with pytest.raises(AssertionError, match="runs"):
            members["b"].sender("ln", "start", clean_queues=True)
        members["b"].sender("ln", "stop")
        for each in members.values():
            each.ask("clean", "ln")
        assert set(both.sizes().values()) == {(0, 0, 0)}
        both.balance()


@pytest.mark.whole
def test_a_filter_is_asked_once_at_the_member_that_leads_the_key(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True, gateway_event_filters=["support.wan_site:EvenKeys"]) as both:
        for name in ("a", "b"):
            both.ny.living()[name].ask("put_many", "data", 0 if name == "a" else 500, 500)
        both.wait_remote(500)
        both.wait_empty()
        asked = sum(each.ask("asked") for each in both.ny.living().values())
        assert asked == 1000
        assert both.ny.sum_of("ln", "events_filtered") == 500


@pytest.mark.nightly
@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
@pytest.mark.parametrize(("once", "calls"), [(False, 2000), (True, 1000)])
def test_acknowledged_events_are_told_at_each_replica_or_once(tmp_path, parallel, region, once, calls):
    filters = {"gateway_event_filters": ["support.wan_site:ReceivedAcknowledgements"], "acknowledge_once": once}
    with sites(tmp_path, region, parallel=parallel, **filters) as both:
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.wait_remote(1000)
        both.wait_empty()
        eventually(
            lambda: sum(each.ask("acknowledged") for each in both.ny.living().values()) == calls,
            what=f"{calls} calls of after_acknowledgement",
        )


def kill_amid_sending(both: Sites, parallel: bool, region: dict[str, Any], is_time: Callable[[str], bool]) -> WanMember:
    """Both members hold 5,000 events. A member that sends them is killed when `is_time` says so. Returns the other."""
    victim = "a" if parallel else both.wait_primary()
    (left,) = (each for name, each in both.ny.living().items() if name != victim)
    for each in both.ny.living().values():
        each.sender("ln", "pause")
    left.ask("put_many", "data", 0, 5000)
    wait_replicas(both.ny, region)  # A replica that was slow has all again.
    eventually(lambda: set(both.sizes_of_queues().values()) == {5000}, what="all events at both members")
    for each in both.ny.living().values():
        each.sender("ln", "resume")
    eventually(lambda: is_time(victim), what="events that have left")
    both.ny.living()[victim].kill()
    return left


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_holder_is_told_of_all_that_was_acknowledged_and_of_nothing_else_though_the_primary_dies(
    tmp_path, parallel, region
):
    more = {"gateway_event_filters": ["support.wan_site:EvenKeysLeave"], "batch_size": 10}
    with sites(tmp_path, region, parallel=parallel, **more) as both:
        left = kill_amid_sending(both, parallel, region, lambda victim: both.remote_size() > 500)
        both.wait_remote(2500)
        both.wait_empty()
        both.balance()
        assert left.ask("acknowledged_numbers") == list(range(0, 5000, 2))


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_no_holder_is_told_of_parked_events_though_the_primary_dies(tmp_path, parallel, region):
    more = {"gateway_event_filters": ["support.wan_site:EvenKeysLeave"], "batch_size": 10}
    with sites(tmp_path, region, parallel=parallel, remote={**region, "name": "another"}, **more) as both:
        left = kill_amid_sending(
            both, parallel, region, lambda victim: both.ny.living()[victim].sender("ln", "parked_count") > 100
        )
        eventually(lambda: left.ask("ledger", "ln")["in_queue"] == 0, what="an empty queue")
        both.balance()
        assert left.ask("acknowledged_numbers") == []


@pytest.mark.whole
def test_the_statistics_of_a_serial_sender_are_those_of_its_primary(tmp_path):
    with sites(tmp_path, REPLICATE, batch_size=10, dispatcher_threads=1) as both:
        first = both.wait_primary()
        second = ({"a", "b"} - {first}).pop()
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.wait_remote(1000)
        both.wait_empty()
        members = both.ny.living()
        one, other = members[first].ask("statistics", "ln"), members[second].ask("statistics", "ln")
        assert [one[f"events_{what}"] for what in ("received", "queued", "distributed")] == [1000] * 3
        assert one["batches_distributed"] >= 100 and one["event_queue_size"] == 0
        assert other["events_received"] == 1000 and other["events_queued"] == 0
        members[first].kill()
        members[second].ask("put_many", "data", 1000, 500)
        both.wait_remote(1500)
        both.wait_empty()
        now = members[second].ask("statistics", "ln")
        assert now["events_received"] >= 1500 and now["events_queued"] >= 500 and now["events_distributed"] >= 500


@pytest.mark.whole
def test_the_sizes_of_a_parallel_sender_by_member_sum_to_what_was_put(tmp_path):
    alone = {**PARTITION, "redundant_copies": 0}
    with sites(tmp_path, alone, parallel=True) as both:
        for each in both.ny.living().values():
            each.sender("ln", "pause")
        both.ny.living()["a"].ask("put_many", "data", 0, 100)
        assert both.ny.sum_of("ln", "event_queue_size") == 100
        assert both.ny.sum_of("ln", "secondary_event_queue_size") == 0
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        both.wait_remote(100)
        both.wait_empty()
        assert both.ny.sum_of("ln", "event_queue_size") == 0


@pytest.mark.nightly
@pytest.mark.whole
def test_what_replicas_hold_is_what_their_primaries_hold_over_a_restart_and_a_new_primary(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True) as both:
        for each in both.ny.living().values():
            each.sender("ln", "pause")
        both.ny.living()["a"].ask("put_many", "data", 0, 100)
        both.ny.living()["b"].kill()
        eventually(lambda: both.sizes()["a"] == (100, 100, 0), what="all events at the member that is left")
        sender = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True}
        both.ny.start_member("b", senders=[sender])
        both.ny.living()["b"].sender("ln", "pause")
        both.ny.wait_shared("data", BUCKETS, 2)
        eventually(
            lambda: sum(both.ny.sum_of("ln", f"{which}event_queue_size") for which in ("", "secondary_")) == 200,
            what="each event at both members",
        )
        assert both.ny.sum_of("ln", "secondary_event_queue_size") == 100
        for each in both.ny.living().values():
            each.sender("ln", "resume")
        both.wait_remote(100)
        both.wait_empty()


@pytest.mark.nightly
@pytest.mark.whole
def test_a_sender_that_is_destroyed_on_one_member_is_gone_there_alone(tmp_path):
    with WanSite(tmp_path, 1, regions=[]) as ny:
        made = {"id": "ln", "remote_distributed_system_id": 2}
        one, other = (ny.start_member(name, senders=[made]) for name in ("a", "b"))
        one.sender("ln", "destroy")
        with pytest.raises(AssertionError, match="has no gateway sender 'ln'"):
            one.sender("ln", "is_running")
        eventually(lambda: other.sender("ln", "is_primary"), what="the other member as primary")
        other.ask("create", "region", **{**REPLICATE, "gateway_sender_ids": ["ln"]})
        with pytest.raises(AssertionError, match="is attached to region data"):
            other.sender("ln", "destroy")


@pytest.mark.whole
def test_a_site_that_hands_on_asks_its_filters_where_the_key_is_led_whoever_received(tmp_path):
    fed = {**PARTITION, "gateway_sender_ids": ["tk"]}
    to_tk = {
        "id": "tk",
        "remote_distributed_system_id": 3,
        "parallel": True,
        "gateway_event_filters": ["support.wan_site:EvenKeys"],
    }
    to_ln = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20}
    with (
        WanSite(tmp_path / "ln", 2, regions=[fed]) as ln,
        WanSite(tmp_path / "ny", 1, remotes=[ln], regions=[{**PARTITION, "gateway_sender_ids": ["ln"]}]) as ny,
    ):
        for name in ("one", "two"):
            ln.start_member(name, senders=[to_tk], receiver={})
        ln.wait_shared("data", BUCKETS, 2)
        ny.start_member("a", senders=[to_ln]).ask("put_many", "data", 0, 1000)
        members = list(ln.living().values())
        eventually(lambda: members[0].ask("size", "data") == 1000, what="all events at the second site")
        assert sum(each.ask("asked") for each in members) >= 1000  # An event that was sent again is asked about again.
        assert [each.sender("tk", "queue_size") for each in members] == [500, 500]
        assert all(each.ask("ledger", "tk")["balanced"] for each in members)


@pytest.mark.parametrize("region", [REPLICATE, PARTITION], ids=["replicated", "partitioned"])
def test_no_change_is_queued_after_the_last_stop_and_each_is_after_the_first_start(region):
    """The primaries of a site's buckets know that a sender runs, or does not, when the call that said so returns."""
    region = {**region, "gateway_sender_ids": ["ln"]}
    with contextlib.ExitStack() as ends:
        locator = ends.enter_context(pywan.Locator("L", distributed_system_id=1, port=0))
        caches = [ends.enter_context(pywan.Cache(name, locators=str(locator.address))) for name in "ab"]
        senders = [each.create_gateway_sender("ln", remote_distributed_system_id=2) for each in caches]
        data = [each.create_region(**region) for each in caches]
        eventually(lambda: caches[1]._core.sharing.describe("data").get("primary"), what="primaries at both members")
        queued = 0
        for round in range(6):
            for each in senders:
                each.stop()
            for n in range(100):
                data[n % 2].put((round, "not queued", n), n)
            assert [each.ledger()["in_queue"] for each in senders] == [queued, queued]
            senders[round % 2].start()  # The other one still is stopped, and its member queues what it leads.
            for n in range(50):
                data[n % 2].put((round, "queued", n), n)
            senders[1 - round % 2].start()
            senders[round % 2].stop()
            for n in range(50, 100):
                data[n % 2].put((round, "queued", n), n)
            queued += 100
            assert [each.ledger()["in_queue"] for each in senders] == [queued, queued]
        dropped = sum(each.ledger()["dropped"]["sender not running"] for each in senders)
        assert dropped == 6 * 100


def test_a_sender_that_stops_says_which_member_may_not_know_that(caplog, monkeypatch):
    with contextlib.ExitStack() as ends:
        locator = ends.enter_context(pywan.Locator("L", distributed_system_id=1, port=0))
        caches = [ends.enter_context(pywan.Cache(n, locators=str(locator.address), call_timeout=1)) for n in "ab"]
        senders = [each.create_gateway_sender("ln", remote_distributed_system_id=2) for each in caches]
        monkeypatch.setattr(caches[1]._core.sharing, "answer_has_decision", lambda request: {"has": False})
        senders[0].stop()
        assert not senders[0].is_running
        assert "is stopped on this member, and within 1 s member b did not say that it knows" in caplog.text
