"""Owns the encryption of a site that is fuzzed: the certificates of those who connect, and connections whose bytes are
damaged inside and outside of TLS records, before, during and after the handshake.

Whatever comes: the port closes the connection when the other end says no more, and a peer without an account is told
that it is refused, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from pywan.security.users import User, Users, write_users
from pywan.testing.waiting import eventually
from pywan.transport.links import Links
from support.made_certificates import Authority, options

TIMEOUT_S = 20.0  # A connection that ends later is stuck.
RECORDS = (20, 21, 22, 23, 24, 255)  # Kinds of TLS records, and one that is none.
PEERS = ("member", "member", "member", "member", "stranger", "foreign", "nobody")
REFUSED_IN_HANDSHAKES = ("foreign", "nobody")
REFUSED = ("AuthenticationError", "NotAuthorizedError")


class Stuck(AssertionError):
    pass


class Encryption:
    """Of a site whose processes have the certificate "member". It is the one user, and may do everything.

    Others who connect: "stranger" has a certificate of the same authority, and no account; "foreign" has one of another
    authority; "nobody" has none.
    """

    def __init__(self, folder: Path) -> None:
        authority, others = Authority(), Authority("others")
        self.ssl = options(folder, authority, authority.certificate("member"))
        shown = {
            "member": authority.certificate("member").write(folder, "client"),
            "stranger": authority.certificate("stranger").write(folder, "stranger"),
            "foreign": others.certificate("member").write(folder, "foreign"),
            "nobody": None,
        }
        self._contexts = {peer: self._context(files) for peer, files in shown.items()}
        users = folder / "users.json"
        write_users(users, Users.first().with_user("member", User(("admin",), None)))
        self.security: dict[str, Any] = {"manager": "certificates-file", "users_file": str(users)}
        self.links = Links(self.ssl, listener="a fuzzer")

    def _context(self, files: tuple[str, str] | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ssl["trusted_certificates"])
        if files is not None:
            context.load_cert_chain(*files)
        return context

    def connect(self, port: int, peer: str = "member") -> ssl.SSLSocket:
        """OSError: the handshake is refused. Over TLS 1.3 that may show later."""
        sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        try:
            return self._contexts[peer].wrap_socket(sock, server_hostname="127.0.0.1")
        except BaseException:
            sock.close()
            raise

    # --- bytes that are no TLS, or not that of this connection ---

    def damage(self, source: Random, port: int, plain: bytes) -> None:
        """A connection with damaged bytes. `plain`: what is sent after a handshake.

        Raises:
            Stuck: The port does not close the connection.
        """
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock:
            sock.settimeout(TIMEOUT_S)
            with contextlib.suppress(ConnectionError):  # The port may close it meanwhile.
                source.choice((self._no_handshake, self._half_a_handshake, self._damaged_records))(source, sock, plain)
                if source.random() < 0.1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    return  # The connection is reset.
                sock.shutdown(socket.SHUT_WR)
                read_to_end(sock)

    def _started(self, source: Random) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = self._contexts[source.choice(("member", "member", "stranger", "nobody"))]
        shaking = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        return shaking, incoming, outgoing

    def _no_handshake(self, source: Random, sock: socket.socket, plain: bytes) -> None:
        """Something else in place of the first message, or that message cut or damaged."""
        hello = self._started(source)[2].read()
        kind = source.randrange(4)
        if kind == 0:
            data = hello[: source.randrange(len(hello))]
        elif kind == 1:
            data = with_damage(source, hello)
        elif kind == 2:
            data = record(source, source.randbytes(source.choice((0, 1, 100, 16_384, 20_000))), 22)
        else:
            data = hello * source.choice((2, 5)) + plain
        sock.sendall(data)

    def _half_a_handshake(self, source: Random, sock: socket.socket, plain: bytes) -> None:
        """The messages behind the first one are cut, damaged, or others."""
        shaking, incoming, outgoing = self._started(source)
        sock.sendall(outgoing.read())
        data = sock.recv(1 << 16)
        incoming.write(with_damage(source, data) if source.random() < 0.2 else data)
        with contextlib.suppress(ssl.SSLError):
            shaking.do_handshake()
        rest = outgoing.read()
        kind = source.randrange(3)
        if kind == 0:
            rest = rest[: source.randrange(len(rest) + 1)]
        elif kind == 1:
            rest = with_damage(source, rest)
        else:
            rest = record(source, source.randbytes(source.randrange(300))) + rest
        sock.sendall(rest)

    def _damaged_records(self, source: Random, sock: socket.socket, plain: bytes) -> None:
        """The handshake is whole, and something behind it is not."""
        shaking, incoming, outgoing = self._started(source)
        while True:
            try:
                shaking.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                data = sock.recv(1 << 16)
                if not data:
                    return
                incoming.write(data)
            except ssl.SSLError:
                return
        shaking.write(plain)
        right = outgoing.read()
        kind = source.randrange(5)
        if kind == 0:
            right = with_damage(source, right)
        elif kind == 1:
            right = right[: source.randrange(len(right) + 1)]
        elif kind == 2:
            right += record(source, source.randbytes(source.choice((0, 1, 300, 16_640))))
        elif kind == 3:
            right = plain + right  # Not encrypted.
        else:
            right *= 2  # A record comes again.
        at = 0
        while at < len(right):  # In pieces: within a record's head, too.
            size = source.choice((1, 3, 5, 200, 20_000))
            sock.sendall(right[at : at + size])
            at += size


def with_damage(source: Random, data: bytes) -> bytes:
    """`data` with some bits changed, bytes left out, or bytes put in."""
    made = bytearray(data)
    for _ in range(source.choice((1, 1, 3))):
        at, kind = source.randrange(len(made) + 1), source.randrange(3)
        if kind == 0 and at < len(made):
            made[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del made[at : at + source.choice((1, 4, 100))]
        else:
            made[at:at] = source.randbytes(source.choice((1, 5, 100)))
    return bytes(made)


def record(source: Random, payload: bytes, kind: int | None = None) -> bytes:
    """A record of TLS with that payload. Its head may be a lie."""
    kind = source.choice(RECORDS) if kind is None else kind
    length = len(payload) if source.random() < 0.7 else source.choice((0, 1, 16_384, 16_641, 65_535))
    version = source.choice((0x0301, 0x0303, 0x0303, 0x0304, source.randrange(65_536)))
    return bytes([kind]) + version.to_bytes(2) + min(length, 65_535).to_bytes(2) + payload


def read_to_end(sock: socket.socket) -> bytes:
    """Returns what comes until the other end closes the connection."""
    received = b""
    try:
        while chunk := sock.recv(1 << 16):
            received += chunk
    except TimeoutError:
        raise Stuck(f"a port does not close a connection within {TIMEOUT_S:.0f} s") from None
    except OSError:
        pass
    return received


class Held:
    """What this process holds: threads, descriptors, memory. The first look is what it is compared with."""

    MORE_THREADS, MORE_DESCRIPTORS, MORE_BYTES = 40, 60, 200 << 20

    def __init__(self) -> None:
        self._first = self._now()

    @staticmethod
    def _now() -> tuple[int, int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * resource.getpagesize()

    def grown(self, more: tuple[int, int, int] = (MORE_THREADS, MORE_DESCRIPTORS, MORE_BYTES)) -> str:
        """Returns what has grown too much, in words; "": nothing."""
        names = ("threads", "descriptors", "bytes of memory")
        pairs = zip(names, self._first, self._now(), more, strict=True)
        return "; ".join(f"{before:,} {what}, now {now:,}" for what, before, now, most in pairs if now - before > most)

    def check_end(self) -> None:
        """Nobody connects any more: what connections took comes back."""
        eventually(lambda: not self.grown((3, 6, self.MORE_BYTES)), what=self.grown((3, 6, self.MORE_BYTES)))


def served_within(seconds: float, serve: Callable[[], object]) -> None:
    """An honest client is served, and at once. AssertionError: it is not."""
    began = time.monotonic()
    serve()
    took = time.monotonic() - began
    assert took < seconds, f"an honest client was served after {took:.1f} s"
