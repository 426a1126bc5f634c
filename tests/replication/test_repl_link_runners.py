"""Who runs a replication link: a thread that waits for its change does it itself when nothing is on its way, and the
replication link's thread does otherwise."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pywan import _core
from pywan.errors import ConnectivityError
from pywan.testing.waiting import LIMIT_S, eventually
from support.repl_pair import BUCKETS, Pair, Route, call_change, key_of


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def begin_put(pair: Pair, key: bytes, value: bytes) -> threading.Thread:
    putter = threading.Thread(target=pair.here.core.put, args=(key, value))
    putter.start()
    return putter


def end(thread: threading.Thread) -> None:
    thread.join(LIMIT_S)
    assert not thread.is_alive()


class ByHand:
    """The other end of a replication link, whose bytes go no further than the test lets them."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        near, self.far = socket.socketpair()
        pair.sockets += (near, self.far)
        self.repl_link = threading.Thread(target=pair.run, args=(pair.sender, near))
        self.repl_link.start()
        pair.threads.append(self.repl_link)
        self.far.setblocking(False)
        self.session = pair.receiver.open_session()

    def pump(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.session.receive_data(self.far.recv(1 << 20), _core.monotonic_us())
        if data := self.session.data_to_send(_core.monotonic_us()):
            self.far.sendall(data)

    def pump_until(self, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            self.pump()
            return condition()

        eventually(look)


def test_a_put_into_a_link_at_rest_is_sent_by_its_own_thread_and_the_link_rests_again(pair):
    pair.connect()
    for n in range(200):
        eventually(lambda: pair.sender.rests)
        pair.here.core.put(b"k%d" % n, b"v%d" % n)
    # In between the replication link's own thread tells what counts, and asks for promises.
    assert pair.sender.session.runs_beside > 50
    eventually(pair.is_even)
    pair.assert_same()


def test_a_change_that_another_thread_makes_meanwhile_leaves_too(pair):
    pair.connect()
    putters = []
    for n in range(300):
        eventually(lambda: pair.sender.rests)
        putters = [begin_put(pair, key_of(bucket, n % 7), b"%d" % n) for bucket in range(3)]
        for putter in putters:
            end(putter)
    eventually(pair.is_even)
    pair.assert_same()


def test_a_change_that_nobody_waits_for_wakes_the_link_at_rest(pair):
    pair.connect()
    eventually(lambda: pair.sender.rests)
    before = pair.sender.session.runs_beside
    call_change(pair.here.core, key_of(0), b"v", _core.UPDATE, 1)
    eventually(pair.is_even)
    assert pair.sender.session.runs_beside == before
    pair.assert_same()


def begin_put_that_runs_the_link(pair: Pair, by_hand: ByHand) -> threading.Thread:
    """A put whose thread runs the replication link now, and gets no answer."""
    while True:
        by_hand.pump_until(lambda: pair.sender.rests)
        before = pair.sender.session.runs_beside
        putter = begin_put(pair, key_of(0), b"v")
        eventually(lambda: not pair.sender.rests)
        if pair.sender.session.runs_beside > before:
            return putter
        by_hand.pump_until(
            lambda putter=putter: not putter.is_alive()
        )  # The replication link's thread was telling what counts.


def test_a_connection_that_breaks_while_a_putting_thread_runs_the_link_ends_and_the_next_one_has_the_change(pair):
    by_hand = ByHand(pair)
    putter = begin_put_that_runs_the_link(pair, by_hand)
    by_hand.far.shutdown(socket.SHUT_RDWR)
    end(by_hand.repl_link)
    assert pair.ends[-1] != "stopped"
    pair.cut()
    assert putter.is_alive()
    pair.connect()
    end(putter)
    eventually(pair.is_even)
    pair.assert_same()


def test_a_link_ends_soon_after_stop_while_a_putting_thread_runs_it(pair):
    by_hand = ByHand(pair)
    putter = begin_put_that_runs_the_link(pair, by_hand)
    pair.sender.stop()
    end(by_hand.repl_link)
    assert pair.ends[-1] == "stopped"
    for bucket in range(BUCKETS):
        pair.here.changelog.set_replicas(bucket, [])  # Nobody is waited for any more.
    end(putter)


def test_a_putting_thread_whose_answer_does_not_come_leaves_the_link_to_the_links_thread(pair):
    by_hand = ByHand(pair)
    putter = begin_put_that_runs_the_link(pair, by_hand)
    others = [begin_put(pair, key_of(1), b"w"), begin_put(pair, key_of(2), b"w")]
    by_hand.pump_until(lambda: not any(each.is_alive() for each in [putter, *others]))
    by_hand.pump_until(pair.is_even)
    pair.assert_same()


def test_a_put_ends_at_its_deadline_while_its_thread_runs_the_link(monkeypatch):
    monkeypatch.setattr(Route, "limit_us", 20_000)
    took = []
    for _ in range(5):
        with contextlib.closing(Pair()) as pair:
            by_hand = ByHand(pair)
            by_hand.pump_until(lambda pair=pair: pair.sender.rests)
            began = time.monotonic()
            with pytest.raises(ConnectivityError, match="not all replicas"):
                pair.here.core.put(key_of(0), b"v")
            took.append(time.monotonic() - began)
    assert 0.02 <= min(took) < 0.1
