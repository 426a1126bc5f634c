"""The cluster metadata of a site: the tables, the last metadata record about each entry, and the records still to be
stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable
from dataclasses import replace

from pywan.coordination.actions import Store
from pywan.coordination.messages import Tables
from pywan.coordination.placement import Load, add_to
from pywan.coordination.tables import (
    BELIEVED_CONTROLLER_EPOCHS,
    BELIEVED_DECISIONS,
    CONTROLLER_EPOCH_MAX,
    CONTROLLER_EPOCH_STEP_MAX,
    DECISION_MAX,
    FORGOTTEN_CONTROLLER_EPOCHS,
    NO_DECISION,
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

_STANDBY = object()  # The key of the metadata records about the standby.
GONE_KEPT = 1 << 16  # The most removed entries that are kept, to be sent to members one by one.


class Decisions:
    """Each change of an entry is a metadata record with the next number. The indexes are derived from the tables."""

    def __init__(self, stored: Iterable[Store], *, draw_step: Callable[[], int], site_identity: str) -> None:
        """Continues from the stored records of earlier controller epochs, in order, with a higher controller epoch.

        `draw_step` draws a number from 1 to CONTROLLER_EPOCH_STEP_MAX at random: so two starts from the same older file
        get different controller epochs. IllegalStateError: no number is left for another controller epoch.
        """
        self.identity = site_identity
        # The controller epoch of the last metadata recovery. All members have to report their knowledge from before
        # this controller epoch. 1: no record was ever lost.
        self.recovery_epoch = 1
        self.controller_epoch = 0
        self.number = 0
        self.controller_epochs: dict[int, int] = {}  # Every controller epoch that made a record, with its last record.
        self.standby: Standby | None = None  # The locator that may take over.
        self.term = 0  # How often another locator has taken the coordination over.
        self.members: dict[Incarnation, MemberProfile] = {}
        self.regions: dict[str, RegionAttributes] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        self.of_region: defaultdict[str, dict[BucketKey, None]] = defaultdict(dict)
        self.bucket_total = 0  # The buckets of all regions together, as the regions' attributes say.
        self.bucket_bytes = 0  # The sum of `Bucket.table_bytes` and the names of the regions, of all `buckets`.
        # Regions without a member. The region that has been without a member longest is first.
        self.unhosted: dict[str, None] = {}
        self.loads: defaultdict[str, Load] = defaultdict(Load)
        self.unfinished: set[BucketKey] = set()  # Buckets with a member in `leaving` or `unfenced`.
        # By region: the regions colocated with the region.
        self.children: defaultdict[str, dict[str, None]] = defaultdict(dict)
        # Buckets of partitioned regions with more in-sync replicas than the region wants.
        self.crowded: set[BucketKey] = set()
        # By region: weights of the region's members.
        self._hosts: defaultdict[str, dict[Incarnation, int]] = defaultdict(dict)
        self._hosting_bytes: dict[Incarnation, int] = {}  # By member: as `MemberProfile.hosting_bytes`.
        self._naming: defaultdict[Incarnation, dict[BucketKey, None]] = defaultdict(dict)
        # By member: the unfinished buckets that may be finished when the member has stored a metadata record.
        self._unfinished_of: defaultdict[Incarnation, dict[BucketKey, None]] = defaultdict(dict)
        # By primary: the members with which the primary shares buckets, and the number of these buckets.
        self._partners: defaultdict[Incarnation, Counter[Incarnation]] = defaultdict(Counter)
        self._touched: dict[BucketKey, None] = {}  # Buckets with a new metadata record since the last `take_touched`.
        # Regions that another member can store since the last `take_newly_hosted`.
        self._newly_hosted: dict[str, None] = {}
        # Buckets of regions with senders whose queue-only replicas may change, since the last `take_queues_to_see`.
        self._queues_to_see: set[BucketKey] = set()
        self._placed: Bucket | None = None  # The newest metadata record about a bucket.
        self._last = _LastDecisions()
        self._draw_step = draw_step
        self._stored_through = 0
        self._decided_by = 0  # The controller epoch that made the newest metadata record.
        for store in stored:
            self._take_back(store)
        self._begin_controller_epoch(max(self.controller_epochs, default=0))
        self._decided_by = self._decided_by or self.controller_epoch

    @property
    def newest(self) -> DecisionId:
        return DecisionId(self._decided_by, self.number)

    @property
    def believed(self) -> DecisionId:
        """The highest controller epoch and the highest number that the coordinator believes of an unknown metadata
        record."""
        most = self._most_believed
        if not self.controller_epochs:
            return most
        controller_epoch = max(
            min(self.controller_epoch + BELIEVED_CONTROLLER_EPOCHS, most.controller_epoch), self.controller_epoch
        )
        return DecisionId(controller_epoch, max(min(self.number + BELIEVED_DECISIONS, most.number), self.number))

    @property
    def _most_believed(self) -> DecisionId:
        """The limit up to which messages can raise the numbers. The rest is for controller epochs and metadata records
        of the coordinator itself. A coordinator without any record may replace a coordinator that has reached its own
        limit by messages."""
        part = 4 if self.controller_epochs else 2
        return DecisionId(CONTROLLER_EPOCH_MAX // part, DECISION_MAX // part)

    def has_room_above(self, seen: DecisionId) -> bool:
        """Whether `rise_above` has numbers left above `seen`."""
        return (
            max(seen.controller_epoch, self.controller_epoch)
            + (FORGOTTEN_CONTROLLER_EPOCHS + 1) * CONTROLLER_EPOCH_STEP_MAX
            <= self._most_believed.controller_epoch
        )

    def rise_above(self, seen: DecisionId) -> None:
        """Metadata records were lost, `seen` among them. The new controller epoch is above all possibly forgotten
        epochs."""
        self._begin_controller_epoch(
            max(seen.controller_epoch, self.controller_epoch) + FORGOTTEN_CONTROLLER_EPOCHS * CONTROLLER_EPOCH_STEP_MAX
        )
        self.number = max(self.number, seen.number)

    def begin_metadata_recovery(self) -> None:
        """Decides everything again in this controller epoch."""
        self.recovery_epoch = self.controller_epoch
        self.controller_epochs[self.controller_epoch], self._decided_by = self.number, self.controller_epoch
        for key in [*self.members, *self.regions, *self.buckets]:
            self._decide(key)

    def _begin_controller_epoch(self, above: int) -> None:
        controller_epoch = above + self._draw_step()
        if controller_epoch > CONTROLLER_EPOCH_MAX:
            raise IllegalStateError(
                f"the coordinator of site {self.identity} has no number for another controller epoch: {above} of"
                f" {CONTROLLER_EPOCH_MAX} are used;"
                f" end the site, and start it again with empty folders of its locators and members"
            )
        self.controller_epoch = controller_epoch

    def made(self, decision: DecisionId) -> bool:
        """Whether the metadata record is known: a controller epoch of this coordinator made the record, and the record
        was not lost."""
        return decision == NO_DECISION or decision.number <= self.controller_epochs.get(decision.controller_epoch, -1)

    def held_by(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """The buckets of which the member has a replica, a queue-only replica, or a learner."""
        return [(key, bucket) for key, bucket in self.naming(member) if member in bucket.holders]

    def naming(self, member: Incarnation) -> list[tuple[BucketKey, Bucket]]:
        """The buckets that may depend on the member in any way."""
        return [(key, self.buckets[key]) for key in self._naming.get(member, ())]

    def unfinished_of(self, member: Incarnation) -> Iterable[BucketKey]:
        """The buckets with a member in `leaving` or `unfenced` that may be finished by the member's next stored
        record."""
        return self._unfinished_of.get(member, ())

    def partners(self, primary: Incarnation) -> list[Incarnation]:
        """The members for which the primary waits in any of its buckets, or waited until their removal."""
        return list(self._partners.get(primary, ()))

    def with_children(self, region: str) -> list[str]:
        """The region, and all regions colocated with the region, directly or not, in order."""
        found = {region: None}
        for each in (order := [region]):
            for child in self.children.get(each, ()):
                if child not in found:
                    found[child] = None
                    order.append(child)
        return order

    def take_touched(self) -> list[BucketKey]:
        """The buckets with a new metadata record since the last call."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    def take_newly_hosted(self) -> list[str]:
        """The regions that a member can store since the last call, and could not store before."""
        regions = list(self._newly_hosted)
        self._newly_hosted.clear()
        return regions

    def take_queues_to_see(self) -> set[BucketKey]:
        """The buckets whose queue-only replicas may change since the last call."""
        keys, self._queues_to_see = self._queues_to_see, set()
        return keys

    def look_at_queues(self, region: str) -> None:
        """The queue-only replicas of a region may change. If the region stands for a sender, the queue-only replicas of
        all regions whose events the sender may send may change."""
        fed = self.regions if is_role(region) else [region]
        for each in fed:
            attributes = self.regions.get(each)
            if attributes is not None and not is_role(each) and (is_role(region) or attributes.senders):
                self._queues_to_see.update(self.of_region.get(each, ()))

    def hosts(self, region: str) -> dict[Incarnation, int]:
        """The members that have the region, with their weights; 0: the member is an accessor."""
        return self._hosts.get(region, {})

    def hosting_bytes(self, members: Iterable[Incarnation]) -> int:
        """The bytes that the regions of these members take in the tables."""
        return sum(self._hosting_bytes.get(each, 0) for each in members)

    @property
    def table_bytes(self) -> int:
        """The most bytes that all buckets, and the regions of all members, take in the tables."""
        return self.bucket_bytes + self.hosting_bytes(self.members)

    @property
    def named(self) -> Collection[Incarnation]:
        """All members in the records of buckets."""
        return self._naming.keys()

    def decided_at(self, key: BucketKey | str) -> int:
        """The number of the last metadata record about a bucket, or about a region as a whole."""
        return self._last.at(key)

    # --- metadata records ---

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
                f"the coordinator of site {self.identity} has no number for another metadata record; end the site, and"
                f" start it again with empty folders of its locators and members"
            )
        self.number += 1
        self.controller_epochs[self.controller_epoch], self._decided_by = self.number, self.controller_epoch
        self._last.note(key, self.number, is_gone=is_gone)

    def _place_member(self, member: Incarnation, profile: MemberProfile | None) -> None:
        before = self.members.pop(member, None)
        self._hosting_bytes.pop(member, None)
        # A member may have thousands of regions, and usually a single region changes.
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
        """Removes a region that no longer exists from the indexes: regions with new names come and go for years."""
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
            for member in {*before.isr, *before.unfenced}:
                _take_out(self._unfinished_of, member, key)
        self.unfinished.discard(key)
        self.crowded.discard(key)
        if bucket is None:
            self.of_region[key.region].pop(key, None)
            self._forget_region(key.region)
            return
        assert bucket.primary is None or bucket.primary in bucket.isr, f"{key}: {bucket}"
        assert not set(bucket.isr) & set(bucket.learning), f"{key}: {bucket}"
        if bucket == self._placed:  # Neighbours with equal records share one object.
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
            for member in {*bucket.isr, *bucket.unfenced}:
                self._unfinished_of[member][key] = None
        attributes = self.regions.get(key.region)
        if attributes is not None and attributes.senders and not is_role(key.region):
            self._queues_to_see.add(key)
        if attributes is not None and len(bucket.replicas) > attributes.replicas_wanted(len(bucket.replicas)):
            self.crowded.add(key)

    def _count_partners(self, bucket: Bucket, by: int) -> None:
        if bucket.primary is not None:
            partners = self._partners[bucket.primary]
            for member in (*bucket.isr, *bucket.leaving):
                if member != bucket.primary:
                    add_to(partners, member, by)
            if not partners:
                del self._partners[bucket.primary]

    # --- propagation and storage ---

    def tables(self, since: int, coordinator: str, lease_us: int, undecided: Container[BucketKey]) -> Tables:
        """All metadata records behind number `since`, without the `undecided` buckets.

        If some entries removed since then are forgotten, the tables begin at 0: the tables are whole, and name all
        present entries.
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
        """The metadata records made since the last call; None: nothing has changed."""
        if self._stored_through >= self.number:
            return None
        store = self._behind(self._stored_through, ((self._decided_by, self.number),))
        self._stored_through = self.number
        self._last.forget_gone()
        return store

    def records(self, stored: DecisionId) -> tuple[Store, bool]:
        """The records that a follower lacks after storing everything up to `stored`, and whether the result is whole. A
        whole result replaces the content of the follower."""
        is_whole = stored == NO_DECISION or not self.made(stored) or stored.number < self._last.forgotten
        return self._behind(0 if is_whole else stored.number, tuple(sorted(self.controller_epochs.items()))), is_whole

    def _behind(self, since: int, controller_epochs: tuple[tuple[int, int], ...]) -> Store:
        """The metadata records behind the number. Behind 0: all present entries."""
        members, regions, buckets = self._newer(since)
        return Store(
            self.newest,
            self.recovery_epoch,
            controller_epochs,
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
            sorted(each for each in keys if isinstance(each, BucketKey)),  # As runs of buckets are sent and stored.
        )

    def _take_back(self, store: Store) -> None:
        self._decided_by, self.number = store.newest
        self.recovery_epoch = store.recovery_epoch
        self.controller_epochs.update(store.controller_epochs)
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
        self._last.forgotten = self.number  # The file does not name removed entries.


def _take_out(index: dict[Incarnation, dict[BucketKey, None]], member: Incarnation, key: BucketKey) -> None:
    """Removes a member without buckets from the index: members join and leave for years."""
    keys = index[member]
    del keys[key]
    if not keys:
        del index[member]


class _LastDecisions:
    """The number of the last metadata record about each entry, in the order of the records.

    Removed entries are named for a while, so that members learn of the removal. The oldest removed entries are
    forgotten.
    """

    def __init__(self) -> None:
        self.forgotten = 0  # Some entries removed by a record up to this number are no longer named.
        self._at: dict[Hashable, int] = {}
        self._gone: dict[Hashable, None] = {}

    def note(self, key: Hashable, number: int, *, is_gone: bool = False) -> None:
        self._at.pop(key, None)  # The newest is last: `since` reads from the end.
        self._at[key] = number
        self._gone.pop(key, None)
        if is_gone:
            self._gone[key] = None

    def forget_gone(self) -> None:
        """All is stored: the oldest removed entries need no longer be named."""
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
