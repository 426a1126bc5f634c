"""Owns opening TCP sockets, to listen and to connect. Errors say which host, which port and what to do."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pywan.base.addresses import WILDCARDS, Address, check_port, is_loopback, resolve
from pywan.errors import ConfigurationError, ConnectivityError, PortInUseError
from pywan.forks import in_child
from pywan.transport.link import Link

BACKLOG = 256

Socket = TypeVar("Socket", bound=socket.socket)


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _own(sock: Socket) -> Socket:
    """Makes a forked child close the socket.

    Otherwise the other side would not see that the parent closed it, and the parent's successor would not get the port.
    """
    return in_child(sock, socket.socket.close)


def accept(listener: socket.socket) -> tuple[Link, tuple[Any, ...]]:
    """Returns the next connection, and the address that it comes from."""
    sock, peer = listener.accept()
    return _own(Link.of(sock)), peer


def listen(host: str, port: int, *, what: str = "listener", backlog: int = BACKLOG) -> socket.socket:
    """Returns a listening socket on `host` (a name or number; "" is every interface) and `port` (0 takes a free one).

    PortInUseError if the port is taken. ConfigurationError if it can never work here.
    """
    port = check_port(port, what, lowest=0)
    ip = resolve(host, 5.0) if host else "0.0.0.0"
    sock = _own(socket.socket(_family(ip), socket.SOCK_STREAM))
    try:
        # So a restart need not wait until the last run's connections have faded. Linux still refuses a second live
        # listener.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ip, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        place = f"{what}: cannot listen on port {port} of {host or 'every interface'}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{place}: port {port} is in use; stop who listens there or choose another port"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigurationError(f"{place}: {host!r} ({ip}) is not an address of this machine") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigurationError(
                f"{place}: not permitted; ports below 1024 need privileges, choose a higher one"
            ) from None
        raise ConnectivityError(f"{place}: {error.strerror or error}") from None
    return sock


def connect(
    address: Address | tuple[str, int],
    timeout: float,
    *,
    what: str = "",
    on_socket: Callable[[Link], None] | None = None,
) -> Link:
    """Returns a socket connected to `address`. ConnectivityError, if that takes longer than `timeout` seconds or fails,
    says why.

    The socket keeps the time limit; `settimeout` sets another one. `on_socket` is called with the socket before it
    connects, so that another thread can break off the attempt with `shutdown`.
    """
    host, port = address
    place = f"{what} {host}[{port}]".strip()
    deadline = time.monotonic() + timeout
    try:
        ip = resolve(host, timeout)
    except ConnectivityError as error:
        raise ConnectivityError(f"cannot connect to {place}: {error}") from None
    sock = _own(Link(_family(ip), socket.SOCK_STREAM))
    try:
        if on_socket is not None:
            on_socket(sock)
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.connect((ip, port))
        # On loopback, a connection to a free ephemeral port can connect to itself. Nobody listens there.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(timeout)
    except OSError as error:
        sock.close()
        shown = place if ip == host else f"{place} ({ip})"
        if isinstance(error, ConnectionRefusedError):
            reason = "connection refused; is it running, and is the port right?"
        elif isinstance(error, TimeoutError):
            reason = f"no answer within {timeout:.1f} s"
        else:
            reason = error.strerror or str(error)
        raise ConnectivityError(f"cannot connect to {shown}: {reason}") from None
    except BaseException:
        sock.close()
        raise
    return sock


_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # Addresses that nobody has (RFC 5737, 3849), behind the default route.


def reachable_address(
    bind_address: str, towards: Iterable[Address | tuple[str, int]] = (), timeout: float = 2.0
) -> str:
    """Returns the address to tell others for a port that listens on `bind_address`. It sends nothing.

    It is `bind_address` itself, unless that is every interface. Then it is the address of the interface from which
    packets leave for one of `towards`, or by the default route. A loopback address is taken only if there is no other.
    """
    if bind_address not in WILDCARDS:
        return bind_address
    deadline = time.monotonic() + timeout
    candidates = []
    for host, port in towards:
        try:
            candidates.append((resolve(host, max(0.001, deadline - time.monotonic())), port))
        except ConnectivityError:
            continue  # The name is unknown for now. Another one may help.
    addresses = [
        address
        for address in (_own_address(ip, port) for ip, port in [*candidates, *((ip, 9) for ip in _ELSEWHERE)])
        if address is not None
    ]
    if bind_address != "::":
        addresses = [address for address in addresses if ":" not in address]  # The port listens on IPv4 only.
    return next(
        (address for address in addresses if not is_loopback(address)),
        addresses[0] if addresses else "::1" if bind_address == "::" else "127.0.0.1",
    )


def is_own_address(ip: str) -> bool:
    """Returns whether `ip` is an address of this machine."""
    with socket.socket(_family(ip), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
            return True
        except OSError:
            return False


def _own_address(ip: str, port: int) -> str | None:
    """Returns the address that this machine uses towards `ip`. None: there is no route."""
    with socket.socket(_family(ip), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, port or 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def shut(sock: socket.socket | None) -> None:
    """Ends both directions, which wakes the thread that waits on the socket. Its owner still has to close it."""
    if sock is None:
        return
    with contextlib.suppress(OSError):  # The connection may be gone already, which is what we want.
        sock.shutdown(socket.SHUT_RDWR)
