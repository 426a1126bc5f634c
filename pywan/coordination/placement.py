"""Chooses members for replicas and primaries of buckets: the same state gives the same choice."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from pywan.coordination.tables import Bucket, BucketKey, Incarnation


class Load:
    """How many replicas and primaries of a region each member has. The owner reports every change of a bucket."""

    def __init__(self) -> None:
        self.replicas: Counter[Incarnation] = Counter()  # Learners included.
        self.primaries: Counter[Incarnation] = Counter()
        self.learning: Counter[Incarnation] = Counter()
        self.named: Counter[Incarnation] = Counter()  # Buckets that may depend on the member in any way.
        self.learners = 0  # In all buckets.
        self.led = 0  # Buckets with a primary.
        self.whole: Counter[int] = Counter()  # By number of in-sync replicas: buckets that have so many.
        # By number of replicas, learners included: the buckets with this number.
        self.by_holders: defaultdict[int, dict[BucketKey, None]] = defaultdict(dict)

    def add(self, key: BucketKey, bucket: Bucket) -> None:
        self._count(bucket, 1)
        self.by_holders[len(bucket.replicas_to_be)][key] = None

    def remove(self, key: BucketKey, bucket: Bucket) -> None:
        self._count(bucket, -1)
        del self.by_holders[len(bucket.replicas_to_be)][key]

    def _count(self, bucket: Bucket, by: int) -> None:
        for replica in bucket.replicas_to_be:
            add_to(self.replicas, replica, by)
        for learner in bucket.learning:
            add_to(self.learning, learner, by)
            self.learners += by
        for member in bucket.named:
            add_to(self.named, member, by)
        self.whole[len(bucket.replicas)] += by
        if bucket.primary is not None:
            add_to(self.primaries, bucket.primary, by)
            self.led += by

    def missing(self, wanted: int) -> int:
        """Returns the number of missing in-sync replicas, if each bucket is to have `wanted`."""
        return sum((wanted - replicas) * buckets for replicas, buckets in self.whole.items() if replicas < wanted)


def add_to(counts: Counter[Incarnation], member: Incarnation, by: int) -> None:
    """Adds `by` to a member's count. Members join and depart for years, so a count of 0 is deleted."""
    counts[member] += by
    if not counts[member]:
        del counts[member]


def choose_replicas(load: Load, weights: Mapping[Incarnation, int], count: int) -> list[Incarnation]:
    """Returns the `count` members of `weights` (local-max-memory in MB) that are least filled after a further
    replica."""

    def filled(member: Incarnation) -> tuple[float, Incarnation]:
        return (load.replicas[member] + 1) / weights[member], member

    return heapq.nsmallest(count, weights, key=filled)


def choose_to_drop(load: Load, replicas: Iterable[Incarnation], beside: Counter[Incarnation]) -> Incarnation:
    """Returns the member of `replicas` (at least one) with the fewest replicas of colocated buckets (`beside`); if
    several have the fewest, the member with the most replicas of the region."""
    return max(replicas, key=lambda member: (-beside[member], load.replicas[member], member))


def choose_primary(load: Load, replicas: Iterable[Incarnation]) -> Incarnation:
    """Returns the member of `replicas` (at least one) that is primary of the fewest buckets of the region."""
    return min(replicas, key=lambda member: (load.primaries[member], load.replicas[member], member))
