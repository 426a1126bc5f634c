"""An encrypted site and a stranger without a certificate, who reaches all of its ports: he gets nothing but closed
connections. What stalls in a handshake, and a link that is cut or hangs, hold up nobody else."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import sys
import threading
import time

import pytest

import pywan
from pywan.base.addresses import Address
from pywan.testing.fault_proxy import TO_CLIENT, TO_TARGET, FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.openings import MAX_OPENINGS
from support.made_certificates import LOCAL, contexts, new_options
from support.tls_sites import Site, two
from support.tree import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from attacks import ATTACKS, Target, client_hello
from measure import resident_bytes

AWAY = "127.0.1.77"  # Where a proxy listens.
STALLED = 110  # Of each of five addresses: less than the share of one, and together more than all places.
TIMES = 3  # So often each attack is made.
GROWTH_MAX = 256 << 20  # As the campaign has it (docs/security.md).


@pytest.fixture
def ssl_of(tmp_path):
    """The same certificate for all processes: for the address of a proxy, too."""
    given = new_options(tmp_path, (*LOCAL, AWAY))
    return lambda name, **more: {**given, **more}


@contextlib.contextmanager
def putting(region):
    """Puts meanwhile. Yields what was put so far, and how long each put took."""
    took, stop, errors = [], threading.Event(), []

    def put():
        try:
            for n in itertools.count():
                if stop.is_set():
                    return
                began = time.monotonic()
                region[n] = f"value {n}"
                took.append(time.monotonic() - began)
                stop.wait(0.002)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


def has_all(region, count):
    return len(region) == count and region[count - 1] == f"value {count - 1}"


def test_a_stranger_gets_nothing_but_closed_connections(ssl_of, caplog):
    """All that strangers try on a site without encryption, plainly and by TLS without a certificate."""
    with two(ssl_of, members=2) as (ny, ln):
        shown = ny.locator._coordination.status()
        before = [cache._core.agent.me for cache in ny.caches]
        assert len(shown["members"]) == 2
        target = Target(ny.locator.port, shown)
        memory = resident_bytes()
        with putting(ny.regions[0]) as took:
            for attack in ATTACKS.values():
                for _ in range(TIMES):
                    with contextlib.suppress(OSError):
                        attack(target)
        assert target.told == []
        assert [cache._core.agent.me for cache in ny.caches] == before
        assert {each["incarnation"] for each in ny.locator._coordination.status()["members"]} == set(map(str, before))
        assert max(took) < LIMIT_S / 2
        for region in (*ny.regions, *ln.regions):
            eventually(lambda region=region: has_all(region, len(took)))
        assert resident_bytes() - memory < GROWTH_MAX
        assert "Traceback" not in caplog.text


def is_open(sock):
    raw = socket.socket(fileno=sock.fileno())
    try:
        raw.setblocking(False)
        while raw.recv(1 << 16):  # What TLS says of itself, such as tickets.
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        raw.detach()


def stall(stack, port, said, source, context):
    """A connection that says no more than `said`, or no more after its handshake."""
    hello = client_hello()
    words = {"nothing": b"", "a byte": hello[:1], "half a hello": hello[: len(hello) // 2], "a hello": hello}
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0)))
    with contextlib.suppress(OSError):  # One that finds no place.
        if said == "a handshake":
            return stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
        sock.sendall(words[said])
    return sock


def test_what_stalls_in_a_handshake_has_only_half_open_places(ssl_of, many_descriptors):
    """A sender of another address finds a place though all are taken. What stalls goes when its time is over."""
    with contextlib.ExitStack() as stack:
        there = Site(stack, "ln", 2, ssl_of)
        here = Site(stack, "ny", 1, ssl_of, remote=str(there.locator.address))
        region = there.caches[0].create_region("data", type="PARTITION")
        context = contexts(ssl_of("one that stalls"))[0]
        stalled = [
            stall(stack, there.receiver.port, said, f"127.0.0.{n + 9}", context)
            for n, said in enumerate(("a handshake", "a hello", "half a hello", "a byte", "nothing"))
            for _ in range(STALLED)
        ]
        assert len(stalled) > MAX_OPENINGS
        here.send_to(there)
        here.create_region()
        here.regions[0][0] = "value 0"
        eventually(lambda: has_all(region, 1))
        eventually(lambda: sum(map(is_open, stalled)) <= MAX_OPENINGS)  # The system accepts before the port does.
        eventually(lambda: not any(map(is_open, stalled)), what="the end of what has not begun")


@pytest.mark.parametrize("seed", range(2))
def test_events_survive_links_that_are_cut_and_hang(ssl_of, seed):
    """Every fault that a proxy has, between a sender and its receiver. Bytes that were changed are found out."""
    draws = random.Random(seed)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy("127.0.0.1[1]", AWAY))
        proxy.target = Address("127.0.0.1", proxy.port)
        there = Site(stack, "ln", 2, ssl_of)
        there.receiver.stop()
        there.caches[0].close()
        member = stack.enter_context(pywan.Cache("ln_far", locators=str(there.locator.address), ssl=ssl_of("ln_far")))
        region = member.create_region("data", type="PARTITION")
        member.create_gateway_receiver(start_port=proxy.port, end_port=proxy.port, hostname_for_senders=AWAY)
        here = Site(stack, "ny", 1, ssl_of, remote=str(there.locator.address))
        here.send_to(there)
        here.create_region()
        arrived = 0

        def more_arrives():
            return len(region) > arrived

        with putting(here.regions[0]) as took:
            for fault in ("hang", "corrupt", "cut", "cut in a record", "slow") * 2:
                eventually(more_arrives)
                arrived = len(region)
                way = draws.choice((TO_TARGET, TO_CLIENT))
                if fault == "hang":
                    proxy.hang()
                    before = len(took)
                    eventually(lambda before=before: len(took) > before + 50)
                    proxy.restore()
                elif fault == "cut":
                    proxy.cut()
                    eventually(lambda: not here.sender.is_connected)
                    proxy.restore()
                elif fault == "corrupt":
                    proxy.corrupt_next(way)
                elif fault == "cut in a record":
                    proxy.cut_after_bytes(way, draws.randrange(1, 3000))
                else:
                    proxy.set_latency_ms(20)
            proxy.set_latency_ms(0)
        eventually(lambda: has_all(region, len(took)))
        assert dict(region.items()) == {n: f"value {n}" for n in range(len(took))}
        eventually(lambda: here.sender.lag()["events"] == 0)
        assert here.sender.parked_count == 0
        assert here.sender.ledger()["balanced"]
