"""Owns a locator: the server of members, senders and peer locators, and the exchange of addresses with the locators of
all sites."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pywan
from pywan.base.addresses import (
    WILDCARDS,
    Address,
    check_port,
    check_told_host,
    is_loopback,
    is_number,
    parse_locators,
    resolve,
)
from pywan.base.faces import Described, counted
from pywan.base.files import FileError, read_regular, write_whole
from pywan.base.lines import Lines
from pywan.base.names import check_name
from pywan.base.nonces import needed_nonce_of
from pywan.base.threads import Thread, Workers, start_essential, told_error
from pywan.config.cluster import ClusterConfiguration
from pywan.config.security_attributes import security_of
from pywan.config.values import to_int
from pywan.coordination.tables import MEMBER_TIMEOUT_US
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    DiskAccessError,
    IllegalStateError,
    IncompatibleSystemError,
    ProtocolError,
    PywanError,
)
from pywan.forks import is_inherited, of_one_process
from pywan.protocol.discovery import (
    HIGHEST_SYSTEM_ID,
    LOWEST_SYSTEM_ID,
    Contact,
    LocatorProfile,
    LocatorState,
    Timings,
)
from pywan.protocol.members import MAX_LEASE_MS, MIN_LEASE_MS, Member, MemberTable, ReceiverWish, check_profile
from pywan.security.configured import gateway_identity_of, guard_of, identity_of, secret_of
from pywan.security.operations import for_members_at_locator, needed_at_locator
from pywan.site.coordination_host import CoordinationHost
from pywan.transport.control import ControlClient, ControlServer, Handler, Reply, call_once, dispatch
from pywan.transport.links import LOCATOR_PORT, Gate, Links
from pywan.transport.sockets import is_own_address, reachable_address

log = logging.getLogger("pywan.locator")

DEFAULT_PORT = 10334
DEFAULT_BIND_ADDRESS = "127.0.0.1"
CONTACT_TIMEOUT_S = 5.0  # The limit for one exchange with a locator.
CONTACTS_AT_ONCE = 8  # More contacts wait for their turn.
MAX_MERGE_PROBLEMS = 100  # So many problems with merges are remembered, and not logged again.
FIRST_ROUND_S = 3.0  # The limit of start() for a configured locator to contradict this locator.
PROBE_TIMEOUT_S = 1.0  # The limit for asking the present holder of a name whether the holder is alive.
FRESH_MS = 2_000  # A member without a port of its own counts as alive for so long after a heartbeat.
CONFIGURATION_FILE = "cluster_config.json"
MAX_CONFIGURATION_BYTES = 16 * 1024 * 1024  # The limit for CONFIGURATION_FILE: several times the largest configuration.


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def choose_bind_address(bind_address: str | None, port: int, locators: list[Address]) -> str:
    """Returns the address on which to listen.

    If no `bind_address` is given and exactly one entry of `locators` has our port and a loopback address of this
    machine, the result is the address of the entry. Otherwise the result is 127.0.0.1: a locator listens to other
    machines only if an operator says so.
    """
    if bind_address is not None:
        return bind_address
    ours = []
    for address in locators:
        if address.port == port:
            try:
                ip = resolve(address.host, 2.0)
            except ConnectivityError:
                continue
            if is_loopback(ip):
                ours.append(ip)
    return ours[0] if len(ours) == 1 else DEFAULT_BIND_ADDRESS


@of_one_process(lambda locator: f"locator {locator.name!r}", nothing_in_child=("stop",))
class Locator(Described):
    """One locator of a site. Members, senders and locators find one another through the locator.

    The constructor only checks its arguments. `start` opens the port, and `stop` ends every thread. A locator is a
    context manager: the `with` block starts the locator, and stops it in the end.

    Args:
        name: The locator's name.
        distributed_system_id: The site's id, from 0 to 255. -1: the site takes no part in a WAN.
        bind_address: The address on which to listen. None: the address of the locator's own entry among `locators`.
        port: The port. 0 means any free port.
        locators: The locators of the own site, as `host[port],host[port]`. The own address may be among these.
        remote_locators: The locators of other sites. Unknown and unreachable locators are tried for ever.
        hostname_for_clients: The host name for other processes. By default the bind address; if the bind address is
            every interface, the address towards the configured locators.
        dir: The folder `<dir>/<name>` keeps the cluster configuration and the coordinator's metadata records. None:
            both are lost when the locator stops.
        member_timeout_ms: A member from which no heartbeat was received for so many milliseconds counts as dead.
        recover_from_members: The locator coordinates the site from now on, in place of a locator that is gone for good.
            The metadata come from the members.
        ssl: How connections are encrypted, by the names in docs/configuration.md: `{"enabled_components": "all", ...}`.
            None: connections are not encrypted.
        security: The locator's identity, and the peers that may connect, by the names in docs/configuration.md. None:
            the locator proves no identity, and admits everybody.
        timings: The times of the exchange with other locators.

    Attributes:
        name: The locator's name.
        distributed_system_id: The id of the site.
        bind_address: The address on which the locator listens.
        shutdown_requested: An event that is set by a request to stop the locator. The program that runs the locator
            waits for the event, and then calls `stop`.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        distributed_system_id: int,
        bind_address: str | None = DEFAULT_BIND_ADDRESS,
        port: int = DEFAULT_PORT,
        locators: str = "",
        remote_locators: str = "",
        hostname_for_clients: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        member_timeout_ms: int = MEMBER_TIMEOUT_US // 1000,
        recover_from_members: bool = False,
        ssl: Mapping[str, Any] | None = None,
        security: Mapping[str, Any] | None = None,
        timings: Timings = Timings(),
    ) -> None:
        check_name(name, "locator")
        if type(distributed_system_id) is not int or not LOWEST_SYSTEM_ID <= distributed_system_id <= HIGHEST_SYSTEM_ID:
            raise ConfigurationError(
                f"locator {name}: distributed-system-id {distributed_system_id!r} is not a number from"
                f" {LOWEST_SYSTEM_ID} to {HIGHEST_SYSTEM_ID}"
            )
        self.name = name
        self.distributed_system_id = distributed_system_id
        self._wanted_port = check_port(port, f"locator {name}", lowest=0)
        self._locators = parse_locators(locators)
        self._remote_locators = parse_locators(remote_locators)
        if self._remote_locators and distributed_system_id < 0:
            raise ConfigurationError(
                f"locator {name}: remote-locators need a distributed-system-id of 0 to {HIGHEST_SYSTEM_ID}"
            )
        both = set(self._locators) & set(self._remote_locators)
        if both:
            raise ConfigurationError(
                f"locator {name}: {min(both)} is in both locators and remote-locators; a site is not remote to itself"
            )
        self.bind_address = choose_bind_address(bind_address, self._wanted_port, self._locators)
        self._host = check_told_host(hostname_for_clients, f"locator {name}: hostname_for_clients") or self.bind_address
        self._folder = Path(dir) / name if dir is not None else None
        self._file = self._folder / CONFIGURATION_FILE if self._folder is not None else None
        self._timings = timings
        secured = security_of(security)
        self._links = Links(
            ssl,
            listener=f"locator {name}",
            identity=identity_of(secured),
            gateway_identity=gateway_identity_of(secured),
            secret=secret_of(secured),
        )
        self._guard = guard_of(secured, f"locator {name}")
        # `_lock` guards the table, and every changing field below.
        self._members = MemberTable(
            to_int(member_timeout_ms, f"locator {name}: member_timeout_ms", MIN_LEASE_MS, MAX_LEASE_MS)
        )
        self._coordination = CoordinationHost(
            name,
            site=distributed_system_id,
            folder=self._folder,
            peers=self._other_locators,
            address=lambda: self.address,
            member_timeout_ms=self._members.lease_ms,
            recovers=recover_from_members,
            links=self._links,
        )
        self._configuration = ClusterConfiguration()
        self._merge_problems: set[str] = set()  # Why remote configurations were not merged, as logged.
        self._save_problem: str | None = None  # The reason why the file does not hold the newest configuration.
        self._state: LocatorState | None = None
        self._server: ControlServer | None = None
        # Anybody can join and leave. Joins and departures have separate log limits, so a flood of joins hides no
        # departure.
        self._came, self._went, self._refused = Lines(log), Lines(log), Lines(log)
        self._lock = threading.RLock()
        # Notified when work may be due, or when the first round may be over.
        self._changed = threading.Condition(self._lock)
        self._life = threading.Lock()  # Held by start and stop, so that the two do not overlap.
        self._contacting: set[ControlClient] = set()
        self._running = False
        self._gossip: threading.Thread | None = None
        self._pool: Workers | None = None
        self._started_ms = 0
        self.shutdown_requested = threading.Event()  # Set by a `stop` request, and by stop().
        self._stopped = threading.Event()

    # --- life cycle ---

    def start(self) -> Locator:
        """Listens, and tries each configured locator once, for 3 s at most.

        Returns:
            The locator itself.

        Raises:
            IncompatibleSystemError: A configured locator says that the site's id is wrong.
            PortInUseError: Another process listens on the port.
            ConfigurationError: The port or the file of the cluster configuration cannot be used.
            IllegalStateError: The locator was started before. A new locator can be made.
        """
        with self._life:
            if self._server is not None:
                raise IllegalStateError(f"locator {self.name} was started already; make a new one to start again")
            self._load_configuration()
            self._make_parts()
            self._running = True
            reason = self._begin()
        if reason is not None:
            self.stop()
            raise reason
        log.info(
            "locator %s of site %d listens on %s[%d], and is known as %s[%d]: pywan %s, process %d",
            self.name,
            self.distributed_system_id,
            self.bind_address,
            self.port,
            self.host,
            self.port,
            pywan.__version__,
            os.getpid(),
        )
        return self

    def _make_parts(self) -> None:
        """Makes the server and the state of the exchange with other locators. Takes the port, and answers no request
        yet."""
        self._server = ControlServer(
            self.bind_address,
            self._wanted_port,
            self._handler(),
            name=f"locator {self.name}",
            gate=Gate(self._links, LOCATOR_PORT),
            guard=self._guard,
            needed=needed_at_locator(self.distributed_system_id),
            for_members=for_members_at_locator(self.distributed_system_id),
            ended=self._coordination.ended,
        )
        if self._host in WILDCARDS:
            self._host = reachable_address(self.bind_address, [*self._remote_locators, *self._locators])
            log.info(
                "locator %s listens on every interface, and is known to others as %s; another name can be given"
                " by hostname-for-clients",
                self.name,
                self._host,
            )
        self._started_ms = _now_ms()
        me = LocatorProfile(self.distributed_system_id, self.host, self.port, self.name)
        self._state = LocatorState(
            me,
            secrets.token_hex(8),
            self._without_self(self._locators),
            self._remote_locators,
            self._timings,
            extra=self._configuration.entries,
            extra_digest=self._configuration.digest,
            merge_extra=self._merge_configuration,
            asks_who=self._guard.knows_its_own,
        )

    def _begin(self) -> PywanError | None:
        """Starts all threads, and waits until each configured locator was tried once. Returns the reason why the
        locator cannot start, or None."""
        assert self._server is not None
        try:
            self._server.start()
            self._coordination.start()
            self._pool = Workers(CONTACTS_AT_ONCE, name=f"locator {self.name}-contact")
            self._gossip = start_essential(
                f"locator {self.name} cannot start", f"locator {self.name}-gossip", self._run
            )
        except (IllegalStateError, ConfigurationError, DiskAccessError) as error:
            return error
        with self._changed:
            self._changed.wait_for(
                lambda: self._exchange.first_round_done() or self._exchange.conflicts(), FIRST_ROUND_S
            )
            conflicts = self._exchange.conflicts()
        if conflicts:
            return IncompatibleSystemError(f"locator {self.name} cannot start: {'; '.join(conflicts)}")
        return None

    def stop(self) -> None:
        """Closes the port and ends every thread.

        A second call is no error, and neither is a call for a locator that never started. In a forked child the call
        does nothing.
        """
        with self._life:
            with self._changed:
                self._running = False
                contacting = list(self._contacting)
                self._changed.notify_all()
            for client in contacting:
                client.close()
            self._coordination.stop()
            if self._gossip is not None:
                self._gossip.join(CONTACT_TIMEOUT_S)
            if self._pool is not None:
                self._pool.stop()
            if self._server is not None:
                self._server.stop()
            self._guard.stop()
            if not self._stopped.is_set() and self._server is not None:
                log.info("locator %s: stopped", self.name)
            self.shutdown_requested.set()
            self._stopped.set()

    def wait_until_stopped(self, timeout: float | None = None) -> bool:
        """Waits until the locator is stopped, by a call in this process or by a request from outside.

        Args:
            timeout: How many seconds to wait at most. None: no limit.

        Returns:
            Whether the locator was stopped in time.
        """
        return self._stopped.wait(timeout)

    def __enter__(self) -> Locator:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- state for users ---

    @property
    def is_running(self) -> bool:
        """Whether the locator was started, and not stopped since."""
        return self._running

    @property
    def port(self) -> int:
        """The port on which the locator listens. Before `start`, the requested port."""
        return self._server.port if self._server is not None else self._wanted_port

    @property
    def host(self) -> str:
        """The host name or address for members and locators.

        If the locator listens on every interface, `start` sets the address towards the configured locators.
        """
        return self._host

    @property
    def address(self) -> Address:
        """Host and port for other processes, written `host[port]`."""
        return Address(self.host, self.port)

    def known_sites(self) -> dict[int, list[Address]]:
        """Returns the locators of every known site by the site's id, the own site included."""
        with self._lock:
            return self._state.known_sites() if self._state else {}

    def members(self) -> list[dict[str, Any]]:
        """Returns the profiles of the live members, with receivers."""
        with self._lock:
            self._expire()
            return self._members.members()

    def cluster_configuration(self) -> list[dict[str, Any]]:
        """Returns the regions, senders and receivers for the members, in the order of creation.

        Each entry is a map with "kind", "name" and "attributes".
        """
        with self._lock:
            return self._configuration.things()

    def status(self) -> dict[str, Any]:
        """Returns the locator's name, state, addresses, members, known sites and problems as plain values."""
        with self._lock:
            return {
                "name": self.name,
                "type": "locator",
                "state": "running" if self._running else "stopped",
                "distributed_system_id": self.distributed_system_id,
                "host": self.host,
                "port": self.port,
                "bind_address": self.bind_address,
                "pid": os.getpid(),
                "uptime_ms": _now_ms() - self._started_ms if self._started_ms else 0,
                "members": self.members(),
                "sites": self._sites(),
                "peers": self._state.peers() if self._state else [],
                "problems": self._state.problems() if self._state else [],
                "cluster_configuration_things": len(self._configuration.things()),
                "cluster_configuration_problem": self._save_problem,
                "coordinator": self._coordination.coordinator,
                "ssl": self._links.status(),
                "security": self._guard.status(),
            }

    def reload_certificates(self) -> list[str]:
        """Reads the files of `ssl` again. New connections use the new content. Changed files are also read again
        without this call, some seconds later.

        Returns:
            The files. The list is empty if no connection is encrypted.

        Raises:
            ConfigurationError: A file cannot be used. The earlier content stays in use.
        """
        return self._links.reload()

    # The following methods do not wait for the locator's lock, and do not look for expired members.

    def _line(self) -> str:
        words = f"{self.name} of site {self.distributed_system_id}"
        if is_inherited(self):
            return f"{words}, of the parent process"
        return f"{words}, {self._state_text()}, {counted(self._members.count, 'member')}"

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "name": self.name,
            "site": str(self.distributed_system_id),
        }
        if is_inherited(self):
            return {**facts, "state": "of the parent process"}
        return {
            **facts,
            "state": self._state_text(),
            "members": self._members.count,
            "things in the cluster configuration": self._configuration.count,
            "problem of the cluster configuration": self._save_problem,
        }

    def _state_text(self) -> str:
        if self._running:
            return f"running on {self.host}[{self.port}]"
        return "stopped" if self._stopped.is_set() else "not started"

    @property
    def _exchange(self) -> LocatorState:
        """The state of the exchange with the locators of all sites. The state exists from `start` on."""
        assert self._state is not None, "the locator was not started"
        return self._state

    # --- requests ---

    def _handler(self) -> Handler:
        return dispatch(
            {
                "ping": self._on_ping,
                "locator-join": self._on_locator_join,
                "member-join": self._on_member_join,
                "member-heartbeat": self._on_member_heartbeat,
                "member-leave": self._on_member_leave,
                "remote-locators": self._on_remote_locators,
                "receiver": self._on_receiver,
                "receivers": lambda request, peer: self._locked(
                    lambda: {"receivers": self._members.receivers(_now_ms())}
                ),
                "servers": lambda request, peer: {
                    **self._locked(lambda: {"servers": self._members.servers()}),
                    "having": self._coordination.having(request.get("region")),
                },
                "members": lambda request, peer: {"members": self.members()},
                "known-sites": lambda request, peer: self._locked(lambda: {"sites": self._sites()}),
                "status": lambda request, peer: self.status(),
                "reload-certificates": lambda request, peer: {"files": self.reload_certificates()},
                "stop": self._on_stop,
                "cluster-configuration": lambda request, peer: {"cluster_configuration": self.cluster_configuration()},
                "change-configuration": self._on_change_configuration,
                **self._coordination.handlers(),
            },
            f"locator {self.name}",
        )

    def _locked(self, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        with self._lock:
            self._expire()
            return answer()

    def _on_ping(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        with self._lock:
            return {"type": "locator", **self._exchange.on_ping(request)}

    def _on_locator_join(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        try:
            with self._changed:
                reply = self._exchange.on_join(request, _now_ms())
                self._changed.notify_all()
            return reply
        except IncompatibleSystemError as error:
            self._refused.error("locator %s: refused the locator at %s: %s", self.name, peer[0], error)
            raise

    def _on_member_join(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        profile, nonce = check_profile(request.get("profile")), needed_nonce_of(request.get("nonce"))
        theirs = profile["distributed_system_id"]
        if theirs is not None and theirs != self.distributed_system_id:
            raise IncompatibleSystemError(
                f"member {profile['name']} belongs to distributed-system-id {theirs}, locator {self.name} at"
                f" {self.address} to {self.distributed_system_id}: a member's locators must all be of its own site"
            )
        self._refuse_second_of_a_name(profile, nonce)
        profile["distributed_system_id"] = self.distributed_system_id
        claim = self._coordination.claim()
        with self._changed:
            self._members.join(profile, nonce, _now_ms())
            self._changed.notify_all()
            self._came.info(
                "locator %s: member %s joined (%s[%d], pid %d)",
                self.name,
                profile["name"],
                profile["host"],
                profile["port"],
                profile["pid"],
            )
            return {
                "distributed_system_id": self.distributed_system_id,
                "cluster_configuration": self._configuration.things(),
                "locator": self.name,
                "lease_ms": self._members.lease_ms,
                "coordination": claim,
                **self._sites_reply(""),
            }

    def _refuse_second_of_a_name(self, profile: dict[str, Any], nonce: bytes) -> None:
        """Raises IllegalStateError if a live process has the name already.

        A member still has a lease for some seconds after a kill, so the locator asks the member's port. The present
        owner of the port answers with a name and an id.
        """
        with self._lock:
            self._expire()
            held = self._members.get(profile["name"])
            if held is None or held.is_told_by({**profile, "nonce": nonce}):
                return
            received_ms_ago = _now_ms() - held.received_ms
        old = held.profile
        if held.member_id == profile["member_id"] or self._is_alive(held, received_ms_ago):
            raise IllegalStateError(
                f"a member named {old['name']} is alive in site {self.distributed_system_id} (pid {old['pid']},"
                f" {old['host']}[{old['port']}]); stop it first, or choose another name"
            )

    def _is_alive(self, member: Member, received_ms_ago: int) -> bool:
        """Returns whether the process of a member still runs, as far as the member's port tells."""
        if not member.profile["port"]:
            return received_ms_ago < FRESH_MS
        try:
            address = (member.profile["host"], member.profile["port"])
            reply = call_once(address, "ping", timeout=PROBE_TIMEOUT_S, way=self._links.cluster)
        except (ConnectivityError, ProtocolError):
            return False
        except PywanError:
            return True  # A refusal is an answer too: the process lives.
        return bool(
            reply.get("member_id", member.member_id) == member.member_id
            and reply.get("name", member.name) == member.name
        )

    def _on_member_heartbeat(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        claim = self._coordination.claim()
        with self._lock:
            known = self._members.heartbeat(request, _now_ms())
            return {"known": known, "coordination": claim, **self._sites_reply(request.get("digest"))}

    def _on_member_leave(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        with self._lock:
            left = self._members.leave(request)
        if left:
            self._went.info("locator %s: member %s left", self.name, request.get("name"))
        return {"known": left}

    def _on_remote_locators(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        wanted = request.get("distributed_system_id")
        if type(wanted) is not int:
            raise ConfigurationError(f"remote-locators: distributed_system_id is a number, not {wanted!r:.80}")
        with self._lock:
            return {"locators": [str(address) for address in self._exchange.locators_of(wanted)]}

    def _on_receiver(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        wish = ReceiverWish.of(request)
        return self._locked(lambda: {"receiver": self._members.hand_out(wish, _now_ms())})

    def _on_stop(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        def after() -> None:
            self.shutdown_requested.set()
            # stop() waits for the threads of connections, the present thread included.
            Thread(self.stop, name=f"locator {self.name}-stop").start()

        log.info("locator %s: asked to stop by %s", self.name, peer[0])
        return Reply(name=self.name, pid=os.getpid(), after=after)

    def _on_change_configuration(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Changes the cluster configuration: `action` is put, alter, remove or replace."""
        with self._changed:
            configuration, id = self._configuration, secrets.token_hex(8)
            action, kind, name = request.get("action"), request.get("kind"), request.get("name")
            if action == "put":
                changed = configuration.put(kind, name, request.get("attributes"), id)
            elif action == "alter":
                changed = configuration.alter(kind, name, request.get("attributes"), id)
            elif action == "remove":
                changed = configuration.remove(kind, name, id)
            elif action == "replace":
                changed = configuration.replace(request.get("things"), id)
            else:
                raise ConfigurationError(
                    f"change-configuration: action {action!r:.80} is not one of put, alter, remove, replace"
                )
            if changed:
                self._save_configuration()
                self._exchange.extra_changed(_now_ms())
                self._changed.notify_all()
            is_there = isinstance(name, str) and configuration.find(str(kind), name) is not None
            return {
                "changed": changed,
                "is_there": is_there,
                "things": len(configuration.things()),
                "problem": self._save_problem,
            }

    def _sites(self) -> dict[str, list[str]]:
        return {str(site): [str(a) for a in addresses] for site, addresses in self.known_sites().items()}

    def _sites_reply(self, digest: Any) -> dict[str, Any]:
        """Returns the sites for a member, unless the member has them already."""
        current = self._exchange.digest()
        return {"digest": current} if digest == current else {"digest": current, "sites": self._sites()}

    # --- the exchange with other locators ---

    def _run(self) -> None:
        """Makes the contacts that are due, and drops members whose lease has expired, until the locator stops."""
        pool = self._pool
        assert pool is not None
        while True:
            with self._changed:
                if not self._running:
                    return
                self._expire()
                contacts = self._exchange.due(_now_ms())
                if not contacts:
                    upcoming = [
                        t for t in (self._exchange.next_due_ms(), self._members.next_expiry_ms()) if t is not None
                    ]
                    self._changed.wait(max(1, min(upcoming) - _now_ms()) / 1000 if upcoming else None)
                    continue
            for contact in contacts:
                try:
                    pool.submit(self._contact, contact)
                except (RuntimeError, MemoryError) as error:
                    # The locator is being stopped, or no thread is free now. A later attempt may succeed.
                    self._note_failure(contact.address, error)

    def _contact(self, contact: Contact) -> None:
        """Makes one exchange with a locator."""
        way = self._links.locator if contact.is_own else self._links.remote_locator
        client = ControlClient(contact.address, CONTACT_TIMEOUT_S, what="locator", way=way)
        with self._lock:
            if not self._running:
                return
            self._contacting.add(client)
        request = dict(contact.request)
        op = request.pop("op")
        try:
            reply = client.call(op, **request)
            with self._changed:
                was_lost = any(p["address"] == str(contact.address) and p["failures"] for p in self._exchange.peers())
                self._exchange.received(contact.address, contact.request, reply, _now_ms())
            if was_lost:
                log.info("locator %s: locator %s answers again", self.name, contact.address)
        except IncompatibleSystemError as error:
            self._note_failure(contact.address, error, conflict=True)
        except PywanError as error:
            self._note_failure(contact.address, error)
        except Exception as error:
            log.debug("locator %s: exchange with %s failed", self.name, contact.address, exc_info=True)
            self._note_failure(contact.address, ProtocolError(told_error(error)))
        finally:
            client.close()
            with self._changed:
                self._contacting.discard(client)
                self._changed.notify_all()

    def _note_failure(self, address: Address, error: Exception, *, conflict: bool = False) -> None:
        """Notes a failed contact, and logs some of the failures."""
        with self._lock:
            if not self._running:
                return
            is_candidate = self._exchange.is_candidate(address)
            failures = self._exchange.failed(address, str(error), _now_ms(), conflict=conflict)
        # Only the first, second, fourth ... failure has a log line, because attempts never end. Candidates may be
        # invented, and many.
        if conflict or failures & (failures - 1) == 0:
            log.log(
                logging.DEBUG if is_candidate else logging.ERROR if conflict else logging.WARNING,
                "locator %s: %s (attempt %d; it tries again)",
                self.name,
                error,
                failures,
            )

    def _expire(self) -> None:
        for member in self._members.expire(_now_ms()):
            self._went.warning(
                "locator %s: no heartbeat of member %s for %d ms; removed from the list of members",
                self.name,
                member.name,
                self._members.lease_ms,
            )

    def _without_self(self, addresses: list[Address]) -> list[Address]:
        """Returns `addresses` without the own entry, whose host name in the list may be an alias."""
        rest = []
        for address in addresses:
            same = address == self.address
            if not same and address.port == self.port:
                try:
                    ip = resolve(address.host, 2.0)
                    same = (
                        is_own_address(ip)
                        if self.bind_address in WILDCARDS
                        else ip
                        == (self.bind_address if is_number(self.bind_address) else resolve(self.bind_address, 2.0))
                    )
                except (ConnectivityError, ConfigurationError):
                    pass  # The name is unknown at this host. A contact will show the locator behind the address.
            if not same:
                rest.append(address)
        return rest

    def _other_locators(self) -> list[Address]:
        """Returns the other known locators of the own site."""
        with self._lock:
            known = self._state.locators_of(self.distributed_system_id) if self._state is not None else []
        addresses = dict.fromkeys([*self._locators, *known])
        return [each for each in self._without_self(list(addresses)) if each != self.address]

    # --- cluster configuration ---

    def _merge_configuration(self, entries: Any) -> bool:
        """Merges the cluster configuration of a peer locator. Returns whether ours changed."""
        try:
            changed = self._configuration.merge(entries)
        except (ConfigurationError, ProtocolError) as error:
            # Neighbours meet every few seconds. Between two meetings with the locator of a bad configuration, good
            # configurations arrive. So each problem is logged once.
            if str(error) not in self._merge_problems:
                if len(self._merge_problems) >= MAX_MERGE_PROBLEMS:
                    self._merge_problems.clear()
                self._merge_problems.add(str(error))
                log.error(
                    "locator %s: another locator's cluster configuration was not taken over: %s", self.name, error
                )
            return False
        if changed:
            self._save_configuration()
        return changed

    def _load_configuration(self) -> None:
        """Reads the file of the cluster configuration, if the file exists. Raises ConfigurationError if the file cannot
        be used."""
        if self._file is None:
            return
        try:
            if not self._file.exists() and not self._file.is_symlink():
                return
            text = read_regular(self._file, MAX_CONFIGURATION_BYTES, follow=False).data.decode()
        except (FileError, OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"locator {self.name}: {self._file} {error}; repair it, or move it away") from None
        try:
            self._configuration = ClusterConfiguration.from_json(text)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"locator {self.name}: {self._file} is no file of a cluster configuration: {error}; repair the"
                " file, or move it away: the locator then starts with the configuration of the site's other locators,"
                " or with none, and `import cluster-configuration` brings back what was exported"
            ) from None

    def _save_configuration(self) -> None:
        """Replaces the whole file, so that a crash leaves the old file or the new one."""
        if self._file is None:
            return
        try:
            write_whole(self._file, self._configuration.to_json().encode())
            self._save_problem = None
        except OSError as error:
            # The configuration is in memory and at the other locators. The next change writes the file again.
            self._save_problem = f"the cluster configuration could not be written to {self._file}: {error.strerror}"
            log.error("locator %s: %s; the locator keeps it in memory until it stops", self.name, self._save_problem)


__all__ = ["Locator", "choose_bind_address"]
