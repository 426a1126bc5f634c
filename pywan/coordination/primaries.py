"""Owns what primaries say of the copies of their buckets: who has caught up, and whom they cannot reach."""

from __future__ import annotations

from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.silence import Silence
from pywan.coordination.succession import Succession
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner


class Primaries:
    """A part of the coordinator, which hands it what primaries say."""

    def __init__(
        self,
        site: Decisions,
        silence: Silence,
        liveness: Liveness,
        reports: Reports,
        candidates: Candidates,
        recovery: Recovery,
        succession: Succession,
    ) -> None:
        self._site, self._silence, self._liveness, self._reports = site, silence, liveness, reports
        self._candidates, self._recovery, self._succession = candidates, recovery, succession
        # By primary: the copies that it could not reach, and when.
        self._complaints: dict[Incarnation, dict[Incarnation, int]] = {}

    def caught_up(self, me: Incarnation, key: BucketKey, epoch: Epoch, learner: Learner) -> bool:
        """A learner becomes a copy in sync. Returns whether it does."""
        bucket = self._led_by(me, key, epoch)
        if bucket is None or learner not in bucket.learners:
            return False  # A report of an earlier transfer: the learner was removed meanwhile.
        learners = tuple(each for each in bucket.learners if each != learner)
        in_sync = (*bucket.in_sync, learner.member)
        self._site.set_bucket(key, replace(bucket, learners=learners, in_sync=in_sync, version=bucket.version + 1))
        self._recovery.caught_up(key.region)
        return True

    def unreachable(self, me: Incarnation, epochs: dict[BucketKey, Epoch], copy: Incarnation, now_us: int) -> None:
        """A copy is taken out, or the primary itself, if it is the one that is cut off."""
        held = [(key, bucket) for key in epochs if (bucket := self._led_by(me, key, epochs[key])) is not None]
        if any(copy in bucket.in_sync for _, bucket in held) and self._is_cut_off(me, copy, now_us):
            self._liveness.go_down(me)
            self._succession.lose_all_copies((me,), now_us)
            return
        for key, bucket in held:
            if copy != me and copy in bucket.holders:
                self._succession.lose_copies(key, (copy,), now_us)

    def forget(self, primary: Incarnation) -> None:
        """What it has said does not count any more."""
        self._complaints.pop(primary, None)

    def _led_by(self, me: Incarnation, key: BucketKey, epoch: Epoch) -> Bucket | None:
        """The bucket, if `me` speaks as its primary under the epoch that counts, and decisions about it can be made."""
        bucket = self._site.buckets.get(key)
        if bucket is None or bucket.primary != me or bucket.epoch != epoch:
            return None
        return None if key in self._reports.undecided or self._silence.is_on else bucket

    def _is_cut_off(self, me: Incarnation, copy: Incarnation, now_us: int) -> bool:
        """Whether a primary cannot reach any of several members that hold copies with it, though we hear them all."""
        complaints = self._complaints.setdefault(me, {})
        complaints[copy] = now_us
        for old in [each for each, at in complaints.items() if at + self._liveness.member_timeout_us < now_us]:
            del complaints[old]
        if len(complaints) < 2:
            return False
        partners = {each for each in self._site.partners(me) if self._candidates.is_usable(each)}
        return bool(partners) and partners <= complaints.keys()
