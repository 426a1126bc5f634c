"""Owns a locator's table of its site's members: which are alive, where their receivers are, and which receiver has the
lowest load."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
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
ON_THE_WAY_MAX = 256  # So many connections are expected at a receiver, or away from it. More are counted by its load.


class ReceiverWish(NamedTuple):
    """What a sender asks for when it asks for a receiver.

    Attributes:
        exclude: Members whose receivers it does not want.
        keep: The member that it was connected to. It gets the receiver of this member if there is one.
        instead_of: The member that connections are to leave. The sender gets a receiver only if the loads are more even
            after that.
        connections: The number of connections that it opens there.
    """

    exclude: frozenset[int] = frozenset()
    keep: int | None = None
    instead_of: int | None = None
    connections: int = 1

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
        return cls(frozenset(exclude), request.get("keep"), request.get("instead_of"), connections)


class _OnTheWay:
    """Connections that were sent somewhere, and that no load shows yet. Each is expected for `ON_THE_WAY_MS`."""

    def __init__(self) -> None:
        self._until: deque[int] = deque(maxlen=ON_THE_WAY_MAX)

    def add(self, connections: int, now_ms: int) -> None:
        self._until.extend([now_ms + ON_THE_WAY_MS] * min(connections, ON_THE_WAY_MAX))

    def arrived(self, connections: int) -> None:
        """Notes that the load shows so many more."""
        for _ in range(min(connections, len(self._until))):
            self._until.popleft()

    def count(self, now_ms: int) -> int:
        while self._until and self._until[0] <= now_ms:
            self._until.popleft()
        return len(self._until)


class _Receiver:
    """What the locator did with one receiver: the connections that it sent there and away, and when it did so last."""

    def __init__(self) -> None:
        self.coming, self.going = _OnTheWay(), _OnTheWay()
        self.given_at = 0

    def load_changed(self, by: int) -> None:
        (self.coming if by > 0 else self.going).arrived(abs(by))


@dataclass
class Member:
    """One live member.

    `mark` is that of the nonce which the member tells this locator. Who knows the nonce is the member.

    `receivers` are in the order of those in the profile.
    """

    profile: dict[str, Any]
    heard_ms: int
    mark: bytes
    receivers: list[_Receiver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.receivers = [_Receiver() for _ in self.profile["receivers"]]

    @property
    def name(self) -> str:
        return str(self.profile["name"])

    @property
    def member_id(self) -> int:
        return int(self.profile["member_id"])

    def load(self, index: int, now_ms: int) -> int:
        """Returns the connections of a receiver, with those that come to it and without those that leave it."""
        receiver = self.receivers[index]
        return max(0, self._told_load(index) + receiver.coming.count(now_ms) - receiver.going.count(now_ms))

    def take_profile(self, profile: dict[str, Any]) -> None:
        """Takes a newer profile. What its loads show now is not on its way any more."""
        places = [(each["host"], each["port"]) for each in self.profile["receivers"]]
        before = [self._told_load(index) for index in range(len(places))]
        self.profile = profile
        if places != [(each["host"], each["port"]) for each in profile["receivers"]]:
            self.receivers = [_Receiver() for _ in profile["receivers"]]
            return
        for index, receiver in enumerate(self.receivers):
            receiver.load_changed(self._told_load(index) - before[index])

    def _told_load(self, index: int) -> int:
        return int(self.profile["receivers"][index].get("load", self.profile["load"]))

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
        member.take_profile(check_profile({**member.profile, **changes}))
        member.heard_ms = now_ms
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
        dead = [m for m in self._members.values() if now_ms - m.heard_ms > self.lease_ms]
        for member in dead:
            del self._members[member.name]
        return dead

    def next_expiry_ms(self) -> int | None:
        return min((m.heard_ms + self.lease_ms + 1 for m in self._members.values()), default=None)

    def hand_out(self, wish: ReceiverWish, now_ms: int) -> dict[str, Any] | None:
        """Returns the receiver that a sender is to connect to, and expects its connections there. None: there is none.

        It is the receiver with the fewest connections, those on their way included. Equal ones take turns.
        """
        kept = None if wish.keep in wish.exclude else self._by_id(wish.keep)
        left = None if wish.instead_of is None else self._by_id(wish.instead_of)
        if wish.instead_of is not None and (left is None or not left.receivers):
            return None
        choices = [
            (member.load(index, now_ms), receiver.given_at, member.member_id, index, member)
            for member in ([kept] if kept is not None and kept.receivers else self._members.values())
            if member.member_id not in wish.exclude and member is not left
            for index, receiver in enumerate(member.receivers)
        ]
        if not choices:
            return None
        load, _, _, index, member = min(choices, key=lambda choice: choice[:4])
        if left is not None:
            most, most_at = max((left.load(n, now_ms), n) for n in range(len(left.receivers)))
            if most - load <= wish.connections:  # Afterwards they would differ as much, the other way round.
                return None
            left.receivers[most_at].going.add(wish.connections, now_ms)
        self._turn += 1
        member.receivers[index].coming.add(wish.connections, now_ms)
        member.receivers[index].given_at = self._turn
        return _receiver_view(member, index)

    def receivers(self, now_ms: int) -> list[dict[str, Any]]:
        """Returns every receiver with its load as senders are sent by it, by the member's name."""
        return [
            {**_receiver_view(member, index), "load": member.load(index, now_ms)}
            for member in sorted(self._members.values(), key=lambda m: m.name)
            for index in range(len(member.receivers))
        ]

    def _by_id(self, member_id: int | None) -> Member | None:
        return next((m for m in self._members.values() if m.member_id == member_id), None)

    def members(self) -> list[dict[str, Any]]:
        return [dict(m.profile) for m in sorted(self._members.values(), key=lambda m: m.name)]

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
