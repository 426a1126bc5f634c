"""An asynchronous event queue with one dispatcher: events a second from the first batch to the last, out of a queue
that was filled before, for a listener that counts Arrow columns and for one in Python that reads key and value of each
event.

Beside it, in the same run: a bare loop that hands the same batches, taken from the queue before, to the same listener.
16-byte keys, 100-byte values, batches of 1,000. And the put path: columns into a proxy region that feeds the queue, and
the same into one that feeds a sender that is not connected. `--quick` for a short run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy

import pywan
from measure import arguments, cpu_seconds, in_turn, numbered_keys, report, value_column
from pywan.async_queue.columns import to_arrow

ROWS_A_CALL = 10_000
BATCH = 1000


class CountingColumns:
    def __init__(self) -> None:
        self.rows = 0

    def process_arrow(self, batch: Any) -> bool:
        self.rows += batch.num_rows
        return True


class ReadingEvents:
    def __init__(self) -> None:
        self.rows = self.bytes = 0

    def process_events(self, events: Any) -> bool:
        taken = 0
        for event in events:
            taken += len(event.key) + len(event.value)
        self.bytes += taken
        self.rows += len(events)
        return True


class Keeping:
    """Keeps every batch."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def process_events(self, events: Any) -> bool:
        self.batches.append(events)
        return True


class Filled:
    """A queue that is filled while it is paused, and drained by `drain`."""

    def __init__(self, cache: pywan.Cache, name: str, listener: Any, events: int) -> None:
        self.queue = cache.create_async_event_queue(
            name, listener, dispatcher_threads=1, batch_size=BATCH, maximum_queue_memory=2000
        )
        self.region = cache.create_region(name, type="REPLICATE_PROXY", async_event_queue_ids=[name])
        self.events = events
        self.keys, self.values = numbered_keys(numpy.arange(events)), value_column(min(events, 10_000))

    def fill(self) -> None:
        for row in range(0, self.events, ROWS_A_CALL):
            self.region.put_columns(self.keys[row : row + ROWS_A_CALL], self.values)

    def drain(self) -> float:
        self.queue.pause()
        self.fill()
        started = time.perf_counter()
        self.queue.resume()
        assert self.queue.wait_until_flushed(120)
        return self.events / (time.perf_counter() - started)


def listeners(cache: pywan.Cache, rounds: int, events: int) -> None:
    kept = Keeping()
    source = Filled(cache, "kept", kept, events)
    source.drain()
    for name, listener, hand, goal in (
        ("arrow listener that counts", CountingColumns(), lambda each, to: each.process_arrow(to_arrow(to)), "60%"),
        ("listener that reads each event", ReadingEvents(), lambda each, to: each.process_events(to), "70%"),
    ):
        filled = Filled(cache, name.replace(" ", "-"), listener, events)

        def bare(listener: Any = listener, hand: Callable[[Any, Any], object] = hand) -> float:
            started = time.perf_counter()
            for batch in kept.batches:
                hand(listener, batch)
            return events / (time.perf_counter() - started)

        report(name, *in_turn(rounds, filled.drain, bare), "a bare loop over the same batches", goal)
        assert listener.rows == events * 2 * (rounds + 1)


def put_path(cache: pywan.Cache, rounds: int, events: int) -> None:
    sender = cache.create_gateway_sender(
        "nowhere", remote_distributed_system_id=2, dispatcher_threads=1, maximum_queue_memory=2000
    )
    fed = cache.create_region("sent", type="REPLICATE_PROXY", gateway_sender_ids=["nowhere"])
    filled = Filled(cache, "put", Keeping(), events)
    filled.queue.pause()

    def through_queue() -> float:
        taken = cpu_seconds(filled.fill)
        filled.queue.stop()
        filled.queue.start(clean_queues=True)
        filled.queue.pause()
        return events / taken

    def through_sender() -> float:
        def fill() -> None:
            for row in range(0, events, ROWS_A_CALL):
                fed.put_columns(filled.keys[row : row + ROWS_A_CALL], filled.values)

        taken = cpu_seconds(fill)
        sender.stop()
        sender.start(clean_queues=True)
        return events / taken

    report("columns into a queue", *in_turn(rounds, through_queue, through_sender), "into a sender's queue", "95%")


def main() -> None:
    options = arguments(__doc__)
    events = options.size(1_000_000, 200_000, 20_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        pywan.Locator("one", distributed_system_id=1, port=0) as locator,
        pywan.Cache("member", locators=str(locator.address), dir=folder) as cache,
    ):
        listeners(cache, options.rounds, events)
        put_path(cache, options.rounds, events)


if __name__ == "__main__":
    main()
