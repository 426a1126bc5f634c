"""Members under a service manager or in a container: options come from the environment, and the member says when it is
ready."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pywan.cli.service import tell_ready
from pywan.testing.waiting import LIMIT_S
from support.tree import ROOT

UNITS = sorted((ROOT / "packaging").glob("*.service"))
pytestmark = pytest.mark.whole


@pytest.fixture
def manager(tmp_path):
    """Where a member says that it is ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(LIMIT_S)
        yield listener


def start(command: str, tmp_path: Path, **environment: str) -> subprocess.Popen:
    """As a service manager does: all options but --foreground come from the environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "pywan", *command.split()],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "PYWAN_DIR": str(tmp_path), **environment},
    )


def ask(command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pywan", *command.split()],
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_a_locator_and_a_server_run_as_services_and_stop_on_sigterm(tmp_path, manager):
    locator = start(
        "start locator --foreground", tmp_path, PYWAN_NAME="loc", PYWAN_PORT="0", PYWAN_DISTRIBUTED_SYSTEM_ID="7"
    )
    server = None
    try:
        ready = manager.recv(4096).decode()
        port = re.search(r"^READY=1\nSTATUS=locator loc is ready on 127\.0\.0\.1\[(\d+)\]", ready)
        assert port, ready
        server = start(
            "start server", tmp_path, PYWAN_NAME="s", PYWAN_FOREGROUND="true", PYWAN_LOCATORS=f"127.0.0.1[{port[1]}]"
        )
        assert "STATUS=server s is ready" in manager.recv(4096).decode()
        told = ask("status server", PYWAN_NAME="s", PYWAN_DIR=str(tmp_path))
        assert told.returncode == 0 and re.search(r"distributed system id +7\n", told.stdout), told
        for member in (server, locator):
            member.send_signal(signal.SIGTERM)
            out, err = member.communicate(timeout=LIMIT_S)
            assert member.returncode == 0 and "is ready on" in out, err
            assert "note: from the environment: PYWAN_DIR, " in err and " stops" in err
            assert not list(tmp_path.glob("*/*.log"))
    finally:
        for member in filter(None, (server, locator)):
            if member.poll() is None:
                member.kill()
                member.communicate()


def test_the_command_line_is_stronger_than_the_environment_and_that_than_files(tmp_path, manager):
    """Each with a value that cannot be, which the error names."""
    (tmp_path / "gemfire.properties").write_text("distributed-system-id=of-file\n")
    of_file = ask("start locator --foreground", PYWAN_NAME="x", PYWAN_DIR=str(tmp_path), PYWAN_PORT="0")
    assert "'of-file' is not a whole number" in of_file.stderr
    environment = {"PYWAN_NAME": "x", "PYWAN_DIR": str(tmp_path), "PYWAN_DISTRIBUTED_SYSTEM_ID": "of-environment"}
    of_environment = ask("start locator --foreground", **environment)
    assert "'of-environment' is not a whole number" in of_environment.stderr
    of_property = ask("start locator --foreground --J=-Dgemfire.distributed-system-id=of-J", **environment)
    assert "'of-J' is not a whole number" in of_property.stderr
    of_option = ask("start locator --foreground --distributed-system-id=of-option", **environment)
    assert "'of-option' is not a whole number" in of_option.stderr


def test_a_service_manager_that_is_gone_does_no_harm(monkeypatch, tmp_path):
    for address in ("", str(tmp_path / "nobody"), "@pywan-nobody", "no path"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        tell_ready("ready")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_file_is_one_that_systemd_takes(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/pywan/bin/pywan", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0 and unit.name.replace("@", "@i") not in done.stderr, done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_what_the_command_line_knows_and_waits_until_it_is_ready(unit):
    from pywan.cli.commands import COMMANDS
    from pywan.cli.grammar import parse

    text = configparser.ConfigParser(strict=False, interpolation=None)
    text.read(unit)
    service = text["Service"]
    assert service["Type"] == "notify"
    words = service["ExecStart"].split()[1:]
    environment = dict(word.split("=", 1) for word in service["Environment"].split())
    command, values = parse(words, COMMANDS, environment)
    assert command.name.replace(" ", "-").startswith("start-") and values["foreground"] == "true"
    assert values["name"] == "%i" and values["dir"] == "/var/lib/pywan"
