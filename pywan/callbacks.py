"""Owns the classes that user code derives from: filters, the conflict resolver, listeners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pywan.events import EntryEvent, GatewayQueueEvent, TimestampedEntryEvent


class GatewayEventFilter:
    """Callbacks of a gateway sender, called in the order in which its filters were given."""

    def before_enqueue(self, event: GatewayQueueEvent) -> bool:
        """False keeps the event out of the queue. Called under the region's callback lock; be quick."""
        return True

    def before_transmit(self, event: GatewayQueueEvent) -> bool:
        """False takes the event out of its batch; it is then removed from the queue without being sent."""
        return True

    def after_acknowledgement(self, event: GatewayQueueEvent) -> None:
        """The remote site has applied the event."""


class GatewayEventSubstitutionFilter:
    """Sends another value than the region's."""

    def get_substitute_value(self, event: GatewayQueueEvent) -> Any:
        """The value to send. If it raises, the original value is sent."""
        return event.value


class GatewayConflictHelper:
    """What a conflict resolver may do about an event."""

    def __init__(self) -> None:
        self.is_disallowed = False
        self.is_changed = False
        self.value: Any = None

    def disallow_event(self) -> None:
        """Refuse the event: the entry stays as it is."""
        self.is_disallowed = True

    def change_event_value(self, value: Any) -> None:
        """Apply the event with another value."""
        self.is_changed = True
        self.value = value


class GatewayConflictResolver:
    """Asked when an event of one site meets an entry last changed by another. Must decide the same in every site."""

    def on_event(self, event: TimestampedEntryEvent, helper: GatewayConflictHelper) -> None:
        """Do nothing to allow the event, whatever its timestamp; or call one of the helper's methods."""


class CacheListener:
    """Told after a change took effect on this member. What it raises is logged and changes nothing."""

    def after_create(self, event: EntryEvent) -> None: ...

    def after_update(self, event: EntryEvent) -> None: ...

    def after_destroy(self, event: EntryEvent) -> None: ...


class AsyncEventListener:
    """Consumer of an asynchronous event queue."""

    def process_events(self, events: Sequence[GatewayQueueEvent]) -> bool:
        """True: done with them. False, or raising: the same events come again."""
        return True
