"""Decides which members are queue-only replicas of a bucket: members with a serial sender of the region, and without a
replica of the bucket's entries (docs/decisions/0095)."""

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
    """A part of the coordinator. The coordinator reports every event to this object.

    A queue-only replica enters the in-sync replicas of a bucket as a learner, like a replica with entries. A member
    that runs no such sender any more leaves the in-sync replicas like any replica. So the primary waits for a
    queue-only replica as long as the site relies on its queue.
    """

    def __init__(
        self, site: Decisions, liveness: Liveness, reports: Reports, candidates: Candidates, recovery: Recovery
    ) -> None:
        self._site, self._liveness, self._reports = site, liveness, reports
        self._candidates, self._recovery = candidates, recovery
        # Recently removed members, by region: the time at which the member becomes a learner again.
        self._again_us: dict[tuple[str, Incarnation], int] = {}
        self._put_off: set[str] = set()  # Regions in which a member takes as many snapshots as allowed.

    def lost(self, region: str, member: Incarnation, now_us: int) -> None:
        """The member was removed from the in-sync replicas of a bucket. If the member is alive, it becomes a learner
        again soon."""
        if self._candidates.is_usable(member):
            self._again_us[region, member] = now_us + self._liveness.member_timeout_us

    def tick(self, now_us: int) -> None:
        for (region, member), due_us in list(self._again_us.items()):
            if due_us <= now_us:
                del self._again_us[region, member]
                self._site.look_at_queues(region)

    def times_us(self) -> Collection[int]:
        """Times at which something is due."""
        return self._again_us.values()

    def settle(self) -> None:
        """Adds missing queue-only replicas as learners, and removes queue-only replicas that run no serial sender of
        the region any more."""
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
            if self._recovery.snapshots_left(key.region, member) <= 0:
                self._put_off.add(key.region)
                continue
            fresh = Learner(member, self._site.number + 1)
            after = replace(after, learners=(*after.learners, fresh), queue_only=(*after.queue_only, member))
        if after != bucket:
            self._site.set_bucket(key, after)

    @staticmethod
    def _without(bucket: Bucket, gone: set[Incarnation]) -> Bucket:
        """Returns the bucket without the queue-only replicas in `gone`. The primary waits for them until all remaining
        members have stored the record."""
        leave = tuple(each for each in bucket.isr if each in gone)
        learners = tuple(each for each in bucket.learners if each.member not in gone)
        return replace(
            bucket,
            isr=tuple(each for each in bucket.isr if each not in gone),
            leaving=bucket.leaving + leave,
            learners=learners,
            version=bucket.version + bool(leave),
        )
