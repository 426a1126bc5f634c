"""Owns batches as sinks get them, made by hand: with any queue, life, partition and sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Event:
    key: Any
    value: Any = None
    operation: str = "update"
    region: str = "orders"
    partition: int = 0
    sequence: int = 0
    possible_duplicate: bool = False


class Batch(list[Event]):
    """The events of a queue; those without a sequence get the next ones."""

    def __init__(self, *events: Event, first: int = 1, queue: str = "to-table", numbering: int = 0xABC) -> None:
        super().__init__(events)
        self.queue, self.numbering = queue, numbering
        for sequence, event in enumerate(self, first):
            event.sequence = event.sequence or sequence

    def again(self) -> Batch:
        """The same events, which come a second time."""
        for event in self:
            event.possible_duplicate = True
        return self

    def one(self, place: int) -> Batch:
        return Batch(self[place], queue=self.queue, numbering=self.numbering)


def put(key: Any, value: Any, **more: Any) -> Event:
    return Event(key, value, **more)


def destroy(key: Any, **more: Any) -> Event:
    return Event(key, None, "destroy", **more)
