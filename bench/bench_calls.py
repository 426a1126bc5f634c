"""Operations on keys whose primary is another member, a process of its own: how many `put` and `get` of 100 bytes one
thread makes in a second, and 64 threads that share one connection. Beside it: messages of 200 bytes to a process in C
and back, by one thread, and by 64 threads that have a connection each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from measure import VALUE_BYTES, arguments, c_program, in_turn, report
from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Incarnation
from pywan.testing.processes import ChildProcess
from pywan.transport.control import ControlServer
from pywan.transport.own_openings import OwnOpenings
from two_sites import Child

BUCKETS = 113
NEAR, FAR = Incarnation("near", 1), Incarnation("far", 2)
MEMBER = str(Path(__file__).resolve().parent.parent / "tests" / "support" / "calls_member.py")
THREADS = 64


def calls_per_s(operation: Callable[[int], object], threads: int, calls: int) -> float:
    """All threads begin together. Each makes its share of the calls."""
    share = calls // threads
    ready = threading.Barrier(threads + 1)

    def work(first: int) -> None:
        ready.wait()
        for n in range(first, first + share):
            operation(n)

    running = [threading.Thread(target=work, args=(number * share,)) for number in range(threads)]
    for thread in running:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    return share * threads / (time.perf_counter() - began)


def main() -> None:
    options = arguments(__doc__)
    calls = options.size(20_000, 5_000, 10 * THREADS)
    openings = OwnOpenings()
    port = ControlServer("127.0.0.1", 0, lambda request, peer: openings.answer(request), name="near").start()
    near = [*NEAR, port.port]
    member = ChildProcess("member", [sys.executable, MEMBER, FAR.name, FAR.member_id, "bench", BUCKETS, *near])
    region = _core.RegionCore("r", _core.Clock(), site=1, member=NEAR.member_id, buckets=BUCKETS)
    table, pool = BucketTable("r", BUCKETS), CallPool(NEAR, "bench", openings)
    bare = {
        1: Child(str(c_program("bare_ping")), "1", str(calls)),
        THREADS: Child(str(c_program("bare_ping")), str(THREADS), str(calls // THREADS)),
    }
    try:
        table.set_primaries(dict.fromkeys(range(BUCKETS), KnownPrimary(FAR, "127.0.0.1", member.finish(), 1)))
        route = Route(region, table, pool)
        keys, value = [b"%016d" % n for n in range(1000)], b"v" * VALUE_BYTES

        def put(n: int) -> None:
            route.change(_core.UPDATE, keys[n % 1000], value, None, region.next_event_id())

        def get(n: int) -> None:
            route.read(keys[n % 1000])

        for threads, ping in bare.items():
            for name, operation in (("put", put), ("get", get)):
                subject, reference = in_turn(
                    options.rounds,
                    lambda operation=operation, threads=threads: calls_per_s(operation, threads, calls),
                    lambda ping=ping: float(ping.ask()),
                )
                what = "round trips in C" if threads == 1 else f"round trips in C over {threads} connections"
                report(f"{name} at another member, {threads} thr.", subject / 1e3, reference / 1e3, what, unit="k/s")
    finally:
        pool.close()
        port.stop()
        for child in (member, *bare.values()):
            child.end()


if __name__ == "__main__":
    main()
