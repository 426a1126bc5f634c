"""Owns two members of a site in this process that share a region, through their real ports."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pywan
from pywan.coordination.tables import Bucket, BucketKey
from pywan.events import EntryEvent
from pywan.site.locator import Locator
from pywan.testing.waiting import eventually

BUCKETS = 3
REGION = "data"
ATTRIBUTES = {
    "type": "PARTITION",
    "total_num_buckets": BUCKETS,
    "redundant_copies": 1,
    "recovery_delay": 0,
    "interest_policy": "all",
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RecordingListener(pywan.CacheListener):
    def __init__(self) -> None:
        self.keys: list[object] = []

    def after_create(self, event: EntryEvent) -> None:
        self.keys.append(event.key)

    after_update = after_create


class Pair:
    """Two members that share a region, and a listener at the second one. `ahead_ms`: by how much the clock of the first
    one is wrong, from its start."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.locator = Locator("locator", distributed_system_id=1, port=0).start()
        self.received = RecordingListener()
        self.one = pywan.Cache("one", locators=str(self.locator.address))
        self.wrong_ms = ahead_ms
        if ahead_ms:
            self.one._core.state.clock.set_time(now_ms() + ahead_ms)
        self.first = self.one.create_region(REGION, **ATTRIBUTES)
        self.two = pywan.Cache("two", locators=str(self.locator.address))
        self.second = self.two.create_region(REGION, **ATTRIBUTES, cache_listeners=[self.received])
        eventually(lambda: self.is_whole, what="two replicas of each bucket")

    @property
    def is_whole(self) -> bool:
        told = [each._core.sharing.describe(REGION) for each in (self.one, self.two)]
        counts = [sum(each.get(what, 0) for what in ("primary", "copies")) for each in told]
        return counts == [BUCKETS] * 2 and sum(each.get("primary", 0) for each in told) == BUCKETS

    def close(self) -> None:
        for cache in (self.one, self.two):
            cache.close()
        self.locator.stop()

    def bucket(self, number: int) -> Bucket:
        return self.two._core.agent.tables.buckets[BucketKey(REGION, number)]

    def keys_led_by(self, cache: pywan.Cache) -> Iterator[str]:
        region, led = cache._core.regions.find(REGION), cache._core.sharing.led(REGION)
        assert led, f"{cache.name} leads no bucket"
        return (key for key in (f"k{n}" for n in itertools.count()) if region.bucket_of(key) in led)

    @staticmethod
    def stamp_ms(cache: pywan.Cache, key: str) -> int:
        return cache._core.regions.find(REGION).lookup(key)[1] >> 16
