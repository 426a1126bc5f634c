"""Owns a locator's table of its site's members: which are alive, where their receivers are, and which receiver has the
lowest load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pywan.base.names import check_name, is_host, quoted
from pywan.base.nonces import fits, mark_of
from pywan.errors import ConfigurationError, ProtocolError

MAX_MEMBERS = 1024
MAX_RECEIVERS = 16  # The limit for one member. Geode has one.
MIN_LEASE_MS, MAX_LEASE_MS = 100, 600_000_000


@dataclass
class Member:
    """One live member.

    `mark` is that of the nonce which the member tells this locator. Who knows the nonce is the member.

    `handed_out` counts, for each receiver, the senders that were sent there since the member's last heartbeat. They are
    on their way, and not in its load yet.
    """

    profile: dict[str, Any]
    heard_ms: int
    mark: bytes
    handed_out: dict[int, int] = field(default_factory=dict)
    given_at: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.profile["name"])

    @property
    def member_id(self) -> int:
        return int(self.profile["member_id"])

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
        """Returns whether the member is known, and told this itself. If not, it has to join (again). Its load replaces
        the count of those handed out."""
        member = self._told_by(request)
        if member is None:
            return False
        changes = {key: request[key] for key in ("receivers", "load") if key in request}
        member.profile = check_profile({**member.profile, **changes})
        member.heard_ms = now_ms
        member.handed_out.clear()
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

    def least_loaded(self, exclude: Iterable[int] = ()) -> dict[str, Any] | None:
        """Returns the receiver with the fewest senders, those just sent to it included. Equal ones take turns."""
        excluded = set(exclude)
        choices = [
            (
                self._load_of(member, index, receiver),
                member.given_at.get(index, 0),
                member.member_id,
                index,
                member,
                receiver,
            )
            for member in self._members.values()
            if member.member_id not in excluded
            for index, receiver in enumerate(member.profile["receivers"])
        ]
        if not choices:
            return None
        *_, index, member, receiver = min(choices, key=lambda choice: choice[:4])
        self._turn += 1
        member.handed_out[index] = member.handed_out.get(index, 0) + 1
        member.given_at[index] = self._turn
        return {
            "host": receiver["host"],
            "port": receiver["port"],
            "member": member.name,
            "member_id": member.member_id,
        }

    @staticmethod
    def _load_of(member: Member, index: int, receiver: dict[str, Any]) -> int:
        return int(receiver.get("load", member.profile["load"])) + member.handed_out.get(index, 0)

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
        "member_id": _number(value, "member_id", 0, 2**32 - 1),
        "host": _host(value),
        "port": _number(value, "port", 0, 65535),
        "pid": _number(value, "pid", 0, 2**31 - 1),
        "load": _number(value, "load", 0, 2**31 - 1),
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
            checked["load"] = _number(receiver, "load", 0, 2**31 - 1)
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


def check_receiver(value: Any) -> dict[str, Any]:
    """Returns a receiver, as `MemberTable.least_loaded` gave it."""
    if not isinstance(value, dict):
        raise ProtocolError(f"a receiver is a map, not {quoted(value)}")
    return {
        "host": _host(value),
        "port": _number(value, "port", 1, 65535),
        "member": check_name(value.get("member"), "a receiver's member", ProtocolError),
        "member_id": _number(value, "member_id", 0, 2**32 - 1),
    }


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
