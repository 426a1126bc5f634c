"""Locators as they run: real ports, real threads, sites that find each other."""

import contextlib
import itertools
import json
import logging
import threading
import time

import pytest

from pywan.base.addresses import Address
from pywan.base.lines import LINES_AT_ONCE
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    IllegalStateError,
    IncompatibleSystemError,
    NotFoundError,
    ProtocolError,
)
from pywan.protocol.discovery import Timings
from pywan.site.locator import Locator
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport import sockets
from pywan.transport.control import ControlClient, ControlServer, call_once
from support.ports import free_port, free_ports

NONCE = b"n" * 16
QUICK = Timings(ping_ms=200, retry_ms=50, retry_max_ms=200, change_delay_ms=5)
pytestmark = pytest.mark.usefixtures("no_thread_left")


@pytest.fixture
def start():
    running = []

    def start(site, port=0, *, remotes=(), locators=(), **more):
        locator = Locator(
            f"locator_{site}_{port}_{len(running)}",
            distributed_system_id=site,
            port=port,
            timings=more.pop("timings", QUICK),
            remote_locators=",".join(f"127.0.0.1[{p}]" for p in remotes),
            locators=",".join(f"127.0.0.1[{p}]" for p in locators),
            **more,
        )
        running.append(locator)
        return locator.start()

    yield start
    for locator in running:
        locator.stop()


def everyone_knows_everyone(locators):
    expected = {}
    for locator in locators:
        expected.setdefault(locator.distributed_system_id, set()).add(locator.address)
    return all({s: set(a) for s, a in locator.known_sites().items()} == expected for locator in locators)


def profile(name="server", member_id=1, port=0, **more):
    return {
        "name": name,
        "member_id": member_id,
        "host": "127.0.0.1",
        "port": port,
        "pid": 1,
        "load": 0,
        "receivers": [],
        "distributed_system_id": None,
        **more,
    }


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_two_sites_that_know_only_a_third_find_each_other(start, order):
    ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
    locators = [start(site, ports[site], remotes=[] if site == 1 else [ports[1]]) for site in order]
    eventually(lambda: everyone_knows_everyone(locators))


def test_a_ring_started_at_once_becomes_complete(start):
    ports = free_ports(4)
    locators = []
    threads = [
        threading.Thread(target=lambda i=i: locators.append(start(i + 1, ports[i], remotes=[ports[(i + 1) % 4]])))
        for i in range(4)
    ]
    [t.start() for t in threads]
    [t.join(LIMIT_S) for t in threads]
    eventually(lambda: len(locators) == 4 and everyone_knows_everyone(locators))


def test_three_sites_of_three_locators(start):
    ports = {site: free_ports(3) for site in (1, 2, 3)}
    locators = [
        start(site, port, locators=own, remotes=[p[0] for s, p in ports.items() if s != site])
        for (site, own), i in itertools.product(ports.items(), range(3))
        for port in [own[i]]
    ]
    eventually(lambda: everyone_knows_everyone(locators))


def test_a_locator_that_was_killed_is_told_again_when_it_is_back(start):
    first = start(1)
    second = start(2, remotes=[first.port])
    third = start(3, remotes=[first.port])
    eventually(lambda: everyone_knows_everyone([first, second, third]))
    first.stop()
    again = start(1, first.port)
    eventually(lambda: everyone_knows_everyone([again, second, third]))


def test_unknown_hosts_do_not_keep_a_locator_from_starting(start):
    good = start(2)
    began = time.monotonic()
    locator = Locator(
        "ny",
        distributed_system_id=1,
        port=0,
        timings=QUICK,
        remote_locators=f"no-such-host.invalid[1],127.0.0.1[{good.port}]",
    )
    with locator:
        assert time.monotonic() - began < 5
        eventually(lambda: set(locator.known_sites()) == {1, 2})
        eventually(lambda: any("no-such-host.invalid" in p for p in locator.status()["problems"]))


def test_locators_of_one_site_with_different_ids_cannot_be(start):
    first = start(1)
    with pytest.raises(IncompatibleSystemError, match="must agree"):
        start(2, locators=[first.port])
    assert first.is_running and first.known_sites() == {1: [first.address]}


def test_a_remote_site_with_our_own_id_cannot_be(start):
    first = start(1)
    with pytest.raises(IncompatibleSystemError, match="each site needs its own"):
        start(1, remotes=[first.port])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"distributed_system_id": 256}, "256"),
        ({"distributed_system_id": "1"}, "'1'"),
        ({"distributed_system_id": -2}, "-2"),
        ({"port": 65536}, "65536"),
        ({"port": "x"}, "'x'"),
        ({"name": "a/b"}, "a/b"),
        ({"name": ""}, "name"),
        ({"remote_locators": "ln_host"}, "ln_host"),
        ({"hostname_for_clients": "a b"}, "a b"),
        ({"distributed_system_id": -1, "remote_locators": "h[1]"}, "remote-locators"),
        ({"locators": "h[1]", "remote_locators": "h[1]"}, "both"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(changes, says):
    with pytest.raises(ConfigurationError, match=says):
        Locator(**{"name": "ny", "distributed_system_id": 1, "port": 0, **changes})


def test_a_busy_port_is_named(start):
    first = start(1)
    with pytest.raises(ConnectivityError, match=f"port {first.port} .*in use"):
        start(2, first.port)


def test_it_listens_where_its_own_entry_says(monkeypatch):
    monkeypatch.setenv("PYWAN_HOSTS", "ny_host=127.0.0.5")
    port = free_port()
    with Locator("ny", distributed_system_id=1, bind_address=None, port=port, locators=f"ny_host[{port}]") as locator:
        assert (locator.bind_address, locator.address) == ("127.0.0.5", Address("127.0.0.5", port))
        assert call_once(("127.0.0.5", port), "ping")["type"] == "locator"
    with Locator("ln", distributed_system_id=2, bind_address=None, port=0, hostname_for_clients="ny_host") as locator:
        assert (locator.bind_address, locator.host) == ("127.0.0.1", "ny_host")


def test_members_join_beat_and_leave(start):
    locator = start(7, member_timeout_ms=400)
    reply = call_once(
        locator.address,
        "member-join",
        profile=profile("a", 1, receivers=[{"host": "127.0.0.1", "port": 5000}]),
        nonce=NONCE,
    )
    assert reply["distributed_system_id"] == 7 and reply["cluster_configuration"] == []
    assert call_once(locator.address, "receiver")["receiver"] == {
        "host": "127.0.0.1",
        "port": 5000,
        "member": "a",
        "member_id": 1,
    }
    assert call_once(locator.address, "receiver", exclude=[1])["receiver"] is None
    assert call_once(locator.address, "member-heartbeat", name="a", member_id=1, nonce=NONCE, load=3)["known"]
    [server] = call_once(locator.address, "servers")["servers"]
    assert server["name"] == "a" and "receivers" not in server
    call_once(locator.address, "member-join", profile=profile("b", 2), nonce=NONCE)
    call_once(locator.address, "member-leave", name="b", member_id=2, nonce=NONCE)
    assert [m["name"] for m in locator.members()] == ["a"]
    eventually(lambda: locator.members() == [])
    assert not call_once(locator.address, "member-heartbeat", name="a", member_id=1, nonce=NONCE)["known"]


def test_a_name_belongs_to_one_live_member(start):
    locator = start(1)
    answer = {"name": "a", "member_id": 1}
    with ControlServer("127.0.0.1", 0, lambda request, peer: answer, name="a") as member:
        call_once(locator.address, "member-join", profile=profile("a", 1, port=member.port), nonce=NONCE)
        with pytest.raises(IllegalStateError, match="a member named a is alive"):
            call_once(locator.address, "member-join", profile=profile("a", 2, port=1), nonce=NONCE)
        with pytest.raises(IllegalStateError, match="a member named a is alive"):
            call_once(locator.address, "member-join", profile=profile("a", 2, port=member.port), nonce=NONCE)
    # Killed a moment ago: no wait for its lease.
    call_once(locator.address, "member-join", profile=profile("a", 2, port=1), nonce=NONCE)
    assert [m["member_id"] for m in locator.members()] == [2]


@pytest.mark.parametrize("nonce", [None, b"m" * 16, "n" * 16, b"", 7])
def test_nobody_speaks_for_a_member_that_has_joined(start, nonce):
    locator, told = start(1), {} if nonce is None else {"nonce": nonce}
    theirs = profile("a", 1, receivers=[{"host": "127.0.0.1", "port": 5000}])
    call_once(locator.address, "member-join", profile=theirs, nonce=NONCE)
    stolen = [{"host": "127.0.0.1", "port": 6000}]
    assert not call_once(locator.address, "member-leave", name="a", member_id=1, **told)["known"]
    assert not call_once(locator.address, "member-heartbeat", name="a", member_id=1, receivers=stolen, **told)["known"]
    with pytest.raises((IllegalStateError, ProtocolError), match=r"is alive|a nonce of 16 bytes"):
        call_once(locator.address, "member-join", profile={**theirs, "receivers": stolen}, **told)
    assert [each["receivers"] for each in locator.members()] == [theirs["receivers"]]
    # An answer that was lost: the member joins again.
    call_once(locator.address, "member-join", profile=theirs, nonce=NONCE)
    assert call_once(locator.address, "member-heartbeat", name="a", member_id=1, nonce=NONCE)["known"]
    assert "nonce" not in str(call_once(locator.address, "members"))


def test_a_member_that_begins_anew_at_the_port_of_its_last_life_is_taken_in_at_once(start):
    locator = start(1)
    with ControlServer("127.0.0.1", 0, lambda request, peer: {"name": "a", "member_id": 2}, name="a") as member:
        call_once(locator.address, "member-join", profile=profile("a", 1, port=member.port), nonce=b"m" * 16)
        call_once(locator.address, "member-join", profile=profile("a", 2, port=member.port), nonce=NONCE)
    assert [each["member_id"] for each in locator.members()] == [2]


def test_a_member_of_another_site_is_refused(start):
    locator = start(1)
    with pytest.raises(IncompatibleSystemError, match="distributed-system-id 2"):
        call_once(locator.address, "member-join", profile=profile(distributed_system_id=2), nonce=NONCE)


def test_the_cluster_configuration_outlives_its_locator_and_reaches_its_neighbours(start, tmp_path):
    things = [
        {"kind": "region", "name": "data", "attributes": {"type": "PARTITION"}},
        {"kind": "gateway-receiver", "name": "", "attributes": {}},
    ]
    ports = free_ports(2)
    locator = Locator(
        "ny", distributed_system_id=1, port=ports[0], dir=tmp_path, timings=QUICK, locators=f"127.0.0.1[{ports[1]}]"
    )
    with locator:
        neighbour = start(1, ports[1], locators=ports)
        for thing in things:
            call_once(locator.address, "change-configuration", action="put", **thing)
        eventually(lambda: neighbour.cluster_configuration() == things)
    file = tmp_path / "ny" / "cluster_config.json"
    assert len(json.loads(file.read_text())["entries"]) == 2 and file.stat().st_mode & 0o777 == 0o600
    neighbour.stop()
    with Locator("ny", distributed_system_id=1, port=0, dir=tmp_path) as again:
        assert (
            call_once(again.address, "member-join", profile=profile(), nonce=NONCE)["cluster_configuration"] == things
        )
        with pytest.raises(ConfigurationError, match="is not one of put, alter, remove, replace"):
            call_once(again.address, "change-configuration")
    file.write_text("{ half")
    with pytest.raises(ConfigurationError, match=r"cluster_config.json.*repair"):
        Locator("ny", distributed_system_id=1, port=0, dir=tmp_path).start()


def test_status_says_what_people_ask(start):
    locator = start(3)
    status = call_once(locator.address, "status")
    assert (
        status["distributed_system_id"] == 3
        and status["state"] == "running"
        and status["sites"] == {"3": [str(locator.address)]}
    )
    with pytest.raises(NotFoundError, match="known-sites"):
        call_once(locator.address, "make-coffee")
    with pytest.raises(ConfigurationError):
        call_once(locator.address, "remote-locators", distributed_system_id="x")
    with pytest.raises(ConfigurationError):
        call_once(locator.address, "receiver", exclude=["x"])


def test_it_can_be_stopped_from_outside_and_answers_first(start):
    locator = start(1)
    assert call_once(locator.address, "stop")["name"] == locator.name
    assert locator.wait_until_stopped(5) and locator.shutdown_requested.is_set()
    locator.stop()
    with pytest.raises(ConnectivityError):
        call_once(locator.address, "ping", timeout=1)


def test_stop_does_not_wait_for_a_remote_site_that_hangs(start):
    with sockets.listen("127.0.0.1", 0) as unresponsive:
        locator = start(1, remotes=[unresponsive.getsockname()[1]], timings=QUICK)
        began = time.monotonic()
        locator.stop()
        assert time.monotonic() - began < 2


def test_it_lives_through_garbage(start, caplog):
    locator = start(1)
    with caplog.at_level(logging.CRITICAL):
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"PWC1" + b"\xff" * 12, bytes(100), b"PWD1" + bytes(60)):
            with sockets.connect(locator.address, 5) as sock:
                sock.sendall(data)
                sock.settimeout(LIMIT_S)
                # The locator may leave bytes of ours unread when it closes.
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(10) == b""
    assert call_once(locator.address, "ping")["ok"]


def test_a_flood_of_members_that_come_and_go_writes_few_lines(start, caplog):
    locator = start(1)
    with caplog.at_level(logging.INFO, "pywan"), ControlClient(locator.address) as client:
        for number in range(200):
            client.call("member-join", profile=profile(f"m{number}", number), nonce=NONCE)
            client.call("member-leave", name=f"m{number}", member_id=number, nonce=NONCE)
    assert len(caplog.records) <= 3 * LINES_AT_ONCE
