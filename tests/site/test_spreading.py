"""Primaries are spread over the members of a site, in processes of their own: while they come, and with puts under
way."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pywan
from pywan.testing.waiting import eventually
from site_crash.world import Site

BUCKETS = 24
NAMES = ("one", "two", "three")
COMMON = {"total_num_buckets": BUCKETS, "recovery_delay": 0}
REGIONS: list[dict[str, Any]] = [
    {"name": "data", "type": "PARTITION", "redundant_copies": 1, **COMMON},
    {"name": "copied", "type": "REPLICATE"},
]
PAUSE_S = 3.0  # A put may wait so long for a handover, on a machine that others use. No lease is over by then.


class Writers:
    """Threads that put into each region, and note the longest put."""

    def __init__(self, regions: list[Any]) -> None:
        self.longest_s, self.errors, self.puts = 0.0, [], 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._put, args=(region,)) for region in regions]
        for thread in self._threads:
            thread.start()

    def _put(self, region: Any) -> None:
        while not self._stop.wait(0.001):  # The members that come need the cores, too.
            began = time.monotonic()
            try:
                region[f"k{self.puts % 500}"] = self.puts
            except pywan.PywanError as error:
                self.errors.append(error)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.puts += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def writing(site: Site, regions: list[dict[str, Any]]) -> Iterator[Writers]:
    accessors = [{**each, "type": f"{each['type']}_PROXY"} for each in regions]
    with pywan.Cache("caller", locators=f"127.0.0.1[{site.port}]") as caller:
        writers = Writers([caller.create_region(**each) for each in accessors])
        try:
            yield writers
        finally:
            writers.stop()


def led(site: Site, region: str) -> list[int]:
    """How many buckets each member leads, as it says itself."""
    return [counts.get("primary", 0) for counts in site.counts(region).values()]


def is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) < 2


@pytest.mark.whole
def test_primaries_are_spread_over_members_that_come_while_puts_go_on(tmp_path):
    with Site(tmp_path, regions=REGIONS) as site:
        site.start("one")
        with writing(site, REGIONS) as writers:
            eventually(lambda: writers.puts > 100)
            began = time.monotonic()
            coming = [site.begin(name) for name in NAMES[1:]]
            for each in coming:
                each.finish()
            for region, buckets in (("data", BUCKETS), ("copied", 113)):
                eventually(
                    lambda region=region, buckets=buckets: (
                        sum(led(site, region)) == buckets and is_even(led(site, region))
                    ),
                    what=f"as many primaries of {region} at each member",
                )
            even_s, puts = time.monotonic() - began, writers.puts
            eventually(lambda: writers.puts > puts + 100)
        print(f"even after {even_s:.1f} s; {writers.puts:,} puts, the longest {writers.longest_s * 1000:.0f} ms")
        assert not writers.errors and writers.longest_s < PAUSE_S


@pytest.mark.whole
@pytest.mark.parametrize("redundant_copies", [0, 1])
def test_a_region_that_all_members_create_is_spread_over_them_whoever_comes_first(tmp_path, redundant_copies):
    region = {"name": "data", "type": "PARTITION", "redundant_copies": redundant_copies, **COMMON}
    with Site(tmp_path, regions=[region], member_timeout_ms=2000) as site:
        site.start("one")  # It leads all buckets, and has the only replica of each.
        with writing(site, [region]) as writers:
            for each in [site.begin(name) for name in NAMES[1:]]:
                each.finish()
            began = time.monotonic()
            eventually(lambda: sum(led(site, "data")) == BUCKETS and is_even(led(site, "data")))
            eventually(lambda: site.locator.ask("coordination")["incomplete_regions"] == {})
        print(f"even after {time.monotonic() - began:.1f} s; the longest put {writers.longest_s * 1000:.0f} ms")
        assert not writers.errors and writers.longest_s < PAUSE_S
