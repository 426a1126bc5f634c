"""Owns what the parts of a simulated site ask about keys, buckets and tables."""

from __future__ import annotations

from collections.abc import Iterable

from pywan import _core
from pywan.coordination.tables import Bucket, BucketKey

from .member import Member, SimulatedRegion
from .simulation import Node


def contents(region: SimulatedRegion, bucket: int) -> tuple[int, int, int]:
    """How many entries a member holds of a bucket, how many tombstones, and what is in the entries."""
    found = region.bucket(bucket)
    return found["entries"], found["tombstones"], region.bucket_digest(bucket)


class Keys:
    """The keys that are called, and the buckets of each region. Each bucket has some of them."""

    def __init__(self, buckets: int, names: Iterable[str]) -> None:
        self.buckets, self.names = buckets, tuple(names)

    def bucket_of(self, of: str) -> int:
        return ((_core.key_hash(of) >> 32) * self.buckets) >> 32

    def of(self, key: BucketKey) -> list[str]:
        """The keys that lie in a bucket."""
        return [of for of in self.names if self.bucket_of(of) == key.number]

    def buckets_of(self, key: BucketKey) -> list[BucketKey]:
        """The bucket, or all of them where the key stands for the region as a whole."""
        return [BucketKey(key.region, number) for number in range(self.buckets)] if key.number < 0 else [key]


def shown(bucket: Bucket) -> str:
    names = {
        "in sync": bucket.isr,
        "leaving": bucket.leaving,
        "learners": bucket.learning,
        "queues alone": bucket.queue_only,
    }
    told = ", ".join(f"{name} {'+'.join(map(str, some))}" for name, some in names.items() if some)
    return f"epoch {bucket.epoch} version {bucket.version} timeline {bucket.timeline} primary {bucket.primary}, {told}"


def changelog_of(node: Node | None, key: BucketKey) -> _core.Changelog | None:
    if not isinstance(node, Member) or node.is_dead or key.region not in node.regions:
        return None
    return node.regions[key.region].changelog


def number_in(value: object) -> int | None:
    """The number in a value that a region has. None: there is no value."""
    return None if value is None else int(str(value))
