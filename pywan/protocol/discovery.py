"""Owns what a locator knows of all sites' locators. It decides which locators to ask, when, and what an answer changes.

A locator believes about an address only what that address itself answered. What others tell about it is only a reason
to ask there. Such a candidate is told to nobody, and is forgotten if it never answers. A locator learns only from
answers to its own requests. If a request shows that the asker knows something else, the locator asks back. So every
locator ends with the same set, whatever the order of start, and an invented address stays with the locators that it was
told to. A locator that knows the same costs one ping with a digest. Time comes in as `now_ms`, and never goes back.

Where those who ask have to show who they are, an answer is believed no further than the same request would be: only an
address that the configuration or a locator of the own site has named can be one of the own site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pywan.base.addresses import Address
from pywan.base.names import is_host, is_name, quoted
from pywan.errors import IncompatibleSystemError, ProtocolError

MAX_LOCATORS_PER_SITE = 64
MAX_LOCATORS = 1024  # The limit for all sites together.
MAX_CANDIDATES = 256  # The limit of addresses that others told, and that have not answered yet.
CANDIDATES_AT_ONCE = 4  # So many candidates are asked at a time. So known locators do not wait behind invented ones.
CANDIDATE_MS = 600_000  # A candidate that never answered for so long is forgotten.
# The time between joins with a locator that keeps knowing something else, because it reaches other locators than we do.
DIFFERENCE_MS = 60_000
LOWEST_SYSTEM_ID, HIGHEST_SYSTEM_ID = -1, 255

# The reason why we know an address. It says what we may expect there.
LOCAL, REMOTE, LEARNED = "local", "remote", "learned"


@dataclass(frozen=True)
class Timings:
    """The milliseconds between one contact of a locator and the next.

    Attributes:
        ping_ms: With a locator that has answered.
        retry_ms: After the first failure. It grows by half each time.
        retry_max_ms: The limit of that growth.
        change_delay_ms: News wait this long, so that several travel together.
        conflict_ms: With a locator that contradicts our configuration.
    """

    ping_ms: int = 5_000
    retry_ms: int = 500
    retry_max_ms: int = 10_000
    change_delay_ms: int = 30
    conflict_ms: int = 60_000


class LocatorProfile(NamedTuple):
    """A locator, and how others are to reach it."""

    distributed_system_id: int
    host: str
    port: int
    name: str

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def to_map(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_map(cls, value: Any) -> LocatorProfile:
        """Reads a profile. ProtocolError unless every field is there, of its type and in its range."""
        try:
            profile = cls(*(value[name] for name in cls._fields))
        except (TypeError, KeyError):
            raise ProtocolError(f"{quoted(value)} is not a locator's profile") from None
        whole = type(profile.distributed_system_id) is int and type(profile.port) is int
        if not (
            whole
            and LOWEST_SYSTEM_ID <= profile.distributed_system_id <= HIGHEST_SYSTEM_ID
            and 0 < profile.port < 65536
            and is_host(profile.host)
            and is_name(profile.name)
        ):
            raise ProtocolError(f"a locator's profile holds a value out of range: {quoted(value, 200)}")
        return profile


class Contact(NamedTuple):
    """An action for the caller: send `request` to `address`, then call `heard` or `failed`.

    is_own: Whether the address was named as one of the own site, by somebody who may. No other one is shown what is of
        use in the own site.
    """

    address: Address
    request: dict[str, Any]
    is_own: bool


@dataclass
class _Target:
    """An address of a locator, and what we know of it."""

    address: Address
    role: str
    is_own: bool  # See `Contact`.
    due_ms: int = 0
    in_flight: bool = False
    attempted: bool = False
    failures: int = 0  # The number of failures in a row.
    joined: bool = False  # Whether it has got our set since it (or the link) last failed.
    asked_ms: int = 0  # The time of the last contact.
    joined_ms: int = 0  # The time when it last gave us its set.
    peer_uid: str = ""
    # Its digest and ours after that. While both stay the same, another join tells nothing.
    digests: tuple[str, str] = ("", "")
    profile: LocatorProfile | None = None  # The locator that answered there. None: no locator has.
    news: bool = False  # Whether something changed while it was being contacted.
    problem: str = ""
    conflict: bool = False
    is_self: bool = False
    since_ms: int = 0  # The time when we first heard of it.

    @property
    def is_candidate(self) -> bool:
        return self.role == LEARNED and self.profile is None


@dataclass
class LocatorState:
    """One locator's view. It is not thread-safe: its owner calls it under one lock.

    `me` is our own profile, and `uid` a random name for this run. `extra` and `extra_digest` are what the locators of
    one site share besides addresses. The result of `extra()` travels with each exchange inside the site. What comes in
    goes to `merge_extra`, which returns whether it changed anything. `asks_who`: whether those who ask have to show who
    they are. The caller then passes to `on_join` only those that may say what they say.
    """

    me: LocatorProfile
    uid: str
    locators: Iterable[Address] = ()
    remote_locators: Iterable[Address] = ()
    timings: Timings = field(default_factory=Timings)
    extra: Callable[[], Any] = lambda: None
    extra_digest: Callable[[], str] = lambda: ""
    merge_extra: Callable[[Any], bool] = lambda value: False
    asks_who: bool = False

    def __post_init__(self) -> None:
        self._known: dict[Address, LocatorProfile] = {self.me.address: self.me}
        self._targets: dict[Address, _Target] = {}
        for address in self.locators:
            if address != self.me.address:
                self._targets[address] = _Target(address, LOCAL, is_own=True)
        for address in self.remote_locators:
            self._targets.setdefault(address, _Target(address, REMOTE, is_own=False))

    # --- what it knows ---

    def known_sites(self) -> dict[int, list[Address]]:
        """Returns every site's locators, ourselves included. Those that answered last come first."""
        sites: dict[int, list[Address]] = {}
        failures = self._failures()
        for profile in sorted(self._known.values(), key=lambda p: (failures.get(p.address, 0), p.address)):
            sites.setdefault(profile.distributed_system_id, []).append(profile.address)
        return dict(sorted(sites.items()))

    def locators_of(self, distributed_system_id: int) -> list[Address]:
        return self.known_sites().get(distributed_system_id, [])

    def digest(self, distributed_system_id: int | None = None) -> str:
        """Returns a text that is equal at two locators if they know the same, as far as it concerns a locator of the
        given site."""
        text = repr(sorted((p.host, p.port, p.distributed_system_id) for p in self._known.values()))
        if distributed_system_id == self.me.distributed_system_id:
            text += self.extra_digest()
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def problems(self) -> list[str]:
        """Returns what keeps configured locators from being joined, in words."""
        return [t.problem for t in self._targets.values() if t.problem and t.role != LEARNED]

    def conflicts(self) -> list[str]:
        """Returns contradictions about the sites of locators. They do not pass by waiting."""
        return [t.problem for t in self._targets.values() if t.conflict and t.role != LEARNED]

    def first_round_done(self) -> bool:
        """Returns whether every configured locator has been tried once."""
        return all(t.attempted for t in self._targets.values() if t.role != LEARNED)

    def is_candidate(self, address: Address) -> bool:
        """Returns whether others told the address, and nobody has answered there."""
        target = self._targets.get(address)
        return target is not None and target.is_candidate

    def peers(self) -> list[dict[str, Any]]:
        return [
            {
                "address": str(t.address),
                "role": t.role,
                "joined": t.joined,
                "failures": t.failures,
                "problem": t.problem,
            }
            for t in self._targets.values()
        ]

    def _failures(self) -> dict[Address, int]:
        """Returns how often in a row each address did not answer, under whatever name it was asked."""
        failures: dict[Address, int] = {}
        for target in self._targets.values():
            for address in {target.address, target.profile.address if target.profile else target.address}:
                failures[address] = min(target.failures, failures.get(address, target.failures))
        return failures

    # --- which locators to contact ---

    def due(self, now_ms: int) -> list[Contact]:
        """Returns the contacts to make now. Each is in flight until `heard` or `failed` is called for its address."""
        self._forget_candidates(now_ms)
        contacts = []
        places = self._places_for_candidates()
        for target in self._active():
            if target.due_ms <= now_ms and not target.in_flight:
                if target.is_candidate:
                    if places <= 0:
                        continue
                    places -= 1
                target.in_flight, target.news, target.asked_ms = True, False, now_ms
                contacts.append(Contact(target.address, self._request_for(target), target.is_own))
        return contacts

    def next_due_ms(self) -> int | None:
        """Returns when `due` will next have something. None: only a message can change that."""
        places = self._places_for_candidates()
        return min(
            (t.due_ms for t in self._active() if not t.in_flight and (places > 0 or not t.is_candidate)), default=None
        )

    def _places_for_candidates(self) -> int:
        return CANDIDATES_AT_ONCE - sum(t.in_flight and t.is_candidate for t in self._targets.values())

    def _active(self) -> list[_Target]:
        """Returns the targets that are contacted."""
        # A locator may be configured by one name and advertised by another. It is contacted once, by the configured
        # name.
        covered = {t.profile.address for t in self._targets.values() if t.role != LEARNED and t.profile and t.joined}
        return [
            t
            for t in self._targets.values()
            if not t.is_self and not (t.role == LEARNED and (t.address in covered or t.address == self.me.address))
        ]

    def _request_for(self, target: _Target) -> dict[str, Any]:
        """Returns the next request for a target: a join, or a ping if it has our set."""
        if target.joined and target.profile is not None:
            return {"op": "ping", "uid": self.uid}
        return {
            "op": "locator-join",
            "role": target.role,
            "uid": self.uid,
            "from": self.me.to_map(),
            **self._digests(),
            "extra": self.extra() if target.is_own else None,
        }

    def _digests(self) -> dict[str, str]:
        return {"digest": self.digest(), "digest_in_site": self.digest(self.me.distributed_system_id)}

    def _both_digests(self, message: dict[str, Any], peer_site: int) -> tuple[str, str]:
        """Returns (its, our) digest of the part that both are to know the same."""
        same_site = peer_site == self.me.distributed_system_id
        theirs = message.get("digest_in_site" if same_site else "digest")
        return theirs if isinstance(theirs, str) else "", self.digest(peer_site)

    def _sites_map(self) -> list[dict[str, Any]]:
        return [profile.to_map() for profile in self._known.values()]

    # --- messages that come in ---

    def on_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to a ping. It changes nothing."""
        return {
            "uid": self.uid,
            "name": self.me.name,
            "distributed_system_id": self.me.distributed_system_id,
            **self._digests(),
        }

    def on_join(self, request: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """Returns the answer to a locator that asks what we know.

        Nothing is believed about the asker itself. It is asked in its turn, if it is new to us or knows something else.
        IncompatibleSystemError if it expects another site here than this one is.
        """
        if request.get("uid") == self.uid:
            return {"self": True, "from": self.me.to_map(), "uid": self.uid}
        peer = LocatorProfile.from_map(request.get("from"))
        self._check_role(request.get("role"), self.me, peer)
        is_own = peer.distributed_system_id == self.me.distributed_system_id
        if is_own:
            self._merge_extra(request, now_ms)
        target = next(
            (t for t in self._targets.values() if t.profile is not None and t.profile.address == peer.address),
            self._targets.get(peer.address),
        )
        if target is None:
            self._add_candidates([(peer.address, is_own)], now_ms)
        else:
            target.is_own = target.is_own or (is_own and target.role == LEARNED)
            digests = self._both_digests(request, peer.distributed_system_id)
            if (
                target.failures
                or not target.joined
                or request.get("uid") != target.peer_uid
                or (digests[0] != digests[1] and digests != target.digests)
            ):
                self._ask_soon(target, now_ms)
        return {
            "from": self.me.to_map(),
            "uid": self.uid,
            "sites": self._sites_map(),
            **self._digests(),
            "extra": self.extra() if peer.distributed_system_id == self.me.distributed_system_id else None,
        }

    def _ask_soon(self, target: _Target, now_ms: int) -> None:
        """Makes a locator's contact due soon, but not at once if it was asked a moment ago.

        Requests of others must not make us send as many.
        """
        if target.in_flight:
            target.news = True
        else:
            target.joined = False
            target.due_ms = min(
                target.due_ms, max(now_ms + self.timings.change_delay_ms, target.asked_ms + self.timings.retry_ms)
            )

    def received(self, address: Address, request: dict[str, Any], reply: dict[str, Any], now_ms: int) -> None:
        """Takes the answer of `address` to `request`.

        ProtocolError or IncompatibleSystemError if the answer cannot be right. The caller calls `failed` then, as for
        no answer.
        """
        target = self._targets.get(address)
        if target is None:
            return
        if request["op"] == "ping":
            self._received_ping(target, reply, now_ms)
        else:
            self._received_join(target, reply, now_ms)
        target.in_flight, target.attempted = False, True
        target.failures, target.problem, target.conflict = 0, "", False
        if target.news:
            target.due_ms = min(target.due_ms, now_ms + self.timings.change_delay_ms)

    def failed(self, address: Address, reason: str, now_ms: int, *, conflict: bool = False) -> int:
        """Notes that `address` did not answer, or refused. Returns how often that happened in a row."""
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
        """Notes that what the site's locators share was changed here. They will be told."""
        self._spread(now_ms, only_site=self.me.distributed_system_id)

    def _received_ping(self, target: _Target, reply: dict[str, Any], now_ms: int) -> None:
        assert target.profile is not None, "a locator that has not joined is not pinged"
        digests = self._both_digests(reply, target.profile.distributed_system_id)
        differ = digests[0] != digests[1] and (digests != target.digests or now_ms - target.joined_ms >= DIFFERENCE_MS)
        if reply.get("uid") != target.peer_uid or differ:
            target.joined = False
            target.due_ms = now_ms
        else:
            target.due_ms = now_ms + self.timings.ping_ms

    def _received_join(self, target: _Target, reply: dict[str, Any], now_ms: int) -> None:
        """Takes the answer to a join: the locators that the other one knows."""
        if reply.get("self") is True or reply.get("uid") == self.uid:
            if target.role == REMOTE:
                raise IncompatibleSystemError(
                    f"remote-locators names {target.address}, which is this locator itself; remote-locators holds"
                    " other sites' locators"
                )
            target.is_self = True
            return
        peer = LocatorProfile.from_map(reply.get("from"))
        self._check_role(target.role, peer, self.me)
        says_own = peer.distributed_system_id == self.me.distributed_system_id
        if says_own and not target.is_own and self.asks_who:
            raise ProtocolError(
                f"what answers at {target.address} says that it is locator {peer.name} of this site, which no locator"
                " of this site has said"
            )
        announced = self._profiles_in(reply)
        self._believe(target, peer, now_ms)
        uid = reply.get("uid")
        target.joined, target.peer_uid, target.joined_ms = True, uid if isinstance(uid, str) else "", now_ms
        target.due_ms = now_ms + self.timings.ping_ms
        target.is_own = says_own
        own_site = self.me.distributed_system_id
        told = [(each.address, says_own and each.distributed_system_id == own_site) for each in announced]
        self._add_candidates(told, now_ms)
        if says_own:
            self._merge_extra(reply, now_ms)
        target.digests = self._both_digests(reply, peer.distributed_system_id)

    @staticmethod
    def _check_role(role: Any, here: LocatorProfile, asker: LocatorProfile) -> None:
        """Raises an error if `asker`'s configuration says of `here` what is not so."""
        if role == LOCAL and here.distributed_system_id != asker.distributed_system_id:
            raise IncompatibleSystemError(
                f"locator {here.name} at {here.address} has distributed-system-id {here.distributed_system_id},"
                f" locator {asker.name} at "
                f"{asker.address} has {asker.distributed_system_id}: the locators of one site must agree"
            )
        if role == REMOTE and here.distributed_system_id == asker.distributed_system_id:
            raise IncompatibleSystemError(
                f"locator {here.name} at {here.address}, named in the remote-locators of {asker.name}, has the same "
                f"distributed-system-id {here.distributed_system_id}: each site needs its own, and a site is not"
                " remote to itself"
            )

    @staticmethod
    def _profiles_in(message: dict[str, Any]) -> list[LocatorProfile]:
        sites = message.get("sites")
        if not isinstance(sites, list) or len(sites) > MAX_LOCATORS:
            raise ProtocolError(f"a locator's answer has no list of at most {MAX_LOCATORS} locators")
        return [LocatorProfile.from_map(value) for value in sites]

    def _believe(self, target: _Target, peer: LocatorProfile, now_ms: int) -> None:
        """Notes that `peer` answered at the target's address. ProtocolError if it cannot be that, or if there is no
        room for it."""
        if peer.address == self.me.address:
            raise ProtocolError(
                f"what answers at {target.address} tells this locator's own address {peer.address} as its own"
            )
        if target.role == LEARNED and peer.address != target.address:
            raise ProtocolError(f"what answers at {target.address} tells another address as its own, {peer.address}")
        direct = self._targets.get(peer.address)
        if direct is not None and direct is not target and direct.profile is not None and not direct.failures:
            # The answer at the address itself counts more than an answer elsewhere in its name.
            peer = direct.profile
        before = target.profile
        if self._known.get(peer.address) != peer:
            known = self._known.get(peer.address)
            if known is None or known.distributed_system_id != peer.distributed_system_id:
                self._make_room(peer)
            self._known[peer.address] = peer
            if before is not None and before.address != peer.address:
                self._known.pop(before.address, None)
            self._spread(now_ms)
        target.profile = peer

    def _make_room(self, peer: LocatorProfile) -> None:
        """Makes room for one more locator, in place of the one that fails most. ProtocolError if all of them answer."""
        site = [
            p for p in self._known.values() if p.distributed_system_id == peer.distributed_system_id and p != self.me
        ]
        choices = (
            site
            if len(site) >= MAX_LOCATORS_PER_SITE
            else [p for p in self._known.values() if p != self.me]
            if len(self._known) >= MAX_LOCATORS
            else None
        )
        if choices is None:
            return
        failures = self._failures()
        worst = max(choices, key=lambda p: failures.get(p.address, 0))
        if not failures.get(worst.address, 0):
            raise ProtocolError(
                f"locator {peer.name} at {peer.address} of site {peer.distributed_system_id}: there is no room for"
                f" another one; at most {MAX_LOCATORS_PER_SITE} of a site and "
                f"{MAX_LOCATORS} of all are kept, and all that are kept answer"
            )
        del self._known[worst.address]
        target = self._targets.get(worst.address)
        if target is not None and target.role == LEARNED:
            del self._targets[worst.address]

    # --- candidates: addresses that others told ---

    def _add_candidates(self, told: Iterable[tuple[Address, bool]], now_ms: int) -> None:
        """Adds addresses that others told, each with whether it was named as one of the own site by one of its
        locators.

        If all places are taken, candidates that failed are dropped, those with the most failures first. If there are
        none, the new ones are left out. They will be told again.
        """
        fresh: dict[Address, bool] = {}
        for address, is_own in told:
            target = self._targets.get(address)
            if target is not None:
                target.is_own = target.is_own or (is_own and target.is_candidate)
            elif address not in self._known:
                fresh[address] = is_own or fresh.get(address, False)
        candidates = [t for t in self._targets.values() if t.is_candidate] if fresh else []
        failed = sorted((t for t in candidates if t.failures and not t.in_flight), key=lambda t: t.failures)
        room = MAX_CANDIDATES - len(candidates)
        for address in sorted(fresh):
            if room > 0:
                room -= 1
            elif failed:
                del self._targets[failed.pop().address]
            else:
                return
            self._targets[address] = _Target(
                address, LEARNED, fresh[address], due_ms=now_ms + self.timings.change_delay_ms, since_ms=now_ms
            )

    def _forget_candidates(self, now_ms: int) -> None:
        for target in [
            t
            for t in self._targets.values()
            if t.is_candidate and not t.in_flight and now_ms - t.since_ms > CANDIDATE_MS
        ]:
            del self._targets[target.address]

    def _merge_extra(self, message: dict[str, Any], now_ms: int) -> None:
        if message.get("extra") is not None and self.merge_extra(message["extra"]):
            self.extra_changed(now_ms)

    def _spread(self, now_ms: int, *, only_site: int | None = None) -> None:
        """Makes contacts due after what we know has changed. Those that know something else learn it because we ask
        them."""
        for target in self._targets.values():
            if target.profile is None or only_site not in (None, target.profile.distributed_system_id):
                continue
            if target.in_flight:
                target.news = True
            elif target.joined:
                target.due_ms = min(target.due_ms, now_ms + self.timings.change_delay_ms)
