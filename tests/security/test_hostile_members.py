"""Replication links, calls and questions of takeovers from those who wish harm, through the real port of a member: what
cannot be is refused in words, strangers are not served, and what a connection costs is bounded."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

import pywan
from fuzz_core import calls
from fuzz_core.repl_link import region_frame
from pywan import _core
from pywan.base import versions
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Epoch, Incarnation
from pywan.errors import ConnectivityError, IncompatibleSystemError, ProtocolError, PywanError
from pywan.protocol import between_members as wire
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer, call_once
from pywan.transport.data import receive_exactly
from pywan.transport.openings import Connection
from pywan.transport.own_openings import OwnOpenings
from support.small_members import locator

BUCKETS = 7
STRANGER = Incarnation("stranger", 77)
PROTOCOLS = (wire.REPLICATION, wire.CALLS)


class Pair:
    """Two members that share region "data". Each bucket has a replica at both."""

    def __init__(self, one: pywan.Cache, two: pywan.Cache) -> None:
        self.one, self.two, self.two_cache = one._core, two._core, two
        self.data = one.create_region("data", "PARTITION", total_num_buckets=BUCKETS, redundant_copies=1)
        self.there = two.create_region("data", "PARTITION", total_num_buckets=BUCKETS, redundant_copies=1)
        eventually(self.is_whole, what="two replicas of each bucket")

    def is_whole(self) -> bool:
        """Whether each bucket has its two replicas."""
        return sum(each.sharing.describe("data").get("copies", 0) for each in (self.one, self.two)) == BUCKETS

    @property
    def me(self) -> Incarnation:
        return self.one.agent.me

    @property
    def other(self) -> Incarnation:
        return self.two.agent.me

    def fields(self, **more: Any) -> dict[str, Any]:
        """An opening that the first member takes, but for `more`."""
        opening = {
            "from": list(self.other),
            "to": list(self.me),
            "site": self.one.agent.site_identity,
            "word": 1,
            "version": versions.VERSION,
            "depth": 0,
            "line": 1,
        }
        return {**opening, **more}

    def open_as_other(self, protocol: bytes, **more: Any) -> socket.socket:
        """A connection that the second member knows as its own, as far as the fields say so."""
        openings = self.two.sharing._openings
        word = openings.begin(protocol, self.other, self.me)
        try:
            return self.open(protocol, self.fields(**{"word": word, **more}))
        finally:
            openings.end(word)

    def open(self, protocol: bytes, fields: Any) -> socket.socket:
        """A connection that the first member accepts. It raises what the member says."""
        body = msgpack.packb(fields)
        sock = socket.create_connection(("127.0.0.1", self.one.port), LIMIT_S)
        try:
            sock.sendall(protocol + struct.pack("<I", len(body)) + body)
            head = receive_exactly(sock, wire.HEAD_BYTES)
            wire.check_answer(receive_exactly(sock, wire.length_of_body(protocol, head)), "the member")
            return sock
        except BaseException:
            sock.close()
            raise

    def ask(self, **more: Any) -> dict[str, Any]:
        """Asks the first member about its replicas, as the second one does, but for `more`."""
        fields = {"region": "data", "of": list(self.other), "to": list(self.me), "questions": [], **more}
        return call_once(("127.0.0.1", self.one.port), "adopt-buckets", timeout=LIMIT_S, **fields)

    def check(self) -> None:
        """The members serve each other."""
        if self.two_cache.is_closed:
            return
        for n in range(20):
            self.data.put(f"check {n}", n)
            assert self.there.get(f"check {n}") == n


@pytest.fixture
def pair(caplog: pytest.LogCaptureFixture) -> Iterator[Pair]:
    with (
        locator() as site,
        pywan.Cache("one", locators=str(site.address)) as one,
        pywan.Cache("two", locators=str(site.address)) as two,
    ):
        pair = Pair(one, two)
        yield pair
        pair.check()
        assert not [each for each in caplog.records if each.exc_info], "a traceback"


ODD = (None, True, 1.0, float("inf"), "12", -1, 2**63, 2**64 - 1, [], {}, b"1")


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["lane", "calls"])
def test_an_opening_with_a_field_that_cannot_be_is_refused(
    pair: Pair, protocol: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    name = pair.other.name
    fields: dict[str, tuple[object, ...]] = {
        "version": ODD,
        "depth": ODD,
        "line": ODD,
        "word": (*ODD, 0),
        "site": (None, 7, "s" * 65, b"site"),
        "from": (*ODD, [name], [name, "1"], [name, 0], [name, True], [name, 2**32], [name, float("inf")], ["../x", 1]),
        "to": (*ODD, [name, 1, 1], [7, 1]),
    }
    with caplog.at_level(logging.WARNING):
        for field, values in fields.items():
            for value in values:
                with pytest.raises((ConnectivityError, IncompatibleSystemError, ProtocolError)):
                    pair.open(protocol, pair.fields(**{field: value}))
        for body in ([], 7, "x", {"from": 1}):
            with pytest.raises((ConnectivityError, IncompatibleSystemError, ProtocolError)):
                pair.open(protocol, body)
    assert any("says that it speaks version None" in each.message for each in caplog.records)
    assert len([each for each in caplog.records if "127.0.0.1" in each.message]) <= 40, "the log is flooded"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["lane", "calls"])
def test_who_is_not_in_the_view_is_not_served(pair: Pair, protocol: bytes) -> None:
    for who in (STRANGER, Incarnation(pair.other.name, pair.other.member_id ^ 1)):
        with pytest.raises(IncompatibleSystemError, match="is not among the members that member one"):
            pair.open(protocol, pair.fields(**{"from": list(who)}))
    pair.open_as_other(protocol, depth=4).close()  # The honest member uses no such depth.


def test_a_replication_link_takes_the_place_of_an_earlier_one_of_the_same_member(pair: Pair) -> None:
    with contextlib.ExitStack() as stack:
        repl_links = [stack.enter_context(pair.open_as_other(wire.REPLICATION)) for _ in range(20)]
        for repl_link in repl_links[:-1]:
            with contextlib.suppress(ConnectionResetError):
                while repl_link.recv(4096):
                    pass
        of_it = [each for each in pair.one.sharing._replicas._session.receivers.values() if each == pair.other]
        assert len(of_it) <= 2  # The honest one may have come back, before the one in whose place it is has ended.


def epochs(pair: Pair) -> list[Epoch]:
    return [bucket.epoch for _, bucket in sorted(pair.one.sharing.followed().items())]


def led_by(member: Any) -> list[int]:
    return [number for number in range(BUCKETS) if member.sharing.followed()["data", number].primary == member.agent.me]


@pytest.mark.parametrize("asker", ["other", "stranger"])
def test_a_question_about_an_epoch_that_the_coordinator_never_gave_ends_no_takeover(pair: Pair, asker: str) -> None:
    before, who = epochs(pair), pair.other if asker == "other" else STRANGER
    newest = max(before)
    for epoch in ([1, 2**32 - 1], [2**31 - 1, 2**32 - 1], [newest.controller_epoch, newest.number + 1], [*newest]):
        questions = [[number, epoch, 0] for number in range(BUCKETS)]
        reply = pair.ask(of=list(who), questions=questions)
        assert [answer[0] for answer in reply["answers"] if answer[0] not in led_by(pair.two)] == []
    assert epochs(pair) == before
    pair.check()
    pair.two_cache.close()
    eventually(lambda: len(led_by(pair.one)) == BUCKETS, what="the takeover of all buckets")
    eventually(lambda: pair.one.sharing.describe("data").get("primary", 0) == BUCKETS, what="primaries")
    assert pair.data.get("check 3") == 3


def test_questions_that_cannot_be_are_refused_in_words(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    before, epoch = epochs(pair), list(epochs(pair)[0])
    odd = (*ODD, [[]], [{}], "x", 2**64)
    with caplog.at_level(logging.WARNING):
        for value in odd:
            for question in (
                [value, epoch, 0],
                [0, value, 0],
                [0, [value, 1], 0],
                [0, [1, value], 0],
                [0, epoch, value],
            ):
                with pytest.raises(PywanError):
                    pair.ask(questions=[question])
            for field in ("of", "to", "region", "questions"):
                is_possible = (field, value) in (("region", "12"), ("region", "x"), ("questions", []))
                if not is_possible:
                    with pytest.raises(PywanError):
                        pair.ask(**{"questions": [[0, epoch, 0]], field: value})
        with pytest.raises(PywanError, match="is there twice"):
            pair.ask(questions=[[0, epoch, 0], [0, epoch, 0]])
    assert epochs(pair) == before
    assert len([each for each in caplog.records if "127.0.0.1" in each.message]) <= 40, "the log is flooded"


class LyingPrimary:
    """It is asked as the primary of all buckets of region "r", and says what it likes."""

    def __init__(self) -> None:
        self.me = Incarnation("liar", 5)
        self.says: dict[str, Any] = {}
        self.port = ControlServer(
            "127.0.0.1", 0, lambda request, peer: {}, name="liar", other_protocols={wire.CALLS: self.serve}
        ).start()

    def serve(self, connection: Connection, first: bytes) -> None:
        sock = connection.sock
        head = receive_exactly(sock, wire.HEAD_BYTES, first)
        receive_exactly(sock, wire.length_of_body(wire.CALLS, head))
        sock.sendall(wire.encode_answer(wire.CALLS))
        with contextlib.suppress(OSError, PywanError):
            while True:
                fields = calls.CALL.unpack(receive_exactly(sock, calls.CALL.size))
                kind, length, call = fields[1], fields[5], fields[7]
                receive_exactly(sock, length + -length % 8)
                if kind != calls.REGION:
                    sock.sendall(self.answer(call, **self.says))

    def answer(
        self, call: int, status: int = 0, outcome: int = 0, number: int = 0, done: int = 0, payload: bytes = b""
    ) -> bytes:
        fields = [calls.MAGIC, calls.ANSWER, status, outcome, 3, len(payload), 0, call, 0, number, done]
        fields[6] = _core.crc32c(calls.ANSWER_HEAD.pack(*fields) + payload)
        return calls.ANSWER_HEAD.pack(*fields) + calls.padded(payload)


@pytest.fixture
def liar() -> Iterator[tuple[LyingPrimary, Route]]:
    liar, me = LyingPrimary(), Incarnation("me", 6)
    region = _core.RegionCore("r", _core.Clock(), site=1, member=me.member_id, buckets=BUCKETS)
    table, pool = BucketTable("r", BUCKETS), CallPool(me, "site", OwnOpenings())
    table.set_primaries({n: KnownPrimary(liar.me, "127.0.0.1", liar.port.port, 1) for n in range(BUCKETS)})
    try:
        yield liar, Route(region, table, pool, timeout_s=0.5)
    finally:
        pool.close()
        liar.port.stop()


MOST = 2**64 - 1


@pytest.mark.parametrize(
    "says",
    [
        {"number": MOST - 1},
        {"number": 2**63, "done": MOST},
        {"number": 7, "done": MOST},
        {"outcome": 255},
        {"status": 255},
        {"status": 1, "payload": msgpack.packb(["x", 1, "127.0.0.1", 1, MOST])},
        {"status": 1, "number": MOST, "payload": msgpack.packb(["x", 1, "127.0.0.1", 1, 2**63 - 1])},
        {"status": 2, "payload": b"[BatchError] words"},
        {"status": 2, "payload": b"[PywanError.__init__] \xff"},
        {"status": 3, "number": MOST, "payload": b"\0" * 8},
        {"payload": b"\xff" * 64},
    ],
    ids=repr,
)
def test_a_lying_primary_gives_its_callers_no_errors_but_those_of_pywan(
    liar: tuple[LyingPrimary, Route], says: dict[str, Any]
) -> None:
    lying, route = liar
    lying.says = says
    for call in (
        route.count,
        route.clear,
        lambda: route.read("k"),
        lambda: list(route.scan_keys()),
        lambda: list(route.items()),
        lambda: route.change(_core.UPDATE, "k", 1, None, (6, 1, 1)),
        lambda: route.change(_core.DESTROY, "k", None, None, (6, 1, 2)),
        lambda: route.put_all({"a": 1}.items()),
        lambda: route.remove_all(["a"]),
    ):
        try:
            result = call()
        except PywanError:
            continue
        assert not isinstance(result, int) or 0 <= result <= BUCKETS << 40


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["lane", "calls"])
def test_a_hundred_openings_of_strangers_leave_no_memory_behind(pair: Pair, protocol: bytes) -> None:
    def open_all() -> None:
        with contextlib.ExitStack() as stack:
            body = msgpack.packb(pair.fields(**{"from": list(STRANGER)}))
            for _ in range(100):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", pair.one.port), LIMIT_S))
                sock.sendall(protocol + struct.pack("<I", len(body)) + body + region_frame(65535, "data"))
                stack.callback(sock.close)

    open_all()
    before = resident_bytes()
    open_all()
    eventually(lambda: resident_bytes() - before < 8 << 20, what="that the memory is given back")


def test_a_connection_that_says_little_costs_little() -> None:
    """A replication link, and a connection for calls, whose other end names one region, of the highest number, and
    nothing else."""
    name = b"data"
    call = calls.call(calls.REGION, name, region=65535)
    receiver = _core.ReplReceiver({}.get, 60_000)
    for said, make in (
        (b"", lambda sock: receiver.open_session().run(sock)),
        (region_frame(65535, "data"), lambda sock: receiver.open_session().run(sock)),
        (call, lambda sock: _core.CallSession({}.get).run(sock)),
    ):
        before, here, there, threads = resident_bytes(), [], [], []
        for _ in range(100):
            near, far = socket.socketpair()
            here.append(near)
            there.append(far)
            near.sendall(said)
            threads.append(threading.Thread(target=make, args=(far,)))
            threads[-1].start()
        eventually(lambda there=there: not any(unread(each) for each in there), what="that all was read")
        grown = resident_bytes() - before
        for near in here:
            near.close()
        for thread in threads:
            thread.join(LIMIT_S)
        for far in there:
            far.close()
        assert grown < 100 * (200 << 10), f"{grown / 1e5:,.0f} KB for {len(said)} bytes"


def unread(sock: socket.socket) -> int:
    """How many bytes lie there that nobody has read."""
    count = bytearray(4)
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)
