"""What the members of a site count of a sender that they have together: sizes, statistics and acknowledgements."""

from __future__ import annotations

from collections import Counter

import pytest

from pywan.testing.waiting import eventually
from support.sites_of_members import BUCKETS, PARTITION, REPLICATE, Sites, sites
from support.wan_site import WanSite

SENDER = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20}


def pause_all(both: Sites) -> None:
    for each in both.ny.living().values():
        each.sender("ln", "pause")


def resume_all(both: Sites) -> None:
    for each in both.ny.living().values():
        each.sender("ln", "resume")


def wait_spread(both: Sites, replicas: int) -> None:
    """Returns when each bucket has so many replicas, and no member has many more of them than another one."""

    def is_even() -> bool:
        layout = both.ny.locator.ask("layout", "data")
        if any(len(each) != replicas for _, each in layout):
            return False
        held = Counter(name for _, each in layout for name in each)
        return len(held) == len(both.ny.living()) and max(held.values()) - min(held.values()) < 2

    eventually(is_even, what="as many replicas at each member")


def acknowledged(both: Sites) -> int:
    return sum(each.ask("acknowledged") for each in both.ny.living().values())


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize(
    ("region", "parallel", "members"),
    [
        pytest.param(REPLICATE, False, ("a", "b"), id="C_025"),
        pytest.param(PARTITION, True, ("a", "b", "c", "d"), id="C_064"),
    ],
)
def test_each_replica_is_told_once_that_an_event_is_acknowledged(tmp_path, region, parallel, members):
    filters = ["support.wan_site:Acknowledged"]
    with sites(tmp_path, region, members=members, parallel=parallel, gateway_event_filters=filters) as both:
        if parallel:
            wait_spread(both, 2)
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.wait_remote(1000)
        eventually(lambda: acknowledged(both) >= 2000, what="an acknowledgement of each replica")
        both.wait_empty()
        assert acknowledged(both) == 2000


@pytest.mark.whole
@pytest.mark.nightly
def test_a_filter_on_several_members_leaves_what_it_lets_through(tmp_path):
    filters = ["support.wan_site:FourOfFive"]
    with sites(tmp_path, PARTITION, members=("a", "b", "c", "d"), parallel=True, gateway_event_filters=filters) as both:
        wait_spread(both, 2)
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        both.wait_remote(800)
        eventually(lambda: acknowledged(both) >= 1600, what="an acknowledgement of each replica")
        both.wait_empty()
        assert acknowledged(both) == 1600 and both.remote_size() == 800


@pytest.mark.whole
@pytest.mark.long
def test_both_other_replicas_conflate_as_the_primary_does(tmp_path):
    region = {**PARTITION, "redundant_copies": 2}
    with sites(tmp_path, region, members=("a", "b", "c"), parallel=True, enable_batch_conflation=True) as both:
        pause_all(both)
        for text in ("first", "second", "third"):
            both.ny.living()["a"].ask("put_many", "data", 0, 100, text)
        found = both.sizes().values()
        assert sum(size[1] for size in found) == 200  # The create and the last update of each key.
        assert sum(size[2] for size in found) == 400
        resume_all(both)
        both.wait_remote(100)
        both.wait_empty()
        assert set(both.remote.ask("content", "data").values()) == {f"third {n}" for n in range(100)}


@pytest.mark.whole
@pytest.mark.nightly
def test_a_thousand_events_in_batches_of_ten_are_counted_at_the_primary(tmp_path):
    with sites(tmp_path, REPLICATE, batch_size=10, dispatcher_threads=1) as both:
        pause_all(both)
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        resume_all(both)
        both.wait_remote(1000)
        both.wait_empty()
        first = both.wait_primary()
        (second,) = {"a", "b"} - {first}
        primary, secondary = (both.ny.living()[name].ask("statistics", "ln") for name in (first, second))
        counted = ("events_received", "events_queued", "events_distributed", "batches_distributed")
        assert [primary[what] for what in counted] == [1000, 1000, 1000, 100]
        assert [secondary[what] for what in counted] == [1000, 0, 0, 0]
        assert both.ny.living()[second].ask("ledger", "ln")["removed_by_primary"] == 1000
        assert set(both.sizes().values()) == {(0, 0, 0)}


@pytest.mark.whole
@pytest.mark.long
def test_a_primary_that_takes_over_counts_all_that_came_and_what_it_sent(tmp_path):
    with sites(tmp_path, REPLICATE, batch_size=10) as both:
        first = both.wait_primary()
        (name,) = {"a", "b"} - {first}
        other = both.ny.living()[name]
        other.begin("put_each", "data", 0, 5000)
        eventually(lambda: both.remote_size() > 500, what="events on their way")
        both.ny.living()[first].kill()
        other.finish()
        both.wait_remote(5000)
        both.wait_empty()
        found, ledger = other.ask("statistics", "ln"), other.ask("ledger", "ln")
        assert found["events_received"] == found["events_queued"] == 5000
        assert found["events_distributed"] + ledger["removed_by_primary"] == 5000
        assert found["events_distributed"] > 0 and ledger["balanced"]


@pytest.mark.whole
@pytest.mark.long
def test_the_size_of_what_a_member_holds_for_others_is_true_after_a_restart_and_after_primaries_have_moved(tmp_path):
    with sites(tmp_path, PARTITION, parallel=True) as both:
        ny = both.ny
        pause_all(both)
        ny.living()["a"].ask("put_many", "data", 0, 1000)

        def adds_up() -> bool:
            found = both.sizes().values()
            return [sum(size[place] for size in found) for place in (1, 2)] == [1000, 1000]

        assert adds_up()
        ny.living()["b"].kill()
        ny.start_member("b", senders=[{**SENDER, "parallel": True, "manual_start": True}])
        ny.living()["b"].sender("ln", "start")
        ny.living()["b"].sender("ln", "pause")
        ny.wait_shared("data", BUCKETS, 2)
        eventually(adds_up, what="all events at both members")
        for number, (primary, _) in enumerate(ny.locator.ask("layout", "data")):
            ny.move("data", number, "primary", "a" if primary == "b" else "b")
        eventually(adds_up, what="all events at both members")
        resume_all(both)
        both.wait_remote(1000)
        both.wait_empty()
        assert set(both.sizes().values()) == {(0, 0, 0)}


@pytest.mark.whole
@pytest.mark.nightly
def test_a_sender_that_is_destroyed_on_one_member_is_gone_there_only(tmp_path):
    with WanSite(tmp_path, 1, regions=[]) as ny:
        for name in ("a", "b"):
            ny.start_member(name, senders=[SENDER])
        ny.living()["b"].ask("create", "region", **REPLICATE, gateway_sender_ids=["ln"])
        with pytest.raises(AssertionError, match="data"):
            ny.living()["b"].sender("ln", "destroy")
        ny.living()["a"].sender("ln", "destroy")
        with pytest.raises(AssertionError, match="ln"):
            ny.living()["a"].sender("ln", "queue_size")
        assert ny.living()["b"].sender("ln", "is_running")
