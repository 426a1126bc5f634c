"""Owns the events that users' code gets: views of one change, which decode a key or value only when it is read."""

from __future__ import annotations

from typing import Any, NamedTuple

from pywan import _core

GatewayQueueEvent = _core.GatewayQueueEvent  # An event on its way through a gateway sender's queue. Filters get it.
AsyncEvent = _core.AsyncEvent  # An event that an asynchronous event queue hands to its listener.
EntryEvent = _core.EntryEvent  # An event that a `CacheListener` gets after a change.
OPERATIONS = _core.OPERATIONS


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
