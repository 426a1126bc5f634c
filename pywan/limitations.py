"""Owns what is not in this version: one table for all refusals and for docs/limitations.md."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

_VERSION = "in this version"
_MEMBERS = "a site of several members"
_SETTINGS = "settings and commands"
_GEODE = "features of Geode and of relays"


class _Row(NamedTuple):
    topic: str
    sentence: str  # Without `_VERSION`. Names in braces are values of a refusal.
    instead: str
    page: str  # The page of docs/ that says more, with its heading.
    because: str = ""
    shown: Mapping[str, str] = {}  # The values that the documents show.


class Limitation(Enum):
    """Something that is not in this version. A new one is a row here and the place that refuses by it."""

    ONE_MEMBER = _Row(
        _MEMBERS,
        "a region that is persistent, has a persistent gateway sender or an asynchronous event queue, or belongs to a"
        " member with a conflict resolver, is on one member only",
        "create it on one member only",
        "operations.md#a-region-on-several-members",
    )
    NO_QUEUE_OF_A_MEMBER = _Row(
        _MEMBERS,
        "events of a region on several members enter no persistent gateway sender and no asynchronous queue",
        "destroy the region and create it with them on one member, or take a sender without persistence",
        "operations.md#senders-on-several-members",
    )
    NO_ROWS_OF_CLIENTS = _Row(
        _MEMBERS,
        "a region on several members takes no rows of clients or of tasks of Spark",
        "put them through a region of one member, or with put_all at a member",
        "spark.md#what-the-end-of-a-task-promises",
    )
    NO_REPAIR_OF_STAMPS = _Row(
        _MEMBERS,
        "the stamps of a region on several members are not repaired",
        "restart the member whose clock was ahead: the others have its entries, which keep their stamps, and later puts"
        " win over them",
        "operations.md#stamps-that-are-ahead",
    )
    GROUPS = _Row(
        _SETTINGS,
        "members have no groups",
        "{instead}",
        "cli.md#processes",
        shown={"instead": "name members with --member"},
    )
    WITHOUT_EFFECT = _Row(
        _SETTINGS,
        "{attribute} has no effect",
        "leave it out",
        "configuration.md#disk-store",
        "{why}",
        {
            "attribute": "an attribute of Geode's that pywan does not need",
            "why": "the page names each, with the reason",
        },
    )
    OVERFLOW = _Row(
        _SETTINGS,
        "{type} is not",
        "take {instead}",
        "configuration.md#region",
        "entries stay in memory and are not evicted",
        {"type": "a region type with `_OVERFLOW` or `_HEAP_LRU`", "instead": "the type without it"},
    )
    PRELOADED = _Row(
        _SETTINGS,
        "data-policy 'preloaded' is not",
        "take normal or replicate",
        "configuration.md#cachexml",
        "a region that begins with the entries of other members is a replica and stays one",
    )
    GLOBAL_SCOPE = _Row(
        _SETTINGS,
        "scope 'global' is not",
        "take distributed-ack",
        "configuration.md#cachexml",
        "there are no locks that members share",
    )
    GROUPED_TRANSACTIONS = _Row(
        _SETTINGS,
        "group_transaction_events has no effect",
        "set it to false, or leave it out",
        "configuration.md#gateway-sender",
        "there are no transactions",
    )
    EXPIRATION = _Row(_GEODE, "entries do not expire", "destroy them in a program", "coming-from-redis.md")
    TRANSACTIONS = _Row(
        _GEODE,
        "there are no transactions",
        "take the conditional changes of one key, put_if_absent and replace",
        "coming-from-geode.md#what-is-not-there",
    )
    TRANSPORT_FILTERS = _Row(
        _GEODE,
        "there are no transport filters",
        "encrypt connections with ssl-enabled-components",
        "coming-from-geode.md#what-is-not-there",
    )
    PDX = _Row(_GEODE, "there is no PDX", "take register_serializer", "coming-from-geode.md#what-is-not-there")
    COPYING_A_REGION = _Row(
        _GEODE,
        "no command copies a region to another site",
        "put its entries again, with the sender attached",
        "coming-from-geode.md#what-is-not-there",
    )
    DETAILS_OF_EVENTS = _Row(
        _GEODE,
        "events have neither the old value nor the kind of their call",
        "keep the old values in the listener",
        "coming-from-geode.md#what-is-not-there",
    )
    QUEUES_OF_CLIENTS = _Row(
        _GEODE,
        "there are no queues of clients",
        "take a cache listener or an asynchronous event queue in a member",
        "conformance/client-queues.md",
    )
    RELAY = _Row(
        _GEODE,
        "messages between groups are not relayed",
        "put the content into a region with gateway senders",
        "conformance/relay.md",
    )

    @property
    def topic(self) -> str:
        """The heading of docs/limitations.md."""
        return self.value.topic

    @property
    def page(self) -> str:
        return self.value.page

    @property
    def shown(self) -> Mapping[str, str]:
        return self.value.shown

    def sentence(self, **values: str) -> str:
        """Returns what is not in this version, without a remedy."""
        because = f": {self.value.because.format(**values)}" if self.value.because else ""
        return f"{self.value.sentence.format(**values)} {_VERSION}{because}"

    def instead(self, **values: str) -> str:
        """Returns what users do instead."""
        return self.value.instead.format(**values)

    def refusal(self, *, outcome: str = "", **values: str) -> str:
        """Returns what is not in this version, the outcome of the refused action, and the remedy."""
        return "; ".join(filter(None, (self.sentence(**values), outcome, self.instead(**values))))
