"""Owns the choice of members for copies and primaries of buckets: the same state gives the same choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pywan.coordination.tables import Bucket, Incarnation


class Load:
    """How many copies and primaries of one region each member has. It is kept up to date by its owner."""

    def __init__(self, buckets: Iterable[Bucket] = ()) -> None:
        self.copies: Counter[Incarnation] = Counter()
        self.primaries: Counter[Incarnation] = Counter()
        self.learning: Counter[Incarnation] = Counter()
        for bucket in buckets:
            self.add(bucket)

    def add(self, bucket: Bucket) -> None:
        self._count(bucket, 1)

    def remove(self, bucket: Bucket) -> None:
        self._count(bucket, -1)

    def _count(self, bucket: Bucket, by: int) -> None:
        for holder in bucket.holders:
            self.copies[holder] += by
        for learner in bucket.learning:
            self.learning[learner] += by
        if bucket.primary is not None:
            self.primaries[bucket.primary] += by


def choose_copies(load: Load, weights: Mapping[Incarnation, int], count: int) -> list[Incarnation]:
    """The `count` members of `weights` (local-max-memory in MB) that are filled least after they take one copy more."""

    def filled(member: Incarnation) -> tuple[float, Incarnation]:
        return (load.copies[member] + 1) / weights[member], member

    return sorted(weights, key=filled)[:count]


def choose_to_drop(load: Load, copies: Iterable[Incarnation], beside: Counter[Incarnation]) -> Incarnation:
    """The one of `copies` (at least one) that has the fewest copies of colocated buckets (`beside`); of those, the one
    with the most copies of the region."""
    return max(copies, key=lambda member: (-beside[member], load.copies[member], member))


def choose_primary(load: Load, copies: Iterable[Incarnation]) -> Incarnation:
    """The one of `copies` (at least one) that is primary of the fewest buckets of the region."""
    return min(copies, key=lambda member: (load.primaries[member], load.copies[member], member))
