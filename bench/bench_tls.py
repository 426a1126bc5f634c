"""What encryption costs: stored random events between a sender's and a receiver's session in two processes over
loopback, and puts that another member has called for and a replica has (a call, and a replication link), each over TLS
1.3 beside the same over plain connections.

16-byte keys, 100-byte values, random keys of a million. `--quick` for a short run."""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy

from bench_repl_link import BUCKETS, EPOCH, ME, REPL_LINK, Shared
from measure import KEYS, Options, arguments, in_turn, numbered_keys, report, value_column
from pywan import _core
from pywan.calls.route import Route
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import MEMBER_TIMEOUT_US, Incarnation
from pywan.transport.link import Link
from two_sites import Child

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.made_certificates import contexts, new_options

BATCH, AHEAD, ROWS = 1_000, 50_000, 10_000
SLICE_US = 100_000
PLAIN, ENCRYPTED = b"p", b"t"
EVENTS, CALLS, CHANGES = b"e", b"c", b"l"  # What a connection is for.


# The process with the receiver, and with the primary.


def serve(given: dict[str, Any]) -> None:
    context = contexts(given)[1]
    far = {kind: _core.RegionCore(f"far-{kind.decode()}", _core.Clock(), site=2) for kind in (PLAIN, ENCRYPTED)}
    primaries = {kind: Shared() for kind in (PLAIN, ENCRYPTED)}
    repl_links = {kind: _core.ReplSender(REPL_LINK, "the replica", MEMBER_TIMEOUT_US // 1000) for kind in primaries}
    ends: list[threading.Thread] = []
    for kind, shared in primaries.items():
        shared.changelog.add_repl_link(REPL_LINK, repl_links[kind])
        shared.set_roles(_core.REPLICA_PRIMARY)
        for bucket in range(BUCKETS):
            shared.changelog.set_replicas(bucket, [(REPL_LINK, _core.REPLICA_WAITED, 0, 0)])
        repl_links[kind].add_region(1, "data", shared.core)

    def run(link: Link) -> None:
        what, kind = link.recv(1), link.recv(1)
        if kind == ENCRYPTED:
            link.encrypt(context, None)
        if what == EVENTS:
            regions = {f"far-{kind.decode()}": far[kind]}
            session = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), regions.get, None)
            session.run(link, 0)
        elif what == CALLS:
            _core.CallSession({"data": primaries[kind].core}.get).run(link)
        else:
            repl_links[kind].run_over_socket(link)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for _ in range(6):
            link = Link.of(listener.accept()[0])
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ends.append(threading.Thread(target=run, args=(link,)))
            ends[-1].start()
    for _ in sys.stdin:
        pass
    for repl_link in repl_links.values():
        repl_link.stop()
    for each in ends:
        each.join()


# The process with the sender, and with the caller and the replica.


class Far:
    """The other process."""

    def __init__(self, directory: Path) -> None:
        given = new_options(directory)
        self._context = contexts(given)[0]
        self.child = Child(sys.executable, str(Path(__file__).resolve()), "--serve", json.dumps(given))
        self._port = int(self.child.finish())

    def connect(self, what: bytes, kind: bytes) -> Link:
        link = Link.of(socket.create_connection(("127.0.0.1", self._port)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(what + kind)
        if kind == ENCRYPTED:
            link.encrypt(self._context, "127.0.0.1")
        return link


class Sender:
    """A region that stores, and sends its events over one connection."""

    def __init__(self, far: Far, kind: bytes, count: int) -> None:
        self.queue = _core.EventQueue("ln", remote_site=2, memory_limit=1 << 30)
        self.queue.running = True
        self.region = _core.RegionCore(f"far-{kind.decode()}", _core.Clock(), site=1)
        self.region.attach([self.queue])
        self._dispatcher = _core.DispatcherSession(self.queue, 0, _core.EventQueue("parked", partitions=8))
        self._dispatcher.configure(BATCH, 5)
        self._dispatcher.connected(1_000_000, 64 << 20)
        self._link = far.connect(EVENTS, kind)
        self._thread = threading.Thread(target=self._dispatcher.run, args=(self._link,))
        self._thread.start()
        self.send(numbered_keys(numpy.arange(count)), value_column(count), count)

    def send(self, keys: numpy.ndarray, values: numpy.ndarray, events: int) -> float:
        """Events a second, from the first put until the last acknowledgement."""
        started = time.perf_counter()
        for row in range(0, events, ROWS):
            while len(self.queue) > AHEAD:
                time.sleep(0.0005)
            at = row % len(keys)
            self.region.put_columns(keys[at : at + ROWS], values[at : at + ROWS])
        while len(self.queue):
            time.sleep(0.0005)
        return events / (time.perf_counter() - started)

    def close(self) -> None:
        self._dispatcher.stop()
        self._thread.join()
        self._link.close()
        self.region.attach([])


class Pool:
    """The one line of a caller."""

    is_closed = False

    def __init__(self, line: _core.CallLine) -> None:
        self.me, self._line = Incarnation("caller", 2), line
        self.slots = _core.CallSlots(self.me.member_id)

    def line(self, *where: object) -> _core.CallLine:
        return self._line


class Caller:
    """A member that calls the primary, and has the replica."""

    def __init__(self, far: Far, kind: bytes) -> None:
        self._replica = Shared()
        self._replica.set_roles(_core.REPLICA_IN_SYNC)
        self._receiver = _core.ReplReceiver(lambda name: self._replica.core, MEMBER_TIMEOUT_US // 1000)
        self._repl_link = far.connect(CHANGES, kind)
        self._thread = threading.Thread(target=self._receiver.run_over_socket, args=(self._repl_link,))
        self._thread.start()
        link = far.connect(CALLS, kind)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, SLICE_US))
        self._line, table = _core.CallLine(link), BucketTable("data", BUCKETS)
        table.set_primaries(dict.fromkeys(range(BUCKETS), KnownPrimary(ME, "127.0.0.1", 1, EPOCH)))
        mine = _core.RegionCore("data", _core.Clock(), site=1, member=2, buckets=BUCKETS)
        pool: Any = Pool(self._line)
        self._route, self._calls = Route(mine, table, pool), 0

    def put_us(self, keys: list[bytes], calls: int) -> float:
        """The median of some puts."""
        taken = []
        for n in range(calls):
            self._calls += 1
            before = time.perf_counter()
            self._route.change(_core.UPDATE, keys[n % len(keys)], b"v" * 100, None, (2, 1, self._calls))
            taken.append(time.perf_counter() - before)
        return statistics.median(taken) * 1e6

    def close(self) -> None:
        self._line.close()
        self._receiver.stop()
        self._thread.join()
        self._repl_link.close()


def events(options: Options, far: Far) -> None:
    count = options.size(3_000_000, 1_000_000, 40_000)
    keys = numbered_keys(numpy.random.default_rng(7).permutation(options.keys))
    values = value_column(options.keys)
    encrypted, plain = (Sender(far, kind, options.keys) for kind in (ENCRYPTED, PLAIN))
    try:
        report(
            "stored events, encrypted",
            *in_turn(
                options.rounds, lambda: encrypted.send(keys, values, count), lambda: plain.send(keys, values, count)
            ),
            "plain connections",
            "70%",
        )
    finally:
        encrypted.close()
        plain.close()


def puts(options: Options, far: Far) -> None:
    calls = options.size(20_000, 5_000, 200)
    keys = numbered_keys(numpy.random.default_rng(7).permutation(options.keys)).tolist()
    encrypted, plain = Caller(far, ENCRYPTED), Caller(far, PLAIN)
    try:
        report(
            "put by a call, and a replica has it",
            *in_turn(options.rounds, lambda: encrypted.put_us(keys, calls), lambda: plain.put_us(keys, calls)),
            "plain connections",
            "150% or less",
            "us",
        )
    finally:
        encrypted.close()
        plain.close()


def main() -> None:
    options = arguments(__doc__)
    assert options.keys <= KEYS
    with tempfile.TemporaryDirectory() as directory:
        far = Far(Path(directory))
        try:
            puts(options, far)
            events(options, far)
        finally:
            far.child.end()


if __name__ == "__main__":
    serve(json.loads(sys.argv[2])) if sys.argv[1:2] == ["--serve"] else main()
