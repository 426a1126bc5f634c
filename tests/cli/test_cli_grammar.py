"""gfsh's grammar, properties, and what the program says when a line does not fit."""

from __future__ import annotations

import io
import json
import os
import re

import pytest

from pywan.cli import grammar, properties, shell
from pywan.cli.commands import COMMANDS
from pywan.cli.grammar import GrammarError, complete, parse, split_lines, tokenize
from pywan.cli.output import Output, Result, Table
from pywan.cli.session import Session
from pywan.config.typed_text import typed
from pywan.errors import ConfigurationError
from support.tree import ROOT

SCRIPT = """connect --locator=ny_host[10331]
create gateway-sender --id=ln --remote-distributed-system-id=2 --parallel=true
create gateway-sender --id=tk --remote-distributed-system-id=3 --parallel=true
create gateway-receiver
alter region --name=data --gateway-sender-id=ln,tk
"""


def values_of(line: str):
    command, values = parse(tokenize(line), COMMANDS)
    return command.name, values


def test_geodes_example_scripts_are_understood():
    assert [values_of(line) for _, line in split_lines(SCRIPT)] == [
        ("connect", {"locator": "ny_host[10331]"}),
        ("create gateway-sender", {"id": "ln", "remote_distributed_system_id": "2", "parallel": "true"}),
        ("create gateway-sender", {"id": "tk", "remote_distributed_system_id": "3", "parallel": "true"}),
        ("create gateway-receiver", {}),
        ("alter region", {"name": "data", "gateway_sender_ids": "ln,tk"}),
    ]


@pytest.mark.parametrize(
    "line",
    [
        r"start locator --name=a --port=1 --J=\'-Dgemfire.remote-locators=b[1],c[2]\'",
        "start locator --name=a --port=1 --J='-Dgemfire.remote-locators=b[1],c[2]'",
        "start locator --name a --port 1 --J=-Dgemfire.remote-locators=b[1],c[2]",
    ],
)
def test_geodes_start_commands_are_understood_however_they_are_quoted(line):
    name, values = values_of(line)
    assert (name, values["name"], values["port"]) == ("start locator", "a", "1")
    assert properties.gather(values["java"], None, []).get("remote-locators") == "b[1],c[2]"


def test_the_shells_literal_quotes_around_a_property_are_removed():
    assert properties.gather(["'-Dgemfire.remote-locators=b[1],c[2]'"], None, []).get("remote-locators") == "b[1],c[2]"


def test_quotes_group_values_and_stay_inside_words():
    assert tokenize('put --key=\'a b\' --value="it\'s" --x={"a":1} "c d"') == [
        "put",
        "--key=a b",
        "--value=it's",
        '--x={"a":1}',
        "c d",
    ]
    assert tokenize('alter region --gateway-sender-id=""') == ["alter", "region", "--gateway-sender-id="]
    with pytest.raises(GrammarError, match="not closed"):
        tokenize("put --key='a")


def test_scripts_have_comments_continuations_and_several_commands_a_line():
    text = "# first\n\nconnect \\\n  --locator=a[1]\n// x\nget --key='a;b'; version\nlist members"
    assert split_lines(text) == [
        (3, "connect  --locator=a[1]"),
        (6, "get --key='a;b'"),
        (6, "version"),
        (7, "list members"),
    ]


def test_flags_may_stand_alone_or_with_a_value():
    assert values_of("create gateway-sender --id=a --remote-distributed-system-id=2 --parallel --manual-start false")[
        1
    ] == {"id": "a", "remote_distributed_system_id": "2", "parallel": "true", "manual_start": "false"}
    assert values_of("create gateway-receiver --maximum-time-between-ping=5")[1] == {"maximum_time_between_pings": "5"}


@pytest.mark.parametrize(
    "line, words",
    [
        ("creat gateway-sender", ["create gateway-sender"]),
        ("create", ["create gateway-receiver", "create region"]),
        ("create gateway-sender --remote-distributed-system-id=2", ["--id is required"]),
        (
            "create gateway-sender --id=a --remote-distributed-systemid=2",
            ["did you mean --remote-distributed-system-id"],
        ),
        ("create gateway-receiver --start-port", ["--start-port needs a value"]),
        ("create gateway-receiver 5000", ["'5000'", "--name=value"]),
        ("get --region=a --region=b --key=c", ["given twice"]),
        ("disconnect --now", ["no option --now"]),
    ],
)
def test_a_line_that_does_not_fit_says_what_would(line, words):
    with pytest.raises(GrammarError) as caught:
        parse(tokenize(line), COMMANDS)
    for word in words:
        assert word in str(caught.value)


def test_completion_knows_commands_and_their_options():
    assert complete("start g", COMMANDS) == ["start gateway-receiver", "start gateway-sender"]
    assert complete("create gateway-sender --remote", COMMANDS) == [
        "create gateway-sender --remote-distributed-system-id="
    ]
    assert "create gateway-sender --id=a --parallel" in complete("create gateway-sender --id=a --p", COMMANDS)
    assert complete("create gateway-sender --id=", COMMANDS) == []
    assert "create gateway-sender --id=" not in complete("create gateway-sender --id=a --", COMMANDS)


@pytest.mark.parametrize(
    "line, help_for",
    [
        ("create gateway-sender --colour=red --id=a", "create gateway-sender"),
        ("create gateway-sender", "create gateway-sender"),
        ("create", "create"),
        ("dance", ""),
        ("put --key='a", ""),
        ("remove --region=data", "remove"),
        ("list gateways --senders-only --receivers-only", "list gateways"),
    ],
)
def test_a_usage_error_is_two_lines(line, help_for):
    session, out, err = session_with()
    assert session.run_line(line) is False
    what, how = err.getvalue().splitlines()
    assert what.startswith("error: ") and how == f"help:  help {help_for}".rstrip()
    assert out.getvalue() == "" and (not help_for or session.run(["help", *help_for.split()]))


def test_properties_come_from_the_strongest_source(tmp_path):
    (tmp_path / "gemfire.properties").write_text(
        "# site\ndistributed-system-id=3\nremote-locators: a[1]\njmx-manager-port=1\n"
    )
    chosen = tmp_path / "other"
    chosen.write_text("distributed-system-id=2\n")
    found = properties.gather([], None, [tmp_path])
    assert (found.get("distributed-system-id"), found.get("remote-locators")) == ("3", "a[1]")
    assert "jmx-manager-port has no meaning" in found.notes[0]
    assert properties.gather([], str(chosen), [tmp_path]).get("distributed-system-id") == "2"
    of_variable = ["-Dgemfire.distributed-system-id=4"]
    assert properties.gather([], str(chosen), [tmp_path], of_variable).get("distributed-system-id") == "4"
    given = properties.gather(["-Dgemfire.distributed-system-id=1"], str(chosen), [tmp_path], of_variable)
    assert given.get("distributed-system-id") == "1" and given.of_command_line == {"distributed-system-id"}


@pytest.mark.parametrize("way", ["command line", "variable", "file"])
def test_the_property_groups_is_refused_with_the_remedy(tmp_path, way):
    (tmp_path / "gemfire.properties").write_text("groups=east\n" if way == "file" else "groups=\n")
    option = ["-Dgemfire.groups=east"]
    with pytest.raises(ConfigurationError, match=r"groups=east is refused: members have no groups .*--member"):
        properties.gather(
            option if way == "command line" else (), None, [tmp_path], option if way == "variable" else ()
        )


@pytest.mark.parametrize(
    "command, remedy",
    [
        ("start server --name=s", "leave it out"),
        ("start locator --name=l", "leave it out"),
        ("create region --name=r", "name members with --member"),
        ("create gateway-sender --id=a --remote-distributed-system-id=2", "name members with --member"),
        ("create gateway-receiver", "name members with --member"),
        ("alter region --name=r", "name members with --member"),
    ],
)
def test_an_option_that_chooses_groups_is_refused_with_the_remedy(command, remedy):
    for option in ("--group=east", "--groups=east"):
        with pytest.raises(GrammarError, match=f"members have no groups in this version; {remedy}"):
            parse(tokenize(f"{command} {option}"), COMMANDS)


def test_an_option_that_is_not_given_comes_from_its_environment_variable():
    environment = {
        "PYWAN_NAME": "a",
        "PYWAN_PORT": "1",
        "PYWAN_FOREGROUND": "true",
        "PYWAN_J": "'-Dgemfire.locators=a[1]' -Xmx1g",
        "PYWAN_BIND_ADDRESS": "",
        "PYWAN_SERVER_PORT": "2",  # An option of another command.
    }
    _, values = parse(tokenize("start locator --port=3"), COMMANDS, environment)
    used = {"name": "PYWAN_NAME", "java": "PYWAN_J", "foreground": "PYWAN_FOREGROUND"}
    assert values == {
        "name": "a",
        "port": "3",
        "foreground": "true",
        "java": ["-Dgemfire.locators=a[1]", "-Xmx1g"],
        grammar.FROM_ENVIRONMENT: used,
    }
    assert grammar.FROM_ENVIRONMENT not in parse(tokenize("stop server --name=a"), COMMANDS, environment)[1]


@pytest.mark.parametrize("variable, value", [("PYWAN_FOREGROUND", "maybe"), ("PYWAN_J", "'-Dgemfire.locators=a")])
def test_an_environment_variable_that_cannot_be_is_named(variable, value):
    with pytest.raises(GrammarError, match=variable):
        parse(tokenize("start server --name=a"), COMMANDS, {variable: value})


def test_every_option_of_a_start_has_a_variable_that_its_help_names():
    for name in ("start locator", "start server"):
        command = next(c for c in COMMANDS if c.name == name)
        session, out, _ = session_with()
        assert session.run(["help", *name.split()])
        for option in command.options:
            assert option.variable == f"PYWAN_{option.key.upper()}".replace("PYWAN_JAVA", "PYWAN_J")
            assert option.variable in out.getvalue()


def test_properties_that_cannot_be_are_refused(tmp_path):
    for option in ("-Dgemfire.ssl-keystore=a.jks", "-Dgemfire.colour=red", "gemfire.name=x", "-Dgemfire.name"):
        with pytest.raises(ConfigurationError):
            properties.gather([option], None, [])
    (tmp_path / "gemfire.properties").write_text("a line\n")
    with pytest.raises(ConfigurationError, match=r"gemfire.properties:1: expected name=value"):
        properties.gather([], None, [tmp_path])
    with pytest.raises(ConfigurationError, match="cannot be read"):
        properties.gather([], str(tmp_path / "none"), [])
    assert "no Java machine" in properties.gather(["-Xmx1g"], None, []).notes[0]


def test_a_properties_file_with_a_password_is_for_its_owner_alone(tmp_path):
    file = tmp_path / "gemfire.properties"
    file.write_text("security-username=a\nsecurity-password=\n")
    file.chmod(0o644)
    assert properties.gather([], None, [tmp_path]).get("security-username") == "a"  # There is no password in it.
    file.write_text("gemfire.security-password : hunter2\n")
    for given in ((None, [tmp_path]), (str(file), [])):
        with pytest.raises(ConfigurationError, match=f"can be read or written by others .*chmod 600 {file}"):
            properties.gather([], *given)
    file.chmod(0o600)
    assert properties.gather([], None, [tmp_path]).get("security-password") == "hunter2"


@pytest.mark.parametrize(
    "text", ["hunter2", "=hunter2", "hunter2=1", "hunter2: 1", "security-passwort=hunter2", "hunter2\udcff"]
)
def test_an_error_about_properties_shows_no_password(tmp_path, text):
    file = tmp_path / "gemfire.properties"
    file.write_text(f"name=a\n{text}\n", errors="surrogateescape")
    with pytest.raises(ConfigurationError, match=str(file)) as refused:
        properties.gather([], None, [tmp_path])
    assert "hunter2" not in str(refused.value) and "0xff" not in str(refused.value)
    for option in ("hunter2", "-Dgemfire.security-password", "-Dgemfire.security-passwort=hunter2"):
        with pytest.raises(ConfigurationError) as refused:
            properties.gather([], None, [], [option])
        assert "hunter2" not in str(refused.value)
    found = properties.gather([], None, [], ["-Djavax.net.ssl.keyStorePassword=hunter2"])
    assert found.notes and "hunter2" not in found.notes[0]


def test_keys_and_values_have_types():
    assert [typed("1", t, "--key") for t in ("str", "int", "float", "java.lang.Integer")] == ["1", 1, 1.0, 1]
    assert typed('{"a": [1]}', "json", "--value") == {"a": [1]} and typed("00ff", "hex", "--value") == b"\x00\xff"
    for text, type_ in (("x", "int"), ("{", "json"), ("[" * 100_000, "json"), ("yes", "bool"), ("x", "colour")):
        with pytest.raises(ConfigurationError):
            typed(text, type_, "--key")


def session_with(*commands: grammar.Command, as_json: bool = False):
    out, err = io.StringIO(), io.StringIO()
    return Session([*commands, *COMMANDS], Output(as_json, out, err)), out, err


def fails(session, values):
    raise ConfigurationError("no way")


def works(session, values):
    return Result(data={"n": b"\x00"}, tables=[Table(("A", "B"), [("x", 1)])])


def test_a_script_stops_at_the_first_failure_unless_told_to_go_on(tmp_path):
    file = tmp_path / "x.gfsh"
    file.write_text("works\nfails\nworks\n")
    commands = grammar.Command("works", "", works), grammar.Command("fails", "", fails)
    session, out, err = session_with(*commands)
    assert session.run(["run", f"--file={file}"]) is False
    assert (
        out.getvalue().count("│ x") == 1
        and "no way" in err.getvalue()
        and "x.gfsh:2: `fails` failed; the rest was not run" in err.getvalue()
    )
    session, out, err = session_with(*commands)
    assert session.run(["run", f"--file={file}", "--continue-on-error"]) is False
    assert out.getvalue().count("│ x") == 2
    assert session.run(["run", "--file=/no/such/file"]) is False


def test_a_script_that_runs_itself_ends(tmp_path):
    """Under its own name, under another one, or by way of a second script."""
    first, second, other_name = tmp_path / "first.gfsh", tmp_path / "second.gfsh", tmp_path / "other-name.gfsh"
    for text in (f"run --file={first}", f"run --file={second}", f"run --file={other_name}"):
        first.write_text(f"works\n{text}\n")
        second.write_text(f"run --file={first}\n")
        other_name.unlink(missing_ok=True)
        other_name.hardlink_to(first)
        session, out, err = session_with(grammar.Command("works", "", works))
        assert session.run(["run", f"--file={first}"]) is False
        assert out.getvalue().count("│ x") == 1 and "runs itself" in err.getvalue()
        first.write_text("works\n")
        assert session.run(["run", f"--file={second}"]) is True
        first.unlink()


def test_scripts_that_run_each_other_are_bounded(tmp_path):
    for n in range(40):
        (tmp_path / f"{n}.gfsh").write_text(f"run --file={tmp_path}/{n + 1}.gfsh\n")
    session, _out, err = session_with()
    assert session.run(["run", f"--file={tmp_path}/0.gfsh"]) is False
    assert "at most 16 may" in err.getvalue()


def test_only_a_regular_file_of_a_fitting_size_is_run(tmp_path):
    good, link, fifo, large = tmp_path / "good", tmp_path / "link", tmp_path / "fifo", tmp_path / "large"
    good.write_text("works\n")
    link.symlink_to(good)
    os.mkfifo(fifo)
    large.write_bytes(b"#" * (1024 * 1024 + 1))
    for path, says in (
        (link, f"symbolic link.*{good}"),
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (large, "more than 1048576 bytes"),
        ("/no/such", "No such file"),
        ("a\0b", "no name that a file can have"),
    ):
        session, out, err = session_with(grammar.Command("works", "", works))
        assert session.run(["run", f"--file={path}"]) is False
        assert re.search(says, err.getvalue()) and out.getvalue() == ""


def test_json_is_one_object_a_line():
    session, out, _ = session_with(
        grammar.Command("works", "", works), grammar.Command("fails", "", fails), as_json=True
    )
    assert session.run_line("works; works; fails; works") is False
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["ok"] for line in lines] == [True, True, False] and lines[2]["errors"] == ["no way"]
    assert lines[0] == {"command": "works", "ok": True, "data": {"n": {"base64": "AA=="}}}


def test_help_lists_every_command_and_shows_one():
    session, out, err = session_with()
    assert session.run(["help"]) and all(c.name in out.getvalue() for c in COMMANDS)
    assert session.run(["create", "gateway-sender", "--help"]) and "--remote-distributed-system-id" in out.getvalue()
    assert not session.run(["help", "dance"]) and "no command 'dance'" in err.getvalue()


def test_the_shell_reads_lines_until_exit():
    session, out, err = session_with(grammar.Command("works", "", works))
    assert shell.run(session, stdin=io.StringIO("works\n\nnonsense\nexit\nworks\n"), stdout=out) is False
    assert out.getvalue().count("│ x") == 1 and "no command 'nonsense'" in err.getvalue()


ECHO = grammar.Command(
    "echo", "", lambda session, values: Result(lines=[repr(values)]), (grammar.Option("a"), grammar.Option("b"))
)


@pytest.mark.parametrize(
    "lines", ["echo --a=1 \\\n  --b=2\n", "echo \\\n\\\n--a=1 \\\n--b=2", "# no command \\\necho --a=1 \\\n --b=2\n"]
)
def test_the_shell_waits_for_the_rest_of_a_command_that_goes_on(lines):
    session, out, err = session_with(ECHO)
    assert shell.run(session, stdin=io.StringIO(lines), stdout=out) is True
    assert out.getvalue() == "{'a': '1', 'b': '2'}\n" and err.getvalue() == ""


@pytest.mark.parametrize(
    "run",
    [
        lambda session, text: shell.run(session, stdin=io.StringIO(text), stdout=io.StringIO()),
        lambda session, text: session.run_line(text),
    ],
)
def test_a_command_that_goes_on_and_has_no_rest_is_not_run(run):
    session, out, err = session_with(ECHO)
    assert run(session, "echo --a=1 \\\n") is False
    assert out.getvalue() == "" and "nothing follows" in err.getvalue()


def test_a_script_whose_last_command_goes_on_is_not_run(tmp_path):
    file = tmp_path / "x.gfsh"
    file.write_text("echo --a=1\necho --a=2 \\\n")
    session, out, err = session_with(ECHO, *COMMANDS)
    assert session.run(["run", f"--file={file}"]) is False
    assert out.getvalue() == "" and "line 2" in err.getvalue() and "nothing follows" in err.getvalue()


def test_without_a_locator_a_command_says_how_to_connect(monkeypatch):
    monkeypatch.setattr("pywan.cli.session.DEFAULT_LOCATOR", "127.0.0.1[1]")
    session, _, err = session_with()
    assert not session.run(["list", "members"])
    assert "connect --locator=host[port]" in err.getvalue()


def test_docs_name_every_command():
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [c.name for c in COMMANDS if f"`{c.name}`" not in text] == []


ODD = [
    "",
    " ",
    "-1",
    "1e999",
    "9" * 40,
    "~nosuch/x",
    "a" * 5000,
    "\0",
    "\ud800",
    "\x1b[31m",
    "[" * 100_000,
    "host[99999]",
    "../x",
]
STARTS_OR_ENDS = {"start locator", "start server", "exit", "quit"}


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.name not in STARTS_OR_ENDS], ids=lambda command: command.name
)
def test_no_value_of_an_option_is_answered_by_a_traceback(command, tmp_path, monkeypatch):
    """No locator runs. Every value gives an error in words, without anything that a terminal would obey."""
    monkeypatch.chdir(tmp_path)
    required = {option.name: "x" for option in command.options if option.required}
    for option in command.options:
        for value in ODD:
            out = io.StringIO()
            session = Session(COMMANDS, Output(False, out, out), "127.0.0.1[1]")
            values = {**required, option.name: value}
            session.run([*command.name.split(), *(f"--{name}={each}" for name, each in values.items())])
            assert "Traceback" not in out.getvalue() and "\x1b" not in out.getvalue() and "\0" not in out.getvalue()


@pytest.mark.parametrize("command", ["start locator", "start server --locators=127.0.0.1[1]"])
@pytest.mark.parametrize("option", ["--dir=~nosuch", "--dir=" + "a" * 5000, "--properties-file=~nosuch/x"])
def test_a_path_that_cannot_be_is_an_error_and_makes_no_folder(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    assert not Session(COMMANDS, Output(False, out, out)).run([*command.split(), "--name=x", option])
    assert out.getvalue().startswith("error: ") and not list(tmp_path.iterdir())
