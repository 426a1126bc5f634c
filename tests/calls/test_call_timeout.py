"""`call-timeout` of a member, and `member-timeout` of its locator: for how long a call is tried, whatever stands
still."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import eventually
from site_crash.world import Site
from support.small_members import locator

BUCKETS = 7
DATA = {"type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0}
PROXY = {**DATA, "type": "PARTITION_PROXY"}
LONG_MS = 60_000  # Nobody is given up in the time of a test.
TIMEOUT_S = 0.25  # From when a member stands still: what comes before may take longer.
SLACK_S = 0.5

CALLS: dict[str, Any] = {
    "put": lambda region: [region.put(n, "new") for n in range(3 * BUCKETS)],
    "get": lambda region: [region.get(n) for n in range(3 * BUCKETS)],
    "contains": lambda region: [n in region for n in range(3 * BUCKETS)],
    "destroy": lambda region: [region.destroy(n) for n in range(3 * BUCKETS)],
    "put_if_absent": lambda region: [region.put_if_absent(100 + n, 1) for n in range(3 * BUCKETS)],
    "setdefault": lambda region: [region.setdefault(200 + n, 1) for n in range(3 * BUCKETS)],
    "replace": lambda region: [region.replace(n, 0, 1) for n in range(3 * BUCKETS)],
    "remove": lambda region: [region.remove(n, "another") for n in range(3 * BUCKETS)],
    "pop": lambda region: [region.pop(n, None) for n in range(3 * BUCKETS)],
    "popitem": lambda region: [region.popitem() for _ in range(3 * BUCKETS)],
    "put_columns": lambda region: region.put_columns(list(map(str, range(100))), list(map(str, range(100)))),
    "put_all": lambda region: region.put_all({n: n for n in range(100)}),
    "remove_all": lambda region: region.remove_all(range(100)),
    "len": len,
    "keys": list,
    "items": lambda region: list(region.items()),
    "equal": lambda region: region == {"no": "such"} or len(region),
    "clear": lambda region: region.clear(),
}


def longest_s(call: Any, region: Any) -> float:
    """Returns how long the call took that failed."""
    began = time.monotonic()
    with pytest.raises((pywan.ConnectivityError, pywan.BatchError)):
        call(region)
    return time.monotonic() - began


def is_spread(*caches: pywan.Cache) -> bool:
    return all(cache._core.sharing.describe("data").get("primary", 0) for cache in caches)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pywan.Region[Any, Any], ...]]:
    """The region at two members, of which the first has it, beside one whose process is stopped."""
    folder: Path = tmp_path_factory.mktemp("stopped")
    with (
        Site(folder, regions=[{"name": "data", **DATA}], member_timeout_ms=LONG_MS) as site,
        pywan.Cache("here", locators=f"127.0.0.1[{site.port}]") as here,
        pywan.Cache("accessor", locators=f"127.0.0.1[{site.port}]") as accessor,
    ):
        region, other = here.create_region("data", **DATA), accessor.create_region("data", **PROXY)
        far = site.start("far")
        eventually(lambda: far.ask("sharing", "data").get("primary", 0) == BUCKETS // 2, what="primaries at both")
        region.put_all(dict.fromkeys(range(3 * BUCKETS), 0))
        assert len(other) == 3 * BUCKETS
        far.stop()
        here.call_timeout = accessor.call_timeout = TIMEOUT_S
        longest_s(CALLS["put_all"], region)  # From here on no read lease of the one that is stopped is left.
        yield region, other
        far.go_on()


@pytest.mark.parametrize("caller", [0, 1], ids=["member", "accessor"])
@pytest.mark.parametrize("what", CALLS)
def test_a_call_ends_in_time_while_a_member_stands_still(
    stopped: tuple[pywan.Region[Any, Any], ...], what: str, caller: int
) -> None:
    took = longest_s(CALLS[what], stopped[caller])
    assert took <= TIMEOUT_S + SLACK_S


def test_a_call_ends_in_time_while_a_connection_hangs(tmp_path: Path) -> None:
    host = "127.0.1.79"
    with (
        locator(dir=tmp_path, member_timeout_ms=LONG_MS) as site,
        pywan.Cache("one", locators=str(site.address)) as one,
        pywan.Cache("two", locators=str(site.address), hostname_for_clients=host) as two,
        FaultProxy(("127.0.0.1", two.status()["port"]), host, two.status()["port"]) as proxy,
    ):
        region = one.create_region("data", **DATA)
        two.create_region("data", **DATA)
        eventually(lambda: is_spread(one, two))
        region.put_all(dict.fromkeys(range(3 * BUCKETS), 0))
        assert len(region) == 3 * BUCKETS
        proxy.hang()
        one.call_timeout = TIMEOUT_S
        for what in ("put", "get", "len", "items", "put_all", "clear"):
            assert longest_s(CALLS[what], region) <= TIMEOUT_S + SLACK_S, what
        proxy.restore()


# The settings


@pytest.mark.parametrize("call_timeout", ["soon", 0, 0.05, -1, True, 86_401])
def test_a_call_timeout_that_is_none_is_refused_by_name(call_timeout: Any) -> None:
    with pytest.raises(pywan.ConfigurationError, match=r"call_timeout: .* not a number of seconds from 0.1 to 86400"):
        pywan.Cache("one", locators="127.0.0.1[1]", call_timeout=call_timeout)


def limit_s(region: pywan.Region[Any, Any]) -> float:
    """For how long a call of a shared region is tried."""
    from pywan.region.region import core_of

    route = core_of(region).route
    assert route is not None
    return route.limit_us / 1e6


def test_a_call_is_tried_for_ten_seconds_or_as_the_member_says(caplog: pytest.LogCaptureFixture) -> None:
    with (
        locator() as site,
        pywan.Cache("one", locators=str(site.address)) as one,
        pywan.Cache("two", locators=str(site.address), call_timeout=30) as two,
    ):
        regions = [cache.create_region("data", **DATA) for cache in (one, two)]
        eventually(lambda: is_spread(one, two))
        assert [limit_s(region) for region in regions] == [10, 30] == [one.call_timeout, two.call_timeout]
        assert not [each for each in caplog.messages if "call-timeout" in each]
        two.call_timeout = 0.5
        assert limit_s(regions[1]) == two.call_timeout == two.status()["call_timeout"] == 0.5
        assert any("call-timeout is 0.5 s, and the site's member-timeout 5 s" in each for each in caplog.messages)
        with pytest.raises(pywan.ConfigurationError):
            two.call_timeout = 0
        two.call_timeout = None
        assert limit_s(regions[1]) == two.call_timeout == 10


def test_regions_that_are_shared_follow_a_member_timeout_that_changes(tmp_path: Path) -> None:
    with locator(dir=tmp_path, member_timeout_ms=8000) as site:
        port, where = site.port, str(site.address)
        one, two = (pywan.Cache(name, locators=where) for name in ("one", "two"))
        region, _ = (cache.create_region("data", **DATA) for cache in (one, two))
        eventually(lambda: is_spread(one, two))
        assert limit_s(region) == one.call_timeout == 16
    with one, two, locator(dir=tmp_path, port=port, member_timeout_ms=3000):
        eventually(lambda: limit_s(region) == one.call_timeout == 10)
