"""Elects primaries, and removes lost replicas from the in-sync replicas of a bucket."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.grace_period import GracePeriod
from pywan.coordination.liveness import Liveness
from pywan.coordination.placement import choose_primary
from pywan.coordination.queue_holders import QueueHolders
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.tables import UNTIMED, Bucket, BucketKey, Epoch, Incarnation, Word
from pywan.coordination.telling import Telling
from pywan.coordination.unclean_recovery import UncleanRecovery


class Succession:
    """A part of the coordinator. The coordinator reports every event to this object. While a bucket is undecided, only
    `decide_anew` changes the bucket."""

    def __init__(
        self,
        site: Decisions,
        grace_period: GracePeriod,
        liveness: Liveness,
        reports: Reports,
        telling: Telling,
        candidates: Candidates,
        recovery: Recovery,
        unclean_recovery: UncleanRecovery,
        queues: QueueHolders,
    ) -> None:
        self._queues = queues
        self._site, self._grace_period, self._liveness, self._reports = site, grace_period, liveness, reports
        self._telling, self._candidates, self._recovery, self._unclean_recovery = (
            telling,
            candidates,
            recovery,
            unclean_recovery,
        )
        # Members that were given up in the startup grace period. Their replicas are lost when the period is over: until
        # then a member may report later records of these buckets.
        self._lost_in_grace_period: set[Incarnation] = set()
        self._to_finish: set[BucketKey] = set()  # Unfinished buckets about which a member has stored more records.

    # --- election ---

    def promote(
        self, key: BucketKey, bucket: Bucket, candidates: list[Incarnation], isr: tuple[Incarnation, ...]
    ) -> None:
        """Makes a member of `candidates` the primary of the replicas `isr`. All candidates have every acknowledged
        change.

        The new primary accepts changes when all replicas in `isr` have adopted its epoch. So the new ISR is in effect
        from then on, and the primary waits for no replica that was removed.
        """
        attributes = self._site.regions.get(key.region)
        beside = self._candidates.beside(key, attributes)[:1] if attributes is not None else ()
        if beside and beside[0] in candidates:
            primary = beside[0]
        else:
            primary = choose_primary(self._site.loads[key.region], candidates)
        before = (*bucket.isr, *bucket.leaving)
        is_sole = len(bucket.with_entries(before)) > 1 and len(bucket.with_entries(isr)) == 1
        unfenced = before if is_sole else bucket.unfenced
        learners = tuple(each for each in bucket.learners if each.member not in isr)
        epoch = max(Epoch(self._site.controller_epoch, bucket.epoch.number + 1), Epoch.of(bucket.timeline))
        self._site.set_bucket(
            key,
            replace(
                bucket,
                epoch=epoch,
                version=bucket.version + 1,
                primary=primary,
                isr=isr,
                leaving=(),
                learners=learners,
                unfenced=unfenced,
            ),
        )

    def take_over_from(self, member: Incarnation) -> None:
        """A probe of the member failed. The failure proves nothing, so the member stays in every ISR."""
        for key, bucket in self._candidates.led_by(member):
            if key not in self._reports.undecided:
                self._keep_isr(key, bucket, {member}, bucket.isr)

    def begin_anew_without(self, member: Incarnation, now_us: int) -> None:
        """The coordinator knows more about a member with an expired lease: buckets that wait for this member alone may
        begin anew."""
        for key, bucket in self._site.naming(member):
            if bucket.primary is None or key in self._reports.undecided or self._liveness.is_there(bucket.primary):
                continue
            self._replace_primary(key, bucket, member, {bucket.primary}, now_us)

    def decide_anew(self, key: BucketKey, reported: Mapping[Incarnation, Word]) -> None:
        """The replicas that reported the bucket go on under an epoch of this metadata recovery. `reported`: for each
        replica, the timeline in which the replica has everything.

        Under a lost record, other members may have made changes, and sent the changes to other sites, with sequences
        that the site gives again now. So the replicas go on in a new timeline.
        """
        bucket = self._site.buckets[key]
        # A replica that does not know the present timeline yet has the content of the timeline before. No change was
        # replicated without the replica.
        theirs = {bucket.timeline, bucket.inherits}
        # A leaving replica may lack changes that were acknowledged later, if the removal came into effect by a lost
        # record.
        there = tuple(each for each in bucket.isr if reported.get(each) in theirs)
        if not bucket.with_entries(there):
            leaving = bucket.with_entries(bucket.leaving)
            there = (*there, *(each for each in leaving if reported.get(each) in theirs))
        candidates = bucket.with_entries(there)
        if not candidates:
            self._unclean_recovery.lose_bucket(key, bucket)
            return
        inherits = min(reported[each] for each in there)
        bucket = replace(bucket, timeline=self._unclean_recovery.new_timeline().word, inherits=inherits, learners=())
        self.promote(key, bucket, list(candidates), there)
        if key.region in self._site.regions:  # The learners begin anew. A due recovery may have been forgotten.
            self._recovery.begin_by(key.region, UNTIMED)

    # --- lost replicas ---

    def lose_all_replicas(self, members: Collection[Incarnation], now_us: int) -> None:
        """The members lose their replicas. If the call names several members, none of them is alive.

        The call looks at each bucket once for all members: many members may end at the same time, and each member may
        hold all buckets.
        """
        if self._grace_period.is_on:
            self._lost_in_grace_period.update(members)
            return
        for key, lost in self._candidates.held_by_some(members).items():
            self.lose_copies(key, lost, now_us)

    def take_lost_in_grace_period(self) -> list[Incarnation]:
        """Returns the members whose replicas are lost now, as the grace period is over."""
        lost, self._lost_in_grace_period = self._lost_in_grace_period, set()
        return sorted(lost)

    def lose_copies(self, key: BucketKey, lost: Iterable[Incarnation], now_us: int) -> None:
        """Removes replicas from the bucket. A replica is removed only if another replica has everything, or if the lost
        replica never acknowledges anything again. If the primary goes on, a single record removes all lost replicas. If
        the call names several replicas, none of their members is alive."""
        if key in self._reports.undecided:
            return
        gone: set[Incarnation] = set()
        for replica in lost:
            bucket = self._site.buckets[key]
            if replica not in bucket.holders:  # The replica was removed with the primary.
                continue
            (self._queues if replica in bucket.queue_only else self._recovery).lost(key.region, replica, now_us)
            is_led = bucket.primary is None or (replica != bucket.primary and self._liveness.is_there(bucket.primary))
            if is_led or replica in bucket.learning:
                gone.add(replica)
            elif bucket.primary is not None:
                self._replace_primary(key, bucket, replica, {replica, bucket.primary}, now_us)
        if not gone:
            return
        bucket = self._site.buckets[key]
        learners = tuple(each for each in bucket.learners if each.member not in gone)
        stay = tuple(each for each in bucket.isr if each not in gone)
        leaving = (*bucket.leaving, *(each for each in bucket.isr if each in gone))
        version = bucket.version + (len(stay) < len(bucket.isr))
        self._site.set_bucket(key, replace(bucket, isr=stay, leaving=leaving, learners=learners, version=version))

    def _replace_primary(
        self, key: BucketKey, bucket: Bucket, replica: Incarnation, lost: set[Incarnation], now_us: int
    ) -> None:
        """A replica is lost, and the primary is unreachable. Another replica that has everything takes over.

        If the lost replica is not the primary and the primary is suspect, the primary stays in the ISR: a failed probe
        proves nothing.
        """
        if replica != bucket.primary and bucket.primary is not None and self._liveness.is_down(bucket.primary):
            self._keep_isr(key, bucket, lost, tuple(each for each in bucket.isr if each != replica))
        else:
            self._shrink_isr(key, bucket, lost, now_us)

    def _keep_isr(self, key: BucketKey, bucket: Bucket, lost: set[Incarnation], isr: tuple[Incarnation, ...]) -> None:
        """Another replica of `isr` takes over. No proof justifies a removal, so all replicas stay in the ISR."""
        leaving = bucket.with_entries(bucket.leaving)
        candidates = [each for each in bucket.with_entries(isr) if each not in lost]
        candidates = list(filter(self._candidates.is_usable, candidates))
        if not candidates:
            candidates = [each for each in leaving if each not in lost and self._candidates.is_usable(each)]
            isr = (*isr, *candidates)
        if candidates:
            self.promote(key, bucket, candidates, isr)

    def _shrink_isr(self, key: BucketKey, bucket: Bucket, lost: set[Incarnation], now_us: int) -> None:
        """Another replica takes over, and the lost replicas are removed.

        A leaving replica still has everything: the primary waited for the replica, as the removal was not in effect.
        """
        stay = tuple(each for each in bucket.isr if each not in lost)
        there = [each for each in bucket.with_entries(stay) if self._liveness.is_there(each)]
        candidates = list(filter(self._candidates.is_usable, there)) or there
        if not candidates:
            leaving = bucket.with_entries(bucket.leaving)
            candidates = [each for each in leaving if each not in lost and self._liveness.is_there(each)]
            stay = (*stay, *candidates)
        if candidates:
            self.promote(key, bucket, candidates, stay)
        elif self._unclean_recovery.is_over(key.region, bucket, now_us):
            self._unclean_recovery.lose_bucket(key, bucket)

    # --- removals ---

    def stored_more(self, member: Incarnation) -> None:
        """The member has stored further records: `finish_removals` checks which removals are now in effect."""
        self._to_finish.update(self._site.unfinished_of(member))

    def finish_removals(self) -> None:
        """A removal is in effect when all remaining replicas have stored the record; then the primary waits for no
        removed replica.

        An earlier ISR can acknowledge nothing any more when a member of the earlier ISR has stored the record that
        ended it. During the grace period, a member may know later records of these buckets.
        """
        if self._grace_period.is_on:
            return
        keys, self._to_finish = self._to_finish, set()
        for key in sorted(keys & self._site.unfinished - self._reports.undecided):
            bucket = self._site.buckets[key]
            stored = [self._telling.has_stored(each, key) for each in bucket.isr]
            if bucket.leaving and all(stored):
                bucket = replace(bucket, leaving=())
            # A record at a queue-only replica fences no replica: a member of the earlier ISR could lead again.
            if any(self._telling.has_stored(each, key) for each in bucket.with_entries(bucket.unfenced)):
                bucket = replace(bucket, unfenced=())
            if bucket != self._site.buckets[key]:  # An older file may name the removed replicas: this version is newer.
                self._site.set_bucket(key, replace(bucket, version=bucket.version + 1))
