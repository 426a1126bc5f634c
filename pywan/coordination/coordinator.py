"""Owns the decisions of a site: its view, and of every bucket the primary, the copies in sync and those that learn.

A state machine without sockets, disk or clock. Its driver hands it requests and the time, then takes its actions and
does them in their order: a decision is stored before anybody hears of it. A member repeats a request until the tables
show its effect, so the coordinator may drop any request. The design follows PacificA (Lin et al., 2008) with a single
configuration manager; docs/decisions/0056 and 0065 say where it differs, and what the members do in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from pywan.coordination.actions import Action, Lost, Probe, Store, Tell
from pywan.coordination.decisions import Decisions
from pywan.coordination.messages import MayLeave, Refused, Tables
from pywan.coordination.moves import Moves
from pywan.coordination.placement import choose_copies, choose_primary
from pywan.coordination.reports import Reports
from pywan.coordination.tables import (
    DRIFT_DIVISOR,
    MEMBER_TIMEOUT_US,
    NO_DECISION,
    NO_EPOCH,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Kind,
    Learner,
    MemberProfile,
    Reach,
    RegionAttributes,
)

PROMISES_END_US = 400_000  # After this time a promise of a copy is over (WAN_PROMISE_US), whatever the clocks do.
UNTIMED = 0  # The next tick is to come at once. It was never due at another time, so it is not late.
MEMBERS_MAX = 250  # Of a site. A member has lanes to 256 others (WAN_TAIL_LANES_MAX); some may be of members that went.
LEARNERS_AT_ONCE = 8  # Images of one region that one member takes at the same time.


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
        self.name = name
        self.site = Decisions(stored, draw_step=draw_step, site_identity=site_identity)
        self.member_timeout_us = member_timeout_us
        self.wait_us = member_timeout_us + member_timeout_us // DRIFT_DIVISOR
        self._machine = machine
        self.lost_buckets = 0  # Buckets of which no copy was left: their changes are gone, and the next life is empty.
        self._lease_until: dict[Incarnation, int] = {}
        self._stored_by: dict[Incarnation, int] = {}  # Newest decision that the member has stored.
        self._told: dict[Incarnation, int] = {}  # Newest decision that was sent to it.
        self._heard_us: dict[Incarnation, int] = {}  # When the member was heard last.
        self._probing: dict[Incarnation, int] = {}  # Who is probed, and since when.
        self._down: set[Incarnation] = set()  # Unreachable by a probe, with a lease that may still run.
        # Proved to be gone: nothing is acknowledged there any more. Profiles of later incarnations keep that proof.
        self._gone = {
            each
            for each in self.site.members
            for later in self.site.members.values()
            if later.incarnation.name == each.name and each.member_id in later.before
        }
        # By member: which others it reaches over its connections, as it said last.
        self._reaches: dict[Incarnation, frozenset[Incarnation]] = {}
        # Members that were asked whether an earlier incarnation of theirs has ended.
        self._asked_about: set[tuple[Incarnation, Incarnation]] = set()
        self._newcomer_us = -1  # When anybody asked last to be taken in.
        self._due_us: int | None = None  # When `tick` was to be called, as the driver was told.
        # Members without a lease that a set of copies still names, and when to probe them again.
        self._expired: dict[Incarnation, int] = {}
        self._moves = Moves(self.site, self)
        # By primary: the copies that it could not reach, and when.
        self._complaints: dict[Incarnation, dict[Incarnation, int]] = {}
        self._recovery_at: dict[str, int] = {}  # When lost copies of the region are made again. UNTIMED: at once.
        self._reports = Reports(self.site, self)
        # Regions that may have buckets which nobody has.
        self._unsettled: set[str] = set(self.site.regions)
        # Members that asked to host a region, each with its weight. They wait for those who have it.
        self._to_let_in: dict[tuple[Incarnation, str], int] = {}
        self._actions: list[Action] = []
        # By region: when buckets that were lost may be made. UNTIMED: the next tick says when.
        self._anew_at: dict[str, int] = {}
        self._lost: Counter[str] = Counter()  # By region: the lost buckets of which nobody was told yet.
        self._silent = set(self.site.members)  # Members of earlier runs that this run has not heard.
        self._silence_until = now_us + self.wait_us
        # Members that were given up while there was silence. Their copies are lost when it is over: until then somebody
        # may report later decisions about these buckets.
        self._lost_in_silence: set[Incarnation] = set()
        for incarnation in self.site.members:
            self._lease_until[incarnation] = now_us + self.wait_us
            self._heard_us[incarnation] = now_us
        for region in self.site.regions:
            self._recovery_at[region] = now_us + self.wait_us
        if any(each.in_sync and each.epoch.run < self.site.generation for each in self.site.buckets.values()):
            # An earlier run did not hear all reports of its generation.
            self._begin_generation(now_us)

    # --- requests of members ---

    def join(
        self,
        profile: MemberProfile,
        regions: dict[str, RegionAttributes],
        holdings: dict[BucketKey, Holding],
        stored: DecisionId,
        now_us: int,
    ) -> None:
        """A member comes, or comes back to a coordinator that has forgotten it.

        Args:
            profile: what it is. Regions that it has already are in `hosting`.
            regions: the attributes of those. `shared` is as the member knows it.
            holdings: all buckets that it knows, where it was a member of this site before.
            stored: the newest decision that it has stored; NO_DECISION: none.
        """
        me = profile.incarnation
        refusal = self._refusal_of(profile, stored, now_us)
        if refusal is not None:
            self._actions.append(Tell(me, refusal))
            return
        has_stored = self._stored_by.get(me, 0) if me in self.site.members else 0
        if has_stored and (stored.run < self.site.generation or stored.number < has_stored):
            return  # The request was late on its way: the member has come since, and has said more.
        epochs = {DecisionId(*each.bucket.epoch) for each in holdings.values()}  # Each is at most its decision.
        for known in (stored, profile.seen, *sorted(epochs)):
            if known.run >= self.site.generation and not self.site.made(known):
                if not self.site.has_room_above(known):
                    reason = f"member {me.name} names decision {known}, and none can be numbered above it"
                    self._actions.append(Tell(me, Refused(f"{reason}: start it in an empty folder")))
                    return
                self.site.rise_above(known)
                self._begin_generation(now_us)
        for earlier in self._earlier_incarnations(me):
            if earlier.member_id in profile.before:  # One process locks a folder: those that it names are gone.
                self.left(earlier, now_us)
        for region, attributes in regions.items():
            there = self.site.regions.get(region)
            if there is None:
                self.site.set_region(region, attributes)
            elif attributes.shared and not there.shared:
                self.site.set_region(region, replace(there, shared=True))
        self._expired.pop(me, None)
        if self.site.members.get(me) != profile:
            self.site.set_member(me, profile)
            self._moves.site_goes_on()
        self._reports.take(me, holdings)
        self._told[me] = self._stored_by[me] = 0
        for region, _ in profile.hosting:
            self._unsettled.add(region)
            if self._having(region) - {me}:
                self._begin_sharing(region)
        self._hear(me, now_us)
        self._come_back(me, now_us)

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
            self._actions.append(Tell(me, Refused("the coordinator does not know all decisions", report=True)))
            return
        if self._is_given_up(me):
            self._actions.append(Tell(me, Refused(f"member {me} was not heard for its whole lease", join_again=True)))
            return
        self._stored_by[me] = self._told[me] = stored.number
        if reaches is not None:
            self._reaches[me] = frozenset(reaches)
        self._hear(me, now_us)
        self._finish_removals()
        self._let_in(now_us)
        self._go_on(now_us)

    def _hear(self, me: Incarnation, now_us: int) -> None:
        self._silent.discard(me)
        self._lease_until[me] = now_us + self.wait_us
        self._heard_us[me] = now_us
        self._tell(me, self.member_timeout_us)
        if (me in self._down and not self._moves.is_released(me)) or me in self._expired:
            self._down.discard(me)
            self._expired.pop(me, None)
            self._come_back(me, now_us)

    def host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        """The member creates the region. `weight`: local-max-memory in MB; 0: it is an accessor.

        It may go on when the tables show it. While there is silence, nobody knows yet who else has the region. A second
        member is let in when everybody who has the region knows that others may have it (`shared`): until then they
        work as if they were alone.
        """
        if not self.knows(me) or self._silent:
            return
        known, is_used = self.site.regions.get(region), self._is_used(region, me)
        if known is not None and self._may_alter(region, me, known, attributes):
            known = replace(known, only_once=attributes.only_once)
            self.site.set_region(region, known)
        if known is not None and not known.is_like(attributes):
            if is_used:
                self._actions.append(Tell(me, Refused(_mismatch(region, known, attributes))))
                return
            self._drop_buckets(region)
        there = self.site.hosts(region).keys() - {me} - self._expired.keys()
        if attributes.only_once and there:
            reason = (
                f"region {region}: member {min(there).name} has it already, and {attributes.only_once}: such a region "
                f"is not shared in this version; create it on one member only"
            )
            self._actions.append(Tell(me, Refused(reason)))
            return
        if known is None or not is_used:  # It begins as the region of one member, also if it was shared once.
            known = replace(attributes, shared=False)
            if self.site.regions.get(region) != known:
                self.site.set_region(region, known)
        if self._having(region) - {me}:
            self._begin_sharing(region)
        self._to_let_in[me, region] = weight
        self._let_in(now_us)

    def _may_alter(self, region: str, me: Incarnation, known: RegionAttributes, told: RegionAttributes) -> bool:
        """Whether the member says newly whether others can have the region, which it alone has, and knows to have."""
        is_alone = not known.shared and self._having(region) <= {me}
        return is_alone and known.only_once != told.only_once and replace(known, only_once=told.only_once).is_like(told)

    def _having(self, region: str) -> set[Incarnation]:
        """Those who have the region, or may have something of it."""
        named = {each for key in self.site.of_region[region] for each in self.site.buckets[key].named}
        return named | (self.site.hosts(region).keys() - self._expired.keys())

    def _begin_sharing(self, region: str) -> None:
        """Others may have the region from now on. Everybody who has it will know that before they do."""
        attributes = self.site.regions.get(region)
        if attributes is not None and not attributes.only_once and not attributes.shared:
            self.site.set_region(region, replace(attributes, shared=True))

    def _is_aware(self, region: str, member: Incarnation) -> bool:
        """Whether the member knows that others may have the region. Before that it works as if it were alone, and
        needs no lease. Others have it only if all who had it were aware."""
        attributes = self.site.regions.get(region)
        if attributes is None or not attributes.shared:
            return False
        has_stored = self._stored_by.get(member, 0) >= self.site.decided_at(region)
        return has_stored or bool(self.site.hosts(region).keys() - {member})

    def _let_in(self, now_us: int) -> None:
        """Lets in those who wait to host a region, as soon as everybody who has it is aware of them."""
        for (me, region), weight in list(self._to_let_in.items()):
            attributes = self.site.regions.get(region)
            if attributes is not None and self.knows(me):
                if not all(self._is_aware(region, each) for each in self._having(region) - {me}):
                    continue
                self._host(me, region, attributes, weight, now_us)
            del self._to_let_in[me, region]

    def _host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        profile = self.site.members[me]
        if (region, weight) not in profile.hosting:
            others = tuple(each for each in profile.hosting if each[0] != region)
            self.site.set_member(me, replace(profile, hosting=(*others, (region, weight))))
            delay_ms = 0 if attributes.kind is Kind.REPLICATE else attributes.startup_recovery_delay_ms
            if weight and delay_ms >= 0:
                self._recover_from(region, now_us + delay_ms * 1000)
        self._unsettled.add(region)

    def unhost(self, me: Incarnation, region: str, now_us: int) -> None:
        """The member has closed the region. Its copies are gone; a sole copy is gone with its data."""
        self._to_let_in.pop((me, region), None)
        profile = self.site.members.get(me)
        if profile is None:
            return
        hosting = tuple(each for each in profile.hosting if each[0] != region)
        if hosting != profile.hosting:
            self.site.set_member(me, replace(profile, hosting=hosting))
        for key, bucket in self.site.held_by(me):
            if key.region != region:
                continue
            self.lose_copy(key, bucket, me, now_us)
            after = self.site.buckets[key]
            if after.named == {me} and key not in self._reports.undecided:
                self._lose_bucket(key, after)
        self._unsettled.add(region)

    def destroy_region(self, me: Incarnation, region: str) -> None:
        """The region goes everywhere, with its buckets."""
        if me not in self.site.members or region not in self.site.regions:
            return
        self._drop_buckets(region)
        self._anew_at.pop(region, None)
        for member, profile in list(self.site.members.items()):
            if any(name == region for name, _ in profile.hosting):
                hosting = tuple(each for each in profile.hosting if each[0] != region)
                self.site.set_member(member, replace(profile, hosting=hosting))
        self._recovery_at.pop(region, None)
        self.site.set_region(region, None)

    def caught_up(self, me: Incarnation, key: BucketKey, epoch: Epoch, learner: Learner, now_us: int) -> None:
        """The primary says that a learner has all, and that it waits for the learner with every change from now on."""
        bucket = self._of_primary(me, key, epoch)
        if bucket is None or learner not in bucket.learners:
            return  # A report of an earlier transfer: the learner was removed meanwhile.
        learners = tuple(each for each in bucket.learners if each != learner)
        in_sync = (*bucket.in_sync, learner.member)
        self.site.set_bucket(key, replace(bucket, learners=learners, in_sync=in_sync, version=bucket.version + 1))
        if key.region in self._recovery_at:
            self._recover(key.region, now_us)
        self._moves.caught_up(key.region)
        self._go_on(now_us)

    def unreachable(self, me: Incarnation, epochs: dict[BucketKey, Epoch], copy: Incarnation, now_us: int) -> None:
        """The primary asks to take a copy out: the copy does not answer, or cannot take changes.

        The primary goes on waiting for that copy until everybody who stays has stored the decision. A primary that
        cannot reach any of several copies, which the coordinator hears, is taken out itself.
        """
        if not self.knows(me) or self._silent:
            return
        held = [(key, bucket) for key in epochs if (bucket := self._of_primary(me, key, epochs[key])) is not None]
        if any(copy in bucket.in_sync for _, bucket in held) and self._is_cut_off(me, copy, now_us):
            self._down.add(me)
            self._lose_all_copies(me, now_us)
            return
        for key, bucket in held:
            if copy != me and copy in bucket.holders:
                self.lose_copy(key, bucket, copy, now_us)

    def suspect(self, reporter: Incarnation, suspected: Incarnation, now_us: int) -> None:
        """A connection was refused or reset. That proves no death, but it is worth a look at once."""
        if reporter in self.site.members:
            self._probe(suspected, now_us)

    def _probe(self, suspected: Incarnation, now_us: int) -> None:
        if suspected in self.site.members and suspected not in self._down and suspected not in self._probing:
            self._probing[suspected] = now_us
            self._actions.append(Probe(self.site.members[suspected]))

    def not_probed(self, member: Incarnation) -> None:
        """The driver could not carry out a `Probe`. The next reason for one begins another."""
        self._probing.pop(member, None)

    def probed(self, member: Incarnation, reach: Reach, now_us: int) -> None:
        """What came of a `Probe`. It proves nothing, so no set of copies gets smaller. If it failed, other copies in
        sync take over where the member leads: they find out themselves whether they reach it.

        If nobody else was heard since the probe began, the coordinator is the one that is cut off. A member that is
        suspected again is probed again.
        """
        began_us = self._probing.pop(member, now_us)
        if member not in self.site.members or self._silent:
            return
        if member in self._expired:
            self._expired[member] = now_us + self.member_timeout_us
            self._begin_anew_without(member, now_us)
        elif reach is not Reach.ANSWERED and member not in self._down:
            if reach is Reach.SILENT and not self._has_heard_others(member, began_us):
                return
            self._down.add(member)
            self._take_over_from(member, now_us)

    def _has_heard_others(self, member: Incarnation, since_us: int) -> bool:
        """Whether a member was heard since then that shows that this coordinator is not cut off itself: one of another
        machine, if there are any beside `member`."""
        others = [each for each in self.site.members if each != member and each not in self._gone]
        elsewhere = [each for each in others if self.site.members[each].machine not in ("", self._machine)]
        if not elsewhere and self._newcomer_us >= since_us:
            return True
        return any(self._heard_us.get(each, -1) >= since_us for each in elsewhere or others)

    def _take_over_from(self, member: Incarnation, now_us: int) -> None:
        for key, bucket in self.held_by(member):
            if bucket.primary == member and key not in self._reports.undecided:
                self._replace_primary(key, bucket, {member}, now_us, in_sync=bucket.in_sync)

    def leave(self, me: Incarnation, now_us: int) -> None:
        """A planned stop begins. `MayLeave` is told when nobody needs the member any more, and `StillNeeded` before."""
        if me not in self.site.members:
            self._actions.append(Tell(me, MayLeave()))
        elif not self._silent and me not in self._expired:
            needed = self._moves.leave(me, now_us)
            if needed is not None:
                self._actions.append(Tell(me, needed))

    def stay(self, me: Incarnation, now_us: int) -> None:
        """The member has changed its mind: it does not leave."""
        if self._moves.stay(me) and self.knows(me):
            self._down.discard(me)
            self._come_back(me, now_us)
            self._go_on(now_us)

    def end_site(self, now_us: int) -> None:
        """All members are about to end. Nothing is moved, and all that have asked may leave at the same time."""
        self._moves.end_site(now_us)

    def ready(self, me: Incarnation, keys: Iterable[BucketKey], now_us: int) -> None:
        """A new primary has reached all copies in sync, and accepts changes."""
        if not self.knows(me):
            return
        for key in keys:
            self._moves.ready(me, key)
        self._go_on(now_us)

    def _go_on(self, now_us: int) -> None:
        if self._silent:
            return
        lost, self._lost_in_silence = self._lost_in_silence, set()
        for member in sorted(lost):
            if member in self._expired:
                self._lose_all_copies(member, now_us)
                self._forget(member)
        self._moves.go_on(now_us)

    def left(self, me: Incarnation, now_us: int) -> None:
        """The member has ended, and says so: its lease is over at once."""
        if me in self.site.members:
            self._gone.add(me)
            self._give_up(me, now_us)
        self._reports.never_comes(me)

    def revoke(self, me: Incarnation, now_us: int) -> None:
        """An operator says that an incarnation, for which buckets wait, never comes back."""
        self._reports.never_comes(me)
        if me in self._expired:
            self._gone.add(me)
            self._begin_anew_without(me, now_us)

    # --- time ---

    def tick(self, now_us: int) -> None:
        """Does what is due: leases that are over, copies that are to be made again."""
        if self._due_us is not None and now_us - self._due_us > self.member_timeout_us // 4:
            self._wait_anew(now_us)
        self._due_us = None
        if now_us >= self._silence_until:
            self._silent.clear()
        self._end_leases(now_us)
        for region, due in list(self._anew_at.items()):
            if due == UNTIMED:
                self._anew_at[region] = now_us + PROMISES_END_US
            elif due <= now_us:
                del self._anew_at[region]
                self._unsettled.update(self.site.regions)  # Those that are colocated with it waited too.
        self._finish_removals()
        for member in sorted(self._down | self._expired.keys()):
            if not self._silent and member in self._expired:
                self._begin_anew_without(member, now_us)
            elif not self._silent:
                self._take_over_from(member, now_us)
        self._let_in(now_us)
        for region, due in list(self._recovery_at.items()):
            if due <= now_us and not self._silent and not self._moves.site_ends:
                self._recover(region, now_us)
        self._go_on(now_us)

    def next_us(self) -> int | None:
        """When `tick` is to be called next though nobody asks for anything; UNTIMED: at once; None: never."""
        recoveries = () if self._silent or self._moves.site_ends else self._recovery_at.values()
        if UNTIMED in (*self._anew_at.values(), *recoveries):
            self._due_us = None
            return UNTIMED
        silence = (self._silence_until,) if self._silent else ()
        moves = self._moves.next_us()
        due = (
            *self._lease_until.values(),
            *self._expired.values(),
            *self._anew_at.values(),
            *recoveries,
            *silence,
            *(() if moves is None or self._silent else (moves,)),
        )
        self._due_us = min(due, default=None)
        return self._due_us

    def _wait_anew(self, now_us: int) -> None:
        """The coordinator was stopped for a while, and has not heard what members said meanwhile. None of them is given
        up before it had time to speak."""
        for member, until in self._lease_until.items():
            self._lease_until[member] = max(until, now_us + self.wait_us)

    def _end_leases(self, now_us: int) -> None:
        for member, until in list(self._lease_until.items()):
            if until <= now_us:
                self._end_lease(member, now_us)
        for member, due in list(self._expired.items()):
            if due <= now_us:
                self._expired[member] = now_us + self.member_timeout_us
                self._begin_anew_without(member, now_us)
                self._probe(member, now_us)

    def _end_lease(self, member: Incarnation, now_us: int) -> None:
        """A lease is over. Its member is given up, unless others reach it, or it is this coordinator that is cut off.

        A lease that an earlier run gave is over in any case: nobody was heard by this run.
        """
        soon_us = now_us + self.member_timeout_us // 4
        is_reached = any(
            member in reached and self._heard_us.get(each, -1) >= now_us - self.member_timeout_us
            for each, reached in self._reaches.items()
        )
        if is_reached or not self._has_heard_others(member, now_us - self.member_timeout_us // 4):
            self._lease_until[member] = soon_us
        else:
            self._give_up(member, now_us)

    # --- actions ---

    def take_actions(self) -> list[Action]:
        """What the driver is to do now, in this order. Every decision made since the last call is stored first."""
        if not self._silent:
            for key, reported in self._reports.take_complete():
                self._decide_anew(key, reported)
        for region in sorted(self._unsettled):
            self._settle(region)
        for member in self.site.members:
            if member in self._told:
                self._tell(member, 0)
        if not self._moves.site_ends:  # Who ends the site has said what is lost with it.
            self._actions += [Lost(region, count) for region, count in sorted(self._lost.items())]
        self.lost_buckets += self._lost.total()
        self._lost.clear()
        actions, self._actions = self._actions, []
        store = self.site.take_store()
        return actions if store is None else [store, *actions]

    def _tell(self, member: Incarnation, lease_us: int) -> None:
        """Sends what the member has not been sent, and the lease. Nothing at all is not sent."""
        told = self._told[member]
        if told >= self.site.number and not lease_us:
            return
        self._told[member] = self.site.number
        self._actions.append(Tell(member, self.tables(told, lease_us)))

    # --- decisions ---

    def _make(self, key: BucketKey, attributes: RegionAttributes, before: Bucket | None, begins: Epoch) -> None:
        """A new and empty life of a bucket, under the epoch `begins`. Nothing happens while no member can store it: the
        bucket waits."""
        weights = self.storing(key.region)
        if not weights:
            return
        load = self.site.loads[key.region]
        beside = self._beside(key, attributes, begins=begins)
        if beside and all(each in weights for each in beside):
            copies, primary = list(beside), beside[0]
            if len(copies) < attributes.copies_wanted(len(weights)):
                # Its members may have come long ago. The copies that they were to learn then were of no use.
                self._recover_from(key.region, UNTIMED)
        else:
            copies = choose_copies(load, weights, attributes.copies_wanted(len(weights)))
            primary = choose_primary(load, copies)
        version = before.version + 1 if before else 1
        self.site.set_bucket(key, Bucket(begins, begins.word, 0, version, primary, tuple(copies)))

    def _beside(
        self, key: BucketKey, attributes: RegionAttributes, *, begins: Epoch = NO_EPOCH, learners: bool = False
    ) -> tuple[Incarnation, ...]:
        """The copies of the bucket with which this one is colocated, its primary first. (): there is none.

        With `begins`, that bucket is made under this epoch if nobody has it. With `learners`, those that learn it come
        last.
        """
        parent = attributes.colocated_with
        theirs = self.site.regions.get(parent)
        if theirs is None:
            return ()
        beside = BucketKey(parent, key.number)
        bucket = self.site.buckets.get(beside)
        if begins != NO_EPOCH and parent not in self._anew_at and (bucket is None or bucket.primary is None):
            self._make(beside, theirs, bucket, begins)
            bucket = self.site.buckets.get(beside)
        if bucket is None or bucket.primary is None:
            return ()
        others = (each for each in bucket.in_sync if each != bucket.primary)
        return (bucket.primary, *others, *(bucket.learning if learners else ()))

    def release(self, member: Incarnation, lost: tuple[tuple[str, int], ...]) -> None:
        """Lets a member go that has asked. It is told once; it asks again if it did not hear that."""
        self._down.add(member)
        self._actions.append(Tell(member, MayLeave(lost)))

    def held_by(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """As `Decisions.held_by`. A bucket comes after the one with which it is colocated, and follows it."""
        return sorted(self.site.held_by(member), key=lambda each: self._depth(each[0].region))

    def _depth(self, region: str) -> int:
        depth = 0
        attributes = self.site.regions.get(region)
        while attributes is not None and attributes.colocated_with and depth < len(self.site.regions):
            attributes, depth = self.site.regions.get(attributes.colocated_with), depth + 1
        return depth

    def _new_life(self) -> Epoch:
        """The epoch under which a new life begins. It is above all epochs that any bucket has had, also one of a region
        that was destroyed since: an epoch counts up by one with a decision, and so by less than the decisions do."""
        return Epoch(self.site.run, self.site.number + 1)

    def promote(
        self, key: BucketKey, bucket: Bucket, candidates: list[Incarnation], in_sync: tuple[Incarnation, ...]
    ) -> None:
        """Makes one of `candidates`, who have all that was acknowledged, the primary of the copies `in_sync`.

        The new primary accepts changes when all of them have adopted its epoch. So the set counts from then on, and
        nobody who left it has to be waited for.
        """
        attributes = self.site.regions.get(key.region)
        beside = self._beside(key, attributes)[:1] if attributes is not None else ()
        primary = (
            beside[0] if beside and beside[0] in candidates else choose_primary(self.site.loads[key.region], candidates)
        )
        before = (*bucket.in_sync, *bucket.leaving)
        unfenced = before if len(before) > 1 and len(in_sync) == 1 else bucket.unfenced
        learners = tuple(each for each in bucket.learners if each.member not in in_sync)
        epoch = max(Epoch(self.site.run, bucket.epoch.number + 1), Epoch.of(bucket.life))
        self.site.set_bucket(
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

    def _lose_all_copies(self, member: Incarnation, now_us: int) -> None:
        if self._silent:
            self._lost_in_silence.add(member)
            return
        for key, bucket in self.held_by(member):
            self.lose_copy(key, bucket, member, now_us)

    def lose_copy(self, key: BucketKey, bucket: Bucket, copy: Incarnation, now_us: int) -> None:
        """Takes a copy out, if somebody else has everything or it never acknowledges anything again."""
        if key in self._reports.undecided:
            return
        self._schedule_recovery(key.region, copy, now_us)
        if copy in bucket.learning:
            learners = tuple(each for each in bucket.learners if each.member != copy)
            self.site.set_bucket(key, replace(bucket, learners=learners))
            return
        if bucket.primary is not None and (copy == bucket.primary or not self.is_there(bucket.primary)):
            self._replace_primary(key, bucket, {copy, bucket.primary}, now_us, in_sync=self._kept_set(bucket, copy))
        elif copy in bucket.in_sync:
            stay = tuple(each for each in bucket.in_sync if each != copy)
            leaving = (*bucket.leaving, copy)
            self.site.set_bucket(key, replace(bucket, in_sync=stay, leaving=leaving, version=bucket.version + 1))

    def _kept_set(self, bucket: Bucket, gone: Incarnation) -> tuple[Incarnation, ...] | None:
        """The set without `gone`, if the primary is another one and is down: a probe that failed proves nothing about
        it, so it stays. None: the primary goes too."""
        if bucket.primary == gone or bucket.primary not in self._down:
            return None
        return tuple(each for each in bucket.in_sync if each != gone)

    def _replace_primary(
        self,
        key: BucketKey,
        bucket: Bucket,
        lost: set[Incarnation],
        now_us: int,
        *,
        in_sync: tuple[Incarnation, ...] | None = None,
    ) -> None:
        """The primary cannot be heard. Somebody else who has everything takes over, if there is one.

        A member that leaves the set still has everything: the primary waited for it, as the removal was not in effect.
        `in_sync`: the set of the new primary, where nothing proves that somebody is to be taken out of it.
        """
        if in_sync is not None:
            candidates = [each for each in in_sync if each not in lost and self._is_usable(each)]
            if not candidates:
                candidates = [each for each in bucket.leaving if each not in lost and self._is_usable(each)]
                in_sync = (*in_sync, *candidates)
            if candidates:
                self.promote(key, bucket, candidates, in_sync)
            return
        stay = tuple(each for each in bucket.in_sync if each not in lost)
        candidates = [each for each in stay if self._is_usable(each)] or [each for each in stay if self.is_there(each)]
        if not candidates:
            candidates = [each for each in bucket.leaving if each not in lost and self.is_there(each)]
            stay = (*stay, *candidates)
        if candidates:
            self.promote(key, bucket, candidates, stay)
        elif self._is_over(key.region, bucket, now_us):
            self._lose_bucket(key, bucket)

    def _lose_bucket(self, key: BucketKey, bucket: Bucket) -> None:
        """Nobody has the bucket any more. It begins anew, empty, when a member can store it (`_settle`). Where others
        had the region too, no earlier primary can answer any more then under the promise of a copy that has ended."""
        attributes = self.site.regions.get(key.region)
        if attributes is None or attributes.shared:
            self._lost[key.region] += 1
            self._anew_at[key.region] = UNTIMED
        self.site.set_bucket(
            key,
            replace(bucket, primary=None, in_sync=(), leaving=(), learners=(), unfenced=(), version=bucket.version + 1),
        )
        self._unsettled.add(key.region)

    def _finish_removals(self) -> None:
        """A removal is in effect when everybody who stays has stored it; then the primary waits for nobody else.

        An earlier set can acknowledge nothing any more when one of its members has stored the decision that ended it.
        While there is silence, somebody may know later decisions about these buckets.
        """
        if self._silent:
            return
        for key in sorted(self.site.unfinished - self._reports.undecided):
            bucket, decided = self.site.buckets[key], self.site.decided_at(key)
            stored = [self._stored_by.get(each, 0) >= decided for each in bucket.in_sync]
            if bucket.leaving and all(stored):
                bucket = replace(bucket, leaving=())
            if any(self._stored_by.get(each, 0) >= decided for each in bucket.unfenced):
                bucket = replace(bucket, unfenced=())
            if bucket != self.site.buckets[key]:  # An older file may still name those who left: this one is newer.
                self.site.set_bucket(key, replace(bucket, version=bucket.version + 1))

    def _give_up(self, member: Incarnation, now_us: int) -> None:
        """The lease of the member is over, or it has ended. It stays in the table only while a bucket depends on it."""
        for record in (self._lease_until, self._told, self._complaints, self._reaches):
            record.pop(member, None)
        for group in (self._down, self._silent):
            group.discard(member)
        self._moves.stay(member)
        self._expired[member] = now_us + self.member_timeout_us
        self._lose_all_copies(member, now_us)
        self._forget(member)
        self._go_on(now_us)
        if member in self._expired and member not in self._gone:
            self._probe(member, now_us)

    def _begin_anew_without(self, member: Incarnation, now_us: int) -> None:
        """More is known of a member whose lease is over: buckets that it alone holds up may begin anew."""
        for key, bucket in self.site.naming(member):
            if bucket.primary is not None and key not in self._reports.undecided and not self.is_there(bucket.primary):
                in_sync = self._kept_set(bucket, member)
                self._replace_primary(key, bucket, {bucket.primary}, now_us, in_sync=in_sync)
        self._forget(member)

    def _forget(self, member: Incarnation) -> None:
        """Takes a member without a lease out of the table, unless a bucket may have to wait for it."""
        if self.site.naming(member):
            return
        self._gone.discard(member)
        self._asked_about = {each for each in self._asked_about if member not in each}
        for record in (self._probing, self._heard_us, self._expired, self._stored_by):
            record.pop(member, None)
        self.site.set_member(member, None)

    def _come_back(self, me: Incarnation, now_us: int) -> None:
        """A member with regions is heard that was not here, or was taken for down. It gets copies again."""
        for region, weight in self.site.members[me].hosting:
            if weight:
                self._unsettled.add(region)
                self._recover_from(region, now_us + self.member_timeout_us)

    # --- regions ---

    def _settle(self, region: str) -> None:
        """Makes the buckets of a region that nobody has, when a member can store them.

        If none can, one may come later: then the region is settled again.
        """
        if self._silent:
            return
        self._unsettled.discard(region)
        attributes = self.site.regions.get(region)
        if attributes is None or {region, attributes.colocated_with} & self._anew_at.keys():
            return
        if not self.storing(region):
            return
        begins = self._new_life()
        for number in range(attributes.total_num_buckets):
            key = BucketKey(region, number)
            bucket = self.site.buckets.get(key)
            if key not in self._reports.undecided and (bucket is None or bucket.primary is None):
                self._make(key, attributes, bucket, begins)

    def _is_used(self, region: str, me: Incarnation) -> bool:
        """Whether another member has the region, or a bucket of it is still somewhere."""
        others = self.site.hosts(region).keys() - {me} - self._expired.keys()
        return bool(others) or any(self.site.buckets[key].in_sync for key in self.site.of_region[region])

    def _drop_buckets(self, region: str) -> None:
        for key in list(self.site.of_region[region]):
            self._reports.drop(key)
            self.site.set_bucket(key, None)

    # --- recovery of redundancy ---

    def _schedule_recovery(self, region: str, copy: Incarnation, now_us: int) -> None:
        """A copy was lost. A member that is there gets it again soon; `recovery-delay` counts for one that is gone."""
        attributes = self.site.regions.get(region)
        if attributes is None:
            return
        if self._is_usable(copy):
            self._recover_from(region, now_us + self.member_timeout_us)
        elif attributes.kind is Kind.PARTITION and attributes.recovery_delay_ms >= 0:
            self._recover_from(region, now_us + attributes.recovery_delay_ms * 1000)

    def _recover_from(self, region: str, at_us: int) -> None:
        self._recovery_at[region] = min(at_us, self._recovery_at.get(region, at_us))

    def _recover(self, region: str, now_us: int) -> None:
        """Gives buckets with too few copies learners, a few at a time; goes on when one of them has caught up."""
        attributes, weights = self.site.regions[region], self.storing(region)
        wanted = attributes.copies_wanted(len(weights))
        again = False
        for key in list(self.site.of_region[region]):
            bucket = self.site.buckets[key]
            if bucket.primary is None or key in self._reports.undecided:
                continue
            missing = wanted - sum(each in weights for each in bucket.holders)
            if missing > 0:
                others = weights.keys() - {*bucket.holders, *bucket.leaving}
                added = self.add_learners(key, attributes, missing)
                again = again or added < min(missing, len(others)) or bool(bucket.leaving)
                bucket = self.site.buckets[key]
            again = again or bool(bucket.learners)
        if again:
            self._recovery_at[region] = now_us + self.member_timeout_us
        else:
            self._recovery_at.pop(region, None)

    def add_learners(self, key: BucketKey, attributes: RegionAttributes, count: int) -> int:
        """Names up to `count` members that begin to learn the bucket: those that have the bucket with which it is
        colocated, then those with the most room. Returns how many it has named: a member takes a few images at a time.
        """
        bucket, load = self.site.buckets[key], self.site.loads[key.region]
        held = {*bucket.holders, *bucket.leaving}
        free = {
            each: weight
            for each, weight in self.storing(key.region).items()
            if each not in held and load.learning[each] < LEARNERS_AT_ONCE
        }
        beside = [each for each in self._beside(key, attributes, learners=True) if each in free][:count]
        rest = {each: weight for each, weight in free.items() if each not in beside}
        chosen = [*beside, *choose_copies(load, rest, count - len(beside))]
        if chosen:
            fresh = tuple(Learner(each, self.site.number + 1) for each in chosen)
            self.site.set_bucket(key, replace(bucket, learners=(*bucket.learners, *fresh)))
        return len(chosen)

    # --- a new generation ---

    def _begin_generation(self, now_us: int) -> None:
        """A member knows decisions that are not here: those of this coordinator are not the newest.

        Nothing is decided about a bucket until everybody who was in sync, as far as anybody knows, has reported it, and
        nothing at all before a member that nobody knows of has lost its lease.
        """
        self.site.begin_generation()
        self._silent.add(_SOMEBODY)
        self._silence_until = now_us + self.wait_us
        self._reports.begin()
        self._told.clear()  # A member hears of this generation when it has reported what it knows.
        self._stored_by.clear()

    def _decide_anew(self, key: BucketKey, reported: set[Incarnation]) -> None:
        """The copies that reported the bucket go on under an epoch of this generation."""
        bucket = self.site.buckets[key]
        # Who leaves may lack what was acknowledged since, if the removal came into effect by a decision that was lost.
        there = tuple(each for each in bucket.in_sync if each in reported)
        there = there or tuple(each for each in bucket.leaving if each in reported)
        if there:
            if not reported.issuperset((*bucket.in_sync, *bucket.leaving)):
                # Those who are missing may have known of a later decision, and have acknowledged more.
                bucket = replace(bucket, life=self._new_life().word, inherits=bucket.life)
            self.promote(key, replace(bucket, learners=()), list(there), there)
            if key.region in self.site.regions:  # The learners begin anew. A due recovery may have been forgotten.
                self._recover_from(key.region, UNTIMED)
            return
        self._lose_bucket(key, bucket)

    # --- questions ---

    def may_hear(self, me: Incarnation) -> bool:
        """Whether the member may be told decisions: in a new generation it reports first what it knows."""
        return me in self._told

    def tables(self, since: int, lease_us: int) -> Tables:
        """What a member is told that has stored everything up to number `since`."""
        return self.site.tables(since, self.name, lease_us, self._reports.undecided)

    def awaited_incarnations(self, name: str) -> list[Incarnation]:
        """The incarnations of a member that are not heard, and for which buckets may wait. They can be revoked."""
        awaited = self._reports.waited_for.keys() | self._expired.keys()
        return sorted(each for each in awaited if each.name == name)

    def status(self, now_us: int) -> dict[str, Any]:
        """What an operator sees, as plain values."""
        waiting = self._reports.waited_for
        for member in self._expired:
            waiting[member] += len(self.site.naming(member))
        primaries: Counter[Incarnation] = Counter()
        for load in self.site.loads.values():
            primaries.update(load.primaries)
        return {
            "generation": self.site.generation,
            "run": self.site.run,
            "decision": self.site.number,
            "waits_us": max(self._silence_until - now_us, 0) if self._silent else 0,
            "lost_buckets": self.lost_buckets,
            "regions": len(self.site.regions),
            "buckets": len(self.site.buckets),
            "buckets_without_primary": sum(
                bucket.primary is None and bool(self.site.hosts(key.region))
                for key, bucket in self.site.buckets.items()
            ),
            "members": [
                {
                    "name": each.name,
                    "incarnation": str(each),
                    "host": profile.host,
                    "port": profile.port,
                    "version": profile.version,
                    "state": self._state_of(each),
                    "lease_us": max(self._lease_until.get(each, now_us) - now_us, 0),
                    "regions": [region for region, _ in profile.hosting],
                    "primaries": primaries[each],
                    "copies": len(self.site.held_by(each)),
                    "waited_for": waiting[each],
                }
                for each, profile in sorted(self.site.members.items())
            ],
        }

    def _state_of(self, member: Incarnation) -> str:
        if member in self._expired:
            return "lost"
        if member in self._silent:
            return "not heard"
        return "leaving" if self._moves.is_leaving(member) else "down" if member in self._down else "alive"

    def knows(self, me: Incarnation) -> bool:
        """Whether requests of the member count. The answer to `renew` says to the member why they do not."""
        return me in self.site.members and me not in self._expired

    def _is_given_up(self, me: Incarnation) -> bool:
        """Whether the member has to begin anew. One whose lease was over goes on while a set of copies names it: the
        bucket may have no other copies than those that were silent together."""
        if me not in self.site.members:
            return True
        return me in self._expired and not any(me in (*each.in_sync, *each.leaving) for _, each in self.site.naming(me))

    def is_there(self, member: Incarnation) -> bool:
        """Whether the member is heard."""
        return member in self.site.members and member not in self._down and member not in self._expired

    def is_gone(self, member: Incarnation) -> bool:
        """Whether the member is proved to be gone."""
        return member in self._gone

    def by_name(self) -> dict[str, Incarnation]:
        """The members whose leases are not over, by their names."""
        return {each.name: each for each in self.site.members if each not in self._expired}

    def is_undecided(self, key: BucketKey) -> bool:
        """Whether this generation has not decided about the bucket yet."""
        return key in self._reports.undecided

    def _is_over(self, region: str, bucket: Bucket, now_us: int) -> bool:
        """Whether nobody can acknowledge anything of the bucket any more, so that it may begin anew, empty.

        Everybody who may hold its newest content is proved to be gone. Or all of them were silent for the region's
        silence-limit and a margin: then they have stopped to answer, each by its own clock. One that does not know that
        others may have the region does not stop.
        """
        attributes = self.site.regions.get(region)
        limit_us = -1 if attributes is None else attributes.silence_limit_ms * 1000
        margin_us = max(limit_us, self.member_timeout_us) // DRIFT_DIVISOR

        def is_over(member: Incarnation) -> bool:
            if member not in self.site.members or member in self._gone:
                return True
            silent_us = now_us - self._heard_us.get(member, now_us)
            may_end = limit_us >= 0 and member in self._expired and self._is_aware(region, member)
            return may_end and limit_us + margin_us <= silent_us

        return all(is_over(each) for each in {*bucket.in_sync, *bucket.leaving, *bucket.unfenced})

    def _is_usable(self, member: Incarnation) -> bool:
        return self.is_there(member) and self._moves.takes_copies(member)

    def storing(self, region: str) -> dict[Incarnation, int]:
        """The members that can take copies of the region, each with its weight."""
        hosts = self.site.hosts(region)
        return {member: weight for member, weight in sorted(hosts.items()) if weight and self._is_usable(member)}

    def _of_primary(self, me: Incarnation, key: BucketKey, epoch: Epoch) -> Bucket | None:
        """The bucket, if `me` speaks as its primary under the epoch that counts, and decisions about it can be made."""
        bucket = self.site.buckets.get(key)
        if (
            bucket is None
            or bucket.primary != me
            or bucket.epoch != epoch
            or key in self._reports.undecided
            or self._silent
        ):
            return None
        return bucket

    def _is_cut_off(self, me: Incarnation, copy: Incarnation, now_us: int) -> bool:
        """Whether a primary cannot reach any of several members that hold copies with it, though we hear them all."""
        complaints = self._complaints.setdefault(me, {})
        complaints[copy] = now_us
        for old in [each for each, at in complaints.items() if at + self.member_timeout_us < now_us]:
            del complaints[old]
        partners = {
            each
            for _, bucket in self.site.held_by(me)
            if bucket.primary == me
            for each in (*bucket.in_sync, *bucket.leaving)
            if each != me and self._is_usable(each)
        }
        return len(complaints) > 1 and bool(partners) and partners <= complaints.keys()

    def _refusal_of(self, profile: MemberProfile, stored: DecisionId, now_us: int) -> Refused | None:
        me = profile.incarnation
        if me not in self.site.members:
            self._newcomer_us = now_us
        if profile.site_identity not in ("", self.site.identity):
            if self.site.number or self.site.members:
                return Refused(
                    f"member {me.name} belongs to the site {profile.site_identity}, and this is {self.site.identity}: "
                    f"start it in an empty folder, or with the locators of its own site"
                )
            self.site.identity = profile.site_identity  # Of a coordinator that has lost all: the members know better.
        if me not in self.site.members and len(self.site.members) >= MEMBERS_MAX:
            return Refused(
                f"the site has {len(self.site.members)} members, and {MEMBERS_MAX} are the most that it can have;"
                f" stop one before member {me.name} is started",
                self.member_timeout_us,
            )
        if self._is_given_up(me) and stored.run >= self.site.generation and self.site.made(stored):
            return Refused(f"member {me} was not heard for its whole lease", join_again=True)
        for earlier in self._earlier_incarnations(me):
            other = self.site.members.get(earlier)
            if earlier.member_id in profile.before:
                continue
            if earlier in self._expired and earlier not in self._gone and (me, earlier) not in self._asked_about:
                # The member may see that the process is gone, where this coordinator does not.
                self._asked_about.add((me, earlier))
                return Refused(f"member {earlier} may still be alive", 1, earlier=other)
            if earlier in self._lease_until:
                self._probe(earlier, now_us)
                wait = max(self._lease_until[earlier] - now_us, 1)
                return Refused(
                    f"another member of the name {me.name} ({earlier}) may still be alive; stop it, or choose another "
                    f"name",
                    wait,
                    earlier=other,
                )
        return None

    def _earlier_incarnations(self, me: Incarnation) -> list[Incarnation]:
        awaited = self._reports.waited_for.keys()
        return sorted(each for each in awaited | self.site.members.keys() if each.name == me.name and each != me)


_SOMEBODY = Incarnation("", 0)  # Stands for members that this coordinator has forgotten.


def _mismatch(region: str, known: RegionAttributes, told: RegionAttributes) -> str:
    differences = [
        f"{_option(field.name)} is {_shown(getattr(told, field.name))} here and "
        f"{_shown(getattr(known, field.name))} at the other members"
        for field in fields(RegionAttributes)
        if getattr(told, field.name) != getattr(known, field.name)
    ]
    return f"region {region}: {'; '.join(differences)}: all members of a site must create it alike"


def _option(field: str) -> str:
    """Returns the name that users type."""
    return "type" if field == "kind" else field.removesuffix("_ms").replace("_", "-")


def _shown(value: Any) -> str:
    return str(value.value) if isinstance(value, Kind) else repr(value) if isinstance(value, str) else str(value)
