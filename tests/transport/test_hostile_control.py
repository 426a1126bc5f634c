"""Control messages of people who wish harm: one rule for names, nothing that a terminal obeys, replies instead of
tracebacks, bounded work.
"""

import io
import json
import logging
import re
import threading

import pytest

import fuzz_control
import pywan
from pywan.base.names import is_name, printable, printable_json, quoted
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output, Result, Table
from pywan.cli.session import Session
from pywan.errors import ConfigurationError, PywanError, RemoteError
from pywan.member.process import MemberFiles, configure_logging
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlClient, ControlServer, call_once
from support.strangers import answer, hello

BAD_NAMES = (
    "",
    ".",
    "..",
    "../up",
    "a/b",
    "a\\b",
    "a b",
    "a\nb",
    "\x1b[2J",
    "a\0b",
    "-x",
    "é",
    "\u202etxt",
    "x" * 256,
    7,
    None,
    ["a"],
    {},
    b"a",
)
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_that_is_none_is_refused_wherever_it_comes_in(network, name, tmp_path):
    ny = network.site("ny")
    region = ny.region()
    with pytest.raises(ConfigurationError):
        pywan.Locator(name, distributed_system_id=1, port=0, dir=tmp_path)
    with pytest.raises(ConfigurationError):
        pywan.Cache(name, locators=str(ny.locator.address))
    with pytest.raises(ConfigurationError):
        MemberFiles.of(tmp_path, name)
    for make in (
        lambda: ny.cache.create_gateway_sender(name, remote_distributed_system_id=2),
        lambda: ny.cache.create_disk_store(name),
        lambda: ny.cache.create_region(name),
    ):
        with pytest.raises(ConfigurationError):
            make()
    if name not in ("", None):  # They mean: none.
        with pytest.raises(ConfigurationError):
            region.alter(gateway_sender_ids=[name])
    if isinstance(name, (bytes, list)):
        return  # Not in the tuple below.
    profile = {"name": name, "member_id": 1, "host": "127.0.0.1", "port": 1}
    for fields in (
        {"op": "member-join", "profile": profile},
        {"op": "locator-join", "from": {"distributed_system_id": 2, "host": "h", "port": 1, "name": name}},
    ):
        with pytest.raises(PywanError, match=r"profile|name"):
            call_once(ny.locator.address, **fields)
    with pytest.raises(PywanError, match="not a name"):
        call_once(("127.0.0.1", ny.cache.port), "create region", name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [n for n in BAD_NAMES if isinstance(n, str)], ids=repr)
def test_a_sender_with_such_a_name_is_not_welcome(network, name, caplog):
    _ny, ln = network.add("ny ln")
    ln.receive()
    for fields in ({"sender": name}, {"member": name}):
        assert b"not a name" in answer(ln.receiver.port, hello(**fields))
    assert not OBEYED.search("".join(record.getMessage() for record in caplog.records))
    assert ln.receiver.connected_senders == []


def test_names_are_those_of_the_documentation():
    assert all(map(is_name, ("a", "A.b-c_d", "9", ".hidden", "..a", "x" * 255)))
    assert not any(map(is_name, BAD_NAMES))


def test_what_a_terminal_would_obey_is_shown():
    assert printable("a\x1b[2Jb\n\t\x9b\u202e\ud800") == r"a\x1b[2Jb\n\t\x9b\u202e\ud800"
    assert printable("line 1\n\tline 2\r\x1b", lines=True) == "line 1\n\tline 2\\r\\x1b"
    assert printable("é ✓ 漢字") == "é ✓ 漢字"
    text = {"k": "\x9b\u202e\x7f\x1b\u2028"}
    shown = printable_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(shown) == text and not OBEYED.search(shown)
    assert len(quoted("x" * 10_000_000)) <= 80 and len(quoted(["\x1b" * 1000] * 100_000)) <= 200


@pytest.mark.parametrize("as_json", [False, True])
def test_a_terminal_is_given_nothing_that_it_obeys(as_json):
    said = io.StringIO()
    output = Output(as_json, said, said)
    evil = "\x1b]0;owned\x07\x9b2J\u202e"
    output.show(
        "x",
        Result(
            data={"k": evil},
            lines=[evil],
            notes=[evil],
            errors=[evil],
            tables=[Table(("A", "B"), [(evil, [evil, {evil: evil.encode()}])], title="t")],
        ),
    )
    output.echo(evil)
    output.note(evil)
    assert "owned" in said.getvalue() and not OBEYED.search(said.getvalue())


def test_a_line_of_the_log_is_one_line():
    said = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        configure_logging("info", said)
        logging.getLogger("pywan.test").warning("name %s", "\x1b[31mred\n2026-01-01 00:00:00 ERROR forged")
        try:
            raise ValueError("\x1b[2J")
        except ValueError:
            logging.getLogger("pywan.test").exception("failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = said.getvalue().splitlines()
    assert (
        r"\x1b[31mred\n2026" in lines[0]
        and "failed" in lines[1]
        and lines[2].startswith("Traceback")
        and not OBEYED.search(said.getvalue())
    )


def test_what_another_side_gives_as_its_reason_is_one_line_without_controls():
    def refuse(request, peer):
        raise RemoteError("no\x1b[2J\nreally")

    with (
        ControlServer("127.0.0.1", 0, refuse, name="liar") as server,
        pytest.raises(RemoteError, match=r"^no\\x1b\[2J\\nreally$"),
    ):
        call_once(("127.0.0.1", server.port), "ping")


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "member-leave", "name": ["m"], "member_id": {}},
        {"op": "member-heartbeat", "name": {"a": 1}, "member_id": []},
        {"op": "member-heartbeat", "name": [[]]},
        {"op": "receiver", "exclude": [[1]]},
        {"op": "remote-locators", "distributed_system_id": {}},
    ],
)
def test_a_locator_answers_what_cannot_be_a_key(network, fields, caplog):
    ny = network.site("ny")
    with ControlClient(("127.0.0.1", ny.locator.port)) as client:
        try:
            client.call(**fields)
        except PywanError as error:
            assert "internal" not in str(error)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "status gateway-sender", "id": {}},
        {"op": "describe region", "name": []},
        {"op": "get", "region": ["data"], "key": 1},
    ],
)
def test_a_member_answers_what_cannot_be_a_key(network, fields, caplog):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match="not a name"):
        call_once(("127.0.0.1", ny.cache.port), **fields)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("op", ["create region", "create gateway-sender", "create gateway-receiver"])
@pytest.mark.parametrize("value", [None, 1])
def test_an_attribute_that_is_none_is_refused_by_name(network, op, value):
    ny = network.site("ny")
    needed = {
        "create region": {"name": "r"},
        "create gateway-sender": {"id": "s", "remote_distributed_system_id": 2},
    }.get(op, {})
    with pytest.raises(ConfigurationError, match="no attribute 'wings'"):
        call_once(("127.0.0.1", ny.cache.port), op, wings=value, **needed)


def test_a_locator_lives_through_a_megabyte_of_invented_sites(network, caplog):
    """It spends no time on them, believes none, and tells nobody of them."""
    ny, ln = network.add("ny ln")
    sites = [
        {"distributed_system_id": n % 256, "host": f"10.{n >> 8 & 255}.{n & 255}.1", "port": 1, "name": "n", "stamp": 1}
        for n in range(16_448)
    ]
    joiner = {"distributed_system_id": 77, "host": "10.9.9.9", "port": 1, "name": "evil", "stamp": 2**62 - 1}
    own = {
        "distributed_system_id": 99,
        "host": ny.locator.host,
        "port": ny.locator.port,
        "name": "evil",
        "stamp": 2**62 - 1,
    }
    other = {
        "distributed_system_id": 99,
        "host": ln.locator.host,
        "port": ln.locator.port,
        "name": "evil",
        "stamp": 2**62 - 1,
    }
    with ControlClient(("127.0.0.1", ny.locator.port), LIMIT_S) as client:
        for claimed in (joiner, other):
            client.call(
                "locator-join",
                uid="evil",
                role="learned",
                **{"from": claimed},
                sites=[*sites, own, other],
                digest="x",
                digest_in_site="x",
            )
        assert client.call("known-sites")["sites"].keys() == {"1", "2"}
        assert len(client.call("status")["peers"]) <= 3
    assert "10.9.9.9" not in caplog.text
    network.discover()
    third = network.site("tk")
    eventually(lambda: set(third.locator.known_sites()) == {1, 2, 3})
    eventually(lambda: set(ln.locator.known_sites()) == {1, 2, 3})


@pytest.mark.parametrize(
    "reply",
    [
        {"servers": [{}]},
        {"servers": {"a": 1}},
        {"servers": [{"name": "\x1b[2J", "member_id": 1, "host": "h", "port": 1}]},
        {"type": "locator", "status": 7},
        {},
    ],
)
def test_a_locator_that_answers_nonsense_is_an_error_in_the_shell(reply):
    said = io.StringIO()
    with ControlServer("127.0.0.1", 0, lambda request, peer: reply, name="liar") as server:
        session = Session(COMMANDS, Output(out=said, err=said), f"127.0.0.1[{server.port}]")
        for line in ("list members", "list gateways", "status locator"):
            session.run_line(line)
    assert "error: " in said.getvalue() and "Traceback" not in said.getvalue() and not OBEYED.search(said.getvalue())


@pytest.mark.parametrize(("runs", "tls"), [(400, False), (150, True)], ids=["plain", "encrypted"])
def test_some_seconds_of_messages_with_wrong_types(runs, tls):
    """`make fuzz-python` does it for as long as one likes."""
    before = set(threading.enumerate())
    assert fuzz_control.fuzz(7, lambda done: done >= runs, tls=tls) == runs
    eventually(
        lambda: (
            set(threading.enumerate())
            <= before | {t for t in threading.enumerate() if t.name.startswith(("pywan-resolve", "ThreadPool"))}
        )
    )
