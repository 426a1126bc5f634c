"""Spark: `enqueue` into a member in another process, beside `mapInArrow` doing nothing, in turn in one run.

16-byte keys and 100-byte values; ratio of medians. `--quick` for a short run."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTITIONS = 8  # More tasks than cores, as Spark advises: while one task ends, another goes on.

MEMBER = """
import sys, pywan
with pywan.Locator("locator", distributed_system_id=1, port=0) as locator:
    with pywan.Cache("server", locators=f"127.0.0.1[{locator.port}]", dir=sys.argv[1]) as cache:
        cache.create_region("data", type="PARTITION")
        print(locator.port, flush=True)
        sys.stdin.read()
"""


def nothing(batches):
    import pyarrow

    rows = sum(batch.num_rows for batch in batches)
    yield pyarrow.RecordBatch.from_pydict({"rows": pyarrow.array([rows], pyarrow.int64())})


def compare(title, frame, rows, rounds, where, target=""):
    from pywan.spark import enqueue

    idle, busy = [], []
    for turn in range(rounds + 1):  # The first turn warms up.
        started = time.perf_counter()
        counted = sum(row.rows for row in frame.mapInArrow(nothing, "rows bigint").collect())
        idle_s = time.perf_counter() - started
        summary = enqueue(frame, **where)
        assert counted == summary.rows == rows
        if turn:
            idle.append(rows / idle_s)
            busy.append(rows / summary.seconds)
    nothing_rate, enqueue_rate = statistics.median(idle), statistics.median(busy)
    print(f"{title} ({rows:,}, median of {rounds})")
    print(f"  mapInArrow doing nothing   {nothing_rate / 1e6:6.2f} million rows/s")
    print(f"  enqueue                    {enqueue_rate / 1e6:6.2f} million rows/s")
    print(f"  ratio                      {enqueue_rate / nothing_rate:6.0%}{target}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int)
    options, _ = parser.parse_known_args()  # What the other benchmarks take means nothing here.
    rows, rounds = (options.rows or 1_000_000, 3) if options.quick else (options.rows or 5_000_000, 5)

    from pywan.demo import spark_session

    with tempfile.TemporaryDirectory() as directory:
        member = subprocess.Popen(
            [sys.executable, "-c", MEMBER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        session = None
        try:
            port = int(member.stdout.readline())
            session = spark_session.start(Path(directory) / "spark")
            frame = session.range(0, rows, 1, PARTITIONS).selectExpr(
                "format_string('%016d', id % 1000000) as key", "repeat(format_string('%010d', id), 10) as value"
            )
            where = dict(locators=f"127.0.0.1[{port}]", region="data", key="key", value="value")
            compare("rows computed by Spark", frame, rows, rounds, where, "  (to reach: 60%)")
            frame.persist().count()
            compare("rows in Spark's cache", frame, rows, rounds, where)
        finally:
            if session is not None:
                spark_session.stop(session)
            member.stdin.close()
            try:
                member.wait(20)
            except subprocess.TimeoutExpired:
                member.kill()


if __name__ == "__main__":
    main()
