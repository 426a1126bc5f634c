"""Owns the requests of members to the coordinator of their site, and puts its parts together.

A state machine without sockets, disk or clock. Its driver hands it requests and the time, then takes its actions and
does them in their order: a decision is stored before anybody hears of it. A member repeats a request until the tables
show its effect, so the coordinator may drop any request. The design follows PacificA (Lin et al., 2008) with a single
configuration manager; docs/decisions/0056 and 0065 say where it differs, and what the members do in between.

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
from pywan.coordination.handovers import Handovers
from pywan.coordination.joins import Join
from pywan.coordination.leavers import Leavers
from pywan.coordination.liveness import Liveness
from pywan.coordination.lives import Lives
from pywan.coordination.messages import MayLeave, Refused, Tables
from pywan.coordination.moves import Moves
from pywan.coordination.outbox import Outbox
from pywan.coordination.primaries import Primaries
from pywan.coordination.queue_holders import QueueHolders
from pywan.coordination.recovery import Recovery
from pywan.coordination.regions import Regions
from pywan.coordination.reports import Reports
from pywan.coordination.silence import Silence
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

# For so many leases after its start a coordinator believes everybody who names lost decisions. A member that comes
# first within one lease, and has to wait for the end of a silence, asks again within three.
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
        """Goes on where earlier runs ended.

        Leases that an earlier run gave may still be running, and members may know decisions that are not in `stored`
        (an older file was put back). So nothing is decided about buckets until every member has been heard, or until
        its lease is over.

        Args:
            stored: all that earlier runs gave to be stored, in order.
            draw_step: draws a number from 1 to RUN_STEP_MAX at random, by which this run is above those it knows.
            site_identity: the name of a new site; it counts only if nothing was stored.
            machine: names the machine of the coordinator, as profiles name those of members.
        """
        self.name, self.member_timeout_us = name, member_timeout_us
        self.site = site = Decisions(stored, draw_step=draw_step, site_identity=site_identity)
        self._outbox = outbox = Outbox()
        self.liveness = liveness = Liveness(
            site, outbox, member_timeout_us=member_timeout_us, machine=machine, now_us=now_us
        )
        self.standbys = Standbys(site, name, member_timeout_us=member_timeout_us, now_us=now_us)
        self._has_waited = False  # Nothing could be decided when `tick` was called last.
        first_us = now_us + liveness.wait_us
        self._believed_until_us = now_us + BELIEVED_LEASES * liveness.wait_us
        self._marks_at_start = {each: profile.mark for each, profile in site.members.items()}
        self.silence = silence = Silence(site.members, first_us)
        self.reports = reports = Reports(site, liveness)
        self._admission = Admission(site, liveness, reports)
        self._telling = telling = Telling(site, reports, outbox, name)
        self._leavers = leavers = Leavers(site, liveness, outbox)
        self.candidates = candidates = Candidates(site, liveness, leavers)
        self._recovery = recovery = Recovery(site, liveness, reports, candidates, first_us=first_us)
        self._lives = lives = Lives(site, liveness, reports, telling, candidates, recovery)
        self._queues = queues = QueueHolders(site, liveness, reports, candidates, recovery)
        self._succession = succession = Succession(
            site, silence, liveness, reports, telling, candidates, recovery, lives, queues
        )
        self._primaries = Primaries(site, silence, liveness, reports, candidates, recovery, succession)
        self._regions = Regions(site, liveness, reports, telling, recovery, lives, succession, outbox)
        handovers = Handovers(site, liveness, reports, succession)
        asked = AskedMoves(site, candidates, recovery, succession, handovers)
        self._moves = Moves(site, liveness, leavers, reports, candidates, recovery, succession, handovers, asked)
        self._goes_on_us: int | None = None  # Moves are to go on when the actions are taken: since when. None: not.
        self._due_us: int | None = None  # When `tick` was to be called, as the driver was told.
        if any(each.in_sync and each.epoch.run < self.site.generation for each in self.site.buckets.values()):
            # An earlier run did not hear all reports of its generation.
            self._begin_generation(now_us)

    # --- members that come, and speak ---

    def join(
        self,
        profile: MemberProfile,
        regions: dict[str, RegionAttributes],
        holdings: dict[BucketKey, Holding],
        stored: DecisionId,
        now_us: int,
        nonces: Mapping[int, bytes] = _NO_NONCES,
    ) -> None:
        """A member comes, or comes back to a coordinator that has forgotten it.

        Args:
            profile: what it is. Regions that it has already are in `hosting`.
            regions: the attributes of those, and of all that have a holding. `shared` is as the member knows it.
            holdings: all buckets that it knows, where it was a member of this site before.
            stored: the newest decision that it has stored; NO_DECISION: none.
            nonces: those of it and of its earlier incarnations, by the member id.
        """
        me = profile.incarnation
        refusal = self._admission.refusal_of(profile, stored, now_us)
        if refusal is not None:
            self._outbox.tell(me, refusal)
            return
        has_stored = self._telling.stored_by(me) if me in self.site.members else 0
        if has_stored and (stored.run < self.site.generation or stored.number < has_stored):
            return  # The request was late on its way: the member has come since, and has said more.
        unknown = self._unknown_to(profile, holdings, stored)
        refusal = self._admission.unbelieved(me, unknown, holdings)
        if refusal is None and unknown and not (self.believes_strangers(now_us) or self._was_here(me, nonces)):
            refusal = self._admission.unknown_witness(me, unknown[0])
        refusal = refusal or self._regions.refusal_of(profile, regions, holdings)
        wait_us = self.silence.wait_us(now_us) if unknown else 0
        if refusal is None and wait_us:
            refusal = Refused(
                f"member {me.name} names decision {unknown[0]}, which this coordinator has lost; others have named such"
                f" ones a moment ago, and the site first decides on what these know; it asks again by itself",
                wait_us,
            )
        if refusal is not None:
            self._outbox.tell(me, refusal)
            return
        self._admission.adopt_identity(profile)
        self._rise_above(unknown, now_us)
        for earlier in self._admission.earlier_incarnations(me):
            if earlier.member_id in profile.before:  # One process locks a folder: those that it names are gone.
                self.left(earlier, now_us)
        self._regions.join(regions)
        self.liveness.take_in(me)
        if self.site.members.get(me) != profile:
            self.site.set_member(me, profile)
            self._leavers.site_goes_on()
        self.reports.take(me, holdings)
        self._telling.hear_stored(me, 0)
        self._regions.joined(me)
        self._hear(me, now_us)
        self._regions.come_back(me, now_us)

    def _unknown_to(
        self, profile: MemberProfile, holdings: dict[BucketKey, Holding], stored: DecisionId
    ) -> list[DecisionId]:
        """The decisions that the member knows, and that this coordinator has lost; the last one first, as the others
        are below the generation that it begins."""
        epochs = {DecisionId(*each.bucket.epoch) for each in holdings.values()}  # Each is at most its decision.
        return sorted(filter(self._is_lost, {stored, profile.seen, *epochs}), reverse=True)

    def believes_strangers(self, now_us: int) -> bool:
        """Whether members that this coordinator does not know are believed when they name decisions that it has lost.

        Such decisions were made before this run began. Members that live come back within some leases. Somebody who
        comes later proves that it was a member when this run began. A coordinator that has decided nothing has no
        better knowledge of its own.
        """
        return not self.site.number or now_us < self._believed_until_us

    def _was_here(self, me: Incarnation, nonces: Mapping[int, bytes]) -> bool:
        """Whether the file with which this run began names the member, or an earlier incarnation of its folder."""
        marks = {number: self._marks_at_start.get(me._replace(member_id=number)) for number in nonces}
        return any(mark is not None and fits(mark, nonces[number]) for number, mark in marks.items())

    def _is_lost(self, decision: DecisionId) -> bool:
        return decision.run >= self.site.generation and not self.site.made(decision)

    def _rise_above(self, unknown: Iterable[DecisionId], now_us: int) -> None:
        """A generation begins above all decisions that the member knows, and that this coordinator never made. There is
        one for all of them: each decides everything again."""
        lost = list(filter(self._is_lost, unknown))
        if lost:
            self.site.rise_above(DecisionId(max(each.run for each in lost), max(each.number for each in lost)))
            self._begin_generation(now_us)

    def renew(
        self, me: Incarnation, stored: DecisionId, now_us: int, reaches: Iterable[Incarnation] | None = None
    ) -> None:
        """Renews a lease.

        Args:
            me: the member.
            stored: the newest decision that the member has stored; NO_DECISION: none yet.
            reaches: the members whose answers came to it a moment ago; None: as it said before.
        """
        if stored != NO_DECISION and (stored.run < self.site.generation or not self.site.made(stored)):
            self._outbox.tell(me, Refused("the coordinator does not know all decisions", report=True))
            return
        if self.liveness.is_given_up(me):
            self._outbox.tell(me, Refused(f"member {me} was not heard for its whole lease", join_again=True))
            return
        has_more = stored.number > self._telling.stored_by(me)
        self._telling.hear_stored(me, stored.number)
        if reaches is not None:
            self.liveness.hear_reached(me, reaches)
        if has_more:
            self.standbys.hear_member(stored.number, now_us)
        if not self.standbys.may_decide:
            self.liveness.hear(me, now_us)
            return
        self._hear(me, now_us)
        if has_more:
            self._succession.stored_more(me)
            self._succession.finish_removals()
            self._regions.let_in(now_us)
        self._goes_on_us = now_us

    def hear_of_standby(self, join: Join) -> None:
        """A member that asks to be taken in names who may take over, or has done so. If it knows decisions that are
        lost here, this run has a file of a time before. The member is believed if the file names it, or an earlier
        incarnation of its folder."""
        me, nonces = join.profile.incarnation, join.nonces
        is_known = any(proofs.is_proved(self.site.members.get(me._replace(member_id=n)), nonces[n]) for n in nonces)
        standby = join.standby
        if join.term > self.site.term and join.coordinator:
            standby = Standby(join.coordinator, "")
        is_late = join.term < self.site.term  # An operator, or a takeover, has ended what it knows.
        seen = join.stored, join.profile.seen
        if standby is not None and is_known and not is_late and any(map(self._is_lost, seen)):
            self.standbys.hear_of(standby)

    def hear_locator(self, told: Follower, now_us: int) -> None:
        """Another locator, which keeps the records too, says how far it is."""
        if self.standbys.names_unknown(told) and not self.believes_strangers(now_us):
            told = replace(told, stored=NO_DECISION, is_standby=False)  # It gets all records anew.
        is_lost = self.standbys.names_unknown(told) and self.site.has_room_above(told.stored)
        self.standbys.hear(told, now_us)
        if is_lost:
            self._rise_above([told.stored], now_us)

    def _hear(self, me: Incarnation, now_us: int) -> None:
        self.silence.end_for(me)
        self.liveness.hear(me, now_us)
        self._telling.tell(me, self.member_timeout_us)
        is_down = self.liveness.is_down(me) and not self._leavers.is_released(me)
        if is_down or self.liveness.is_expired(me):
            self.liveness.rise(me)
            self.liveness.take_in(me)
            self._regions.come_back(me, now_us)

    # --- regions ---

    def heeds(self, me: Incarnation) -> bool:
        """Whether what the member asks about regions is looked at now. It is not while nobody knows yet who has them,
        nor before the member has joined."""
        return self.liveness.knows(me) and not self.silence.is_on

    def host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        """The member creates the region. `weight`: local-max-memory in MB; 0: it is an accessor.

        It may go on when the tables show it. While there is silence, nobody knows yet who else has the region.
        """
        if self.heeds(me):
            self._regions.host(me, region, attributes, weight, now_us)

    def unhost(self, me: Incarnation, region: str, now_us: int) -> None:
        """The member has closed the region. Its copies are gone; a sole copy is gone with its data.

        While there is silence, others may know later decisions about its buckets. The member asks again.
        """
        if not self.silence.is_on:
            self._regions.unhost(me, region, now_us)

    def destroy_region(self, me: Incarnation, region: str) -> None:
        """The region goes everywhere, with its buckets.

        While there is silence, others may yet report it, and it would be there again. The member asks again.
        """
        if me in self.site.members and region in self.site.regions and not self.silence.is_on:
            self._regions.destroy(region)

    # --- primaries ---

    def caught_up(self, me: Incarnation, key: BucketKey, epoch: Epoch, learner: Learner, now_us: int) -> None:
        """The primary says that a learner has all, and that it waits for the learner with every change from now on."""
        if self._primaries.caught_up(me, key, epoch, learner):
            self._moves.caught_up(key)
            self._goes_on_us = now_us

    def unreachable(self, me: Incarnation, epochs: dict[BucketKey, Epoch], copy: Incarnation, now_us: int) -> None:
        """The primary asks to take a copy out: the copy does not answer, or cannot take changes.

        The primary goes on waiting for that copy until everybody who stays has stored the decision. A primary that
        cannot reach any of several copies, which the coordinator hears, is taken out itself.
        """
        if self.liveness.knows(me) and not self.silence.is_on:
            self._primaries.unreachable(me, epochs, copy, now_us)

    def ready(self, me: Incarnation, keys: Iterable[BucketKey], now_us: int) -> None:
        """A new primary has reached all copies in sync, and accepts changes."""
        if not self.liveness.knows(me):
            return
        for key in keys:
            self._moves.ready(me, key)
        self._goes_on_us = now_us

    def move_bucket(self, request: MoveRequest, now_us: int) -> MoveAnswer:
        """An operator asks for a copy or a primary to be moved, and repeats that until it is told the end."""
        if self.silence.is_on:
            return UNDER_WAY  # Nothing is decided about buckets now.
        return self._moves.move(request, now_us)

    # --- suspicion ---

    def suspect(self, reporter: Incarnation, suspected: Incarnation, now_us: int) -> None:
        """A connection was refused or reset. That proves no death, but it is worth a look at once."""
        if reporter in self.site.members:
            self.liveness.suspect(suspected, now_us)

    def not_probed(self, member: Incarnation) -> None:
        """The driver could not carry out a `Probe`. The next reason for one begins another."""
        self.liveness.end_probe(member)

    def probed(self, member: Incarnation, reach: Reach, now_us: int) -> None:
        """What came of a `Probe`. It proves nothing, so no set of copies gets smaller. If it failed, other copies in
        sync take over where the member leads: they find out themselves whether they reach it.

        If nobody else was heard since the probe began, the coordinator is the one that is cut off. A member that is
        suspected again is probed again.
        """
        began_us = self.liveness.end_probe(member)
        self.liveness.hear_found(member, reach)
        if member not in self.site.members or self.silence.is_on:
            return
        if self.liveness.is_expired(member):
            self.liveness.probe_later(member, now_us)
            self._begin_anew_without(member, now_us)
        elif reach is not Reach.ANSWERED and not self.liveness.is_down(member):
            if reach is Reach.SILENT and not self.liveness.has_heard_others(
                member, now_us if began_us is None else began_us
            ):
                return
            self.liveness.go_down(member)
            self._succession.take_over_from(member)

    # --- members that go ---

    def ended(self, earlier: Incarnation, me: Incarnation, now_us: int, *, is_proved: bool) -> Refused | None:
        """A member that joins says that an earlier incarnation of its name has ended. Returns why it has to wait until
        that is known. None: it can join, and the earlier one has ended if there is a proof of it.

        Args:
            earlier: the earlier incarnation.
            me: the member.
            now_us: the time.
            is_proved: the member has proved that both are of the same folder, which one process locks.
        """
        if earlier.name != me.name or earlier == me:
            return None
        refusal = None if is_proved else self._admission.unproved_end_of(earlier, me, now_us)
        if refusal is None and (is_proved or self._admission.has_ended(earlier, now_us)):
            self.left(earlier, now_us)
        return refusal

    def leave(self, me: Incarnation, now_us: int) -> None:
        """A planned stop begins. `MayLeave` is told when nobody needs the member any more, and `StillNeeded` before."""
        if me not in self.site.members:
            self._outbox.tell(me, MayLeave())
        elif not self.silence.is_on and not self.liveness.is_expired(me):
            needed = self._moves.leave(me, now_us)
            if needed is not None:
                self._outbox.tell(me, needed)

    def stay(self, me: Incarnation, now_us: int) -> None:
        """The member has changed its mind: it does not leave."""
        if self._moves.stay(me) and self.liveness.knows(me):
            self.liveness.rise(me)
            self._regions.come_back(me, now_us)
            self._goes_on_us = now_us

    def end_site(self, now_us: int) -> None:
        """All members are about to end. Nothing is moved, and all that have asked may leave at the same time."""
        self._moves.end_site(now_us)

    def left(self, me: Incarnation, now_us: int) -> None:
        """The member has ended, and says so: its lease is over at once."""
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
        """The leases of the members are over, or they have ended. Each stays in the table only while a bucket depends
        on it. All leases end before any copy is lost: so none of these members is made a primary."""
        ended: list[Incarnation] = []
        for member in members:
            self._telling.give_up(member)
            self._primaries.forget(member)
            self.silence.end_for(member)
            self._moves.stay(member)
            self.liveness.give_up(member, now_us)
            ended.append(member)
        if not ended:
            return
        self._succession.lose_all_copies(ended, now_us)
        self._goes_on_us = now_us
        for member in ended:
            self._forget(member)
            if self.liveness.is_expired(member) and not self.liveness.is_gone(member):
                self.liveness.suspect(member, now_us)

    def _begin_anew_without(self, member: Incarnation, now_us: int) -> None:
        """More is known of a member whose lease is over: buckets that it alone holds up may begin anew."""
        self._succession.begin_anew_without(member, now_us)
        self._forget(member)

    def _forget(self, member: Incarnation) -> None:
        """Takes a member without a lease out of the table, unless a bucket may have to wait for it."""
        if self.site.naming(member):
            return
        self._admission.forget(member)
        self.liveness.forget(member)
        self._telling.forget(member)
        self.site.set_member(member, None)

    # --- time ---

    def tick(self, now_us: int) -> None:
        """Does what is due: leases that are over, copies that are to be made again."""
        self.standbys.tick(now_us)
        if not self.standbys.may_decide:
            self._has_waited = True
            return
        if self._has_waited or (self._due_us is not None and now_us - self._due_us > self.member_timeout_us // 4):
            self.liveness.wait_anew(now_us)
        self._due_us, self._has_waited = None, False
        self.silence.tick(now_us)
        self._give_up(self.liveness.end_leases(now_us), now_us)
        for member in self.liveness.due_again(now_us):
            self._begin_anew_without(member, now_us)
            self.liveness.suspect(member, now_us)
        self._lives.tick(now_us)
        self._succession.finish_removals()
        if not self.silence.is_on:
            self._replace_those_not_there(now_us)
        self._regions.let_in(now_us)
        if not self.silence.is_on and not self._leavers.site_ends:
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
        """When `tick` is to be called next though nobody asks for anything; UNTIMED: at once; None: never."""
        if not self.standbys.may_decide:
            self._due_us = None
            return self.standbys.next_us()
        silence_us, moves_us = self.silence.next_us(), self._moves.next_us()
        is_silent = silence_us is not None
        due = [*self._lives.times_us()]
        if not is_silent and not self._leavers.site_ends:
            due += self._recovery.times_us()
        due += self._queues.times_us()
        if UNTIMED in due:
            self._due_us = None
            return UNTIMED
        due += self.liveness.times_us()
        if (standby_us := self.standbys.next_us()) is not None:
            due.append(standby_us)
        due += [silence_us] if silence_us is not None else [] if moves_us is None else [moves_us]
        self._due_us = min(due, default=None)
        return self._due_us

    def _go_on(self, now_us: int) -> None:
        """Takes the steps that follow from what one message says, or one tick."""
        if self.silence.is_on:
            return
        lost = [each for each in self._succession.take_lost_in_silence() if self.liveness.is_expired(each)]
        if lost:
            self._succession.lose_all_copies(lost, now_us)
            for member in lost:
                self._forget(member)
        self._recovery.go_on(now_us)
        self._moves.go_on(now_us)

    def _begin_generation(self, now_us: int) -> None:
        """A member knows decisions that are not here: those of this coordinator are not the newest.

        Nothing is decided about a bucket until everybody who was in sync, as far as anybody knows, has reported it, and
        nothing at all before a member that nobody knows of has lost its lease.
        """
        self.site.begin_generation()
        self.silence.begin(now_us, self.liveness.wait_us)
        self.reports.begin()
        self._telling.begin()

    # --- actions ---

    def take_actions(self) -> list[Action]:
        """What the driver is to do now, in this order. Every decision made since the last call is stored first."""
        if not self.standbys.may_decide:
            self._telling.tell_all()
            actions, store = self._outbox.take(), self.site.take_store()
            return actions if store is None else [store, *actions]
        if self._goes_on_us is not None:
            now_us, self._goes_on_us = self._goes_on_us, None
            self._go_on(now_us)
        if not self.silence.is_on:
            for key, reported in self.reports.take_complete():
                self._succession.decide_anew(key, reported)
            self._lives.settle()
            if not self._leavers.site_ends:
                self._queues.settle()
        self._telling.tell_all()
        self._lives.say_lost(self._outbox, site_ends=self._leavers.site_ends)
        actions = self._outbox.take()
        store = self.site.take_store()
        return actions if store is None else [store, *actions]

    def take_refusals(self, me: Incarnation) -> list[Refused]:
        """What was refused to the member since the last actions were taken. It is not among the actions any more.

        So a refusal is known to be that of the request that was handed over last.
        """
        return self._outbox.take_refusals(me)

    # --- questions ---

    @property
    def lost_buckets(self) -> int:
        """The buckets of which no copy was left, since this run began."""
        return self._lives.lost_buckets

    def may_hear(self, me: Incarnation) -> bool:
        """Whether the member may be told decisions: in a new generation it reports first what it knows."""
        return self._telling.may_hear(me)

    def tables(self, since: int, lease_us: int) -> Tables:
        """What a member is told that has stored everything up to number `since`."""
        return self._telling.tables(since, lease_us)

    def answer(self, since: int, lease_us: int) -> Tables:
        """The same for a question for news. It may end a little before the newest decision."""
        return self._telling.answer(since, lease_us)

    def awaited_incarnations(self, name: str) -> list[Incarnation]:
        """The incarnations of a member that are not heard, and for which buckets may wait. They can be revoked."""
        awaited = self.reports.waited_for.keys() | self.liveness.expired
        return sorted(each for each in awaited if each.name == name)

    def status(self, now_us: int) -> dict[str, Any]:
        """What an operator sees, as plain values."""
        return {
            **status_of_site(self.site, self.silence, now_us),
            **self.standbys.status(),
            "lost_buckets": self.lost_buckets,
            "believes_strangers": self.believes_strangers(now_us),
            "waiting_regions": waiting_regions(self.site, self.liveness),
            "members": status_of_members(self.site, self.silence, self.liveness, self.reports, self._leavers, now_us),
        }
