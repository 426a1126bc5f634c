"""A replication link between a primary and a replica, two processes over loopback, without a coordinator: what sharing
costs by itself. Columns of 10,000 rows beside two sites in two processes that store at both ends; single puts beside
200 bytes to a process in C and back; 64 threads beside one; the snapshot of a million entries.

16-byte keys, 100-byte values, random keys of a million. `--quick` for a short run."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy

from bench_stored import random_order
from measure import (
    Options,
    Rates,
    Threads,
    arguments,
    c_program,
    in_turn,
    numbered_keys,
    report,
    resident_bytes,
    value_column,
)
from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import MEMBER_TIMEOUT_US, Incarnation
from pywan.transport.own_openings import OwnOpenings
from two_sites import Child, two_sites

BUCKETS = 113
REPL_LINK, TIMELINE, EPOCH = 1, 1, 1
ME = Incarnation("primary", 1)
LEASE_US = 3_600_000_000


class Shared:
    """A region as the members of a site share it, with every bucket in one role."""

    def __init__(self) -> None:
        self.core = _core.RegionCore("data", _core.Clock(), site=1, buckets=BUCKETS)
        self.changelog = _core.Changelog(BUCKETS, self.core.shards)
        table, pool = BucketTable("data", BUCKETS), CallPool(ME, "bench", OwnOpenings())
        table.set_primaries(dict.fromkeys(range(BUCKETS), KnownPrimary(ME, "127.0.0.1", 1, EPOCH)))
        self.core.share(self.changelog, Route(self.core, table, pool), False)
        self.changelog.set_lease(_core.monotonic_us() + LEASE_US)

    def set_roles(self, role: int, transfer: int = 0) -> None:
        for bucket in range(BUCKETS):
            self.changelog.set_role(bucket, role, TIMELINE, EPOCH, transfer)


def serve_replica() -> None:
    """The process of the replica. It prints its port and its size before, and answers each line with its size then."""
    shared = Shared()
    receiver = _core.ReplReceiver(lambda name: shared.core, MEMBER_TIMEOUT_US // 1000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        empty = resident_bytes()
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = threading.Thread(target=receiver.run_over_socket, args=(connection,))
    thread.start()
    for line in sys.stdin:
        if line.strip() == "learn":
            shared.set_roles(_core.REPLICA_LEARNER, 1)
        elif line.strip() == "copy":
            shared.set_roles(_core.REPLICA_IN_SYNC)
        entries = sum(shared.core.bucket(bucket)["entries"] for bucket in range(BUCKETS))
        print(entries, resident_bytes() - empty, flush=True)
    receiver.stop()
    thread.join()


class Primary:
    """The primary of all buckets, with a replica in another process."""

    def __init__(self, *, learns: bool, count: int = 0) -> None:
        self.shared = Shared()
        self.core, self.changelog = self.shared.core, self.shared.changelog
        self.replica = Child(sys.executable, str(Path(__file__).resolve()), "--copy")
        self.socket = socket.create_connection(("127.0.0.1", int(self.replica.finish())))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sender = _core.ReplSender(REPL_LINK, "the replica", MEMBER_TIMEOUT_US // 1000)
        self.changelog.add_repl_link(REPL_LINK, self.sender)
        self.shared.set_roles(_core.REPLICA_PRIMARY)
        if learns:
            empty = resident_bytes()
            fill(self.core, count)
            self.bytes = resident_bytes() - empty
        self.replica.ask("learn" if learns else "copy")
        self.began = time.perf_counter()
        for bucket in range(BUCKETS):
            state = _core.REPLICA_LEARNING if learns else _core.REPLICA_WAITED
            self.changelog.set_replicas(bucket, [(REPL_LINK, state, 1 if learns else 0, 0)])
        self.sender.add_region(1, "data", self.core)
        self.thread = threading.Thread(target=self.sender.run_over_socket, args=(self.socket,))
        self.thread.start()

    def close(self) -> None:
        self.sender.stop()
        self.thread.join()
        self.socket.close()
        self.replica.end()


def fill(core: Any, count: int) -> None:
    keys, values = numbered_keys(numpy.arange(count)), value_column(count)
    for row in range(0, count, 10_000):
        core.put_columns(keys[row : row + 10_000], values[row : row + 10_000])


def puts_per_s(core: Any, keys: list[bytes], threads: int, calls: int) -> tuple[float, float]:
    """(rate of all threads, median of the first one in us)."""
    share, taken = calls // threads, []

    def run(number: int) -> None:
        put, value = core.put, b"v" * 100
        for n in range(number * share, (number + 1) * share):
            before = time.perf_counter()
            put(keys[n % len(keys)], value)
            if number == 0:
                taken.append(time.perf_counter() - before)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    started = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return share * threads / (time.perf_counter() - started), statistics.median(taken) * 1e6


def columns(options: Options, primary: Primary) -> None:
    events, values = options.size(3_000_000, 500_000, 40_000), value_column(options.keys)
    with two_sites(stores=True) as sites:
        keys = random_order(sites, options.keys)
        sender = sites.sender("ln", batch_size=1_000, batch_time_interval=5)
        sites.use(sender)
        fill(primary.core, options.keys)
        threads, spent = Threads(os.getpid(), primary.replica.pid), []

        def subject() -> float:
            threads.look()
            started = time.perf_counter()
            for row in range(0, events, 10_000):
                at = row % options.keys
                primary.core.put_columns(keys[at : at + 10_000], values[at : at + 10_000])
            rate = events / (time.perf_counter() - started)
            did = sorted(((times[0] / events * 1e9, *key) for key, times in threads.look().items()), reverse=True)
            spent.append([round(ns) for ns, *_ in did[:4]])
            return rate

        def reference() -> float:
            return sites.send_all(sender, keys, values, events)

        report(
            "columns, and a replica has them",
            *in_turn(options.rounds, subject, reference),
            "two sites that store",
            "50%",
        )
        print(f"  processor time of the busiest threads, ns an event: {spent[-1]}")


def single(options: Options, primary: Primary) -> None:
    calls = options.size(20_000, 5_000, 500)
    keys = numbered_keys(numpy.random.default_rng(7).permutation(options.keys)).tolist()
    medians: list[float] = []

    def one() -> float:
        rate, median = puts_per_s(primary.core, keys, 1, calls)
        medians.append(median)
        return rate / 1e3

    with Child(c_program("bare_ping"), "1", str(calls)) as ping:
        puts, pings = in_turn(options.rounds, one, lambda: float(ping.ask()) / 1e3)
        report("puts, and a replica has them", puts, pings, "round trips in C", "33%", "k/s")
        print(f"  median of a put {statistics.median(medians):.0f} us")
        many = [puts_per_s(primary.core, keys, 64, calls * 4)[0] / 1e3 for _ in range(options.rounds)]
        report("the same by 64 threads", Rates(many), puts, "one thread", "4 times", "k/s")


def snapshot(options: Options) -> None:
    count = options.size(options.keys, options.keys // 10, options.keys)
    primary = Primary(learns=True, count=count)
    try:
        deadline = time.monotonic() + 60
        while int(primary.replica.ask("size").split()[0]) < count:
            assert time.monotonic() < deadline, primary.replica.ask("size")
            time.sleep(0.01)
        took = time.perf_counter() - primary.began
        copied = int(primary.replica.ask("size").split()[1])
        report(f"snapshot of {count:,} entries", took, 5.0, "the limit", "5 s or less", "s")
        report("memory of the replica", copied / 1e6, primary.bytes / 1e6, "the primary's", "110% or less", "MB")
    finally:
        primary.close()


def main() -> None:
    options = arguments(__doc__)
    snapshot(options)
    primary = Primary(learns=False)
    try:
        single(options, primary)
        columns(options, primary)
    finally:
        primary.close()


if __name__ == "__main__":
    serve_replica() if sys.argv[1:] == ["--copy"] else main()
