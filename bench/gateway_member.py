"""Owns one process of a pywan site in benchmarks of gateways: a locator, or a member with a receiver and regions whose
events go to another site. What is put lies ready before the clock starts. Times are CLOCK_MONOTONIC in ns, which is the
same in all processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy

from measure import VALUE_BYTES, numbered_keys
from pywan.testing.site_processes import SiteProcess, serve_site

ANSWER_TIMEOUT_S = 100.0
BATCH = 1000
BATCH_INTERVAL_MS = 10
BUCKETS = 113
MEMORY_MB = 2000


def wait_ns(condition: Callable[[], bool]) -> int:
    """Returns the time at which the condition held, within a millisecond."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {ANSWER_TIMEOUT_S:.0f} s"
        time.sleep(0.001)
    return time.monotonic_ns()


class Member(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self.ready_keys = self.values = numpy.empty(0, dtype="S16")
        self.ready: list[Any] = []  # What the calls of the next round put.

    def receive(self) -> int:
        """Starts the receiver, and returns its port."""
        return self.cache.create_gateway_receiver().port

    def flow(self, kind: str, remote: int, dispatchers: int) -> None:
        """Creates a sender to another site, and its region. Both are named after the kind of the sender."""
        self.cache.create_gateway_sender(
            kind,
            remote_distributed_system_id=remote,
            parallel=kind == "parallel",
            dispatcher_threads=dispatchers,
            batch_size=BATCH,
            batch_time_interval=BATCH_INTERVAL_MS,
            maximum_queue_memory=MEMORY_MB,
        )
        self.cache.create_region(
            kind, type="PARTITION", redundant_copies=1, total_num_buckets=BUCKETS, gateway_sender_ids=[kind]
        )

    def connected(self, kind: str) -> int:
        return wait_ns(lambda: self.cache.gateway_sender(kind).is_connected)

    def keys(self, count: int, seed: int) -> dict[str, Any]:
        """Keys in random order, and values."""
        chance = numpy.random.default_rng(seed)
        self.ready_keys = numbered_keys(chance.permutation(count))
        self.values = chance.integers(1, 255, (count, VALUE_BYTES), dtype=numpy.uint8).view(f"S{VALUE_BYTES}").ravel()
        return {"keys": len(self.ready_keys)}

    def prepare(self, how: str, rows: int, number: int) -> None:
        """What a round puts: every key once, with a value of its own in each round, in calls of so many rows."""
        self.values.view(numpy.uint8).reshape(-1, VALUE_BYTES)[:, 0] = number % 255 + 1
        values = self.values.copy()
        parts = [slice(at, at + rows) for at in range(0, len(values), rows)]
        self.ready = [(self.ready_keys[part], values[part]) for part in parts]
        if how == "all":
            self.ready = [dict(zip(keys.tolist(), part.tolist(), strict=True)) for keys, part in self.ready]

    def send(self, kind: str, how: str) -> tuple[int, int]:
        """Puts what is ready, and returns when the first call began and the last one returned."""
        region, ready, self.ready = self.cache.region(kind), self.ready, []
        assert ready, "nothing was prepared"
        began = time.monotonic_ns()
        if how == "all":
            for entries in ready:
                region.put_all(entries)
        else:
            for keys, values in ready:
                region.put_columns(keys, values)
        return began, time.monotonic_ns()

    def drained(self, kind: str) -> int:
        """Waits until the other site has acknowledged all that this member has to send, and returns when it had."""
        sender = self.cache.gateway_sender(kind)
        return wait_ns(lambda: sender.queue_size == 0)

    def emptied(self, kind: str) -> int:
        """Waits until this member also holds no event for another one that sends it, and returns when that was."""
        sender = self.cache.gateway_sender(kind)
        return wait_ns(lambda: sender.local_queue_size + sender.secondary_queue_size == 0)

    def primaries(self, kind: str) -> dict[str, int]:
        """Returns how many buckets the member leads, and how many copies it learns."""
        counts = self.sharing(kind)
        return {"led": counts["primary"], "learning": counts["learning"]} if counts else {"led": BUCKETS, "learning": 0}

    def digests(self, kind: str) -> list[tuple[int, int]]:
        """Of each bucket that this member has: its number, and a digest of keys, versions and values."""
        shared = self.cache._core.sharing._regions.get(kind)
        has_changelog = shared is not None and shared.changelog is not None
        core = self.cache._core.regions.get(kind)
        return [
            (number, core.bucket_digest(number))
            for number in (shared.changelog.states() if has_changelog else range(BUCKETS))
        ]


if __name__ == "__main__":
    serve_site(Member())
