"""The fault proxy does to a connection exactly what it is told."""

import contextlib
import socket
import threading
import time

import pytest

from pywan.errors import ConfigurationError, IllegalStateError
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport import sockets
from support.ports import free_port


class Peer:
    """A target that keeps what it gets, and echoes it unless told not to."""

    def __init__(self, echo=True):
        self.echo, self.received, self.ends = echo, bytearray(), []
        self._listener = sockets.listen("127.0.0.1", 0)
        self.address = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock):
        with sock:
            try:
                while data := sock.recv(1 << 20):
                    self.received += data
                    if self.echo:
                        sock.sendall(data)
                self.ends.append("end")
            except OSError as error:
                self.ends.append(type(error).__name__)

    def close(self):
        sockets.shut(self._listener)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


@pytest.fixture
def peer():
    before = set(threading.enumerate())
    peer = Peer()
    yield peer
    peer.close()
    assert set(threading.enumerate()) <= before


@pytest.fixture
def proxy(peer):
    with FaultProxy(peer.address) as proxy:
        yield proxy


def connect(proxy):
    return sockets.connect(proxy.address, 10)


def read(sock, n):
    data = bytearray()
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def round_trip(sock, data=b"hello"):
    sock.sendall(data)
    return read(sock, len(data))


def test_it_forwards_both_ways_and_passes_the_end_on(proxy, peer):
    with connect(proxy) as sock:
        assert round_trip(sock) == b"hello"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(10) == b""
    eventually(lambda: peer.ends == ["end"] and proxy.statistics()["open"] == 0)
    assert proxy.statistics() == {"open": 0, "accepted": 1, "to_target": 5, "to_client": 5}


def test_a_cut_breaks_connections_and_refuses_new_ones_until_restored(proxy, peer):
    with connect(proxy) as sock:
        round_trip(sock)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        with pytest.raises(ConnectionError, match="refused"):
            connect(proxy)
        eventually(lambda: peer.ends == ["ConnectionResetError"])
        port = proxy.port
        proxy.restore()
        assert proxy.port == port
        with connect(proxy) as again:
            assert round_trip(again) == b"hello"


def test_a_hang_holds_everything_and_loses_nothing(proxy):
    with connect(proxy) as old:
        round_trip(old)
        proxy.hang()
        old.sendall(b"waits")
        with connect(proxy) as new:
            new.sendall(b"new")
            for sock in (old, new):
                sock.settimeout(0.15)
                with pytest.raises(TimeoutError):
                    sock.recv(1)
                sock.settimeout(LIMIT_S)
            proxy.restore()
            assert (read(old, 5), read(new, 3)) == (b"waits", b"new")


def test_a_hung_link_can_be_cut(proxy):
    with connect(proxy) as sock:
        proxy.hang()
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_latency_delays_each_way_but_does_not_limit_the_rate(proxy):
    with connect(proxy) as sock:
        round_trip(sock)
        proxy.set_latency_ms(400)
        began = time.monotonic()
        round_trip(sock)
        assert 0.8 <= time.monotonic() - began < SOON_S
        data = bytes(20_000_000)
        writer = threading.Thread(target=sock.sendall, args=(data,))
        began = time.monotonic()
        writer.start()
        assert len(read(sock, len(data))) == len(data)
        assert time.monotonic() - began < SOON_S  # One piece after the other, it would be two minutes.
        writer.join(LIMIT_S)


def test_bandwidth_is_what_was_set(proxy, peer):
    peer.echo = False
    proxy.set_bandwidth(2_000_000)
    with connect(proxy) as sock:
        began = time.monotonic()
        sock.sendall(bytes(1_000_000))
        eventually(lambda: len(peer.received) == 1_000_000)
        assert 0.4 <= time.monotonic() - began < SOON_S


@pytest.mark.parametrize("direction", ["to_target", "to_client"])
def test_one_chunk_is_damaged(proxy, peer, direction):
    with connect(proxy) as sock:
        proxy.corrupt_next(direction)
        got = round_trip(sock, bytes(100))
        assert sum(got) == 1 and len(got) == 100
        assert (sum(peer.received) == 1) == (direction == "to_target")
        assert sum(round_trip(sock, bytes(100))) == 0


def test_exactly_so_many_bytes_pass_before_a_cut(proxy, peer):
    peer.echo = False
    proxy.cut_after_bytes("to_target", 1000)
    with connect(proxy) as sock:
        sock.sendall(bytes(600))
        sock.sendall(bytes(600))
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    eventually(lambda: peer.ends)
    assert len(peer.received) == 1000
    peer.echo = True
    with connect(proxy) as again:
        assert round_trip(again) == b"hello"


def test_many_bytes_pass_whole(proxy, peer):
    peer.echo = False
    size = 100_000_000
    with connect(proxy) as sock:
        sock.sendall(bytes(size))
        eventually(lambda: len(peer.received) == size)


def test_a_target_that_is_away_breaks_the_connection(peer):
    nobody = "127.0.0.1", free_port()
    # A bare socket; the reset may be there before the connection is said to stand.
    with (
        FaultProxy(nobody) as proxy,
        pytest.raises(ConnectionResetError),
        socket.create_connection(tuple(proxy.address), 10) as sock,
    ):
        sock.recv(1)


def test_wrong_commands_are_refused(proxy):
    for command in (
        lambda: proxy.set_latency_ms(-1),
        lambda: proxy.set_bandwidth(-1),
        lambda: proxy.corrupt_next("up"),
        lambda: proxy.cut_after_bytes("to_target", -1),
    ):
        with pytest.raises(ConfigurationError):
            command()
    with pytest.raises(IllegalStateError):
        FaultProxy(("127.0.0.1", 1)).cut()
    proxy.stop()
    proxy.stop()
