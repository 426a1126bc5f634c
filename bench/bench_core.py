"""The compiled core in one process: single puts, columns, and the memory of a queue, each beside a reference.

16-byte keys, 100-byte values, one sender. `--quick` for a short run."""
from __future__ import annotations

import gc
import os
import resource

import numpy

from measure import KEY_BYTES, VALUE_BYTES, arguments, in_turn, report, seconds
from pywan import _core

ROWS_A_CALL = 10_000


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def queue_and_region(name: str, *, stores: bool, memory: int = 1 << 30) -> tuple[_core.EventQueue, _core.RegionCore]:
    queue = _core.EventQueue(name, remote_site=2, partitions=1, dispatchers=1, memory_limit=memory)
    queue.running = True
    region = _core.RegionCore(name, _core.Clock(), site=1, member=1, stores=stores)
    region.attach([queue])
    return queue, region


def single_puts(rounds: int, events: int) -> None:
    """A Python loop of puts, against the same loop over an empty method of a compiled class."""
    keys = [b"%016d" % (n % 10_000) for n in range(events)]
    value = b"v" * VALUE_BYTES

    def loop(put) -> float:
        def run() -> None:
            for key in keys:
                put(key, value)
        return events / seconds(run)

    queue, region = queue_and_region("puts", stores=True)

    def subject() -> float:
        rate = loop(region.put)
        queue.clear()
        return rate

    nothing = _core._Nothing().put
    report("put, one at a time", *in_turn(rounds, subject, lambda: loop(nothing)), "an empty compiled method, same loop", "2.5 M/s, 70%")


def columns(rounds: int, events: int) -> None:
    """put_columns of 10,000 rows into the queue (a region without entries), against memcpy of the same keys and values."""
    keys = numpy.array([b"%016d" % n for n in range(events)], dtype=f"S{KEY_BYTES}")
    values = numpy.full(events, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    queue, region = queue_and_region("columns", stores=False)
    out = numpy.empty(events * (KEY_BYTES + VALUE_BYTES), dtype=numpy.uint8)
    key_bytes, value_bytes = keys.view(numpy.uint8), values.view(numpy.uint8)

    def subject() -> float:
        def run() -> None:
            for at in range(0, events, ROWS_A_CALL):
                region.put_columns(keys[at:at + ROWS_A_CALL], values[at:at + ROWS_A_CALL])
        rate = events / seconds(run)
        queue.clear()
        return rate

    def reference() -> float:
        def run() -> None:
            for at in range(0, events, ROWS_A_CALL):
                to = at * (KEY_BYTES + VALUE_BYTES)
                middle, end = to + ROWS_A_CALL * KEY_BYTES, to + ROWS_A_CALL * (KEY_BYTES + VALUE_BYTES)
                out[to:middle] = key_bytes[at * KEY_BYTES:(at + ROWS_A_CALL) * KEY_BYTES]
                out[middle:end] = value_bytes[at * VALUE_BYTES:(at + ROWS_A_CALL) * VALUE_BYTES]
        return events / seconds(run)

    report("columns into a queue", *in_turn(rounds, subject, reference), "memcpy of the same bytes", "15 M/s")

    stored_queue, stored = queue_and_region("stored columns", stores=True)

    def with_table() -> float:
        def run() -> None:
            for at in range(0, events, ROWS_A_CALL):
                stored.put_columns(keys[at:at + ROWS_A_CALL], values[at:at + ROWS_A_CALL])
        rate = events / seconds(run)
        stored_queue.clear()
        return rate

    report("columns into a region and a queue", *in_turn(rounds, with_table, reference), f"the same memcpy; {events:,} keys")


def memory(events: int) -> None:
    """Resident bytes that a queue of a million events adds, against the bytes of its records."""
    keys = numpy.array([b"%016d" % n for n in range(ROWS_A_CALL)], dtype=f"S{KEY_BYTES}")
    values = numpy.full(ROWS_A_CALL, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    queue, region = queue_and_region("memory", stores=False)
    gc.collect()
    before = resident_bytes()
    for _ in range(events // ROWS_A_CALL):
        region.put_columns(keys, values)
    report(f"resident, queue of {events:,}", (resident_bytes() - before) / 1e6, queue.bytes / 1e6, "their wire size", "under 150%", "MB")


def main() -> None:
    options = arguments(__doc__)
    events = 300_000 if options.quick else 1_000_000
    memory(1_000_000)
    single_puts(options.rounds, events)
    columns(options.rounds, events)


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})     # One core: nothing here is parallel.
    main()
