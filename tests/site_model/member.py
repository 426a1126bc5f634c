"""Owns a member of the model: its copies of buckets, and what it does as the primary of some of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from linearizability import ABSENT, apply
from pywan.coordination.messages import MayLeave, Refused, Tables
from pywan.coordination.tables import (
    NO_DECISION,
    NO_EPOCH,
    Bucket,
    BucketKey,
    Epoch,
    Holding,
    Incarnation,
    Learner,
    MemberProfile,
    RegionAttributes,
)

from .simulation import MS, Node

if TYPE_CHECKING:
    from .world import SiteWorld

READ_LEASE_US = 300 * MS  # A copy promises its primary so long that it adopts no newer epoch in silence.
GRANT_US = READ_LEASE_US * 11 // 10  # By the copy's clock, which may drift.
SILENT_US = 400 * MS  # A copy that has not answered for so long is reported.
BEAT_US = 60 * MS


class Entry(NamedTuple):
    """A change (or a read that had to ask all copies) at its place in the order of a bucket."""

    epoch: Epoch
    sequence: int
    key: str
    value: Hashable  # Of the key after it.
    identity: tuple[int, int]
    answer: Hashable


@dataclass
class Copy:
    life: int
    epoch: Epoch = NO_EPOCH
    entries: list[Entry] = field(default_factory=list)
    is_whole: bool = True  # False: it learns, and has not got its image.
    transfer: int | None = None  # The image with which it began; None: it began empty.
    granted_until: int = 0  # By the member's clock.

    @property
    def through(self) -> int:
        return len(self.entries)

    def value(self, key: str) -> Hashable:
        return next((each.value for each in reversed(self.entries) if each.key == key), ABSENT)

    def done(self, identity: tuple[int, int]) -> Entry | None:
        return next((each for each in reversed(self.entries) if each.identity == identity), None)


@dataclass
class Lead:
    """What a primary knows of the other copies. `active`: it has reached all of them and accepts changes."""

    epoch: Epoch
    active: bool = False
    tails: dict[Incarnation, list[Entry]] = field(default_factory=dict)
    wait_until: int = 0
    acknowledged: dict[Incarnation, int] = field(default_factory=dict)
    leased_from: dict[Incarnation, int] = field(default_factory=dict)  # When the newest answered ping was sent.
    heard: dict[Incarnation, int] = field(default_factory=dict)
    transfers: dict[Incarnation, int] = field(default_factory=dict)  # Of the learners that it sends to.
    caught_up: set[Learner] = field(default_factory=set)  # It waits for them already.
    waiting: list[tuple[int, Callable[[], object]]] = field(default_factory=list)


Reply = Callable[[str, Hashable], object]  # ("done", answer), ("retry", None), ("in doubt", None)


class Member(Node):
    def __init__(self, world: SiteWorld, name: str, member_id: int) -> None:
        super().__init__(world.simulation, name)
        self.world = world
        self.me = Incarnation(name, member_id)
        self.newest = NO_DECISION
        self.site_identity, self.seen = world.folders.get(name, ("", NO_DECISION))
        self.before = world.locked.get(name, 0)
        world.locked[name] = member_id
        self.buckets: dict[BucketKey, Bucket] = {}
        self.regions: dict[str, RegionAttributes] = {}  # As the tables say.
        self.copies: dict[BucketKey, Copy] = {}
        self.leads: dict[BucketKey, Lead] = {}
        self.lease_until = 0
        self.is_joined = False
        self.is_leaving = False
        self.hosted: set[str] = set()
        self.every(BEAT_US, self._beat)
        self.every(20 * MS, self._work)

    # --- coordinator ---

    def _beat(self) -> None:
        sent, world, me = self.clock(), self.world, self.me
        if not self.is_joined:
            holdings = {
                key: Holding(bucket, me in (*bucket.in_sync, *bucket.leaving) and key in self.copies)
                for key, bucket in self.buckets.items()
            }
            hosting = tuple((region, 100) for region in sorted(self.hosted))
            profile = MemberProfile(me, "localhost", 1, 1, self.site_identity, self.seen, "1", hosting, "", self.before)
            stored, regions = self.newest, {region: self.regions[region] for region in self.hosted}
            world.ask_coordinator(self, sent, lambda c, now: c.join(profile, regions, holdings, stored, now))
            return
        stored = self.newest
        world.ask_coordinator(self, sent, lambda c, now: c.renew(me, stored, now))
        for region, attributes in world.regions.items():
            if region not in self.hosted and world.simulation.now_us >= world.hosts_from[self.name]:
                world.ask_coordinator(self, sent, lambda c, now, r=region, a=attributes: c.host(me, r, a, 100, now))
        if self.is_leaving:
            world.ask_coordinator(self, sent, lambda c, now: c.leave(me, now))

    def heard_coordinator(self, message: Tables | Refused | MayLeave, sent: int) -> None:
        match message:
            case MayLeave():
                if self.is_leaving:
                    self.world.ask_coordinator(self, self.clock(), lambda c, now: c.left(self.me, now))
                    self.world.end(self)
            case Refused(join_again=True):
                self.world.restart(self)  # As another incarnation, with nothing.
            case Refused(report=True):
                self.is_joined = False
            case Tables():
                self._take(message, sent)

    def _take(self, tables: Tables, sent: int) -> None:
        if tables.newest.generation < self.newest.generation:
            return
        if tables.lease_us:
            self.is_joined = True
            self.lease_until = max(self.lease_until, sent + tables.lease_us)
        newer = tables.newest.generation > self.newest.generation or tables.newest.number > self.newest.number
        if not newer or tables.since > self.newest.number:
            return
        self.newest = self.seen = tables.newest
        self.site_identity = tables.site_identity
        self.world.folders[self.name] = self.site_identity, self.seen
        if tables.members is not None:
            for profile in tables.members:
                if profile.incarnation == self.me:
                    self.hosted = {name for name, _ in profile.hosting}
        if tables.since == 0:
            told = {*tables.undecided, *(key for key, _ in tables.buckets)}
            for key in [each for each in self.buckets if each not in told]:
                self._take_bucket(key, None)
            self.regions.clear()
        self.regions.update((name, attributes) for name, attributes in tables.regions if attributes is not None)
        for key, bucket in tables.buckets:
            self._take_bucket(key, bucket)
        for key in [each for each in self.copies if each not in self.buckets]:
            del self.copies[key]
        stored, me = self.newest, self.me
        self.world.ask_coordinator(self, self.clock(), lambda c, now: c.renew(me, stored, now))

    def _is_alone(self, region: str) -> bool:
        """Whether it is decided that this member has all of the region, and that no other one may have it. Then it asks
        nobody, and needs no lease."""
        attributes = self.regions.get(region)
        return (
            attributes is not None
            and not attributes.shared
            and all(
                (bucket := self.buckets.get(BucketKey(region, number))) is not None and bucket.is_only_of(self.me)
                for number in range(attributes.total_num_buckets)
            )
        )

    def _take_bucket(self, key: BucketKey, bucket: Bucket | None) -> None:
        known = self.buckets.get(key)
        if bucket is None or self.me not in (*bucket.holders, *bucket.leaving):
            self._drop_lead(key)
            self.copies.pop(key, None)
            if bucket is None:
                self.buckets.pop(key, None)
            else:
                self.buckets[key] = bucket
            return
        copy = self.copies.get(key)
        if copy is not None and bucket.epoch < copy.epoch:
            return  # The copy has adopted a newer decision, which another member told.
        if known is not None and (bucket.epoch, bucket.version) < (known.epoch, known.version):
            return
        if copy is not None and bucket.inherits == copy.life and self.me in bucket.in_sync:
            copy.life = bucket.life
        transfer = bucket.transfer_of(self.me)
        began = transfer is not None and (known is None or known.transfer_of(self.me) != transfer)
        self.buckets[key] = bucket
        if copy is None or copy.life != bucket.life or began:
            copy = self.copies[key] = Copy(bucket.life, is_whole=transfer is None, transfer=transfer)
            self._drop_lead(key)
        if transfer is not None and bucket.epoch > copy.epoch and copy.is_whole:
            # Its primary changed: the image starts again.
            copy = self.copies[key] = Copy(bucket.life, is_whole=False, transfer=transfer)
        copy.epoch = max(copy.epoch, bucket.epoch)
        lead = self.leads.get(key)
        if bucket.primary != self.me:
            self._drop_lead(key)
        elif lead is None or lead.epoch != bucket.epoch:
            self._drop_lead(key)
            # It has promised the earlier primary something itself.
            self.leads[key] = Lead(bucket.epoch, wait_until=copy.granted_until)
            self._recover(key)
        else:
            self._count(key)

    def _drop_lead(self, key: BucketKey) -> None:
        lead = self.leads.pop(key, None)
        if lead is not None:
            for _, give_up in lead.waiting:
                give_up()

    # --- as primary ---

    def _others(self, key: BucketKey) -> set[Incarnation]:
        """Whom the primary waits for with every change."""
        bucket, lead = self.buckets[key], self.leads[key]
        learning = {each.member for each in lead.caught_up & set(bucket.learners)}
        return {*bucket.in_sync, *bucket.leaving, *learning} - {self.me}

    def _is_sole(self, key: BucketKey) -> bool:
        """Whether the coordinator knows of no other copy. A learner that has all may be unknown to it."""
        return self._others(key) <= set(self.buckets[key].learning)

    def _recover(self, key: BucketKey) -> None:
        """Asks the other copies to adopt the epoch, and for what they have beyond the own copy."""
        lead, copy, bucket, me = self.leads[key], self.copies[key], self.buckets[key], self.me
        missing = self._others(key) - lead.tails.keys()
        for other in sorted(missing):
            lead.heard.setdefault(other, self.clock())
            through = copy.through
            self.world.network.send(self, other, lambda node, t=through: node.on_adopt(me, key, bucket, t))
        if missing or self.clock() < lead.wait_until:
            return
        longest = max((lead.tails[each] for each in sorted(self._others(key))), key=len, default=[])
        copy.entries += longest[copy.through - (len(longest) and longest[0].sequence - 1) :] if longest else []
        if all(lead.acknowledged.get(each, 0) >= copy.through for each in self._others(key)):
            lead.active = True
            self.world.active(self, key, bucket, copy)
            self.world.ask_coordinator(self, self.clock(), lambda c, now: c.ready(me, [key], now))

    def on_adopt(self, sender: Incarnation, key: BucketKey, bucket: Bucket, through: int) -> None:
        copy = self.copies.get(key)
        if copy is None or copy.life != bucket.life or copy.epoch > bucket.epoch or not copy.is_whole:
            return
        if self.me not in (*bucket.in_sync, *bucket.leaving):
            return
        if bucket.epoch > copy.epoch:
            self._drop_lead(key)
        if (bucket.epoch, bucket.version) > (self.buckets[key].epoch, self.buckets[key].version):
            self.buckets[key] = bucket
        copy.epoch = bucket.epoch
        tail, remaining, me = copy.entries[through:], max(copy.granted_until - self.clock(), 0), self.me
        # A promise to the primary itself need not be waited for. The model waits all the same: it is simpler.
        self.world.network.send(
            self, sender, lambda node: node.on_tail(me, key, bucket.epoch, through, tail, remaining)
        )

    def on_tail(
        self, sender: Incarnation, key: BucketKey, epoch: Epoch, from_: int, tail: list[Entry], remaining: int
    ) -> None:
        lead = self.leads.get(key)
        if lead is None or lead.epoch != epoch or sender in lead.tails:
            return
        lead.tails[sender] = tail
        lead.acknowledged.setdefault(sender, 0)
        lead.heard[sender] = self.clock()
        lead.wait_until = max(lead.wait_until, self.clock() + remaining * 11 // 10)

    def _work(self) -> None:
        """What a primary does all the time: sends again, pings, reports copies that are silent."""
        if not self.is_joined:
            return
        for key, lead in list(self.leads.items()):
            if not lead.active:
                self._recover(key)
            if self.leads.get(key) is lead:
                self._send(key)
                self._report_silent(key)

    def _send(self, key: BucketKey) -> None:
        lead, copy, bucket, me = self.leads[key], self.copies[key], self.buckets[key], self.me
        if not lead.active and self._others(key) - lead.tails.keys():
            return
        sent, epoch, life = self.clock(), lead.epoch, copy.life
        for learner in bucket.learners:
            if lead.transfers.get(learner.member) != learner.transfer:  # Its image begins again.
                lead.transfers[learner.member] = learner.transfer
                lead.acknowledged[learner.member] = 0
        for other in sorted(self._others(key) | (set(bucket.learning) if lead.active else set())):
            have = lead.acknowledged.get(other, 0)
            rest, first, transfer = copy.entries[have:], have + 1, bucket.transfer_of(other)
            self.world.network.send(
                self,
                other,
                lambda node, t=transfer, f=first, r=rest: node.on_append(me, key, life, epoch, t, f, r, sent),
            )

    def on_append(
        self,
        sender: Incarnation,
        key: BucketKey,
        life: int,
        epoch: Epoch,
        transfer: int | None,
        first: int,
        entries: list[Entry],
        sent: int,
    ) -> None:
        copy = self.copies.get(key)
        if copy is None or copy.life != life or epoch < copy.epoch or first > copy.through + 1:
            return
        if transfer != copy.transfer and (transfer is not None or not copy.is_whole):
            return
        if epoch > copy.epoch:
            if self.me not in self.buckets[key].learning:
                return  # A copy in sync adopts an epoch with its decision only.
            copy = self.copies[key] = Copy(life, epoch, is_whole=False, transfer=copy.transfer)
            if first != 1:
                return
        fresh = entries[copy.through - (first - 1) :]
        for old, new in zip(copy.entries[first - 1 :], entries, strict=False):
            self.world.must(old == new, f"{self.me} has {old} where {sender} says {new}")
        copy.entries += fresh
        copy.is_whole = True  # In the model the image is all entries since the beginning of the life.
        copy.granted_until = max(copy.granted_until, self.clock() + GRANT_US)
        through, me = copy.through, self.me
        self.world.network.send(
            self, sender, lambda node: node.on_acknowledgement(me, key, epoch, transfer, through, sent)
        )

    def on_acknowledgement(
        self, sender: Incarnation, key: BucketKey, epoch: Epoch, transfer: int | None, through: int, sent: int
    ) -> None:
        lead = self.leads.get(key)
        if lead is None or lead.epoch != epoch:
            return
        if transfer != (self.buckets[key].transfer_of(sender) or (transfer and lead.transfers.get(sender))):
            return  # It is about an earlier image.
        lead.acknowledged[sender] = max(through, lead.acknowledged.get(sender, 0))
        lead.leased_from[sender] = max(sent, lead.leased_from.get(sender, 0))
        lead.heard[sender] = self.clock()
        bucket, copy, me = self.buckets[key], self.copies[key], self.me
        for learner in bucket.learners:
            if learner.member == sender and lead.active and through >= copy.through:
                lead.caught_up.add(learner)
            if learner.member == sender and learner in lead.caught_up:
                self.world.ask_coordinator(
                    self, self.clock(), lambda c, now, each=learner: c.caught_up(me, key, epoch, each, now)
                )
        self._count(key)

    def _count(self, key: BucketKey) -> None:
        """Answers what all copies have."""
        lead = self.leads[key]
        if not lead.active:
            return
        through = self._counted(key)
        ready = [each for each in lead.waiting if each[0] <= through]
        lead.waiting = [each for each in lead.waiting if each[0] > through]
        for _, answer in ready:
            answer()

    def _counted(self, key: BucketKey) -> int:
        lead = self.leads[key]
        return min([lead.acknowledged.get(each, 0) for each in self._others(key)] + [self.copies[key].through])

    def _report_silent(self, key: BucketKey) -> None:
        lead, now, me = self.leads[key], self.clock(), self.me
        copies = self._others(key) | set(self.buckets[key].learning)
        for other in lead.heard.keys() - copies:  # If it comes back, its silence begins then.
            del lead.heard[other]
        for other in sorted(copies):
            if now - lead.heard.setdefault(other, now) > SILENT_US and other not in self.buckets[key].leaving:
                self.world.ask_coordinator(self, now, lambda c, t, o=other: c.unreachable(me, {key: lead.epoch}, o, t))

    # --- operations ---

    def operate(
        self,
        key: BucketKey,
        life: int | None,
        name: str,
        of: str,
        arguments: tuple,
        identity: tuple[int, int],
        reply: Reply,
    ) -> None:
        """One operation of a client. `life`: of the bucket at the first try; None: this is the first one."""
        lead, copy = self.leads.get(key), self.copies.get(key)
        if lead is None or copy is None or not lead.active or self.buckets[key].epoch != lead.epoch:
            reply("retry", copy.life if copy else None)
            return
        if life is not None and life != copy.life:
            reply("in doubt", None)
            return
        others = self._others(key)
        if self._is_alone(key.region):
            self.world.statistics["answers of one member alone"] += 1
        elif self._is_sole(key) and self.clock() >= self.lease_until:
            reply("retry", copy.life)  # A sole copy without a lease: the strict choice.
            return
        done = copy.done(identity)
        if done is None:
            effect = apply(name, arguments, copy.value(of))
            leased = all(self.clock() < lead.leased_from.get(each, -READ_LEASE_US) + READ_LEASE_US for each in others)
            last = max((each.sequence for each in copy.entries if each.key == of), default=0)
            if name == "get" and leased and last <= self._counted(key):
                self.world.answered(self, key, copy, None)
                reply("done", effect.answer)
                return
            done = Entry(lead.epoch, copy.through + 1, of, effect.value, identity, effect.answer)
            copy.entries.append(done)
            self._send(key)
        entry = done

        def when_counted() -> None:
            if self.leads.get(key) is lead and entry.sequence <= self._counted(key):
                self.world.answered(self, key, copy, entry)
                reply("done", entry.answer)
            else:
                reply("retry", copy.life)

        lead.waiting.append((entry.sequence, when_counted))
        self._count(key)
