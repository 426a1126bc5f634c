"""Owns what a locator knows of all sites' locators, and decides whom to ask, when, and what an answer changes.

Every locator ends with the same set, whatever the order of start: each exchange leaves both sides with the union of
what they knew, per address the profile with the higher stamp wins, and whoever learned something asks those it has not
yet told. A locator that is already told costs one ping with a digest. Time comes in as `now_ms` and never goes back.
"""
from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, NamedTuple

from pywan.addresses import Address
from pywan.errors import IncompatibleSystemError, ProtocolError

MAX_LOCATORS_PER_SITE = 64
MAX_STAMP = 1 << 62
LOWEST_SYSTEM_ID, HIGHEST_SYSTEM_ID = -1, 255

LOCAL, REMOTE, LEARNED = "local", "remote", "learned"   # Why we know an address; what we may expect there.


@dataclass(frozen=True)
class Timings:
    """Milliseconds between one contact of a locator and the next."""

    ping_ms: int = 5_000          # With a locator that has answered.
    retry_ms: int = 500           # After the first failure; grows by half each time ...
    retry_max_ms: int = 10_000    # ... up to this.
    change_delay_ms: int = 30     # News wait this long, so that several travel together.
    conflict_ms: int = 60_000     # With a locator that contradicts our configuration.


class LocatorProfile(NamedTuple):
    """A locator as others are to reach it. `stamp` grows with each start of the locator: the higher one is the truth."""

    distributed_system_id: int
    host: str
    port: int
    name: str
    stamp: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def to_map(self) -> dict[str, Any]:
        return {"distributed_system_id": self.distributed_system_id, "host": self.host, "port": self.port,
                "name": self.name, "stamp": self.stamp}

    @classmethod
    def from_map(cls, value: Any) -> "LocatorProfile":
        """ProtocolError unless every field is there, of its type and in its range."""
        try:
            profile = cls(*(value[name] for name in cls._fields))
        except (TypeError, KeyError):
            raise ProtocolError(f"{value!r:.200} is not a locator's profile") from None
        whole = all(type(n) is int for n in (profile.distributed_system_id, profile.port, profile.stamp))
        if not (
            whole and LOWEST_SYSTEM_ID <= profile.distributed_system_id <= HIGHEST_SYSTEM_ID
            and 0 < profile.port < 65536 and 0 <= profile.stamp < MAX_STAMP
            and isinstance(profile.host, str) and 0 < len(profile.host) <= 255
            and isinstance(profile.name, str) and len(profile.name) <= 255
        ):
            raise ProtocolError(f"a locator's profile holds a value out of range: {value!r:.200}")
        return profile


class Contact(NamedTuple):
    """An action: send `request` to `address`, then call `heard` or `failed`."""

    address: Address
    request: dict[str, Any]


@dataclass
class _Target:
    address: Address
    role: str
    due_ms: int = 0
    in_flight: bool = False
    attempted: bool = False
    failures: int = 0                  # In a row.
    joined: bool = False               # It has had our set once since it (or the link) last failed.
    peer_uid: str = ""
    peer_digest: str = ""
    profile: LocatorProfile | None = None   # Who answered there.
    news: bool = False                 # Something changed while it was being contacted.
    problem: str = ""
    conflict: bool = False
    is_self: bool = False


@dataclass
class LocatorState:
    """One locator's view. Not thread-safe: its owner calls it under one lock.

    `me` is our own profile, `uid` a random name for this run. `extra_digest` and `extra` stand for what the locators of
    one site share besides addresses: what `extra()` gives travels with each exchange inside the site, what comes in
    goes to `merge_extra`, which says whether it changed anything.
    """

    me: LocatorProfile
    uid: str
    locators: Iterable[Address] = ()
    remote_locators: Iterable[Address] = ()
    timings: Timings = field(default_factory=Timings)
    extra: Callable[[], Any] = lambda: None
    extra_digest: Callable[[], str] = lambda: ""
    merge_extra: Callable[[Any], bool] = lambda value: False

    def __post_init__(self) -> None:
        self._known: dict[Address, LocatorProfile] = {self.me.address: self.me}
        self._targets: dict[Address, _Target] = {}
        for address in self.locators:
            if address != self.me.address:
                self._targets[address] = _Target(address, LOCAL)
        for address in self.remote_locators:
            self._targets.setdefault(address, _Target(address, REMOTE))

    # --- what it knows ---

    def known_sites(self) -> dict[int, list[Address]]:
        """Every site's locators, ourselves too; those that answered last come first."""
        sites: dict[int, list[Address]] = {}
        for profile in sorted(self._known.values(), key=lambda p: (self._failures_of(p.address), p.address)):
            sites.setdefault(profile.distributed_system_id, []).append(profile.address)
        return dict(sorted(sites.items()))

    def locators_of(self, distributed_system_id: int) -> list[Address]:
        return self.known_sites().get(distributed_system_id, [])

    def digest(self, distributed_system_id: int | None = None) -> str:
        """Equal at two locators when they know the same, as far as it concerns a locator of the given site."""
        profiles = sorted((p.host, p.port, p.distributed_system_id, p.stamp) for p in self._known.values())
        text = repr(profiles)
        if distributed_system_id == self.me.distributed_system_id:
            text += self.extra_digest()
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def problems(self) -> list[str]:
        """What keeps configured locators from being joined, in words."""
        return [t.problem for t in self._targets.values() if t.problem and t.role != LEARNED]

    def conflicts(self) -> list[str]:
        """Contradictions about who is of which site. They do not pass by waiting."""
        return [t.problem for t in self._targets.values() if t.conflict and t.role != LEARNED]

    def first_round_done(self) -> bool:
        """Whether every configured locator has been tried once."""
        return all(t.attempted for t in self._targets.values() if t.role != LEARNED)

    def peers(self) -> list[dict[str, Any]]:
        return [
            {"address": str(t.address), "role": t.role, "joined": t.joined, "failures": t.failures, "problem": t.problem}
            for t in self._targets.values()
        ]

    def _failures_of(self, address: Address) -> int:
        failures = [t.failures for t in self._targets.values() if t.address == address or (t.profile and t.profile.address == address)]
        return min(failures, default=0)

    # --- whom to contact ---

    def due(self, now_ms: int) -> list[Contact]:
        """Contacts to make now. Each is in flight until `heard` or `failed` is called for its address."""
        contacts = []
        for target in self._active():
            if target.due_ms <= now_ms and not target.in_flight:
                target.in_flight = True
                target.news = False
                contacts.append(Contact(target.address, self._request_for(target)))
        return contacts

    def next_due_ms(self) -> int | None:
        """When `due` will next have something; None if only a message can change that."""
        return min((t.due_ms for t in self._active() if not t.in_flight), default=None)

    def _active(self) -> list[_Target]:
        # A locator configured by one name and advertised by another is contacted once, by the name we were given.
        covered = {t.profile.address for t in self._targets.values() if t.role != LEARNED and t.profile and t.joined}
        return [
            t for t in self._targets.values()
            if not t.is_self and not (t.role == LEARNED and (t.address in covered or t.address == self.me.address))
        ]

    def _request_for(self, target: _Target) -> dict[str, Any]:
        if target.joined and target.profile is not None:
            return {"op": "ping", "uid": self.uid, "digest": self.digest(target.profile.distributed_system_id)}
        return {
            "op": "locator-join", "role": target.role, "uid": self.uid, "from": self.me.to_map(),
            "sites": self._sites_map(), "extra": self.extra() if target.role != REMOTE else None,
        }

    def _sites_map(self) -> list[dict[str, Any]]:
        return [profile.to_map() for profile in self._known.values()]

    # --- what comes in ---

    def on_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a ping; changes nothing."""
        return {"uid": self.uid, "name": self.me.name, "distributed_system_id": self.me.distributed_system_id,
                "digest": self.digest(), "digest_in_site": self.digest(self.me.distributed_system_id)}

    def on_join(self, request: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """The answer to a locator that tells what it knows: what we know, its news included.

        IncompatibleSystemError if it expects another site here than this one is.
        """
        if request.get("uid") == self.uid:
            return {"self": True, "from": self.me.to_map(), "uid": self.uid}
        peer = LocatorProfile.from_map(request.get("from"))
        self._check_role(request.get("role"), self.me, peer)
        same_site = peer.distributed_system_id == self.me.distributed_system_id
        self._merge([peer, *self._profiles_in(request)], now_ms)
        if same_site:
            self._merge_extra(request, now_ms)
        target = self._targets.get(peer.address)
        if target is not None and not target.in_flight:
            # It has our whole set once it reads this answer, so there is no need to ask back.
            target.joined, target.profile, target.peer_uid = True, peer, str(request.get("uid", ""))
            target.peer_digest = self.digest(peer.distributed_system_id)
            if target.failures:
                target.failures, target.problem = 0, ""
            target.due_ms = now_ms + self.timings.ping_ms
        return {
            "from": self.me.to_map(), "uid": self.uid, "sites": self._sites_map(),
            "extra": self.extra() if same_site else None,
        }

    def heard(self, address: Address, request: dict[str, Any], reply: dict[str, Any], now_ms: int) -> None:
        """`address` answered `request`. ProtocolError or IncompatibleSystemError if the answer cannot be right: call
        `failed` then, as for no answer."""
        target = self._targets.get(address)
        if target is None:
            return
        if request["op"] == "ping":
            self._heard_ping(target, reply, now_ms)
        else:
            self._heard_join(target, reply, now_ms)
        target.in_flight, target.attempted = False, True
        target.failures, target.problem, target.conflict = 0, "", False
        if target.news:
            target.due_ms = min(target.due_ms, now_ms + self.timings.change_delay_ms)

    def failed(self, address: Address, reason: str, now_ms: int, *, conflict: bool = False) -> int:
        """`address` did not answer, or refused; gives how often in a row."""
        target = self._targets.get(address)
        if target is None:
            return 0
        target.in_flight, target.attempted, target.joined = False, True, False
        target.failures += 1
        target.problem, target.conflict = reason, conflict
        if conflict:
            target.due_ms = now_ms + self.timings.conflict_ms
        else:
            wait = self.timings.retry_ms * 1.5 ** min(target.failures - 1, 32)
            target.due_ms = now_ms + int(min(wait, self.timings.retry_max_ms))
        return target.failures

    def extra_changed(self, now_ms: int) -> None:
        """What the site's locators share was changed here: tell them."""
        self._spread(now_ms, only_site=self.me.distributed_system_id)

    def _heard_ping(self, target: _Target, reply: dict[str, Any], now_ms: int) -> None:
        same_site = target.profile is not None and target.profile.distributed_system_id == self.me.distributed_system_id
        theirs = reply.get("digest_in_site" if same_site else "digest")
        ours = self.digest(self.me.distributed_system_id if same_site else None)
        if reply.get("uid") != target.peer_uid or theirs != ours:
            target.joined = False
            target.due_ms = now_ms
        else:
            target.peer_digest = ours
            target.due_ms = now_ms + self.timings.ping_ms

    def _heard_join(self, target: _Target, reply: dict[str, Any], now_ms: int) -> None:
        if reply.get("self") is True or reply.get("uid") == self.uid:
            if target.role == REMOTE:
                raise IncompatibleSystemError(
                    f"remote-locators names {target.address}, which is this locator itself; remote-locators holds other sites' locators"
                )
            target.is_self = True
            return
        peer = LocatorProfile.from_map(reply.get("from"))
        self._check_role(target.role, peer, self.me)
        target.joined, target.profile, target.peer_uid = True, peer, str(reply.get("uid", ""))
        target.due_ms = now_ms + self.timings.ping_ms
        self._merge([peer, *self._profiles_in(reply)], now_ms)
        if peer.distributed_system_id == self.me.distributed_system_id:
            self._merge_extra(reply, now_ms)
        target.peer_digest = self.digest(peer.distributed_system_id)

    @staticmethod
    def _check_role(role: Any, here: LocatorProfile, asker: LocatorProfile) -> None:
        """Refuses what `asker`'s configuration says of `here` when it is not so."""
        if role == LOCAL and here.distributed_system_id != asker.distributed_system_id:
            raise IncompatibleSystemError(
                f"locator {here.name} at {here.address} has distributed-system-id {here.distributed_system_id}, locator {asker.name} at "
                f"{asker.address} has {asker.distributed_system_id}: the locators of one site must agree"
            )
        if role == REMOTE and here.distributed_system_id == asker.distributed_system_id:
            raise IncompatibleSystemError(
                f"locator {here.name} at {here.address}, named in the remote-locators of {asker.name}, has the same "
                f"distributed-system-id {here.distributed_system_id}: each site needs its own, and a site is not remote to itself"
            )

    @staticmethod
    def _profiles_in(message: dict[str, Any]) -> list[LocatorProfile]:
        sites = message.get("sites")
        if not isinstance(sites, list) or len(sites) > MAX_LOCATORS_PER_SITE * 257:
            raise ProtocolError("a locator's message has no usable list of sites")
        return [LocatorProfile.from_map(value) for value in sites]

    def _merge(self, profiles: list[LocatorProfile], now_ms: int) -> None:
        changed = False
        for profile in profiles:
            if profile.address == self.me.address:
                changed |= self._assert_self(profile)
            else:
                changed |= self._learn(profile, now_ms)
        if changed:
            self._spread(now_ms)

    def _assert_self(self, claimed: LocatorProfile) -> bool:
        """Someone's memory of an earlier run at our address (or of another clock) must not outlive us."""
        if claimed.stamp < self.me.stamp or claimed == self.me:
            return False
        self.me = self.me._replace(stamp=min(claimed.stamp + 1, MAX_STAMP - 1))
        self._known[self.me.address] = self.me
        return True

    def _learn(self, profile: LocatorProfile, now_ms: int) -> bool:
        known = self._known.get(profile.address)
        # Equal stamps with different contents need a rule that is the same everywhere; which one does not matter.
        if known is not None and (known.stamp, known) >= (profile.stamp, profile):
            return False
        if known is None or known.distributed_system_id != profile.distributed_system_id:
            self._make_room(profile.distributed_system_id)
        self._known[profile.address] = profile
        if profile.address not in self._targets:
            self._targets[profile.address] = _Target(profile.address, LEARNED, due_ms=now_ms + self.timings.change_delay_ms)
        return True

    def _make_room(self, distributed_system_id: int) -> None:
        site = [p for p in self._known.values() if p.distributed_system_id == distributed_system_id and p != self.me]
        if len(site) >= MAX_LOCATORS_PER_SITE:
            worst = max(site, key=lambda p: (self._failures_of(p.address), -p.stamp))
            del self._known[worst.address]
            target = self._targets.get(worst.address)
            if target is not None and target.role == LEARNED:
                del self._targets[worst.address]

    def _merge_extra(self, message: dict[str, Any], now_ms: int) -> None:
        if message.get("extra") is not None and self.merge_extra(message["extra"]):
            self.extra_changed(now_ms)

    def _spread(self, now_ms: int, *, only_site: int | None = None) -> None:
        for target in self._targets.values():
            site = target.profile.distributed_system_id if target.profile else None
            if only_site is not None and site != only_site:
                continue
            if target.in_flight:
                target.news = True
            elif target.joined and target.peer_digest != self.digest(site):
                target.due_ms = min(target.due_ms, now_ms + self.timings.change_delay_ms)
