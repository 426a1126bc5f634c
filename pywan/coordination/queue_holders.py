"""Owns which members hold the queued events of buckets of which they have no copy: those that run a serial sender of
the region (docs/decisions/0095)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.tables import Bucket, BucketKey, Incarnation, Learner


class QueueHolders:
    """A part of the coordinator, which tells it of all that happens.

    A member comes into the set of a bucket as a learner, as a copy does. One that is to hold nothing any more leaves
    the set as a copy does. So the primary waits for it whenever the site counts on it.
    """

    def __init__(
        self, site: Decisions, liveness: Liveness, reports: Reports, candidates: Candidates, recovery: Recovery
    ) -> None:
        self._site, self._liveness, self._reports = site, liveness, reports
        self._candidates, self._recovery = candidates, recovery
        # Members that were lost a moment ago, by region: when they are named again.
        self._again_us: dict[tuple[str, Incarnation], int] = {}
        self._put_off: set[str] = set()  # Regions in which a member takes as many images as it can.

    def lost(self, region: str, member: Incarnation, now_us: int) -> None:
        """The member was taken out of the set of a bucket. If it is there, it comes in again soon."""
        if self._candidates.is_usable(member):
            self._again_us[region, member] = now_us + self._liveness.member_timeout_us

    def tick(self, now_us: int) -> None:
        for (region, member), due_us in list(self._again_us.items()):
            if due_us <= now_us:
                del self._again_us[region, member]
                self._site.look_at_queues(region)

    def times_us(self) -> Collection[int]:
        """When something is due."""
        return self._again_us.values()

    def settle(self) -> None:
        """Names the members that are to hold queued events and do not, and takes out those that are not to any more."""
        while keys := self._site.take_queues_to_see():
            regions = {key.region for key in keys}
            keys.update(key for region in regions & self._put_off for key in self._site.of_region[region])
            self._put_off -= regions
            holding = {region: self._candidates.queueing(region) for region in regions}
            running = {region: self._candidates.running(region) for region in regions}
            for key in sorted(keys):
                self._settle(key, holding[key.region], running[key.region])

    def _settle(self, key: BucketKey, holding: set[Incarnation], running: set[Incarnation]) -> None:
        bucket = self._site.buckets.get(key)
        if bucket is None or bucket.primary is None or key in self._reports.undecided:
            return
        after = self._without(bucket, {*bucket.queue_only} - running)
        for member in sorted(holding - bucket.named):
            if (key.region, member) in self._again_us:
                continue
            if self._recovery.images_left(key.region, member) <= 0:
                self._put_off.add(key.region)
                continue
            fresh = Learner(member, self._site.number + 1)
            after = replace(after, learners=(*after.learners, fresh), queue_only=(*after.queue_only, member))
        if after != bucket:
            self._site.set_bucket(key, after)

    @staticmethod
    def _without(bucket: Bucket, gone: set[Incarnation]) -> Bucket:
        """The bucket without these, which hold its queued events alone. Its primary waits for them until everybody who
        stays has stored that."""
        leave = tuple(each for each in bucket.in_sync if each in gone)
        learners = tuple(each for each in bucket.learners if each.member not in gone)
        return replace(
            bucket,
            in_sync=tuple(each for each in bucket.in_sync if each not in gone),
            leaving=bucket.leaving + leave,
            learners=learners,
            version=bucket.version + bool(leave),
        )
