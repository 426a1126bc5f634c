"""Owns what was decided in a site: the tables, the last decision about each entry, and what is still to be stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable
from dataclasses import replace

from pywan.coordination.actions import Store
from pywan.coordination.messages import Tables
from pywan.coordination.placement import Load, add_to
from pywan.coordination.tables import (
    BELIEVED_DECISIONS,
    BELIEVED_RUNS,
    DECISION_MAX,
    FORGOTTEN_RUNS,
    NO_DECISION,
    RUN_MAX,
    RUN_STEP_MAX,
    Bucket,
    BucketKey,
    DecisionId,
    Incarnation,
    MemberProfile,
    RegionAttributes,
    Standby,
    is_role,
)
from pywan.errors import IllegalStateError

_STANDBY = object()  # The key of the decisions about the standby.
GONE_KEPT = 1 << 16  # Entries that have gone, and of which members hear one by one.


class Decisions:
    """Every change of an entry is a decision with the next number. The indexes are derived from the tables."""

    def __init__(self, stored: Iterable[Store], *, draw_step: Callable[[], int], site_identity: str) -> None:
        """Goes on from what earlier runs gave to be stored, in order, as a run above them.

        `draw_step` draws a number from 1 to RUN_STEP_MAX at random: so two runs that begin with the same older file
        have different numbers. IllegalStateError: no number is left for another run.
        """
        self.identity = site_identity
        # All members have to report what they knew before this run: the one that found out that decisions were lost.
        # 1: none were.
        self.generation = 1
        self.run = 0
        self.number = 0
        self.runs: dict[int, int] = {}  # Every run that decided something, with its last decision.
        self.standby: Standby | None = None  # The locator that may take over.
        self.term = 0  # How often another locator has taken the coordination over.
        self.members: dict[Incarnation, MemberProfile] = {}
        self.regions: dict[str, RegionAttributes] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        self.of_region: defaultdict[str, dict[BucketKey, None]] = defaultdict(dict)
        self.bucket_total = 0  # The buckets that all regions have together, as their attributes say.
        self.bucket_bytes = 0  # The sum of `Bucket.table_bytes` and the names of the regions, of all `buckets`.
        # Regions that no member has, the one that has been so for the longest time first.
        self.unhosted: dict[str, None] = {}
        self.loads: defaultdict[str, Load] = defaultdict(Load)
        self.unfinished: set[BucketKey] = set()  # Buckets with somebody in `leaving` or `unfenced`.
        # By region: those that are colocated with it.
        self.children: defaultdict[str, dict[str, None]] = defaultdict(dict)
        # Buckets of partitioned regions with more copies in sync than their region wants.
        self.crowded: set[BucketKey] = set()
        self._hosts: defaultdict[str, dict[Incarnation, int]] = defaultdict(dict)  # By region: weights of its members.
        self._hosting_bytes: dict[Incarnation, int] = {}  # By member: as `MemberProfile.hosting_bytes`.
        self._naming: defaultdict[Incarnation, dict[BucketKey, None]] = defaultdict(dict)
        # By member: the unfinished buckets that may be finished when the member has stored a decision.
        self._unfinished_of: defaultdict[Incarnation, dict[BucketKey, None]] = defaultdict(dict)
        # By primary: the members with which it shares buckets, and how many.
        self._partners: defaultdict[Incarnation, Counter[Incarnation]] = defaultdict(Counter)
        self._touched: dict[BucketKey, None] = {}  # Buckets about which something was decided since they were taken.
        self._newly_hosted: dict[str, None] = {}  # Regions that a member can store newly, since they were taken.
        # Buckets of regions with senders whose queue holders may be others now, since they were taken.
        self._queues_to_see: set[BucketKey] = set()
        self._placed: Bucket | None = None  # The newest decision about a bucket.
        self._last = _LastDecisions()
        self._draw_step = draw_step
        self._stored_through = 0
        self._decided_by = 0  # The run that made the newest decision.
        for store in stored:
            self._take_back(store)
        self._begin_run(max(self.runs, default=0))
        self._decided_by = self._decided_by or self.run

    @property
    def newest(self) -> DecisionId:
        return DecisionId(self._decided_by, self.number)

    @property
    def believed(self) -> DecisionId:
        """The highest run, and the highest number, that is believed of a decision which is not known here."""
        most = self._most_believed
        if not self.runs:
            return most
        run = max(min(self.run + BELIEVED_RUNS, most.run), self.run)
        return DecisionId(run, max(min(self.number + BELIEVED_DECISIONS, most.number), self.number))

    @property
    def _most_believed(self) -> DecisionId:
        """What no message can bring the numbers above. The rest is for runs and decisions of the coordinator itself.
        One that has decided nothing may take the place of one that messages brought to its own limit."""
        part = 4 if self.runs else 2
        return DecisionId(RUN_MAX // part, DECISION_MAX // part)

    def has_room_above(self, seen: DecisionId) -> bool:
        """Whether `rise_above` has numbers for that."""
        return max(seen.run, self.run) + (FORGOTTEN_RUNS + 1) * RUN_STEP_MAX <= self._most_believed.run

    def rise_above(self, seen: DecisionId) -> None:
        """Decisions were lost, of which this is one. What follows is above all that may have been forgotten."""
        self._begin_run(max(seen.run, self.run) + FORGOTTEN_RUNS * RUN_STEP_MAX)
        self.number = max(self.number, seen.number)

    def begin_generation(self) -> None:
        """Everything is decided again by this run."""
        self.generation = self.run
        self.runs[self.run], self._decided_by = self.number, self.run
        for key in [*self.members, *self.regions, *self.buckets]:
            self._decide(key)

    def _begin_run(self, above: int) -> None:
        run = above + self._draw_step()
        if run > RUN_MAX:
            raise IllegalStateError(
                f"the coordinator of site {self.identity} has no number for another run: {above} of {RUN_MAX} are used;"
                f" end the site, and start it again with empty folders of its locators and members"
            )
        self.run = run

    def made(self, decision: DecisionId) -> bool:
        """Whether the decision is known here: a run of this coordinator made it, and it was not lost."""
        return decision == NO_DECISION or decision.number <= self.runs.get(decision.run, -1)

    def held_by(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """The buckets of which the member has a copy, or only the queued events, or makes one of these."""
        return [(key, bucket) for key, bucket in self.naming(member) if member in bucket.holders]

    def naming(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """The buckets that may depend on the member in any way."""
        return [(key, self.buckets[key]) for key in self._naming.get(member, ())]

    def unfinished_of(self, member: Incarnation) -> Iterable[BucketKey]:
        """The buckets with somebody in `leaving` or `unfenced` for which it counts what the member has stored."""
        return self._unfinished_of.get(member, ())

    def partners(self, primary: Incarnation) -> list[Incarnation]:
        """The members for which the primary waits in one of its buckets, or waited until they were taken out."""
        return list(self._partners.get(primary, ()))

    def with_children(self, region: str) -> list[str]:
        """The region, and all that are colocated with it, directly or not, in order."""
        found = {region: None}
        for each in (order := [region]):
            for child in self.children.get(each, ()):
                if child not in found:
                    found[child] = None
                    order.append(child)
        return order

    def take_touched(self) -> list[BucketKey]:
        """The buckets about which something was decided since the last call."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    def take_newly_hosted(self) -> list[str]:
        """The regions that a member can store since the last call, and could not before."""
        regions = list(self._newly_hosted)
        self._newly_hosted.clear()
        return regions

    def take_queues_to_see(self) -> set[BucketKey]:
        """The buckets whose queue holders may be others since the last call."""
        keys, self._queues_to_see = self._queues_to_see, set()
        return keys

    def look_at_queues(self, region: str) -> None:
        """The queue holders of a region may be others now. Of a region that stands for a sender: those of all regions
        whose events it may send."""
        fed = self.regions if is_role(region) else [region]
        for each in fed:
            attributes = self.regions.get(each)
            if attributes is not None and not is_role(each) and (is_role(region) or attributes.senders):
                self._queues_to_see.update(self.of_region.get(each, ()))

    def hosts(self, region: str) -> dict[Incarnation, int]:
        """The members that have the region, each with its weight; 0: it is an accessor."""
        return self._hosts.get(region, {})

    def hosting_bytes(self, members: Iterable[Incarnation]) -> int:
        """What the regions of these members take in the tables."""
        return sum(self._hosting_bytes.get(each, 0) for each in members)

    @property
    def table_bytes(self) -> int:
        """The most that all buckets, and the regions of all members, take in the tables."""
        return self.bucket_bytes + self.hosting_bytes(self.members)

    @property
    def named(self) -> Collection[Incarnation]:
        """All whom buckets name."""
        return self._naming.keys()

    def decided_at(self, key: BucketKey | str) -> int:
        """The number of the last decision about a bucket, or about a region as a whole."""
        return self._last.at(key)

    # --- decisions ---

    def set_member(self, member: Incarnation, profile: MemberProfile | None) -> None:
        self._decide(member, is_gone=profile is None)
        self._place_member(member, profile)

    def set_standby(self, standby: Standby | None) -> None:
        self._decide(_STANDBY)
        self.standby = standby

    def set_region(self, region: str, attributes: RegionAttributes | None) -> None:
        self._decide(region, is_gone=attributes is None)
        self._place_region(region, attributes)

    def set_bucket(self, key: BucketKey, bucket: Bucket | None) -> None:
        self._decide(key, is_gone=bucket is None)
        if bucket is not None and not bucket.named.issuperset(bucket.queue_only):
            bucket = replace(bucket, queue_only=tuple(each for each in bucket.queue_only if each in bucket.named))
        self._place(key, bucket)

    def _decide(self, key: Hashable, *, is_gone: bool = False) -> None:
        if self.number >= DECISION_MAX:
            raise IllegalStateError(
                f"the coordinator of site {self.identity} has no number for another decision; end the site, and start"
                f" it again with empty folders of its locators and members"
            )
        self.number += 1
        self.runs[self.run], self._decided_by = self.number, self.run
        self._last.note(key, self.number, is_gone=is_gone)

    def _place_member(self, member: Incarnation, profile: MemberProfile | None) -> None:
        before = self.members.pop(member, None)
        self._hosting_bytes.pop(member, None)
        # A member may have thousands of regions, and one of them changes.
        hosted, hosting = set(before.hosting if before else ()), set(profile.hosting if profile else ())
        ended = sorted(hosted - hosting)
        for region, _ in ended:
            del self._hosts[region][member]
        if profile is not None:
            self.members[member] = profile
            self._hosting_bytes[member] = profile.hosting_bytes
        for region, weight in sorted(hosting - hosted):
            self._hosts[region][member] = weight
            self.unhosted.pop(region, None)
            if weight:
                self._newly_hosted[region] = None
        for region, _ in ended:
            if region in self.regions and not self._hosts[region]:
                self.unhosted[region] = None
            self._forget_region(region)
        for region, _ in hosted ^ hosting:
            self.look_at_queues(region)

    def _place_region(self, region: str, attributes: RegionAttributes | None) -> None:
        before = self.regions.pop(region, None)
        if before is not None:
            children = self.children[before.colocated_with]
            children.pop(region, None)
            if not children:
                del self.children[before.colocated_with]
            self.bucket_total -= before.total_num_buckets
        if attributes is not None:
            self.regions[region] = attributes
            self.children[attributes.colocated_with][region] = None
            self.bucket_total += attributes.total_num_buckets
            if not self._hosts.get(region):
                self.unhosted[region] = None
            if before is None or before.senders != attributes.senders:
                self.look_at_queues(region)
            return
        self.unhosted.pop(region, None)
        self._forget_region(region)

    def _forget_region(self, region: str) -> None:
        """Nothing is left in the indexes of a region that is no more: regions with new names come and go for years."""
        if region not in self.regions and not self.of_region.get(region) and not self._hosts.get(region):
            self._hosts.pop(region, None)
            self.of_region.pop(region, None)
            self.loads.pop(region, None)

    def _place(self, key: BucketKey, bucket: Bucket | None) -> None:
        before = self.buckets.pop(key, None)
        self._touched[key] = None
        if before is not None:
            self.bucket_bytes -= len(key.region) + before.table_bytes
            self.loads[key.region].remove(key, before)
            for member in before.named:
                _take_out(self._naming, member, key)
            self._count_partners(before, -1)
        if key in self.unfinished and before is not None:
            for member in {*before.in_sync, *before.unfenced}:
                _take_out(self._unfinished_of, member, key)
        self.unfinished.discard(key)
        self.crowded.discard(key)
        if bucket is None:
            self.of_region[key.region].pop(key, None)
            self._forget_region(key.region)
            return
        assert bucket.primary is None or bucket.primary in bucket.in_sync, f"{key}: {bucket}"
        assert not set(bucket.in_sync) & set(bucket.learning), f"{key}: {bucket}"
        if bucket == self._placed:  # Neighbours often have the same decision: they share one object.
            bucket = self._placed
        self._placed = bucket
        self.buckets[key] = bucket
        self.bucket_bytes += len(key.region) + bucket.table_bytes
        self.of_region[key.region][key] = None
        self.loads[key.region].add(key, bucket)
        for member in bucket.named:
            self._naming[member][key] = None
        self._count_partners(bucket, 1)
        if bucket.leaving or bucket.unfenced:
            self.unfinished.add(key)
            for member in {*bucket.in_sync, *bucket.unfenced}:
                self._unfinished_of[member][key] = None
        attributes = self.regions.get(key.region)
        if attributes is not None and attributes.senders and not is_role(key.region):
            self._queues_to_see.add(key)
        if attributes is not None and len(bucket.copies) > attributes.copies_wanted(len(bucket.copies)):
            self.crowded.add(key)

    def _count_partners(self, bucket: Bucket, by: int) -> None:
        if bucket.primary is not None:
            partners = self._partners[bucket.primary]
            for member in (*bucket.in_sync, *bucket.leaving):
                if member != bucket.primary:
                    add_to(partners, member, by)
            if not partners:
                del self._partners[bucket.primary]

    # --- what others are told, and what is stored ---

    def tables(self, since: int, coordinator: str, lease_us: int, undecided: Container[BucketKey]) -> Tables:
        """Everything that was decided behind number `since`. Of `undecided` buckets nothing is told.

        Where it is forgotten what has gone since, the tables begin at 0: they are whole, and name what there is.
        """
        since = 0 if since < self._last.forgotten else since
        members, regions, buckets = self._newer(since)
        if not since:
            regions = [each for each in regions if each in self.regions]
            buckets = [each for each in buckets if each in self.buckets]
        return Tables(
            since,
            self.newest,
            coordinator,
            self.identity,
            lease_us,
            tuple(self.members.values()) if members else None,
            tuple((each, self.regions.get(each)) for each in regions),
            tuple((each, self.buckets.get(each)) for each in buckets if each not in undecided),
            () if since else tuple(each for each in buckets if each in undecided),
            self.standby,
        )

    def take_store(self) -> Store | None:
        """What was decided since the last call; None: nothing."""
        if self._stored_through >= self.number:
            return None
        store = self._behind(self._stored_through, ((self._decided_by, self.number),))
        self._stored_through = self.number
        self._last.forget_gone()
        return store

    def records(self, stored: DecisionId) -> tuple[Store, bool]:
        """What a locator lacks that has stored everything up to `stored`, and whether that is all there is: it then
        takes the place of what the locator has."""
        is_whole = stored == NO_DECISION or not self.made(stored) or stored.number < self._last.forgotten
        return self._behind(0 if is_whole else stored.number, tuple(sorted(self.runs.items()))), is_whole

    def _behind(self, since: int, runs: tuple[tuple[int, int], ...]) -> Store:
        """What was decided behind that number. Behind 0: what there is."""
        members, regions, buckets = self._newer(since)
        return Store(
            self.newest,
            self.generation,
            runs,
            self.identity,
            tuple((each, self.members.get(each)) for each in members if since or each in self.members),
            tuple((each, self.regions.get(each)) for each in regions if since or each in self.regions),
            tuple((each, self.buckets.get(each)) for each in buckets if since or each in self.buckets),
            self.standby,
            self.term,
        )

    def _newer(self, since: int) -> tuple[list[Incarnation], list[str], list[BucketKey]]:
        keys = self._last.since(since)
        return (
            [each for each in keys if isinstance(each, Incarnation)],
            [each for each in keys if isinstance(each, str)],
            sorted(each for each in keys if isinstance(each, BucketKey)),  # As runs of them are carried and stored.
        )

    def _take_back(self, store: Store) -> None:
        self._decided_by, self.number = store.newest
        self.generation = store.generation
        self.runs.update(store.runs)
        self._stored_through = self.number
        self.identity, self.standby, self.term = store.site_identity, store.standby, store.term
        for incarnation, profile in store.members:
            self._place_member(incarnation, profile)
            self._last.note(incarnation, self.number)
        for region, attributes in store.regions:
            self._place_region(region, attributes)
            self._last.note(region, self.number)
        for key, bucket in store.buckets:
            self._place(key, bucket)
            self._last.note(key, self.number)
        self._last.forgotten = self.number  # The file does not name what has gone.


def _take_out(index: dict[Incarnation, dict[BucketKey, None]], member: Incarnation, key: BucketKey) -> None:
    """Nothing is left in the index of a member that has no bucket: members come and go for years."""
    keys = index[member]
    del keys[key]
    if not keys:
        del index[member]


class _LastDecisions:
    """The number of the last decision about each entry, in the order of the decisions.

    Entries that have gone are named for a while: members hear of that. The oldest are forgotten.
    """

    def __init__(self) -> None:
        self.forgotten = 0  # Of entries that have gone by a decision up to this number, some are not named any more.
        self._at: dict[Hashable, int] = {}
        self._gone: dict[Hashable, None] = {}

    def note(self, key: Hashable, number: int, *, is_gone: bool = False) -> None:
        self._at.pop(key, None)  # The newest is last: `since` reads from the end.
        self._at[key] = number
        self._gone.pop(key, None)
        if is_gone:
            self._gone[key] = None

    def forget_gone(self) -> None:
        """All is stored: the oldest entries that have gone need not be named any more."""
        while len(self._gone) > GONE_KEPT:
            key = next(iter(self._gone))
            del self._gone[key]
            self.forgotten = max(self.forgotten, self._at.pop(key))

    def at(self, key: Hashable) -> int:
        return self._at.get(key, 0)

    def since(self, number: int) -> list[Hashable]:
        newer = []
        for key, at in reversed(self._at.items()):
            if at <= number:
                break
            newer.append(key)
        return newer[::-1]
