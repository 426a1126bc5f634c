"""Owns the classes that users derive their callbacks from: filters, conflict resolvers and listeners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pywan.events import AsyncEvent, EntryEvent, GatewayQueueEvent, TimestampedEntryEvent


class GatewayEventFilter:
    """Decides which events a gateway sender queues and sends.

    The filters of a sender are called in the order in which they were given. If one of them returns False, the later
    ones are not asked. If a method raises, the error is logged, and the event is treated as if the method had returned
    True.
    """

    def before_enqueue(self, event: GatewayQueueEvent) -> bool:
        """Decides whether an event enters the queue. It is called under the region's callback lock, so it must be
        quick.

        Args:
            event: The event.

        Returns:
            False keeps the event out of the queue.
        """
        return True

    def before_transmit(self, event: GatewayQueueEvent) -> bool:
        """Decides whether a queued event is sent.

        Args:
            event: The event.

        Returns:
            False takes the event out of its batch, and out of the queue, without sending it.
        """
        return True

    def after_acknowledgement(self, event: GatewayQueueEvent) -> None:
        """Called after the remote site has applied the event, on each member of the site that holds the event. With
        the sender's attribute `acknowledge_once`: only on the member that sent it.

        Args:
            event: The event.
        """


class GatewayEventSubstitutionFilter:
    """Replaces the value that a gateway sender sends. The region keeps its own value."""

    def get_substitute_value(self, event: GatewayQueueEvent) -> Any:
        """Returns the value to send instead of the region's value.

        If it raises, or the value cannot be encoded, the error is logged, and the event does not leave the site: the
        sender's attribute `substitution_on_error` says whether it is parked ("park", the default) or dropped. With
        "send" the region's value is sent.

        Args:
            event: The event, with the region's value.
        """
        return event.value


class GatewayConflictHelper:
    """The ways in which a conflict resolver can decide about an event.

    Attributes:
        is_disallowed: Whether the event was refused.
        is_changed: Whether another value was given.
        value: That value.
    """

    def __init__(self) -> None:
        self.is_disallowed = False
        self.is_changed = False
        self.value: Any = None

    def disallow_event(self) -> None:
        """Refuses the event: the entry stays as it is."""
        self.is_disallowed = True

    def change_event_value(self, value: Any) -> None:
        """Applies the event with another value.

        Args:
            value: The value that the entry gets.
        """
        self.is_changed = True
        self.value = value


class GatewayConflictResolver:
    """Decides when an event of one site meets an entry that another site changed last.

    It must decide the same at every site, or the sites will differ.
    """

    def on_event(self, event: TimestampedEntryEvent, helper: GatewayConflictHelper) -> None:
        """Decides about one event. A resolver that does nothing allows the event, whatever its timestamp is.

        Args:
            event: The entry, its version and the proposed change.
            helper: Its methods refuse the event, or change its value.
        """


class CacheListener:
    """Is told of each change after it took effect on this member.

    If a method raises, the error is logged, and the change stays. The methods are looked up once, when the listener is
    added. An event may be kept after the method has returned.
    """

    def after_create(self, event: EntryEvent) -> None:
        """Called after a key was created."""

    def after_update(self, event: EntryEvent) -> None:
        """Called after a key got another value."""

    def after_destroy(self, event: EntryEvent) -> None:
        """Called after a key was destroyed."""

    def after_events(self, events: Sequence[EntryEvent]) -> None:
        """Called after some changes, instead of the other methods. A listener that defines this method has less work
        with many events: one call gets up to 1000 changes of a batch from another site, or of `put_columns`. A single
        put is a list of one event, and so is a change of a region that several members hold.

        The later changes of the list are made when the method is called: a read of the region shows them.

        Args:
            events: The events, the oldest first: creates, updates and destroys.
        """


class AsyncEventListener:
    """Gets the events of an asynchronous event queue. A listener need not derive from it."""

    def process_events(self, events: Sequence[AsyncEvent]) -> bool:
        """Processes a batch of events. It may be `async`.

        Args:
            events: The events, the oldest first. Those of one key come in order.

        Returns:
            Whether the events are done. After anything that is not true, or an exception, the same events come again,
                marked as possible duplicates.
        """
        return True

    def close(self) -> None:
        """Called once, when the queue is closed or destroyed: no more events come."""
