"""A region of two members of one site, each a process of its own: this one is primary of all buckets, and the other one
has the copies. How long a `put` takes until the copy has it, beside messages of 200 bytes to a process in C and back;
and how many rows a second `put_columns` stores on both, beside two sites that store them on both.

16-byte keys, 100-byte values, 113 buckets, calls of 10,000 rows. `--quick` for a short run."""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from measure import VALUE_BYTES, arguments, c_program, in_turn, key_column, report, value_column
from pywan import _core
from two_sites import Child, two_sites

BUCKETS, LANE, LIFE, EPOCH = 113, 0, 1, 1
ROWS_A_CALL = 10_000
KEYS = 1_000_000

COPY = f"""
import socket, sys, threading
from pywan import _core
core = _core.RegionCore("data", _core.Clock(), site=1, member=2, buckets={BUCKETS})
tail = _core.Tail({BUCKETS}, core.shards)
class Route:
    limit_us = 10_000_000
core.share(tail, Route(), True)
for bucket in range({BUCKETS}):
    tail.set_role(bucket, _core.TAIL_COPY, {LIFE}, {EPOCH})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
receiver = _core.LaneReceiver(lambda name: core)
running = threading.Thread(target=receiver.run_over_socket, args=(sock.fileno(),))
running.start()
for line in sys.stdin:
    print(sum(core.bucket(bucket)["entries"] for bucket in range({BUCKETS})), flush=True)
receiver.stop()
running.join()
"""


class Route:
    limit_us = 10_000_000


@contextmanager
def two_members() -> Iterator[tuple[_core.RegionCore, Child]]:
    copy = Child(sys.executable, "-c", COPY)
    sender = _core.LaneSender(LANE, "the copy")
    core = _core.RegionCore("data", _core.Clock(), site=1, member=1, buckets=BUCKETS)
    tail = _core.Tail(BUCKETS, core.shards)
    try:
        core.share(tail, Route(), True)
        tail.add_lane(LANE, sender)
        for bucket in range(BUCKETS):
            tail.set_role(bucket, _core.TAIL_PRIMARY, LIFE, EPOCH)
            tail.set_copies(bucket, [(LANE, _core.COPY_WAITED, 0, 0)])
        sender.add_region(0, "data", core)
        with socket.create_connection(("127.0.0.1", int(copy.read()))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            running = threading.Thread(target=sender.run_over_socket, args=(sock.fileno(),))
            running.start()
            try:
                yield core, copy
            finally:
                sender.stop()
                running.join()
    finally:
        copy.close()


def median_put_us(core: _core.RegionCore, puts: int) -> float:
    keys, value, times = [b"%016d" % n for n in range(1000)], b"v" * VALUE_BYTES, []
    for n in range(puts):
        began = time.perf_counter()
        core.put(keys[n % 1000], value)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    options = arguments(__doc__)
    puts = 5_000 if options.quick else 20_000
    rows = KEYS if options.quick else 3 * KEYS
    keys, values = key_column(KEYS), value_column(KEYS)
    ping = Child(str(c_program("bare_ping")), "1", str(puts))
    try:
        with two_members() as (core, copy):
            report(
                "put until the copy has it",
                *in_turn(options.rounds, lambda: 1e3 / median_put_us(core, puts), lambda: float(ping.ask()) / 1e3),
                "round trips in C",
                unit="k/s",
            )

            def columns() -> float:
                began = time.perf_counter()
                for row in range(0, rows, ROWS_A_CALL):
                    start = row % KEYS
                    core.put_columns(keys[start : start + ROWS_A_CALL], values[start : start + ROWS_A_CALL])
                return rows / (time.perf_counter() - began)

            with two_sites(stores=True) as sites:
                sender = sites.sender("ln", batch_size=1_000, batch_time_interval=5)
                sites.use(sender)
                report(
                    "put_columns until the copy has them",
                    *in_turn(options.rounds, columns, lambda: sites.send_all(sender, keys, values, rows)),
                    "two sites that store them, until acknowledged",
                )
            assert int(copy.ask()) == KEYS
    finally:
        ping.close()


if __name__ == "__main__":
    main()
