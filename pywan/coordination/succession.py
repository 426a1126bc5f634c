"""Owns what becomes of buckets when their copies are lost: who leads next, and who is taken out of the set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.lives import Lives
from pywan.coordination.placement import choose_primary
from pywan.coordination.queue_holders import QueueHolders
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.silence import Silence
from pywan.coordination.tables import UNTIMED, Bucket, BucketKey, Epoch, Incarnation, Word
from pywan.coordination.telling import Telling


class Succession:
    """A part of the coordinator, which tells it of all that happens. Nothing happens to a bucket while it is undecided,
    but for `decide_anew`."""

    def __init__(
        self,
        site: Decisions,
        silence: Silence,
        liveness: Liveness,
        reports: Reports,
        telling: Telling,
        candidates: Candidates,
        recovery: Recovery,
        lives: Lives,
        queues: QueueHolders,
    ) -> None:
        self._queues = queues
        self._site, self._silence, self._liveness, self._reports = site, silence, liveness, reports
        self._telling, self._candidates, self._recovery, self._lives = telling, candidates, recovery, lives
        # Members that were given up while there was silence. Their copies are lost when it is over: until then somebody
        # may report later decisions about these buckets.
        self._lost_in_silence: set[Incarnation] = set()
        self._to_finish: set[BucketKey] = set()  # Unfinished buckets of which a member has stored more.

    # --- who leads ---

    def promote(
        self, key: BucketKey, bucket: Bucket, candidates: list[Incarnation], in_sync: tuple[Incarnation, ...]
    ) -> None:
        """Makes one of `candidates`, who have all that was acknowledged, the primary of the copies `in_sync`.

        The new primary accepts changes when all of them have adopted its epoch. So the set counts from then on, and
        nobody who left it has to be waited for.
        """
        attributes = self._site.regions.get(key.region)
        beside = self._candidates.beside(key, attributes)[:1] if attributes is not None else ()
        if beside and beside[0] in candidates:
            primary = beside[0]
        else:
            primary = choose_primary(self._site.loads[key.region], candidates)
        before = (*bucket.in_sync, *bucket.leaving)
        is_sole = len(bucket.with_entries(before)) > 1 and len(bucket.with_entries(in_sync)) == 1
        unfenced = before if is_sole else bucket.unfenced
        learners = tuple(each for each in bucket.learners if each.member not in in_sync)
        epoch = max(Epoch(self._site.run, bucket.epoch.number + 1), Epoch.of(bucket.life))
        self._site.set_bucket(
            key,
            replace(
                bucket,
                epoch=epoch,
                version=bucket.version + 1,
                primary=primary,
                in_sync=in_sync,
                leaving=(),
                learners=learners,
                unfenced=unfenced,
            ),
        )

    def take_over_from(self, member: Incarnation) -> None:
        """A probe of the member failed. That proves nothing, so it stays in all sets."""
        for key, bucket in self._candidates.led_by(member):
            if key not in self._reports.undecided:
                self._keep_set(key, bucket, {member}, bucket.in_sync)

    def begin_anew_without(self, member: Incarnation, now_us: int) -> None:
        """More is known of a member whose lease is over: buckets that it alone holds up may begin anew."""
        for key, bucket in self._site.naming(member):
            if bucket.primary is None or key in self._reports.undecided or self._liveness.is_there(bucket.primary):
                continue
            self._replace_primary(key, bucket, member, {bucket.primary}, now_us)

    def decide_anew(self, key: BucketKey, reported: Mapping[Incarnation, Word]) -> None:
        """The copies that reported the bucket go on under an epoch of this generation. `reported`: in which life each
        of them has all.

        By a decision that was lost others may have made changes, and let them leave the site, under numbers that are
        given again now. So these are in a new life.
        """
        bucket = self._site.buckets[key]
        # One that has not heard of the life yet has the content of the life before. Nothing counted without it.
        theirs = {bucket.life, bucket.inherits}
        # Who leaves may lack what was acknowledged since, if the removal came into effect by a decision that was lost.
        there = tuple(each for each in bucket.in_sync if reported.get(each) in theirs)
        if not bucket.with_entries(there):
            leaving = bucket.with_entries(bucket.leaving)
            there = (*there, *(each for each in leaving if reported.get(each) in theirs))
        candidates = bucket.with_entries(there)
        if not candidates:
            self._lives.lose_bucket(key, bucket)
            return
        inherits = min(reported[each] for each in there)
        bucket = replace(bucket, life=self._lives.new_life().word, inherits=inherits, learners=())
        self.promote(key, bucket, list(candidates), there)
        if key.region in self._site.regions:  # The learners begin anew. A due recovery may have been forgotten.
            self._recovery.begin_by(key.region, UNTIMED)

    # --- copies that are lost ---

    def lose_all_copies(self, members: Collection[Incarnation], now_us: int) -> None:
        """The members lose their copies. If there are several, none of them is there any more.

        Each bucket is looked at once for all of them: many may end at the same time, and each may hold all buckets.
        """
        if self._silence.is_on:
            self._lost_in_silence.update(members)
            return
        for key, lost in self._candidates.held_by_some(members).items():
            self.lose_copies(key, lost, now_us)

    def take_lost_in_silence(self) -> list[Incarnation]:
        """Returns the members whose copies are lost now that the silence is over."""
        lost, self._lost_in_silence = self._lost_in_silence, set()
        return sorted(lost)

    def lose_copies(self, key: BucketKey, lost: Iterable[Incarnation], now_us: int) -> None:
        """Takes copies out, each one if somebody else has everything or it never acknowledges anything again. All that
        leave a primary which goes on do so by one decision. If there are several, none of them is there any more."""
        if key in self._reports.undecided:
            return
        gone: set[Incarnation] = set()
        for copy in lost:
            bucket = self._site.buckets[key]
            if copy not in bucket.holders:  # It went with the primary.
                continue
            (self._queues if copy in bucket.queue_only else self._recovery).lost(key.region, copy, now_us)
            is_led = bucket.primary is None or (copy != bucket.primary and self._liveness.is_there(bucket.primary))
            if is_led or copy in bucket.learning:
                gone.add(copy)
            elif bucket.primary is not None:
                self._replace_primary(key, bucket, copy, {copy, bucket.primary}, now_us)
        if not gone:
            return
        bucket = self._site.buckets[key]
        learners = tuple(each for each in bucket.learners if each.member not in gone)
        stay = tuple(each for each in bucket.in_sync if each not in gone)
        leaving = (*bucket.leaving, *(each for each in bucket.in_sync if each in gone))
        version = bucket.version + (len(stay) < len(bucket.in_sync))
        self._site.set_bucket(key, replace(bucket, in_sync=stay, leaving=leaving, learners=learners, version=version))

    def _replace_primary(
        self, key: BucketKey, bucket: Bucket, copy: Incarnation, lost: set[Incarnation], now_us: int
    ) -> None:
        """A copy is lost, and the primary cannot be heard. Somebody else who has everything takes over.

        If the primary is another one and is down, it stays in the set: a probe that failed proves nothing about it.
        """
        if copy != bucket.primary and bucket.primary is not None and self._liveness.is_down(bucket.primary):
            self._keep_set(key, bucket, lost, tuple(each for each in bucket.in_sync if each != copy))
        else:
            self._shrink_set(key, bucket, lost, now_us)

    def _keep_set(
        self, key: BucketKey, bucket: Bucket, lost: set[Incarnation], in_sync: tuple[Incarnation, ...]
    ) -> None:
        """Another one of the copies `in_sync` takes over. Nothing proves that somebody is to be taken out of them."""
        leaving = bucket.with_entries(bucket.leaving)
        candidates = [each for each in bucket.with_entries(in_sync) if each not in lost]
        candidates = list(filter(self._candidates.is_usable, candidates))
        if not candidates:
            candidates = [each for each in leaving if each not in lost and self._candidates.is_usable(each)]
            in_sync = (*in_sync, *candidates)
        if candidates:
            self.promote(key, bucket, candidates, in_sync)

    def _shrink_set(self, key: BucketKey, bucket: Bucket, lost: set[Incarnation], now_us: int) -> None:
        """Another copy takes over, and those that are lost are taken out.

        A member that leaves the set still has everything: the primary waited for it, as the removal was not in effect.
        """
        stay = tuple(each for each in bucket.in_sync if each not in lost)
        there = [each for each in bucket.with_entries(stay) if self._liveness.is_there(each)]
        candidates = list(filter(self._candidates.is_usable, there)) or there
        if not candidates:
            leaving = bucket.with_entries(bucket.leaving)
            candidates = [each for each in leaving if each not in lost and self._liveness.is_there(each)]
            stay = (*stay, *candidates)
        if candidates:
            self.promote(key, bucket, candidates, stay)
        elif self._lives.is_over(key.region, bucket, now_us):
            self._lives.lose_bucket(key, bucket)

    # --- removals ---

    def stored_more(self, member: Incarnation) -> None:
        """The member has stored decisions that it had not before: `finish_removals` looks what is in effect by that."""
        self._to_finish.update(self._site.unfinished_of(member))

    def finish_removals(self) -> None:
        """A removal is in effect when everybody who stays has stored it; then the primary waits for nobody else.

        An earlier set can acknowledge nothing any more when one of its members has stored the decision that ended it.
        While there is silence, somebody may know later decisions about these buckets.
        """
        if self._silence.is_on:
            return
        keys, self._to_finish = self._to_finish, set()
        for key in sorted(keys & self._site.unfinished - self._reports.undecided):
            bucket = self._site.buckets[key]
            stored = [self._telling.has_stored(each, key) for each in bucket.in_sync]
            if bucket.leaving and all(stored):
                bucket = replace(bucket, leaving=())
            # What a queue holder has stored keeps nobody of the earlier set from leading again.
            if any(self._telling.has_stored(each, key) for each in bucket.with_entries(bucket.unfenced)):
                bucket = replace(bucket, unfenced=())
            if bucket != self._site.buckets[key]:  # An older file may still name those who left: this one is newer.
                self._site.set_bucket(key, replace(bucket, version=bucket.version + 1))
