"""SIGHUP makes a member that runs as a process open its log file again, so that a program such as logrotate may rename
that file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pywan.member import process
from pywan.testing.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.whole
OPTIONS = {"port": 0, "distributed_system_id": 1}


@pytest.fixture
def locator(tmp_path):
    process.start("locator", "loc", OPTIONS, directory=tmp_path)
    member = process.recorded(process.MemberFiles.of(tmp_path, "loc"))
    yield member
    process.send_signal(member, signal.SIGKILL)
    process.wait_until_gone(member, LIMIT_S)


def log_of(directory: Path) -> Path:
    return directory / "loc" / "loc.log"


def test_after_sighup_the_log_goes_on_in_a_new_file(tmp_path, locator):
    log, renamed = log_of(tmp_path), tmp_path / "loc.log.1"
    log.rename(renamed)
    os.kill(locator.pid, signal.SIGHUP)
    eventually(lambda: log.exists() and "opened again" in log.read_text(), what="the new log file")
    assert log.stat().st_mode & 0o777 == 0o600
    before = renamed.read_text()
    os.kill(locator.pid, signal.SIGTERM)
    assert process.wait_until_gone(locator, LIMIT_S)
    assert "locator loc stops" in log.read_text()
    assert renamed.read_text() == before


def test_a_log_file_that_cannot_be_opened_again_leaves_the_member_its_old_one(tmp_path, locator):
    log, renamed = log_of(tmp_path), tmp_path / "loc.log.1"
    log.rename(renamed)
    log.mkdir()
    os.kill(locator.pid, signal.SIGHUP)
    eventually(lambda: "the log goes on in the old file" in renamed.read_text(), what="the error in the old file")
    assert process.status("locator", "loc", directory=tmp_path)["state"] == "online"


def test_sighup_does_not_end_a_member_in_the_foreground_whose_log_is_no_terminal(tmp_path):
    log = tmp_path / "stderr"
    with open(log, "w") as stderr:
        member = subprocess.Popen(
            [sys.executable, "-m", "pywan.cli.main", "start", "locator", "--name=loc", "--port=0", "--foreground"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert "is ready" in member.stdout.readline(), log.read_text()
        member.send_signal(signal.SIGHUP)
        eventually(lambda: "no log file to open again" in log.read_text(), what="the answer to SIGHUP")
        assert member.poll() is None
        member.send_signal(signal.SIGTERM)
        assert member.wait(LIMIT_S) == 0
    finally:
        if member.poll() is None:
            member.kill()
        member.communicate()
    assert not log_of(tmp_path).exists()
