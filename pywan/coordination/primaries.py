"""Handles reports of primaries about the replicas of their buckets: caught-up learners, and unreachable replicas."""

from __future__ import annotations

from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.grace_period import GracePeriod
from pywan.coordination.liveness import Liveness
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.succession import Succession
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner


class Primaries:
    """A part of the coordinator. The coordinator hands the reports of primaries to this object."""

    def __init__(
        self,
        site: Decisions,
        grace_period: GracePeriod,
        liveness: Liveness,
        reports: Reports,
        candidates: Candidates,
        recovery: Recovery,
        succession: Succession,
    ) -> None:
        self._site, self._grace_period, self._liveness, self._reports = site, grace_period, liveness, reports
        self._candidates, self._recovery, self._succession = candidates, recovery, succession
        # By primary: the unreachable replicas, and when the primary reported them.
        self._complaints: dict[Incarnation, dict[Incarnation, int]] = {}

    def caught_up(self, me: Incarnation, key: BucketKey, epoch: Epoch, learner: Learner) -> bool:
        """A learner becomes an in-sync replica. Returns whether it does."""
        bucket = self._led_by(me, key, epoch)
        if bucket is None or learner not in bucket.learners:
            return False  # A report about an earlier transfer: the learner was removed meanwhile.
        learners = tuple(each for each in bucket.learners if each != learner)
        isr = (*bucket.isr, learner.member)
        self._site.set_bucket(key, replace(bucket, learners=learners, isr=isr, version=bucket.version + 1))
        self._recovery.caught_up(key.region)
        return True

    def unreachable(self, me: Incarnation, epochs: dict[BucketKey, Epoch], replica: Incarnation, now_us: int) -> None:
        """Removes an unreachable replica, or the primary itself if the primary is cut off."""
        held = [(key, bucket) for key in epochs if (bucket := self._led_by(me, key, epochs[key])) is not None]
        if any(replica in bucket.isr for _, bucket in held) and self._is_cut_off(me, replica, now_us):
            self._liveness.go_down(me)
            self._succession.lose_all_replicas((me,), now_us)
            return
        for key, bucket in held:
            if replica != me and replica in bucket.holders:
                self._succession.lose_copies(key, (replica,), now_us)

    def forget(self, primary: Incarnation) -> None:
        """Drops the reports of the primary."""
        self._complaints.pop(primary, None)

    def _led_by(self, me: Incarnation, key: BucketKey, epoch: Epoch) -> Bucket | None:
        """Returns the bucket if `me` is its primary under the present epoch, and if records about the bucket can be
        made."""
        bucket = self._site.buckets.get(key)
        if bucket is None or bucket.primary != me or bucket.epoch != epoch:
            return None
        return None if key in self._reports.undecided or self._grace_period.is_on else bucket

    def _is_cut_off(self, me: Incarnation, replica: Incarnation, now_us: int) -> bool:
        """Whether a primary cannot reach any of several members with replicas of its buckets, though all of them are in
        contact with the coordinator."""
        complaints = self._complaints.setdefault(me, {})
        complaints[replica] = now_us
        for old in [each for each, at in complaints.items() if at + self._liveness.member_timeout_us < now_us]:
            del complaints[old]
        if len(complaints) < 2:
            return False
        partners = {each for each in self._site.partners(me) if self._candidates.is_usable(each)}
        return bool(partners) and partners <= complaints.keys()
