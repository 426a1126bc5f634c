"""Spark: `enqueue` into a member in another process, beside `mapInArrow` doing nothing, in turn in one run.

16-byte keys and 100-byte values, and a key with five columns as one value. Each by the clock, and in processor time of
Spark, its workers and the member together (rows in a second of it): on a machine that others use, only the latter says
something. `--quick` for a short run."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import measure
from two_sites import Child

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


def processor_s() -> float:
    """Of the member, of the Java process and of its workers, so far."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(measure.processor_s(int(child)) for child in children)


def compare(title, frame, rows, rounds, where, goal=""):
    from pywan.spark import enqueue

    taken = {"mapInArrow doing nothing": ([], []), "enqueue": ([], [])}

    def timed(name, call):
        started, worked = time.perf_counter(), processor_s()
        assert call() == rows
        return name, time.perf_counter() - started, processor_s() - worked

    for turn in range(rounds + 1):  # The first turn warms up.
        for name, clock_s, worked_s in (
            timed(
                "mapInArrow doing nothing",
                lambda: sum(row.rows for row in frame.mapInArrow(nothing, "rows bigint").collect()),
            ),
            timed("enqueue", lambda: enqueue(frame, **where).rows),
        ):
            if turn:
                taken[name][0].append(clock_s / rows)
                taken[name][1].append(worked_s / rows)
    nothing_s, enqueue_s = taken.values()
    clock, worked = (
        [measure.Rates([1 / a_row for a_row in times[n]]) for times in (enqueue_s, nothing_s)] for n in (0, 1)
    )
    measure.report(title, clock[0], clock[1], "mapInArrow doing nothing", goal)
    measure.report(f"{title}, processor time", worked[0], worked[1], "mapInArrow doing nothing")
    print(f"  processor time a row: {1e6 / worked[0]:.2f} us, doing nothing {1e6 / worked[1]:.2f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    measure.add_forms(parser)
    parser.add_argument("--rows", type=int)
    # What the other benchmarks take means nothing here.
    options, _ = parser.parse_known_args(namespace=measure.Options())
    rows, rounds = options.rows or options.size(5_000_000, 1_000_000, 20_000), options.size(5, 3, 1)

    from pywan.demo import spark_session

    partitions = options.size(PARTITIONS, PARTITIONS, 2)
    with tempfile.TemporaryDirectory() as directory:
        member = Child(sys.executable, "-c", MEMBER, directory)
        session = None
        try:
            port = int(member.finish())
            session = spark_session.start(Path(directory) / "spark")
            frame = session.range(0, rows, 1, partitions).selectExpr(
                "format_string('%016d', id % 1000000) as key", "repeat(format_string('%010d', id), 10) as value"
            )
            where = dict(locators=f"127.0.0.1[{port}]", region="data", key="key", value="value")
            compare("rows computed by Spark", frame, rows, rounds, where, "60%")
            frame.persist().count()
            compare("rows from Spark's cache", frame, rows, rounds, where)
            frame.unpersist()
            frame = session.range(0, rows, 1, partitions).selectExpr(
                "format_string('%016d', id % 1000000) as key",
                "format_string('S%05d', id % 5000) as symbol",
                "id / 7 as price",
                "id % 1000 as size",
                "id as sequence",
                "id % 3 = 0 as is_bid",
            )
            frame.persist().count()
            where["value"] = ["symbol", "price", "size", "sequence", "is_bid"]
            compare("the same, a key and five columns", frame, rows, rounds, where)
        finally:
            if session is not None:
                spark_session.stop(session)
            member.end()


if __name__ == "__main__":
    main()
