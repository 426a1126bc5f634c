"""Owns what a service manager (systemd) that started this process is told: that the member is ready."""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"  # Where it wants to be told; not set if nobody wants to know.


def tell_ready(text: str) -> None:
    """Sends `READY=1` and a line that `systemctl status` shows. The member goes on if the service manager cannot be
    reached."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # A name that is no file.
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(f"READY=1\nSTATUS={text}\n".encode(), address)
