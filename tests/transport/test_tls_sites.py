"""Two sites that encrypt everything: every port that listens, puts between members and between sites, and sites that do
not agree."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from pathlib import Path

import pytest

import pywan
from pywan.client import DataConnection
from pywan.errors import ConfigurationError, ConnectivityError, NoLocatorError
from pywan.testing.waiting import eventually
from pywan.transport import links
from support.made_certificates import Authority, options
from support.tls_sites import Site, two


@pytest.fixture
def authority():
    return Authority()


@pytest.fixture
def ssl_of(tmp_path, authority):
    """Returns the options of the process of that name, with a certificate of its own."""
    return lambda name, **more: options(tmp_path, authority, authority.certificate(name), name, **more)


def listening_ports() -> set[int]:
    """The ports on which this process listens, as the system tells them."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
            if found:
                inodes.add(found[1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def answer_to(port: int, said: bytes) -> bytes:
    """What a plain client gets until the end of its connection."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), 5) as sock, contextlib.suppress(OSError):
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        while data := sock.recv(4096):
            got += data
    return got


def shaken(port: int, given: dict[str, str], *, shows: bool) -> str:
    """The version of TLS that a client of Python's `ssl` has agreed on. "": it is refused."""
    context = ssl.create_default_context(cafile=given["trusted_certificates"])
    if shows:
        context.load_cert_chain(given["certificate"], given["key"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            secured.sendall(b"\0" * 64)  # A server of TLSv1.3 looks at certificates after the client is done.
            secured.recv(100)
            return secured.version() or "closed"
    except ssl.SSLError as error:
        assert "ALERT" in error.reason
        return ""


def test_every_listening_port_is_encrypted(ssl_of):
    before = listening_ports()
    with two(ssl_of, members=2) as sites:
        ports = listening_ports() - before
        known = {
            port
            for site in sites
            for port in (site.locator.port, site.receiver.port, *(cache.port for cache in site.caches))
        }
        assert ports == known
        given = ssl_of("stranger")
        for port in sorted(ports):
            for said in (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n"):
                assert answer_to(port, said) == b""
            for protocol in (b"PWC1", b"PWD1", b"PWL1", b"PWK1"):
                got = answer_to(port, protocol + b"\x04\0\0\0" * 3 + b"\0" * 64)
                assert not got or b"this port speaks TLS only" in got
            assert shaken(port, given, shows=True)
            assert not shaken(port, given, shows=False)


def test_puts_go_between_members_and_between_sites(ssl_of):
    with two(ssl_of, members=2) as (ny, ln):
        for n in range(200):
            ny.regions[n % 2][f"key {n}"] = "x" * n
        for region in (*ny.regions, *ln.regions):
            eventually(lambda region=region: len(region) == 200)
        ln.regions[1]["back"] = b"y" * 3_000_000
        eventually(lambda: ny.regions[0].get("back") == b"y" * 3_000_000)
        assert ny.sender.lag()["events"] == 0


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_both_sites_speak_one_version(ssl_of, protocol):
    with two(ssl_of, ny={"protocols": protocol}, ln={"protocols": protocol}) as (ny, ln):
        ny.regions[0]["k"] = 1
        eventually(lambda: ln.regions[0].get("k") == 1)


def test_rows_of_a_client(ssl_of):
    with two(ssl_of) as (ny, _):
        locators, run = str(ny.locator.address), os.urandom(16)
        trusts = ssl_of("client")
        with DataConnection.open(locators, region="data", run_id=run, task=0, ssl=trusts) as connection:
            connection.put_pairs([(f"k{n}", "v" * 1000) for n in range(3000)])
            assert connection.commit()["applied"] == 3000
        assert len(ny.regions[0]) == 3000
        with pytest.raises(NoLocatorError, match="this port speaks TLS only"):
            DataConnection.open(locators, region="data", run_id=run, task=0)


# Sites that do not agree: the locators speak plainly here, so that the senders find the receivers.


def one_way(stack, ssl_of, ny, ln):
    """Two sites, the first of which sends, with different options for gateways. None: plain."""

    def gateway_only(given):
        return lambda name, **more: (
            None if given is None else {**ssl_of(name), **given, "enabled_components": "gateway"}
        )

    there = Site(stack, "ln", 2, gateway_only(ln))
    here = Site(stack, "ny", 1, gateway_only(ny), remote=str(there.locator.address))
    here.send_to(there)
    here.create_region()
    there.caches[0].create_region("data", type="PARTITION")
    return here, there


CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    "ny, ln, words",
    [
        (None, {}, "this port speaks TLS only"),
        ({}, None, "not speak TLS there"),
        ({"protocols": "TLSv1.2"}, {"protocols": "TLSv1.3"}, "there is no version of TLS that both ends have"),
        (
            {"protocols": "TLSv1.2", "ciphers": CIPHERS[0]},
            {"protocols": "TLSv1.2", "ciphers": CIPHERS[1]},
            "there is no cipher that both ends have",
        ),
    ],
    ids=["plain to TLS", "TLS to plain", "protocols", "ciphers"],
)
def test_sites_that_do_not_agree_keep_the_queue(ssl_of, ny, ln, words):
    """C-148, C-149: the sender runs and is not connected, says why, and delivers once both agree."""
    with contextlib.ExitStack() as stack:
        here, there = one_way(stack, ssl_of, ny, ln)
        for n in range(20):
            here.regions[0][n] = f"v{n}"
        eventually(lambda: words in str(here.sender.lag()))
        assert here.sender.is_running
        assert here.sender.status == "Running, not Connected"
        assert here.sender.lag()["events"] == 20
        assert len(there.caches[0].region("data")) == 0
        # The other site takes what this one speaks: its member starts again with other options.
        host, port = there.locator.address
        there.caches[0].close()
        given = None if ny is None else {**ssl_of("again"), **ny, "enabled_components": "gateway"}
        with pywan.Cache("ln_again", locators=f"{host}[{port}]", ssl=given) as again:
            region = again.create_region("data", type="PARTITION")
            again.create_gateway_receiver(start_port=0, end_port=0)
            eventually(lambda: dict(region.items()) == {n: f"v{n}" for n in range(20)}, 30)
            eventually(lambda: here.sender.lag()["events"] == 0)
            here.sender.stop()


def test_a_site_whose_locators_are_not_believed_is_named(ssl_of, tmp_path):
    """The sender says why, and not only that it finds no receiver."""
    with contextlib.ExitStack() as stack:
        there = Site(stack, "ln", 2, ssl_of)
        here = Site(stack, "ny", 1, ssl_of, remote=str(there.locator.address))
        eventually(lambda: 2 in here.locator.known_sites())
        other = Authority("another")
        here.send_to(there)
        here.create_region()
        eventually(lambda: here.sender.status == "Running and Connected")
        for name in ("loc_ln", "ln_0"):
            other.certificate(name).write(tmp_path, name)
        there.locator.reload_certificates()
        there.caches[0].reload_certificates()
        there.receiver.stop()
        here.regions[0]["k"] = 1
        eventually(lambda: "the certificate of the other end is refused" in str(here.sender.lag()))


def test_a_cipher_that_does_not_exist_is_refused(ssl_of):
    """C-149."""
    with pytest.raises(ConfigurationError, match="there is no cipher 'ROT13' here"):
        pywan.Locator("loc", distributed_system_id=1, port=0, ssl=ssl_of("loc", ciphers="ROT13"))


def test_a_certificate_is_renewed_under_load(ssl_of, tmp_path, authority, monkeypatch):
    monkeypatch.setattr(links, "LOOK_S", 0.0)
    with two(ssl_of) as (ny, ln):
        for n in range(10):
            authority.certificate(f"ln_0 {n}").write(tmp_path, "ln_0")
            ny.regions[0][n] = n
            ny.sender.stop()
            ny.sender.start()
        eventually(lambda: len(ln.regions[0]) == 10)


def test_a_member_whose_certificate_is_of_another_authority_does_not_join(ssl_of, tmp_path):
    other = Authority("another")
    wrong = options(tmp_path, other, other.certificate(), "wrong")
    with pywan.Locator("loc", distributed_system_id=1, port=0, ssl=ssl_of("loc")) as locator:
        with pytest.raises(ConnectivityError, match="its authority is unknown"):
            pywan.Cache("m", locators=str(locator.address), join_timeout=1.0, ssl=wrong)
        assert locator.members() == []
