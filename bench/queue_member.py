"""Owns one process of a pywan site in `compare_async_queue.py`: a locator, or a member with asynchronous event queues,
each with a region that feeds it. What is put lies ready before the clock starts."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy

from measure import KEY_BYTES, VALUE_BYTES, numbered_keys
from pywan.testing.site_processes import SiteProcess, serve_site

ANSWER_TIMEOUT_S = 100.0
BATCH = 1000
MEMORY_MB = 1000
ROWS = 10_000


class Listener:
    """Counts the events of a round, and keeps when it has seen the last one."""

    def __init__(self) -> None:
        self.left = 0
        self.bytes = 0  # Of the keys and values that it has read in this round.
        self.ended = self.ended_processor = 0.0
        self.has_all = threading.Event()

    def expect(self, events: int) -> None:
        assert self.left == 0, f"{self.left} events of the last round have not come"
        self.has_all.clear()
        self.left, self.bytes = events, 0

    def count(self, events: int) -> None:
        self.left -= events
        if self.left == 0:
            self.ended, self.ended_processor = time.perf_counter(), time.process_time()
            self.has_all.set()


class CountingColumns(Listener):
    def process_arrow(self, batch: Any) -> bool:
        self.count(batch.num_rows)
        return True


class ReadingEvents(Listener):
    def process_events(self, events: Any) -> bool:
        taken = 0
        for event in events:
            taken += len(event.key) + len(event.value)
        self.bytes += taken
        self.count(len(events))
        return True


KINDS: dict[str, type[Listener]] = {"count": CountingColumns, "read": ReadingEvents}


class Member(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self.ready_keys = self.values = numpy.empty(0, dtype="S16")
        self.listeners: dict[str, Listener] = {}
        self.queues: dict[str, Any] = {}

    def keys(self, count: int, seed: int) -> dict[str, Any]:
        """Keys in random order, and values."""
        chance = numpy.random.default_rng(seed)
        self.ready_keys = numbered_keys(chance.permutation(count))
        data = chance.integers(1, 255, (count, VALUE_BYTES), dtype=numpy.uint8)
        self.values = data.view(f"S{VALUE_BYTES}").ravel()
        return {"keys": len(self.ready_keys)}

    def queue(self, kind: str) -> dict[str, Any]:
        """Creates a queue with one dispatcher, and its region. Both are named after what the listener does."""
        listener = self.listeners[kind] = KINDS[kind]()
        self.queues[kind] = self.cache.create_async_event_queue(
            kind, listener, dispatcher_threads=1, batch_size=BATCH, maximum_queue_memory=MEMORY_MB
        )
        self.cache.create_region(kind, type="REPLICATE", async_event_queue_ids=[kind])
        return {}

    def fill(self, kind: str) -> dict[str, Any]:
        """Pauses the queue and puts every key once."""
        self.queues[kind].pause()
        self.listeners[kind].expect(len(self.ready_keys))
        region = self.cache.region(kind)
        for row in range(0, len(self.ready_keys), ROWS):
            region.put_columns(self.ready_keys[row : row + ROWS], self.values[row : row + ROWS])
        return {"size": len(region)}

    def drain(self, kind: str) -> dict[str, Any]:
        """From resuming the queue until the listener has seen the last event."""
        listener, queue, events = self.listeners[kind], self.queues[kind], len(self.ready_keys)
        assert listener.left == events, f"the listener was called while its queue was paused: {listener.left} left"
        started, processor = time.perf_counter(), time.process_time()
        queue.resume()
        assert listener.has_all.wait(ANSWER_TIMEOUT_S), f"{listener.left} events have not come"
        taken, processor = listener.ended - started, listener.ended_processor - processor
        assert queue.wait_until_flushed(ANSWER_TIMEOUT_S)
        read = events * (KEY_BYTES + VALUE_BYTES) if kind == "read" else 0
        assert listener.bytes == read, f"it has read {listener.bytes} bytes"
        return {"events": events, "rate": events / taken, "processor_us": processor / events * 1e6}


if __name__ == "__main__":
    serve_site(Member())
