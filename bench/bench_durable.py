"""A persistent queue: enqueues that return when they are on the disk, beside one thread that writes and syncs the same
bytes; and how fast a queue of ten million events (one million with `--quick`) is recovered, beside reading its files.

16-byte keys, 100-byte values; batches of 1,000 from four threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy

from measure import VALUE_BYTES, arguments, at, c_library, in_turn, key_column, report, seconds
from pywan import _core

BATCH = 1_000
THREADS = 4
LOG_ID = 1


@contextlib.contextmanager
def persistent_queue(
    directory: Path, *, synchronous: bool, memory: int = 4 << 30
) -> Iterator[tuple[_core.EventQueue, _core.RegionCore]]:
    (directory / "log").mkdir(exist_ok=True)
    queue = _core.EventQueue(
        "ln",
        remote_site=2,
        partitions=THREADS,
        dispatchers=1,
        memory_limit=memory,
        directory=str(directory),
        log_directory=str(directory / "log"),
        log_id=LOG_ID,
        synchronous=synchronous,
        flush_ms=10,
    )
    queue.running = True
    committer = threading.Thread(target=queue.commit_loop)
    committer.start()
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1, stores=False)
    region.attach([queue])
    try:
        yield queue, region
    finally:
        queue.stop_log()
        committer.join()
        region.attach([])


def durable(rounds: int, batches: int, directory: Path) -> None:
    keys, values = key_column(BATCH * THREADS), numpy.full(BATCH, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    bare = c_library("bare_disk")

    with persistent_queue(directory, synchronous=True) as (queue, region):
        region.put_columns(keys[:BATCH], values)
        batch_bytes = queue.bytes
        block = numpy.full(batch_bytes, 7, dtype=numpy.uint8)

        def settle() -> None:
            """Empties the queue and its log, so that what follows has the disk to itself."""
            queue.clear()
            deadline = time.monotonic() + 10
            while queue.log_state()["segments"] > 8 and time.monotonic() < deadline:
                time.sleep(0.02)

        def subject() -> float:
            def enqueue(n: int) -> None:
                mine = keys[n * BATCH : (n + 1) * BATCH]
                for _ in range(batches // THREADS):
                    region.put_columns(mine, values)

            threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(THREADS)]
            before = queue.log_state()["commits"]

            def run() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            rate = batches * BATCH / seconds(run)
            commits.append(queue.log_state()["commits"] - before)
            settle()
            return rate

        def reference() -> float:
            def run() -> None:
                reason = bare.bare_write_sync(
                    os.fsencode(directory / "bare"), at(block), ctypes.c_uint64(batch_bytes), ctypes.c_uint64(batches)
                )
                assert reason == 0, os.strerror(reason)

            return batches * BATCH / seconds(run)

        commits: list[int] = []
        rates = in_turn(rounds, subject, reference)
        report(
            "durable enqueue, 4 threads",
            *rates,
            (
                f"one thread, write and fdatasync of a batch; {batches / (sum(commits) / len(commits)):.1f} batches "
                "a sync here"
            ),
            "50%",
        )


def recovery(rounds: int, events: int, directory: Path, memory: int, name: str) -> None:
    keys, values = key_column(10_000), numpy.full(10_000, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    if not (directory / "log").exists():
        with persistent_queue(directory, synchronous=False) as (queue, region):
            for _ in range(events // len(keys)):
                region.put_columns(keys, values)
                while queue.log_state()["pending"] > 100_000:
                    time.sleep(0.001)
            queue.wait_durable()

    buffer = bytearray(8 << 20)

    def read() -> None:
        for path in sorted((directory / "log").glob("*.seg")):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def recover() -> None:
        opened.append(
            _core.EventQueue(
                "ln",
                remote_site=2,
                partitions=THREADS,
                dispatchers=1,
                memory_limit=memory,
                directory=str(directory),
                log_directory=str(directory / "log"),
                log_id=LOG_ID,
                synchronous=False,
            )
        )

    opened: list[_core.EventQueue] = []

    def subject() -> float:
        rate = events / seconds(recover)
        assert len(opened[0]) == events, f"{len(opened[0])} of {events} events were recovered"
        opened.clear()
        return rate

    report(
        name,
        *in_turn(min(rounds, 3), subject, lambda: events / seconds(read)),
        "its files read, in the page cache",
        "50%",
    )


def main() -> None:
    options = arguments(__doc__)
    events = options.size(10_000_000, 1_000_000, 50_000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        durable(options.rounds, options.size(2000, 400, 8), Path(directory))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        recovery(options.rounds, events, Path(directory), 4 << 30, f"recovery, {events:,} events")
        recovery(options.rounds, events, Path(directory), 100 << 20, "the same, 100 MB of memory")


if __name__ == "__main__":
    main()
