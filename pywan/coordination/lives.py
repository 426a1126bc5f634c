"""Owns the ends and beginnings of buckets: which of them nobody has, when they may begin, and how many were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.outbox import Outbox
from pywan.coordination.placement import choose_copies, choose_primary
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

PROMISES_END_US = 400_000  # After this time a promise of a copy is over (WAN_PROMISE_US), whatever the clocks do.


class Lives:
    """A part of the coordinator, which tells it of all that happens."""

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
        self.lost_buckets = 0  # Buckets of which no copy was left: their changes are gone, and the next life is empty.
        self._lost: Counter[str] = Counter()  # By region: the lost buckets of which nobody was told yet.
        self._unsettled: set[str] = set(site.regions)  # Regions that may have buckets which nobody has.
        # By region: when buckets that were lost may be made. UNTIMED: the next tick says when.
        self._anew_at: dict[str, int] = {}

    def new_life(self) -> Epoch:
        """The epoch under which a new life begins. It is above all epochs that any bucket has had, also one of a region
        that was destroyed since: an epoch counts up by one with a decision, and so by less than the decisions do."""
        return Epoch(self._site.run, self._site.number + 1)

    # --- ends ---

    def is_over(self, region: str, bucket: Bucket, now_us: int) -> bool:
        """Whether nobody can acknowledge anything of the bucket any more, so that it may begin anew, empty.

        Everybody who may hold its newest entries is proved to be gone. Or all of them were silent for the region's
        silence-limit and a margin: then they have stopped to answer, each by its own clock. One that does not know that
        others may have the region does not stop. Whoever has the queued events alone holds up nothing.
        """
        attributes = self._site.regions.get(region)
        limit_us = -1 if attributes is None else attributes.silence_limit_ms * 1000
        margin_us = max(limit_us, self._liveness.member_timeout_us) // DRIFT_DIVISOR

        def is_over(member: Incarnation) -> bool:
            if member not in self._site.members or self._liveness.is_gone(member):
                return True
            may_end = limit_us >= 0 and self._liveness.is_expired(member) and self._telling.is_aware(region, member)
            return may_end and limit_us + margin_us <= self._liveness.silent_us(member, now_us)

        return all(is_over(each) for each in bucket.content)

    def lose_bucket(self, key: BucketKey, bucket: Bucket) -> None:
        """Nobody has the bucket any more. It begins anew, empty, when a member can store it (`settle`). Where others
        had the region too, no earlier primary can answer any more then under the promise of a copy that has ended."""
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
                in_sync=(),
                leaving=(),
                learners=(),
                unfenced=(),
                queue_only=(),
                version=bucket.version + 1,
            ),
        )
        self._unsettled.add(key.region)

    def say_lost(self, outbox: Outbox, *, site_ends: bool) -> None:
        """Tells the operator what was lost since the last call."""
        if not site_ends:  # Who ends the site has said what is lost with it.
            for region, count in sorted(self._lost.items()):
                outbox.say_lost(region, count)
        self.lost_buckets += self._lost.total()
        self._lost.clear()

    def forget(self, region: str) -> None:
        """The region is no more."""
        self._anew_at.pop(region, None)

    # --- beginnings ---

    def look_at(self, region: str) -> None:
        """A bucket of the region may have nobody, or a member can store the region newly."""
        self._unsettled.add(region)

    def settle(self) -> None:
        """Makes the buckets that nobody has, where members can store them.

        If none can, one may come later: then the region is settled again.
        """
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
        begins = self.new_life()
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
        """A new and empty life of a bucket, under the epoch `begins`. Nothing happens while no member can store it
        (`weights`): the bucket waits."""
        if not weights:
            return
        load = self._site.loads[key.region]
        self._make_beside(key, attributes, begins)
        beside = self._candidates.beside(key, attributes)
        if beside and all(each in weights for each in beside):
            copies, primary = list(beside), beside[0]
            if len(copies) < attributes.copies_wanted(len(weights)):
                # Its members may have come long ago. The copies that they were to learn then were of no use.
                self._recovery.begin_by(key.region, UNTIMED)
        else:
            copies = choose_copies(load, weights, attributes.copies_wanted(len(weights)))
            primary = choose_primary(load, copies)
        version = before.version + 1 if before else 1
        # Nothing is queued yet, so nobody has to learn that.
        queues = tuple(sorted(self._candidates.queueing(key.region) - {*copies}))
        begun = Bucket(begins, begins.word, 0, version, primary, (*copies, *queues), queue_only=queues)
        self._site.set_bucket(key, begun)

    def _make_beside(self, key: BucketKey, attributes: RegionAttributes, begins: Epoch) -> None:
        """Makes the bucket with which this one is colocated, if nobody has it."""
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
                self._anew_at[region] = now_us + PROMISES_END_US
            elif due <= now_us:
                del self._anew_at[region]
                self._unsettled.update(self._site.with_children(region))  # These waited too.

    def times_us(self) -> Collection[int]:
        """When something is due."""
        return self._anew_at.values()
