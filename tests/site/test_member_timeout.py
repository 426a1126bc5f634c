"""`member-timeout` of a locator holds for everything that waits for a member of its site."""

from __future__ import annotations

import pytest

import pywan
from pywan.base.clocks import boot_us
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once
from support.small_members import locator

HOST = "127.0.1.254"  # Where others reach the member that becomes silent.
BUCKETS = 4
DATA = {"type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0}


def replicas_of(site) -> dict[str, int]:
    told = call_once(site.address, "coordination-show", timeout=LIMIT_S)["coordination"]
    return {each["name"]: each["copies"] for each in told["members"]}


def is_spread(cache: pywan.Cache) -> bool:
    """Whether the member leads half of the buckets, and has whole replicas of the others."""
    sharing = cache._core.sharing
    assert sharing is not None
    counts = sharing.describe("data")
    return counts.get("primary") == counts.get("copies") == BUCKETS // 2


@pytest.mark.parametrize("timeout_ms", [1000, 2500])
def test_a_replica_that_answers_nothing_is_taken_out_after_the_time_that_the_locator_says(timeout_ms):
    with (
        locator(member_timeout_ms=timeout_ms) as site,
        pywan.Cache("one", locators=str(site.address)) as one,
        pywan.Cache("two", locators=str(site.address), hostname_for_clients=HOST) as two,
        FaultProxy(("127.0.0.1", two.status()["port"]), HOST, two.status()["port"]) as proxy,
    ):
        # It goes on to renew its lease: only what others send it is not answered.
        for each in (one, two):
            each.create_region("data", **DATA)
        eventually(lambda: is_spread(one) and is_spread(two))
        assert replicas_of(site) == {"one": BUCKETS, "two": BUCKETS}
        proxy.hang()
        since_us = boot_us()
        eventually(lambda: replicas_of(site)["two"] < BUCKETS)
        took_ms = (boot_us() - since_us) / 1000
        assert timeout_ms * 0.8 < took_ms < 4500  # The default is 5 s.
