"""A sole replica answers while its coordinator is heard, and until `unclean-recovery-timeout` after that: then its
bucket may have begun anew elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import pywan
from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import DRIFT_DIVISOR
from pywan.errors import ConnectivityError
from pywan.member.sharing import primary_until_us
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.small_members import locator

LIMIT_MS = 1500
BUCKETS = 4
CALL_S = 0.2  # A call whose primary refuses it is tried so long.


@contextmanager
def two_members_without_redundant_copies() -> Iterator[tuple[pywan.Locator, pywan.Cache, pywan.Region, str]]:
    """Their locator, one of them with its region, and a key whose only replica is there."""
    with (
        locator() as site,
        pywan.Cache("one", locators=str(site.address), call_timeout=CALL_S, handover_time=0) as one,
        pywan.Cache("two", locators=str(site.address), handover_time=0) as two,
    ):
        made = {"type": "PARTITION", "total_num_buckets": BUCKETS, "unclean_recovery_timeout": LIMIT_MS}
        region, _ = (each.create_region("data", **made) for each in (one, two))
        sharing = one._core.sharing
        assert sharing is not None
        eventually(lambda: sharing.describe("data").get("primary") == BUCKETS // 2)
        key = next(key for key in "abcdefghijklmnop" if core_of(region).bucket_of(key) in sharing.led("data"))
        yield site, one, region, key


@pytest.mark.parametrize("limit_ms, limit_us", [(0, 0), (LIMIT_MS, LIMIT_MS * 1000), (60_000, 60_000_000)])
def test_a_primary_ends_a_twentieth_before_its_bucket_begins_anew(limit_ms, limit_us):
    made = RegionAttributes(name="data", type="PARTITION", unclean_recovery_timeout=limit_ms)
    assert primary_until_us(made, 7_000_000) == 7_000_000 + limit_us - limit_us // DRIFT_DIVISOR


@pytest.mark.parametrize(
    "made, until_us",
    [
        ({"type": "PARTITION"}, 60_000_000 - 60_000_000 // DRIFT_DIVISOR),
        ({"type": "PARTITION", "unclean_recovery_timeout": -1}, None),
        ({"type": "PARTITION", "redundant_copies": 1}, None),
        ({"type": "REPLICATE"}, None),
    ],
)
def test_only_a_bucket_that_may_begin_anew_has_a_limit(made, until_us):
    assert primary_until_us(RegionAttributes(name="data", **made), 0) == until_us


def test_a_sole_replica_goes_on_as_long_as_the_coordinator_answers_and_ends_before_its_bucket_can_begin_anew():
    with two_members_without_redundant_copies() as (site, cache, region, key):
        agent = cache._core.agent
        assert agent is not None
        begun_us = agent.received_us

        def takes_changes() -> bool:
            try:
                region.put(key, "old")
            except ConnectivityError:
                return False
            return True

        eventually(lambda: agent.received_us > begun_us + LIMIT_MS * 1000)
        eventually(takes_changes)
        site.stop()
        unreachable_at = time.monotonic()
        with pytest.raises(ConnectivityError):
            while True:
                asked_at = time.monotonic()
                assert region.get(key) == "old"
                assert asked_at < unreachable_at + LIMIT_MS / 1000
        with pytest.raises(ConnectivityError):
            region.put(key, "new")
