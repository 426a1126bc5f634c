"""Owns a TCP connection of pywan: its bytes are plain, or encrypted from `encrypt` on."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any

CHUNK_BYTES = 262144  # Bytes that are encrypted or decrypted at once. Less costs more calls for each byte.


class Tls:
    """The encryption of one connection: plain bytes on one side, and on the other side those of the network.

    One thread may read while another one writes. `lock` guards `object`, `incoming` and `outgoing`; who holds it does
    not wait for the network. Who sends holds `sending` from before the encryption on: bytes leave in the order in which
    they were encrypted. It is taken before `lock`.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        """`server_name`: the host that the certificate of the other end has to name, at the end that connects. None:
        this end was connected to."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self.lock, self.sending = threading.Lock(), threading.Lock()


class Link(socket.socket):
    """A connected socket. One that is encrypted has the same methods, time limits and errors, and `recv` takes no
    flags. ssl.SSLError is an OSError: the connection is of no use any more."""

    tls: Tls | None = None
    # The certificate of the end that listens, as DER, which both ends know: a proof for one connection is of no use on
    # one to another process. Empty: nothing is encrypted.
    bound_to: bytes = b""

    @classmethod
    def of(cls, sock: socket.socket) -> Link:
        """Makes a link of a socket, which is of no use any more."""
        limit = sock.gettimeout()
        link = cls(fileno=sock.detach())
        link.settimeout(limit)
        return link

    def encrypt(self, context: ssl.SSLContext, server_name: str | None, first: bytes = b"") -> None:
        """Shakes hands, within the time limit of the socket as a whole. From then on bytes are encrypted.

        Args:
            context: What is believed of the other end, and shown of this one.
            server_name: As for `Tls`.
            first: Bytes of the handshake that were received already.

        Raises:
            ssl.SSLError: There is no agreement, or a certificate is not believed. The other end is told.
            TimeoutError: It took too long.
            ConnectionError: The other end has closed the connection.
        """
        tls = Tls(context, server_name)
        tls.incoming.write(first)
        limit = self.gettimeout()
        deadline = None if limit is None else time.monotonic() + limit
        try:
            while True:
                try:
                    tls.object.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._send_outgoing(tls)
                    if deadline is not None:
                        super().settimeout(max(0.001, deadline - time.monotonic()))
                    data = super().recv(CHUNK_BYTES)
                    if not data:
                        raise ConnectionResetError("the other end closed the connection during the handshake") from None
                    tls.incoming.write(data)
            self._send_outgoing(tls)
        except ssl.SSLError:
            with contextlib.suppress(OSError):  # The other end may be gone. Why there is no agreement says more.
                self._send_outgoing(tls)
            raise
        finally:
            super().settimeout(limit)
        self.tls = tls

    @property
    def other_name(self) -> str:
        """The name in the certificate of the other end, which was checked: its common name, or else its first DNS name.
        "": it showed none."""
        shown = (self.tls.object.getpeercert() if self.tls is not None else None) or {}
        subject: Any = shown.get("subject", ())
        others: Any = shown.get("subjectAltName", ())
        names = [value for part in subject for kind, value in part if kind == "commonName"]
        names += [value for kind, value in others if kind == "DNS"]
        return str(names[0]) if names else ""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        tls = self.tls
        if tls is None:
            return super().recv(bufsize, flags)
        while True:
            with tls.lock:
                try:
                    return tls.object.read(bufsize)
                except ssl.SSLWantReadError:
                    has_answers = tls.outgoing.pending > 0
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            if has_answers:
                with tls.sending:
                    self._send_outgoing(tls)
            data = super().recv(CHUNK_BYTES)
            with tls.lock:
                tls.incoming.write(data) if data else tls.incoming.write_eof()

    def sendall(self, data: Any, flags: int = 0) -> None:
        tls = self.tls
        if tls is None:
            super().sendall(data, flags)
            return
        view = memoryview(data).cast("B")
        with tls.sending:
            while view:
                with tls.lock:
                    view = view[tls.object.write(view[:CHUNK_BYTES]) :]
                self._send_outgoing(tls)

    def _send_outgoing(self, tls: Tls) -> None:
        with tls.lock:
            encrypted = tls.outgoing.read()
        if encrypted:
            super().sendall(encrypted)


__all__ = ["CHUNK_BYTES", "Link", "Tls"]
