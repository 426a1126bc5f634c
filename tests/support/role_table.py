"""Owns what each identity may do at the ports of a site with a security manager. docs/security.md shows it, and
test_roles.py tries each of it over the wire.

It is written by hand, and does not look at pywan/security/operations.py: what that lets in by mistake is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SEE, CHANGE, STOP = "see", "change", "stop"

# The words of each thing that an identity may do or not, by the column of the table in which it is.
THINGS: Mapping[str, tuple[str, str]] = {
    "look": (SEE, "members, regions, queues, sites, the cluster configuration"),
    "read orders": (SEE, "entries of its region"),
    "read stock": (SEE, "entries of all regions, parked events"),
    "meet": (CHANGE, "which locators other sites have"),
    "write orders": (CHANGE, "entries of its region: commands, rows, events as a sender"),
    "write stock": (CHANGE, "entries of all regions: commands, rows, events as a sender"),
    "regions": (CHANGE, "regions"),
    "manage": (CHANGE, "senders, receivers, queues, disk stores, the cluster configuration, places of buckets"),
    "join": (CHANGE, "joins as a member or locator of the site"),
    "stop": (STOP, "queues, senders, receivers, members, locators, the site"),
    # Nobody may speak as a member that is there: the opening is asked back.
    "speak": (STOP, "speaks as a member that is there"),
}
ALL = frozenset(THINGS) - {"speak"}


class Identity(NamedTuple):
    """`shown`: as the table in the document shows it. `learns`: what may be in an answer. `more`: what it can learn
    beyond answers, in words."""

    shown: str
    may: frozenset[str]
    learns: frozenset[str]
    more: str = ""


# What answers can tell: "names" of members and regions, and entries.
LEARNT: Mapping[str, str] = {
    "names": "names, addresses, settings",
    "entries of orders": "entries of its region",
    "entries of stock": "entries of all regions",
}
EVERYTHING = frozenset(LEARNT)

IDENTITIES: Mapping[str, Identity] = {
    "stranger": Identity("stranger", frozenset(), frozenset(), "that a port of pywan is there"),
    "certificate": Identity("certificate of which no user has the name", frozenset(), frozenset(), "the same"),
    "site": Identity("role `site`", frozenset({"look", "meet"}), frozenset({"names"})),
    "gateway": Identity(
        "role `gateway`",
        frozenset({"write orders", "write stock"}),
        frozenset({"names"}),
        "whether a key is there",
    ),
    "client": Identity(
        "a role with `DATA:READ` and `DATA:WRITE` of one region",
        frozenset({"read orders", "write orders"}),
        frozenset({"entries of orders"}),
    ),
    "operator": Identity(
        "role `operator`",
        frozenset({"look", "meet", "regions", "manage", "join", "stop"}),
        frozenset({"names"}),
        "all entries, as a member that it joins as, or by a sender that it makes",
    ),
    "member": Identity("role `member`", ALL, EVERYTHING),
    "administrator": Identity("role `admin`", ALL, EVERYTHING),
}


def words(identity: Identity) -> tuple[str, ...]:
    """A row of the table in the document."""
    cells = []
    for column in (SEE, CHANGE, STOP):
        may = {name for name in identity.may if THINGS[name][0] == column}
        may -= {name.replace("stock", "orders") for name in may if "stock" in name}
        cells.append("; ".join(THINGS[name][1] for name in THINGS if name in may) or "nothing")
    learns = set(identity.learns) - ({"entries of orders"} if "entries of stock" in identity.learns else set())
    told = [text for name, text in LEARNT.items() if name in learns]
    return identity.shown, *cells, "; ".join([*told, *([identity.more] if identity.more else [])])
