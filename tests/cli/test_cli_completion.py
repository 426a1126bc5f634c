"""What Tab offers: commands, options and values, in the shell and in bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from pywan.cli.commands import COMMANDS
from pywan.cli.completion import bash_script, last_words, values_for
from pywan.cli.grammar import complete
from support.commands import CommandedSite


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = CommandedSite(tmp_path_factory.mktemp("site"), allow_callbacks="support.listeners")
    site.start()
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2")
    site.do("create gateway-sender --id=lisbon --remote-distributed-system-id=4")
    site.do("create gateway-sender --id=tk --remote-distributed-system-id=3")
    site.do("create async-event-queue --id=audit --listener=support.listeners:RecordingListener")
    site.do("create region --name=orders")
    site.do("create disk-store --name=fast --dir=" + str(site.folder / "server" / "fast"))
    yield site
    site.close()


def offered(line: str, locator: str | None = "127.0.0.1[1]") -> list[str]:
    """What could follow the last space or `=` or comma."""
    wholes = complete(line, COMMANDS, values_for(locator))
    at = max(line.rfind(character) for character in " =,") + 1
    return [whole[at:] for whole in wholes]


@pytest.mark.parametrize(
    "line, values",
    [
        ("status gateway-sender --id=", ["lisbon", "ln", "tk"]),
        ("status gateway-sender --id=l", ["lisbon", "ln"]),
        ("alter region --name=orders --gateway-sender-id=tk,l", ["lisbon", "ln"]),
        ("alter region --name=", ["orders"]),
        ("describe async-event-queue --id=", ["audit"]),
        ("resume async-event-queue-dispatcher --id=a", ["audit"]),
        ("alter region --name=orders --async-event-queue-id=", ["audit"]),
        ("list parked-events --async-event-queue-id=", ["audit"]),
        ("create async-event-queue --id=", []),
        ("get --region=", ["orders"]),
        ("describe disk-store --name=f", ["fast"]),
        ("list gateways --member=", ["server"]),
        ("create region --name=", []),
        ("create gateway-sender --id=", []),
        ("create gateway-sender --id=x --disk-store-name=", ["fast"]),
    ],
)
def test_names_come_from_the_connected_site(site, line, values):
    assert offered(line, str(site.locator.address)) == values


@pytest.mark.parametrize(
    "line, values",
    [
        ("create region --name=x --type=REPLICATE_", ["REPLICATE_PERSISTENT", "REPLICATE_PROXY"]),
        ("create gateway-sender --id=x --order-policy=", ["key", "partition", "thread"]),
        ("create gateway-sender --id=x --full-policy=drop", ["drop-newest", "drop-oldest"]),
        ("create gateway-sender --id=x --parallel=", ["false", "true"]),
        ("put --region=x --key-type=b", ["bool", "bytes"]),
        ("import cluster-configuration --action=", ["APPLY", "STAGE"]),
        ("start server --name=x --log-level=fi", ["fine", "finer", "finest"]),
        ("help create gate", ["gateway-receiver", "gateway-sender"]),
    ],
)
def test_values_that_are_known_beforehand_need_no_site(line, values):
    if line.startswith("help"):
        assert [whole.rpartition(" ")[2] for whole in complete(line, COMMANDS)] == values
    else:
        assert offered(line) == values


def test_without_a_site_nothing_is_offered_and_nothing_fails():
    assert offered("status gateway-sender --id=") == []


def test_files_folders_and_processes_of_the_current_directory_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ny.gfsh").touch()
    (tmp_path / "ny").mkdir()
    (tmp_path / "ny" / ".ny.lock").touch()
    assert offered("run --file=n") == ["ny.gfsh", "ny/"] or offered("run --file=n") == ["ny/", "ny.gfsh"]
    assert offered("stop server --name=") == ["ny"]


@pytest.mark.parametrize(
    "line, words",
    [
        ("pywan sta", ["start", "status"]),
        ("pywan start ", ["gateway-receiver", "gateway-sender", "locator", "server"]),
        ("pywan --json list disk", ["disk-stores"]),
        ("pywan --lo", ["--locator="]),
        ("pywan dem", ["demo"]),
        ("pywan demo --cut", ["--cut-seconds"]),
        ("pywan -e 'list ", []),
    ],
)
def test_a_line_of_bash_is_completed_word_by_word(line, words):
    assert last_words(line, COMMANDS) == words


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "line, replies",
    [
        ("pywan --locator={locator} status gateway-sender --id=l", ["lisbon", "ln"]),
        ("pywan --locator={locator} status gateway-sender --id=", ["lisbon", "ln", "tk"]),
        ("pywan --locator={locator} alter region --name=orders --gateway-sender-id=tk,l", ["tk,lisbon", "tk,ln"]),
        ("pywan list ga", ["gateways"]),
        ("pywan list gateways --mem", ["--member="]),
    ],
)
def test_bash_gets_what_it_puts_in_the_place_of_the_last_word(site, tmp_path, line, replies):
    """For bash, `=` begins a word of its own."""
    program = tmp_path / "pywan"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pywan "$@"\n')
    program.chmod(0o755)
    script = (
        f"{bash_script()}\nCOMP_LINE=$1; COMP_POINT=${{#1}}; COMP_WORDS=(pywan)\n_pywan 2> /dev/null\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", line.format(locator=site.locator.address)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout.split() == replies, done.stderr
