"""`user add|list|remove|passwd`, and how options of security reach processes."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
import threading

import pytest

from pywan.cli.commands import COMMANDS, users
from pywan.cli.identity import identity_in, identity_of_environment, security_in
from pywan.cli.output import Output
from pywan.cli.properties import gather
from pywan.cli.session import Session
from pywan.errors import ConfigurationError
from pywan.security.passwords import fits
from pywan.security.users import FIRST_ROLES, read_users
from pywan.testing.waiting import eventually


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def run(said, tmp_path, monkeypatch):
    """Runs a line with standard input, and returns what it answered, as with --json."""
    monkeypatch.chdir(tmp_path)

    class Run:
        session = Session(COMMANDS, Output(True, said, said))

        def __call__(self, line, typed="", ok=True):
            said.seek(0)
            said.truncate()
            monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
            assert self.session.run_line(line) is ok, said.getvalue()
            return json.loads(said.getvalue().splitlines()[-1])

    return Run()


def test_users_come_and_go(run, tmp_path):
    run("user add --name=ann --role=reader,gateway", "secret\n")
    run("user add --name=ny.example --role=member --certificate")
    file = tmp_path / "users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret" not in file.read_text()
    listed = run("user list")["data"]
    assert listed["users"] == [
        {"name": "ann", "known_by": "password", "roles": ["reader", "gateway"]},
        {"name": "ny.example", "known_by": "certificate", "roles": ["member"]},
    ]
    assert listed["roles"] == {name: list(has) for name, has in FIRST_ROLES.items()}
    assert fits("secret", read_users(file).users["ann"].password)
    run("user passwd --name=ann", "other\n")
    assert fits("other", read_users(file).users["ann"].password)
    run("user remove --name=ann")
    assert list(read_users(file).users) == ["ny.example"]


@pytest.mark.parametrize(
    ("line", "typed", "words"),
    [
        ("user add --name=ann --role=reader", "x\n", "is in .* already; remove it first, or use passwd"),
        ("user add --name=bob --role=king", "x\n", "no role 'king'; there are admin, gateway"),
        ("user add --name=bob --role=,", "x\n", "--role names none"),
        ("user add --name=bob --role=reader", "\n", "a password has 1 to 1024 bytes"),
        ("user add --name=bob --role=reader", "x" * 1025, "a password has 1 to 1024 bytes"),
        ("user remove --name=bob", "", "no user 'bob' in .*; there are ann, cert"),
        ("user passwd --name=bob", "x\n", "no user 'bob' in"),
        ("user passwd --name=cert", "x\n", "is known by its certificate"),
        ("user list --file=none.json", "", r"none.json cannot be read: .*; `user add` makes such a file"),
        ("user passwd --name=ann --file=no/users.json", "x\n", r"users.json cannot be changed: .*No such file"),
    ],
)
def test_what_cannot_be_is_refused_by_name(run, tmp_path, line, typed, words):
    run("user add --name=ann --role=reader", "secret\n")
    run("user add --name=cert --role=reader --certificate")
    before = (tmp_path / "users.json").read_bytes()
    (error,) = run(line, typed, ok=False)["errors"]
    assert re.search(words, error)
    assert (tmp_path / "users.json").read_bytes() == before


def test_a_password_is_asked_for_twice_at_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    answers = iter(["one", "one", "one", "two"])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(users.getpass, "getpass", lambda prompt: next(answers))
    assert users._password("ann") == "one"
    with pytest.raises(ConfigurationError, match="the two passwords differ; nothing was changed"):
        users._password("ann")


def test_commands_at_the_same_time_lose_nobody(tmp_path, monkeypatch):
    """Each reads and writes the whole file."""
    file = tmp_path / "users.json"
    monkeypatch.setattr(users, "_password", lambda name: "x")

    def add(name):
        users.add(Session(COMMANDS, Output(True)), {"name": name, "role": "reader", "file": str(file)})

    threads = [threading.Thread(target=add, args=(f"u{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_users(file).users) == [f"u{n}" for n in range(8)]


# Options


def test_options_come_from_all_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemfire.properties").write_text("security-username=of_file\nsecurity-password-file=secret\n")
    properties = gather(["-Dgemfire.security-username=ann"], None, [tmp_path])
    assert security_in({"security_manager": "users-file"}, properties.values) == {
        "manager": "users-file",
        "username": "ann",
        "password_file": str(tmp_path / "secret"),
    }
    assert security_in({}) is None and identity_in({}) is None and identity_of_environment() is None
    monkeypatch.setenv("PYWAN_SECURITY_USERNAME", "bob")
    monkeypatch.setenv("PYWAN_SECURITY_PASSWORD", "p")
    monkeypatch.setenv("PYWAN_SECURITY_MANAGER", "users-file")
    assert identity_of_environment() == {"username": "bob", "password": "p"}
    assert identity_in({"security_username": "ann"}) == {"username": "ann", "password": "p"}
    assert identity_in({"security_username": "ann", "security_password_file": "/f"}) == {
        "username": "ann",
        "password_file": "/f",
    }


def test_no_command_takes_a_password(run):
    for command in COMMANDS:
        assert not any(option.name.endswith("password") for option in command.options), command.name
    line = "start locator --name=l --port=0 --J=-Dgemfire.security-password=x --J=-Dgemfire.security-username=a"
    (error,) = run(line, ok=False)["errors"]
    assert "can be seen by all users of the machine" in error


@pytest.mark.whole
def test_a_site_as_processes(run, tmp_path, monkeypatch):
    """A locator and a server that ask, a shell that is an administrator, and one that is nobody."""
    monkeypatch.setenv("PYWAN_SECURITY_USERS_FILE", str(tmp_path / "users.json"))
    run("user add --name=member --role=member", "m\n")
    run("user add --name=ann --role=reader", "a\n")
    monkeypatch.setenv("PYWAN_SECURITY_ALLOW_PLAINTEXT", "true")
    monkeypatch.setenv("PYWAN_SECURITY_USERNAME", "member")
    monkeypatch.setenv("PYWAN_SECURITY_PASSWORD", "m")
    run.session.locator = None
    started = run("start locator --name=loc --port=0 --security-manager=users-file")["data"]
    locator = f"127.0.0.1[{started['port']}]"
    try:
        run(f"start server --name=srv --locators={locator} --security-manager=users-file")
        run("create region --name=data")
        run("put --region=data --key=k --value=1")
        out = io.StringIO()
        other = Session(COMMANDS, Output(True, out, out))
        secret = tmp_path / "ann"
        secret.write_text("a\n")
        secret.chmod(0o600)
        who = f"--security-username=ann --security-password-file={secret} --security-allow-plaintext"
        assert other.run_line(f"connect --locator={locator} {who}")
        assert other.run_line("get --region=data --key=k")
        assert not other.run_line("put --region=data --key=k --value=2")
        assert "ann lacks the permission DATA:WRITE:data:k" in out.getvalue()
        run("user remove --name=ann")
        eventually(lambda: not other.run_line("get --region=data --key=k"))
        for name in ("USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"PYWAN_SECURITY_{name}")
        nobody = Session(COMMANDS, Output(True, out, out))
        assert not nobody.run_line(f"connect --locator={locator}")
        assert "refused: authentication is needed" in out.getvalue()
        log = (tmp_path / "srv" / "srv.log").read_text()
        assert "lacks" not in log and "ann may not do it: DATA:WRITE:data:k is needed" in log
    finally:
        monkeypatch.setenv("PYWAN_SECURITY_USERNAME", "member")
        monkeypatch.setenv("PYWAN_SECURITY_PASSWORD", "m")
        for kind, name in (("server", "srv"), ("locator", "loc")):
            run(f"stop {kind} --name={name}")
