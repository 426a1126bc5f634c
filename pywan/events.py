"""Owns the events that user code sees: views of one change, decoded only where they are looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

from pywan import _core
from pywan.base.faces import Face

OPERATIONS = ("create", "update", "destroy")


class EventSequenceID(NamedTuple):
    """The identity of an event at its producer."""

    member_id: int
    thread_id: int
    sequence_id: int


class GatewayQueueEvent(Face):
    """An event on its way through a gateway sender's queue."""

    __slots__ = (
        "region",
        "operation",
        "creation_timestamp",
        "origin_site",
        "possible_duplicate",
        "event_id",
        "_key",
        "_value",
        "_argument",
    )

    def __init__(
        self,
        region: str,
        operation: str,
        key: Any,
        value: Any,
        callback_argument: Any,
        *,
        creation_timestamp: int,
        origin_site: int,
        possible_duplicate: bool,
        event_id: EventSequenceID,
    ) -> None:
        self.region = region
        self.operation = operation  # create, update or destroy
        # Milliseconds since 1970, by the clock of the site that made it.
        self.creation_timestamp = creation_timestamp
        self.origin_site = origin_site
        self.possible_duplicate = possible_duplicate  # It may have been applied at the remote site before.
        self.event_id = event_id
        self._key, self._value, self._argument = key, value, callback_argument

    @property
    def key(self) -> Any:
        return _plain(self._key)

    @property
    def value(self) -> Any:
        """The deserialized value; None for a destroy."""
        return _plain(self._value)

    @property
    def callback_argument(self) -> Any:
        return _plain(self._argument)

    def __repr__(self) -> str:
        return f"<{self.operation} of {self.key!r:.80} in {self.region}>"


def event_of_record(record: bytes, possible_duplicate: bool = False) -> GatewayQueueEvent:
    """The event that a record in wire form holds; key, value and callback argument are decoded when read."""
    f = _core.record_fields(record)
    return GatewayQueueEvent(
        _core.region_name(f["region"]) or "?",
        OPERATIONS[f["operation"]],
        _core.Encoded(*f["key"]),
        _core.Encoded(*f["value"]),
        _core.Encoded(*f["callback"]),
        creation_timestamp=f["stamp"] >> 16,
        origin_site=f["origin_site"],
        possible_duplicate=possible_duplicate,
        event_id=EventSequenceID(*f["event_id"]),
    )


def _plain(item: Any) -> Any:
    return item.plain if isinstance(item, _core.Encoded) else item


class EntryEvent(NamedTuple):
    """What a CacheListener is told, after the change."""

    region: Any
    operation: str
    key: Any
    old_value: Any
    new_value: Any
    callback_argument: Any
    is_origin_remote: bool
    origin_site: int
    event_id: EventSequenceID  # The same for filters and listeners, at every site.


class TimestampedEntryEvent(NamedTuple):
    """What a GatewayConflictResolver decides on: an entry's value and version, and the ones proposed by another
    site."""

    region: Any
    operation: str
    key: Any
    old_value: Any
    new_value: Any
    old_timestamp: int  # Milliseconds since 1970.
    new_timestamp: int
    old_distributed_system_id: int
    new_distributed_system_id: int
    callback_argument: Any
    event_id: EventSequenceID  # Of the proposed change.
