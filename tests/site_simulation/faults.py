"""Owns what goes wrong in a simulated site."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pywan.coordination.tables import Bucket, BucketKey
from pywan.protocol import between_members as wire

from .faults_of_coordination import FaultsOfCoordination
from .faults_of_replicas import FaultsOfReplicas
from .member import Member
from .simulation import MS, Node

if TYPE_CHECKING:
    from .world import SiteWorld


class Faults:
    """Each call of `happen` does one thing to a world, by chance."""

    def __init__(self, world: SiteWorld) -> None:
        self._world, self._of_replicas = world, FaultsOfReplicas(world)
        self.severed: BucketKey | None = None  # The pair that `_sever` has cut.
        self.of_coordination = FaultsOfCoordination(world)

    def happen(self) -> None:
        if self.of_coordination.is_at_work:
            return
        rng = self._world.simulation.rng
        what: Callable[[], object] = rng.choice(
            [
                *[self._kill, self._start_one, self._cut, self._isolate, self._ambush, self._heal, self._hold] * 2,
                *[self._part, self._sever] * 2,
                *[self._pause, self._lossy, self._slow, self._leave, self._coordinator, self._file],
                *[self._coordinator_cut, self._all_again, self._reset, self._split, self._damage],
                *self.of_coordination.all,
                *[self._of_replicas.happen] * 4,
            ]
        )
        what()
        self._world.statistics["faults while calls were on their way"] += any(
            each.clients for each in self._world.members.values()
        )

    @property
    def _alive(self) -> list[Member]:
        return [each for each in self._world.members.values() if not each.is_dead]

    def _kill(self) -> None:
        for member in self._world.simulation.rng.sample(
            self._alive, min(len(self._alive), self._world.simulation.rng.choice([1, 1, 2]))
        ):
            self._world.end(member)
            self._world.statistics["kills"] += 1

    def _start_one(self) -> None:
        for name, member in self._world.members.items():
            if member.is_dead:
                self._world.start(name)
                return

    def _all_again(self) -> None:
        """All members die at once, and are started again."""
        if self._world.simulation.rng.random() < 0.5:
            return
        self._world.statistics["sites restarted"] += 1
        for member in self._alive:
            self._world.end(member)
        for name in list(self._world.members):
            self._world.simulation.after(
                self._world.simulation.rng.randrange(300 * MS), lambda name=name: self._start_again(name)
            )

    def _start_again(self, name: str) -> None:
        if self._world.members[name].is_dead:
            self._world.start(name)

    def _pause(self) -> None:
        rng = self._world.simulation.rng
        victim: Node = rng.choice([*self._alive, self._world.coordinator])
        victim.pause(rng.choice([50, 400, 1500, 4000]) * MS)
        self._world.note(f"{victim.name} pauses")
        self._world.statistics["pauses"] += 1

    def _cut(self) -> None:
        rng = self._world.simulation.rng
        one, other = rng.sample([*self._world.members, "coordinator"], 2)
        is_both = rng.random() < 0.6
        self._world.network.cut |= {(one, other), (other, one)} if is_both else {(one, other)}
        self._world.note(f"cut {sorted(self._world.network.cut)}")
        self._world.statistics["cuts" if is_both else "one-way cuts"] += 1

    def _isolate(self) -> None:
        rng = self._world.simulation.rng
        name = rng.choice([*self._world.members])
        rest = [each for each in [*self._world.members, "coordinator"] if each != name]
        self._world.network.cut |= {(name, each) for each in rest} | {(each, name) for each in rest}
        self._world.note(f"{name} is isolated")
        if rng.random() < 0.6:  # By something that resets connections, which both ends see at once.
            self._world.network.reset(self._world.members[name])
        self._world.clients_soon(6)
        # It may still answer from what it leads, while others take over and go on.
        for _ in range(rng.choice([0, 12])):
            self._world.simulation.after(rng.randrange(700 * MS), lambda: self._world.client(at=name, is_read=True))
            self._world.simulation.after(rng.randrange(700 * MS), self._world.client)
        self._world.statistics["isolations"] += 1

    def _part(self) -> None:
        """A primary reaches one of its replicas, but neither the coordinator nor the others, which take over."""
        rng = self._world.simulation.rng
        several = [each for each in self._world.coordinator.core.site.buckets.values() if len(each.replicas) > 2]
        if not several:
            return
        bucket = rng.choice(several)
        primary = self._world.network.nodes.get(bucket.primary)
        if not isinstance(primary, Member) or primary.is_dead:
            return
        kept = rng.choice([each.name for each in bucket.replicas if each != bucket.primary])
        rest = [each for each in [*self._world.members, "coordinator"] if each not in (primary.name, kept)]
        self._world.network.cut |= {(primary.name, each) for each in rest} | {(each, primary.name) for each in rest}
        self._world.note(f"{primary.name} reaches {kept} and nobody else")
        self._world.network.reset(primary)
        for _ in range(12):
            self._world.simulation.after(rng.randrange(1500 * MS), lambda: self._world.client(at=primary.name))
            self._world.simulation.after(rng.randrange(1500 * MS), self._world.client)
        self._world.statistics["parts"] += 1

    def _sever(self) -> None:
        """A primary loses its one other replica, and asks to have it taken out. See `_strike`."""
        pairs = [key for key, each in self._world.coordinator.core.site.buckets.items() if len(each.replicas) == 2]
        if pairs:
            self.severed = self._world.simulation.rng.choice(pairs)
            one, other = (each.name for each in self._world.coordinator.core.site.buckets[self.severed].replicas)
            self._world.network.cut |= {(one, other), (other, one)}
            self._world.note(f"{one} and {other} are cut")
            self._world.statistics["severed pairs"] += 1

    def strike(self, bucket: Bucket) -> None:
        """The primary hears that its replica leaves, cannot say that it has stored that, and dies after some
        changes."""
        self.severed = None
        primary = self._world.network.nodes.get(bucket.primary)
        if not isinstance(primary, Member):
            return
        way = (primary.name, "coordinator")
        self._world.simulation.after(0, lambda: self._world.network.cut.add(way))
        for _ in range(12):
            self._world.simulation.after(
                self._world.simulation.rng.randrange(150 * MS), lambda: self._world.client(at=primary.name)
            )

        def over() -> None:
            self._world.network.heal()
            if not self._world.is_healing:
                self._world.end(primary)

        self._world.simulation.after(200 * MS, over)

    def _coordinator_cut(self) -> None:
        """Nobody reaches the coordinator for a while, and all members reach each other."""
        ways = {
            (one, other)
            for name in self._world.members
            for one, other in ((name, "coordinator"), ("coordinator", name))
        }
        self._world.network.cut |= ways
        self._world.note("the coordinator is cut off")
        self._world.statistics["coordinator cut off"] += 1
        self._world.clients_soon(8, 1000 * MS)

        def over() -> None:
            self._world.network.cut -= ways

        self._world.simulation.after(self._world.simulation.rng.randrange(1000, 6000) * MS, over)

    def _heal(self) -> None:
        self._world.network.heal()
        self._world.note("heals")

    def _lossy(self) -> None:
        rng = self._world.simulation.rng
        self._world.network.loss, self._world.network.slow_us = (
            rng.choice([0.01, 0.1, 0.3]),
            rng.choice([0, 100 * MS, 1500 * MS]),
        )
        self._world.note(f"loss {self._world.network.loss}, delays up to {self._world.network.slow_us} us")
        self._world.statistics["losses"] += 1

    def _split(self) -> None:
        """What is sent at once comes in pieces, cut at any point."""
        self._world.network.splits = self._world.simulation.rng.choice([0.1, 1.0])
        self._world.note(f"of {self._world.network.splits} of what is sent the bytes come in pieces")
        self._world.statistics["times of pieces"] += 1

    def _damage(self) -> None:
        """Some bits change on their way over connections."""
        self._world.network.to_damage = self._world.simulation.rng.choice([1, 1, 5])
        self._world.note(f"{self._world.network.to_damage} messages are damaged")
        self._world.statistics["damaged messages"] += self._world.network.to_damage

    def _slow(self) -> None:
        one, other = self._world.simulation.rng.sample([*self._world.members], 2)
        rate = self._world.simulation.rng.choice([2_000, 20_000])
        self._world.network.rates[one, other] = max(rate, self._world.value_bytes * 10)
        self._world.note(f"{one} sends {self._world.network.rates[one, other]} bytes a second to {other}")
        self._world.statistics["slow ways"] += 1

    def _hold(self) -> None:
        """A proxy holds the bytes between two members. Often it resets the caller's end, and what it holds comes late:
        after calls were repeated over other connections."""
        rng = self._world.simulation.rng
        one, other = rng.sample([*self._world.members], 2)
        for_us = rng.choice([50, 300, 1000, 3000]) * MS
        self._world.network.held[one, other] = self._world.simulation.now_us + for_us
        self._world.note(f"bytes from {one} to {other} are held for {for_us} us")
        self._world.statistics["holds"] += 1
        self._world.clients_soon(4, 100 * MS)
        if rng.random() < 0.6:
            self._world.simulation.after(rng.randrange(5, 200) * MS, lambda: self._reset_calls(one, other))

    def _reset_calls(self, one: str, other: str) -> None:
        for connection in list(self._world.network.connections):
            end = connection.ends[0]
            if connection.protocol == wire.CALLS and (end.node.name, end.to.name) == (one, other):
                end.reset()
                self._world.network.held.pop((one, other), None)
                self._world.statistics["late calls"] += 1

    def _reset(self) -> None:
        """Some connections break, for no reason that anybody knows."""
        rng = self._world.simulation.rng
        for connection in list(self._world.network.connections):
            if rng.random() < 0.5:
                rng.choice(connection.ends).reset()
        self._world.statistics["resets"] += 1

    def _leave(self) -> None:
        rng = self._world.simulation.rng
        for member in rng.sample(self._alive, min(len(self._alive), rng.choice([1, 1, 2]))):
            if member.paused_until <= self._world.simulation.now_us and not member.is_leaving:
                self._world.note(f"{member.me} leaves")
                member.do(member.leave)
                self._world.statistics["leaves"] += 1

    def _coordinator(self) -> None:
        self._world.coordinator.is_dead = True
        self._world.note("coordinator starts again")
        self._world.simulation.after(
            self._world.simulation.rng.choice([0, 200, 3000]) * MS, self._world.start_coordinator
        )
        self._world.statistics["coordinators"] += 1

    def _file(self) -> None:
        rng = self._world.simulation.rng
        if rng.random() < 0.6 or len(self._world.journal) < 5:
            return
        # Members that cannot be heard now could not be told from members that never were.
        self._world.network.cut.clear()
        for member in self._alive:
            if member.paused_until > self._world.simulation.now_us:
                member.paused_until = self._world.simulation.now_us
                self._world.simulation.after(0, member._go_on)
        self._world.coordinator.is_dead = True
        self.lose_decisions(rng.randrange(len(self._world.journal)))
        self._world.simulation.after(rng.choice([0, 200, 3000]) * MS, self._world.start_coordinator)

    def lose_decisions(self, kept: int) -> None:
        """The coordinator is dead. Of its decisions the first `kept` are left."""
        if self._world.keeps_decisions:
            return
        for store in self._world.journal[kept:]:
            self._world.watch.forgotten.update((key, store.recovery_epoch) for key, _ in store.buckets)
        del self._world.journal[kept:]
        self._world.note(f"coordinator comes back with {len(self._world.journal)} of its decisions")
        self._world.statistics["files"] += 1

    def _ambush(self) -> None:
        """A primary dies in the middle of changes that some of its replicas have and others have not."""
        rng = self._world.simulation.rng
        several = [each for each in self._world.coordinator.core.site.buckets.values() if len(each.replicas) > 1]
        if not several:
            return
        bucket = rng.choice(several)
        assert bucket.primary is not None
        primary = self._world.network.nodes.get(bucket.primary)
        replica = rng.choice([each for each in bucket.replicas if each != bucket.primary])
        if not isinstance(primary, Member) or primary.is_dead:
            return
        way = (primary.name, replica.name)
        self._world.network.cut.add(way)
        self._world.clients_soon(6, 20 * MS)

        def strike() -> None:
            self._world.network.cut.discard(way)
            if self._world.is_healing:
                return
            if rng.random() < 0.7:
                self._world.end(primary)
            else:
                primary.pause(rng.choice([400, 1500]) * MS)

        self._world.simulation.after(rng.randrange(2, 60) * MS, strike)
        self._world.statistics["ambushes"] += 1
