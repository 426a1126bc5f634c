"""Replication links and calls that a stranger opens in the name of a member, through real ports: the member is asked,
and nobody believes an opening that it does not call its own."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fuzz_core import calls
from fuzz_core.repl_link import bucket_of, changes, entry, region_frame, section
from pywan import _core
from pywan.base.addresses import Address
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError, IncompatibleSystemError, ProtocolError
from pywan.protocol import between_members as wire
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport import opening_questions
from pywan.transport.control import ControlServer, call_once
from pywan.transport.data import receive_exactly
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.own_openings import OwnOpenings
from support.member_pair import BUCKETS, REGION, Pair, now_ms

PROTOCOLS = (wire.REPLICATION, wire.CALLS)
FLOOD = 200
NOT_OWN = "says that it is not its own"


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.second.put("before", 1)
    made.second.put(next(made.keys_led_by(made.one)), "honest")  # So each has called the other.
    made.first.put(next(made.keys_led_by(made.two)), "honest")
    try:
        yield made
    finally:
        made.close()


class Stranger:
    """It knows of the site what a locator shows to everybody, and speaks as the first member to the second."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.me, self.to = pair.one._core.agent.me, pair.two._core.agent.me
        self.site = pair.two._core.agent.site_identity

    def opening(self, word: int) -> wire.Opening:
        return wire.Opening(self.me, self.to, self.site, word, line=wire.LINE_MAX)

    def send(self, protocol: bytes, what: bytes = b"", word: int = 5) -> socket.socket:
        """A connection on which the opening and `what` were sent."""
        sock = socket.create_connection(("127.0.0.1", self.pair.two.port), LIMIT_S)
        sock.sendall(wire.encode_opening(protocol, self.opening(word)) + what)
        return sock

    def open(self, protocol: bytes, what: bytes = b"", word: int = 5) -> None:
        """Raises what the member says, and returns if it takes the connection."""
        with self.send(protocol, what, word) as sock:
            head = receive_exactly(sock, wire.HEAD_BYTES)
            wire.check_answer(receive_exactly(sock, wire.length_of_body(protocol, head)), "the member")
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass

    def frames(self, key: bytes) -> list[bytes]:
        """What a primary sends, and what none would: a put, one with outcome 5, and one with an odd stamp."""
        number = bucket_of(key)
        bucket = self.pair.bucket(number)
        first = self.pair.two._core.sharing._regions[REGION].changelog.log_end(number) + 1
        stamp = now_ms() << 16
        return [
            region_frame(1, REGION, BUCKETS)
            + changes([section([each], first, bucket=number, timeline=bucket.timeline, epoch=bucket.epoch.word)], 1)
            for each in (
                entry(key, b"of a stranger", stamp=stamp),
                entry(key, b"of a stranger", stamp=stamp, outcome=5),
                entry(key, b"of a stranger", stamp=2**64 - 1),
                entry(key, b"of a stranger", stamp=stamp + (7_200_000 << 16)),
            )
        ]


def receivers(pair: Pair) -> list[_core.ReplReceiver]:
    return list(pair.two._core.sharing._replicas._session.receivers)


def key_led_by_one(pair: Pair) -> bytes:
    led = pair.one._core.sharing.led(REGION)
    return next(key for key in (b"k%d" % n for n in range(99)) if bucket_of(key) in led)


def test_a_stranger_in_the_name_of_a_primary_writes_nothing_and_its_replication_link_goes_on(pair: Pair) -> None:
    stranger, key, before = Stranger(pair), key_led_by_one(pair), receivers(pair)
    pair.first.put(key, b"honest")
    for frame in stranger.frames(key) * 3:
        with pytest.raises(IncompatibleSystemError, match=NOT_OWN):
            stranger.open(wire.REPLICATION, frame)
        pair.first.put(key, b"honest again")
        assert pair.second.get(key) == b"honest again"
    assert len(before) == 1 and receivers(pair) == before
    assert pair.second.get(key) == b"honest again"
    pair.one.close()  # What the replica has counts now.
    eventually(lambda: pair.two._core.sharing.describe(REGION).get("primary") == BUCKETS, what="a takeover")
    assert pair.second.get(key) == b"honest again"


def test_a_stranger_in_the_name_of_a_caller_changes_nothing_and_its_calls_go_on(pair: Pair) -> None:
    stranger, server, pool = Stranger(pair), pair.two._core.sharing._calls, pair.one._core.sharing._pool
    key = next(pair.keys_led_by(pair.two)).encode()
    pair.first.put(key, b"honest")
    sessions, lines = dict(server._sessions), pool._lines
    assert sessions
    put = calls.call(calls.REGION, REGION.encode()) + calls.call(
        calls.CHANGE, calls.record(key, b"of a stranger"), bucket=bucket_of(key), caller=9, slot=0, number=1
    )
    for _ in range(10):
        with pytest.raises(IncompatibleSystemError, match=NOT_OWN):
            stranger.open(wire.CALLS, put)
        assert pair.first.get(key) == b"honest"
    assert server._sessions == sessions and pool._lines == lines
    for session in sessions:
        session.stop()  # A later connection of the honest caller is not older than that of the stranger.
    pair.first.put(key, b"honest again")
    assert pair.second.get(key) == b"honest again"


@contextlib.contextmanager
def place(answer: Callable[[dict[str, Any]], dict[str, Any]] | None) -> Iterator[Address]:
    """Where somebody says `answer` to each question. None: somebody listens there, and says nothing."""
    if answer is None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield Address(*listener.getsockname())
    else:
        with ControlServer("127.0.0.1", 0, lambda request, peer: answer(request), name="asked") as server:
            yield Address("127.0.0.1", server.port)


ANSWERS: dict[str, Any] = {
    "no": lambda request: {"is_own": False},
    "nothing": lambda request: {},
    "1": lambda request: {"is_own": 1},
    "yes in words": lambda request: {"is_own": "True"},
    "silent": None,
    "dead": None,
}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["lane", "calls"])
@pytest.mark.parametrize("what", ANSWERS)
def test_without_a_plain_yes_the_opening_is_refused_and_nothing_changed(
    pair: Pair, protocol: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_questions, "QUESTION_TIMEOUT_S", 0.2)
    stranger, repl_links, openings = Stranger(pair), receivers(pair), pair.one._core.sharing._openings
    sessions = dict(pair.two._core.sharing._calls._sessions)
    with place(ANSWERS[what]) as address:
        if what == "dead":
            address = Address("127.0.0.1", 1)
        monkeypatch.setattr(pair.two._core.sharing._questions, "_address_of", lambda member: address)
        word = openings.begin(protocol, stranger.me, stranger.to)  # The real member would say yes.
        with pytest.raises(IncompatibleSystemError, match="own"):
            stranger.open(protocol, word=word)
        openings.end(word)
    assert receivers(pair) == repl_links and pair.two._core.sharing._calls._sessions == sessions
    assert pair.second.get("before") == 1


def test_a_member_knows_its_own_openings_alone_and_only_while_they_are_under_way(pair: Pair) -> None:
    one, openings = pair.one._core.agent.me, pair.one._core.sharing._openings
    two, third = pair.two._core.agent.me, Incarnation("third", 3)

    def ask(word: Any, protocol: bytes = wire.REPLICATION, from_: Incarnation = one, to: Incarnation = two) -> bool:
        claim = wire.Claim(protocol, word, from_, to)
        address = ("127.0.0.1", pair.one.port)
        return wire.is_own(call_once(address, wire.OWNS_OPENING, timeout=LIMIT_S, **wire.claim_request(claim)))

    eventually(lambda: not len(openings), what="that no opening is under way")
    assert not any(ask(word) for word in (1, 5, 2**40, wire.WORD_MAX))
    word = openings.begin(wire.REPLICATION, one, two)
    assert ask(word) and ask(word)
    assert not ask(word, protocol=wire.CALLS)
    assert not ask(word, from_=Incarnation(one.name, one.member_id ^ 1))
    assert not ask(word, to=third)
    assert not ask(word ^ 1 or 1)
    for odd in (0, -1, wire.WORD_MAX + 1, True, 1.0, "1", None, float("inf"), [1]):
        with pytest.raises(ProtocolError, match="word"):
            ask(odd)
    with pytest.raises(ProtocolError, match="protocol"):
        ask(word, protocol=b"PWC1")
    openings.end(word)
    assert not ask(word) and not len(openings)


def test_words_are_drawn_for_each_opening_and_none_is_zero_or_there_twice() -> None:
    draws = iter((0, 7, 7, 0, 8))
    openings, one, two = OwnOpenings(lambda: next(draws)), Incarnation("one", 1), Incarnation("two", 2)
    assert [openings.begin(wire.REPLICATION, one, two) for _ in range(2)] == [7, 8]
    assert len({OwnOpenings().begin(wire.REPLICATION, one, two) for _ in range(100)}) == 100


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def connections() -> int:
    """How many threads serve connections of the members."""
    return sum(each.name.startswith("member ") for each in threading.enumerate())


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["lane", "calls"])
def test_a_flood_in_the_name_of_a_member_leaves_nothing_and_its_own_openings_are_served(
    pair: Pair, protocol: bytes
) -> None:
    stranger, questions = Stranger(pair), pair.two._core.sharing._questions
    peer = pair.one._core.sharing._replicas._peers[stranger.to]
    served, most = connections(), 0

    def flood() -> None:
        nonlocal most
        with contextlib.ExitStack() as stack:
            for _ in range(FLOOD):
                with contextlib.suppress(OSError):
                    stack.enter_context(stranger.send(protocol))
                most = max(most, questions.under_way)
            before = receivers(pair)
            peer._sock.shutdown(socket.SHUT_RDWR)
            eventually(
                lambda: receivers(pair) and receivers(pair) != before, SOON_S, what="the replication link of the member"
            )
            pair.first.put("in the flood", 1)

    flood()
    eventually(lambda: connections() <= served, what="that its threads have ended")
    gc.collect()
    before = resident_bytes()
    flood()
    eventually(lambda: connections() <= served, what="that its threads have ended")
    assert most <= opening_questions.OF_MEMBER_MAX and not questions.under_way
    eventually(lambda: resident_bytes() - before < 8 << 20, what="that the memory is given back")


class Asking:
    """Questions about openings of members whose port holds them up until `go_on`."""

    def __init__(self) -> None:
        self.go_on, self.came = threading.Event(), threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.refused: list[str] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.came.release()
        assert self.go_on.wait(LIMIT_S)
        return wire.claim_reply(True)

    def ask(self, questions: OpeningQuestions, name: str) -> None:
        opening = wire.Opening(Incarnation(name, 1), Incarnation("me", 2), "site", 3)

        def run() -> None:
            try:
                questions.check(wire.REPLICATION, opening, LIMIT_S)
            except ConnectivityError as error:
                self.refused.append(str(error))

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self) -> None:
        self.go_on.set()
        for thread in self.threads:
            thread.join(LIMIT_S)


def test_questions_are_bounded_for_a_member_and_for_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_questions, "QUESTION_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(opening_questions, "OF_MEMBER_MAX", 2)
    monkeypatch.setattr(opening_questions, "WAITING_MAX", 1)
    monkeypatch.setattr(opening_questions, "ALL_MAX", 3)
    asking = Asking()
    with place(asking.answer) as address:
        questions = OpeningQuestions(lambda member: address)
        try:
            for _ in range(2):
                asking.ask(questions, "one")
                assert asking.came.acquire(timeout=LIMIT_S)
            asking.ask(questions, "one")
            eventually(lambda: questions._lines[Incarnation("one", 1)].waiting)
            asking.ask(questions, "one")
            eventually(lambda: asking.refused, what="that the fourth one is refused")
            assert "1 openings wait until member one#1 is asked" in asking.refused[0]
            asking.ask(questions, "two")
            assert asking.came.acquire(timeout=LIMIT_S)
            asking.ask(questions, "third")
            eventually(lambda: len(asking.refused) == 2, what="that a third member is not asked")
            assert "3 members are being asked" in asking.refused[1]
            assert questions.under_way == 3
        finally:
            asking.end()
        assert len(asking.refused) == 2 and not questions.under_way and not questions._lines


def test_who_waits_in_line_is_refused_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_questions, "OF_MEMBER_MAX", 1)
    asking, opening = Asking(), wire.Opening(Incarnation("one", 1), Incarnation("me", 2), "site", 3)
    with place(asking.answer) as address:
        questions = OpeningQuestions(lambda member: address)
        try:
            asking.ask(questions, "one")
            assert asking.came.acquire(timeout=LIMIT_S)
            began = time.monotonic()
            with pytest.raises(ConnectivityError, match="was not asked in time"):
                questions.check(wire.REPLICATION, opening, 0.05)
            assert time.monotonic() - began < opening_questions.QUESTION_TIMEOUT_S
        finally:
            asking.end()
        assert not questions.under_way and not questions._lines
        questions.check(wire.REPLICATION, opening, LIMIT_S)
