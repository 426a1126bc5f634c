"""What queues take: the conflation index per key; and with `--long` a queue of 50 million events in 100 MB of memory,
and both sites' memory while 100 million events go from one to the other through a queue of 10 MB."""

from __future__ import annotations

import gc
import os
import tempfile

import numpy

from bench_core import ROWS_A_CALL, queue_and_region
from measure import VALUE_BYTES, arguments, key_column, report, resident_bytes, value_column
from pywan import _core
from two_sites import two_sites


def conflation_index(keys: int) -> None:
    """Resident memory of a queue that conflates less that of one that does not: the same updates of different keys."""
    column, values = key_column(keys), numpy.full(ROWS_A_CALL, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    taken = []
    for conflate in (False, True):
        queue = _core.EventQueue("index", remote_site=2, memory_limit=1 << 30, conflate=conflate)
        queue.running = True
        region = _core.RegionCore("index", _core.Clock(), site=1, member=1, stores=False)
        region.attach([queue])
        gc.collect()
        before = resident_bytes()
        for row in range(0, keys, ROWS_A_CALL):
            region.put_columns(column[row : row + ROWS_A_CALL], values)
        taken.append(resident_bytes() - before)
        assert len(queue) == keys
        region.attach([])
        del queue, region
    report(
        f"conflation index, {keys:,} keys", (taken[1] - taken[0]) / keys, 100, "the limit", "100 or less", "bytes a key"
    )


def long_queue(events: int, memory: int) -> None:
    keys, values = key_column(ROWS_A_CALL), numpy.full(ROWS_A_CALL, b"v" * VALUE_BYTES, dtype=f"S{VALUE_BYTES}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        queue = _core.EventQueue("long", remote_site=2, memory_limit=memory, directory=directory)
        queue.running = True
        region = _core.RegionCore("long", _core.Clock(), site=1, member=1, stores=False)
        region.attach([queue])
        before, most = resident_bytes(), 0
        for n in range(events // ROWS_A_CALL):
            region.put_columns(keys, values)
            if n % 100 == 0:
                most = max(most, resident_bytes() - before)
        report(
            f"resident, {events:,} queued",
            most / 1e6,
            memory / 1e6,
            f"maximum-queue-memory; {queue.bytes / 1e6:,.0f} MB queued",
            "",
            "MB",
        )
        removed = 0
        while removed < events:  # Taken out in order, as a dispatcher does; files go as they are emptied.
            removed += len(queue.peek(0, ROWS_A_CALL))
            queue.remove(0, removed)
            if removed % 1_000_000 == 0:
                most = max(most, resident_bytes() - before)
        counts = queue.counts()
        report(
            "the same, most while it drains",
            most / 1e6,
            memory / 1e6,
            f"maximum-queue-memory; {counts['overflow_bytes']} bytes of overflow left",
            "",
            "MB",
        )
        region.attach([])


def through(events: int, memory_mb: int) -> None:
    """Resident memory of both sites after each tenth of the events: from the second on it has nothing to grow for."""
    keys, values = key_column(100_000), value_column(100_000)
    with two_sites() as sites:
        sender = sites.sender("ln", maximum_queue_memory=memory_mb, batch_size=1000, batch_time_interval=5)
        sites.use(sender)
        resident = []
        for _ in range(10):
            sites.send_all(sender, keys, values, events // 10)
            resident.append([resident_bytes(pid) for pid in sites.pids])
        for name, own in zip(("sending", "receiving"), zip(*resident, strict=True), strict=True):
            report(
                f"{name} site, after {events:,} events",
                own[-1] / 1e6,
                own[1] / 1e6,
                "after a fifth of them",
                "flat",
                "MB",
            )
        assert sender.ledger()["balanced"] and sites.remote_keys() == len(keys)


def main() -> None:
    options = arguments(__doc__)
    queue_and_region("warm", stores=False)
    conflation_index(options.size(1_000_000, 1_000_000, 100_000))
    if options.long or options.smallest:
        long_queue(options.size(50_000_000, 50_000_000, 200_000), options.size(100 << 20, 100 << 20, 10 << 20))
        through(options.size(100_000_000, 100_000_000, 1_000_000), 10)


if __name__ == "__main__":
    main()
