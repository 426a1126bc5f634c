"""A member and its site: what it tells of its regions, and what the site refuses."""

from __future__ import annotations

import time

import pytest

import pywan
from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import OWNED, BucketKey, Kind
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.member.hosting import EQUAL_WEIGHT_MB, site_attributes, weight_of
from pywan.testing.waiting import SOON_S, eventually
from pywan.transport.control import call_once
from small_members import locator


def coordination(site) -> dict:
    return call_once(site.address, "coordination-show")["coordination"]


def in_view(site) -> dict[str, list[str]]:
    return {each["name"]: each["regions"] for each in coordination(site)["members"] if each["state"] == "alive"}


@pytest.fixture
def site():
    with locator() as started:
        yield started


@pytest.fixture
def member(site, tmp_path):
    with pywan.Cache("a", locators=str(site.address), dir=tmp_path / "a") as cache:
        yield cache


def test_a_member_of_one_owns_its_regions_and_has_no_bucket(site, member):
    member.create_region("data", "PARTITION")
    assert in_view(site) == {"a": ["data"]}
    assert coordination(site)["owned_regions"] == 1 and coordination(site)["buckets"] == 0


def test_a_region_that_is_local_to_the_member_is_not_told(site, member):
    member.create_region("mine", "LOCAL")
    assert in_view(site) == {"a": []}


def test_a_region_that_is_destroyed_is_free_for_other_attributes(site, member):
    member.create_region("data", "PARTITION")
    member.destroy_region("data")
    member.create_region("data", "REPLICATE")
    eventually(lambda: in_view(site) == {"a": ["data"]})


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"type": "PARTITION"}, {"type": "REPLICATE"}, "type is REPLICATE here and PARTITION at the other members"),
        ({"type": "PARTITION_PERSISTENT"}, {"type": "PARTITION_PERSISTENT"}, "member a has it already, and it is pers"),
        ({"gateway_sender_ids": ["ln"]}, {"gateway_sender_ids": ["ln"]}, "member a has it already, and it has senders"),
    ],
)
def test_a_region_that_cannot_be_shared_is_refused_at_a_second_member(site, member, tmp_path, first, second, words):
    member.create_region("data", **first)
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        with pytest.raises(IllegalStateError, match=words):
            other.create_region("data", **second)
        assert other.regions() == {}
        assert in_view(site) == {"a": ["data"], "b": []}


def test_a_second_member_with_the_same_region_makes_the_coordinator_decide_all_buckets(site, member):
    member.create_region("data", "PARTITION", total_num_buckets=7)
    with pywan.Cache("b", locators=str(site.address)) as other:
        other.create_region("data", "PARTITION", total_num_buckets=7)
        assert coordination(site)["buckets"] == 7


def test_a_member_that_closes_leaves_the_view_at_once(site, member):
    with pywan.Cache("b", locators=str(site.address)):
        assert set(in_view(site)) == {"a", "b"}
    assert set(in_view(site)) == {"a"}


def test_a_member_whose_coordinator_is_away_creates_regions_and_closes_in_time():
    with locator() as site:
        cache = pywan.Cache("a", locators=str(site.address))
    began = time.monotonic()
    eventually(lambda: cache._core.agent.status()["problem"])
    region = cache.create_region("data", "PARTITION")
    region.put("k", 1)
    cache.close()
    assert time.monotonic() - began < SOON_S


def test_attributes_are_told_as_the_site_knows_them():
    made = RegionAttributes.make(
        "data", type="PARTITION_REDUNDANT", recovery_delay=5, startup_recovery_delay=-1, min_in_sync_copies=2
    )
    told = site_attributes(made)
    assert (told.kind, told.redundant_copies, told.recovery_delay_ms) == (Kind.PARTITION, 1, 5)
    assert (told.startup_recovery_delay_ms, told.min_in_sync_copies, told.only_once) == (-1, 2, "")
    assert weight_of(made) == EQUAL_WEIGHT_MB
    assert weight_of(RegionAttributes.make("p", type="PARTITION_PROXY")) == 0
    assert weight_of(RegionAttributes.make("p", local_max_memory=0)) == 0
    assert BucketKey("data", OWNED).number == -1


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"min_in_sync_copies": 2}, "min_in_sync_copies 2 is more than its 1 copies"),
        ({"type": "REPLICATE", "recovery_delay": 0}, "recovery_delay 0 is for partitioned regions only"),
        ({"recovery_delay": -2}, "recovery_delay"),
        ({"local_max_memory": -1}, "local_max_memory"),
        ({"type": "PARTITION_PERSISTENT", "local_max_memory": 0}, "take PARTITION_PROXY"),
    ],
)
def test_attributes_that_contradict_are_refused_with_the_value(attributes, words):
    with pytest.raises(ConfigurationError, match=words):
        RegionAttributes.make("data", **attributes)
