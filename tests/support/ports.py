"""Chooses ports before anybody listens on them.

They are outside the range that the kernel takes the ports of outgoing connections from (32768 to 60999 on Linux), so no
client takes one of them before its server starts. Each worker of pytest has ports of its own.
"""

import contextlib
import itertools
import os
import socket

FIRST, END = 20_000, 32_000
WORKERS = 16  # More workers than these share their ports with others.


def _of_this_process() -> range:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    count = (END - FIRST) // WORKERS
    return range(FIRST + worker * count, FIRST + (worker + 1) * count)


# Two runs of the tests at the same time begin at different places. A port is given again only when all others were.
_ports = itertools.cycle(_of_this_process())
next(itertools.islice(_ports, os.getpid() * 37 % len(_of_this_process()), None))


def free_port() -> int:
    """Returns a port on which nobody listens at any address."""
    for port in itertools.islice(_ports, len(_of_this_process())):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError(f"nobody can listen on any port of {_of_this_process()}")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
