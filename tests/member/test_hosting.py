"""A member and its site: what it tells of its regions, and what the site refuses."""

from __future__ import annotations

import contextlib
import time

import pytest

import pywan
from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import Kind
from pywan.errors import ConfigurationError, ConnectivityError, GatewaySenderConfigurationError, IllegalStateError
from pywan.member.hosting import EQUAL_WEIGHT_MB, site_attributes, weight_of
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport.control import call_once
from support.shared_site import Call
from support.small_members import locator


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


def test_all_buckets_of_a_region_are_decided_when_its_creation_returns(site, member):
    member.create_region("data", "PARTITION")
    assert in_view(site) == {"a": ["data"]}
    assert coordination(site)["buckets"] == 113 and coordination(site)["buckets_without_primary"] == 0


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
        (
            {"type": "PARTITION_PERSISTENT"},
            {"type": "PARTITION"},
            r"several members can have it here and only one member can have it \(it is persistent\) at the other",
        ),
        ({"async_event_queue_ids": ["q"]}, {"async_event_queue_ids": ["q"]}, "and it has asynchronous event queues"),
        ({"gateway_sender_ids": ["ln"]}, {}, "gateway-sender-id is none here and ln at the other members"),
    ],
)
def test_a_region_that_cannot_be_shared_is_refused_at_a_second_member(site, member, tmp_path, first, second, words):
    member.create_region("data", **first)
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        with pytest.raises(IllegalStateError, match=words):
            other.create_region("data", **second)
        assert other.regions() == {}
        assert in_view(site) == {"a": ["data"], "b": []}


def test_a_region_that_was_used_by_one_member_keeps_its_content_for_the_second(site, member):
    region = member.create_region("data", "PARTITION", total_num_buckets=7)
    region.put("k", 1)
    with pywan.Cache("b", locators=str(site.address)) as other:
        there = other.create_region("data", "PARTITION", total_num_buckets=7)
        assert there["k"] == 1 and there.put_if_absent("k", 2) == 1
        there.put("l", 3)
        assert region["l"] == 3


PERSISTENT = {"remote_distributed_system_id": 2, "parallel": True, "enable_persistence": True}


def test_a_region_of_several_members_gets_no_persistent_sender_by_any_way(site, member, tmp_path):
    region = member.create_region("data", "PARTITION")
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        proxy = other.create_region("data", "PARTITION")
        proxy.put("k", 0)  # The other member takes part in it now.
        member.create_gateway_sender("ln", **PERSISTENT)
        for alter in (
            lambda: region.alter(gateway_sender_ids=["ln"]),
            lambda: call_once((member.host, member.port), "alter region", name="data", gateway_sender_ids="ln"),
        ):
            with pytest.raises(
                IllegalStateError, match=r"'data' is on several members .* feed ln:.*; nothing was changed"
            ):
                alter()
        region.alter(gateway_sender_ids=["later"])
        with pytest.raises(GatewaySenderConfigurationError, match=r"persistent.*nothing was changed"):
            member.create_gateway_sender("later", **PERSISTENT)
        region.alter(gateway_sender_ids=[])
        assert region.gateway_sender_ids == proxy.gateway_sender_ids == ()
        region.alter(gateway_sender_ids=[])
        region.put("k", 1)
        assert proxy.get("k") == 1


def test_a_region_that_gets_a_persistent_sender_is_not_for_a_second_member_until_it_has_none(site, member, tmp_path):
    region = member.create_region("data", total_num_buckets=4)
    region["k"] = 1
    region.alter(gateway_sender_ids=["ln"])
    member.create_gateway_sender("ln", **PERSISTENT)
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        with pytest.raises(IllegalStateError, match="its sender ln is persistent"):
            other.create_region("data", total_num_buckets=4, gateway_sender_ids=["ln"])
        with pytest.raises(IllegalStateError, match="data"):
            other.create_region("data", total_num_buckets=4)
        region.alter(gateway_sender_ids=[])
        assert other.create_region("data", total_num_buckets=4)["k"] == 1
        with pytest.raises(IllegalStateError, match="nothing was changed"):
            region.alter(gateway_sender_ids=["ln"])


def test_a_region_about_which_a_resolver_is_asked_is_on_one_member(site, member, tmp_path):
    member.create_region("data")
    member.set_conflict_resolver(pywan.GatewayConflictResolver())
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        with pytest.raises(IllegalStateError, match="a conflict resolver is asked about it"):
            other.create_region("data")
        member.set_conflict_resolver(None)
        other.create_region("data")
        with pytest.raises(IllegalStateError, match="a conflict resolver is asked about it"):
            member.set_conflict_resolver(pywan.GatewayConflictResolver())


def test_a_member_that_closes_leaves_the_view_at_once(site, member):
    with pywan.Cache("b", locators=str(site.address)):
        assert set(in_view(site)) == {"a", "b"}
    assert set(in_view(site)) == {"a"}


@pytest.fixture
def impatient(monkeypatch):
    """A member that creates a region waits a moment only for its coordinator."""
    monkeypatch.setattr("pywan.site.agent.HOST_TIMEOUT_S", 0.2)


def test_a_region_that_is_created_while_the_coordinator_is_away_waits_for_it(tmp_path, impatient):
    with locator(dir=tmp_path) as site:
        cache = pywan.Cache("a", locators=str(site.address), dir=tmp_path / "a")
    with cache:
        region = cache.create_region("data", "PARTITION")
        call = Call(region.put, "k", 2)
        assert not call.is_done
        with locator(dir=tmp_path, port=site.port):
            call.result()
            assert region["k"] == 2


def test_a_call_that_waits_for_the_coordinator_ends_in_time_and_names_it(impatient, monkeypatch):
    monkeypatch.setattr("pywan.member.sharing.call_timeout_s", lambda member_timeout_us: 0.3)
    with locator() as site:
        cache = pywan.Cache("a", locators=str(site.address))
    with cache:
        region = cache.create_region("data", "PARTITION")
        with pytest.raises(
            ConnectivityError, match="no member is known to be its primary, since coordinator L is away"
        ):
            region.put("k", 1)


def test_a_region_beside_a_shared_one_whose_buckets_begin_anew_is_one_region(site, tmp_path, monkeypatch):
    monkeypatch.setattr("pywan.coordination.unclean_recovery.READ_LEASES_END_US", 1_500_000)
    with contextlib.ExitStack() as opened:
        a, b, c = (
            opened.enter_context(pywan.Cache(name, locators=str(site.address), dir=tmp_path / name)) for name in "abc"
        )
        for cache in (c, a, b):  # The first one has all buckets.
            cache.create_region("parent", "PARTITION", total_num_buckets=7)
        c.close()
        children = [cache.create_region("child", total_num_buckets=7, colocated_with="parent") for cache in (a, b)]
        answers = [region.put_if_absent("k", number) for number, region in enumerate(children)]
        assert answers == [None, 0] and [region["k"] for region in children] == [0, 0]


def test_what_a_member_destroys_before_it_closes_is_gone_everywhere(site, member, tmp_path):
    with pywan.Cache("b", locators=str(site.address), dir=tmp_path / "b") as other:
        for cache in (member, other):
            cache.create_region("data", "PARTITION_REDUNDANT", total_num_buckets=7).put(cache.name, 1)
        member.destroy_region("data")
        member.close()
        eventually(lambda: other.regions() == {})
        assert coordination(site)["buckets"] == 0 and in_view(site) == {"b": []}
        assert other.create_region("data", "REPLICATE").get("a") is None


def test_a_region_that_is_created_again_at_once_is_a_new_one(site, member):
    for n in range(5):
        region = member.create_region("data", "PARTITION", total_num_buckets=n + 1)
        assert len(region) == 0
        region.put("k", n)
        member.destroy_region("data")
    assert coordination(site)["buckets_without_primary"] == 0


@pytest.fixture
def two_locators(tmp_path):
    """The coordinator, one that decides nothing, and the addresses of both."""
    with (
        locator("first", dir=tmp_path) as first,
        locator("second", dir=tmp_path, locators=str(first.address)) as second,
    ):
        eventually(lambda: coordination(second)["coordinator"] == "first")
        yield first, f"{first.address},{second.address}"


def test_a_member_that_restarts_while_the_coordinator_is_away_works_on_nothing_alone(tmp_path, two_locators, impatient):
    first, addresses = two_locators
    with pywan.Cache("a", locators=addresses, dir=tmp_path / "a", handover_time=0) as a:
        theirs = a.create_region("data", "PARTITION", total_num_buckets=7)
        with pywan.Cache("b", locators=addresses, dir=tmp_path / "b") as b:
            b.create_region("data", "PARTITION", total_num_buckets=7)
        theirs.put("k", "a")
        first.stop()
        b = pywan.Cache("b", locators=addresses, dir=tmp_path / "b", join_timeout=LIMIT_S, handover_time=0)
        with b:  # The coordinator is away again when both are closed, so there is nobody to wait for.
            ours = b.create_region("data", "PARTITION", total_num_buckets=7)
            new = [cache.create_region("new", "PARTITION", total_num_buckets=7) for cache in (a, b)]
            calls = [Call(ours.put_if_absent, "k", "b"), *(Call(region.put_if_absent, "k", 1) for region in new)]
            assert theirs["k"] == "a" and not any(call.is_done for call in calls)
            with locator("first", dir=tmp_path, port=first.port):
                assert calls[0].result() == "a"
                assert sorted([calls[1].result(), calls[2].result()], key=str) == [1, None]
                assert [region["k"] for region in new] == [1, 1]


@pytest.mark.parametrize("type", ["PARTITION", "PARTITION_PROXY", "REPLICATE"])
def test_a_region_that_is_created_again_without_the_coordinator_waits_as_a_new_one_does(type, impatient, monkeypatch):
    monkeypatch.setattr("pywan.member.sharing.call_timeout_s", lambda member_timeout_us: 0.3)
    with locator() as site:
        cache = pywan.Cache("a", locators=str(site.address))
        region = cache.create_region("data", type)
        region.put("k", 1)
    with cache:
        region.put("k", 2)  # It is decided that nobody else has it.
        cache.destroy_region("data")
        again = cache.create_region("data", type)
        with pytest.raises(ConnectivityError, match="since coordinator L is away"):
            again.put("k", 3)


def test_a_region_for_one_member_only_is_not_created_while_the_coordinator_is_away(tmp_path, impatient):
    with locator(dir=tmp_path) as site:
        cache = pywan.Cache("a", locators=str(site.address), dir=tmp_path / "a")
    with cache:
        with pytest.raises(IllegalStateError, match=r"it is persistent, so only one .*: coordinator L is away"):
            cache.create_region("data", "PARTITION_PERSISTENT")
        assert cache.regions() == {}


def test_a_member_whose_coordinator_is_away_closes_in_time(impatient):
    with locator() as site:
        cache = pywan.Cache("a", locators=str(site.address))
    began = time.monotonic()
    cache.create_region("data", "PARTITION")
    cache.close()
    assert time.monotonic() - began < SOON_S


def test_attributes_are_told_as_the_site_knows_them():
    made = RegionAttributes.make(
        "data", type="PARTITION_REDUNDANT", recovery_delay=5, startup_recovery_delay=-1, min_in_sync_replicas=2
    )
    told = site_attributes(made)
    assert (told.kind, told.redundant_copies, told.recovery_delay_ms) == (Kind.PARTITION, 1, 5)
    assert (told.startup_recovery_delay_ms, told.min_in_sync_replicas, told.only_once) == (-1, 2, "")
    assert weight_of(made) == EQUAL_WEIGHT_MB
    assert weight_of(RegionAttributes.make("p", type="PARTITION_PROXY")) == 0
    assert weight_of(RegionAttributes.make("p", local_max_memory=0)) == 0


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"min_in_sync_replicas": 2}, "min_in_sync_replicas 2 is more than its 1 replicas"),
        ({"type": "REPLICATE", "recovery_delay": 0}, "recovery_delay 0 is for partitioned regions only"),
        ({"recovery_delay": -2}, "recovery_delay"),
        ({"local_max_memory": -1}, "local_max_memory"),
        ({"type": "PARTITION_PERSISTENT", "local_max_memory": 0}, "take PARTITION_PROXY"),
        ({"interest_policy": "some"}, "interest_policy: 'some' is not one of cache-content, all"),
        ({"interest_policy": "all", "type": "LOCAL"}, "interest_policy 'all' has no effect with type LOCAL"),
        ({"interest_policy": "all", "type": "PARTITION_PROXY"}, "interest_policy 'all' needs replicas on this member"),
        ({"interest_policy": "all", "type": "REPLICATE_PROXY"}, "stores no entries of it; take a type that is no"),
        ({"interest_policy": "all", "local_max_memory": 0}, "a local_max_memory other than 0"),
        ({"interest_policy": "all", "startup_recovery_delay": -1}, "startup_recovery_delay -1"),
    ],
)
def test_attributes_that_contradict_are_refused_with_the_value(attributes, words):
    with pytest.raises(ConfigurationError, match=words):
        RegionAttributes.make("data", **attributes)
