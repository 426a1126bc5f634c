"""Reassigns buckets from member to member while all members are well: away from draining members, to spread primaries,
and where a bucket has too many replicas.

A reassignment has two steps. A replica is moved by a learner at the target; when the learner is in sync, the source is
removed. A primary is handed over to an in-sync replica. No step is stored: a coordinator that starts again finds the
rest of the work in the cluster metadata, and draining members ask again (docs/decisions/0067).
"""

from __future__ import annotations

from collections import Counter

from pywan.coordination.asked_moves import AskedMoves, MoveAnswer, MoveRequest
from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.handovers import Handovers
from pywan.coordination.leavers import Leavers
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import StillNeeded
from pywan.coordination.placement import choose_to_drop
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.succession import Succession
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    Incarnation,
    Kind,
    Learner,
    RegionAttributes,
    is_role,
    is_serial,
)

HANDOVERS_AT_ONCE = 8  # In one region, to spread its primaries. Changes of these buckets wait for a moment.
THIN_OUT_DIVISOR = 16  # Checks of buckets with too many replicas in each `member-timeout`.


class Moves:
    """A part of the coordinator. The coordinator reports every event to this object."""

    def __init__(
        self,
        site: Decisions,
        liveness: Liveness,
        leavers: Leavers,
        reports: Reports,
        candidates: Candidates,
        recovery: Recovery,
        succession: Succession,
        handovers: Handovers,
        asked: AskedMoves,
    ) -> None:
        self._site, self._liveness, self._leavers, self._reports = site, liveness, leavers, reports
        self._candidates, self._recovery, self._succession = candidates, recovery, succession
        self._handovers, self._asked = handovers, asked
        self._ended: set[BucketKey] = set()  # Buckets whose handovers have ended since the last `go_on`.
        self._uneven: dict[str, None] = {}  # Regions whose primaries may have to be spread.
        self._to_spread: dict[str, None] = {}  # Regions of `_uneven` in which something has happened.
        self._crowded_until: dict[BucketKey, int] = {}  # When buckets with too many replicas lose a replica.
        self._thin_out_us: int | None = None  # Time of the next check of crowded buckets. None: no bucket is crowded.
        self._leads_away = False  # A member drains now, or did at the last `go_on`: no spreading.
        self._seen = -1  # The last record that `_let_leave` has processed.

    # --- requests to leave ---

    def leave(self, member: Incarnation, now_us: int) -> StillNeeded | None:
        """The member asks for permission to leave. Returns why the site still needs the member; None: `MayLeave` was
        sent."""
        leaver, is_to_look = self._leavers.ask(member, now_us)
        if is_to_look:
            self._seen = -1
        self.go_on(now_us)
        return None if leaver.is_released else leaver.needed

    def stay(self, member: Incarnation) -> bool:
        """The member drains no more, or has departed. Returns whether the member was draining."""
        self._seen = -1
        return self._leavers.stay(member)

    def end_site(self, now_us: int) -> None:
        """All members are about to ask for permission to leave."""
        self._leavers.end_site(now_us)
        self._seen = -1

    # --- requests of operators ---

    def move(self, request: MoveRequest, now_us: int) -> MoveAnswer:
        """An operator requests a reassignment, for the first time or again. Returns its progress."""
        if self._leavers.site_ends:
            return MoveAnswer(problem="the site ends")
        self.go_on(now_us)
        return self._asked.ask(request, now_us)

    # --- events ---

    def ready(self, member: Incarnation, key: BucketKey) -> None:
        """A new primary accepts changes."""
        bucket = self._site.buckets.get(key)
        if bucket is not None and bucket.primary == member:
            if self._handovers.end(key):
                self._ended.add(key)
            self._look_after(key)

    def caught_up(self, key: BucketKey) -> None:
        """A learner has become an in-sync replica: it can lead."""
        self._look_after(key)

    def _look_after(self, key: BucketKey) -> None:
        """Looks at the region, unless an operator has moved this bucket. Spreading would move the primary back at
        once."""
        if key not in self._asked:
            self._look_at(key.region)

    def _look_at(self, region: str) -> None:
        self._uneven[region] = self._to_spread[region] = None

    def next_us(self) -> int | None:
        """The time of the next `go_on` if no event comes before; None: never."""
        due = [*self._leavers.times_us()]
        due += [*self._asked.times_us()]
        handover_us = self._handovers.next_us()
        due += [] if handover_us is None else [handover_us]
        due += [] if self._thin_out_us is None else [self._thin_out_us]
        return min(due, default=None)

    def go_on(self, now_us: int) -> None:
        """Takes the next steps, as far as possible. Looks at the buckets with new records since the last call. While a
        member drains, looks at all buckets of the member."""
        if self._leavers.drop_late(now_us):
            self._seen = -1
        if self._leavers.site_ends:
            self._leavers.end_together(now_us)
            return
        touched = self._site.take_touched()
        for region in self._site.take_newly_hosted():
            self._look_at(region)
        ended, self._ended = self._ended.union(self._handovers.end_old(touched, now_us)), set()
        for key in ended:
            self._seen = -1
            if key.region in self._uneven:
                self._to_spread[key.region] = None
        self._asked.go_on([*touched, *ended], now_us)
        self._thin_out(touched, now_us)
        for region in {key.region for key in touched} & self._uneven.keys():
            self._to_spread[region] = None
        if self._leavers.first is not None:
            if self._seen != self._site.number:
                self._let_leave(now_us)
                self._seen = self._site.number
            self._leads_away = True
        if self._leavers.first is None:
            if self._leads_away:
                self._to_spread.update(self._uneven)  # These regions have waited for the draining members.
                self._leads_away = False
            regions, self._to_spread = sorted(self._to_spread), {}
            for region in regions:
                if self._spread(region, now_us):
                    self._uneven.pop(region, None)

    # --- draining ---

    def _let_leave(self, now_us: int) -> None:
        """Moves everything away from the first draining member, and releases the member; then from the next member."""
        for member, leaver in self._leavers.waiting():
            first = self._leavers.first
            if first is not None and member != first and self._site.naming(member):
                leaver.needed = StillNeeded(waits_for=first.name, buckets=self._needed_of(member))
                continue
            needed, lost = self._move_away(member, now_us)
            leaver.needed = StillNeeded(buckets=_sorted(needed))
            if not needed:
                self._leavers.release(member, tuple(sorted(lost.items())))

    def _needed_of(self, member: Incarnation) -> tuple[tuple[str, int, str], ...]:
        counts = Counter((key.region, "") for key, bucket in self._site.held_by(member) if bucket.primary == member)
        regions = self._site.regions
        return _sorted(Counter({each: n for each, n in counts.items() if _has_leader(each[0], regions.get(each[0]))}))

    def _move_away(self, member: Incarnation, now_us: int) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """Takes the next step for each bucket of a draining member.

        Returns two counts. The first is the number of buckets that still need the member, by region and by the next
        primary. The second is the number of buckets that end with the member, by region: no other member can store the
        region. The replicas of the member are removed last, when the member leads nothing any more: until then these
        replicas are as good as all others.
        """
        needed: Counter[tuple[str, str]] = Counter()
        lost: Counter[str] = Counter()
        replicas: list[BucketKey] = []
        for key, bucket in self._candidates.held_by(member):
            attributes = self._site.regions.get(key.region)
            if key in self._reports.undecided or attributes is None:
                needed[key.region, ""] += 1
            elif not _has_leader(key.region, attributes):
                replicas.append(key)
            elif key in self._handovers:  # The new primary is not ready, whichever member leads.
                needed[key.region, _name_of(bucket.primary)] += 1
            elif bucket.primary != member:
                replicas.append(key)
            else:
                self._replace(key, bucket, attributes, member, now_us, needed, lost)
        for key in replicas if not needed else ():
            self._succession.lose_copies(key, (member,), now_us)
        for key in self._site.unfinished:
            bucket = self._site.buckets[key]
            if member in bucket.leaving:
                needed[key.region, _name_of(bucket.primary)] += 1
        return needed, lost

    def _replace(
        self,
        key: BucketKey,
        bucket: Bucket,
        attributes: RegionAttributes,
        member: Incarnation,
        now_us: int,
        needed: Counter[tuple[str, str]],
        lost: Counter[str],
    ) -> None:
        """Hands the bucket over to another replica. If no other replica exists, a learner is made; if no other member
        can store the bucket, the bucket is lost."""
        others = [each for each in bucket.replicas if each != member and self._liveness.is_there(each)]
        others = [each for each in others if not self._leavers.is_leaving(each)] or others
        if others:
            self._handovers.begin(key, bucket, others, now_us)
            needed[key.region, _name_of(self._site.buckets[key].primary)] += 1
            return
        learning = [each for each in bucket.with_entries(bucket.learning) if self._liveness.is_there(each)]
        if not learning and not self._is_stored_by_others(key.region, member):
            lost[key.region] += 1
            return
        if not learning:
            self._recovery.add_learners(key, attributes, 1, self._candidates.storing(key.region))
            bucket = self._site.buckets[key]
            learning = list(bucket.with_entries(bucket.learning))
        needed[key.region, _name_of(learning[0] if learning else None)] += 1

    def _is_stored_by_others(self, region: str, member: Incarnation) -> bool:
        """Whether another member could store replicas. A member out of contact may come back before its lease
        expires."""
        return any(
            weight and each != member and self._liveness.knows(each) and not self._leavers.is_released(each)
            for each, weight in self._site.hosts(region).items()
        )

    # --- spreading primaries ---

    def _spread(self, region: str, now_us: int) -> bool:
        """Hands a few primaries over to members that lead fewer buckets of the region. Then spreads replicas too.

        A colocated region follows its parent region. Returns whether the work is complete.
        """
        attributes = self._site.regions.get(region)
        if attributes is None:
            return True
        load = self._site.loads[region]
        if load.learners:
            return False  # A new primary would begin the snapshot again. `go_on` comes back after the last learner.
        storing = self._candidates.storing(region)
        follows = attributes.colocated_with in self._site.regions
        for key in list(self._site.of_region[region]):
            if self._handovers.count_of(region) >= HANDOVERS_AT_ONCE:
                return False  # `go_on` comes back after `ready`.
            if not follows and _is_even([load.primaries[each] for each in storing]):
                break
            to = self._parents_primary(key, attributes) if follows else self._less_loaded(key, storing)
            if to is not None and self._may_hand_over(key, to):
                self._handovers.begin(key, self._site.buckets[key], [to], now_us)
                for child in self._colocated_with(key):
                    if self._site.buckets[child].primary != to:
                        self._handovers.begin(child, self._site.buckets[child], [to], now_us)
        return not self._handovers.count_of(region) and (follows or self._spread_replicas(region, attributes, storing))

    def _spread_replicas(self, region: str, attributes: RegionAttributes, storing: dict[Incarnation, int]) -> bool:
        """Makes a few replicas at members with fewer replicas, in place of replicas at members with more. If necessary,
        the primary moves too, and `_thin_out` then removes the surplus replica. Returns whether the work is complete.

        The member with the most replicas loses replicas, so each round brings the members nearer to each other. Three
        kinds of regions are not spread: regions whose new members get no replicas (`startup-recovery-delay`), colocated
        regions, and regions whose members have unequal weights.
        """
        load = self._site.loads[region]
        is_fixed = attributes.kind is not Kind.PARTITION or attributes.startup_recovery_delay_ms != 0
        if is_fixed or self._site.children.get(region) or len(set(storing.values())) != 1:
            return True
        wanted = attributes.replicas_wanted(len(storing))
        if load.missing(wanted) or any(count and replicas > wanted for replicas, count in load.whole.items()):
            return False  # `go_on` comes back after the next records of these buckets.
        replicas, is_even = {each: load.replicas[each] for each in storing}, True
        for key in list(self._site.of_region[region]):
            most, least = (
                max(replicas, key=lambda each: (replicas[each], each)),
                min(replicas, key=lambda each: (replicas[each], each)),
            )
            if replicas[most] - replicas[least] < 2 or self._recovery.snapshots_left(region, least) <= 0:
                break
            bucket = self._site.buckets[key]
            may_lose = most in bucket.replicas and (wanted == 1 or bucket.primary != most)
            if may_lose and least not in bucket.replicas and self._may_be_moved(key):
                self._site.set_bucket(key, bucket.with_learner(Learner(least, self._site.number + 1)))
                replicas[most] -= 1
                replicas[least] += 1
                is_even = False
        return is_even

    def _less_loaded(self, key: BucketKey, storing: dict[Incarnation, int]) -> Incarnation | None:
        """Returns the replica that leads the fewest buckets, if the primary leads at least two buckets more."""
        bucket, primaries = self._site.buckets[key], self._site.loads[key.region].primaries
        if bucket.primary is None:
            return None
        to = min((each for each in bucket.replicas if each in storing), key=lambda each: (primaries[each], each))
        if primaries[bucket.primary] - primaries[to] < 2:
            return None  # The primary would come back.
        return to if all(self._may_hand_over(child, to) for child in self._colocated_with(key)) else None

    def _parents_primary(self, key: BucketKey, attributes: RegionAttributes) -> Incarnation | None:
        bucket, parent = (
            self._site.buckets[key],
            self._site.buckets.get(BucketKey(attributes.colocated_with, key.number)),
        )
        return parent.primary if parent is not None and parent.primary != bucket.primary else None

    def _may_hand_over(self, key: BucketKey, to: Incarnation) -> bool:
        return to in self._site.buckets[key].replicas and self._may_be_moved(key)

    def _may_be_moved(self, key: BucketKey) -> bool:
        return self._handovers.is_at_rest(key) and key not in self._asked

    # --- surplus replicas ---

    def _thin_out(self, touched: list[BucketKey], now_us: int) -> None:
        """Removes a replica from each bucket that has had too many for a while. For example, a member was out of
        contact, a second member got a replica instead, and the first member comes back with its own replica."""
        crowded = self._site.crowded
        if not crowded:
            self._crowded_until.clear()
            self._thin_out_us = None
            return
        is_due = self._thin_out_us is None or self._thin_out_us <= now_us
        storing: dict[str, dict[Incarnation, int]] = {}
        for key in sorted(crowded) if is_due else [each for each in touched if each in crowded]:
            if key.region not in storing:
                storing[key.region] = self._candidates.storing(key.region)
            self._thin_out_bucket(key, storing[key.region], now_us)
        if is_due:
            for key in self._crowded_until.keys() - crowded:
                del self._crowded_until[key]
            pause_us = self._liveness.member_timeout_us // THIN_OUT_DIVISOR
            self._thin_out_us = now_us + pause_us if crowded else None

    def _thin_out_bucket(self, key: BucketKey, storing: dict[Incarnation, int], now_us: int) -> None:
        spare = self._spare_replicas(key, storing, now_us)
        if not spare:
            self._crowded_until.pop(key, None)
            return
        delay_us = max(self._site.regions[key.region].recovery_delay_ms * 1000, self._liveness.member_timeout_us)
        if self._crowded_until.setdefault(key, now_us + delay_us) <= now_us:
            beside = Counter(each for other in self._beside(key) for each in self._site.buckets[other].replicas)
            replica = choose_to_drop(self._site.loads[key.region], spare, beside)
            self._succession.lose_copies(key, (replica,), now_us)

    def _spare_replicas(self, key: BucketKey, storing: dict[Incarnation, int], now_us: int) -> list[Incarnation]:
        """Returns the replicas that may be removed. The bucket must be at rest. A replica counts only if the replica
        can take changes and its member was in contact a moment ago."""
        bucket, recent_us = self._site.buckets[key], self._liveness.member_timeout_us // 2
        in_contact = (each for each in bucket.replicas if self._liveness.since_poll_us(each, now_us) < recent_us)
        whole = [each for each in in_contact if each in storing]
        is_moving = bucket.learners or key in self._site.unfinished or key in self._handovers or key in self._asked
        if is_moving or key in self._reports.undecided or bucket.primary not in whole:
            return []
        if len(whole) <= self._site.regions[key.region].replicas_wanted(len(whole)):
            return []
        return [each for each in whole if each != bucket.primary]

    def _beside(self, key: BucketKey) -> list[BucketKey]:
        """Returns the parent bucket of this bucket, and the buckets that are colocated with this bucket."""
        parent = BucketKey(self._site.regions[key.region].colocated_with, key.number)
        return [*([parent] if parent in self._site.buckets else []), *self._colocated_with(key)]

    def _colocated_with(self, key: BucketKey) -> list[BucketKey]:
        """Returns the buckets of the same number that follow this bucket, in order."""
        beside = [BucketKey(region, key.number) for region in self._site.with_children(key.region)[1:]]
        return [each for each in beside if each in self._site.buckets]


def _has_leader(region: str, attributes: RegionAttributes | None) -> bool:
    """Whether the primary of a bucket of the region matters. The role of a parallel sender says only where the sender
    runs."""
    return not is_role(region) or attributes is None or is_serial(attributes.senders)


def _is_even(counts: list[int]) -> bool:
    return max(counts, default=0) - min(counts, default=0) < 2


def _name_of(member: Incarnation | None) -> str:
    return "" if member is None else member.name


def _sorted(counts: Counter[tuple[str, str]]) -> tuple[tuple[str, int, str], ...]:
    return tuple((region, count, to) for (region, to), count in sorted(counts.items()))
