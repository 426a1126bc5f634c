"""`certificates make`, `reload certificates`, and how options of encryption reach processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from pywan.cli.commands import COMMANDS
from pywan.cli.encryption import ssl_in, ssl_of_environment
from pywan.cli.output import Output
from pywan.cli.properties import gather
from pywan.cli.session import Session
from pywan.errors import ConfigurationError
from pywan.member import process
from pywan.testing.waiting import eventually
from pywan.transport.links import Links
from support.made_certificates import DAY, Authority


@pytest.fixture
def said():
    class Said:
        text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

        def isatty(self):
            return False

    return Said()


@pytest.fixture
def run(said):
    """Runs a line, and returns what it answered, as with --json."""

    class Run:
        session = Session(COMMANDS, Output(True, said, said))

        def __call__(self, line, ok=True):
            said.text = ""
            assert self.session.run_line(line) is ok, said.text
            return json.loads(said.text.splitlines()[-1])

    return Run()


def options_of(folder, site):
    return {
        "enabled_components": "all",
        "certificate": str(folder / f"{site}.pem"),
        "key": str(folder / f"{site}.key"),
        "trusted_certificates": str(folder / "authority.pem"),
    }


def test_certificates_are_made_and_work(run, tmp_path):
    folder = tmp_path / "made"
    files = run(f"certificates make --site=ny,ln --hosts=ny.example,10.0.0.5 --dir={folder}")["data"]["files"]
    assert sorted(files) == ["authority", "ln", "ny"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for site in ("ny", "ln"):
        contexts = Links(options_of(folder, site), listener="member").contexts()
        assert contexts.server is not None
    text = subprocess.run(
        ["openssl", "x509", "-in", str(folder / "ny.pem"), "-noout", "-text"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in ("DNS:ny.example", "IP Address:10.0.0.5", "DNS:localhost", "IP Address:127.0.0.1"):
        assert name in text
    verified = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "authority.pem"), str(folder / "ln.pem")]
    assert subprocess.run(verified, check=False, capture_output=True).returncode == 0


def test_files_are_not_overwritten_without_force(run, tmp_path):
    run(f"certificates make --site=ny --dir={tmp_path}")
    before = (tmp_path / "ny.pem").read_bytes()
    (error,) = run(f"certificates make --site=ny --dir={tmp_path}", ok=False)["errors"]
    assert "authority.pem is there already" in error and "--force" in error
    assert (tmp_path / "ny.pem").read_bytes() == before
    run(f"certificates make --site=ny --dir={tmp_path} --force")
    assert (tmp_path / "ny.pem").read_bytes() != before


@pytest.mark.parametrize(
    "line, words",
    [
        ("--site=../ny", "--site"),
        ("--site=authority", "is the name of the authority"),
        ("--site=ny --hosts=a/b", "'a/b' is not a host name or address"),
        ("--site=ny --days=0", "--days: 0 is out of range"),
        ("--site=,", "--site names no site"),
    ],
)
def test_wrong_names_are_refused(run, tmp_path, line, words):
    (error,) = run(f"certificates make {line} --dir={tmp_path}/none", ok=False)["errors"]
    assert words in error
    assert not (tmp_path / "none").exists()


def test_without_the_extra_the_error_names_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    (error,) = run(f"certificates make --site=ny --dir={tmp_path}", ok=False)["errors"]
    assert "pip install 'pywan[certificates]'" in error


def test_options_come_from_commands_properties_and_the_environment(tmp_path, monkeypatch):
    (tmp_path / "gemfire.properties").write_text("ssl-enabled-components=cluster\nssl-key=of_file.key\n")
    properties = gather(["-Dgemfire.ssl-enabled-components=all"], None, [tmp_path])
    assert ssl_in({"ssl_certificate": "/a.pem"}, properties.values) == {
        "enabled_components": "all",
        "certificate": "/a.pem",
        "key": os.path.abspath("of_file.key"),
    }
    assert ssl_in({}) is None
    monkeypatch.setenv("PYWAN_SSL_ENABLED_COMPONENTS", "locator")
    monkeypatch.setenv("PYWAN_SSL_REQUIRE_AUTHENTICATION", "false")
    assert ssl_of_environment() == {"enabled_components": "locator", "require_authentication": "false"}


@pytest.fixture
def site(run, tmp_path, monkeypatch):
    """A locator and a server as processes, encrypted as the environment says."""
    monkeypatch.chdir(tmp_path)
    run("certificates make --site=ny --dir=tls")
    for name, value in options_of(tmp_path / "tls", "ny").items():
        monkeypatch.setenv(f"PYWAN_SSL_{name.upper()}", value)
    run.session.locator = None
    started = run("start locator --name=loc --port=0")["data"]
    run("start server --name=srv")
    yield started
    process.stop("server", "srv", links=lambda: Links(ssl_of_environment()))
    process.stop("locator", "loc", links=lambda: Links(ssl_of_environment()))


@pytest.mark.whole
def test_a_site_as_processes(run, site, tmp_path, monkeypatch):
    (answer,) = run("status member")["data"]["members"]
    assert answer["ssl"] == {
        "components": ["cluster", "gateway", "locator", "server"],
        "stream": "TLS in memory",
        "certificates": [],
    }
    assert run("status locator --name=loc")["data"]["status"]["ssl"]["certificates"] == []
    files = [str(tmp_path / "tls" / name) for name in ("ny.pem", "ny.key", "authority.pem")]
    answers = run("reload certificates")["data"]["members"]
    assert [each["files"] for each in answers] == [files, files]

    # A certificate that ends soon is taken by SIGHUP, and said in the status.
    soon = Authority("another")
    with open(tmp_path / "tls" / "authority.pem", "ab") as trusted:
        trusted.write(soon.made.pem())
    soon.certificate(ends=5 * DAY + DAY / 2).write(tmp_path / "tls", "ny")
    member = process.recorded(process.MemberFiles.of(None, "srv"))
    process.send_signal(member, signal.SIGHUP)
    log = tmp_path / "srv" / "srv.log"
    eventually(lambda: log.read_text().count("certificates were read again") == 2)
    (ending,) = run("status server --name=srv")["data"]["status"]["ssl"]["certificates"]
    assert "ny.pem ends in 5 days" in ending
    assert "ny.pem ends in 5 days" in log.read_text()
    (tmp_path / "tls" / "ny.pem").write_text("broken")
    process.send_signal(member, signal.SIGHUP)
    eventually(lambda: "certificates are not taken, the ones before stay" in log.read_text())


@pytest.mark.whole
def test_connect_says_how_connections_are_encrypted(run, site, tmp_path, monkeypatch, said):
    for name in options_of(tmp_path, "ny"):
        monkeypatch.delenv(f"PYWAN_SSL_{name.upper()}")
    locator = f"127.0.0.1[{site['port']}]"
    plain = Session(COMMANDS, Output(True, said, said))
    assert not plain.run_line(f"connect --locator={locator}")
    assert "this port speaks TLS only" in said.text
    given = " ".join(f"--ssl-{name.replace('_', '-')}={v}" for name, v in options_of(tmp_path / "tls", "ny").items())
    assert plain.run_line(f"connect --locator={locator} {given}")
    assert plain.run_line("status member")
    for name, value in options_of(tmp_path / "tls", "ny").items():
        monkeypatch.setenv(f"PYWAN_SSL_{name.upper()}", value)


def test_an_option_that_cannot_work_is_refused_before_a_process_goes_on(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (error,) = run("start locator --name=loc --port=0 --ssl-enabled-components=all", ok=False)["errors"]
    assert "needs ssl-trusted-certificates" in error
    with pytest.raises(ConfigurationError, match="'gateways' is not one of all, cluster"):
        Links({"enabled_components": "gateways"})
