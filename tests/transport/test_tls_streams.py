"""The compiled path over encrypted connections: events, rows, replication links and calls arrive whole, in whatever
pieces their encrypted bytes come, and a connection that breaks says why."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import select
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan import _core
from pywan.calls.route import Route
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.link import Link
from pywan.transport.sockets import shut
from support.made_certificates import contexts, new_options
from support.records import ERROR, PING
from support.repl_pair import Pair

BUCKETS = 13
MIB = 1 << 20
SMALL = {b"small-%d" % n: b"value of %d" % n for n in range(2000)}
LARGE = {b"large-%d" % n: random.Random(n).randbytes(MIB + n) for n in range(4)}
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_names = itertools.count()


class Cutter:
    """Forwards what two sockets say, in pieces of random lengths."""

    def __init__(self, near: socket.socket, far: socket.socket, seed: int) -> None:
        self._ends = near, far
        self._threads = [
            threading.Thread(target=self._forward, args=(*ends, random.Random(seed + n)))
            for n, ends in enumerate((self._ends, self._ends[::-1]))
        ]
        for each in self._threads:
            each.start()

    def _forward(self, from_: socket.socket, to: socket.socket, draws: random.Random) -> None:
        with contextlib.suppress(OSError):
            while data := from_.recv(draws.choice((1, 3, 5, 6, 100, 5000, 16401, 65536))):
                to.sendall(data)
        for each in self._ends:
            shut(each)

    def close(self) -> None:
        for each in self._threads:
            each.join(LIMIT_S)
            assert not each.is_alive()
        for end in self._ends:
            end.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), LIMIT_S)
        far, _ = listener.accept()
    for each in (near, far):
        each.settimeout(LIMIT_S)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class Connections:
    """Makes encrypted connections of one version, and closes them."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext], *, is_cut: bool) -> None:
        self._contexts, self._is_cut = contexts, is_cut
        self._made: list[Link] = []
        self._cutters: list[Cutter] = []

    def open(self) -> tuple[Link, Link]:
        """Returns the end that connected, and the other one."""
        near, far = tcp_pair()
        if self._is_cut:
            between, far_between = far, None
            far_between, far = tcp_pair()
            self._cutters.append(Cutter(between, far_between, len(self._cutters)))
        ends = Link.of(near), Link.of(far)
        self._made += ends
        shaking = threading.Thread(target=ends[1].encrypt, args=(self._contexts[1], None))
        shaking.start()
        ends[0].encrypt(self._contexts[0], "localhost")
        shaking.join(LIMIT_S)
        assert all(each.tls is not None for each in ends)
        for each in ends:
            each.settimeout(None)
        return ends

    def close(self) -> None:
        for each in self._made:
            shut(each)
        for cutter in self._cutters:
            cutter.close()
        for each in self._made:
            each.close()


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return new_options(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["1.2", "1.3", "1.3 in pieces"])
def connections(request: pytest.FixtureRequest, mine: Any) -> Iterator[Connections]:
    version, _, pieces = request.param.partition(" ")
    made = Connections(contexts(mine, VERSIONS[version]), is_cut=bool(pieces))
    yield made
    made.close()


@pytest.fixture
def whole(mine: Any) -> Iterator[Connections]:
    """Connections of the newest version, which nobody cuts into pieces."""
    made = Connections(contexts(mine), is_cut=False)
    yield made
    made.close()


class Run:
    """A thread that runs one end of a connection."""

    def __init__(self, work: Callable[..., str], *arguments: Any) -> None:
        self.ended: list[str] = []
        self._thread = threading.Thread(target=lambda: self.ended.append(work(*arguments)))
        self._thread.start()

    def end(self) -> str:
        self._thread.join(LIMIT_S)
        assert self.ended, "it has not ended"
        return self.ended[0]


class Sites:
    """A region whose events go to a region of another site."""

    def __init__(self) -> None:
        name = f"tls-{next(_names)}"
        self.queue = _core.EventQueue("ln", remote_site=2)
        self.queue.running = True
        self.near = _core.RegionCore(name, _core.Clock(), site=1)
        self.near.attach([self.queue])
        self.far = _core.RegionCore(name, _core.Clock(), site=2)
        self.memory, self.counts = _core.SourceMemory(1), _core.ReceiverCounts()
        self.dispatcher = _core.DispatcherSession(self.queue, 0, _core.EventQueue("parked", partitions=8))
        self.dispatcher.configure(100, 1)

    def connect(self, near: Link, far: Link) -> tuple[Run, Run]:
        self.dispatcher.connected(1_000_000, 64 << 20)
        self.receiver = _core.ReceiverSession(self.memory, self.counts, {self.far.name: self.far}.get, None)
        return Run(self.receiver.run, far, 0), Run(self.dispatcher.run, near)

    def put(self, entries: dict[bytes, bytes]) -> None:
        for key, value in entries.items():
            self.near.put(key, value)

    def has(self, entries: dict[bytes, bytes]) -> bool:
        return len(self.queue) == 0 and all(self.far.get(key) == value for key, value in entries.items())

    def close(self) -> None:
        self.near.attach([])


@pytest.fixture
def sites() -> Iterator[Sites]:
    made = Sites()
    yield made
    made.close()


# Events


def test_events_small_and_large_arrive_at_another_site(sites, connections):
    receiving, dispatching = sites.connect(*connections.open())
    sites.put(SMALL | LARGE)
    eventually(lambda: sites.has(SMALL | LARGE))
    sites.dispatcher.stop()
    sites.receiver.stop()
    assert (receiving.end(), dispatching.end()) == ("stopped", "stopped")


def test_events_go_on_over_the_next_connection_when_one_is_cut(sites, whole):
    near, far = whole.open()
    runs = sites.connect(near, far)
    sites.put(SMALL)
    eventually(lambda: sites.counts.counts()["events_received"] > 0)
    far.shutdown(socket.SHUT_RDWR)  # Nobody says that nothing more comes.
    assert {run.end() for run in runs} <= {"closed", "the receiver closed the connection", BROKE}
    sites.dispatcher.disconnected()
    runs = sites.connect(*whole.open())
    sites.put(LARGE)
    eventually(lambda: sites.has(SMALL | LARGE))
    sites.dispatcher.stop()
    sites.receiver.stop()
    assert [run.end() for run in runs] == ["stopped", "stopped"]


BROKE = "the connection to the receiver broke"


def test_a_session_ends_when_the_other_end_says_that_nothing_more_comes(sites, whole):
    """It says so in the encryption, and leaves the connection open."""
    near, far = whole.open()
    sites.dispatcher.connected(1_000_000, 64 << 20)
    dispatching = Run(sites.dispatcher.run, near)
    assert far.tls is not None
    with pytest.raises(ssl.SSLWantReadError):
        far.tls.object.unwrap()
    socket.socket.sendall(far, far.tls.outgoing.read())
    assert dispatching.end() == "the receiver closed the connection"


def test_bytes_that_were_changed_on_their_way_break_the_connection_in_words(sites, whole):
    near, far = whole.open()
    sites.dispatcher.connected(1_000_000, 64 << 20)
    dispatching = Run(sites.dispatcher.run, near)
    socket.socket.sendall(far, b"\x17\x03\x03" + struct.pack(">H", 100) + bytes(100))
    assert dispatching.end().startswith("the encrypted connection broke: ")
    with pytest.raises(ssl.SSLError):  # This end is told, in TLS.
        far.recv(1)


def test_bytes_that_came_with_the_opening_are_taken_first(sites, whole):
    """A sender may say more at once than the receiver's opening reads. Nothing more comes after that."""
    near, far = whole.open()
    near.sendall(b"opening" + _core.pack_frame(ERROR, b""))  # A frame that no sender sends.
    assert far.recv(7) == b"opening"
    receiver = _core.ReceiverSession(sites.memory, sites.counts, {}.get, None)
    assert receiver.run(far, 0) == f"frame of type {ERROR} from a sender"


def libssl() -> ctypes.CDLL:
    return ctypes.CDLL("libssl.so.3", use_errno=False)


def update_keys(link: Link) -> None:
    """Changes the key for what this end sends, and asks the other end to do so too. Python's ssl cannot say that."""
    assert link.tls is not None
    # An _ssl._SSLSocket has an object, its type, a reference, and then the SSL of the library.
    object_: Any = link.tls.object
    pointer = ctypes.c_void_p.from_address(id(object_._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p))
    library = libssl()
    library.SSL_get_version.restype = ctypes.c_char_p
    if library.SSL_get_version(pointer) != b"TLSv1.3":
        pytest.skip("the objects of this Python's ssl are laid out in another way")
    assert library.SSL_key_update(pointer, 1) == 1


def test_events_go_on_when_the_keys_change(sites, whole):
    near, far = whole.open()
    runs = sites.connect(near, far)
    sites.put(SMALL)
    eventually(lambda: sites.has(SMALL))
    for link in (near, far, near):
        update_keys(link)  # Before the next bytes leave.
        sites.put(LARGE)
        more = {b"after-%d" % next(_names): b"the keys changed"}
        sites.put(more)
        eventually(lambda more=more: sites.has(LARGE | more))
    sites.dispatcher.stop()
    sites.receiver.stop()
    assert [run.end() for run in runs] == ["stopped", "stopped"]


def test_what_a_session_left_on_its_way_leaves_before_what_its_owner_says(whole):
    """The stage's last frames have no room on the way when it is done. The owner of the connection goes on."""
    near, far = whole.open()
    stage = _core.RowStage(None)
    for each in (near, far):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    frames = 100_000
    for step in range(1, frames + 1):
        stage.tell_progress(step)
    near.sendall(_core.pack_frame(_core.FRAME_COMMIT, b"", 0))
    staging = Run(stage.run, far, 0)
    received = bytearray()

    def receive() -> str:
        while data := near.recv(65536):
            received.extend(data)
        return "closed"

    eventually(lambda: not select.select([], [far], [], 0)[1], what="that the connection is full")
    stage.stop()
    assert staging.end() in ("done", "stopped")
    receiving = Run(receive)
    far.sendall(stage.data_to_send() + b"the last words")
    far.shutdown(socket.SHUT_WR)
    assert receiving.end() == "closed"
    said = b"".join(_core.pack_frame(_core.FRAME_PROGRESS, b"", step) for step in range(1, frames + 1))
    assert bytes(received) == said + b"the last words"


# Rows


def test_rows_of_a_task_arrive_and_are_answered(connections):
    near, far = connections.open()
    region = _core.RegionCore(f"rows-{next(_names)}", _core.Clock(), site=1)
    stage, sender = _core.RowStage(None), _core.RowSender(near)

    def serve() -> str:
        outcome = stage.run(far, 0)
        assert stage.apply(region, LIMIT_S)
        far.sendall(_core.pack_frame(_core.FRAME_COMMITTED, b"all"))
        return outcome

    serving = Run(serve)
    sender.put_columns([*SMALL, *LARGE], [*SMALL.values(), *LARGE.values()])
    for _ in range(20):
        sender.put_columns([*SMALL], [*SMALL.values()])
    sender.commit()
    assert serving.end() == "done" and sender.answer.endswith(b"all")
    assert stage.rows == sender.rows == len(LARGE) + 21 * len(SMALL)
    assert all(region.get(key) == value for key, value in (SMALL | LARGE).items())


class Interrupt(BaseException):
    """What the handler of a signal raises."""


def test_what_a_signals_handler_raises_in_the_middle_of_rows_is_raised(whole):
    near, far = whole.open()
    stage, sender = _core.RowStage(None), _core.RowSender(near)
    staging = Run(stage.run, far, 0)
    came = []

    def interrupt(*_: object) -> None:
        came.append(1)
        raise Interrupt

    def send() -> None:
        try:
            while True:
                sender.put_columns([*LARGE], [*LARGE.values()])
        except ConnectivityError:
            while True:  # The exception comes where Python code runs.
                next(_names)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupt):
            send()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) == 1
    near.shutdown(socket.SHUT_RDWR)
    assert staging.end() == "closed"


# Replication links


class EncryptedPair(Pair):
    """Two members with a replication link between them, over encrypted connections."""

    def __init__(self, connections: Connections, **roles: Any) -> None:
        self._connections = connections
        super().__init__(**roles)

    def connect(self) -> None:
        ends = self._connections.open()
        self.sockets += ends
        for end, link in zip((self.sender, self.receiver), ends, strict=True):
            thread = threading.Thread(target=self.run, args=(end, link))
            thread.start()
            self.threads.append(thread)

    def run(self, end: _core.ReplSender | _core.ReplReceiver, sock: socket.socket) -> None:
        self.ends.append(end.run_over_socket(sock))
        shut(sock)

    def cut(self) -> None:
        for sock in self.sockets:
            shut(sock)
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        self.threads, self.sockets = [], []


def test_replicas_get_small_and_large_changes_over_a_replication_link_that_is_cut(connections):
    pair = EncryptedPair(connections)
    try:
        for entries in (SMALL, LARGE):
            pair.connect()
            for key, value in entries.items():
                pair.here.core.put(key, value)
            eventually(pair.is_even)
            pair.cut()
        pair.connect()
        pair.here.core.put(b"after", b"the cuts")
        eventually(pair.is_even)
        pair.assert_same()
    finally:
        pair.close()


# Calls


class Pool:
    """The one connection of a member that calls another one."""

    is_closed = False

    def __init__(self, line: _core.CallLine) -> None:
        self.me, self._line = Incarnation("near", 1), line
        self.slots = _core.CallSlots(self.me.member_id)

    def line(self, *where: object) -> _core.CallLine:
        if self._line.is_broken:
            raise ConnectivityError(self._line.reason)
        return self._line


class Caller:
    """A member that asks another one, over one encrypted connection."""

    def __init__(self, connections: Connections, timeout_s: float = LIMIT_S) -> None:
        self.near, self.far = connections.open()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        self.line = _core.CallLine(self.near)
        name = f"calls-{next(_names)}"
        self.region = _core.RegionCore(name, _core.Clock(), site=1, member=2, buckets=BUCKETS)
        table = BucketTable(name, BUCKETS)
        table.set_primaries(dict.fromkeys(range(BUCKETS), KnownPrimary(Incarnation("far", 2), "127.0.0.1", 1, 1)))
        self._mine = _core.RegionCore(name, _core.Clock(), site=1, member=1, buckets=BUCKETS)
        self._route = Route(self._mine, table, Pool(self.line), timeout_s=timeout_s)
        self.session = _core.CallSession({name: self.region}.get)
        self.serving = Run(self.session.run, self.far)

    def put(self, key: bytes, value: bytes) -> None:
        self._route.change(_core.UPDATE, key, value, None, (1, threading.get_ident() % 1000 + 1, next(_names) + 1))

    def get(self, key: bytes) -> Any:
        _, form, data = self._route.read(key)
        return None if data is None else _core.decode_object(form, data)

    def close(self) -> None:
        self.line.close()
        self.session.stop()
        self.serving.end()


def test_calls_carry_small_and_large_values(connections):
    caller = Caller(connections)
    try:
        for key, value in (dict(itertools.islice(SMALL.items(), 50)) | LARGE).items():
            caller.put(key, value)
            assert caller.get(key) == value
    finally:
        caller.close()


def test_threads_call_over_one_line_at_once(connections):
    """One thread writes while another one reads."""
    caller, wrong = Caller(connections), []

    def call(number: int) -> str:
        draws = random.Random(number)
        for n in range(30):
            key, value = b"%d-%d" % (number, n), draws.randbytes(draws.choice((10, 1000, 100_000, 700_000)))
            caller.put(key, value)
            if caller.get(key) != value:
                wrong.append(key)
        return "done"

    try:
        running = [Run(call, number) for number in range(4)]
        assert [each.end() for each in running] == ["done"] * 4 and not wrong
    finally:
        caller.close()


def test_a_call_over_a_line_that_is_cut_says_so(whole):
    caller = Caller(whole, timeout_s=0.5)
    try:
        caller.put(b"k", b"v")
        caller.far.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectivityError):
            caller.put(b"k", b"w")
        eventually(lambda: caller.line.is_broken)
        assert caller.line.reason in ("the other end closed it, or is gone", "it broke while a call was being sent")
    finally:
        caller.close()


# Memory


def test_a_connection_at_rest_costs_little(sites, whole):
    """Encrypted connections hold no chunks of their own when all has left."""
    before, runs, ends = resident_bytes(), [], []
    for _ in range(20):
        receiver = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), {}.get, None)
        near, far = whole.open()
        near.sendall(_core.pack_frame(PING, b""))
        runs.append(Run(receiver.run, far, 0))
        ends.append(near)
    for near in ends:
        assert near.recv(4) == b"PWD1"
    assert resident_bytes() - before < 20 * (300 << 10)
    for near in ends:
        near.shutdown(socket.SHUT_RDWR)
    assert {run.end() for run in runs} == {"closed"}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
