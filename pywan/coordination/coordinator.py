"""The coordinator of a site: takes the members' requests, and connects the parts of the coordination.

A state machine without sockets, disk or clock. The driver passes requests and the time to the coordinator, then carries
out the coordinator's actions in order: a metadata record is stored before any member receives the record. A member
repeats a request until the tables show the effect, so the coordinator may drop any request. The design follows PacificA
(Lin et al., 2008) with a single configuration manager. The differences, and the members' work in between, are in
docs/decisions/0056 and 0065.

Each part owns its fields, and uses only the parts that are made before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pywan.base.nonces import fits
from pywan.coordination import proofs
from pywan.coordination.actions import Action, Store
from pywan.coordination.admission import Admission
from pywan.coordination.asked_moves import UNDER_WAY, AskedMoves, MoveAnswer, MoveRequest
from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.grace_period import GracePeriod
from pywan.coordination.handovers import Handovers
from pywan.coordination.joins import Join
from pywan.coordination.leavers import Leavers
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import MayLeave, Refused, Tables
from pywan.coordination.moves import Moves
from pywan.coordination.outbox import Outbox
from pywan.coordination.primaries import Primaries
from pywan.coordination.queue_holders import QueueHolders
from pywan.coordination.recovery import Recovery
from pywan.coordination.regions import Regions
from pywan.coordination.reports import Reports
from pywan.coordination.standbys import Follower, Standbys
from pywan.coordination.status import status_of_members, status_of_site, waiting_regions
from pywan.coordination.succession import Succession
from pywan.coordination.tables import (
    MEMBER_TIMEOUT_US,
    NO_DECISION,
    UNTIMED,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Learner,
    MemberProfile,
    Reach,
    RegionAttributes,
    Standby,
)
from pywan.coordination.telling import Telling
from pywan.coordination.unclean_recovery import UncleanRecovery

# For this number of leases after its start, a coordinator believes every member that names lost metadata records. A
# member may come within the first lease, and wait for the end of a startup grace period. The member asks again within
# three leases.
BELIEVED_LEASES = 4
_NO_NONCES: Mapping[int, bytes] = MappingProxyType({})


class Coordinator:
    """Not thread-safe. `now_us` comes from a clock that never goes back and counts suspended time."""

    def __init__(
        self,
        name: str,
        stored: Iterable[Store],
        *,
        draw_step: Callable[[], int],
        now_us: int,
        site_identity: str,
        member_timeout_us: int = MEMBER_TIMEOUT_US,
        machine: str = "",
    ) -> None:
        """Continues from the records of earlier controller epochs.

        Leases of an earlier controller epoch may still be running, and members may know records that are missing in
        `stored` (an older file was put back). So the coordinator decides nothing about buckets until every member has
        been in contact, or until the member's lease is over.

        Args:
            stored: all records that earlier controller epochs stored, in order.
            draw_step: draws a number from 1 to CONTROLLER_EPOCH_STEP_MAX at random. The new controller epoch is higher
                than the known ones by this number.
            site_identity: the name of a new site; used only if nothing was stored.
            machine: names the machine of the coordinator, as profiles name the machines of members.
        """
        self.name, self.member_timeout_us = name, member_timeout_us
        self.site = site = Decisions(stored, draw_step=draw_step, site_identity=site_identity)
        self._outbox = outbox = Outbox()
        self.liveness = liveness = Liveness(
            site, outbox, member_timeout_us=member_timeout_us, machine=machine, now_us=now_us
        )
        self.standbys = Standbys(site, name, member_timeout_us=member_timeout_us, now_us=now_us)
        self._has_waited = False  # The last `tick` could not decide anything.
        first_us = now_us + liveness.wait_us
        self._believed_until_us = now_us + BELIEVED_LEASES * liveness.wait_us
        self._marks_at_start = {each: profile.mark for each, profile in site.members.items()}
        self.grace_period = grace_period = GracePeriod(site.members, first_us)
        self.reports = reports = Reports(site, liveness)
        self._admission = Admission(site, liveness, reports)
        self._telling = telling = Telling(site, reports, outbox, name)
        self._leavers = leavers = Leavers(site, liveness, outbox)
        self.candidates = candidates = Candidates(site, liveness, leavers)
        self._recovery = recovery = Recovery(site, liveness, reports, candidates, first_us=first_us)
        self._unclean_recovery = unclean_recovery = UncleanRecovery(
            site, liveness, reports, telling, candidates, recovery
        )
        self._queues = queues = QueueHolders(site, liveness, reports, candidates, recovery)
        self._succession = succession = Succession(
            site, grace_period, liveness, reports, telling, candidates, recovery, unclean_recovery, queues
        )
        self._primaries = Primaries(site, grace_period, liveness, reports, candidates, recovery, succession)
        self._regions = Regions(site, liveness, reports, telling, recovery, unclean_recovery, succession, outbox)
        handovers = Handovers(site, liveness, reports, succession)
        asked = AskedMoves(site, candidates, recovery, succession, handovers)
        self._moves = Moves(site, liveness, leavers, reports, candidates, recovery, succession, handovers, asked)
        # When reassignments became due to continue, with the next actions. None: not due.
        self._goes_on_us: int | None = None
        self._due_us: int | None = None  # The time of the next `tick`, as given to the driver.
        if any(
            each.isr and each.epoch.controller_epoch < self.site.recovery_epoch for each in self.site.buckets.values()
        ):
            # An earlier controller epoch did not get all replica reports of its metadata recovery.
            self._begin_metadata_recovery(now_us)

    # --- joins, polls and requests ---

    def join(
        self,
        profile: MemberProfile,
        regions: dict[str, RegionAttributes],
        holdings: dict[BucketKey, Holding],
        stored: DecisionId,
        now_us: int,
        nonces: Mapping[int, bytes] = _NO_NONCES,
    ) -> None:
        """A member joins, or joins again a coordinator that has forgotten the member.

        Args:
            profile: the member. `hosting` has the regions that the member already has.
            regions: the attributes of these regions, and of all regions with a holding. `shared` is as the member knows
                it.
            holdings: all buckets that the member knows, if the member was in this site before.
            stored: the newest metadata record that the member has stored; NO_DECISION: none.
            nonces: those of the member and of its earlier incarnations, by the member id.
        """
        me = profile.incarnation
        refusal = self._admission.refusal_of(profile, stored, now_us)
        if refusal is not None:
            self._outbox.tell(me, refusal)
            return
        has_stored = self._telling.stored_by(me) if me in self.site.members else 0
        if has_stored and (stored.controller_epoch < self.site.recovery_epoch or stored.number < has_stored):
            return  # The request was delayed: the member has joined since, and has sent newer state.
        unknown = self._unknown_to(profile, holdings, stored)
        refusal = self._admission.unbelieved(me, unknown, holdings)
        if refusal is None and unknown and not (self.believes_strangers(now_us) or self._was_here(me, nonces)):
            refusal = self._admission.unknown_witness(me, unknown[0])
        refusal = refusal or self._regions.refusal_of(profile, regions, holdings)
        wait_us = self.grace_period.wait_us(now_us) if unknown else 0
        if refusal is None and wait_us:
            refusal = Refused(
                f"member {me.name} names metadata record {unknown[0]}, which this coordinator has lost; other members"
                " have named lost records a moment ago, and the site first recovers the records of these members; the"
                " member asks again by itself",
                wait_us,
            )
        if refusal is not None:
            self._outbox.tell(me, refusal)
            return
        self._admission.adopt_identity(profile)
        self._rise_above(unknown, now_us)
        for earlier in self._admission.earlier_incarnations(me):
            # One process locks a folder, so the earlier incarnations in the profile have ended.
            if earlier.member_id in profile.before:
                self.left(earlier, now_us)
        self._regions.join(regions)
        self.liveness.take_in(me)
        if self.site.members.get(me) != profile:
            self.site.set_member(me, profile)
            self._leavers.site_goes_on()
        self.reports.take(me, holdings)
        self._telling.receive_stored(me, 0)
        self._regions.joined(me)
        self._receive(me, now_us)
        self._regions.come_back(me, now_us)

    def _unknown_to(
        self, profile: MemberProfile, holdings: dict[BucketKey, Holding], stored: DecisionId
    ) -> list[DecisionId]:
        """The metadata records that the member knows, and this coordinator has lost. The last record is first: the
        metadata recovery for the last record rises above all earlier records."""
        epochs = {DecisionId(*each.bucket.epoch) for each in holdings.values()}  # Each is at most its decision.
        return sorted(filter(self._is_lost, {stored, profile.seen, *epochs}), reverse=True)

    def believes_strangers(self, now_us: int) -> bool:
        """Whether the coordinator believes unknown members that name lost metadata records.

        Lost records are older than the present controller epoch. Live members come back within some leases. A member
        that comes later proves its membership at the start of the controller epoch. A coordinator without any record
        has no better knowledge of its own.
        """
        return not self.site.number or now_us < self._believed_until_us

    def _was_here(self, me: Incarnation, nonces: Mapping[int, bytes]) -> bool:
        """Whether the file at the start of the controller epoch names the member, or an earlier incarnation of its
        folder."""
        marks = {number: self._marks_at_start.get(me._replace(member_id=number)) for number in nonces}
        return any(mark is not None and fits(mark, nonces[number]) for number, mark in marks.items())

    def _is_lost(self, decision: DecisionId) -> bool:
        return decision.controller_epoch >= self.site.recovery_epoch and not self.site.made(decision)

    def _rise_above(self, unknown: Iterable[DecisionId], now_us: int) -> None:
        """Begins a metadata recovery, above all records that the member knows and this coordinator never made. All lost
        records need only one recovery, since a recovery decides everything again."""
        lost = list(filter(self._is_lost, unknown))
        if lost:
            self.site.rise_above(
                DecisionId(max(each.controller_epoch for each in lost), max(each.number for each in lost))
            )
            self._begin_metadata_recovery(now_us)

    def renew(
        self, me: Incarnation, stored: DecisionId, now_us: int, reaches: Iterable[Incarnation] | None = None
    ) -> None:
        """Renews a lease.

        Args:
            me: the member.
            stored: the newest metadata record that the member has stored; NO_DECISION: none yet.
            reaches: the members whose answers reached `me` a moment ago; None: unchanged since the last poll.
        """
        if stored != NO_DECISION and (stored.controller_epoch < self.site.recovery_epoch or not self.site.made(stored)):
            self._outbox.tell(me, Refused("the coordinator does not know all decisions", report=True))
            return
        if self.liveness.is_given_up(me):
            self._outbox.tell(me, Refused(f"member {me} did not renew its lease in time", join_again=True))
            return
        has_more = stored.number > self._telling.stored_by(me)
        self._telling.receive_stored(me, stored.number)
        if reaches is not None:
            self.liveness.receive_reached(me, reaches)
        if has_more:
            self.standbys.receive_from_member(stored.number, now_us)
        if not self.standbys.may_decide:
            self.liveness.receive(me, now_us)
            return
        self._receive(me, now_us)
        if has_more:
            self._succession.stored_more(me)
            self._succession.finish_removals()
            self._regions.let_in(now_us)
        self._goes_on_us = now_us

    def receive_standby(self, join: Join) -> None:
        """A joining member names the locator that may take over, or has done so. If the member knows lost records, the
        controller epoch began with an older file. The coordinator believes the member if the file names the member, or
        an earlier incarnation of its folder."""
        me, nonces = join.profile.incarnation, join.nonces
        is_known = any(proofs.is_proved(self.site.members.get(me._replace(member_id=n)), nonces[n]) for n in nonces)
        standby = join.standby
        if join.term > self.site.term and join.coordinator:
            standby = Standby(join.coordinator, "")
        is_late = join.term < self.site.term  # An operator, or a takeover, has superseded the member's knowledge.
        seen = join.stored, join.profile.seen
        if standby is not None and is_known and not is_late and any(map(self._is_lost, seen)):
            self.standbys.note_unknown_standby(standby)

    def receive_from_locator(self, told: Follower, now_us: int) -> None:
        """A follower says how many records it has stored."""
        if self.standbys.names_unknown(told) and not self.believes_strangers(now_us):
            told = replace(told, stored=NO_DECISION, is_standby=False)  # The follower gets all records anew.
        is_lost = self.standbys.names_unknown(told) and self.site.has_room_above(told.stored)
        self.standbys.receive(told, now_us)
        if is_lost:
            self._rise_above([told.stored], now_us)

    def _receive(self, me: Incarnation, now_us: int) -> None:
        self.grace_period.end_for(me)
        self.liveness.receive(me, now_us)
        self._telling.tell(me, self.member_timeout_us)
        is_down = self.liveness.is_down(me) and not self._leavers.is_released(me)
        if is_down or self.liveness.is_expired(me):
            self.liveness.rise(me)
            self.liveness.take_in(me)
            self._regions.come_back(me, now_us)

    # --- regions ---

    def heeds(self, me: Incarnation) -> bool:
        """Whether the coordinator processes the member's requests about regions now. The coordinator waits while it
        does not know yet which members have the regions, and until the member has joined."""
        return self.liveness.knows(me) and not self.grace_period.is_on

    def host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        """The member creates the region. `weight`: local-max-memory in MB; 0: the member is an accessor.

        The member may go on when the tables show the region. During the startup grace period the coordinator does not
        know yet which other members have the region.
        """
        if self.heeds(me):
            self._regions.host(me, region, attributes, weight, now_us)

    def unhost(self, me: Incarnation, region: str, now_us: int) -> None:
        """The member has closed the region. Its replicas are lost; a sole replica is lost with its data.

        During the startup grace period other members may know later records about the region's buckets. The member
        repeats the request.
        """
        if not self.grace_period.is_on:
            self._regions.unhost(me, region, now_us)

    def destroy_region(self, me: Incarnation, region: str) -> None:
        """Destroys the region at all members, with its buckets.

        During the startup grace period another member may yet report the region, and would bring the region back. The
        member repeats the request.
        """
        if me in self.site.members and region in self.site.regions and not self.grace_period.is_on:
            self._regions.destroy(region)

    # --- primaries ---

    def caught_up(self, me: Incarnation, key: BucketKey, epoch: Epoch, learner: Learner, now_us: int) -> None:
        """The primary reports that a learner has everything, and that every change from now on waits for the
        learner."""
        if self._primaries.caught_up(me, key, epoch, learner):
            self._moves.caught_up(key)
            self._goes_on_us = now_us

    def unreachable(self, me: Incarnation, epochs: dict[BucketKey, Epoch], replica: Incarnation, now_us: int) -> None:
        """The primary asks for the removal of a replica that does not answer, or cannot take changes.

        The primary still waits for the replica until every remaining member has stored the metadata record. If a
        primary cannot reach any of several replicas, and the coordinator is in contact with these replicas, then the
        primary itself is removed.
        """
        if self.liveness.knows(me) and not self.grace_period.is_on:
            self._primaries.unreachable(me, epochs, replica, now_us)

    def ready(self, me: Incarnation, keys: Iterable[BucketKey], now_us: int) -> None:
        """A new primary has contacted all in-sync replicas, and accepts changes."""
        if not self.liveness.knows(me):
            return
        for key in keys:
            self._moves.ready(me, key)
        self._goes_on_us = now_us

    def move_bucket(self, request: MoveRequest, now_us: int) -> MoveAnswer:
        """An operator requests the reassignment of a replica or a primary, and repeats the request until the answer is
        final."""
        if self.grace_period.is_on:
            return UNDER_WAY  # Nothing is decided about buckets now.
        return self._moves.move(request, now_us)

    # --- suspicion ---

    def suspect(self, reporter: Incarnation, suspected: Incarnation, now_us: int) -> None:
        """A connection was refused or reset. A refusal proves no death, but starts a probe at once."""
        if reporter in self.site.members:
            self.liveness.suspect(suspected, now_us)

    def not_probed(self, member: Incarnation) -> None:
        """The driver could not carry out a `Probe`. The next suspicion begins another probe."""
        self.liveness.end_probe(member)

    def probed(self, member: Incarnation, reach: Reach, now_us: int) -> None:
        """Takes the result of a `Probe`. A probe proves nothing, so no ISR shrinks. If the probe failed, other in-sync
        replicas take over the member's primaries. The new primaries find out themselves whether they can reach the
        member.

        If no other member was in contact since the probe began, the coordinator itself is cut off. A member that is
        suspected again is probed again.
        """
        began_us = self.liveness.end_probe(member)
        self.liveness.receive_probe_result(member, reach)
        if member not in self.site.members or self.grace_period.is_on:
            return
        if self.liveness.is_expired(member):
            self.liveness.probe_later(member, now_us)
            self._begin_anew_without(member, now_us)
        elif reach is not Reach.ANSWERED and not self.liveness.is_down(member):
            if reach is Reach.SILENT and not self.liveness.has_received_from_others(
                member, now_us if began_us is None else began_us
            ):
                return
            self.liveness.go_down(member)
            self._succession.take_over_from(member)

    # --- departing members ---

    def ended(self, earlier: Incarnation, me: Incarnation, now_us: int, *, is_proved: bool) -> Refused | None:
        """A joining member says that an earlier incarnation of its name has ended. Returns why the member has to wait
        for certainty. None: the member can join, and the earlier incarnation has ended if a proof exists.

        Args:
            earlier: the earlier incarnation.
            me: the member.
            now_us: the time.
            is_proved: the member has proved that both incarnations are of the same folder. One process locks a folder.
        """
        if earlier.name != me.name or earlier == me:
            return None
        refusal = None if is_proved else self._admission.unproved_end_of(earlier, me, now_us)
        if refusal is None and (is_proved or self._admission.has_ended(earlier, now_us)):
            self.left(earlier, now_us)
        return refusal

    def leave(self, me: Incarnation, now_us: int) -> None:
        """A planned stop begins. The member gets `MayLeave` when no bucket needs the member any more, and `StillNeeded`
        before."""
        if me not in self.site.members:
            self._outbox.tell(me, MayLeave())
        elif not self.grace_period.is_on and not self.liveness.is_expired(me):
            needed = self._moves.leave(me, now_us)
            if needed is not None:
                self._outbox.tell(me, needed)

    def stay(self, me: Incarnation, now_us: int) -> None:
        """The member cancels its draining."""
        if self._moves.stay(me) and self.liveness.knows(me):
            self.liveness.rise(me)
            self._regions.come_back(me, now_us)
            self._goes_on_us = now_us

    def end_site(self, now_us: int) -> None:
        """All members are about to end. Nothing is reassigned, and all members that have asked may leave at the same
        time."""
        self._moves.end_site(now_us)

    def left(self, me: Incarnation, now_us: int) -> None:
        """The member announces its own end: the lease is over at once."""
        if me in self.site.members:
            self.liveness.end(me)
            self._give_up((me,), now_us)
        self.reports.never_comes(me)

    def revoke(self, me: Incarnation, now_us: int) -> None:
        """An operator says that an incarnation, for which buckets wait, never comes back."""
        self.reports.never_comes(me)
        if self.liveness.is_expired(me):
            self.liveness.end(me)
            self._begin_anew_without(me, now_us)

    def _give_up(self, members: Iterable[Incarnation], now_us: int) -> None:
        """The leases of the members are over, or the members have ended. A member stays in the table only while a
        bucket depends on the member. All leases end before any replica is lost: so none of these members is elected
        primary."""
        ended: list[Incarnation] = []
        for member in members:
            self._telling.give_up(member)
            self._primaries.forget(member)
            self.grace_period.end_for(member)
            self._moves.stay(member)
            self.liveness.give_up(member, now_us)
            ended.append(member)
        if not ended:
            return
        self._succession.lose_all_replicas(ended, now_us)
        self._goes_on_us = now_us
        for member in ended:
            self._forget(member)
            if self.liveness.is_expired(member) and not self.liveness.is_gone(member):
                self.liveness.suspect(member, now_us)

    def _begin_anew_without(self, member: Incarnation, now_us: int) -> None:
        """More is known of a member with an expired lease: buckets that wait for the member alone may begin anew."""
        self._succession.begin_anew_without(member, now_us)
        self._forget(member)

    def _forget(self, member: Incarnation) -> None:
        """Removes a member without a lease from the table, unless a bucket may have to wait for the member."""
        if self.site.naming(member):
            return
        self._admission.forget(member)
        self.liveness.forget(member)
        self._telling.forget(member)
        self.site.set_member(member, None)

    # --- time ---

    def tick(self, now_us: int) -> None:
        """Does the work that is due: expired leases, replicas to be made again."""
        self.standbys.tick(now_us)
        if not self.standbys.may_decide:
            self._has_waited = True
            return
        if self._has_waited or (self._due_us is not None and now_us - self._due_us > self.member_timeout_us // 4):
            self.liveness.wait_anew(now_us)
        self._due_us, self._has_waited = None, False
        self.grace_period.tick(now_us)
        self._give_up(self.liveness.end_leases(now_us), now_us)
        for member in self.liveness.due_again(now_us):
            self._begin_anew_without(member, now_us)
            self.liveness.suspect(member, now_us)
        self._unclean_recovery.tick(now_us)
        self._succession.finish_removals()
        if not self.grace_period.is_on:
            self._replace_those_not_there(now_us)
        self._regions.let_in(now_us)
        if not self.grace_period.is_on and not self._leavers.site_ends:
            self._recovery.tick(now_us)
        self._queues.tick(now_us)
        self._goes_on_us = now_us

    def _replace_those_not_there(self, now_us: int) -> None:
        for member in self.liveness.not_there:
            if self.liveness.is_expired(member):
                self._begin_anew_without(member, now_us)
            else:
                self._succession.take_over_from(member)

    def next_us(self) -> int | None:
        """When the next `tick` is due, if no request arrives. UNTIMED: at once. None: never."""
        if not self.standbys.may_decide:
            self._due_us = None
            return self.standbys.next_us()
        grace_period_us, moves_us = self.grace_period.next_us(), self._moves.next_us()
        is_in_grace_period = grace_period_us is not None
        due = [*self._unclean_recovery.times_us()]
        if not is_in_grace_period and not self._leavers.site_ends:
            due += self._recovery.times_us()
        due += self._queues.times_us()
        if UNTIMED in due:
            self._due_us = None
            return UNTIMED
        due += self.liveness.times_us()
        if (standby_us := self.standbys.next_us()) is not None:
            due.append(standby_us)
        due += [grace_period_us] if grace_period_us is not None else [] if moves_us is None else [moves_us]
        self._due_us = min(due, default=None)
        return self._due_us

    def _go_on(self, now_us: int) -> None:
        """Takes the steps that follow from one message, or one tick."""
        if self.grace_period.is_on:
            return
        lost = [each for each in self._succession.take_lost_in_grace_period() if self.liveness.is_expired(each)]
        if lost:
            self._succession.lose_all_replicas(lost, now_us)
            for member in lost:
                self._forget(member)
        self._recovery.go_on(now_us)
        self._moves.go_on(now_us)

    def _begin_metadata_recovery(self, now_us: int) -> None:
        """A member knows metadata records that this coordinator has lost.

        Nothing is decided about a bucket until all known in-sync members have reported the bucket. Nothing at all is
        decided before the lease of any unknown member has expired.
        """
        self.site.begin_metadata_recovery()
        self.grace_period.begin(now_us, self.liveness.wait_us)
        self.reports.begin()
        self._telling.begin()

    # --- actions ---

    def take_actions(self) -> list[Action]:
        """Returns the actions for the driver, in their order. Every metadata record made since the last call is stored
        first."""
        if not self.standbys.may_decide:
            self._telling.tell_all()
            actions, store = self._outbox.take(), self.site.take_store()
            return actions if store is None else [store, *actions]
        if self._goes_on_us is not None:
            now_us, self._goes_on_us = self._goes_on_us, None
            self._go_on(now_us)
        if not self.grace_period.is_on:
            for key, reported in self.reports.take_complete():
                self._succession.decide_anew(key, reported)
            self._unclean_recovery.settle()
            if not self._leavers.site_ends:
                self._queues.settle()
        self._telling.tell_all()
        self._unclean_recovery.say_lost(self._outbox, site_ends=self._leavers.site_ends)
        actions = self._outbox.take()
        store = self.site.take_store()
        return actions if store is None else [store, *actions]

    def take_refusals(self, me: Incarnation) -> list[Refused]:
        """Returns the member's refusals since the last actions were taken, and removes the refusals from the actions.

        So the driver knows that a refusal belongs to the last request.
        """
        return self._outbox.take_refusals(me)

    # --- questions ---

    @property
    def lost_buckets(self) -> int:
        """The number of buckets that have lost all replicas since this controller epoch began."""
        return self._unclean_recovery.lost_buckets

    def may_be_told(self, me: Incarnation) -> bool:
        """Whether the member may receive metadata records. In a metadata recovery the member sends its replica report
        first."""
        return self._telling.may_be_told(me)

    def tables(self, since: int, lease_us: int) -> Tables:
        """Returns the tables for a member that has stored everything up to number `since`."""
        return self._telling.tables(since, lease_us)

    def answer(self, since: int, lease_us: int) -> Tables:
        """As `tables`, for a question for news. The answer may end a little before the newest metadata record."""
        return self._telling.answer(since, lease_us)

    def awaited_incarnations(self, name: str) -> list[Incarnation]:
        """The unreachable incarnations of a member for which buckets may wait. An operator can revoke the
        incarnations."""
        awaited = self.reports.waited_for.keys() | self.liveness.expired
        return sorted(each for each in awaited if each.name == name)

    def status(self, now_us: int) -> dict[str, Any]:
        """The status for an operator, as plain values."""
        return {
            **status_of_site(self.site, self.grace_period, now_us),
            **self.standbys.status(),
            "lost_buckets": self.lost_buckets,
            "believes_strangers": self.believes_strangers(now_us),
            "waiting_regions": waiting_regions(self.site, self.liveness),
            "members": status_of_members(
                self.site, self.grace_period, self.liveness, self.reports, self._leavers, now_us
            ),
        }
