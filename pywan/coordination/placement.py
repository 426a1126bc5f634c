"""Owns the choice of members for copies and primaries of buckets: the same state gives the same choice."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from pywan.coordination.tables import Bucket, BucketKey, Incarnation


class Load:
    """How many copies and primaries of one region each member has. It is kept up to date by its owner."""

    def __init__(self) -> None:
        self.copies: Counter[Incarnation] = Counter()  # Those included that are being made.
        self.primaries: Counter[Incarnation] = Counter()
        self.learning: Counter[Incarnation] = Counter()
        self.named: Counter[Incarnation] = Counter()  # Buckets that may depend on the member in any way.
        self.learners = 0  # Of all buckets.
        self.led = 0  # Buckets with a primary.
        self.whole: Counter[int] = Counter()  # By number of copies in sync: buckets that have so many.
        # By number of copies, those included that are being made: the buckets that have so many.
        self.by_holders: defaultdict[int, dict[BucketKey, None]] = defaultdict(dict)

    def add(self, key: BucketKey, bucket: Bucket) -> None:
        self._count(bucket, 1)
        self.by_holders[len(bucket.copies_to_be)][key] = None

    def remove(self, key: BucketKey, bucket: Bucket) -> None:
        self._count(bucket, -1)
        del self.by_holders[len(bucket.copies_to_be)][key]

    def _count(self, bucket: Bucket, by: int) -> None:
        for copy in bucket.copies_to_be:
            add_to(self.copies, copy, by)
        for learner in bucket.learning:
            add_to(self.learning, learner, by)
            self.learners += by
        for member in bucket.named:
            add_to(self.named, member, by)
        self.whole[len(bucket.copies)] += by
        if bucket.primary is not None:
            add_to(self.primaries, bucket.primary, by)
            self.led += by

    def missing(self, wanted: int) -> int:
        """How many copies in sync the buckets lack, of which each is to have `wanted`."""
        return sum((wanted - copies) * buckets for copies, buckets in self.whole.items() if copies < wanted)


def add_to(counts: Counter[Incarnation], member: Incarnation, by: int) -> None:
    """Counts for a member. Members come and go for years, so nobody is kept with a count of 0."""
    counts[member] += by
    if not counts[member]:
        del counts[member]


def choose_copies(load: Load, weights: Mapping[Incarnation, int], count: int) -> list[Incarnation]:
    """The `count` members of `weights` (local-max-memory in MB) that are filled least after they take one copy more."""

    def filled(member: Incarnation) -> tuple[float, Incarnation]:
        return (load.copies[member] + 1) / weights[member], member

    return heapq.nsmallest(count, weights, key=filled)


def choose_to_drop(load: Load, copies: Iterable[Incarnation], beside: Counter[Incarnation]) -> Incarnation:
    """The one of `copies` (at least one) that has the fewest copies of colocated buckets (`beside`); of those, the one
    with the most copies of the region."""
    return max(copies, key=lambda member: (-beside[member], load.copies[member], member))


def choose_primary(load: Load, copies: Iterable[Incarnation]) -> Incarnation:
    """The one of `copies` (at least one) that is primary of the fewest buckets of the region."""
    return min(copies, key=lambda member: (load.primaries[member], load.copies[member], member))
