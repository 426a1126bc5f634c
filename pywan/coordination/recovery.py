"""Decides when missing replicas of a region are made again, and names the learners."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.placement import choose_replicas
from pywan.coordination.reports import Reports
from pywan.coordination.tables import BucketKey, Incarnation, Kind, Learner, RegionAttributes

LEARNERS_AT_ONCE = 8  # The most snapshots of a region that a member takes at the same time.


class Recovery:
    """A part of the coordinator. The coordinator reports every event to this object."""

    def __init__(
        self, site: Decisions, liveness: Liveness, reports: Reports, candidates: Candidates, *, first_us: int
    ) -> None:
        """`first_us`: when all regions are checked for the first time."""
        self._site, self._liveness, self._reports, self._candidates = site, liveness, reports, candidates
        self._due_us = dict.fromkeys(site.regions, first_us)  # By region. UNTIMED: at once.
        self._caught_up: dict[str, None] = {}  # Regions with a learner that has caught up.

    def begin_by(self, region: str, at_us: int) -> None:
        """Checks the region for missing replicas, at this time or before. UNTIMED: at once."""
        self._due_us[region] = min(at_us, self._due_us.get(region, at_us))

    def lost(self, region: str, replica: Incarnation, now_us: int) -> None:
        """A replica was lost. If the member of the replica is alive, the member gets the replica again soon. Otherwise
        `recovery-delay` applies."""
        attributes = self._site.regions.get(region)
        if attributes is None:
            return
        if self._candidates.is_usable(replica):
            self.begin_by(region, now_us + self._liveness.member_timeout_us)
        elif attributes.kind is Kind.PARTITION and attributes.recovery_delay_ms >= 0:
            self.begin_by(region, now_us + attributes.recovery_delay_ms * 1000)

    def hosted(self, region: str, attributes: RegionAttributes, now_us: int) -> None:
        """A further member that can store the region has created the region."""
        delay_ms = 0 if attributes.kind is Kind.REPLICATE else attributes.startup_recovery_delay_ms
        if delay_ms >= 0:
            self.begin_by(region, now_us + delay_ms * 1000)

    def come_back(self, region: str, now_us: int) -> None:
        """A member that can store the region is in contact again, after absence or suspicion."""
        self.begin_by(region, now_us + self._liveness.member_timeout_us)

    def caught_up(self, region: str) -> None:
        """A learner has caught up. `go_on` checks the region for missing replicas, once for all learners in a
        message."""
        if region in self._due_us:
            self._caught_up[region] = None

    def forget(self, region: str) -> None:
        self._due_us.pop(region, None)
        self._caught_up.pop(region, None)

    def go_on(self, now_us: int) -> None:
        """Takes the next steps in regions with caught-up learners."""
        regions, self._caught_up = self._caught_up, {}
        for region in regions:
            self._recover(region, now_us)

    def tick(self, now_us: int) -> None:
        for region, due in list(self._due_us.items()):
            if due <= now_us:
                self._recover(region, now_us)

    def times_us(self) -> Collection[int]:
        """Times at which something is due."""
        return self._due_us.values()

    def _recover(self, region: str, now_us: int) -> None:
        """Names learners for buckets with too few replicas, a few at a time. Continues when a learner has caught up."""
        attributes, weights = self._site.regions[region], self._candidates.storing(region)
        wanted = attributes.replicas_wanted(len(weights))
        again = False
        for key in self._with_too_few(region, weights, wanted):
            bucket = self._site.buckets[key]
            if bucket.primary is None or key in self._reports.undecided:
                continue
            missing = wanted - sum(each in weights for each in bucket.replicas_to_be)
            if missing > 0:
                others = weights.keys() - {*bucket.replicas_to_be, *bucket.leaving}
                added = self.add_learners(key, attributes, missing, weights)
                again = again or added < min(missing, len(others)) or bool(bucket.leaving)
        if again or self._site.loads[region].learners:
            self._due_us[region] = now_us + self._liveness.member_timeout_us
        else:
            self._due_us.pop(region, None)

    def _with_too_few(self, region: str, weights: Mapping[Incarnation, int], wanted: int) -> list[BucketKey]:
        """Returns the buckets that may lack replicas. Buckets with enough replicas are skipped, unless a replica is at
        a member that cannot take changes."""
        load = self._site.loads[region]
        if any(count and member not in weights for member, count in load.replicas.items()):
            return list(self._site.of_region[region])
        return sorted(key for holders, keys in load.by_holders.items() if holders < wanted for key in keys)

    def snapshots_left(self, region: str, member: Incarnation) -> int:
        """Returns how many more snapshots of the region the member can take now."""
        return LEARNERS_AT_ONCE - self._site.loads[region].learning[member]

    def add_learners(
        self,
        key: BucketKey,
        attributes: RegionAttributes,
        count: int,
        weights: Mapping[Incarnation, int],
    ) -> int:
        """Names up to `count` members as learners of the bucket: first the members with the colocated parent bucket,
        then the least filled members. Returns the number of new learners: a member takes only a few snapshots at a
        time.

        `weights`: from `Candidates.storing`.
        """
        bucket, load = self._site.buckets[key], self._site.loads[key.region]
        held = {*bucket.replicas_to_be, *bucket.leaving}
        free = {
            each: weight
            for each, weight in weights.items()
            if each not in held and self.snapshots_left(key.region, each) > 0
        }
        beside = [each for each in self._candidates.beside(key, attributes, learners=True) if each in free][:count]
        rest = {each: weight for each, weight in free.items() if each not in beside}
        chosen = [*beside, *choose_replicas(load, rest, count - len(beside))]
        if chosen:
            transfer = self._site.number + 1
            for each in chosen:
                bucket = bucket.with_learner(Learner(each, transfer))
            self._site.set_bucket(key, bucket)
        return len(chosen)
