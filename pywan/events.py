"""Owns the events that users' code gets: views of one change, which decode a key or value only when it is read."""

from __future__ import annotations

from typing import Any, NamedTuple

from pywan import _core
from pywan.base.faces import Face

AsyncEvent = _core.AsyncEvent  # An event that an asynchronous event queue hands to its listener.
EntryEvent = _core.EntryEvent  # An event that a `CacheListener` gets after a change.
OPERATIONS = ("create", "update", "destroy")


class EventSequenceID(NamedTuple):
    """The identity of an event. It is the same at every site.

    Attributes:
        member_id: The number of the member's run that made the event. For a row of a Spark task, it is a number of the
            run of the job.
        thread_id: The number of the thread, or of the Spark task.
        sequence_id: The number of the event in that thread or task.
    """

    member_id: int
    thread_id: int
    sequence_id: int


class GatewayQueueEvent(Face):
    """An event on its way through a gateway sender's queue. Filters get it.

    Attributes:
        region: The region's name.
        operation: "create", "update" or "destroy".
        creation_timestamp: Milliseconds since 1970, by the clock of the site that made the event.
        origin_site: The id of the site that made the event.
        possible_duplicate: Whether the remote site may have applied the event before.
        event_id: The event's identity, an `EventSequenceID`.
    """

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
        self.operation = operation
        self.creation_timestamp = creation_timestamp
        self.origin_site = origin_site
        self.possible_duplicate = possible_duplicate
        self.event_id = event_id
        self._key, self._value, self._argument = key, value, callback_argument

    @property
    def key(self) -> Any:
        """The key."""
        return _plain(self._key)

    @property
    def value(self) -> Any:
        """The new value. None for a destroy."""
        return _plain(self._value)

    @property
    def callback_argument(self) -> Any:
        """The object that the caller gave with the change. None: it gave none."""
        return _plain(self._argument)

    def __repr__(self) -> str:
        return f"<{self.operation} of {self.key!r:.80} in {self.region}>"


def event_of_record(record: bytes, possible_duplicate: bool = False) -> GatewayQueueEvent:
    """Returns the event that a record in wire form holds. Its key, value and callback argument are decoded when they
    are read."""
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


class TimestampedEntryEvent(NamedTuple):
    """What a `GatewayConflictResolver` decides about: an entry and its version, and the change that another site
    proposes.

    Attributes:
        region: The `Region`.
        operation: The proposed operation: "create", "update" or "destroy".
        key: The key.
        old_value: The value of the entry now.
        new_value: The proposed value.
        old_timestamp: The time of the entry's version, in milliseconds since 1970.
        new_timestamp: The time of the proposed change, in milliseconds since 1970.
        old_distributed_system_id: The id of the site that made the entry's version.
        new_distributed_system_id: The id of the site that made the proposed change.
        callback_argument: The object that the caller gave with the proposed change.
        event_id: The identity of the proposed change.
    """

    region: Any
    operation: str
    key: Any
    old_value: Any
    new_value: Any
    old_timestamp: int
    new_timestamp: int
    old_distributed_system_id: int
    new_distributed_system_id: int
    callback_argument: Any
    event_id: EventSequenceID
