"""Owns what a stranger says at a port, and hears there."""

import socket

from pywan import _core
from pywan.protocol.gateway import SenderHello, encode
from pywan.testing.waiting import LIMIT_S


def hello(**changes):
    fields = dict(site=3, remote_site=2, member="evil", sender="evil", dispatcher=0, numbering=7, mount=1, partitions=1)
    return encode(SenderHello(**{**fields, **changes}), _core.FRAME_HELLO)


def answer(port, data, after_hello=None, wait=LIMIT_S):
    """Reads what the other side sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as sock:
        sock.sendall(data)
        received = b""
        if after_hello is not None:
            received = sock.recv(4096)
            sock.sendall(after_hello)
        try:
            while chunk := sock.recv(4096):
                received += chunk
        except ConnectionResetError:
            pass
        return received


FLOOD = 1100
