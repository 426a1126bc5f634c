"""Owns a member's connections to the locators of its site.

A member joins the locators. Every second the member sends a heartbeat with the load of its receiver. The member asks
the locators for members, and for receivers of remote sites.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pywan.base.addresses import Address, parse_locators, resolve
from pywan.base.draws import drawn_number
from pywan.base.names import quoted
from pywan.base.nonces import draw_nonce
from pywan.base.threads import EssentialThread, Thread, told_error
from pywan.coordination.claims import Claim, claim_of
from pywan.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectivityError,
    IllegalStateError,
    IncompatibleSystemError,
    NoLocatorError,
    NotAuthorizedError,
    ProtocolError,
    PywanError,
)
from pywan.forks import of_one_process
from pywan.protocol.members import MIN_LEASE_MS, check_profile, check_receiver, check_receivers, check_servers
from pywan.transport.control import ControlClient, call_once
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.membership")

HEARTBEAT_S = 1.0
HEARTBEATS_A_LEASE = 4  # At least so many. A short lease means more frequent heartbeats.
# The limit for a request to one locator: less than a lease, so that a hung locator does not cost the membership.
REQUEST_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 1.0
MAX_LINKS = 16  # The limit of locators of the own site with a connection.
MAX_DIGEST_CHARACTERS = 64
MAX_SITES = 257  # The ids from -1 to 255.
AVOID_S = 5.0  # A remote locator is asked last for so long after a failure.


_SITE = re.compile(r"-1|[0-9]{1,3}")


def new_profile(name: str, host: str, port: int) -> dict[str, Any]:
    """Returns a member's profile with a fresh random id, no receiver and no load."""
    return {
        "name": name,
        "member_id": drawn_number(32),
        "host": host,
        "port": port,
        "pid": os.getpid(),
        "receivers": [],
        "load": 0,
        "distributed_system_id": None,
    }


@of_one_process(lambda membership: f"the membership of {membership._profile['name']!r}", nothing_in_child=("leave",))
class Membership:
    """A member's side of the membership. `join()` is called once. Afterwards any thread may call the methods. `leave()`
    ends the threads of the membership.

    The membership has a thread for each locator of the site, so that a hung locator delays only its own thread. Such a
    thread calls `on_reconnect(address)` when a lost locator has admitted the member again.
    """

    def __init__(
        self,
        locators: str | Iterable[str],
        profile: dict[str, Any],
        *,
        on_reconnect: Callable[[Address], None] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        way: Way = PLAIN.locator,
        remote_way: Way = PLAIN.remote_locator,
    ) -> None:
        self._configured = parse_locators(locators)
        if not self._configured:
            raise NoLocatorError(
                f"member {profile.get('name')}: no locators are given; set locators, for example 127.0.0.1[10334]"
            )
        self._on_reconnect = on_reconnect
        self._way, self._remote_way = way, remote_way  # Connectors to locators of the own site, and of remote sites.
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._profile = check_profile(profile)  # `_lock` guards the profile, and all fields below.
        self._version = 1  # The version of the profile. Each update adds 1.
        self._links: dict[Address, _Link] = {}
        self._sites: dict[int, list[Address]] = {}
        self._distributed_system_id: int | None = self._profile["distributed_system_id"]
        self._cluster_configuration: list[dict[str, Any]] = []
        self._stopping = False
        self._avoid: dict[Address, float] = {}  # By failed remote locator: the time until which it is asked last.
        self._unreachable: dict[Address, str] = {}  # By failed remote locator: the reason of the last failure.
        self._news_since = -math.inf  # Somebody wants a heartbeat that began at this time or later.
        # Called with remote sites whose locators are known from now on, or are others. It is set before `join`.
        self.on_locators_learnt: Callable[[list[int]], None] = lambda sites: None

    @property
    def name(self) -> str:
        return str(self._profile["name"])

    @property
    def member_id(self) -> int:
        return int(self._profile["member_id"])

    @property
    def distributed_system_id(self) -> int:
        """The site's id, as a locator said."""
        if self._distributed_system_id is None:
            raise IllegalStateError(f"member {self.name} has not joined a site yet")
        return self._distributed_system_id

    @property
    def cluster_configuration(self) -> list[dict[str, Any]]:
        """The things that the members of the site are to have, in the order of creation, as the locator sent the list
        at the last join."""
        with self._lock:
            return list(self._cluster_configuration)

    @property
    def is_connected(self) -> bool:
        """Whether at least one locator of the site has this member in its list now."""
        with self._lock:
            return any(link.joined for link in self._links.values())

    # --- life cycle ---

    def join(self, timeout: float = 10.0) -> Membership:
        """Returns when a locator has admitted the member. The remaining locators follow in the background.

        NoLocatorError names every address and the failure at the address. The error comes after `timeout` seconds, or
        at once if the listener at the address is no locator. IncompatibleSystemError: the locators are of different
        sites. IllegalStateError: a live member has the name.
        """
        with self._changed:
            if self._stopping:
                raise IllegalStateError(f"member {self.name} has left its site; make a new Membership to join again")
            if self._links:
                raise IllegalStateError(f"member {self.name} has joined already")
            for address in self._configured:
                self._add_link(address)
            if not self._links:
                raise IllegalStateError(
                    f"member {self.name}: the system gives this process no thread to ask the locators with; end"
                    " other processes, or raise the limit (ulimit -u)"
                )
            self._changed.wait_for(self._joined_or_hopeless, timeout)
            if any(link.joined for link in self._links.values()):
                # The remaining locators usually answer as fast. A locator of a different site must not go unnoticed.
                self._changed.wait_for(lambda: all(link.attempts for link in self._links.values()), min(1.0, timeout))
            links = list(self._links.values())
            incompatible = next((link.error for link in links if isinstance(link.error, IncompatibleSystemError)), None)
            joined = any(link.joined for link in links)
        if joined and incompatible is None:
            return self
        self._close(goodbye=joined)
        if incompatible is not None:
            raise incompatible
        raise self._why_not(links)

    def leave(self) -> None:
        """Tells the locators that the member leaves, and ends every thread. A second call is no error."""
        self._close(goodbye=True)

    def __enter__(self) -> Membership:
        return self.join()

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def _joined_or_hopeless(self) -> bool:
        links = self._links.values()
        return self._stopping or any(link.joined for link in links) or all(link.hopeless for link in links)

    def _why_not(self, links: list[_Link]) -> PywanError:
        """Returns the error of a failed join."""
        for link in links:
            if isinstance(link.error, (IllegalStateError, ConfigurationError)):
                return link.error
            if isinstance(link.error, (AuthenticationError, NotAuthorizedError)):
                return type(link.error)(f"member {self.name}: locator {link.address}: {link.error}")
        reasons = "; ".join(str(link.error or f"{link.address}: no answer yet") for link in links)
        return NoLocatorError(
            f"member {self.name}: no locator answers at {', '.join(str(link.address) for link in links)} ({reasons})"
        )

    def _close(self, *, goodbye: bool) -> None:
        """Ends the links and their threads. `goodbye`: the locators are told that the member leaves."""
        with self._changed:
            self._stopping = True
            links = list(self._links.values())
            self._changed.notify_all()
        threads = []
        for link in links[1:]:
            thread = Thread(link.end, goodbye, name=f"{self.name}-leave")
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # The interpreter is ending and starts no threads. So the links end one after another.
                link.end(goodbye)
        if links:
            links[0].end(goodbye)
        for thread in threads:
            thread.join()  # `end` has a time limit, so the thread ends.

    def _add_link(self, address: Address) -> None:
        if address not in self._links and len(self._links) < MAX_LINKS and not self._stopping:
            link = _Link(self, address)
            try:
                link.thread.start()
            except (RuntimeError, MemoryError) as error:
                log.warning("member %s: no thread for locator %s: %s", self.name, address, error or "no memory")
                return
            self._links[address] = link

    # --- profile updates ---

    def update(
        self, *, receivers: list[dict[str, Any]] | None = None, load: int | None = None, timeout: float = 0.0
    ) -> bool:
        """Changes the member's entry at the locators, at once and not at the next heartbeat.

        If a `timeout` is given, the call waits until every connected locator has the change. Returns whether all
        locators have the change.
        """
        with self._changed:
            changes = {k: v for k, v in (("receivers", receivers), ("load", load)) if v is not None}
            new = check_profile({**self._profile, **changes})
            if new != self._profile:
                self._profile = new
                self._version += 1
                self._changed.notify_all()
            version = self._version
            if timeout <= 0:
                return False
            return self._changed.wait_for(
                lambda: (
                    self._stopping or all(link.told_version >= version for link in self._links.values() if link.joined)
                ),
                timeout,
            )

    # --- questions ---

    def remote_locators(
        self, distributed_system_id: int, timeout: float = REQUEST_TIMEOUT_S, *, max_age_s: float = 0.0
    ) -> list[Address]:
        """Returns the locators of a remote site. [] if the site is unknown so far.

        The heartbeats bring the lists of all sites. If the site is missing there, and a locator's last heartbeat began
        more than `max_age_s` ago, the next one is sent at once. It answers for all who ask meanwhile.
        """
        with self._changed:

            def is_answered() -> bool:
                return (
                    self._stopping
                    or bool(self._sites.get(distributed_system_id))
                    or all(link.asked_at >= since for link in self._links.values() if link.joined)
                )

            since = time.monotonic() - max_age_s
            if not is_answered():
                self._news_since = max(self._news_since, since)
                self._changed.notify_all()
                self._changed.wait_for(is_answered, timeout)
            return list(self._sites.get(distributed_system_id, []))

    def locators(self) -> list[Address]:
        """Returns the own site's locators, first the locators to which the member has joined."""
        return self._own_locators()

    def claims(self) -> list[Claim]:
        """Returns the last claims of the own site's locators about the coordinator. Locators that do not answer now are
        left out."""
        with self._lock:
            return [link.claim for link in self._links.values() if link.joined and link.claim is not None]

    def peers(self) -> list[Address]:
        """Returns all known locators, remote sites first."""
        with self._lock:
            own = self._distributed_system_id
            others = [
                address for site, addresses in sorted(self._sites.items()) if site != own for address in addresses
            ]
        return others + self._own_locators()

    def find_receiver(
        self,
        distributed_system_id: int,
        exclude: Iterable[int] = (),
        *,
        keep: int | None = None,
        dispatchers: Iterable[int] = (),
        timeout: float = 5.0,
    ) -> dict[str, Any] | None:
        """Returns the receiver of a remote site with the lowest load, as {host, port, member, member_id}.

        Receivers of the members in `exclude` are left out. The receiver of the member `keep` is returned if still
        alive, whatever the load. `dispatchers`: the numbers of the asking dispatchers (`dispatcher_number`). None if
        the site, its locators or a suitable receiver cannot be found now.
        """
        wish: dict[str, Any] = {"exclude": list(exclude), "keep": keep, "dispatchers": list(dispatchers)}
        for reply in self._ask_remote(distributed_system_id, timeout, "receiver", **wish):
            if reply.get("receiver") is not None:
                return check_receiver(reply["receiver"])
        return None

    def receivers(
        self, distributed_system_id: int, *, timeout: float = 5.0, max_age_s: float = 0.0
    ) -> list[dict[str, Any]]:
        """Returns all receivers of a remote site. [] if the site, its locators or a receiver cannot be found now.
        `max_age_s` as in `remote_locators`."""
        for reply in self._ask_remote(distributed_system_id, timeout, "receivers", max_age_s=max_age_s):
            receivers = check_receivers(reply)
            if receivers:
                return receivers
        return []

    def less_loaded_receiver(
        self,
        distributed_system_id: int,
        instead_of: int,
        connections: int,
        exclude: Iterable[int] = (),
        *,
        dispatchers: Iterable[int] = (),
        timeout: float = 5.0,
    ) -> dict[str, Any] | None:
        """Returns the receiver of a remote site to which so many connections of the member `instead_of` are to go.

        The locator expects the connections at the new receiver from now on. None: the loads would not be more even.
        NoLocatorError if no locator of the site answers.
        """
        wish: dict[str, Any] = {"exclude": list(exclude), "instead_of": instead_of, "connections": connections}
        wish["dispatchers"] = list(dispatchers)[:connections]
        for reply in self._ask_remote(distributed_system_id, timeout, "receiver", **wish):
            return None if reply.get("receiver") is None else check_receiver(reply["receiver"])
        raise NoLocatorError(f"member {self.name}: no locator of site {distributed_system_id} answers")

    def _ask_remote(
        self, distributed_system_id: int, timeout: float, op: str, *, max_age_s: float = 0.0, **fields: Any
    ) -> Iterator[dict[str, Any]]:
        """Yields the answers of the locators of a remote site. Locators with a recent failure come last."""
        deadline = time.monotonic() + timeout
        addresses = self.remote_locators(distributed_system_id, timeout, max_age_s=max_age_s)
        now = time.monotonic()
        with self._lock:
            self._avoid = {address: until for address, until in self._avoid.items() if until > now}
            addresses.sort(key=lambda address: self._avoid.get(address, 0.0))
        for address, until in _with_deadlines(addresses, deadline):
            reply = self._ask(self._remote_way, address, until, op, self._unreachable, **fields)
            if reply is not None:
                yield reply
                continue
            with self._lock:
                self._avoid[address] = time.monotonic() + AVOID_S

    def unreachable_locators(self, distributed_system_id: int) -> dict[Address, str]:
        """Returns the locators of a remote site whose last request failed, each with the reason."""
        with self._lock:
            known = self._sites.get(distributed_system_id, [])
            return {address: self._unreachable[address] for address in known if address in self._unreachable}

    def servers(self, timeout: float = REQUEST_TIMEOUT_S) -> list[dict[str, Any]]:
        """Returns the profiles of the site's live members. NoLocatorError if no locator answers."""
        deadline = time.monotonic() + timeout
        addresses = self._own_locators()
        for address, until in _with_deadlines(addresses, deadline):
            reply = self._ask(self._way, address, until, "servers")
            if reply is not None:
                return check_servers(reply)
        raise NoLocatorError(f"member {self.name}: no locator answers at {', '.join(map(str, addresses))}")

    def _own_locators(self) -> list[Address]:
        """Returns the own site's locators, first the locators to which the member has joined."""
        with self._lock:
            links = sorted(self._links.values(), key=lambda link: not link.joined)
            return [link.address for link in links] or list(self._configured)

    def _ask(
        self,
        way: Way,
        address: Address,
        deadline: float,
        op: str,
        unreachable: dict[Address, str] | None = None,
        **fields: Any,
    ) -> dict[str, Any] | None:
        """Returns a locator's reply. None: no time is left, or the locator does not answer; `unreachable` then has the
        reason."""
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            reply = call_once(address, op, timeout=left, way=way, **fields)
            if unreachable:
                with self._lock:
                    unreachable.pop(address, None)
            return reply
        except PywanError as error:
            if unreachable is not None:
                with self._lock:
                    known = {each for addresses in self._sites.values() for each in addresses}
                    for gone in unreachable.keys() - known:
                        del unreachable[gone]
                    unreachable[address] = str(error)
            log.debug("member %s: %s at %s: %s", self.name, op, address, error)
            return None

    # --- called by the links, under _lock ---

    def _take_sites(self, link: _Link, reply: dict[str, Any]) -> list[int]:
        """Adopts a locator's list of sites, beside those of the other locators: one may know more sites than another
        one, and sends its list only when the list changes. Returns the sites whose locators are known from now on, or
        are others."""
        sites = reply.get("sites")
        if sites is None:
            return []
        if not isinstance(sites, dict) or len(sites) > MAX_SITES or not all(_SITE.fullmatch(site) for site in sites):
            raise ProtocolError(f"a locator's list of sites cannot be used: {quoted(sites)}")
        try:
            told = {int(site): parse_locators(_texts(addresses)) for site, addresses in sites.items()}
        except ConfigurationError as error:
            raise ProtocolError(f"a locator's list of sites cannot be used: {error}") from None
        link.sites = told
        before, self._sites = self._sites, {}
        for each in (link, *(other for other in self._links.values() if other is not link and other.joined)):
            for site, addresses in each.sites.items():
                known = self._sites.setdefault(site, [])
                known += [address for address in addresses if address not in known]
        return [site for site, addresses in self._sites.items() if addresses != before.get(site)]

    def _take_site_id(self, address: Address, reply: dict[str, Any]) -> None:
        """Adopts the site's id from a locator. IncompatibleSystemError if an earlier locator said a different id."""
        theirs = reply.get("distributed_system_id")
        if type(theirs) is not int:
            raise ProtocolError(f"the process at {address} is no locator: its reply has no distributed-system-id")
        if self._distributed_system_id is None:
            self._distributed_system_id = theirs
        elif self._distributed_system_id != theirs:
            raise IncompatibleSystemError(
                f"member {self.name}: locator {address} has distributed-system-id {theirs}, this member's site is "
                f"{self._distributed_system_id}: its locators must all be of one site"
            )


def _with_deadlines(addresses: list[Address], deadline: float) -> Iterator[tuple[Address, float]]:
    """Yields each address with the deadline for a request to the address. An unreachable locator must leave time for
    the rest."""
    for at, address in enumerate(addresses):
        now = time.monotonic()
        yield address, max(now + (deadline - now) / (len(addresses) - at), now + 0.02)


def _digest(reply: dict[str, Any]) -> str:
    digest = reply.get("digest")
    return digest if isinstance(digest, str) and len(digest) <= MAX_DIGEST_CHARACTERS else ""


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


class _Link:
    """One locator of the own site, and the thread with the heartbeats to the locator. The membership's lock guards the
    state."""

    def __init__(self, owner: Membership, address: Address) -> None:
        self.address = address
        self.joined = False
        self.attempts = 0
        self.failures = 0  # The number of failures in a row.
        self.told_version = 0  # The version of the profile at this locator.
        self.error: PywanError | None = None
        self.claim: Claim | None = None  # The locator's last claim about the coordinator.
        self._owner = owner
        self._nonce = draw_nonce()  # The member's proof of identity at this locator alone.
        self._digest = ""
        self.sites: dict[int, list[Address]] = {}  # The locators of each site, by the locator's last list.
        self.asked_at = -math.inf  # When the last exchange began that the locator answered.
        self._heartbeat_s = owner._heartbeat_s  # Shorter if the locator's lease is short.
        self._was_joined = False
        self._client = ControlClient(address, REQUEST_TIMEOUT_S, what="locator", way=owner._way)
        self.thread = EssentialThread(self._run, name=f"{owner.name}-locator-{address}")

    @property
    def hopeless(self) -> bool:
        """Whether the listener at the address answers, and waiting will not change the answer."""
        return self.error is not None and not isinstance(self.error, ConnectivityError)

    def end(self, goodbye: bool) -> None:
        """Aborts the request in flight, says goodbye, and waits for the thread."""
        if not self.joined:
            self._client.close()
        self.thread.join(LEAVE_TIMEOUT_S)
        self._client.close()
        self.thread.join(REQUEST_TIMEOUT_S)
        if goodbye and self.joined:
            try:
                call_once(
                    self.address,
                    "member-leave",
                    timeout=LEAVE_TIMEOUT_S,
                    way=self._owner._way,
                    name=self._owner.name,
                    member_id=self._owner.member_id,
                    nonce=self._nonce,
                )
            except PywanError as error:
                log.debug("member %s: could not say goodbye to %s: %s", self._owner.name, self.address, error)

    def _run(self) -> None:
        """Joins the locator, and sends heartbeats, until the member leaves."""
        owner = self._owner
        while True:
            with owner._changed:
                if owner._stopping:
                    return
                joined, version, profile = self.joined, owner._version, dict(owner._profile)
            failed = True
            try:
                failed = self._heartbeat(version, profile) if joined else self._join(version, profile)
            except PywanError as error:
                self._note(error)
            except Exception as error:
                log.debug("member %s: exchange with locator %s failed", owner.name, self.address, exc_info=True)
                self._note(ProtocolError(f"{self.address}: {told_error(error)}"))
            wait = self._heartbeat_s if not failed or self.failures > 3 else self._heartbeat_s / 4
            with owner._changed:
                owner._changed.wait_for(
                    lambda: (
                        owner._stopping
                        or (self.joined and (self.told_version < owner._version or self.asked_at < owner._news_since))
                    ),
                    wait,
                )

    def _join(self, version: int, profile: dict[str, Any]) -> bool:
        """Joins the locator. Always returns False, for "not failed": a failure raises an error."""
        owner = self._owner
        profile["distributed_system_id"] = owner._distributed_system_id
        began = time.monotonic()
        reply = self._client.call("member-join", profile=profile, nonce=self._nonce)
        try:
            with owner._changed:
                owner._take_site_id(self.address, reply)
        except IncompatibleSystemError:
            # The locator has admitted this member already, and would send the senders of remote sites to the member.
            self._client.call(
                "member-leave",
                _timeout=LEAVE_TIMEOUT_S,
                name=owner.name,
                member_id=owner.member_id,
                nonce=self._nonce,
            )
            raise
        claim = claim_of(reply.get("coordination"), str(self.address))
        with owner._changed:
            learnt = owner._take_sites(self, reply)
            self.asked_at = began
            owner._profile["distributed_system_id"] = owner._distributed_system_id
            lease_ms = reply.get("lease_ms")
            if type(lease_ms) is int and lease_ms >= MIN_LEASE_MS:
                self._heartbeat_s = min(owner._heartbeat_s, lease_ms / HEARTBEATS_A_LEASE / 1000)
            configuration = reply.get("cluster_configuration")
            owner._cluster_configuration = configuration if isinstance(configuration, list) else []
            again, self._was_joined = self._was_joined, True
            self.joined, self.error, self.failures, self.told_version = True, None, 0, version
            self.attempts += 1
            self._digest = _digest(reply)
            self.claim = claim
            neighbours = list(owner._sites.get(owner.distributed_system_id, []))
            known = list(owner._links)
            owner._changed.notify_all()
        owner.on_locators_learnt(learnt)
        # The locator's neighbours must know this member too. Otherwise the member would have no locator after the loss
        # of this one.
        fresh = [a for a in neighbours if not any(_same_place(a, other) for other in known)]
        with owner._changed:
            for address in fresh:
                owner._add_link(address)
        if again:
            log.info("member %s: locator %s has admitted the member again", owner.name, self.address)
            if owner._on_reconnect is not None:
                owner._on_reconnect(self.address)
        return False

    def _heartbeat(self, version: int, profile: dict[str, Any]) -> bool:
        """Sends a heartbeat. Returns whether the heartbeat failed: the locator does not know the member."""
        owner = self._owner
        began = time.monotonic()
        reply = self._client.call(
            "member-heartbeat",
            name=profile["name"],
            member_id=profile["member_id"],
            nonce=self._nonce,
            load=profile["load"],
            receivers=profile["receivers"],
            digest=self._digest,
        )
        claim = claim_of(reply.get("coordination"), str(self.address))
        with owner._changed:
            self._digest, self.claim = _digest(reply), claim
            learnt = owner._take_sites(self, reply)
            self.failures = 0
            # Otherwise the locator was restarted, or the lease has expired. The member joins again at once.
            self.joined = reply.get("known") is True
            if self.joined:
                self.told_version, self.asked_at = version, began
            else:
                self._digest = ""
            owner._changed.notify_all()
        owner.on_locators_learnt(learnt)
        return not self.joined

    def _note(self, error: PywanError) -> None:
        owner = self._owner
        with owner._changed:
            self.joined, self.error, self._digest = False, error, ""
            self.attempts += 1
            self.failures += 1
            failures, stopping = self.failures, owner._stopping
            owner._changed.notify_all()
        if not stopping and failures & (failures - 1) == 0:
            log.warning("member %s: %s (attempt %d; it tries again)", owner.name, error, failures)


def _same_place(one: Address, other: Address) -> bool:
    """Returns whether two addresses are the same listener, as far as is known without a wait for a name service."""
    if one.port != other.port or one == other:
        return one == other
    try:
        return resolve(one.host, 0.5) == resolve(other.host, 0.5)
    except PywanError:
        return False
