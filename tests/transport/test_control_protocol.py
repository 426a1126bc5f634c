"""Control messages: their bytes, their bounds, and the server and client around them."""

import contextlib
import socket
import threading
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from pywan import errors
from pywan._core import measure_message
from pywan.protocol import control as wire
from pywan.protocol.control import Decoder, encode
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport import sockets
from pywan.transport.control import ControlClient, ControlServer, Reply, dispatch


def frame_of(payload: bytes, magic=b"PWC1", length=None, request_id=1) -> bytes:
    return (
        wire.HEADER.pack(magic, len(payload) if length is None else length, wire.crc32c(payload), request_id) + payload
    )


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=20)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(
    bodies=st.lists(
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), plain, max_size=4),
        min_size=1,
        max_size=4,
    ),
    step=st.integers(1, 50),
)
def test_messages_survive_any_division_into_pieces(bodies, step):
    stream = b"".join(encode(i, body) for i, body in enumerate(bodies))
    decoder = Decoder()
    messages = [m for at in range(0, len(stream), step) for m in decoder.feed(stream[at : at + step])]
    assert [(m.request_id, m.body) for m in messages] == list(enumerate(bodies))
    assert decoder.buffered == 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_do_more_than_raise_a_protocol_error(data, framed):
    decoder = Decoder()
    with contextlib.suppress(errors.ProtocolError):
        decoder.feed(frame_of(data) if framed else data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS hello"),
        (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"PWD1" + bytes(12), "data connection"),
        (b"PWC2" + bytes(12), "another version"),
        (b"\xac\xed\x00\x05sr", "Java serialization"),
        (bytes(64), "zeros"),
        (b"\x91", "first bytes are"),
        (frame_of(b"x", length=2**31), "2147483648 bytes announced"),
        (frame_of(b"x", length=wire.MAX_PAYLOAD_BYTES + 1), "the limit is"),
        (frame_of(b"\x80")[:-1] + b"\x81", "damaged"),
        (frame_of(b"\xc1"), "not msgpack"),
        (frame_of(b"\x93\x01"), "not msgpack"),
        (frame_of(msgpack.packb([1])), "not a map"),
        (frame_of(msgpack.packb({1: 2})), "not msgpack"),
        (frame_of(msgpack.packb({b"k": 2})), "not a string"),
        (frame_of(msgpack.packb({"a": msgpack.ExtType(5, b"x")})), "extension type 5"),
        (frame_of(msgpack.packb({"a": msgpack.Timestamp(1)})), "Timestamp"),
        (frame_of(b"\x81\xa1a" + b"\x91" * 900 + b"\xc0"), "more than 32"),
        (frame_of(b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0"), "more than 32"),
        (frame_of(b"\x81\xa1a\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20)), "more than 524288 values"),
        (frame_of(b"\x81\xa1a\xdf\x00\x00\x00\x09\xa1k\xc0"), "announces more than it holds"),
        (frame_of(b"\x81\xa1a\xdd\xff\xff\xff\xff"), "not msgpack"),
        (frame_of(b"\x80\x80"), "not msgpack"),
    ],
)
def test_foreign_and_damaged_bytes_are_refused_in_words(data, says):
    with pytest.raises(errors.ProtocolError, match=says):
        Decoder().feed(data)


def test_a_message_of_empty_lists_is_refused_before_memory_is_taken():
    lists = wire.MAX_PAYLOAD_BYTES - 8
    payload = b"\x81\xa1a\xdd" + lists.to_bytes(4, "big") + b"\x90" * lists
    frame = frame_of(payload)
    tracemalloc.start()
    try:
        with pytest.raises(errors.ProtocolError, match="more than 524288 values"):
            Decoder().feed(frame)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(frame)  # Its bytes, copied, and nothing besides.
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [{"k" * 8_000_000: {"a": {1: 2}}}, {"op": "o" * 8_000_000}, {"op": "ping", "x" * 8_000_000: 1}],
    ids=["key", "op", "option"],
)
def test_what_an_error_quotes_is_cut(server, body, caplog):
    sock = sockets.connect((server.host, server.port), 5)
    with sock:
        sock.sendall(frame_of(msgpack.packb(body)))
        sock.settimeout(LIMIT_S)
        received = sock.recv(1 << 20)
        while received and len(received) < 16 + int.from_bytes(received[4:8], "little"):
            received += sock.recv(1 << 20)
    assert len(received) < 5000
    eventually(lambda: received or caplog.records, what="the refusal")
    assert all(len(record.getMessage()) < 5000 for record in caplog.records)


@given(plain)
@settings(max_examples=100, deadline=None)
def test_a_message_is_measured_as_it_is(value):
    def count(item):
        inside = (
            [x for pair in item.items() for x in pair]
            if isinstance(item, dict)
            else item
            if isinstance(item, list)
            else []
        )
        return 1 + sum(map(count, inside))

    payload = msgpack.packb(value, use_bin_type=True)
    assert measure_message(payload, 1 << 19, 32) == (count(value), None)
    assert all(measure_message(payload[:end], 1 << 19, 32)[1] == "cut" for end in range(len(payload)))


def test_only_plain_values_can_be_sent():
    for body in ({"a": object()}, {"a": {1: 2}}, {"a": 2**65}, {"a": "\ud800"}, {"a": {1, 2}}, ["a"]):
        with pytest.raises(errors.SerializationError):
            encode(1, body)
    with pytest.raises(errors.SerializationError, match="ask for less"):
        encode(1, {"op": "put", "value": bytes(wire.MAX_PAYLOAD_BYTES)})


def test_an_error_crosses_the_wire_by_name():
    class Special(errors.RegionNotFoundError):
        pass

    reply = wire.error_reply(Special("no region /data"))
    assert isinstance(wire.error_of(reply), errors.RegionNotFoundError)
    assert type(wire.error_of({"ok": False, "kind": "importlib", "error": "x"})) is errors.RemoteError
    assert type(wire.error_of(wire.error_reply(ZeroDivisionError("x")))) is errors.InternalError


# --- server and client -------------------------------------------------------------------------------------------


def _count(request, peer):
    for i in range(request["to"]):
        yield {"at": i}
    return {"counted": request["to"]}


def _refuse(request, peer):
    raise errors.RegionNotFoundError("no region /x; create it first")


def _echo(request, peer):
    return {"fields": request, "peer": peer[0]}


def _bug(request, peer):
    return {"x": 1 / 0}


def _takes_all_memory(request, peer):
    return {"x": bytes(1 << 62)}


@pytest.fixture
def stopped():
    return threading.Event()


@pytest.fixture
def server(stopped):
    handlers = {
        "echo": _echo,
        "refuse": _refuse,
        "bug": _bug,
        "takes all memory": _takes_all_memory,
        "count": _count,
        "nothing": lambda r, p: None,
        "unsendable": lambda r, p: {"x": object()},
        "after": lambda r, p: Reply(done=True, after=stopped.set),
    }

    def shout(connection, first):
        connection.opened()
        connection.sock.settimeout(None)
        while data := connection.sock.recv(100):
            connection.sock.sendall(first + data.upper())

    before = set(threading.enumerate())
    server = ControlServer(
        "127.0.0.1",
        0,
        dispatch(handlers, "the test server"),
        name="test",
        other_protocols={b"PWD1": shout},
        max_connections=8,
    )
    with server:
        yield server
    assert set(threading.enumerate()) <= before


def test_a_request_is_answered_or_refused_by_name(server, stopped):
    with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
        assert client.call("echo", a=[1, b"x"])["fields"] == {"op": "echo", "a": [1, b"x"]}
        with pytest.raises(errors.RegionNotFoundError, match="create it first"):
            client.call("refuse")
        with pytest.raises(errors.InternalError, match="ZeroDivisionError"):
            client.call("bug")
        with pytest.raises(errors.SerializationError):
            client.call("unsendable")
        with pytest.raises(errors.NotFoundError, match="it has after, bug, count, echo"):
            client.call("nonsense")
        assert client.call("nothing") == {"ok": True}
        seen = []
        assert client.call("count", to=3, _progress=lambda m: seen.append(m["at"]))["counted"] == 3
        assert seen == [0, 1, 2]
        assert client.call("after")["done"] and stopped.wait(LIMIT_S)


def test_want_of_memory_is_told_by_its_own_name_in_one_line(server, caplog):
    with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
        for _ in range(30):
            with pytest.raises(errors.OutOfMemoryError, match="out of memory"):
                client.call("takes all memory")
        assert client.call("nothing") == {"ok": True}
    said = [record for record in caplog.records if "out of memory" in record.getMessage()]
    assert 0 < len(said) < 30 and not any(record.exc_info for record in said)


def test_many_clients_are_served_at_once(server):
    failures = []

    def ask(n):
        try:
            with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
                for i in range(50):
                    assert client.call("echo", n=n * i)["fields"]["n"] == n * i
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    [t.start() for t in threads]
    [t.join(LIMIT_S) for t in threads]
    assert not failures


def test_a_bad_client_costs_only_its_connection_and_one_line(server, caplog):
    with ControlClient(("127.0.0.1", server.port), LIMIT_S) as good:
        good.call("echo")
        for bad in (
            b"GET / HTTP/1.1\r\n\r\n",
            frame_of(b"\x80", length=2**31),
            frame_of(b"\x80")[:-1] + b"\x00",
            b"PWC1\x05",
        ):
            caplog.clear()
            with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
                sock.sendall(bad)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(LIMIT_S)
                assert sock.recv(100) == b""
            assert len([r for r in caplog.records if r.name == "pywan.control"]) == 1
        assert good.call("echo")["ok"]


def test_other_protocols_share_the_port_and_end_with_the_server(server):
    sock = sockets.connect(("127.0.0.1", server.port), 5)
    sock.sendall(b"PWD1hello")
    got = b""
    while len(got) < 9:
        got += sock.recv(100)
    assert got == b"PWD1HELLO"
    server.stop()
    assert sock.recv(10) == b""
    sock.close()


def test_a_silent_or_slow_client_is_let_go():
    with ControlServer(
        "127.0.0.1", 0, _echo, name="test", first_bytes_timeout=0.1, frame_timeout=0.1, idle_timeout=0.1
    ) as server:
        for start in (b"", b"PW", b"PWC1\x10\x00"):
            with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
                sock.sendall(start)
                assert sock.recv(1) == b""
        with ControlClient(("127.0.0.1", server.port), LIMIT_S) as client:
            client.call("echo")
            client._sock.settimeout(LIMIT_S)
            assert client._sock.recv(1, socket.MSG_PEEK) == b""  # The server let the idle connection go ...
            assert client.call("echo")["ok"]  # ... and the client opens another.


def test_a_client_that_meets_something_else_says_what_it_is():
    listener = sockets.listen("127.0.0.1", 0)

    def serve():
        sock, _ = listener.accept()
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n")
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(errors.ProtocolError, match=r"not a pywan control port.*HTTP answer"):
        ControlClient(listener.getsockname(), LIMIT_S).call("ping")
    thread.join(LIMIT_S)
    listener.close()


def test_no_server_and_no_answer_are_told_apart():
    listener = sockets.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with (
        ControlClient(("127.0.0.1", port), 0.2) as client,
        pytest.raises(errors.ConnectivityError, match=r"no reply within 0.2 s"),
    ):
        client.call("ping")
    listener.close()
    with pytest.raises(errors.ConnectivityError, match=rf"127.0.0.1\[{port}\].*refused"):
        ControlClient(("127.0.0.1", port), 1).call("ping")


def test_close_breaks_off_a_call_in_another_thread():
    listener = sockets.listen("127.0.0.1", 0)
    client = ControlClient(listener.getsockname(), LIMIT_S)
    caught = []

    def ask():
        try:
            client.call("ping")
        except errors.ConnectivityError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    accepted, _ = listener.accept()
    accepted.recv(1)
    client.close()
    thread.join(LIMIT_S)
    assert caught and not thread.is_alive()
    accepted.close()
    listener.close()


def test_a_busy_or_impossible_port_is_named():
    with sockets.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sockets.PortInUseError, match=f"port {port}"):
            ControlServer("127.0.0.1", port, _echo, name="server_ny")
    with pytest.raises(errors.ConfigurationError, match="65535"):
        sockets.listen("127.0.0.1", 70000)
    with pytest.raises(errors.ConfigurationError, match="not an address of this machine"):
        sockets.listen("192.0.2.1", 0)


def test_the_bytes_are_those_of_the_documentation():
    assert encode(1, {"op": "ping"}) == bytes.fromhex("50574331090000006fb5c0670100000081a26f70a470696e67")
