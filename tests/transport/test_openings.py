"""Openings of connections: who opens many and finishes none keeps nobody else out, and no want of threads ends
a port.
"""

import contextlib
import select
import socket
import threading

import pytest

import pywan
from pywan import _core, errors
from pywan.base import lines
from pywan.base.addresses import resolve
from pywan.errors import ProtocolError
from pywan.protocol import control as wire
from pywan.protocol.discovery import Timings
from pywan.protocol.gateway import Known, SenderHello, Welcome, encode, encode_known
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport import data, openings
from pywan.transport.control import ControlClient, ControlServer
from pywan.transport.request_memory import MEMORY
from support.strangers import FLOOD, answer, hello


def ask(request, peer):
    return {"name": "m"}


@contextlib.contextmanager
def trickling(socks):
    """A byte on each of them now and then, so that none is silent."""
    stop = threading.Event()

    def trickle():
        for byte in b"D1\1" + bytes(20):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(bytes([byte]), socket.MSG_DONTWAIT)
            if stop.wait(3.0):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for sock in socks:
            sock.close()


def half_open(port, count, source, begin=b"PW"):
    found = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0))
        with contextlib.suppress(OSError):
            sock.sendall(begin)
        found.append(sock)
    return found


def test_a_flood_of_half_open_connections_keeps_no_sender_out(network, many_descriptors):
    """It comes from another address than the sender."""
    ny, ln = network.add("ny ln")
    ln.receive()
    with trickling(half_open(ln.receiver.port, FLOOD, "127.0.0.9")):
        network.connect([("ny", "ln")])
        ny.data["k"] = 1
        network.settle()
        assert ln.data["k"] == 1


def test_a_flood_of_half_open_connections_keeps_no_request_out(network, many_descriptors):
    """A locator's port and a member's, with requests of the same address: what is half open for a second makes room."""
    ny = network.site("ny")
    for port, op in ((ny.locator.port, "known-sites"), (ny.cache.port, "ping")):
        with trickling(half_open(port, FLOOD, "127.0.0.1", b"PWC1")):

            def asked(port=port, op=op):
                with (
                    ControlClient(("127.0.0.1", port), LIMIT_S) as client,
                    contextlib.suppress(errors.ConnectivityError),
                ):
                    return client.call(op)["ok"]

            eventually(asked)


def test_a_port_goes_on_when_no_thread_can_be_started(network, monkeypatch, caplog):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    ports = ln.receiver.port, ln.cache.port, ln.locator.port
    with monkeypatch.context() as patched:
        no_threads(patched, "receiver-", "member server_ln-", "locator locator_ln-")
        for port in ports:
            assert answer(port, hello()) == b""
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == 1
    for port in ports[1:]:
        with ControlClient(("127.0.0.1", port), LIMIT_S) as client:
            assert client.call("ping")["ok"]
    assert "can't start new thread" in caplog.text


def no_threads(patched, *beginnings):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith(beginnings):
            raise RuntimeError("can't start new thread")
        start(thread)

    patched.setattr(threading.Thread, "start", refuse)


def test_a_name_is_asked_for_again_when_no_thread_could_be_started(monkeypatch):
    monkeypatch.delenv("PYWAN_HOSTS", raising=False)
    with monkeypatch.context() as patched:
        no_threads(patched, "pywan-resolve-")
        with pytest.raises(errors.ConnectivityError, match="can't start new thread"):
            resolve("localhost", 5.0)
    assert resolve("localhost", 5.0)


def test_a_locator_goes_on_asking_others_when_no_thread_could_be_started(monkeypatch):
    ln = pywan.Locator("ln", distributed_system_id=2, port=0).start()
    timings = Timings(retry_ms=20, retry_max_ms=50)
    with monkeypatch.context() as patched:
        no_threads(patched, "locator ny-contact")
        ny = pywan.Locator(
            "ny", distributed_system_id=1, port=0, remote_locators=str(ln.address), timings=timings
        ).start()
        assert set(ny.known_sites()) == {1}
    eventually(lambda: set(ny.known_sites()) == {1, 2})
    ny.stop()
    ln.stop()


@pytest.mark.parametrize("whole", [b"", b"PWD1"])
def test_a_byte_now_and_then_does_not_prolong_an_opening(whole):
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def trickle():
        for byte in encode(SenderHello(1, 2, "m", "s", 0, 7, 9, 1), _core.FRAME_HELLO)[len(whole) :]:
            if stop.wait(0.05):
                return
            theirs.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        ours.settimeout(0.3)
        with pytest.raises(errors.ConnectivityError, match=r"no whole message from .* within 0.3 s"):
            data.receive_message(ours, SenderHello, first=whole)
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


def test_positions_that_come_one_by_one_have_one_time_limit():
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def trickle():
        for n in range(100):
            if stop.wait(0.05):
                return
            theirs.sendall(encode_known([Known(n, 1, 1)]))

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        ours.settimeout(0.3)
        with pytest.raises(errors.ConnectivityError, match=r"within 0.3 s"):
            data.receive_known(ours, 100)
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


def opened(port, source="127.0.0.1"):
    """A control connection that has asked once."""
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0))
    sock.sendall(bytes.fromhex("50574331090000006fb5c0670100000081a26f70a470696e67"))
    assert sock.recv(4) == b"PWC1"
    return sock


def test_a_connection_that_asks_nothing_makes_room_for_one_that_does():
    with (
        ControlServer("127.0.0.1", 0, ask, name="test", max_connections=4) as server,
        ControlClient(("127.0.0.1", server.port), LIMIT_S) as first,
    ):
        first.call("ping")
        others = []
        for waiting in (1, 2, 3, 4):  # An answer comes a moment before its connection waits.
            eventually(lambda waiting=waiting: len(server._acceptor._waiting) == waiting)
            others.append(opened(server.port))
        eventually(lambda: not first._is_whole(first._sock))

        def asked():  # It connects again, and another one makes room as soon as it has its answer.
            with contextlib.suppress(errors.ConnectivityError):
                return first.call("ping")["ok"]

        eventually(asked)
        for sock in others:
            sock.close()


def test_a_connection_at_work_keeps_its_place():
    at_work, go_on = threading.Semaphore(0), threading.Event()

    def work(request, peer):
        at_work.release()
        go_on.wait(LIMIT_S)
        return {}

    with ControlServer("127.0.0.1", 0, work, name="test", max_connections=2) as server:
        address = "127.0.0.1", server.port
        replies = []
        threads = [
            threading.Thread(target=lambda: replies.append(ControlClient(address, LIMIT_S).call("ping")))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert at_work.acquire(timeout=LIMIT_S)
        with pytest.raises(errors.ConnectivityError, match="2 connections are open already"):
            ControlClient(address, LIMIT_S).call("ping")
        go_on.set()
        for thread in threads:
            thread.join()
        assert len(replies) == 2


@pytest.fixture
def port():
    """An acceptor with small limits, whose openings end when a byte comes."""

    def serve(connection):
        if connection.sock.recv(1):
            connection.opened()
            connection.sock.sendall(b"!")
            connection.sock.recv(1)

    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = openings.Acceptor(
        listener,
        serve,
        name="test",
        log=openings.logging.getLogger("test"),
        max_openings=6,
        max_openings_of_address=4,
        max_connections=2,
    )
    acceptor.start()
    yield listener.getsockname()[1]
    acceptor.stop()


def is_closed(sock):
    sock.settimeout(LIMIT_S)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_address_has_a_share_of_the_half_open_ones(port):
    greedy = half_open(port, 5, "127.0.0.9", b"")
    assert is_closed(greedy[-1])
    polite = half_open(port, 2, "127.0.0.8", b"") + half_open(port, 1, "127.0.0.7", b"")
    assert is_closed(greedy[0])  # All places are taken: who has most makes room.
    for sock in polite[1:]:
        sock.sendall(b"x")
        assert sock.recv(1) == b"!"
    polite[0].sendall(b"x")
    assert is_closed(polite[0])  # Two are open, both at work.
    for sock in greedy + polite:
        sock.close()


def test_of_ipv6_a_network_is_one_address():
    assert (
        openings.share_of("2001:db8::1")
        == openings.share_of("2001:db8::ffff:2")
        != openings.share_of("2001:db8:0:1::1")
    )
    assert openings.share_of("::ffff:10.0.0.1") != openings.share_of("::ffff:10.0.0.2")


def test_a_flood_of_connections_is_no_flood_of_lines(caplog):
    with ControlServer("127.0.0.1", 0, ask, name="test") as server:
        for _ in range(200):
            assert answer(server.port, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert 0 < len([r for r in caplog.records if "HTTP" in r.getMessage()]) <= lines.LINES_AT_ONCE


def test_a_mistake_of_ours_that_others_can_cause_is_no_flood_of_tracebacks(monkeypatch, caplog):
    def fails(server, connection):
        raise KeyError("what somebody sent")

    monkeypatch.setattr(ControlServer, "_serve", fails)
    with ControlServer("127.0.0.1", 0, ask, name="m") as server:
        for _ in range(3 * lines.LINES_AT_ONCE):
            with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
                assert sock.recv(1) == b""
    told = [each for each in caplog.records if "internal error" in each.getMessage()]
    assert 0 < len(told) <= lines.LINES_AT_ONCE and all(each.exc_info for each in told)


def test_requests_that_are_not_whole_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(MEMORY.arriving, "most", 1 << 20)
    with ControlServer("127.0.0.1", 0, ask, name="test") as server:
        begun = [socket.create_connection(("127.0.0.1", server.port), LIMIT_S) for _ in range(4)]
        head = b"PWC1" + (16 << 20).to_bytes(4, "little") + bytes(8)
        for sock in begun:
            with contextlib.suppress(OSError):
                sock.sendall(head + bytes(400 << 10))
        ended = select.select(begun, [], [], 10)[0]
        assert ended and all(is_closed(sock) for sock in ended)
        with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
            assert client.call("ping")["ok"]
        for sock in begun:
            sock.close()


def test_answers_that_nobody_takes_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(MEMORY.answers, "most", 20 << 20)
    answer = {"bytes": bytes(8 << 20)}
    with ControlServer("127.0.0.1", 0, lambda request, peer: answer, name="test") as server:
        idle = []
        for _ in range(8):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(LIMIT_S)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(wire.encode(1, {"op": "x"}))
            idle.append(sock)
        with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:

            def is_refused():
                try:
                    client.call("x")
                except ProtocolError as error:
                    return "answers that nobody has taken yet take" in str(error)
                return False

            eventually(is_refused)
            for sock in idle:
                sock.close()
            eventually(lambda: not is_refused())
            assert client.call("x")["bytes"] == answer["bytes"]


def test_requests_that_are_worked_on_wait_for_each_other(monkeypatch):
    """Empty maps take a hundred times their bytes once they are unpacked."""
    monkeypatch.setattr(MEMORY.unpacked, "most", 30 << 20)
    inside, go_on, most, count = threading.Lock(), threading.Event(), [0, 0], 200_000

    def handle(request, peer):
        with inside:
            most[1] += 1
            most[0] = max(most)
        go_on.wait(LIMIT_S)
        with inside:
            most[1] -= 1
        return {"values": len(request["values"])}

    with ControlServer("127.0.0.1", 0, handle, name="test") as server:
        answers = []

        def call():
            with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
                answers.append(client.call("x", values=[{}] * count)["values"])

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: most[1] == 1)
        go_on.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert answers == [count] * 4 and most[0] == 1


def test_a_sender_that_takes_no_place_is_told_why(network):
    _ny, ln = network.add("ny ln")
    ln.receive()
    ln.receiver._acceptor._max_connections = 1
    with socket.create_connection(("127.0.0.1", ln.receiver.port), LIMIT_S) as first:
        first.sendall(hello(site=3, remote_site=2))
        first.settimeout(LIMIT_S)
        assert isinstance(data.receive_message(first, Welcome), Welcome)
        assert b"connections are open already" in answer(ln.receiver.port, hello(site=3, remote_site=2, dispatcher=1))
