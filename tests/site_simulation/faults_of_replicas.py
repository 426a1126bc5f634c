"""Owns what goes wrong with the replicas of one bucket in a simulated site. Each fault needs several things in their
order, so it takes a moment of its own, in which nothing else goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pywan.coordination.tables import Bucket, BucketKey
from pywan.member.hosting import unclean_recovery_timeout_ms
from pywan.protocol import between_members as wire

from .coordinator import MEMBER_TIMEOUT_US
from .member import Member
from .shown import changelog_of
from .simulation import MS

if TYPE_CHECKING:
    from .world import SiteWorld

UNCLEAN_RECOVERY_MAX_MS = 5000  # A bucket with a longer limit does not begin anew while anybody looks.
READS = ("get",)
CHANGES = ("put", "put_if_absent", "compare", "remove", "destroy")
CONDITIONAL = ("put_if_absent", "compare", "remove")  # A second one finds what the first one did.


class Led(NamedTuple):
    """A bucket whose primary is at work."""

    key: BucketKey
    bucket: Bucket
    primary: Member


class FaultsOfReplicas:
    """Each call of `happen` does one thing to a world, by chance, if there is a bucket with which it can be done."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world

    def happen(self) -> None:
        # Those that fit few buckets come in front of the others as often as not.
        rare = [
            self._outlive_the_unclean_recovery_timeout,
            self._swap_behind_answers,
            self._learn_slowly,
            self._lose_what_is_stable_nowhere,
        ]
        others = [self._depose, self._starve, self._grant_read_leases_and_lose]
        rng = self._world.simulation.rng
        rng.shuffle(rare)
        rng.shuffle(others)
        tried: list[Callable[[], bool]] = [*rare, *others] if rng.random() < 0.5 else [*others, *rare]
        if self._world.value_bytes and rng.random() < 0.5:  # It is what large values are for.
            tried.insert(0, self._learn_slowly)
        any(each() for each in tried)

    # What they have in common

    def _find(self, may: Callable[[Led], object]) -> Led | None:
        """Returns a bucket with a primary that is at work, and of which `may` holds. The network is well then."""
        world, found = self._world, []
        for key, bucket in world.coordinator.core.site.buckets.items():
            primary = world.network.nodes.get(bucket.primary)
            if not isinstance(primary, Member) or primary.is_dead or primary.is_leaving or key.number < 0:
                continue
            changelog = changelog_of(primary, key)
            led = Led(key, bucket, primary)
            if changelog is not None and changelog.state(key.number)["role"] == "primary" and may(led):
                found.append(led)
        if not found or world.coordinator.is_dead:
            return None
        world.network.heal()
        return world.simulation.rng.choice(found)

    def _run(self, for_ms: int) -> None:
        self._world.simulation.run_until(self._world.simulation.now_us + for_ms * MS)

    def _calls(
        self, key: BucketKey, names: Sequence[str], count: int, within_ms: int, at: Member | None = None
    ) -> None:
        """So many operations on keys of a bucket, at one member or at any."""
        world, rng = self._world, self._world.simulation.rng

        def call() -> None:
            there = [each for each in world.members.values() if not each.is_dead and key.region in each.regions]
            there = [each for each in there if at in (None, each)]
            if there and keys:
                world.call(rng.choice(there), key.region, rng.choice(keys), names)

        keys = world.keys.of(key)
        for _ in range(count):
            world.simulation.after(rng.randrange(within_ms * MS), call)

    def _isolate(self, member: Member) -> set[tuple[str, str]]:
        """Cuts a member off from all others, and has the coordinator look at it. Returns the ways."""
        rest = [each for each in [*self._world.members, "coordinator"] if each != member.name]
        ways = {(member.name, each) for each in rest} | {(each, member.name) for each in rest}
        self._cut(ways, member)
        return ways

    def _cut(self, ways: set[tuple[str, str]], member: Member) -> None:
        coordinator = self._world.coordinator
        self._world.network.cut |= ways
        self._world.simulation.after(MS, lambda: coordinator.do(lambda: coordinator.connection_ended(member.me)))

    def _break_repl_links_to(self, member: Member) -> None:
        for connection in list(self._world.network.connections):
            if connection.protocol == wire.REPLICATION and connection.ends[1].node is member:
                connection.ends[0].reset()

    # What goes wrong

    def _outlive_the_unclean_recovery_timeout(self) -> bool:
        """The sole replica of a bucket is cut off from everybody until the bucket begins anew, and its own threads call
        all the time."""
        limits = {each.name: unclean_recovery_timeout_ms(each) for each in self._world.regions}

        def may(led: Led) -> bool:
            return led.bucket.replicas == (led.primary.me,) and 0 <= limits[led.key.region] <= UNCLEAN_RECOVERY_MAX_MS

        led = self._find(may)
        if led is None:
            return False
        self._world.note(f"{led.primary.me}, the sole replica of {led.key}, is silent for too long")
        self._world.statistics["sole replicas that were silent"] += 1
        ways, for_ms = self._isolate(led.primary), limits[led.key.region] + 700
        self._calls(led.key, READS + CHANGES, 24, for_ms, led.primary)
        self._calls(led.key, CHANGES, 8, for_ms)
        self._run(for_ms)
        self._world.network.cut -= ways
        return True

    def _swap_behind_answers(self) -> bool:
        """The answers to calls are held until the replicas of their bucket are other ones. Then their primary dies, and
        they go again to a member that was not there when they were made."""
        world, made = self._world, {each.name: each for each in self._world.regions}

        def callers(led: Led) -> list[Member]:
            some = world.members.values()
            return [each for each in some if not each.is_dead and each.me not in led.bucket.holders]

        def may(led: Led) -> bool:
            is_filled = made[led.key.region].is_replicated or made[led.key.region].recovery_delay >= 0
            return is_filled and len(led.bucket.replicas) > 1 and bool(callers(led))

        led = self._find(may)
        if led is None:
            return False
        caller = world.simulation.rng.choice(callers(led))
        way = (led.primary.name, caller.name)
        world.note(f"answers of {led.primary.me} to {caller.me} are held, and the replicas of {led.key} restart")
        world.statistics["replicas swapped behind answers"] += 1
        world.network.held[way] = world.simulation.now_us + 10 * MEMBER_TIMEOUT_US
        self._calls(led.key, CONDITIONAL, 12, 20, caller)
        self._run(30)
        before = [each for each in led.bucket.replicas if each != led.primary.me]
        for each in before:
            node = world.network.nodes.get(each)
            if isinstance(node, Member):
                world.restart(node)
        for _ in range(40):
            bucket = world.coordinator.core.site.buckets[led.key]
            if bucket.primary == led.primary.me and len(bucket.replicas) > 1 and not {*before} & {*bucket.holders}:
                break
            self._run(50)
        world.end(led.primary)
        for connection in list(world.network.connections):
            end = connection.ends[0]
            if connection.protocol == wire.CALLS and (end.node, end.to) == (caller, led.primary):
                end.reset()
        world.network.held.pop(way, None)
        self._run(400)
        return True

    def _depose(self) -> bool:
        """A primary is cut off with changes that nobody else has, and comes back as a learner before their callers
        give up. Others have made as many changes meanwhile, under the same sequences."""
        led = self._find(lambda led: len(led.bucket.replicas) > 1)
        if led is None:
            return False
        self._world.note(f"{led.primary.me} is deposed while calls wait for changes of {led.key}")
        self._world.statistics["deposed with changes"] += 1
        ways = self._isolate(led.primary)
        self._calls(led.key, CHANGES, 6, 60, led.primary)
        self._calls(led.key, ("put",), 24, 800)
        self._run(850)
        self._world.network.cut -= ways
        self._calls(led.key, READS + CHANGES, 10, 1000)
        self._run(1200)
        return True

    def _starve(self) -> bool:
        """A primary serves no new connection and no question, and is cut off from the coordinator. Its replication
        links and calls go on, and others take over."""
        led = self._find(lambda led: len(led.bucket.replicas) > 1)
        if led is None:
            return False
        self._world.note(f"{led.primary.me} serves nobody who comes, and leads {led.key}")
        self._world.statistics["starved primaries"] += 1
        name = led.primary.name
        ways = {(name, "coordinator"), ("coordinator", name)}
        led.primary.deaf_until = self._world.simulation.now_us + 1400 * MS
        self._cut(ways, led.primary)
        self._break_repl_links_to(led.primary)
        self._calls(led.key, READS, 30, 1400, led.primary)
        self._calls(led.key, CHANGES, 12, 1400)
        self._run(1400)
        self._world.network.cut -= ways
        return True

    def _grant_read_leases_and_lose(self) -> bool:
        """A primary that others have long been unable to reach is cut off: they take over at once, while promises that
        they gave it run."""
        led = self._find(lambda led: len(led.bucket.replicas) > 1)
        if led is None:
            return False
        self._world.note(f"{led.primary.me}, which leads {led.key}, loses replicas that have promised it something")
        self._world.statistics["promises to primaries that were lost"] += 1
        led.primary.deaf_until = self._world.simulation.now_us + 1500 * MS
        self._break_repl_links_to(led.primary)
        self._run(880)
        if led.primary.is_dead:
            return True
        self._world.network.rejecting.add(led.primary.name)
        ways = self._isolate(led.primary)
        self._calls(led.key, READS, 60, 350, led.primary)
        self._calls(led.key, CHANGES, 10, 350)
        self._run(600)
        self._world.network.cut -= ways
        self._world.network.rejecting.discard(led.primary.name)
        return True

    def _learn_slowly(self) -> bool:
        """A replica begins anew and learns over a slow way, so changes come while parts of its snapshot wait to leave.
        Then there is rest, and later it may lead."""
        world = self._world

        def replicas(led: Led) -> list[Member]:
            nodes = [world.network.nodes.get(each) for each in led.bucket.replicas if each != led.primary.me]
            return [each for each in nodes if isinstance(each, Member)]

        led = self._find(lambda led: world.value_bytes and replicas(led))
        if led is None:
            return False
        replica = world.simulation.rng.choice(replicas(led))
        world.note(f"{replica.me} begins anew, and learns {led.key} slowly")
        world.statistics["slow learners"] += 1
        world.restart(replica)
        world.network.rates[led.primary.name, replica.name] = world.value_bytes * 20
        # So many changes that the learner is behind, and then few: a later one hides what an earlier one has become.
        self._calls(led.key, ("put",), 16, 600)
        self._calls(led.key, ("put",), 8, world.simulation.rng.choice([700, 1000, 1300]))
        self._run(700)
        for _ in range(20):
            bucket = world.coordinator.core.site.buckets.get(led.key)  # None: the coordinator has begun again.
            if bucket is not None and len(bucket.replicas) > 1 and not bucket.learners:
                break
            self._run(100)
        world.network.rates.clear()
        if world.simulation.rng.random() < 0.5:
            world.end(led.primary)
        self._calls(led.key, READS, 10, 500)
        self._run(500)
        return True

    def _lose_what_is_stable_nowhere(self) -> bool:
        """One replica of several has changes that the others lack, and is read. Then it dies together with the
        primary."""
        world = self._world
        made = {each.name: each for each in world.regions}

        def replicas(led: Led) -> list[Member]:
            nodes = [world.network.nodes.get(each) for each in led.bucket.replicas if each != led.primary.me]
            return [each for each in nodes if isinstance(each, Member) and not each.is_dead]

        led = self._find(lambda led: made[led.key.region].is_replicated and len(replicas(led)) > 1)
        if led is None:
            return False
        kept, *others = replicas(led)
        world.note(f"{kept.me} alone has changes of {led.key}, and dies with {led.primary.me}")
        world.statistics["changes that count nowhere"] += 1
        world.network.cut |= {(led.primary.name, each.name) for each in others}
        self._calls(led.key, ("put",), 6, 40, led.primary)
        self._calls(led.key, READS, 20, 70, kept)
        self._run(80)
        world.end(led.primary)
        world.end(kept)
        world.network.heal()
        self._calls(led.key, READS, 10, 1500)
        self._run(1500)
        return True
