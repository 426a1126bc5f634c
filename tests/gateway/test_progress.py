"""A receiver that hangs is given up, however much its kernel takes; one that works is not, however long a batch
takes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import pywan
from pywan import _core
from pywan.config import attributes as config
from pywan.protocol import gateway
from pywan.testing.waiting import LIMIT_S, eventually
from support.core_sites import TwoSites, name_numbers
from support.machines import RECEIVER, Machine
from support.receivers import Slow
from support.records import BATCH, FRAME_ACK, PONG, REGION, make_batch, make_record, split_frames

PROGRESS = 14


def frame(kind, number=0, payload=b""):
    return _core.pack_frame(kind, payload, number)


class Answers:
    """A thread at the other end of a socket: it reads everything, and answers each read as it is told."""

    def __init__(self, sock, answer):
        self.sock, self.answer = sock, answer
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            while data := self.sock.recv(1 << 16):
                self.sock.sendall(self.answer(data))


@pytest.fixture
def sites():
    return TwoSites()


@pytest.fixture
def quick_to_give_up(monkeypatch):
    monkeypatch.setattr(config, "MIN_SOCKET_READ_TIMEOUT_MS", 300)


@pytest.mark.parametrize(
    "answer",
    [lambda data: b"", lambda data: frame(PONG), lambda data: frame(PROGRESS, 7)],
    ids=["reads-only", "answers-pings", "tells-no-more"],
)
def test_a_receiver_that_reads_and_does_no_work_is_given_up(sites, answer):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Answers(theirs, answer)
        sites.dispatcher.configure(10, -1, receive_timeout_ms=300)
        sites.dispatcher.connected(1_000_000, 64 << 20, 0, 20_000)
        sites.put(*[("k", "v" * 100)] * 1000)
        assert sites.dispatcher.run(ours).startswith("no progress by the receiver for 0.3 s, with ")
        assert sites.dispatcher.is_given_up
        sites.reconnect()
        sites.settle()
    assert len(sites.history.applied) == 1000 and len(sites.queue) == 0


def test_a_receiver_that_tells_of_work_on_a_long_batch_is_waited_for(sites):
    """Its count grows: for three times as long as it may be silent, and then it acknowledges."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        told = [0]
        done = threading.Event()

        def answer(data):
            told[0] += 1
            return b"" if done.is_set() else frame(PROGRESS, told[0])

        Answers(theirs, answer)
        sites.dispatcher.configure(10, -1, receive_timeout_ms=300)
        sites.dispatcher.connected(1_000_000, 64 << 20, 0, 20_000)
        sites.put(("k", "v"))
        ended = []
        runner = threading.Thread(target=lambda: ended.append(sites.dispatcher.run(ours)))
        runner.start()
        eventually(lambda: told[0] > 45)  # A ping every 20 ms: 900 ms at least.
        assert not ended and sites.dispatcher.has_progressed
        done.set()
        runner.join(LIMIT_S)
    assert ended and ended[0].startswith("no progress")


def received_session(*, slow):
    """A receiver's session with one region, and an event source for it."""
    region = _core.RegionCore(f"progress{next(name_numbers)}", _core.Clock(), site=2, stores=True)
    if slow:
        region.set_callback_path(lambda *change: None)
    return region, lambda apply: _core.ReceiverSession(
        _core.SourceMemory(1), _core.ReceiverCounts(), lambda name: region, apply
    )


def test_a_receiver_tells_how_far_it_is_while_it_works_on_a_long_batch():
    """Also with the acknowledgements of those before; and it ends in the middle once nobody waits for it."""
    region, session_with = received_session(slow=True)
    gate = threading.Semaphore(0)
    applied = []

    def apply(core, record, place):
        gate.acquire()
        applied.append(place[1])
        return 0

    session = session_with(apply)
    ours, theirs = socket.socketpair()
    with ours:
        runner = threading.Thread(target=lambda: session.run(theirs, 60_000))
        runner.start()
        small, _ = make_batch((0, 1, 1, 0, [make_record(b"k", region=1)]))
        long, _ = make_batch((0, 2, 1001, 0, [make_record(b"k", region=1)] * 1000))
        ours.sendall(
            frame(REGION, 1, region.name.encode())
            + _core.pack_frame(BATCH, small, 0, 1)
            + _core.pack_frame(BATCH, long, 1, 1000)
        )
        came, stop = b"", threading.Event()

        def let_through():
            while not stop.wait(0.02):
                gate.release()

        feeder = threading.Thread(target=let_through)
        feeder.start()
        try:
            ours.settimeout(LIMIT_S)
            while len([f for f in split_frames(came) if f.type == PROGRESS]) < 2:
                came += ours.recv(32 * 64)
        finally:
            stop.set()
            feeder.join()
        frames = split_frames(came)
        counts = [f.id for f in frames if f.type == PROGRESS]
        assert counts == sorted(set(counts)) and 1 < counts[-1] <= len(applied) + 1 < 1001
        assert [f.id for f in frames if f.type == FRAME_ACK] == [0]
    for _ in range(1001):
        gate.release()
        if not runner.is_alive():
            break
        runner.join(0.01)
    runner.join(LIMIT_S)
    theirs.close()
    assert not runner.is_alive() and len(applied) < 1001


def test_a_frame_that_comes_slowly_is_told_of():
    """On a narrow link a batch may take minutes: its parts are progress."""
    region, session_with = received_session(slow=False)
    session = session_with(None)
    ours, theirs = socket.socketpair()
    with ours:
        runner = threading.Thread(target=lambda: session.run(theirs, 60_000))
        runner.start()
        payload, _ = make_batch((0, 1, 1, 0, [make_record(b"k", b"v" * 100_000, region=1)]))
        whole = frame(REGION, 1, region.name.encode()) + _core.pack_frame(BATCH, payload, 0, 1)
        ours.settimeout(0.02)
        came, at = b"", 0
        while len(came) < 64:
            assert at < len(whole), "the whole frame came before anything was told"
            ours.sendall(whole[at : at + 100])
            at += 100
            with contextlib.suppress(TimeoutError):
                came += ours.recv(64)
        assert [f.type for f in split_frames(came)] == [PROGRESS, PROGRESS]
        ours.settimeout(LIMIT_S)
        ours.sendall(whole[at:])
        ours.recv(64)
    runner.join(LIMIT_S)
    theirs.close()
    assert len(region) == 1


def test_a_hung_receiver_is_given_up_for_another_one(network, quick_to_give_up):
    """Its callback does not return; the lag says that the link is down until the other one works, and nothing
    is lost.
    """
    ny, ln = network.add("ny ln")
    slow = Slow()
    ln.receive()
    ln.region(type="REPLICATE").add_listener(slow)
    sender = ny.send_to(ln, dispatcher_threads=1, socket_read_timeout=500, batch_size=1)
    ny.region(type="REPLICATE")
    eventually(lambda: sender.is_connected)
    hung_at = sender.receiver_location
    ny.data["k"] = 1
    eventually(
        lambda: (
            sender.lag()["cause"].startswith("link down: connection to the receiver at")
            and "no progress" in sender.lag()["cause"]
        )
    )
    with contextlib.closing(pywan.Cache("server_ln2", locators=str(ln.locator.address))) as other:
        other.create_gateway_receiver(start_port=0, end_port=0)
        region = other.create_region("data", type="REPLICATE")
        eventually(lambda: len(sender._core.queue) == 0)
        assert region["k"] == 1 and sender.receiver_location not in (None, hung_at)
        assert sender.lag()["cause"] == "none"
        network.check_ledgers()
        slow.gate.release()


def states_of_threads(pid):
    return {file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_a_stopped_receiver_process_is_given_up_for_another_one(network, tmp_path, quick_to_give_up):
    """SIGSTOP: its kernel goes on to take bytes and connections."""
    ny, ln = network.add("ny ln")
    machine = Machine(tmp_path)
    try:
        machine.server(ln, RECEIVER, type="NORMAL")  # Each member has a region of its own.
        sender = ny.send_to(ln, dispatcher_threads=1, socket_read_timeout=500)
        ny.region(type="REPLICATE")
        eventually(lambda: sender.is_connected)
        ny.data["k"] = 0
        network.settle()
        stopped_at = sender.receiver_location
        pid = machine.running["process_ln"][0]
        os.kill(pid, signal.SIGSTOP)
        # One after the other stops; until then they apply and acknowledge.
        eventually(lambda: states_of_threads(pid) == {"T"})
        for n in range(100):
            ny.data[n] = n
        eventually(lambda: sender.lag()["cause"].startswith("link down"))
        assert sender.queue_size == 100
        with contextlib.closing(pywan.Cache("server_ln2", locators=str(ln.locator.address))) as other:
            other.create_gateway_receiver(start_port=0, end_port=0)
            region = other.create_region("data", type="NORMAL")
            eventually(lambda: len(sender._core.queue) == 0)
            assert len(region) == 100 and sender.receiver_location not in (None, stopped_at)
            network.check_ledgers()
    finally:
        os.kill(machine.running["process_ln"][0], signal.SIGCONT)
        machine.close()


def test_a_dispatchers_new_connection_takes_over_from_the_old_one(network):
    """The old one may not know yet that its link is gone, and work on a long batch for as long: it ends after the event
    in work.
    """
    ny, ln = network.add("ny ln")
    slow = Slow()
    ln.receive()
    ln.region(type="REPLICATE").add_listener(slow)
    sender = ny.send_to(ln, dispatcher_threads=1, batch_size=100, batch_time_interval=-1)
    ny.region(type="REPLICATE")
    eventually(lambda: sender.is_connected)
    sender.pause()
    for n in range(100):
        ny.data[n] = n
    sender.resume()
    eventually(lambda: len(ln.data) == 1)
    hello = gateway.SenderHello(
        site=1,
        remote_site=2,
        member="server_ny",
        sender="ln",
        dispatcher=0,
        numbering=sender._core.outgoing.numbering,
        mount=sender._core.outgoing.mount,
        partitions=sender._core.queue.partitions,
    )
    with socket.create_connection(("127.0.0.1", ln.receiver.port)) as second:
        second.sendall(gateway.encode(hello, _core.FRAME_HELLO))
        answer = second.recv(4096)
        assert b"welcome" in answer, answer
        slow.gate.release()
        eventually(lambda: sender.stats["batches_redistributed"] >= 1)
        assert len(ln.data) < 10
    for _ in range(200):
        slow.gate.release()
    network.settle()
    assert len(ln.data) == 100 and ln.data.applied == 100


def test_the_first_retries_come_at_once_and_later_ones_at_the_configured_interval(network, caplog):
    """A sender whose interval is ten minutes finds a receiver that comes back long before they are over."""
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True)
    sender = ny.send_to(ln, dispatcher_threads=1, retry_interval_ms=600_000)
    ny.region(), ln.region()
    eventually(lambda: sender.is_connected)
    ny.data["a"] = 1
    network.settle()
    ln.proxy.cut()
    eventually(lambda: not sender.is_connected)
    ln.proxy.restore()
    eventually(lambda: sender.is_connected)
    ny.data["b"] = 1
    network.settle()


def test_a_connection_that_stood_for_long_is_retried_at_once_though_nothing_was_sent(network):
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True)
    sender = ny.send_to(ln, dispatcher_threads=1, retry_interval_ms=1600)
    took = []
    for _ in range(8):
        eventually(lambda: sender.is_connected)
        enough = time.monotonic() + 1.7  # Longer than the interval: that is long.
        eventually(lambda enough=enough: time.monotonic() > enough)
        ln.proxy.cut()
        eventually(lambda: not sender.is_connected)
        ln.proxy.restore()
        broke = time.monotonic()
        eventually(lambda: sender.is_connected)
        took.append(time.monotonic() - broke)
    # Doubled each time, each of the last three would be 1.6 s. One of them may be slow on a busy machine.
    assert min(took[-3:]) < 1.4, took
