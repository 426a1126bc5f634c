"""Rows of Geode's list that are about one server elsewhere, with two members in the sending site."""

from __future__ import annotations

import pytest

from pywan.testing.waiting import eventually
from support.sites_of_members import BUCKETS, PARTITION, REPLICATE, WAYS, Sites, sites, wait_replicas
from support.wan_site import WanSite

SENDER = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20}


@pytest.mark.whole
def test_C_005_the_primary_is_closed_and_built_again_and_more_puts_make_the_remote_site_complete(tmp_path):
    with sites(tmp_path, REPLICATE) as both:
        first = both.wait_primary()
        both.ny.living()[first].ask("put_many", "data", 0, 500)
        both.ny.living()[first].end()
        both.ny.start_member(first, senders=[SENDER])
        wait_replicas(both.ny, REPLICATE)
        both.ny.living()[first].ask("put_many", "data", 500, 500)
        both.wait_remote(1000)
        both.wait_empty()
        both.balance()


@pytest.mark.whole
def test_C_019_replicated_and_partitioned_regions_on_one_serial_sender_to_each_of_two_sites(tmp_path):
    parts = {**PARTITION, "name": "parts"}
    ids = ["ln", "tk"]
    with (
        WanSite(tmp_path / "ln", 2, regions=[REPLICATE, parts]) as ln,
        WanSite(tmp_path / "tk", 3, regions=[REPLICATE, parts]) as tk,
        WanSite(
            tmp_path / "ny",
            1,
            remotes=[ln, tk],
            regions=[{**each, "gateway_sender_ids": ids} for each in (REPLICATE, parts)],
        ) as ny,
    ):
        remotes = [site.start_member(name, receiver={}) for site in (ln, tk) for name in ("l", "m")]
        senders = [{**SENDER, "id": id, "remote_distributed_system_id": n} for n, id in enumerate(ids, 2)]
        for name in ("a", "b"):
            ny.start_member(name, senders=senders)
        ny.wait_shared("parts", BUCKETS, 2)
        for n, region in enumerate(("data", "parts")):
            for name in ("a", "b"):
                ny.living()[name].ask("put_many", region, 500 * (name == "b"), 500, f"value of {n}")
        for each in remotes:
            for region in ("data", "parts"):
                eventually(lambda each=each, region=region: each.ask("size", region) == 1000, what="1,000 entries")
                assert each.ask("content", region) == ny.living()["a"].ask("content", region)
        for each in ny.living().values():
            for id in ids:
                eventually(lambda each=each, id=id: each.ask("ledger", id)["in_queue"] == 0, what="an empty queue")
                assert each.ask("ledger", id)["balanced"]


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_C_110_what_filters_keep_back_at_both_places_is_counted_once_over_all_members(tmp_path, parallel, region):
    filters = ["support.wan_site:RefusesAtBothPlaces"]
    with sites(tmp_path, region, parallel=parallel, batch_size=10, gateway_event_filters=filters) as both:
        members = both.ny.living().values()
        for each in members:
            each.sender("ln", "pause")
        both.ny.living()["a"].ask("put_many", "data", 0, 1000)
        eventually(lambda: both.sizes_of_queues() == {"a": 900, "b": 900}, what="the events at both members")
        for each in members:
            each.sender("ln", "resume")
        both.wait_remote(800)
        both.wait_empty()
        both.balance()
        assert both.ny.sum_of("ln", "events_distributed") == 800
        assert both.ny.sum_of("ln", "events_filtered") == 200


def paused(both: Sites, *names: str) -> None:
    for name, each in both.ny.living().items():
        each.sender("ln", "pause" if name in names else "resume")


@pytest.mark.whole
@pytest.mark.parametrize("copies", [0, 1])
def test_C_199_a_flush_asks_the_other_members(tmp_path, copies):
    region = {**PARTITION, "redundant_copies": copies}
    with sites(tmp_path, region, parallel=True, batch_size=10_000, batch_time_interval=600_000) as both:
        one = both.ny.living()["a"]
        one.ask("put_many", "data", 0, 1000)
        assert both.remote_size() == 0
        assert one.sender("ln", "wait_until_flushed", 60)
        assert both.remote_size() == 1000
        paused(both, "b")
        one.ask("put_many", "data", 1000, 1000)
        assert not one.sender("ln", "wait_until_flushed", 1)
        assert 1000 < both.remote_size() < 2000
        paused(both)
        assert one.sender("ln", "wait_until_flushed", 60)
        assert both.remote_size() == 2000


@pytest.mark.whole
def test_C_199_a_flush_at_a_member_that_is_not_the_primary_of_a_serial_sender_asks_that(tmp_path):
    with sites(tmp_path, REPLICATE, batch_size=10_000, batch_time_interval=600_000) as both:
        first = both.wait_primary()
        other = next(each for name, each in both.ny.living().items() if name != first)
        other.ask("put_many", "data", 0, 1000)
        assert both.remote_size() == 0
        assert other.sender("ln", "wait_until_flushed", 60)
        assert both.remote_size() == 1000
