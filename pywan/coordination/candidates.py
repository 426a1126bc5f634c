"""The members that can take a replica of a bucket, and the places of colocated replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pywan.coordination.decisions import Decisions
from pywan.coordination.leavers import Leavers
from pywan.coordination.liveness import Liveness
from pywan.coordination.tables import ROLE_PREFIX, Bucket, BucketKey, Incarnation, RegionAttributes, is_role, is_serial


class Candidates:
    """A view without state of its own, over the state of the coordinator's parts."""

    def __init__(self, site: Decisions, liveness: Liveness, leavers: Leavers) -> None:
        self._site, self._liveness, self._leavers = site, liveness, leavers

    def is_usable(self, member: Incarnation) -> bool:
        return self._liveness.is_there(member) and self._leavers.takes_replicas(member)

    def storing(self, region: str) -> dict[Incarnation, int]:
        """Returns the members able to take replicas of the region, with their weights."""
        hosts = self._site.hosts(region)
        return {member: weight for member, weight in sorted(hosts.items()) if weight and self.is_usable(member)}

    def running(self, region: str) -> set[Incarnation]:
        """Returns the region's members that run a serial sender of the region."""
        attributes = self._site.regions.get(region)
        if attributes is None or is_role(region) or not attributes.senders:
            return set()
        roles = [f"{ROLE_PREFIX}{id}" for id in attributes.senders.split(",")]
        if not all(each in self._site.regions for each in roles):  # Too many senders to list their ids (`ids_of`).
            roles = list(filter(is_role, self._site.regions)) if "senders, " in attributes.senders else roles
        found: set[Incarnation] = set()
        for role in roles:
            told = self._site.regions.get(role)
            if told is not None and is_serial(told.senders):
                found.update(each for each, weight in self._site.hosts(role).items() if weight)
        return found & self._site.hosts(region).keys()

    def queueing(self, region: str) -> set[Incarnation]:
        """Returns the members of `running` that can take queued events."""
        return set(filter(self.is_usable, self.running(region)))

    def beside(
        self, key: BucketKey, attributes: RegionAttributes, *, learners: bool = False
    ) -> tuple[Incarnation, ...]:
        """Returns the replicas of the parent bucket, with which the bucket `key` is colocated, the primary first. ():
        the parent bucket does not exist, or has no primary.

        If `learners` is true, learners come last.
        """
        parent = attributes.colocated_with
        bucket = self._site.buckets.get(BucketKey(parent, key.number)) if parent in self._site.regions else None
        if bucket is None or bucket.primary is None:
            return ()
        replicas = bucket.replicas_to_be if learners else bucket.replicas
        return (bucket.primary, *(each for each in replicas if each != bucket.primary))

    def held_by(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """As `Decisions.held_by`, ordered so that a bucket comes after its parent in colocation."""
        return self._in_depth(self._site.held_by(member))

    def led_by(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """The buckets of which the member is the primary, in the order of `held_by`."""
        return self._in_depth([(key, bucket) for key, bucket in self._site.naming(member) if bucket.primary == member])

    def held_by_some(self, members: Iterable[Incarnation]) -> dict[BucketKey, list[Incarnation]]:
        """Returns the buckets of which a member has a replica, in the order of `held_by`, with the bucket's members."""
        found: dict[BucketKey, list[Incarnation]] = {}
        buckets: dict[BucketKey, Bucket] = {}
        for member in members:
            for key, bucket in self._site.held_by(member):
                found.setdefault(key, []).append(member)
                buckets[key] = bucket
        return {key: found[key] for key, _ in self._in_depth(buckets.items())}

    def _in_depth(self, buckets: Collection[tuple[BucketKey, Bucket]]) -> list[tuple[BucketKey, Bucket]]:
        depths: dict[str, int] = {}
        for key, _ in buckets:
            if key.region not in depths:
                depths[key.region] = self._depth(key.region)
        return sorted(buckets, key=lambda each: depths[each[0].region])

    def _depth(self, region: str) -> int:
        depth = 0
        attributes = self._site.regions.get(region)
        while attributes is not None and attributes.colocated_with and depth < len(self._site.regions):
            attributes, depth = self._site.regions.get(attributes.colocated_with), depth + 1
        return depth
