"""Decides when a bucket without replicas may begin anew, makes new buckets, and counts lost buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.outbox import Outbox
from pywan.coordination.placement import choose_primary, choose_replicas
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.tables import (
    DRIFT_DIVISOR,
    UNTIMED,
    Bucket,
    BucketKey,
    Epoch,
    Incarnation,
    RegionAttributes,
    is_role,
)
from pywan.coordination.telling import Telling

READ_LEASES_END_US = (
    400_000  # After this time a replica's read lease has expired (WAN_READ_LEASE_US), despite clock drift.
)


class UncleanRecovery:
    """A part of the coordinator. The coordinator reports every event to this object."""

    def __init__(
        self,
        site: Decisions,
        liveness: Liveness,
        reports: Reports,
        telling: Telling,
        candidates: Candidates,
        recovery: Recovery,
    ) -> None:
        self._site, self._liveness, self._reports = site, liveness, reports
        self._telling, self._candidates, self._recovery = telling, candidates, recovery
        self.lost_buckets = (
            0  # Buckets that lost their last replica: the changes are gone, and the next timeline is empty.
        )
        self._lost: Counter[str] = Counter()  # By region: the lost buckets that were not reported to the operator yet.
        self._unsettled: set[str] = set(site.regions)  # Regions that may have buckets without any replica.
        # By region: when lost buckets may be made again. UNTIMED: the next tick sets the time.
        self._anew_at: dict[str, int] = {}

    def new_timeline(self) -> Epoch:
        """Returns the epoch under which a new timeline begins. The new epoch is above all epochs that any bucket has
        ever had, even a bucket of a destroyed region: an epoch counts up by at most one in a record, and every record
        has a higher number than the record before."""
        return Epoch(self._site.controller_epoch, self._site.number + 1)

    # --- ends ---

    def is_over(self, region: str, bucket: Bucket, now_us: int) -> bool:
        """Whether no member can acknowledge any change of the bucket any more, so that the bucket may begin anew,
        empty.

        Each member that may hold the newest entries must meet one of two conditions. First: the end of the member is
        proved. Second: the member was out of contact for the region's unclean-recovery-timeout and a margin. By then
        the member has stopped answering, by its own clock. But a member without knowledge of the sharing of the region
        does not stop. Queue-only replicas delay nothing.
        """
        attributes = self._site.regions.get(region)
        limit_us = -1 if attributes is None else attributes.unclean_recovery_timeout_ms * 1000
        margin_us = max(limit_us, self._liveness.member_timeout_us) // DRIFT_DIVISOR

        def is_over(member: Incarnation) -> bool:
            if member not in self._site.members or self._liveness.is_gone(member):
                return True
            may_end = limit_us >= 0 and self._liveness.is_expired(member) and self._telling.is_aware(region, member)
            return may_end and limit_us + margin_us <= self._liveness.since_poll_us(member, now_us)

        return all(is_over(each) for each in bucket.content)

    def lose_bucket(self, key: BucketKey, bucket: Bucket) -> None:
        """The bucket has no replica any more. The bucket begins anew, empty, when a member can store the bucket
        (`settle`). A shared region waits first, until no earlier primary can answer under the read lease of a replica
        that has ended."""
        attributes = self._site.regions.get(key.region)
        if attributes is None or attributes.shared:
            if not is_role(key.region):  # A role has no content.
                self._lost[key.region] += 1
            self._anew_at[key.region] = UNTIMED
        self._site.set_bucket(
            key,
            replace(
                bucket,
                primary=None,
                isr=(),
                leaving=(),
                learners=(),
                unfenced=(),
                queue_only=(),
                version=bucket.version + 1,
            ),
        )
        self._unsettled.add(key.region)

    def say_lost(self, outbox: Outbox, *, site_ends: bool) -> None:
        """Reports the losses since the last call to the operator."""
        if not site_ends:  # The shutdown of the site has reported the losses.
            for region, count in sorted(self._lost.items()):
                outbox.say_lost(region, count)
        self.lost_buckets += self._lost.total()
        self._lost.clear()

    def forget(self, region: str) -> None:
        """The region is destroyed."""
        self._anew_at.pop(region, None)

    # --- beginnings ---

    def look_at(self, region: str) -> None:
        """A bucket of the region may have no replica, or a further member can store the region."""
        self._unsettled.add(region)

    def settle(self) -> None:
        """Makes the buckets without replicas, if members can store the buckets. Otherwise a member may join later: then
        `settle` runs for the region again."""
        for region in sorted(self._unsettled):
            self._unsettled.discard(region)
            self._settle(region)

    def _settle(self, region: str) -> None:
        attributes = self._site.regions.get(region)
        if attributes is None or {region, attributes.colocated_with} & self._anew_at.keys():
            return
        weights = self._candidates.storing(region)
        if not weights:
            return
        begins = self.new_timeline()
        for number in range(attributes.total_num_buckets):
            key = BucketKey(region, number)
            bucket = self._site.buckets.get(key)
            if key not in self._reports.undecided and (bucket is None or bucket.primary is None):
                self._make(key, attributes, bucket, begins, weights)

    def _make(
        self,
        key: BucketKey,
        attributes: RegionAttributes,
        before: Bucket | None,
        begins: Epoch,
        weights: Mapping[Incarnation, int],
    ) -> None:
        """Begins a new and empty timeline of a bucket, under the epoch `begins`. If no member can store the bucket
        (`weights`), nothing happens: the bucket waits."""
        if not weights:
            return
        load = self._site.loads[key.region]
        self._make_beside(key, attributes, begins)
        beside = self._candidates.beside(key, attributes)
        if beside and all(each in weights for each in beside):
            replicas, primary = list(beside), beside[0]
            if len(replicas) < attributes.replicas_wanted(len(weights)):
                # The members may have joined long ago. Replicas made at joining would have been of no use.
                self._recovery.begin_by(key.region, UNTIMED)
        else:
            replicas = choose_replicas(load, weights, attributes.replicas_wanted(len(weights)))
            primary = choose_primary(load, replicas)
        version = before.version + 1 if before else 1
        # No event is queued yet, so no member has to learn the queue.
        queues = tuple(sorted(self._candidates.queueing(key.region) - {*replicas}))
        begun = Bucket(begins, begins.word, 0, version, primary, (*replicas, *queues), queue_only=queues)
        self._site.set_bucket(key, begun)

    def _make_beside(self, key: BucketKey, attributes: RegionAttributes, begins: Epoch) -> None:
        """Makes the parent bucket of a colocated bucket, if the parent has no replica."""
        theirs = self._site.regions.get(attributes.colocated_with)
        if theirs is None or attributes.colocated_with in self._anew_at:
            return
        beside = BucketKey(attributes.colocated_with, key.number)
        bucket = self._site.buckets.get(beside)
        if bucket is None or bucket.primary is None:
            self._make(beside, theirs, bucket, begins, self._candidates.storing(beside.region))

    # --- time ---

    def tick(self, now_us: int) -> None:
        for region, due in list(self._anew_at.items()):
            if due == UNTIMED:
                self._anew_at[region] = now_us + READ_LEASES_END_US
            elif due <= now_us:
                del self._anew_at[region]
                self._unsettled.update(self._site.with_children(region))  # These regions waited too.

    def times_us(self) -> Collection[int]:
        """Times at which something is due."""
        return self._anew_at.values()
