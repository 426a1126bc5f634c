"""Owns faults that are aimed at decisions: at what lies between making one, storing it, telling it, and acting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pywan.coordination.tables import Bucket, BucketKey, Incarnation

from .coordinator import MEMBER_TIMEOUT_US
from .member import Member
from .simulation import MS, Network

if TYPE_CHECKING:
    from .world import SiteWorld

LOOKS_US = 2 * MS  # A fault that waits for something looks so often.
ALONE_US = 1500 * MS  # So long after its start a site has a region on one member alone.
COORDINATOR = "coordinator"


class FaultsOfCoordination:
    """Each fault picks a bucket by chance. It does nothing where the site is not as it needs it."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self._when_told: Callable[[], object] | None = None
        self.is_at_work = False  # A fault waits for something, or is not over: no other one happens.

    @property
    def all(self) -> list[Callable[[], object]]:
        return [
            self.lose_told,
            self.lose_told_and_file,
            self.doze,
            self.tell_half,
            self.forget,
            *[self.flicker] * 3,
            self.exile,
        ]

    @property
    def _network(self) -> Network:
        return self._world.network

    def _node(self, member: Incarnation | None) -> Member | None:
        node = self._network.nodes.get(member)
        is_here = isinstance(node, Member) and not node.is_dead and node.paused_until <= self._world.simulation.now_us
        return node if is_here and not node.is_leaving else None

    def _bucket(self, key: BucketKey) -> Bucket | None:
        return self._world.coordinator.core.site.buckets.get(key)

    def _pick(self, replicas: int, *, more: bool = False) -> tuple[BucketKey, Member, list[Member]] | None:
        """A bucket at rest with so many replicas, all of them there: its primary and the others."""
        core = self._world.coordinator.core
        if self.is_at_work or self._world.coordinator.is_dead or core.grace_period.is_on or core.reports.undecided:
            return None
        self._network.heal()
        found = []
        for key, bucket in core.site.buckets.items():
            some = [self._node(each) for each in bucket.replicas]
            is_fit = len(some) == replicas or (more and len(some) > replicas)
            if is_fit and all(some) and not (bucket.leaving or bucket.unfenced):
                found.append((key, bucket))
        if not found:
            return None
        key, bucket = self._world.simulation.rng.choice(found)
        primary = self._node(bucket.primary)
        assert primary is not None
        self.is_at_work = True
        self._world.simulation.after(3 * MEMBER_TIMEOUT_US, self._over)
        return key, primary, [node for each in bucket.replicas if each != bucket.primary and (node := self._node(each))]

    def _over(self) -> None:
        self.is_at_work, self._when_told = False, None

    def told(self) -> None:
        """The coordinator has told what it has decided, and does nothing else before this."""
        if self._when_told is not None and not self._world.is_healing:
            self._when_told()

    def _cut(self, *ways: tuple[str, str]) -> None:
        self._network.cut |= {*ways, *((other, one) for one, other in ways)}

    def _isolate(self, member: Member, but: tuple[str, ...] = ()) -> None:
        names = [each for each in [*self._world.members, COORDINATOR] if each not in (member.name, *but)]
        self._cut(*((member.name, each) for each in names))

    def _when(self, holds: Callable[[], bool], then: Callable[[], object], within_us: int) -> None:
        """Does `then` as soon as `holds` does; not at all, if that takes too long."""
        until_us = self._world.simulation.now_us + within_us

        def look() -> None:
            if self._world.is_healing or self._world.simulation.now_us > until_us:
                self._over()
            elif holds():
                then()
            else:
                self._world.simulation.after(LOOKS_US, look)

        look()

    def _after(self, delay_us: int, what: Callable[[], object]) -> None:
        self._world.simulation.after(delay_us, lambda: None if self._world.is_healing else what())

    def _calls(self, count: int, at: str, within_us: int, *, is_read: bool = False) -> None:
        for _ in range(count):
            self._world.simulation.after(
                self._world.simulation.rng.randrange(within_us), lambda: self._world.client(at=at, is_read=is_read)
            )

    def _end_and_start(self, member: Member) -> None:
        """Its next process proves that this one is gone."""
        self._world.end(member)
        self._world.simulation.after(MS, lambda: self._start(member.name))

    def _start(self, name: str) -> None:
        if self._world.members[name].is_dead:
            self._world.start(name)

    def _end_coordinator(self) -> None:
        self._world.coordinator.is_dead = True
        self._world.statistics["coordinators"] += 1

    # A decision that one member alone has heard

    def lose_told(self) -> None:
        """A primary hears that its only replica is out, changes more, and dies; the coordinator starts again
        meanwhile."""
        self._lose_told(loses_file=False)

    def lose_told_and_file(self) -> None:
        """The same, and the coordinator has lost its last decisions. The replica that was out knows some of them."""
        if len(self._world.regions) == 1:
            self._lose_told(loses_file=True)

    def _lose_told(self, *, loses_file: bool) -> None:
        picked = self._pick(2)
        if picked is None:
            return
        key, primary, (replica,) = picked
        known = replica.agent.tables.newest
        kept = [each for each in self._world.journal if each.newest.number < known.number]
        # What the primary alone has heard besides the replicas that are there could only be guessed.
        if loses_file and (known != self._world.coordinator.core.site.newest or len(kept) < 3):
            self._over()
            return
        self._isolate(replica)
        self._network.reset(replica)
        self._world.note(f"{replica.name} is isolated, until {primary.name} goes on without it")
        self._world.statistics["told and lost"] += 1
        before = self._world.coordinator.core.site.buckets[key].version

        def look() -> None:
            bucket = self._bucket(key)
            if bucket is None or bucket.version <= before:
                return
            if bucket.replicas == (primary.me,) and not bucket.leaving:
                self._when_told = None
                told()

        def told() -> None:
            self._end_coordinator()
            self._world.note(f"{primary.me} is told that it is alone; the coordinator ends")
            self._calls(16, primary.name, 120 * MS)
            ends = self._world.simulation.rng.choice([self._world.end, self._end_and_start])
            self._after(150 * MS, lambda: ends(primary))
            self._after(155 * MS, back)

        def back() -> None:
            if loses_file:
                self._world.faults.lose_decisions(len(kept))
            self._world.start_coordinator()
            self._network.heal()
            self._after(200 * MS, self._over)

        self._when_told = look

    def doze(self) -> None:
        """A primary sleeps until its lease is over. Its replica takes over, and ends before it has heard of that."""
        picked = self._pick(2)
        if picked is None:
            return
        key, primary, (replica,) = picked
        primary.pause(self._world.simulation.rng.choice([1800, 2200]) * MS)
        self._world.note(f"{primary.me} sleeps, and {replica.me} ends when it takes over")
        self._world.statistics["dozes"] += 1

        def takes_over() -> bool:
            bucket = self._bucket(key)
            return bucket is not None and bucket.replicas == (replica.me,)

        def until_near() -> bool:
            lease = self._world.coordinator.core.liveness.lease_until_us(primary.me) or 0
            return lease - self._world.coordinator.clock() < 3 * LOOKS_US

        def deafen() -> None:
            self._network.cut.add((COORDINATOR, replica.name))
            self._when(takes_over, over, 400 * MS)

        def over() -> None:
            self._network.cut.discard((COORDINATOR, replica.name))
            self._end_and_start(replica)
            self._over()

        self._when(until_near, deafen, 1500 * MS)

    def tell_half(self) -> None:
        """A primary takes a replica out. Another replica, which stays, does not hear of it for a while."""
        picked = self._pick(3, more=True)
        if picked is None:
            return
        _, primary, (stays, goes, *_) = picked
        self._isolate(goes)
        self._network.reset(goes)
        self._network.cut.add((COORDINATOR, stays.name))
        self._world.note(f"{goes.name} is isolated, and {stays.name} does not hear of it")
        self._world.statistics["half told"] += 1
        self._calls(16, primary.name, 800 * MS)
        self._after(900 * MS, lambda: (self._network.heal(), self._over()))

    # A coordinator that starts and does not know all

    def forget(self) -> None:
        """A coordinator starts with an older file. A member dies before any other one is heard."""
        picked = self._pick(2, more=True) if len(self._world.regions) == 1 else None
        if picked is None:
            return
        _, primary, _ = picked
        others = [each for each in self._world.members.values() if each is not primary]
        kept = len(self._world.journal) - self._world.simulation.rng.choice([1, 2, 4])
        if kept < 3:
            self._over()
            return
        self._end_coordinator()
        self._cut(*((each.name, COORDINATOR) for each in others))
        self._world.note(f"the coordinator loses its last decisions, and hears nobody before {primary.name} dies")
        self._world.statistics["forgets"] += 1

        def back() -> None:
            self._world.faults.lose_decisions(kept)
            self._world.start_coordinator()
            self._world.end(primary)

        self._after(20 * MS, back)
        self._after(500 * MS, lambda: (self._network.heal(), self._over()))

    # A region that one member has alone

    def isolate_first_host(self) -> None:
        """Before the site begins: one member alone has the regions, and is cut off before others create them. Its
        buckets could begin anew elsewhere, if it knew that there are others, and stopped to answer in time."""
        self.is_at_work = True
        first, *rest = self._world.hosts_from
        self._world.hosts_from.update({first: 0, **dict.fromkeys(rest, ALONE_US + 100 * MS)})
        for each in self._world.regions:
            each.unclean_recovery_timeout = 2000
        self._world.statistics["first hosts isolated"] += 1

        def cut() -> None:
            self._isolate(self._world.members[first])
            self._calls(24, first, 3200 * MS)
            for name in rest:
                self._calls(8, name, 3200 * MS)

        self._after(ALONE_US - self._world.simulation.now_us, cut)
        self._after(ALONE_US + 3200 * MS - self._world.simulation.now_us, lambda: (self._network.heal(), self._over()))

    # Promises

    def exile(self) -> None:
        """All replicas of a bucket reach each other, and nobody else reaches them, longer than their
        unclean-recovery-timeout."""
        limits_ms = {each.unclean_recovery_timeout for each in self._world.regions}
        picked = self._pick(2) if limits_ms == {2000} and len(self._world.members) > 2 else None
        if picked is None:
            return
        _, primary, (replica,) = picked
        self._isolate(primary, but=(replica.name,))
        self._isolate(replica, but=(primary.name,))
        self._world.note(f"{primary.name} and {replica.name} reach each other, and nobody else")
        self._world.statistics["exiles"] += 1
        for each in self._world.members.values():
            self._calls(16, each.name, 3000 * MS)
        self._after(3000 * MS, lambda: (self._network.heal(), self._over()))

    def flicker(self) -> None:
        """A primary that slept reaches its replica once more, just before that takes over without it, and ends."""
        picked = self._pick(2)
        if picked is None:
            return
        key, primary, (replica,) = picked
        primary.pause(5000 * MS)
        self._world.note(f"{primary.me} sleeps, and wakes when its lease is over")
        self._world.statistics["flickers"] += 1

        def until_near() -> bool:
            lease = self._world.coordinator.core.liveness.lease_until_us(primary.me) or 0
            return lease - self._world.coordinator.clock() < 3 * LOOKS_US

        def wake() -> None:
            self._isolate(primary, but=(replica.name,))
            primary.paused_until = self._world.simulation.now_us
            primary._go_on()
            self._calls(4, primary.name, 10 * MS, is_read=True)
            self._when(takes_over, alone, 900 * MS)

        def takes_over() -> bool:
            bucket = replica.agent.tables.buckets.get(key)
            return bucket is not None and bucket.replicas == (replica.me,)

        def alone() -> None:
            self._isolate(primary)
            self._after(4 * MS, lambda: self._end_and_start(replica))
            self._calls(12, primary.name, 300 * MS, is_read=True)
            for each in self._world.members.values():
                if each not in (primary, replica) and not each.is_dead:
                    self._calls(8, each.name, 250 * MS)
            self._after(700 * MS, lambda: (self._network.heal(), self._over()))

        self._when(until_near, wake, 1500 * MS)
