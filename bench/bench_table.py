"""A region's table with ten million keys (two million with `--quick`): upserts in random order beside a bare hash table
in C, what an entry takes, and the longest call while the table grew.

16-byte keys, 100-byte values; one thread, whose processor time counts."""

from __future__ import annotations

import ctypes
import os
import time

import numpy

from measure import KEY_BYTES, VALUE_BYTES, arguments, at, c_library, cpu_seconds, in_turn, numbered_keys, report
from pywan import _core

ROWS_A_CALL = 1_000
TOUCHED_BYTES = 400  # A key, for both tables and the columns.


def main() -> None:
    options = arguments(__doc__)
    keys_count = options.size(10_000_000, 2_000_000, 100_000)
    updates = options.size(2_000_000, 500_000, 20_000)
    values = numpy.full(ROWS_A_CALL, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    # A virtual machine gets its pages from its host when it first touches them, which can take milliseconds: not the
    # table's.
    numpy.ones(keys_count * TOUCHED_BYTES, dtype=numpy.uint8)
    bare = c_library("bare_table")
    bare.bare_table_new.restype = ctypes.c_void_p
    bare.bare_table_used.restype = ctypes.c_uint64
    bare.bare_table_new.argtypes, bare.bare_table_used.argtypes = [ctypes.c_uint64], [ctypes.c_void_p]
    table = bare.bare_table_new(keys_count)
    assert table, "no memory for the bare table"
    region = _core.RegionCore("table", _core.Clock(), site=1, member=1)
    region.put_columns(numbered_keys(numpy.arange(ROWS_A_CALL)), values)  # The first call imports what calls need.
    stamp = 1

    longest: list[tuple[float, float]] = []  # (processor time, wall clock) of each call while the table grew.
    for first in range(0, keys_count, 100_000):
        keys = numbered_keys(numpy.arange(first, first + 100_000))
        for row in range(0, len(keys), ROWS_A_CALL):
            chunk = keys[row : row + ROWS_A_CALL]
            wall, cpu = time.perf_counter(), time.thread_time()
            region.put_columns(chunk, values)
            longest.append((time.thread_time() - cpu, time.perf_counter() - wall))
            bare.bare_table_put(
                ctypes.c_void_p(table), at(keys, row), at(values), ctypes.c_uint64(len(chunk)), ctypes.c_uint64(stamp)
            )
            stamp += len(chunk)
    assert len(region) == bare.bare_table_used(table) == keys_count

    shuffled = numbered_keys(numpy.random.default_rng(7).permutation(keys_count)[:updates])

    def subject() -> float:
        def run() -> None:
            for row in range(0, updates, ROWS_A_CALL):
                region.put_columns(shuffled[row : row + ROWS_A_CALL], values)

        return cpu_seconds(run) / updates * 1e9

    def reference() -> float:
        nonlocal stamp

        def run() -> None:
            for row in range(0, updates, ROWS_A_CALL):
                bare.bare_table_put(
                    ctypes.c_void_p(table),
                    at(shuffled, row),
                    at(values),
                    ctypes.c_uint64(ROWS_A_CALL),
                    ctypes.c_uint64(stamp + row),
                )

        taken = cpu_seconds(run)
        stamp += updates
        return taken / updates * 1e9

    report(
        f"upsert, {keys_count:,} keys",
        *in_turn(options.rounds, subject, reference),
        "the bare hash table in C",
        "200% or less",
        "ns",
    )
    report(
        f"memory, {keys_count:,} keys",
        region.memory_bytes / keys_count,
        KEY_BYTES + VALUE_BYTES,
        "key and value alone",
        "",
        "bytes a key",
    )
    took = sorted(each for each, _ in longest)
    by_clock = sorted(each for _, each in longest)
    report(
        "longest call of 1,000 while growing",
        took[-1] * 1e3,
        took[len(took) // 2] * 1e3,
        f"the median call; by the clock {by_clock[-1] * 1e3:.2f} ms",
        "5 ms or less",
        "ms",
    )
    bare.bare_table_free(ctypes.c_void_p(table))


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # One core: nothing here is parallel.
    main()
