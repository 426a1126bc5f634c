"""The compiled core in one process: single puts, columns, and the memory of a queue, each beside a reference.

16-byte keys, 100-byte values, one sender; all of it in one thread, whose processor time counts. `--quick` for a short
run."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os

import numpy

from measure import VALUE_BYTES, arguments, at, c_library, cpu_seconds, in_turn, key_column, report, resident_bytes
from pywan import _core

ROWS_A_CALL = 10_000
WARM_ROWS = 4 * ROWS_A_CALL  # Four segments: what a queue keeps to use again.


def queue_and_region(name: str, *, stores: bool, memory: int = 1 << 30) -> tuple[_core.EventQueue, _core.RegionCore]:
    queue = _core.EventQueue(name, remote_site=2, partitions=1, dispatchers=1, memory_limit=memory)
    queue.running = True
    region = _core.RegionCore(name, _core.Clock(), site=1, member=1, stores=stores)
    region.attach([queue])
    return queue, region


def single_puts(rounds: int, events: int) -> None:
    """A Python loop of puts, against the same loop over an empty method of a compiled class; into a queue that
    drains.
    """
    keys = [b"%016d" % (n % 10_000) for n in range(WARM_ROWS)]
    value = b"v" * VALUE_BYTES

    def loop(put, between) -> float:
        def run() -> None:
            for key in keys:
                put(key, value)

        taken = 0.0
        for _ in range(events // len(keys)):
            taken += cpu_seconds(run)
            between()
        return events // len(keys) * len(keys) / taken

    queue, region = queue_and_region("puts", stores=True)
    nothing = _core._Nothing()
    report(
        "put, one at a time",
        *in_turn(rounds, lambda: loop(region.put, queue.clear), lambda: loop(nothing.put, lambda: None)),
        "an empty compiled method, same loop",
        "70%",
    )


def columns(rounds: int, events: int) -> None:
    """put_columns of 10,000 rows into a queue (a region without entries), against C that copies the same rows into
    records of the same form: in a queue that drains (memory that is warm on both sides), and in one that grows (fresh
    memory on both)."""
    keys, values = key_column(events), numpy.full(events, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    bare = c_library("bare_columns")
    bare.bare_columns.restype = bare.bare_record_bytes.restype = ctypes.c_uint64
    record_bytes = bare.bare_record_bytes()
    queue, region = queue_and_region("columns", stores=False)
    region.put_columns(keys[:1], values[:1])
    assert queue.bytes == record_bytes, "the reference lays out other records than the core"
    queue.clear()
    warm = numpy.zeros(WARM_ROWS * record_bytes, dtype=numpy.uint8)

    def enqueue(clear_every: int) -> float:
        taken = 0.0
        for first in range(0, events, clear_every):

            def run(first=first) -> None:
                for row in range(first, min(first + clear_every, events), ROWS_A_CALL):
                    region.put_columns(keys[row : row + ROWS_A_CALL], values[row : row + ROWS_A_CALL])

            taken += cpu_seconds(run)
            queue.clear()
        return events / taken

    def lay_out(ring: ctypes.c_void_p, capacity: int) -> float:
        def run() -> None:
            position = 0
            for row in range(0, events, ROWS_A_CALL):
                position = bare.bare_columns(
                    at(keys, row),
                    at(values, row),
                    ctypes.c_uint64(min(ROWS_A_CALL, events - row)),
                    ring,
                    ctypes.c_uint64(capacity),
                    ctypes.c_uint64(position),
                )

        return events / cpu_seconds(run)

    def lay_out_fresh() -> float:
        with mmap.mmap(-1, events * record_bytes + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            fresh.madvise(mmap.MADV_HUGEPAGE)  # As the core's segments are.
            view = numpy.frombuffer(fresh, dtype=numpy.uint8)
            rate = lay_out(at(view), events)
            del view
        return rate

    report(
        "columns into a queue that drains",
        *in_turn(rounds, lambda: enqueue(WARM_ROWS), lambda: lay_out(at(warm), WARM_ROWS)),
        "the bare copy in C",
        "60%",
    )
    report(
        f"columns, queue grows to {events:,}",
        *in_turn(rounds, lambda: enqueue(events), lay_out_fresh),
        "the bare copy in C, fresh memory",
        "60%",
    )

    stored_queue, stored = queue_and_region("stored columns", stores=True)

    def with_table() -> float:
        def run() -> None:
            for row in range(0, events, ROWS_A_CALL):
                stored.put_columns(keys[row : row + ROWS_A_CALL], values[row : row + ROWS_A_CALL])

        rate = events / cpu_seconds(run)
        stored_queue.clear()
        return rate

    report(
        "columns into a region and a queue", *in_turn(rounds, with_table, lay_out_fresh), f"the same; {events:,} keys"
    )


def memory(events: int) -> None:
    """Resident bytes that a queue of a million events adds, against the bytes of its records."""
    keys = key_column(ROWS_A_CALL)
    values = numpy.full(ROWS_A_CALL, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    queue, region = queue_and_region("memory", stores=False)
    gc.collect()
    before = resident_bytes()
    for _ in range(events // ROWS_A_CALL):
        region.put_columns(keys, values)
    report(
        f"resident, queue of {events:,}",
        (resident_bytes() - before) / 1e6,
        queue.bytes / 1e6,
        "their wire size",
        "under 150%",
        "MB",
    )


def main() -> None:
    options = arguments(__doc__)
    events = options.size(1_000_000, 300_000, WARM_ROWS)
    memory(options.size(1_000_000, 1_000_000, 100_000))
    single_puts(options.rounds, events)
    columns(options.rounds, events)


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # One core: nothing here is parallel.
    main()
