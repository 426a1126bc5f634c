"""Users and the network do something wrong. There is a clear error at the right place, the process lives on, and
nothing is lost."""

import contextlib
import os
import random
import socket
import struct
import time

import msgpack
import pytest

import pywan
from pywan import _core
from pywan.base.lines import LINES_AT_ONCE
from pywan.errors import (
    CacheXmlError,
    ConfigurationError,
    ConnectivityError,
    EventTooLargeError,
    GatewaySenderConfigurationError,
    NoLocatorError,
    NotFoundError,
    ProtocolError,
    RegionNotFoundError,
    SerializationError,
)
from pywan.protocol.gateway import ClientHello, encode
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.openings import OPENING_TIMEOUT_S
from support.ports import free_port
from support.strangers import answer, hello

# Finding a site


def test_no_locator_there(network):
    """C-133: nobody listens, or what listens is no locator."""
    ny = network.site("ny")
    port = free_port()
    with pytest.raises(NoLocatorError, match=f"127.0.0.1\\[{port}\\]"):
        pywan.Cache("lonely", locators=f"127.0.0.1[{port}]", join_timeout=0.5)
    with pytest.raises((ProtocolError, NoLocatorError, NotFoundError, ConnectivityError)):
        pywan.Cache("misled", locators=f"127.0.0.1[{ny.cache.port}]", join_timeout=1.0)
    with pytest.raises(NoLocatorError):
        pywan.Cache("careless", locators="")
    for wrong in ("127.0.0.1", "127.0.0.1[x]", "127.0.0.1[70000]", "[10334]"):
        with pytest.raises(ConfigurationError):
            pywan.Cache("wrong", locators=wrong)


def test_a_busy_port_is_named(network):
    ny = network.site("ny")
    with pytest.raises(ConnectivityError, match=f"port {ny.locator.port} is in use"):
        pywan.Locator("second", distributed_system_id=1, port=ny.locator.port).start()
    with pytest.raises(ConnectivityError, match=f"port {ny.cache.port} is in use"):
        pywan.Cache("second", locators=str(ny.locator.address), port=ny.cache.port)
    ny.region()["k"] = 1


def test_a_name_that_is_taken(network):
    ny = network.site("ny")
    with pytest.raises(pywan.PywanError, match="server_ny"):
        pywan.Cache("server_ny", locators=str(ny.locator.address))
    ny.region()["k"] = 1


def test_the_own_site_as_remote(network):
    ny = network.site("ny")
    with pytest.raises(GatewaySenderConfigurationError, match="this site's own id"):
        ny.send_to("ny", id="self")


def test_an_unknown_remote_site_is_said_and_waited_for(network):
    """No error at creation: the site may come. The cause of the lag names it."""
    ny = network.site("ny")
    sender = ny.send_to("hk", parallel=True)
    ny.region()["k"] = 1
    eventually(lambda: "site 4 is not known" in sender.lag()["cause"] and "remote-locators" in sender.lag()["cause"])
    assert sender.is_running and not sender.is_connected and sender.queue_size == 1


def test_a_known_site_without_receiver_is_said(network):
    ny, ln = network.add("ny ln")
    sender = ny.send_to(ln, parallel=True)
    ny.region()["k"] = 1
    eventually(lambda: "no receiver of site 2" in sender.lag()["cause"])


# Files


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('<!DOCTYPE cache [<!ENTITY a "b">]>\n<cache/>', 1, "DTD|DOCTYPE|entit"),
        ("<cache>\n  <gateway-sendr id='ln'/>\n</cache>", 2, "gateway-sendr"),
        ("<cache>\n\n  <gateway-sender id='ln' remote-distributed-system-id='two'/>\n</cache>", 3, "two"),
        ("<cache>\n  <gateway-sender id='ln' remote-distributed-system-id='1'/>\n</cache>", 2, "own id"),
        (
            (
                "<cache>\n  <gateway-sender id='ln' remote-distributed-system-id='2'>\n"
                " <gateway-event-filter><class-name>nowhere:F</class-name></gateway-event-filter></gateway-sender>\n"
                "</cache>"
            ),
            3,
            "nowhere",
        ),
        ("<cache>\n  <gateway-receiver start-port='9' end-port='5'/>\n</cache>", 2, "end"),
        ("<cache>\n  <region", 2, "region|XML|token|element"),
    ],
)
def test_a_wrong_cache_xml_is_told_by_file_and_line(network, tmp_path, text, line, says):
    ny = network.site("ny")
    file = tmp_path / "wrong.xml"
    file.write_text(text)
    with pytest.raises(CacheXmlError, match=says) as raised:
        pywan.Cache("other", locators=str(ny.locator.address), cache_xml_file=file)
    assert f"wrong.xml:{line}" in str(raised.value)
    eventually(lambda: [m["name"] for m in ny.locator.members()] == ["server_ny"])


def test_a_cache_xml_that_is_not_there(network, tmp_path):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match=r"absent.xml"):
        pywan.Cache("other", locators=str(ny.locator.address), cache_xml_file=tmp_path / "absent.xml")


# Keys and values


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "with-a-listener"])
def test_what_cannot_be_stored_is_refused_and_changes_nothing(two_sites, network, slow):
    ny, ln = two_sites
    if slow:
        ny.keep_history()
    ny.data["k"] = "before"
    for key, value, error, says in (
        ("k", object(), SerializationError, "register_serializer"),
        ("k", {"deep": [object()]}, SerializationError, "object"),
        ("k", "\ud800", SerializationError, "UTF-8"),
        (object(), 1, SerializationError, "object"),
        (None, 1, SerializationError, "None"),
        ("k" * 65_536, 1, EventTooLargeError, "65535"),
        (b"k" * 70_000, 1, EventTooLargeError, "limit"),
        ("k", bytes((60 << 20) + 1), EventTooLargeError, "limit"),
        ("k", lambda: 0, SerializationError, "function"),
    ):
        with pytest.raises(error, match=says):
            ny.data[key] = value
    with pytest.raises(EventTooLargeError, match="callback argument"):
        ny.data.put("k", 1, callback_argument="x" * 70_000)
    with pytest.raises(KeyError):
        del ny.data["absent"]
    with pytest.raises(KeyError):
        ny.data["absent"]
    network.settle()
    assert dict(ny.data) == dict(ln.data) == {"k": "before"}
    assert ny.sender(ln).ledger()["received"] == 1


def test_wrong_columns_change_nothing(two_sites, network):
    ny, ln = two_sites
    for call in (
        lambda: ny.data.put_columns([b"a", b"b"], [b"1"]),
        lambda: ny.data.put_columns([b"a"], None),
        lambda: ny.data.put_columns([b"a"], [b"1"], operations=["explode"]),
        lambda: ny.data.put_columns([b"a"], [b"1"], operations=["update"] * 2),
        lambda: ny.data.put_columns([b"a"], [b"1"], timestamps=[1, 2]),
        lambda: ny.data.put_columns(5, 6),
        lambda: ny.data.put_columns(None, None),
    ):
        with pytest.raises((pywan.PywanError, TypeError)):
            call()
    network.settle()
    assert len(ny.data) == len(ln.data) == 0


def test_rows_that_cannot_be_stored_are_listed(two_sites, network):
    import pyarrow

    ny, ln = two_sites
    keys = pyarrow.array(["a", None, "b", "k" * 70_000])
    with pytest.raises(pywan.BatchError) as raised:
        ny.data.put_columns(keys, pyarrow.array([b"1", b"2", b"3", b"4"]))
    assert [row for row, _ in raised.value.failures] == [1, 3]
    network.settle()
    assert dict(ln.data) == {"a": b"1", "b": b"3"}


def test_names_that_are_not_there(network):
    ny = network.site("ny")
    for call in (lambda: ny.cache.region("absent"), lambda: ny.cache.destroy_region("absent")):
        with pytest.raises(RegionNotFoundError, match="absent"):
            call()
    with pytest.raises(NotFoundError, match="absent"):
        ny.cache.gateway_sender("absent")
    with pytest.raises(NotFoundError):
        ny.cache.destroy_gateway_receiver()
    with pytest.raises(ConfigurationError, match="EXPLODE"):
        ny.region(type="EXPLODE")
    for name in ("", "../up", "a b", "-x", "x" * 300):
        with pytest.raises(ConfigurationError):
            ny.region(name)
    ny.region("here")
    with pytest.raises(pywan.IllegalStateError, match="exists already"):
        ny.region("here")


# The network


def frame(type=4, length=0, payload=b"", magic=None, crc=None):
    """A frame as it goes over the wire, with any length in its head."""
    good = bytearray(_core.pack_frame(_core.FRAME_BATCH, payload))
    good[4] = type
    if magic is not None:
        good[0:4] = magic
    if length:
        struct.pack_into("<I", good, 8, length)
    if crc is not None:
        struct.pack_into("<I", good, 12, crc)
    return bytes(good)


HOSTILE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "short-http": b"GET /\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "2GB": frame(length=2**31),
    "4GB": frame(length=2**32 - 1),
    "checksum": frame(type=1, payload=b"x" * 40, crc=1),
    "not-msgpack": _core.pack_frame(_core.FRAME_HELLO, b"\xc1\xc1\xc1"),
    "not-a-map": _core.pack_frame(_core.FRAME_HELLO, msgpack.packb([1, 2])),
    "no-kind": _core.pack_frame(_core.FRAME_HELLO, msgpack.packb({"a": 1})),
    "missing-fields": _core.pack_frame(_core.FRAME_HELLO, msgpack.packb({"kind": "gateway"})),
    "types": _core.pack_frame(
        _core.FRAME_HELLO,
        msgpack.packb(
            {
                "kind": "gateway",
                "site": "x",
                "remote_site": 2,
                "member": 1,
                "sender": b"",
                "dispatcher": 0,
                "numbering": 1,
                "mount": 1,
                "partitions": 1,
                "version": 1,
            }
        ),
    ),
    "old-version": hello(version=99),
    "wrong-site": hello(remote_site=9),
    "own-site": hello(site=2),
    "no-partitions": hello(partitions=0),
    "many-partitions": hello(partitions=10**6),
    "negative": hello(partitions=-1),
    "nested": _core.pack_frame(_core.FRAME_HELLO, b"\x91" * 20_000),
    "batch-first": frame(payload=b"x" * 64),
}


@pytest.fixture
def busy(network):
    """NY writes to LN all the while."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    ny.data["before"] = 1
    network.settle()
    return ny, ln


def still_works(network, ny, ln):
    key = random.random()
    ny.data[key] = 1
    network.settle()
    assert ln.data[key] == 1 and ny.sender(ln).is_connected
    assert ln.receiver.stats["exceptions_occurred"] == 0


@pytest.mark.parametrize("what", HOSTILE)
def test_garbage_on_the_receivers_port_costs_its_sender_the_connection_at_once(busy, network, caplog, what):
    ny, ln = busy
    began = time.monotonic()
    answer(ln.receiver.port, HOSTILE[what])
    assert time.monotonic() - began < OPENING_TIMEOUT_S
    eventually(lambda: "gateway receiver: connection from" in caplog.text)
    assert "Traceback" not in caplog.text
    still_works(network, ny, ln)


def batch_of(records=b"", sections=1, **changes):
    section = dict(partition=0, count=1, first=1, through=1, acknowledged=0, bytes=len(records)) | changes
    head = struct.pack("<II", sections, 0) + struct.pack("<IIQQQQ", *section.values())
    return _core.pack_frame(_core.FRAME_BATCH, head + records, 0, section["count"])


HOSTILE_LATER = {
    "http": HOSTILE["http"] + bytes(32),
    "2GB": frame(length=2**31),
    "checksum": frame(payload=b"x" * 64, crc=5),
    "zeros": bytes(256),
    "unknown-type": frame(type=99),
    "hello-again": hello(),
    "empty-batch": frame(),
    "no-records": batch_of(),
    "garbage-record": batch_of(b"\xff" * 96),
    "zero-record": batch_of(bytes(96)),
    "many-sections": batch_of(sections=2**31),
    "wrong-partition": batch_of(bytes(96), partition=60_000),
    "huge-section": batch_of(bytes(96), bytes=2**63),
    "acknowledgement": frame(type=5, payload=bytes(16)),
    "region-name": _core.pack_frame(3, b"\xff\xfe", 1),
    "region-number": _core.pack_frame(3, b"data", 2**40),
}


@pytest.mark.parametrize("what", HOSTILE_LATER)
def test_garbage_after_a_good_opening_too(busy, network, caplog, what):
    ny, ln = busy
    answer(ln.receiver.port, hello(), HOSTILE_LATER[what])
    eventually(lambda: "given up" in caplog.text)
    assert "Traceback" not in caplog.text and len(ln.data) == 1
    still_works(network, ny, ln)


@pytest.mark.parametrize("what", HOSTILE)
def test_garbage_on_a_members_port(busy, network, caplog, what):
    """Control and clients' rows share it."""
    ny, ln = busy
    began = time.monotonic()
    answer(ln.cache.port, HOSTILE[what])
    assert time.monotonic() - began < OPENING_TIMEOUT_S
    assert "Traceback" not in caplog.text
    still_works(network, ny, ln)
    assert ln.cache._core.state.membership.is_connected


def test_connections_that_say_nothing_and_go(busy, network, caplog):
    ny, ln = busy
    for port in (ln.receiver.port, ln.cache.port):
        for _ in range(50):
            socket.create_connection(("127.0.0.1", port)).close()
        half = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for sock in half:
            sock.sendall(b"PW")
        still_works(network, ny, ln)
        for sock in half:
            sock.close()
    eventually(lambda: ln.receiver.connection_count == 2)
    assert "Traceback" not in caplog.text


def test_random_bytes(busy, network, caplog):
    ny, ln = busy
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    good = hello()
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        # It may be given up while we still send.
        with (
            socket.create_connection(("127.0.0.1", ln.receiver.port), timeout=LIMIT_S) as sock,
            contextlib.suppress(OSError),
        ):
            sock.sendall(bytes(data) + rng.randbytes(rng.randint(0, 300)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    still_works(network, ny, ln)
    assert "Traceback" not in caplog.text


# Disks that are full are in test_overflow.py; a folder that cannot be used is here.


def test_a_folder_that_cannot_be_used(network, tmp_path):
    ny = network.site("ny")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises((pywan.PywanError, OSError), match="file"):
        pywan.Cache("other", locators=str(ny.locator.address), dir=file)
    assert [m["name"] for m in ny.locator.members()] == ["server_ny"]


def test_a_cache_that_failed_to_start_leaves_nothing(network, tmp_path, monkeypatch):
    """No thread, no listener, no temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    port = free_port()
    with pytest.raises(NoLocatorError):
        pywan.Cache("lonely", locators=f"127.0.0.1[{port}]", join_timeout=0.2)
    assert os.listdir(tmp_path) == []


def test_openings_of_others_are_no_flood_of_lines(network, caplog):
    """Each opening of a sender is right and names another queue. Each client goes away within its opening."""
    caplog.set_level("INFO")
    _, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    client = encode(ClientHello(ln.data.name, os.urandom(16), 1), _core.FRAME_HELLO)
    caplog.clear()
    for n in range(3 * LINES_AT_ONCE):
        with socket.create_connection(("127.0.0.1", ln.receiver.port), timeout=LIMIT_S) as sock:
            sock.sendall(hello(numbering=n + 1))
            assert b"welcome" in sock.recv(4096)
        with socket.create_connection(("127.0.0.1", ln.cache.port), timeout=LIMIT_S) as sock:
            sock.sendall(client[:20])
            sock.shutdown(socket.SHUT_WR)
            sock.recv(4096)
    texts = [record.getMessage() for record in caplog.records]
    for words in (": new queue ", "client 127.0.0.1"):
        # A second period may begin meanwhile on a slow machine.
        assert 0 < len([text for text in texts if words in text]) <= 2 * LINES_AT_ONCE, words
