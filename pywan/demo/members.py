"""Owns the six processes of the demo. The commands that start them are those that a person would type. At the end all
of them are gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pywan.base.addresses import Address
from pywan.demo.compare import SCAN_LIMIT
from pywan.demo.progress import SiteView
from pywan.demo.topology import REGION, Site, Topology
from pywan.errors import ConnectivityError, IllegalStateError, PywanError
from pywan.member import process
from pywan.transport.control import ControlClient
from pywan.transport.links import Links

START_LIMIT_S = 60
STOP_LIMIT_S = 15
ASK_TIMEOUT_S = 20.0
_LOG_LINES = 15


class Member:
    """One running process: a locator or a server. A descriptor of the process stands for it: its number could belong to
    another process later."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, limit_s: float) -> bool:
        """Whether the process is gone, within the limit."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    def close(self) -> None:
        os.close(self._descriptor)


class Members:
    """Starts, asks and ends the processes of a topology. `stop_all` ends whatever was started, however far that got."""

    def __init__(
        self, topology: Topology, directory: Path, configuration: dict[str, Path], ssl: dict[str, str] | None = None
    ) -> None:
        """`ssl`: how all processes encrypt their connections. None: they do not."""
        self.topology = topology
        self.directory = directory
        self._configuration = configuration
        self._ssl, self._links = ssl or {}, Links(ssl)
        self._lock = threading.Lock()
        self._running: dict[str, Member] = {}  # Guarded by _lock.
        self._starting: set[subprocess.Popen[str]] = set()  # Guarded by _lock.
        self._closing = False  # Guarded by _lock.
        self._clients: dict[str, ControlClient] = {}  # By site; guarded by _lock.

    def start_all(self, say: Callable[[str], None] = lambda text: None) -> None:
        """All locators, then all servers; each kind at once."""
        sites = list(self.topology.sites.values())
        with ThreadPoolExecutor(len(sites)) as pool:
            say(f"starting {len(sites)} locators, one for each site, as processes of their own")
            list(pool.map(self.start_locator, sites))
            say(f"starting {len(sites)} servers, each by its cache.xml: senders, a receiver, the region {REGION!r}")
            list(pool.map(self.start_server, sites))
        say("all sites are up")

    def locator_command(self, site: Site) -> list[str]:
        return [
            "start",
            "locator",
            f"--name={site.locator_name}",
            f"--locators={site.locator}",
            f"--port={site.locator_port}",
            f"--distributed-system-id={site.distributed_system_id}",
            f"--J=-Dgemfire.remote-locators={self.topology.remote_locators(site)}",
        ]

    def server_command(self, site: Site) -> list[str]:
        return [
            "start",
            "server",
            f"--name={site.server_name}",
            f"--locators={site.locator}",
            f"--bind-address={site.address}",
            f"--cache-xml-file={self._configuration[site.name]}",
        ]

    def start_locator(self, site: Site) -> None:
        self._start(site.locator_name, self.locator_command(site))

    def start_server(self, site: Site) -> None:
        self._start(site.server_name, self.server_command(site))

    def _start(self, name: str, command: list[str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYWAN_SSL_")}
        encryption = {f"PYWAN_SSL_{name.upper()}": value for name, value in self._ssl.items()}
        environment = {**plain, **encryption, "PYWAN_HOSTS": self.topology.hosts}
        with self._lock:
            if self._closing:
                raise IllegalStateError(f"{name} is not started: the demo is ending")
            # The process has a session of its own, so Ctrl-C reaches only the demo, which then ends all processes in
            # order.
            starter = subprocess.Popen(
                [sys.executable, "-m", "pywan.cli.main", *command, f"--dir={self.directory}"],
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._starting.add(starter)
        try:
            said, _ = starter.communicate(timeout=START_LIMIT_S)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.communicate()
            raise PywanError(
                f"`pywan {' '.join(command)}` did not end within {START_LIMIT_S} s; see {self.log_file(name)}"
            ) from None
        finally:
            with self._lock:
                self._starting.discard(starter)
        if starter.returncode != 0:
            reason = said.strip() or self.log_tail(name)
            raise PywanError(f"`pywan {' '.join(command)}` failed:\n{reason}\nlog: {self.log_file(name)}")
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
        found = process.recorded(process.MemberFiles.of(self.directory, name))
        return found.pid if found is not None else None

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
        for starter in starting:  # Otherwise its child would appear after the demo has gone.
            try:
                starter.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                starter.kill()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        for site in self.topology.sites.values():
            for name in (site.locator_name, site.server_name):
                if name not in self._running and self._recorded_pid(name) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        self._adopt(name)
        with self._lock:
            members = list(self._running.values())
            self._running.clear()
        members.sort(
            key=lambda member: member.name.startswith("locator")
        )  # Servers tell their locators that they leave.
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

    def look(self, site: str) -> SiteView:
        """One look at what the site holds and has still to send."""
        senders = self.ask(site, "list gateways")["senders"]
        size = self.ask(site, "query size", region=REGION)["size"]
        waiting = [sender for sender in senders if sender["queue_size"]]
        return SiteView(
            keys=size,
            events=max(
                (sender["ledger"]["received"] for sender in senders), default=0
            ),  # Each sender sees every change.
            queued={sender["id"]: sender["queue_size"] for sender in senders},
            lag_seconds=max((float(sender["lag"].get("seconds") or 0) for sender in waiting), default=0.0),
            lag_causes=tuple(
                dict.fromkeys(
                    sender["lag"]["cause"].partition(":")[0] for sender in waiting if sender["lag"].get("cause")
                )
            ),
        )

    def scan(self, site: str, cursor: int) -> tuple[int | None, bytes]:
        answer = self.ask(site, "scan region", region=REGION, cursor=cursor, limit=SCAN_LIMIT)
        return answer["next"], answer["entries"]

    def ledgers(self, site: str) -> dict[str, dict[str, Any]]:
        """Each sender's ledger."""
        return {sender["id"]: sender["ledger"] for sender in self.ask(site, "list gateways")["senders"]}

    def receiver_stats(self, site: str) -> dict[str, int]:
        return dict(self.ask(site, "status gateway-receiver")["stats"])

    def writer(self, site: str) -> ControlClient:
        """A connection of its own to the site's server; it goes on while the site's locator is away."""
        return self._client_of(site)

    def _client_of(self, site: str) -> ControlClient:
        what = f"the server of {site} at"
        return ControlClient(self._server_address(site), timeout=ASK_TIMEOUT_S, what=what, way=self._links.cluster)

    def ask(self, site: str, op: str, **fields: Any) -> dict[str, Any]:
        """The answer of the site's server to a management request. If the server is not where it was, it is looked for
        once more: it may have been started again elsewhere."""
        try:
            return self._client(site).call(op, **fields)
        except ConnectivityError:
            with self._lock:
                stale = self._clients.pop(site, None)
            if stale is not None:
                stale.close()
            return self._client(site).call(op, **fields)

    def _client(self, site: str) -> ControlClient:
        with self._lock:
            client = self._clients.get(site)
        if client is None:
            client = self._client_of(site)
            with self._lock:
                client = self._clients.setdefault(site, client)
        return client

    def _server_address(self, site: str) -> Address:
        where = self.topology.sites[site]
        address, way = Address(where.address, where.locator_port), self._links.locator
        with ControlClient(address, timeout=ASK_TIMEOUT_S, way=way) as locator:
            for member in locator.call("servers")["servers"]:
                if member["name"] == where.server_name:
                    return Address(member["host"], member["port"])
        raise ConnectivityError(f"the locator of {site} at {where.locator} knows no member {where.server_name}")

    def log_file(self, name: str) -> Path:
        return next(iter((self.directory / name).glob("*.log")), self.directory / name / f"{name}.log")

    def log_tail(self, name: str) -> str:
        try:
            lines = self.log_file(name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return ""
        return f"last lines of {self.log_file(name)}:\n" + "\n".join(lines)
