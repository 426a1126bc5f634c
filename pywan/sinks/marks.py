"""Owns the rule by which a sink tells what it has done from what it has not: marks, and what this process tried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pywan.errors import IllegalStateError


class Place(NamedTuple):
    """A row of events whose sequences grow: one partition of one queue, in one life of it.

    `life` is the queue's numbering. A persistent queue keeps it over restarts, and each other queue draws a new one
    when it is made, as its sequences begin anew. The partition is the bucket in a parallel queue, the dispatcher in a
    serial one.
    """

    queue: str
    region: str
    life: int
    partition: int


class Mark:
    """How far a sink is at one place.

    Everything up to `sequence` is done, except the events of `refused`: they failed, and the queue went on without
    them, as it parks them. If the member is killed before the queue has parked such an event, the event comes again.
    Then it is not taken for done. Example: events 1 to 5 are handed over one by one, and 3 fails. The mark is then 5,
    without 3.
    """

    __slots__ = ("refused", "sequence")

    def __init__(self, sequence: int = 0, refused: Iterable[int] = ()) -> None:
        self.sequence, self.refused = sequence, frozenset(refused)

    def has(self, sequence: int) -> bool:
        """Whether the event of that sequence is done."""
        return sequence <= self.sequence and sequence not in self.refused

    def beyond(self, done: list[int], left_out: Iterable[int]) -> Mark:
        """Returns the mark after the events `done` as well, of which the last is the newest, and without `left_out`."""
        sequence = max(self.sequence, done[-1])
        refused = (self.refused | {each for each in left_out if self.sequence < each < sequence}).difference(done)
        return Mark(sequence, refused)

    def is_later_than(self, other: Mark) -> bool:
        """Whether a sink got from the other mark of the same place to this one."""
        return (self.sequence, -len(self.refused)) > (other.sequence, -len(other.refused))

    def __repr__(self) -> str:
        return f"<up to {self.sequence}" + (f", without {sorted(self.refused)}>" if self.refused else ">")


class Attempts:
    """What this process tried at each place. A place is worked on by one thread at a time."""

    def __init__(self) -> None:
        self._last: dict[
            Place, int
        ] = {}  # The last sequence that was tried: it may be done, whatever the sink was told.
        self._failed: dict[Place, set[int]] = {}  # Events that were handed over alone, and failed.

    def check(self, place: Place, mark: Mark, sequence: int, possible_duplicate: bool, where: str) -> None:
        """Checks a mark that says that an event is done.

        An event that no process may have handed over before cannot be done. Then the queue gives sequences a second
        time: its disk store was put back to a copy, or is a copy, or lost its end with the power.

        Raises:
            IllegalStateError: The event is new.
        """
        if not possible_duplicate and sequence > self._last.get(place, 0):
            raise IllegalStateError(
                f"{where} says that event {sequence} of partition {place.partition} of queue {place.queue} is done, and"
                " the event is new: the disk store of the queue was restored from a copy, or is a copy, or has lost"
                f" its end. Remove what {where} has of life {place.life:016x} of this queue; what is queued is then"
                " done once more"
            )

    def begin(self, place: Place, last: int) -> None:
        """Notes that events up to `last` are tried."""
        self._last[place] = max(last, self._last.get(place, 0))

    def fail(self, place: Place, sequence: int) -> None:
        """Notes that an event failed that was handed over alone."""
        self._failed.setdefault(place, set()).add(sequence)

    def left_out(self, place: Place) -> frozenset[int]:
        """Returns the events that failed alone. If the queue goes on behind one of them, it parks it."""
        return frozenset(self._failed.get(place, ()))

    def settle(self, place: Place, mark: Mark) -> None:
        """Forgets the failed events that a mark covers, or names."""
        failed = self._failed.get(place)
        if failed is not None:
            failed.difference_update([each for each in failed if each <= mark.sequence])
            if not failed:
                del self._failed[place]
