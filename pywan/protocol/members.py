"""Owns a locator's table of its site's members: which are alive, where their receivers are, and which receiver has the
lowest load."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pywan.base.names import check_name, is_host, quoted
from pywan.base.nonces import fits, mark_of
from pywan.errors import ConfigurationError, ProtocolError

MAX_MEMBERS = 1024
MAX_RECEIVERS = 16  # The limit for one member. Geode has one.
MIN_LEASE_MS, MAX_LEASE_MS = 100, 600_000_000
MEMBER_ID_MAX = 2**32 - 1
LOAD_MAX = 2**31 - 1
CONNECTIONS_MAX = 65_536  # The limit of connections in one wish: no sender has more dispatchers.
# A connection that was sent to a receiver is expected for so long. A sender takes 5 s at most to connect.
ON_THE_WAY_MS = 5_000
ON_THE_WAY_MAX = 1024  # So many connections are expected, the newest. More are counted by the loads alone.
DISPATCHERS_TOLD_MAX = 1024  # A receiver says of so many connections which dispatchers have them, the newest.


def dispatcher_number(site: int, member: str, sender: str, dispatcher: int) -> int:
    """Returns what senders, receivers and locators alike call a dispatcher, in 32 bits."""
    return zlib.crc32(f"{site} {member} {sender} {dispatcher}".encode())


class ReceiverWish(NamedTuple):
    """What a sender asks for when it asks for a receiver.

    Attributes:
        exclude: Members whose receivers it does not want.
        keep: The member that it was connected to. It gets the receiver of this member if there is one.
        instead_of: The member that connections are to leave. The sender gets a receiver only if the loads are more even
            after that.
        connections: The number of connections that it opens there.
        dispatchers: The dispatchers that open them (`dispatcher_number`). A dispatcher has one connection: when it asks
            again, its earlier one is not expected any more, and does not count where it still is.
    """

    exclude: frozenset[int] = frozenset()
    keep: int | None = None
    instead_of: int | None = None
    connections: int = 1
    dispatchers: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: dict[str, Any]) -> ReceiverWish:
        """Reads a request. ConfigurationError unless every field is of its type and in its range."""
        exclude = request.get("exclude", [])
        if not isinstance(exclude, list) or len(exclude) > MAX_MEMBERS or not all(map(_is_member_id, exclude)):
            raise ConfigurationError(f"receiver: exclude is a list of at most {MAX_MEMBERS} member ids")
        for name in ("keep", "instead_of"):
            if request.get(name) is not None and not _is_member_id(request[name]):
                raise ConfigurationError(f"receiver: {name} is a member id, not {quoted(request[name])}")
        connections = request.get("connections", 1)
        if type(connections) is not int or not 1 <= connections <= CONNECTIONS_MAX:
            raise ConfigurationError(
                f"receiver: connections is a number from 1 to {CONNECTIONS_MAX}, not {quoted(connections)}"
            )
        dispatchers = request.get("dispatchers", [])
        if not _are_dispatchers(dispatchers) or len(dispatchers) > connections:
            raise ConfigurationError("receiver: dispatchers is a list of at most `connections` numbers of 32 bits")
        keep, instead_of = request.get("keep"), request.get("instead_of")
        return cls(frozenset(exclude), keep, instead_of, connections, tuple(dispatchers))


class _Place(NamedTuple):
    """A receiver: the member, and which of its receivers."""

    member_id: int
    number: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A connection that was sent to a receiver a moment ago."""

    to: _Place | None  # None: its dispatcher asks now where to go.
    leaves: _Place | None  # The receiver that a connection leaves of which the dispatcher is not known.
    until_ms: int


@dataclass
class Member:
    """One live member.

    `mark` is that of the nonce which the member tells this locator. Who knows the nonce is the member.

    `given_at` says of each receiver in the profile when a sender was last sent there.
    """

    profile: dict[str, Any]
    received_ms: int
    mark: bytes
    given_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given_at = [0 for _ in self.profile["receivers"]]

    @property
    def name(self) -> str:
        return str(self.profile["name"])

    @property
    def member_id(self) -> int:
        return int(self.profile["member_id"])

    def take_profile(self, profile: dict[str, Any]) -> bool:
        """Takes a newer profile. Returns whether its receivers are the same ones as before."""
        before, self.profile = self.profile["receivers"], profile
        is_same = [(each["host"], each["port"]) for each in before] == [
            (each["host"], each["port"]) for each in profile["receivers"]
        ]
        if not is_same:
            self.given_at = [0 for _ in profile["receivers"]]
        return is_same

    def told(self) -> dict[_Place, tuple[int, frozenset[int]]]:
        """Returns of each receiver how many connections it has, and of which dispatchers, as far as it says."""
        return {
            _Place(self.member_id, index): (
                int(each.get("load", self.profile["load"])),
                frozenset(each.get("dispatchers", ())),
            )
            for index, each in enumerate(self.profile["receivers"])
        }

    def is_told_by(self, request: dict[str, Any]) -> bool:
        """Whether a request that names the member comes from it."""
        return self.member_id == request.get("member_id") and fits(self.mark, request.get("nonce"))


class MemberTable:
    """The members by name. It is not thread-safe: its owner calls it under one lock, with `now_ms` that never goes
    back."""

    def __init__(self, lease_ms: int) -> None:
        """A member that was not heard for `lease_ms` is taken off. It is from MIN_LEASE_MS to MAX_LEASE_MS."""
        self.lease_ms = lease_ms
        self._members: dict[str, Member] = {}
        self._turn = 0
        # Connections that are on their way, by dispatcher, the oldest first. Those of dispatchers that are not known
        # have negative numbers.
        self._sent: dict[int, _Sent] = {}
        self._nameless = 0

    @property
    def count(self) -> int:
        """The number of members, which may include some whose lease has run out."""
        return len(self._members)

    def get(self, name: str) -> Member | None:
        return self._members.get(name)

    def join(self, value: Any, nonce: bytes, now_ms: int) -> dict[str, Any]:
        """Takes a member in, in place of an earlier run of the same name. Returns the checked profile."""
        profile = check_profile(value)
        if profile["name"] not in self._members and len(self._members) >= MAX_MEMBERS:
            raise ConfigurationError(
                f"member {profile['name']}: the site has {MAX_MEMBERS} members already, the most a locator keeps"
            )
        self._members[profile["name"]] = Member(profile, now_ms, mark_of(nonce))
        return profile

    def heartbeat(self, request: dict[str, Any], now_ms: int) -> bool:
        """Returns whether the member is known, and told this itself. If not, it has to join (again)."""
        member = self._told_by(request)
        if member is None:
            return False
        changes = {key: request[key] for key in ("receivers", "load") if key in request}
        before = member.told()
        if member.take_profile(check_profile({**member.profile, **changes})):
            self._take_loads(before, member.told())
        else:
            self._sent = {each: sent for each, sent in self._sent.items() if sent.to not in before}
        member.received_ms = now_ms
        return True

    def leave(self, request: dict[str, Any]) -> bool:
        """Takes a member off that says goodbye. Returns whether it was there, in this run, and said so itself."""
        member = self._told_by(request)
        if member is None:
            return False
        del self._members[member.name]
        return True

    def _told_by(self, request: dict[str, Any]) -> Member | None:
        """Returns the member that a request names. None: it is not there, or the request comes from somebody else."""
        name = request.get("name")
        member = self._members.get(name) if isinstance(name, str) else None
        return member if member is not None and member.is_told_by(request) else None

    def expire(self, now_ms: int) -> list[Member]:
        """Removes and returns the members whose lease has run out."""
        dead = [m for m in self._members.values() if now_ms - m.received_ms > self.lease_ms]
        for member in dead:
            del self._members[member.name]
        return dead

    def next_expiry_ms(self) -> int | None:
        return min((m.received_ms + self.lease_ms + 1 for m in self._members.values()), default=None)

    def hand_out(self, wish: ReceiverWish, now_ms: int) -> dict[str, Any] | None:
        """Returns the receiver that a sender is to connect to, and expects its connections there. None: there is none.

        It is the receiver with the fewest connections, those on their way included. Equal ones take turns.
        """
        kept = None if wish.keep in wish.exclude else self._by_id(wish.keep)
        left = None if wish.instead_of is None else self._by_id(wish.instead_of)
        if wish.instead_of is not None and (left is None or not left.given_at):
            return None
        if left is None:
            for each in wish.dispatchers:
                self._send(each, _Sent(None, None, now_ms + ON_THE_WAY_MS))
        loads = self._loads(now_ms)
        choices = [
            (loads[_Place(member.member_id, index)], given_at, member.member_id, index, member)
            for member in ([kept] if kept is not None and kept.given_at else self._members.values())
            if member.member_id not in wish.exclude and member is not left
            for index, given_at in enumerate(member.given_at)
        ]
        if not choices:
            return None
        load, _, _, index, member = min(choices, key=lambda choice: choice[:4])
        leaves = None
        if left is not None:
            leaves = max((_Place(left.member_id, n) for n in range(len(left.given_at))), key=lambda each: loads[each])
            if loads[leaves] - load <= wish.connections:  # Afterwards they would differ as much, the other way round.
                return None
        self._turn += 1
        member.given_at[index] = self._turn
        self._nameless -= min(wish.connections - len(wish.dispatchers), ON_THE_WAY_MAX)
        nameless = range(self._nameless, self._nameless + wish.connections - len(wish.dispatchers))[:ON_THE_WAY_MAX]
        for each in (*nameless, *wish.dispatchers):
            sent = _Sent(_Place(member.member_id, index), leaves if each < 0 else None, now_ms + ON_THE_WAY_MS)
            self._send(each, sent)
        return _receiver_view(member, index)

    def _send(self, dispatcher: int, sent: _Sent) -> None:
        self._sent.pop(dispatcher, None)
        self._sent[dispatcher] = sent
        if len(self._sent) > ON_THE_WAY_MAX:
            del self._sent[next(iter(self._sent))]

    def _loads(self, now_ms: int) -> dict[_Place, int]:
        """Returns the connections of each receiver, with those that come to it and without those that leave it."""
        while self._sent:
            first = next(iter(self._sent))
            if self._sent[first].until_ms > now_ms:
                break
            del self._sent[first]
        told = {place: each for member in self._members.values() for place, each in member.told().items()}
        changes: Counter[_Place | None] = Counter()
        for place, (_, there) in told.items():
            leaving = (each for each in there & self._sent.keys() if self._sent[each].to != place)
            changes[place] -= sum(1 for _ in leaving)
        for dispatcher, sent in self._sent.items():
            if sent.to in told and dispatcher not in told[sent.to][1]:
                changes[sent.to] += 1
            changes[sent.leaves] -= 1
        return {place: max(0, load + changes[place]) for place, (load, _) in told.items()}

    def _take_loads(
        self,
        before: dict[_Place, tuple[int, frozenset[int]]],
        now: dict[_Place, tuple[int, frozenset[int]]],
    ) -> None:
        """Takes what receivers of a member say newly.

        Dispatchers that have come are not on their way any more, wherever they were sent: several receivers may be
        behind one address. The oldest connections whose dispatchers are not known have come, or left.
        """
        for place, (load, there) in now.items():
            earlier_load, earlier = before[place]
            for each in there - earlier:
                self._sent.pop(each, None)
            nameless = load - earlier_load - (len(there) - len(earlier))
            for each in self._oldest(nameless, lambda sent, place=place: sent.to == place):  # type: ignore[misc]
                self._note(each, replace(self._sent[each], to=None))
            for each in self._oldest(-nameless, lambda sent, place=place: sent.leaves == place):  # type: ignore[misc]
                self._note(each, replace(self._sent[each], leaves=None))

    def _oldest(self, count: int, is_meant: Callable[[_Sent], bool]) -> list[int]:
        return [each for each, sent in self._sent.items() if is_meant(sent)][: max(count, 0)]

    def _note(self, dispatcher: int, sent: _Sent) -> None:
        if sent.to is None and sent.leaves is None:
            del self._sent[dispatcher]
        else:
            self._sent[dispatcher] = sent

    def receivers(self, now_ms: int) -> list[dict[str, Any]]:
        """Returns every receiver with its load as senders are sent by it, by the member's name."""
        loads = self._loads(now_ms)
        return [
            {**_receiver_view(member, index), "load": loads[_Place(member.member_id, index)]}
            for member in sorted(self._members.values(), key=lambda m: m.name)
            for index in range(len(member.given_at))
        ]

    def _by_id(self, member_id: int | None) -> Member | None:
        return next((m for m in self._members.values() if m.member_id == member_id), None)

    def members(self) -> list[dict[str, Any]]:
        """Returns the members as people see them."""
        return [_shown(m.profile) for m in sorted(self._members.values(), key=lambda m: m.name)]

    def servers(self) -> list[dict[str, Any]]:
        """Returns the members as clients see them: where to connect, and no gateway receivers."""
        return [{k: v for k, v in profile.items() if k != "receivers"} for profile in self.members()]


def check_profile(value: Any) -> dict[str, Any]:
    """Returns a member's profile with every field in its type and range, and nothing else. ProtocolError says what is
    wrong."""
    if not isinstance(value, dict):
        raise ProtocolError(f"a member's profile is a map, not {quoted(value)}")
    profile: dict[str, Any] = {
        "name": check_name(value.get("name"), "a member's name", ProtocolError),
        "member_id": _number(value, "member_id", 0, MEMBER_ID_MAX),
        "host": _host(value),
        "port": _number(value, "port", 0, 65535),
        "pid": _number(value, "pid", 0, 2**31 - 1),
        "load": _number(value, "load", 0, LOAD_MAX),
        "distributed_system_id": value.get("distributed_system_id"),
    }
    receivers = value.get("receivers", [])
    if not isinstance(receivers, list) or len(receivers) > MAX_RECEIVERS:
        raise ProtocolError(f"member {profile['name']}: receivers is not a list of at most {MAX_RECEIVERS}")
    profile["receivers"] = []
    for receiver in receivers:
        if not isinstance(receiver, dict):
            raise ProtocolError(f"member {profile['name']}: a receiver is a map, not {quoted(receiver)}")
        checked = {"host": _host(receiver), "port": _number(receiver, "port", 1, 65535)}
        if "load" in receiver:
            checked["load"] = _number(receiver, "load", 0, LOAD_MAX)
        if "dispatchers" in receiver:
            if not _are_dispatchers(receiver["dispatchers"]):
                raise ProtocolError(f"member {profile['name']}: dispatchers is no list of numbers of 32 bits")
            checked["dispatchers"] = receiver["dispatchers"]
        profile["receivers"].append(checked)
    if profile["distributed_system_id"] is not None:
        _number(value, "distributed_system_id", -1, 255)
    return profile


def check_servers(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the site's members in a locator's answer, as `MemberTable.servers` gave them."""
    servers = reply.get("servers")
    if not isinstance(servers, list) or len(servers) > MAX_MEMBERS:
        raise ProtocolError(f"a locator's answer has no list of at most {MAX_MEMBERS} members: {quoted(servers)}")
    return [{key: value for key, value in check_profile(member).items() if key != "receivers"} for member in servers]


def check_having(reply: dict[str, Any]) -> frozenset[str]:
    """Returns the names of the members that have the region which was asked for, as far as the locator knows."""
    having = reply.get("having", [])
    if not isinstance(having, list) or len(having) > MAX_MEMBERS:
        raise ProtocolError(f"a locator's answer has no list of at most {MAX_MEMBERS} names: {quoted(having)}")
    return frozenset(check_name(each, "a member that has the region", ProtocolError) for each in having)


def check_receiver(value: Any) -> dict[str, Any]:
    """Returns a receiver, as `MemberTable.hand_out` gave it."""
    if not isinstance(value, dict):
        raise ProtocolError(f"a receiver is a map, not {quoted(value)}")
    return {
        "host": _host(value),
        "port": _number(value, "port", 1, 65535),
        "member": check_name(value.get("member"), "a receiver's member", ProtocolError),
        "member_id": _number(value, "member_id", 0, MEMBER_ID_MAX),
    }


def check_receivers(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the receivers in a locator's answer, as `MemberTable.receivers` gave them."""
    receivers = reply.get("receivers")
    if not isinstance(receivers, list) or len(receivers) > MAX_MEMBERS * MAX_RECEIVERS:
        raise ProtocolError(f"a locator's answer has no list of receivers: {quoted(receivers)}")
    return [{**check_receiver(each), "load": _number(each, "load", 0, LOAD_MAX + ON_THE_WAY_MAX)} for each in receivers]


def _receiver_view(member: Member, index: int) -> dict[str, Any]:
    receiver = member.profile["receivers"][index]
    return {
        "host": receiver["host"],
        "port": receiver["port"],
        "member": member.name,
        "member_id": member.member_id,
    }


def _shown(profile: dict[str, Any]) -> dict[str, Any]:
    receivers = [{k: v for k, v in each.items() if k != "dispatchers"} for each in profile["receivers"]]
    return {**profile, "receivers": receivers}


def _are_dispatchers(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) <= DISPATCHERS_TOLD_MAX
    return is_list and all(type(each) is int and 0 <= each < 1 << 32 for each in value)


def _is_member_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MEMBER_ID_MAX


def _host(value: dict[str, Any]) -> str:
    host = value.get("host")
    if not is_host(host):
        raise ProtocolError(f"a member's profile needs host, a host name or an address, not {quoted(host)}")
    return host


def _number(value: dict[str, Any], key: str, lowest: int, highest: int) -> int:
    number = value.get(key, 0 if key in ("pid", "load") else None)
    if type(number) is not int or not lowest <= number <= highest:
        raise ProtocolError(
            f"a member's profile needs {key}, a number from {lowest} to {highest}, not {quoted(number)}"
        )
    return number
