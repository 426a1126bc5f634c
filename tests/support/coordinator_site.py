"""Owns a coordinator with its driver and members that are names."""

from __future__ import annotations

from pywan.coordination.actions import Probe, Store, Tell
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.messages import Tables
from pywan.coordination.tables import (
    NO_DECISION,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Incarnation,
    Kind,
    MemberProfile,
    Reach,
    RegionAttributes,
)

A, B, C = (Incarnation(name, number) for number, name in enumerate("abc", 1))
TIMEOUT = 1_000_000
OVER = TIMEOUT * 11 // 10
KEY = BucketKey("data", 0)


class Site:
    """A coordinator and its driver: what it stores, and what the members hear and store at once."""

    def __init__(
        self, *members: Incarnation, redundant_copies: int = 1, kind: Kind = Kind.PARTITION, **attributes
    ) -> None:
        self.now = 0
        self.journal: list[Store] = []
        self.told: dict[Incarnation, list] = {}
        self.probes: list[Incarnation] = []
        self.stored: dict[Incarnation, DecisionId] = {}
        self.active: dict[BucketKey, Epoch] = {}  # Under which epoch the primary was ready.
        self.deaf: set[Incarnation] = set()  # Members that hear nothing, and so store nothing.
        self.attributes = RegionAttributes(kind, 4, redundant_copies, **attributes)
        self.start()
        for member in members:
            self.join(member)
        self.host("data", self.attributes, *members)

    def start(self, step: int = 1) -> None:
        """A run of the coordinator, by so much above those that it knows."""
        self.core = Coordinator(
            "locator",
            self.journal,
            draw_step=lambda: step,
            now_us=self.now,
            site_identity="site",
            member_timeout_us=TIMEOUT,
        )

    def join(self, member: Incarnation, **fields) -> None:
        self.core.join(profile(member, **fields), {}, {}, NO_DECISION, self.now)
        self.act()

    def host(self, region: str, attributes: RegionAttributes, *members: Incarnation) -> None:
        """All members get the region. They are accessors first, so that buckets are made when all of them can store."""
        for member in members:
            self.core.host(member, region, attributes, 0, self.now)
            self.act()
        for member in members:
            self.core.host(member, region, attributes, 100, self.now)
        self.act()

    def act(self) -> None:
        while actions := self.core.take_actions():
            stored = False
            for action in actions:
                match action:
                    case Store():
                        self.journal.append(action)
                        stored = True
                    case Tell(to, message):
                        self.told.setdefault(to, []).append(message)
                        if isinstance(message, Tables) and to not in self.deaf:
                            self.stored[to] = message.newest
                    case Probe(of):
                        self.probes.append(of.incarnation)
            if stored:
                for member in list(self.core.site.members):
                    if member in self.stored and member not in self.deaf:
                        self.core.renew(member, self.stored[member], self.now)

    def renew(self, *members: Incarnation) -> None:
        for member in members:
            self.core.renew(member, self.stored.get(member, NO_DECISION), self.now)
        self.act()

    def pass_time(self, us: int, *alive: Incarnation) -> None:
        steps = max(10, us // (TIMEOUT // 10))  # No driver is late by a quarter of the time-out.
        for _ in range(steps):
            self.now += us // steps
            self.core.tick(self.now)
            self.act()
            self.renew(*alive)

    def is_down(self, member: Incarnation) -> None:
        """Nobody listens where the member was, says its machine. From now on it says nothing."""
        self.deaf.add(member)
        self.core.suspect(member, member, self.now)
        self.core.probed(member, Reach.REFUSED, self.now)
        self.act()

    def leave(self, member: Incarnation) -> None:
        self.core.leave(member, self.now)
        self.act()

    def learn(self, count: int = 1000) -> bool:
        """Up to `count` learners have all. Returns whether there was one."""
        return self._each(
            count,
            lambda key, bucket: [
                self.core.caught_up(bucket.primary, key, bucket.epoch, each, self.now) for each in bucket.learners[:1]
            ],
        )

    def lead(self, count: int = 1000) -> bool:
        """Up to `count` new primaries are ready. Returns whether there was one."""

        def ready(key: BucketKey, bucket: Bucket) -> bool:
            if bucket.primary is None or self.active.get(key) == bucket.epoch:
                return False
            self.active[key] = bucket.epoch
            self.core.ready(bucket.primary, [key], self.now)
            return True

        return self._each(count, ready)

    def _each(self, count: int, do) -> bool:
        done = 0
        for key in list(self.core.site.buckets):
            if done < count and do(key, self.core.site.buckets[key]):
                done += 1
                self.act()
        return done > 0 and (done == count or self._each(count - done, do) or True)

    def last_of(self, member: Incarnation, kind: type):
        return next((each for each in reversed(self.told.get(member, [])) if isinstance(each, kind)), None)

    def bucket(self, key: BucketKey = KEY) -> Bucket:
        return self.core.site.buckets[key]

    def last(self, member: Incarnation):
        return self.told[member][-1]


def profile(member: Incarnation, **fields) -> MemberProfile:
    return MemberProfile(member, "localhost", 4000, 1, **fields)
