"""The ports of `tests/support/ports.py` are those of no client, no other worker, and no server that is there."""

import socket
from pathlib import Path

from pywan.transport import sockets
from support import ports


def test_a_port_that_is_chosen_beforehand_is_never_one_of_an_outgoing_connection():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chosen = ports.free_ports(50)
    assert len(set(chosen)) == 50 and max(chosen) < lowest
    with sockets.listen("127.0.0.1", 0) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getsockname()[1] >= lowest


def test_a_port_with_a_server_is_not_given(monkeypatch):
    taken, free = ports.free_ports(2)
    monkeypatch.setattr(ports, "_ports", iter([taken, free]))
    with sockets.listen("127.0.0.2", taken):
        assert ports.free_port() == free


def test_workers_have_ports_of_their_own(monkeypatch):
    given = []
    for worker in range(ports.WORKERS):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        given += ports._of_this_process()
    assert len(set(given)) == len(given) == ports.END - ports.FIRST
