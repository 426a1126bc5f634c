"""Regions of several members that are destroyed, or lose their sender, while events wait: what was queued arrives, all
queues empty, and whoever puts hears at once that the region is gone."""

from __future__ import annotations

import pytest

from pywan.testing.waiting import SOON_S, eventually
from support.sites_of_members import SELDOM, WAYS, Sites, sites, wait_replicas


def wait_gone(both: Sites) -> None:
    for name, each in both.ny.living().items():
        eventually(lambda each=each: not each.ask("has", "data"), what=f"the end of the region at member {name}")


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), WAYS)
def test_what_waits_when_a_region_is_destroyed_leaves_from_all_members_and_the_new_region_goes_on(
    tmp_path, parallel, region
):
    """C-073, not drained before: Geode drops the earlier events."""
    with sites(tmp_path, region, parallel=parallel) as both:
        members = both.ny.living()
        both.remote.kill()
        members["a"].ask("put_many", "data", 0, 1000)
        members["a"].ask("destroy_region", "data")
        wait_gone(both)
        for each in members.values():
            each.ask("create", "region", **region, gateway_sender_ids=["ln"])
        wait_replicas(both.ny, region)
        members["b"].ask("put_many", "data", 1000, 100)
        assert members["a"].ask("size", "data") == 100
        both.ln.start_member("l", receiver={})
        both.wait_remote(1100)
        both.wait_empty()
        both.balance()


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_what_waits_when_a_region_loses_its_sender_leaves_from_all_members(tmp_path, parallel, region):
    with sites(tmp_path, region, parallel=parallel) as both:
        members = both.ny.living()
        both.remote.kill()
        members["a"].ask("put_many", "data", 0, 1000)
        for each in members.values():
            each.ask("do", "data", "alter", gateway_sender_ids=[])
        members["b"].ask("put_many", "data", 1000, 100)
        both.ln.start_member("l", receiver={})
        both.wait_remote(1000)
        both.wait_empty()
        both.balance()
        assert members["a"].ask("size", "data") == 1100 and both.remote_size() == 1000


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_region_that_another_member_destroys_ends_all_puts_at_once(tmp_path, parallel, region):
    """C-074, on several members: writers hear that the region is gone, and nothing else."""
    with sites(tmp_path, region, parallel=parallel) as both:
        members = both.ny.living()
        for each in members.values():
            each.begin("put_to_the_end", "data")
        attributes = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": parallel}
        third = both.ny.start_member("c", senders=[attributes])
        eventually(lambda: both.remote_size() > 500, what="events on their way")
        third.ask("destroy_region", "data")
        puts = {}
        for name, each in members.items():
            puts[name], words, seconds = each.finish()
            assert words.startswith("RegionNotFoundError: ") and seconds < SOON_S / 10, (name, words, seconds)
        wait_gone(both)
        both.wait_empty()
        both.balance()
        put = {f"{name} {n}": n for name, count in puts.items() for n in range(count)}
        assert put.items() <= both.remote.ask("content", "data").items()
        logs = [(tmp_path / "ny" / f"{name}.log").read_text() for name in both.ny.living()]
        assert not any("failed and is begun again" in each for each in logs)


@pytest.mark.whole
@pytest.mark.parametrize(("parallel", "region"), SELDOM)
def test_a_sender_that_is_taken_away_as_soon_as_it_was_given_leaves_nothing_behind(tmp_path, parallel, region):
    """Each member asks the others for older events then, and forgets what it has if it has not got those."""
    with sites(tmp_path, region, parallel=parallel) as both:
        members = both.ny.living()
        both.remote.kill()
        for round in range(3):
            for each in members.values():
                each.ask("do", "data", "alter", gateway_sender_ids=[])
            for each in members.values():
                each.ask("do", "data", "alter", gateway_sender_ids=["ln"])
            members["a"].ask("put_many", "data", 200 * round, 200)
        for each in members.values():
            each.ask("do", "data", "alter", gateway_sender_ids=[])
        both.ln.start_member("l", receiver={})
        both.wait_remote(600)
        both.wait_empty()
        both.balance()
