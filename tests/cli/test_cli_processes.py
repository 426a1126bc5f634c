"""The program with real processes: Geode's example commands as they stand, and what goes wrong when members start and
stop.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pywan
from pywan.cli.main import main as program
from pywan.errors import DiskError, IllegalStateError, NotFoundError, PywanError
from pywan.member import process
from pywan.testing.waiting import LIMIT_S
from support.tree import ROOT

SITES = {"ny": 1, "ln": 2, "tk": 3}
NY_XML = """<cache>
<gateway-sender id="ln" parallel="true" remote-distributed-system-id="2"/>
<gateway-sender id="tk" parallel="true" remote-distributed-system-id="3"/>
<gateway-receiver/>
<region name="data" refid="PARTITION">
  <region-attributes gateway-sender-ids="ln,tk"/>
</region>
</cache>
"""
START_LOCATOR = {
    "ny": (
        r"gfsh start locator --name=locator_ny --locators=ny_host[10331] --port=10331 "
        r"--J=\'-Dgemfire.remote-locators=ln_host[10331],tk_host[10331]\'"
    ),
    "ln": (
        r"gfsh start locator --name=locator_ln --locators=ln_host[10331] --port=10331 "
        r"--J=\'-Dgemfire.remote-locators=ny_host[10331],tk_host[10331]\'"
    ),
    "tk": (
        r"gfsh start locator --name=locator_tk --locators=tk_host[10331] --port=10331 "
        r"--J=\'-Dgemfire.remote-locators=ny_host[10331],ln_host[10331]\'"
    ),
}
SCRIPTS = {
    "ln": """connect --locator=ln_host[10331]
create gateway-sender --id=ny --remote-distributed-system-id=1 --parallel=true
create gateway-sender --id=tk --remote-distributed-system-id=3 --parallel=true
create gateway-receiver
alter region --name=data --gateway-sender-id=ny,tk
""",
    "tk": """connect --locator=tk_host[10331]
create gateway-sender --id=ny --remote-distributed-system-id=1 --parallel=true
create gateway-sender --id=ln --remote-distributed-system-id=2 --parallel=true
create gateway-receiver
alter region --name=data --gateway-sender-id=ny,ln
""",
}


class Machine:
    """A directory in which members run, on loopback addresses of its own; whatever was started is ended at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        network = f"127.{os.getpid() % 200 + 20}.{id(self) // 64 % 250}"
        self.hosts = {f"{site}_host": f"{network}.{number}" for site, number in SITES.items()}
        commands = directory / "bin"
        commands.mkdir()
        for name in ("pywan", "gfsh"):  # As docs/cli.md says for those whose scripts call gfsh.
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pywan.cli.main "$@"\n')
            command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYWAN_HOSTS": ",".join(f"{h}={a}" for h, a in self.hosts.items()),
            "PYTHONPATH": str(ROOT),
        }

    def shell(self, command: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs a line with the program as a process of its own: in a shell, if there is something in it for a shell to
        do. Otherwise the process is a fork of the fork server."""
        words = command.split()
        is_plain = words[0] in ("pywan", "gfsh") and not set(command) & set("\\'\"`$|&;<>(){}*?~#")
        return subprocess.run(
            [sys.executable, "-m", "pywan.cli.main", *words[1:]] if is_plain else command,
            shell=not is_plain,
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=90,
        )

    def do_in_shell(self, command: str, **environment: str) -> str:
        done = self.shell(command, **environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def do(self, command: str) -> str:
        """Does what the program does, in this process. So it does not take the time that a process needs to start."""
        program, *words = shlex.split(command)
        assert program in ("pywan", "gfsh")
        status, shown = self._run(words)
        assert status == 0, f"{command}\n{shown}{self.logs()}"
        return shown

    def ask(self, command: str) -> dict:
        return json.loads(self._run(["--json", *shlex.split(command)])[1])

    def _run(self, words: list[str]) -> tuple[object, str]:
        """Returns the status with which the program ends, and what it writes to its standard output."""
        shown, status = io.StringIO(), None
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(shown),
        ):
            for name, value in self.environment.items():
                patch.setenv(name, value)
            try:
                program(words)
            except SystemExit as end:
                status = end.code
        return status, shown.getvalue()

    def pid_of(self, name: str) -> int:
        return process.recorded(process.MemberFiles.of(self.directory, name)).pid

    def logs(self) -> str:
        return "".join(f"\n--- {file.name}\n{file.read_text()[-1500:]}" for file in self.directory.glob("*/*.log"))

    def until(self, condition, what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {LIMIT_S:.0f} s: {what}{self.logs()}"
            time.sleep(0.05)

    def end(self) -> None:
        for file in self.directory.glob("*/*.pid"):
            member = process.recorded(process.MemberFiles.of(self.directory, file.stem))
            if member is not None:
                process.send_signal(member, signal.SIGKILL)
                process.wait_until_gone(member, 5.0)


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.end()


def test_geodes_commands_xml_and_scripts_make_three_sites(machine):
    for site, number in SITES.items():
        machine.do_in_shell(START_LOCATOR[site], PYWAN_DISTRIBUTED_SYSTEM_ID=str(number))
    (machine.directory / "ny.xml").write_text(NY_XML)
    for site in SITES:
        xml = "--cache-xml-file=ny.xml" if site == "ny" else ""
        machine.do_in_shell(
            f"gfsh start server --name=server_{site} --locators={site}_host[10331] "
            f"--bind-address={machine.hosts[f'{site}_host']} {xml}"
        )
    for site, script in SCRIPTS.items():
        machine.do_in_shell(
            f'gfsh -e "connect --locator={site}_host[10331]" -e "create region --name=data --type=PARTITION"'
        )
        (machine.directory / f"{site}.gfsh").write_text(script)
        machine.do_in_shell(f"gfsh run --file={site}.gfsh")

    for site in SITES:
        machine.do_in_shell(
            f"gfsh --locator={site}_host[10331] put --region=/data --key=from-{site} "
            f'--value=\'{{"at": "{site}"}}\' --value-type=json'
        )
    for site in SITES:
        machine.until(
            lambda site=site: (
                machine.ask(f"--locator={site}_host[10331] query size --region=data")["data"].get("size") == 3
            ),
            f"three keys at {site}",
        )
        assert machine.ask(f"--locator={site}_host[10331] get --region=data --key=from-tk")["data"]["value"] == {
            "at": "tk"
        }

    machine.until(
        lambda: all(
            s["status"] == "Running and Connected" and s["queue_size"] == 0
            for site in SITES
            for s in machine.ask(f"--locator={site}_host[10331] list gateways")["data"]["senders"]
        ),
        "queues empty",
    )
    shown = machine.do_in_shell(
        "gfsh --locator=tk_host[10331] list gateways", COLUMNS="200"
    )  # Wide enough for Geode's headings.
    for word in (
        "GatewaySender Id",
        "Remote Cluster Id",
        "Queued Events",
        "Receiver Location",
        "Sender Count",
        "Senders Connected",
        "Parallel",
    ):
        assert word in shown

    # A member that is killed gets its part of the cluster configuration again when it is started again.
    machine.do_in_shell(
        "gfsh -e 'connect --locator=ln_host[10331]' -e 'pause gateway-sender --id=tk' -e 'resume gateway-sender "
        "--id=tk'"
    )
    os.kill(machine.pid_of("server_ln"), signal.SIGKILL)
    machine.until(
        lambda: machine.ask("status server --name=server_ln")["data"]["state"] == "stopped", "server_ln is gone"
    )
    machine.do_in_shell(
        f"gfsh start server --name=server_ln --locators=ln_host[10331] --bind-address={machine.hosts['ln_host']}"
    )
    found = machine.ask("--locator=ln_host[10331] list gateways")["data"]
    assert [s["id"] for s in found["senders"]] == ["ny", "tk"] and len(found["receivers"]) == 1
    machine.do_in_shell("gfsh --locator=ln_host[10331] put --region=data --key=again --value=1")
    machine.until(
        lambda: machine.ask("--locator=ny_host[10331] query size --region=data")["data"].get("size") == 4,
        "the fourth key at ny",
    )

    for site in SITES:
        machine.do_in_shell(f"gfsh stop server --name=server_{site}")
        machine.do_in_shell(f"gfsh stop locator --name=locator_{site}")
    assert list(machine.directory.glob("*/*.pid")) == []


def start_locator(machine: Machine, name: str = "loc", more: str = "") -> subprocess.CompletedProcess:
    return machine.shell(
        f"gfsh start locator --name={name} --port=10341 --bind-address={machine.hosts['ny_host']} "
        f"--distributed-system-id=1 {more}"
    )


def test_a_locator_that_cannot_start_says_why_and_leaves_no_process(machine):
    with socket.socket() as occupant:
        occupant.bind((machine.hosts["ny_host"], 10341))
        occupant.listen(1)
        busy = start_locator(machine)
    assert busy.returncode == 1 and "10341" in busy.stderr and "in use" in busy.stderr
    assert process.recorded(process.MemberFiles.of(machine.directory, "loc")) is None
    for more, word in (
        ("--remote-locators=nonsense", "nonsense"),
        ("--J=-Dgemfire.ssl-enabled-components=all", "ssl-enabled-components"),
        ("--log-level=loud", "loud"),
    ):
        failed = start_locator(machine, more=more)
        assert failed.returncode == 1 and word in failed.stderr, failed.stderr
    no_site = machine.shell("gfsh start locator --name=x --remote-locators=ln_host[1]")
    assert no_site.returncode == 1 and "PYWAN_DISTRIBUTED_SYSTEM_ID" in no_site.stderr
    bad_name = machine.shell("gfsh start locator --name=../x")
    assert bad_name.returncode == 1 and "'../x' is not a name" in bad_name.stderr


def test_a_server_that_cannot_start_says_why_and_leaves_no_process(machine):
    assert start_locator(machine).returncode == 0
    locator = f"--locators={machine.hosts['ny_host']}[10341]"
    (machine.directory / "bad.xml").write_text("<cache>\n<gateway-sendr/></cache>")
    (machine.directory / "filter.xml").write_text(
        '<cache><gateway-sender id="ln" remote-distributed-system-id="2">\n'
        "<gateway-event-filter><class-name>no.such:F</class-name></gateway-event-filter></gateway-sender></cache>"
    )
    (machine.directory / "own.xml").write_text(
        '<cache>\n<gateway-sender id="ny" remote-distributed-system-id="1"/></cache>'
    )
    for options, words in (
        (f"{locator} --cache-xml-file=bad.xml", ["bad.xml:2: ", "<gateway-sendr>"]),
        (f"{locator} --cache-xml-file=filter.xml", ["filter.xml:2: ", "'no.such:F'"]),
        (f"{locator} --cache-xml-file=own.xml", ["own.xml:2: ", "own id"]),
        (f"{locator} --cache-xml-file=none.xml", ["none.xml", "no such file"]),
        (f"{locator} --server-port=10341 --bind-address={machine.hosts['ny_host']}", ["10341", "in use"]),
    ):
        failed = machine.shell(f"gfsh start server --name=s {options}")
        assert failed.returncode == 1 and all(word in failed.stderr for word in words), failed.stderr
        assert process.recorded(process.MemberFiles.of(machine.directory, "s")) is None
    assert machine.ask(f"--locator={machine.hosts['ny_host']}[10341] list members")["data"]["members"][1:] == []


def test_a_server_without_a_locator_says_where_it_looked(machine):
    failed = machine.shell(f"gfsh start server --name=s --locators={machine.hosts['tk_host']}[10999] --timeout=3")
    assert failed.returncode == 1 and "10999" in failed.stderr


def test_filter_classes_come_from_the_classpath(machine):
    assert start_locator(machine).returncode == 0
    classes = machine.directory / "classes"
    classes.mkdir()
    (classes / "shop_filters.py").write_text(
        "import pywan\n\n\nclass Keep(pywan.GatewayEventFilter):\n    def before_enqueue(self, event):\n"
        "        return event.key != 'secret'\n"
    )
    locator = f"{machine.hosts['ny_host']}[10341]"
    machine.do(f"gfsh start server --name=s --locators={locator} --classpath=classes --allow-callbacks=shop_filters")
    machine.do(
        f"gfsh --locator={locator} create gateway-sender --id=ln --remote-distributed-system-id=2 "
        "--gateway-event-filter=shop_filters:Keep"
    )
    machine.do(f"gfsh --locator={locator} create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    for key in ("a", "secret"):
        machine.do(f"gfsh --locator={locator} put --region=data --key={key} --value=1")
    ledger = machine.ask(f"--locator={locator} status gateway-sender --id=ln")["data"]["members"][0]["ledger"]
    assert (ledger["received"], ledger["queued"], ledger["filtered_before_enqueue"]) == (2, 1, 1)
    missing = machine.shell(
        f"gfsh --locator={locator} create gateway-sender --id=tk --remote-distributed-system-id=3 "
        "--gateway-event-filter=shop_filters:Nope"
    )
    assert missing.returncode == 1 and "Nope" in missing.stderr
    attached = machine.shell(f"gfsh --locator={locator} destroy gateway-sender --id=ln")
    assert attached.returncode == 1 and "attached to region" in attached.stderr


def test_a_server_says_what_of_the_cluster_configuration_it_lacks(machine):
    assert start_locator(machine).returncode == 0
    (machine.directory / "shop_filters.py").write_text(
        "import pywan\n\n\nclass Keep(pywan.GatewayEventFilter):\n    pass\n"
    )
    locator = f"{machine.hosts['ny_host']}[10341]"
    (machine.directory / "gemfire.properties").write_text("allow-callbacks=shop_filters\n")
    machine.do(f"gfsh start server --name=s --locators={locator} --classpath=.")
    machine.do(
        f"gfsh --locator={locator} create gateway-sender --id=ln --remote-distributed-system-id=2 "
        "--gateway-event-filter=shop_filters:Keep"
    )
    machine.do(f"gfsh --locator={locator} create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    machine.do("gfsh stop server --name=s")
    (machine.directory / "gemfire.properties").unlink()
    started = machine.shell(f"gfsh start server --name=s --locators={locator} --classpath=.")
    assert (
        started.returncode == 0
        and "note: cluster configuration: gateway-sender ln was not made: " in started.stderr
        and "--allow-callbacks=shop_filters" in started.stderr
    )
    (problem,) = machine.ask("status server --name=s")["data"]["status"]["cluster_configuration_problems"]
    assert problem.startswith("gateway-sender ln was not made")
    assert machine.ask(f"--locator={locator} list regions")["data"]["members"][0]["regions"][0][
        "gateway_sender_ids"
    ] == ["ln"]
    machine.do("gfsh stop server --name=s")
    machine.do(f"gfsh start server --name=s --locators={locator} --classpath=. --allow-callbacks=shop_filters")
    assert machine.ask(f"--locator={locator} status gateway-sender --id=ln")["ok"]


def test_a_signal_stops_a_member_cleanly(machine):
    for number in (signal.SIGTERM, signal.SIGINT):
        assert start_locator(machine).returncode == 0
        member = process.recorded(process.MemberFiles.of(machine.directory, "loc"))
        os.kill(member.pid, number)
        assert process.wait_until_gone(member, LIMIT_S)
        assert not (machine.directory / "loc" / "loc.pid").exists()
    assert "Traceback" not in machine.logs()


def test_a_name_belongs_to_one_process(machine):
    assert start_locator(machine).returncode == 0
    second = start_locator(machine)
    assert second.returncode == 1 and "running already" in second.stderr
    wrong = machine.shell("gfsh stop server --name=loc")
    assert wrong.returncode == 1 and "is a locator" in wrong.stderr


def test_a_member_on_a_full_disk_names_the_file_that_it_cannot_write(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pywan.member.process.os.replace", full)
    with pytest.raises(DiskError, match=r"server_ny.pid cannot be written: No space left on device; free space"):
        process.run_server("server_ny", {"locators": "127.0.0.1[1]"}, directory=tmp_path)


def test_of_two_starts_at_once_one_wins(machine):
    results: list[subprocess.CompletedProcess] = []
    threads = [threading.Thread(target=lambda: results.append(start_locator(machine))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(r.returncode for r in results) == [0, 1, 1]
    assert machine.do("gfsh status locator --name=loc")


def test_stopping_what_does_not_run_is_an_error(machine):
    stopped = machine.shell("gfsh stop locator --name=loc")
    assert stopped.returncode == 1 and "not running" in stopped.stderr
    status = machine.shell("gfsh --json status locator --name=loc")
    assert status.returncode == 1 and json.loads(status.stdout)["data"]["state"] == "stopped"


def test_an_old_pid_file_does_not_hurt_the_process_that_has_the_number_now(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        files = process.MemberFiles.of(tmp_path, "old")
        files.folder.mkdir()
        files.pid_file.write_text(f'{bystander.pid} 1\n{{"kind": "server"}}\n')
        with pytest.raises(NotFoundError):
            process.stop("server", "old", directory=tmp_path)
        assert bystander.poll() is None
        files.pid_file.write_text("nonsense\n")
        assert process.status("server", "old", directory=tmp_path)["state"] == "stopped"
    finally:
        bystander.kill()
        bystander.communicate()


def test_a_member_that_hangs_is_killed_in_the_end(machine, monkeypatch):
    assert start_locator(machine).returncode == 0
    monkeypatch.setattr(process, "ASK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(process, "SIGNAL_TIMEOUT_S", 0.2)
    pid = machine.pid_of("loc")
    os.kill(pid, signal.SIGSTOP)
    assert process.status("locator", "loc", directory=machine.directory)["state"] == "not responding"
    assert process.stop("locator", "loc", directory=machine.directory, timeout=0.2) == {
        "name": "loc",
        "pid": pid,
        "how": "SIGKILL",
    }


def test_a_member_in_the_foreground_says_when_it_is_ready_and_ends_on_ctrl_c(machine):
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pywan.cli.main",
            "start",
            "locator",
            "--name=loc",
            "--port=0",
            "--distributed-system-id=1",
            "--foreground",
        ],
        cwd=machine.directory,
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "locator loc is ready on 127.0.0.1[" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=LIMIT_S)
        assert child.returncode == 0 and "Traceback" not in said, said
    finally:
        child.kill()
        child.communicate()


def test_a_child_that_dies_before_it_is_ready_is_reported_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    with pytest.raises(PywanError, match=r"did not start: .*unexpected keyword|did not start: TypeError"):
        process.start("locator", "x", {"distributed_system_id": 1, "colour": "red"}, directory=tmp_path)
    with pytest.raises(PywanError, match="cannot be used"):
        (tmp_path / "file").write_text("")
        process.start("locator", "x", {"distributed_system_id": 1}, directory=tmp_path / "file")
    with (
        pytest.raises(IllegalStateError, match="another process runs"),
        process._own(process.MemberFiles.of(tmp_path, "y"), "locator"),
    ):
        monkeypatch.setattr(process, "recorded", lambda files: None)
        process.start("locator", "y", {"distributed_system_id": 1, "port": 0}, directory=tmp_path)


def test_a_member_whose_starter_is_gone_before_it_was_ready_does_not_stay(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        spec = {
            "kind": "locator",
            "name": "x",
            "directory": str(tmp_path),
            "options": {"distributed_system_id": 1, "port": 0},
            "path": [],
        }
        child = subprocess.run(
            [sys.executable, "-m", "pywan.member.process", "locator", "x", str(write_end)],
            input=json.dumps(spec).encode(),
            pass_fds=[write_end],
            timeout=LIMIT_S,
        )
    finally:
        os.close(write_end)
    assert child.returncode == 1
    assert "the process that started it is gone" in (tmp_path / "x" / "x.log").read_text()
    assert not (tmp_path / "x" / "x.pid").exists()


def test_an_interactive_terminal_completes_and_keeps_its_history(tmp_path):
    import pty

    main_end, terminal = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-m", "pywan.cli.main"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "PYWAN_HISTORY": str(tmp_path / "history"), "TERM": "dumb", "INPUTRC": os.devnull},
    )
    os.close(terminal)
    try:
        shown = b""
        # The first word is completed, then the second, then the line is run.
        for typed, awaited in (
            (b"", b"pywan> "),
            (b"vers\t", b"version"),
            (b"\n", b"pywan 0."),
            (b"describe conn\t\n", b"Not connected"),
            (b"exit\n", b""),
        ):
            before = len(shown)
            os.write(main_end, typed)
            deadline = time.monotonic() + LIMIT_S
            while awaited not in shown[before:]:
                assert time.monotonic() < deadline and shell.poll() is None, shown
                shown += os.read(main_end, 4096)
        assert shell.wait(LIMIT_S) == 0
        assert (tmp_path / "history").read_text().splitlines()[-3:] == ["version ", "describe connection ", "exit"]
    finally:
        shell.kill()
        shell.wait()
        os.close(main_end)


CAUSES = """
import os, time
import pywan

FOLDER = {folder!r}


class Slow(pywan.GatewayEventFilter):
    def before_transmit(self, event):
        while not os.path.exists(os.path.join(FOLDER, "filter-may-go-on")):
            time.sleep(0.01)
        return True


class Standing(pywan.CacheListener):
    def after_create(self, event):
        while not os.path.exists(os.path.join(FOLDER, "receiver-may-go-on")):
            time.sleep(0.01)
"""


def test_the_cause_of_lag_is_shown_for_members_in_processes_of_their_own(machine):
    """Not connected, paused, a slow receiver, a slow filter, stopped; and nothing is lost for it."""
    classes = machine.directory / "classes"
    classes.mkdir()
    (classes / "causes.py").write_text(CAUSES.format(folder=str(machine.directory)))
    (machine.directory / "ln.xml").write_text(
        '<cache><gateway-receiver start-port="0" end-port="0" manual-start="true"/><region name="data" '
        'refid="REPLICATE"><region-attributes><cache-listener>'
        "<class-name>causes:Standing</class-name></cache-listener></region-attributes></region></cache>"
    )
    for site in ("ny", "ln"):
        machine.do_in_shell(START_LOCATOR[site], PYWAN_DISTRIBUTED_SYSTEM_ID=str(SITES[site]))
        xml = "--cache-xml-file=ln.xml" if site == "ln" else ""
        machine.do(
            f"gfsh start server --name=server_{site} --locators={site}_host[10331] "
            f"--bind-address={machine.hosts[f'{site}_host']} --classpath=classes --allow-callbacks=causes {xml}"
        )
    ny = "gfsh --locator=ny_host[10331]"
    for id, more in (("plain", ""), ("filtered", "--gateway-event-filter=causes:Slow")):
        machine.do(
            f"{ny} create gateway-sender --id={id} --remote-distributed-system-id=2 --parallel=false "
            f"--dispatcher-threads=1 --batch-time-interval=10 {more}"
        )
    machine.do(f"{ny} create region --name=data --type=REPLICATE --gateway-sender-id=plain,filtered")

    def shown(id):
        table = machine.do(f"{ny} status gateway-sender --id={id}")
        cause = machine.ask(f"--locator=ny_host[10331] status gateway-sender --id={id}")["data"]["members"][0]["lag"][
            "cause"
        ]
        return cause, table

    machine.do(f"{ny} pause gateway-sender --id=filtered")
    for key in range(3):
        machine.do(f"{ny} put --region=data --key=k{key} --value=1")
    machine.until(
        lambda: shown("plain")[0].startswith("link down: no receiver of site 2"), "the link that is not there"
    )
    assert "3 events" in shown("plain")[1] and "link down" in shown("plain")[1]
    assert shown("filtered")[0] == "paused" and "paused" in shown("filtered")[1]
    machine.do("gfsh --locator=ln_host[10331] start gateway-receiver")
    machine.until(lambda: shown("plain")[0] == "receiver slow", "the receiver that stands")
    machine.do(f"{ny} resume gateway-sender --id=filtered")
    machine.until(lambda: shown("filtered")[0] == "filter slow", "the filter that stands")
    (machine.directory / "receiver-may-go-on").touch()
    machine.until(lambda: shown("plain")[0] == "none", "all is sent")
    machine.do(f"{ny} stop gateway-sender --id=plain")
    machine.do(f"{ny} put --region=data --key=k3 --value=1")
    (machine.directory / "filter-may-go-on").touch()
    machine.until(
        lambda: machine.ask("--locator=ln_host[10331] query size --region=data")["data"].get("size") == 4,
        "the fourth key at ln",
    )
    assert shown("plain")[0] == "stopped" and "stopped" in shown("plain")[1]
    running = machine.shell(f"{ny} start gateway-sender --id=filtered --clean-queues")
    assert running.returncode != 0 and "runs on server_ny; stop it everywhere first" in running.stderr
    partly = machine.shell(f"{ny} start gateway-sender --id=plain --clean-queues --member=server_ny")
    assert partly.returncode != 0 and "all members at once" in partly.stderr
    machine.do(f"{ny} start gateway-sender --id=plain --clean-queues")
    machine.until(lambda: shown("plain")[0] == "none", "a start with clean queues")


def start_server_with_events(machine: Machine, more: str = "") -> str:
    """A locator and a server `s` with 3 events for a site that is not there. Returns the option --locator."""
    if process.recorded(process.MemberFiles.of(machine.directory, "loc")) is None:
        assert start_locator(machine).returncode == 0
    locator = f"--locator={machine.hosts['ny_host']}[10341]"
    machine.do(f"gfsh start server --name=s --locators={machine.hosts['ny_host']}[10341] {more}")
    if not machine.ask(f"{locator} list regions")["data"]["members"][0]["regions"]:
        machine.do(f"gfsh {locator} create gateway-sender --id=ln --remote-distributed-system-id=2")
        machine.do(f"gfsh {locator} create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    for key in "abc":
        machine.do(f"gfsh {locator} put --region=data --key={key} --value=v")
    return locator


def test_shutdown_says_what_it_would_lose_and_takes_consent(machine):
    locator = start_server_with_events(machine)
    for command in ("shutdown", "shutdown --include-locators --time-out=1"):
        refused = machine.shell(f"gfsh {locator} {command}")
        assert (
            refused.returncode == 1
            and "nothing was stopped" in refused.stderr
            and "s: gateway sender ln: 3 queued" in refused.stderr
            and "--force" in refused.stderr
        )
    assert machine.ask(f"{locator} query size --region=data")["data"]["size"] == 3
    done = machine.shell(f"gfsh {locator} shutdown --force --include-locators")
    assert done.returncode == 0 and "sender ln: 3 queued" in done.stderr
    machine.until(lambda: list(machine.directory.glob("*/*.pid")) == [], "both have stopped")
    assert "events are lost as it closes" in machine.logs()


@pytest.mark.nightly
def test_shutdown_waits_for_queues_as_long_as_it_is_told(machine):
    locator = start_server_with_events(machine)
    ended: list[subprocess.CompletedProcess] = []
    waiting = threading.Thread(
        target=lambda: ended.append(machine.shell(f"gfsh {locator} shutdown --time-out=-1 --include-locators"))
    )
    waiting.start()
    machine.do(
        f"gfsh start locator --name=ln --port=10342 --bind-address={machine.hosts['ln_host']} "
        f"--distributed-system-id=2 --remote-locators={machine.hosts['ny_host']}[10341]"
    )
    other = f"{machine.hosts['ln_host']}[10342]"
    machine.do(f"gfsh start server --name=t --locators={other} --bind-address={machine.hosts['ln_host']}")
    machine.do(f"gfsh --locator={other} create region --name=data --type=REPLICATE")
    machine.do(f"gfsh --locator={other} create gateway-receiver")
    waiting.join(LIMIT_S)
    assert ended and ended[0].returncode == 0, f"{ended}{machine.logs()}"
    assert machine.ask(f"--locator={other} query size --region=data")["data"]["size"] == 3
    machine.until(lambda: not (machine.directory / "s" / "s.pid").exists(), "s has stopped")
    assert "are lost" not in (machine.directory / "s" / "s.log").read_text()


def start_two_servers(machine, entries: int = 100) -> str:
    """Starts the servers s and t. They share a region without redundant copies, and s has all its entries. Returns the
    locator as an option of the shell."""
    host = machine.hosts["ny_host"]
    machine.do(f"gfsh start locator --name=ny --port=10341 --bind-address={host} --distributed-system-id=1")
    locator = f"--locator={host}[10341]"
    for name in ("s", "t"):
        machine.do(f"gfsh start server --name={name} --locators={host}[10341] --bind-address={host} --handover-time=30")
        if name == "s":
            machine.do(f"gfsh {locator} create region --name=data --type=PARTITION")
            machine.do(
                f"gfsh {locator} " + " ".join(f'-e "put --region=data --key={n} --value=v"' for n in range(entries))
            )
    machine.until(
        lambda: machine.ask(f"{locator} query size --region=data")["data"]["size"] == entries, "both share it"
    )
    return locator


def test_a_server_whose_data_nobody_takes_over_is_stopped_only_by_force(machine):
    locator = start_two_servers(machine)
    other = process.recorded(process.MemberFiles.of(machine.directory, "t"))
    process.send_signal(other, signal.SIGSTOP)
    try:
        refused = machine.shell("gfsh stop server --name=s --handover-time=0.2")
        assert refused.returncode == 1
        # Some buckets may have moved to the other one before it was stopped.
        assert re.search(r"region data: \d+ entries in \d+ buckets", refused.stderr) and "--force" in refused.stderr
        assert machine.ask("status server --name=s")["data"]["state"] == "online"
        done = machine.shell("gfsh stop server --name=s --handover-time=0.2 --force")
        assert done.returncode == 0 and "has stopped" in done.stdout
    finally:
        process.send_signal(other, signal.SIGCONT)
    log = (machine.directory / "s" / "s.log").read_text()
    # On a slow machine the other one is given up meanwhile.
    why = r"(have not taken over in 0.2 s \(handover-time\)|no other member can store what ends with it)"
    assert re.search(why + r".*: region data: \d+ entries in", log)
    machine.do(f"gfsh {locator} shutdown --include-locators")


def test_a_call_is_tried_for_as_long_as_the_locator_or_the_server_says(machine):
    host = machine.hosts["ny_host"]
    machine.do(
        f"gfsh start locator --name=ny --port=10341 --bind-address={host} --distributed-system-id=1"
        " --member-timeout=7000"
    )
    locator = f"--locator={host}[10341]"
    (machine.directory / "calls.properties").write_text("call-timeout=2.5\nmember-timeout=99\n")
    started = machine.shell(
        f"gfsh start server --name=s --locators={host}[10341] --properties-file={machine.directory}/calls.properties"
    )
    assert started.returncode == 0 and "property member-timeout: the locators' one holds" in started.stderr
    machine.do(f"gfsh start server --name=t --locators={host}[10341] --call-timeout=30")
    machine.do(f"gfsh start server --name=u --locators={host}[10341]")
    for name, timeout_s in (("s", 2.5), ("t", 30), ("u", 14)):
        told = machine.ask(f"{locator} describe member --name={name}")["data"]["member"]
        assert told["call_timeout"] == timeout_s
    assert machine.ask(f"{locator} show coordinator")["data"]["coordination"]["member_timeout_ms"] == 7000
    refused = machine.shell(f"gfsh start server --name=v --locators={host}[10341] --call-timeout=0")
    assert refused.returncode == 1 and "call-timeout: '0' is not a number of seconds from 0.1" in refused.stderr
    refused = machine.shell("gfsh start locator --name=w --port=10399 --member-timeout=9")
    assert refused.returncode == 1 and "member_timeout_ms: 9 is out of range" in refused.stderr
    machine.do(f"gfsh {locator} shutdown --include-locators")


@pytest.mark.nightly
def test_servers_that_are_stopped_one_after_the_other_take_nothing_but_the_last(machine):
    locator = start_two_servers(machine)
    machine.do("gfsh stop server --name=s")
    assert machine.ask(f"{locator} query size --region=data")["data"]["size"] == 100
    last = machine.shell("gfsh stop server --name=t")
    assert last.returncode == 0 and "no other member can store what ends with server t: region data: 100" in last.stderr


@pytest.mark.nightly
def test_a_second_signal_ends_a_server_whose_data_nobody_takes_over(machine):
    start_two_servers(machine)
    member, other = (process.recorded(process.MemberFiles.of(machine.directory, name)) for name in "st")
    process.send_signal(other, signal.SIGSTOP)
    try:
        process.send_signal(member, signal.SIGTERM)
        log = machine.directory / "s" / "s.log"
        machine.until(lambda: "server s stops" in log.read_text(), "it stops")
        process.send_signal(member, signal.SIGINT)
        assert process.wait_until_gone(member, LIMIT_S)
    finally:
        process.send_signal(other, signal.SIGCONT)
    assert "it does not wait until others have taken over" in log.read_text()


def test_shutdown_ends_all_servers_together_and_says_once_what_ends_with_them(machine):
    locator = start_two_servers(machine)
    done = machine.shell(f"gfsh {locator} shutdown --include-locators")
    assert done.returncode == 0 and done.stderr.count("region data: 100 entries") == 1, done.stderr
    machine.until(lambda: list(machine.directory.glob("*/*.pid")) == [], "all have stopped")
    assert "to be handed over" not in machine.logs() and "have lost their last replicas" not in machine.logs()


@pytest.mark.parametrize(
    "given",
    [
        "start server",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("a property", "Geode's property", "stop server")),
    ],
)
def test_a_server_that_stops_says_what_it_loses_and_waits_if_told_so(machine, given):
    start, stop = {
        "start server": ("--maximum-shutdown-wait-time=1", ""),
        "a property": ("--J=-Dgemfire.maximum-shutdown-wait-time=1", ""),
        "Geode's property": ("--J=-DGatewaySender.MAXIMUM_SHUTDOWN_WAIT_TIME=1", ""),
        "stop server": ("", "--maximum-shutdown-wait-time=1"),
    }[given]
    start_server_with_events(machine, start)
    done = machine.shell(f"gfsh stop server --name=s {stop}")
    assert done.returncode == 0 and "sender ln: 3 queued" in done.stderr and "within 1 s" in done.stderr
    log = (machine.directory / "s" / "s.log").read_text()
    assert "waits for gateway sender ln to empty its queue" in log and "sender ln: 3 queued" in log


@pytest.mark.nightly
def test_a_second_signal_ends_the_waiting_of_a_server(machine):
    start_server_with_events(machine, "--maximum-shutdown-wait-time=-1")
    member = process.recorded(process.MemberFiles.of(machine.directory, "s"))
    process.send_signal(member, signal.SIGTERM)
    machine.until(lambda: "waits for gateway sender ln" in (machine.directory / "s" / "s.log").read_text(), "it waits")
    process.send_signal(member, signal.SIGTERM)
    assert process.wait_until_gone(member, LIMIT_S)
    assert "sender ln: 3 queued" in (machine.directory / "s" / "s.log").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("garbled"),
        lambda file: file.write_text(""),
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"\xff\xfe 1\n{"),
        lambda file: file.write_text(file.read_text().partition("\n")[0] + "\n[1, 2]\n"),
        lambda file: file.write_text("1 2\n{}\n"),
    ],
    ids=["no pid", "empty", "gone", "no text", "no map", "another process"],
)
def test_a_live_member_whose_pid_file_is_damaged_is_not_called_stopped(machine, spoil):
    assert start_locator(machine).returncode == 0
    files = process.MemberFiles.of(machine.directory, "loc")
    pid = machine.pid_of("loc")
    spoil(files.pid_file)
    found = machine.ask("status locator --name=loc")
    assert (
        found["data"]["state"] == "not responding" and found["data"]["pid"] == pid and "loc.pid" in found["errors"][0]
    )
    again = start_locator(machine)
    assert again.returncode == 1 and "running already" in again.stderr
    stopped = machine.do("gfsh stop locator --name=loc")
    assert f"pid {pid}" in stopped and "SIGTERM" in stopped
    assert machine.ask("status locator --name=loc")["data"]["state"] == "stopped"


@pytest.mark.nightly
def test_a_server_whose_pid_file_is_damaged_says_what_it_loses_as_it_stops(machine):
    start_server_with_events(machine)
    files = process.MemberFiles.of(machine.directory, "s")
    files.pid_file.write_text("garbled")
    with pytest.raises(IllegalStateError, match=r"is running already \(pid \d+\) in "):
        process.start("server", "s", {}, directory=machine.directory)
    done = machine.shell("gfsh stop server --name=s")
    assert done.returncode == 0 and "by SIGTERM" in done.stdout and "sender ln: 3 queued" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name, is_refused", [(".loc.lock", True), ("loc.log", True), (".loc.pid.new", False), ("loc.pid", False)]
)
def test_a_member_writes_through_no_link_in_its_folder(machine, name, is_refused):
    precious = machine.directory / "precious"
    precious.write_text("precious")
    (machine.directory / "loc").mkdir()
    (machine.directory / "loc" / name).symlink_to(precious)
    started = start_locator(machine)
    assert precious.read_text() == "precious"
    assert (started.returncode != 0 and "symbolic link" in started.stderr) if is_refused else started.returncode == 0


def test_a_member_that_belongs_to_another_user_is_not_called_stopped(machine):
    assert start_locator(machine).returncode == 0
    files = process.MemberFiles.of(machine.directory, "loc")

    def ask(text: str) -> subprocess.CompletedProcess:
        """As another user, or, where we may not become one, without the right to look into the folder."""
        program = f"import os\nfrom pywan.member import process\nif os.getuid() == 0:\n    os.setuid(65534)\n{text}"
        return subprocess.run([sys.executable, "-c", program], env=machine.environment, capture_output=True, text=True)

    for folder in [files.folder, *files.folder.parents]:
        if folder.stat().st_uid == os.getuid() and folder != files.folder and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    if os.getuid():
        files.folder.chmod(0)
    try:
        told = ask(
            f"found = process.status('locator', 'loc', directory={str(machine.directory)!r})\n"
            "print(found['state'], found['problem'])"
        )
        assert told.stdout.startswith("unknown ") and "another user" in told.stdout, told
        refused = ask(f"process.stop('locator', 'loc', directory={str(machine.directory)!r})")
        assert "IllegalStateError" in refused.stderr and "another user" in refused.stderr
    finally:
        files.folder.chmod(0o700)


def test_a_site_that_has_only_a_locator_is_shut_down_with_it(machine):
    assert start_locator(machine).returncode == 0
    locator = f"--locator={machine.hosts['ny_host']}[10341]"
    without = machine.shell(f"pywan {locator} shutdown")
    assert without.returncode == 1 and "no members in the site" in without.stderr
    done = machine.do(f"pywan {locator} shutdown --include-locators")
    assert "the locator stops" in done
    machine.until(lambda: list(machine.directory.glob("*/*.pid")) == [], "the locator has stopped")


def test_logs_begin_with_the_version_and_who_listens_where_and_what_a_site_says_is_said_once(machine):
    assert start_locator(machine).returncode == 0
    locator = f"{machine.hosts['ny_host']}[10341]"
    for name in ("s", "t"):
        machine.do(f"pywan start server --name={name} --locators={locator}")
    for name, kind in (("loc", "locator"), ("s", "server")):
        pid = process.recorded(process.MemberFiles.of(machine.directory, name)).pid
        first, *lines = (machine.directory / name / f"{name}.log").read_text().splitlines()
        assert f"pywan {pywan.__version__} starts {kind} {name}: process {pid}, " in first and locator[:-7] in first
        assert any(re.search(rf"{name} of site 1 listens on [\d.]+\[\d+\]", line) for line in lines)
    unknown = machine.shell(f"pywan --locator={locator} start gateway-sender --id=typo")
    (line,) = [line for line in unknown.stderr.splitlines() if "typo" in line]
    assert unknown.returncode == 1 and "all 2 members say this" in line
    wrong = machine.shell(
        f"pywan --locator={locator} create gateway-sender --id=ln --remote-distributed-system-id=2 --batch-size=0"
    )
    assert wrong.returncode == 1 and wrong.stderr.count("batch_size") == 1
    machine.do(f"pywan --locator={locator} shutdown --include-locators")
