"""Owns the demo's processes: six of them, started by the same commands that a person would type, and all gone at the end."""
from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pywan.addresses import Address
from pywan.demo.topology import Site, Topology
from pywan.errors import ConnectivityError, IllegalStateError, PywanError
from pywan.transport.control import ControlClient

START_LIMIT_S = 60
STOP_LIMIT_S = 15
ASK_TIMEOUT_S = 20.0
_LOG_LINES = 15


class Member:
    """One running process: a locator or a server. Known by a descriptor of the process, so that its number being
    used again by another one cannot hurt."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            pass

    def wait(self, limit_s: float) -> bool:
        """Whether the process is gone, within the limit."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    def close(self) -> None:
        os.close(self._descriptor)


class Members:
    """Starts, asks and ends the processes of a topology. `stop_all` ends whatever was started, however far that got."""

    def __init__(self, topology: Topology, directory: Path, configuration: dict[str, Path]) -> None:
        self.topology = topology
        self.directory = directory
        self._configuration = configuration
        self._lock = threading.Lock()
        self._running: dict[str, Member] = {}       # Guarded by _lock.
        self._starting: set[subprocess.Popen] = set()   # Guarded by _lock.
        self._closing = False                       # Guarded by _lock.
        self._clients: dict[tuple[int, str], ControlClient] = {}   # By thread and site: a connection serves one thread.
        self._addresses: dict[str, Address] = {}    # Of each site's server.

    def start_all(self) -> None:
        """All locators, then all servers; each kind at once."""
        sites = list(self.topology.sites.values())
        with ThreadPoolExecutor(len(sites)) as pool:
            list(pool.map(self.start_locator, sites))
            list(pool.map(self.start_server, sites))

    def locator_command(self, site: Site) -> list[str]:
        return [
            "start", "locator", f"--name={site.locator_name}", f"--locators={site.locator}", f"--port={site.locator_port}",
            f"--distributed-system-id={site.distributed_system_id}",
            f"--J=-Dgemfire.remote-locators={self.topology.remote_locators(site)}",
        ]

    def server_command(self, site: Site) -> list[str]:
        return [
            "start", "server", f"--name={site.server_name}", f"--locators={site.locator}", f"--bind-address={site.address}",
            f"--cache-xml-file={self._configuration[site.name]}",
        ]

    def start_locator(self, site: Site) -> None:
        self._start(site.locator_name, self.locator_command(site))

    def start_server(self, site: Site) -> None:
        self._start(site.server_name, self.server_command(site))
        self._addresses.pop(site.name, None)

    def _start(self, name: str, command: list[str]) -> None:
        environment = {**os.environ, "PYWAN_HOSTS": self.topology.hosts}
        with self._lock:
            if self._closing:
                raise IllegalStateError(f"{name} is not started: the demo is ending")
            # In a session of its own, so that Ctrl-C reaches only the demo, which then ends what was started, in order.
            starter = subprocess.Popen(
                [sys.executable, "-m", "pywan.cli.main", *command, f"--dir={self.directory}"], env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )
            self._starting.add(starter)
        try:
            said, _ = starter.communicate(timeout=START_LIMIT_S)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.communicate()
            raise PywanError(f"`pywan {' '.join(command)}` did not end within {START_LIMIT_S} s; see {self.log_file(name)}") from None
        finally:
            with self._lock:
                self._starting.discard(starter)
        if starter.returncode != 0:
            raise PywanError(f"`pywan {' '.join(command)}` failed:\n{said.strip()}\n{self.log_tail(name)}")
        self._adopt(name)

    def _adopt(self, name: str) -> None:
        pid = self._recorded_pid(name)
        if pid is None:
            raise PywanError(f"{name} was started but left no pid file in {self.directory / name}")
        member = Member(name, pid)
        with self._lock:
            old = self._running.get(name)
            self._running[name] = member
        if old is not None:
            old.close()

    def _recorded_pid(self, name: str) -> int | None:
        for file in (self.directory / name).glob("*.pid"):
            try:
                return int(file.read_text().split()[0])
            except (OSError, ValueError, IndexError):
                continue
        return None

    def kill(self, name: str) -> None:
        """Ends the process as a power cut would, and waits until it is gone."""
        with self._lock:
            member = self._running[name]
        member.signal(signal.SIGKILL)
        if not member.wait(STOP_LIMIT_S):
            raise PywanError(f"{name} (process {member.pid}) does not end when killed")

    def is_running(self, name: str) -> bool:
        with self._lock:
            member = self._running.get(name)
        return member is not None and not member.wait(0)

    def stop_all(self) -> None:
        """Ends every process: asks first, kills what has not ended within the limit. May be called twice."""
        with self._lock:
            self._closing = True
            starting = list(self._starting)
        for starter in starting:        # Its child would otherwise appear after we have gone.
            try:
                starter.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                starter.kill()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        for site in self.topology.sites.values():
            for name in (site.locator_name, site.server_name):
                if name not in self._running and self._recorded_pid(name) is not None:
                    try:
                        self._adopt(name)
                    except ProcessLookupError:
                        pass
        with self._lock:
            members = list(self._running.values())
            self._running.clear()
        members.sort(key=lambda member: member.name.startswith("locator"))    # Servers tell their locators that they leave.
        for kind in (False, True):
            group = [member for member in members if member.name.startswith("locator") is kind]
            for member in group:
                member.signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_LIMIT_S
            for member in group:
                if not member.wait(max(0.0, deadline - time.monotonic())):
                    member.signal(signal.SIGKILL)
                    member.wait(STOP_LIMIT_S)
                member.close()

    def ask(self, site: str, op: str, **fields: Any) -> dict:
        """The answer of the site's server to a management request; one connection per thread and site, made again once."""
        key = (threading.get_ident(), site)
        for attempt in (1, 2):
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = ControlClient(self._server_address(site), timeout=ASK_TIMEOUT_S)
            try:
                return client.call(op, **fields)
            except ConnectivityError:
                self._clients.pop(key).close()
                self._addresses.pop(site, None)
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _server_address(self, site: str) -> Address:
        address = self._addresses.get(site)
        if address is None:
            where = self.topology.sites[site]
            with ControlClient(Address(where.address, where.locator_port), timeout=ASK_TIMEOUT_S) as locator:
                members = locator.call("servers")["servers"]
            for member in members:
                if member["name"] == where.server_name:
                    address = self._addresses[site] = Address(member["host"], member["port"])
        if address is None:
            raise ConnectivityError(f"the locator of {site} at {where.locator} knows no member {where.server_name}")
        return address

    def log_file(self, name: str) -> Path:
        return next(iter((self.directory / name).glob("*.log")), self.directory / name / f"{name}.log")

    def log_tail(self, name: str) -> str:
        try:
            lines = self.log_file(name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return ""
        return f"last lines of {self.log_file(name)}:\n" + "\n".join(lines)
