"""Owns the table of what each request of a control port needs. docs/security.md shows it; a test finds operations that
are not in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pywan.config.values import to_bool
from pywan.errors import ConfigurationError
from pywan.security.permissions import ANY, CLUSTER, DATA, MANAGE, READ, WRITE, Permission, key_text


def means_all(request: Mapping[str, Any]) -> bool:
    """Whether a request is of all keys of its region. The check and the handler both ask here. What is neither yes nor
    no needs all keys, and is refused later by name."""
    try:
        return to_bool(request.get("all", False), "all")
    except ConfigurationError:
        return True


class Needs(NamedTuple):
    """What an operation needs. `region` and `key` name the fields of the request that say of which; "": of all.
    `of_members`: members and locators of the site ask it of each other."""

    resource: str
    operation: str
    region: str = ""
    key: str = ""
    of_members: bool = False

    def of(self, request: Mapping[str, Any]) -> Permission:
        """Returns what this request needs. A field that is no name needs all, and is refused later by name."""
        region, key = request.get(self.region), None if means_all(request) else request.get(self.key)
        return Permission(
            self.resource,
            self.operation,
            region.lstrip("/") or ANY if isinstance(region, str) else ANY,
            key_text(key) if self.key and key is not None else ANY,
        )

    def __str__(self) -> str:
        parts = [self.resource, self.operation, *([f"({self.region})"] if self.region else [])]
        text = ":".join([*parts, *([f"({self.key})"] if self.key else [])])
        return f"{text}, of members" if self.of_members else text


LOOKS, MANAGES = Needs(CLUSTER, READ), Needs(CLUSTER, MANAGE)
_OF_MEMBERS = Needs(CLUSTER, MANAGE, of_members=True)

# At a member's control port.
MEMBER: Mapping[str, Needs] = {
    # Between members.
    "adopt-buckets": _OF_MEMBERS,
    "older-events": _OF_MEMBERS,
    "owns-opening": _OF_MEMBERS,
    "parked-events": _OF_MEMBERS,
    "ping": LOOKS,
    "flush-queue": _OF_MEMBERS,
    "has-decision": LOOKS,
    "queue-size": _OF_MEMBERS,
    # Entries.
    "get": Needs(DATA, READ, "region", "key"),
    "put": Needs(DATA, WRITE, "region", "key"),
    "query size": Needs(DATA, READ, "region"),
    "remove": Needs(DATA, WRITE, "region", "key"),
    "scan region": Needs(DATA, READ, "region"),
    "list parked-events": Needs(DATA, READ),
    # Regions.
    "alter region": Needs(DATA, MANAGE, "name"),
    "create region": Needs(DATA, MANAGE, "name"),
    "describe region": LOOKS,
    "destroy region": Needs(DATA, MANAGE, "name"),
    "list regions": LOOKS,
    # Disk stores.
    "create disk-store": MANAGES,
    "describe disk-store": LOOKS,
    "destroy disk-store": MANAGES,
    "list disk-stores": LOOKS,
    # Gateways and queues.
    "alter async-event-queue": MANAGES,
    "alter gateway-sender": MANAGES,
    "clean gateway-sender": MANAGES,
    "create async-event-queue": MANAGES,
    "create gateway-receiver": MANAGES,
    "create gateway-sender": MANAGES,
    "describe async-event-queue": LOOKS,
    "destroy async-event-queue": MANAGES,
    "destroy gateway-receiver": MANAGES,
    "destroy gateway-sender": MANAGES,
    "drop parked-events": MANAGES,
    "forget site": MANAGES,
    "list async-event-queues": LOOKS,
    "list gateways": LOOKS,
    "load-balance gateway-sender": MANAGES,
    "pause async-event-queue": MANAGES,
    "pause gateway-sender": MANAGES,
    "replay parked-events": MANAGES,
    "resume async-event-queue-dispatcher": MANAGES,
    "resume gateway-sender": MANAGES,
    "start gateway-receiver": MANAGES,
    "start gateway-sender": MANAGES,
    "status gateway-receiver": LOOKS,
    "status gateway-sender": LOOKS,
    "stop gateway-receiver": MANAGES,
    "stop gateway-sender": MANAGES,
    # The member.
    "apply configuration": MANAGES,
    "reload certificates": MANAGES,
    "repair clock": MANAGES,
    "status member": LOOKS,
    "stop member": MANAGES,
}

# At a locator's port.
LOCATOR: Mapping[str, Needs] = {
    "change-configuration": MANAGES,
    "cluster-configuration": LOOKS,
    "coordination-ask": _OF_MEMBERS,
    "coordination-end-site": MANAGES,
    "coordination-join": _OF_MEMBERS,
    "coordination-mirror": _OF_MEMBERS,
    "coordination-move-bucket": MANAGES,
    "coordination-poll": _OF_MEMBERS,
    "coordination-revoke": MANAGES,
    "coordination-show": LOOKS,
    "coordination-standby": _OF_MEMBERS,
    "coordination-who": LOOKS,
    "known-sites": LOOKS,
    "locator-join": LOOKS,  # Of a locator of the own site: _OWN_LOCATOR.
    "member-heartbeat": _OF_MEMBERS,
    "member-join": _OF_MEMBERS,
    "member-leave": _OF_MEMBERS,
    "members": LOOKS,
    "ping": LOOKS,
    "receiver": LOOKS,
    "receivers": LOOKS,
    "reload-certificates": MANAGES,
    "remote-locators": LOOKS,
    "servers": LOOKS,
    "status": LOOKS,
    "stop": MANAGES,
}
# A locator of the own site brings the cluster configuration, which this one takes over.
_OWN_LOCATOR = _OF_MEMBERS

# What openings of other protocols need.
# A sender of another site: its connection carries events of any region. A user who may write some regions is let in,
# and events of others are not applied.
GATEWAY = Permission(DATA, WRITE)
RECEIVER = Permission(DATA, READ)  # A receiver that proves itself to a sender: it gets the events of any region.


def rows_into(region: str) -> Permission:
    """Returns what a client needs that sends rows, and the user of a sender for events of that region."""
    return Permission(DATA, WRITE, region.lstrip("/") or ANY)


Needed = Callable[[Mapping[str, Any]], Permission]


def needed_at_member(request: Mapping[str, Any]) -> Permission:
    """Returns what a request to a member needs. An operation that is not there needs what lists those that are."""
    return MEMBER.get(str(request.get("op")), LOOKS).of(request)


def needed_at_locator(site: int) -> Needed:
    """Returns what tells what a request to a locator of that site needs."""
    return lambda request: _at_locator(request, site).of(request)


def for_members_at_member(request: Mapping[str, Any]) -> bool:
    """Returns whether members alone ask that of a member."""
    return MEMBER.get(str(request.get("op")), LOOKS).of_members


def for_members_at_locator(site: int) -> Callable[[Mapping[str, Any]], bool]:
    """Returns what tells whether members and locators of that site alone ask that of a locator."""
    return lambda request: _at_locator(request, site).of_members


def _at_locator(request: Mapping[str, Any], site: int) -> Needs:
    op, asker = str(request.get("op")), request.get("from")
    if op == "locator-join" and not (
        isinstance(asker, dict)
        and type(asker.get("distributed_system_id")) is int
        and asker["distributed_system_id"] != site
    ):
        return _OWN_LOCATOR
    return LOCATOR.get(op, LOOKS)


__all__ = [
    "GATEWAY",
    "LOCATOR",
    "MEMBER",
    "RECEIVER",
    "Needed",
    "Needs",
    "for_members_at_locator",
    "for_members_at_member",
    "means_all",
    "needed_at_locator",
    "needed_at_member",
    "rows_into",
]
