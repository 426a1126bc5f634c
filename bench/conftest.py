"""Owns how pytest-benchmark measures here: processor time of the thread, of one core, each round beside a reference."""

from __future__ import annotations

import os
import time

import pytest

import results


def pytest_configure(config: pytest.Config) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Nothing here is parallel.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--piece-rounds", type=int, default=15, help="rounds of each piece (one more warms up)")


@pytest.fixture(scope="session")
def reference():
    """Nanoseconds an event of the bare copy of columns in C: how fast this core is just now."""
    import ctypes

    import numpy

    from measure import VALUE_BYTES, at, c_library, key_column

    rows = 10_000
    bare = c_library("bare_columns")
    bare.bare_columns.restype = bare.bare_record_bytes.restype = ctypes.c_uint64
    ring = numpy.zeros(rows * bare.bare_record_bytes(), dtype=numpy.uint8)
    keys, values = key_column(rows), numpy.full(rows, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")

    def run() -> float:
        started = time.thread_time()
        for _ in range(5):
            bare.bare_columns(
                at(keys), at(values), ctypes.c_uint64(rows), at(ring), ctypes.c_uint64(rows), ctypes.c_uint64(0)
            )
        return (time.thread_time() - started) / 5 / rows * 1e9

    return run


@pytest.fixture
def measured(benchmark, reference, request):
    """Runs a piece round by round, each after a round of the reference, and keeps the ratios."""

    def run(piece) -> None:
        rounds, references = request.config.getoption("--piece-rounds"), []

        def prepare() -> None:
            piece.prepare()
            references.append(reference())

        benchmark.pedantic(piece.run, setup=prepare, rounds=rounds, warmup_rounds=1)
        times = benchmark.stats.stats.data
        ns = [each / piece.events * 1e9 for each in times]
        median = sorted(ns)[len(ns) // 2]
        benchmark.extra_info.update(
            events=piece.events,
            ns_an_event=round(median, 1),
            reference_ns=round(sorted(references)[len(references) // 2], 1),
        )
        results.note(
            request.node.callspec.id,
            [one / other for one, other in zip(ns, references[-len(ns) :], strict=True)],
            more_is_better=False,
            shown=f"{median:.1f} ns",
        )

    return run
