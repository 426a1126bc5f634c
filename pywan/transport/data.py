"""Owns the opening exchange on a data connection's socket, and the socket's options. After that, compiled code moves
the bytes."""

from __future__ import annotations

import array
import fcntl
import logging
import socket
import struct
import termios
import time
from pathlib import Path

from pywan.errors import ConnectivityError, ProtocolError, PywanError
from pywan.protocol import gateway
from pywan.transport.tls_words import in_words

log = logging.getLogger("pywan.transport")

_HELD_BACK_OFFSET = 176  # The offset of tcpi_rwnd_limited in struct tcp_info.
REFUSE_TIMEOUT_S = 2.0  # The time for telling the other side why its connection is refused.
KEEPALIVE_IDLE_S = 60  # After so long without a byte, the kernel asks whether the other side is there.
KEEPALIVE_INTERVAL_S = 15  # The time between two such questions.
KEEPALIVE_PROBES = 6  # The number of questions without an answer after which the connection breaks.
DEFAULT_SOCKET_BUFFER = 524288  # The default of the attribute. With it the kernel's own tuning is left alone.


def receive_exactly(sock: socket.socket, count: int, first: bytes = b"", deadline: float | None = None) -> bytes:
    """Returns `count` bytes, which begin with `first`.

    ConnectivityError if the connection ends before, or at `deadline` (in seconds of time.monotonic). It names the other
    end.
    """
    limit = sock.gettimeout()
    data = bytearray(first)
    try:
        while len(data) < count:
            if deadline is not None:
                sock.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = sock.recv(count - len(data))
            if not chunk:
                raise ConnectivityError(f"{_other_end(sock)} closed the connection")
            data += chunk
    except TimeoutError:
        raise ConnectivityError(
            f"no whole message from {_other_end(sock)} within {limit:.1f} s: {len(data)} of {count} bytes came"
        ) from None
    except OSError as error:
        if isinstance(error, PywanError):
            raise
        raise ConnectivityError(f"the connection to {_other_end(sock)} broke: {in_words(error)}") from None
    finally:
        if deadline is not None and sock.fileno() >= 0:
            sock.settimeout(limit)
    return bytes(data)


def _other_end(sock: socket.socket) -> str:
    """The address of the other end, for errors."""
    try:
        host, port = sock.getpeername()[:2]
        return f"{host}[{port}]"
    except (OSError, ValueError):  # It is gone; or the socket has no addresses.
        return "the other side"


def _deadline(sock: socket.socket) -> float | None:
    limit = sock.gettimeout()
    return None if limit is None else time.monotonic() + limit


def receive_message(sock: socket.socket, *expected: type[gateway.M], first: bytes = b"") -> gateway.M:
    """Returns the next opening message, which is of one of the `expected` types.

    The socket's time limit holds for the whole message. A byte now and then does not prolong it.
    """
    return gateway.decode(_receive_frame(sock, first, _deadline(sock)), *expected)


def _receive_frame(sock: socket.socket, first: bytes, deadline: float | None) -> bytes:
    """Returns the next frame. ProtocolError if it is of another protocol."""
    # The first bytes are checked first. A client of another protocol may send no more, and wait for us to speak.
    first = receive_exactly(sock, len(gateway.MAGIC), first, deadline)
    gateway.check_magic(first)
    head = receive_exactly(sock, gateway.HEADER_BYTES, first, deadline)
    _, following = gateway.header(head)
    return receive_exactly(sock, gateway.HEADER_BYTES + following, head, deadline)


def receive_known(sock: socket.socket, count: int) -> list[gateway.Known]:
    """Returns the positions that a welcome announced. The socket's time limit holds for all of them together."""
    known: list[gateway.Known] = []
    deadline = _deadline(sock)
    while len(known) < count:
        head = receive_exactly(sock, gateway.HEADER_BYTES, deadline=deadline)
        _, following = gateway.header(head)
        known += gateway.decode_known(receive_exactly(sock, gateway.HEADER_BYTES + following, head, deadline))
    if len(known) != count:
        raise ProtocolError(f"positions of {len(known)} partitions, where {count} were announced")
    return known


def refuse(sock: socket.socket, reason: Exception) -> None:
    """Tells the other side why its connection is refused, if it still listens."""
    send_refusal(sock, gateway.encode_error(reason))


def send_refusal(sock: socket.socket, frame: bytes) -> None:
    """As `refuse`, with the frame that says why."""
    try:
        sock.settimeout(REFUSE_TIMEOUT_S)
        sock.sendall(frame)
    except (OSError, MemoryError):
        pass  # The other side sees that the connection is closed.


def set_socket_options(sock: socket.socket, buffer_bytes: int, option: int) -> None:
    """Turns off the delay of small packets, and sets the socket's buffer (SO_SNDBUF or SO_RCVBUF) if the user
    set one."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if buffer_bytes and buffer_bytes != DEFAULT_SOCKET_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)


def keep_alive(sock: socket.socket) -> None:
    """Makes the kernels at both ends ask each other whether they are there, also while neither program sends anything.

    A connection to a machine that is gone breaks within three minutes. Devices on the way that forget idle connections
    do not forget this one.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def untaken_bytes(sock: socket.socket) -> int:
    """Returns how many of the bytes given to our kernel the other side's kernel has not taken yet. 0 for a closed
    socket."""
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, waiting)
    except (OSError, ValueError):
        return 0
    return waiting[0]


def held_back_us(sock: socket.socket) -> int:
    """Returns for how many microseconds so far the other side's kernel had no room for our bytes, because its program
    did not read.

    0 if the kernel does not tell.
    """
    try:
        tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HELD_BACK_OFFSET + 8)
    except OSError:
        return 0
    return struct.unpack_from("=Q", tcp_info, _HELD_BACK_OFFSET)[0] if len(tcp_info) >= _HELD_BACK_OFFSET + 8 else 0


def warn_if_buffer_too_large(buffer_bytes: int, option: int, what: str) -> bool:
    """Warns if the system's maximum is below the configured size. Returns whether it is."""
    if not buffer_bytes or buffer_bytes == DEFAULT_SOCKET_BUFFER:
        return False
    name = "wmem_max" if option == socket.SO_SNDBUF else "rmem_max"
    try:
        maximum = int(Path(f"/proc/sys/net/core/{name}").read_text())
    except (OSError, ValueError):
        return False
    if buffer_bytes <= maximum:
        return False
    log.warning(
        "%s: socket-buffer-size %d is above the system's maximum %d (net.core.%s), which is used instead; raise it"
        " with sysctl",
        what,
        buffer_bytes,
        maximum,
        name,
    )
    return True


__all__ = [
    "ProtocolError",
    "held_back_us",
    "keep_alive",
    "receive_exactly",
    "receive_known",
    "receive_message",
    "refuse",
    "set_socket_options",
    "untaken_bytes",
    "warn_if_buffer_too_large",
]
