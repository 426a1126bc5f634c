"""Owns a simulated site: coordinator, members, clients, and everything that goes wrong."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable

from linearizability import ABSENT, Operation, Verdict, check
from pywan.coordination.actions import Probe, Store, Tell
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Incarnation,
    Kind,
    Reach,
    RegionAttributes,
)

from .member import Copy, Entry, Member
from .simulation import MS, Network, Node, Simulation

MEMBER_TIMEOUT_US = 1000 * MS
OPERATION_US = 3000 * MS
KEYS = ("a", "b", "c", "d")


class Broken(Exception):
    """A promise was not kept."""


class CoordinatorNode(Node):
    def __init__(self, world: SiteWorld, stored: list[Store]) -> None:
        super().__init__(world.simulation, "coordinator")
        self.world = world
        rng = world.simulation.rng
        self.core = Coordinator(
            "locator",
            stored,
            run=rng.randrange(1 << 60),
            now_us=self.clock(),
            site_identity=f"site-{rng.randrange(1 << 30)}",
            member_timeout_us=MEMBER_TIMEOUT_US,
        )
        self.every(30 * MS, self._tick)

    def _tick(self) -> None:
        self.core.tick(self.clock())
        self.act(None, 0)

    def act(self, asker: Member | None, sent: int) -> None:
        for action in self.core.take_actions():
            match action:
                case Store():
                    self.world.journal.append(action)
                    self.world.decided(action)
                case Tell(to, message):
                    at = sent if asker is not None and to == asker.me else 0
                    self.world.network.send(self, to, lambda node, m=message, s=at: node.heard_coordinator(m, s))
                case Probe(profile):
                    self._probe(profile.incarnation)

    def _probe(self, member: Incarnation) -> None:
        """A connection to the member's port: refused at once if the process is dead, silent if it is away."""
        node = self.world.network.nodes.get(member)
        names = (self.name, member.name)
        away = names in self.world.network.cut or names[::-1] in self.world.network.cut
        alive = node is not None and not node.is_dead
        reach = Reach.SILENT if away else Reach.ANSWERED if alive else Reach.REFUSED

        def tell() -> None:
            self.core.probed(member, reach, self.clock())
            if reach is Reach.REFUSED:  # Its process is gone, and its machine says so.
                self.core.left(member, self.clock())
            self.act(None, 0)

        self.simulation.after(300 * MS if away else MS, lambda: self.do(tell))


class SiteWorld:
    """All of it, from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.simulation = Simulation(seed)
        self.network = Network(self.simulation)
        rng = self.simulation.rng
        kind = rng.choice([Kind.PARTITION, Kind.PARTITION, Kind.REPLICATE])
        self.regions = {
            "data": RegionAttributes(
                kind,
                total_num_buckets=2,
                redundant_copies=rng.choice([1, 1, 2, 0]),
                recovery_delay_ms=rng.choice([-1, 0, 500]),
            )
        }
        self.journal: list[Store] = []
        self.statistics: defaultdict[str, int] = defaultdict(int)
        self.history: defaultdict[str, list[Operation]] = defaultdict(list)
        self.lives: dict[BucketKey, tuple[int, int]] = {}  # Each bucket's life, and when it began.
        # Buckets about which decisions were lost with the coordinator's file, each with their generation.
        self.forgotten: dict[BucketKey, int] = {}
        self.highest: dict[tuple[BucketKey, int], tuple[Epoch, Incarnation]] = {}
        self.members: dict[str, Member] = {}
        self.locked: dict[str, int] = {}  # By name: the member id that stands in the folder.
        self.folders: dict[
            str, tuple[str, DecisionId]
        ] = {}  # By name: the site's identity, the newest decision that was heard.
        self.unchecked: set[str] = set()  # Keys of buckets whose life says that they may have lost their end.
        self.processes = 0
        self.trace: list[str] = []
        self.coordinator = self.network.nodes["coordinator"] = CoordinatorNode(self, self.journal)
        # When a member creates the region: so long one member has it alone, or nobody.
        chance = random.Random(seed)
        self.hosts_from = {name: chance.choice([0, 0, 3000, 6000]) * MS for name in ("m1", "m2", "m3", "m4")}
        for name in ("m1", "m2", "m3", "m4")[: rng.choice([2, 3, 3, 4])]:
            self._start(name)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.simulation.now_us / 1e6:.4f} {text}")

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            past = "\n  ".join(self.trace[-200:])
            raise Broken(f"seed {self.seed} at {self.simulation.now_us / 1e6:.3f} s: {what}\nbefore that:\n  {past}")

    # --- processes ---

    def _start_coordinator(self) -> None:
        if not self.coordinator.is_dead:
            return
        self.coordinator = CoordinatorNode(self, self.journal)
        self.network.nodes["coordinator"] = self.coordinator

    def _start(self, name: str) -> None:
        member = Member(self, name, self.simulation.rng.randrange(1 << 32))
        self.members[name] = member
        self.network.nodes[member.me] = member
        self.note(f"{member.me} starts")

    def end(self, member: Member) -> None:
        member.is_dead = True
        self.note(f"{member.me} ends")
        self.suspect(member)

    def suspect(self, member: Member) -> None:
        """Connections are reset, which the other members see."""
        for other in self.members.values():
            if other is not member and not other.is_dead:
                me = other.me
                self.ask_coordinator(other, other.clock(), lambda c, now, m=me: c.suspect(m, member.me, now))

    def restart(self, member: Member) -> None:
        if not member.is_dead:
            self.end(member)
            self._start(member.name)

    def ask_coordinator(self, member: Member, sent: int, request: Callable[[Coordinator, int], object]) -> None:
        def arrive(node: CoordinatorNode) -> None:
            request(node.core, node.clock())
            node.act(member, sent)

        self.network.send(member, "coordinator", arrive)

    # --- what is watched ---

    def decided(self, store: Store) -> None:
        """Decisions as they are stored. A new life means that everything in the bucket is gone."""
        for key, bucket in store.buckets:
            if bucket is None or bucket.primary is None:
                continue
            if key in self.coordinator.core._unheard:
                continue  # Members that know later decisions may yet report them.
            self._see_fork(key, store.newest.generation)
            self.note(f"decision {store.newest.generation}.{store.newest.number} {key}: {shown(bucket)}")
            self._see_life(key, bucket)

    def _see_fork(self, key: BucketKey, generation: int) -> None:
        """Nobody who is there knows of the decisions that were lost, so others are made in their place.

        No protocol could avoid that. What was acknowledged under the lost decisions may be gone, or come back.
        """
        if self.forgotten.get(key) == generation:
            self.statistics["forks"] += 1
            self.unchecked |= {of for of in KEYS if bucket_of(of) == key}
            for known in [known for known in self.highest if known[0] == key]:
                del self.highest[known]

    def _see_life(self, key: BucketKey, bucket: Bucket) -> None:
        life, since = self.lives.get(key, (bucket.life, self.simulation.now_us))
        if bucket.life != life and bucket.inherits == life:
            # Coordinator and members have lost decisions: acknowledged changes may be gone, as the new life says.
            self.statistics["lost ends"] += 1
            self.unchecked |= {of for of in KEYS if bucket_of(of) == key}
        elif bucket.life != life and (bucket.inherits or bucket.life) < life:
            # A coordinator that had forgotten it for a while hears of this life again. What was acknowledged in the
            # later one is gone.
            self.must("files" in self.statistics, f"{key} goes back from life {life} to {bucket.life}")
            self.statistics["lives that came back"] += 1
            self.unchecked |= {of for of in KEYS if bucket_of(of) == key}
        elif bucket.life != life:
            self.statistics["lives"] += 1
            for of in KEYS:
                if bucket_of(of) == key:
                    self.processes += 1
                    self.history[of].append(
                        Operation(self.processes, "put", (ABSENT,), None, since, self.simulation.now_us)
                    )
            since = self.simulation.now_us
        self.lives[key] = bucket.life, since

    def active(self, member: Member, key: BucketKey, bucket: Bucket, copy: Copy) -> None:
        self.note(f"{member.me} is primary of {key} under {bucket.epoch} with {copy.through} entries")
        self.statistics["takeovers"] += 1

    def answered(self, member: Member, key: BucketKey, copy: Copy, entry: Entry | None) -> None:
        """A primary answers a client. Nobody did so under a newer epoch, and all copies in sync have the change."""
        self.answered_in(key, copy.life)
        epoch = member.leads[key].epoch
        known, by = self.highest.get((key, copy.life), (epoch, member.me))
        if epoch < known:
            # A member that was asleep may still tell of a change which the later primary has, and of nothing else.
            later = self.network.nodes[by].copies.get(key)
            self.must(
                entry is not None and (later is None or entry in later.entries),
                f"{member.me} answers {entry or 'a read'} of {key} under {epoch}, and {by} did under {known}",
            )
            return
        self.must(epoch > known or by == member.me, f"{member.me} and {by} are both primary of {key} under {epoch}")
        self.highest[key, copy.life] = epoch, member.me
        if entry is None:
            self.statistics["local reads"] += 1
            return
        core, known_to_primary = self.coordinator.core, member.buckets[key]
        bucket = core.site.buckets.get(key)
        if bucket is None or core._silent or key in core._unheard or bucket.version < known_to_primary.version:
            return  # The coordinator does not know better than the primary.
        for each in bucket.in_sync:
            node = self.network.nodes.get(each)
            if bucket.life == copy.life and isinstance(node, Member) and not node.is_dead and key in node.copies:
                theirs = node.copies[key].entries
                self.must(
                    len(theirs) >= entry.sequence and theirs[entry.sequence - 1] == entry,
                    f"{member.me} acknowledges {entry} of {key}, and {each}, in sync, has it not",
                )

    def answered_in(self, key: BucketKey, life: int) -> None:
        """A bucket was given up, and the coordinator has forgotten that: its sole copy gets a lease again, and goes on.

        Nobody can know better before a member of the later life is heard. Only copies that are sole are given up.
        """
        if self.statistics.get("files") and life < self.lives[key][0]:
            self.statistics["answers in a life that was given up"] += 1
            self.unchecked |= {of for of in KEYS if bucket_of(of) == key}

    # --- clients ---

    def client(self) -> None:
        """One operation: it is tried at several members under one identity, until one answers or its time is over."""
        rng = self.simulation.rng
        self.processes += 1
        process, of = self.processes, rng.choice(KEYS)
        name = rng.choice(["get", "get", "get", "put", "put", "put_if_absent", "replace", "remove", "compare"])
        values = [each.arguments[-1] for each in self.history[of] if each.arguments] or [0]
        arguments: tuple[Hashable, ...] = {
            "get": (),
            "remove": (rng.choice(values[-3:]),),
            "compare": (rng.choice(values[-3:]), process),
        }.get(name, (process,))
        name = "replace" if name == "compare" else name
        called, key = self.simulation.now_us, bucket_of(of)
        slot = len(self.history[of])
        self.history[of].append(Operation(process, name, arguments, None, called))
        state: dict[str, Hashable] = {"life": None, "open": True}

        def attempt() -> None:
            if not state["open"] or self.simulation.now_us > called + OPERATION_US:
                return
            alive = [each for each in self.members.values() if not each.is_dead]
            if not alive:
                self.simulation.after(100 * MS, attempt)
                return
            asked = rng.choice(alive)
            bucket = asked.buckets.get(key)
            if bucket is None or bucket.primary is None:
                self.simulation.after(rng.randrange(5 * MS, 60 * MS), attempt)
                return
            if state["life"] is None:
                state["life"] = bucket.life
            node = self.network.nodes.get(bucket.primary)
            if isinstance(node, Member):
                life = state["life"]
                self.network.send(
                    asked, bucket.primary, lambda m: m.operate(key, life, name, of, arguments, (process, 1), reply)
                )
            self.simulation.after(rng.randrange(40 * MS, 200 * MS), attempt)

        def reply(kind: str, answer: Hashable) -> None:
            def arrive() -> None:
                if not state["open"]:
                    return
                if kind == "done":
                    state["open"] = False
                    self.statistics["answers"] += 1
                    self.history[of][slot] = Operation(process, name, arguments, answer, called, self.simulation.now_us)
                elif kind == "in doubt":
                    state["open"] = False

            if rng.random() >= self.network.loss:
                self.simulation.after(rng.randrange(50, 2 * MS), arrive)

        attempt()

    # --- what goes wrong ---

    def trouble(self) -> None:  # noqa: C901, PLR0912, PLR0915 - Each branch is one kind of trouble.
        rng, network = self.simulation.rng, self.network
        alive = [each for each in self.members.values() if not each.is_dead]
        what = rng.choice(
            [
                "kill",
                "kill",
                "start",
                "start",
                "pause",
                "cut",
                "cut",
                "isolate",
                "isolate",
                "ambush",
                "ambush",
                "heal",
                "heal",
                "loss",
                "leave",
                "coordinator",
                "file",
            ]
        )
        if what == "kill" and alive:
            self.end(rng.choice(alive))
            self.statistics["kills"] += 1
        elif what == "start":
            for name, member in self.members.items():
                if member.is_dead:
                    self._start(name)
                    return
        elif what == "pause":
            victim: Node = rng.choice([*alive, self.coordinator])
            victim.pause(rng.choice([50, 400, 1500, 4000]) * MS)
            self.note(f"{victim.name} pauses")
            self.statistics["pauses"] += 1
        elif what == "cut":
            one, other = rng.sample([*self.members, "coordinator"], 2)
            network.cut |= {(one, other), (other, one)} if rng.random() < 0.6 else {(one, other)}
            self.note(f"cut {sorted(network.cut)}")
            self.statistics["cuts"] += 1
        elif what == "isolate":
            name = rng.choice([*self.members])
            rest = [each for each in [*self.members, "coordinator"] if each != name]
            network.cut |= {(name, each) for each in rest} | {(each, name) for each in rest}
            self.note(f"{name} is isolated")
            if rng.random() < 0.6:  # By something that resets connections, which the others see at once.
                self.suspect(self.members[name])
            for _ in range(rng.randrange(6)):
                self.simulation.after(rng.randrange(400 * MS), self.client)
            self.statistics["isolations"] += 1
        elif what == "ambush":
            self.ambush()
        elif what == "heal":
            network.cut.clear()
            network.loss, network.slow_us = 0.0, 0
            self.note("heals")
        elif what == "loss":
            network.loss, network.slow_us = rng.choice([0.01, 0.1, 0.3]), rng.choice([0, 100 * MS, 1500 * MS])
            self.note(f"loss {network.loss}")
        elif what == "leave" and alive and rng.random() < 0.5:
            rng.choice(alive).is_leaving = True
            self.statistics["leaves"] += 1
        elif what == "coordinator":
            self.coordinator.is_dead = True
            self.note("coordinator starts again")
            self.simulation.after(rng.choice([0, 200, 3000]) * MS, self._start_coordinator)
            self.statistics["coordinators"] += 1
        elif what == "file" and rng.random() < 0.3 and len(self.journal) > 4:
            network.cut.clear()  # Members that cannot be heard now could not be told from members that never were.
            for member in alive:
                member.paused_until = min(member.paused_until, self.simulation.now_us + 10 * MS)
            self.coordinator.is_dead = True
            kept = rng.randrange(len(self.journal))
            for store in self.journal[kept:]:
                self.forgotten.update((key, store.newest.generation) for key, _ in store.buckets)
            del self.journal[kept:]
            self.note(f"coordinator comes back with {len(self.journal)} of its decisions")
            self.simulation.after(rng.choice([0, 200, 3000]) * MS, self._start_coordinator)
            self.statistics["files"] += 1

    def ambush(self) -> None:
        """A primary dies in the middle of changes that some of its copies have and others have not."""
        rng = self.simulation.rng
        several = [each for each in self.coordinator.core.site.buckets.values() if len(each.in_sync) > 1]
        if not several:
            return
        bucket = rng.choice(several)
        primary = self.network.nodes.get(bucket.primary)
        copy = rng.choice([each for each in bucket.in_sync if each != bucket.primary])
        if not isinstance(primary, Member) or primary.is_dead:
            return
        way = (primary.name, copy.name)
        self.network.cut.add(way)
        for _ in range(5):
            self.client()

        def strike() -> None:
            self.network.cut.discard(way)
            if not primary.is_dead:
                self.end(primary)

        self.simulation.after(rng.randrange(2, 60) * MS, strike)
        self.statistics["ambushes"] += 1

    # --- a run ---

    def run(self, steps: int = 30) -> None:
        rng = self.simulation.rng
        self.simulation.run_until(self.simulation.now_us + 300 * MS)
        for _ in range(steps):
            for _ in range(rng.randrange(4)):
                self.simulation.after(rng.randrange(200 * MS), self.client)
            if rng.random() < 0.5:
                self.trouble()
            self.simulation.run_until(self.simulation.now_us + rng.randrange(10, 400) * MS)
        self.end_well()
        self.check_histories()

    def end_well(self) -> None:
        """Everything heals: in bounded time every bucket has an active primary and all its copies."""
        self.network.cut.clear()
        self.network.loss = self.network.slow_us = 0
        self._start_coordinator()
        for member in list(self.members.values()):
            if member.is_dead:
                self._start(member.name)
            elif member.is_leaving:
                self.restart(member)
        self.note("everything heals")
        self.simulation.run_until(self.simulation.now_us + 15 * MEMBER_TIMEOUT_US)
        before = self.statistics["answers"]
        for _ in range(8):
            self.simulation.after(0, self.client)
        self.simulation.run_until(self.simulation.now_us + OPERATION_US)
        self.must(self.statistics["answers"] == before + 8, "operations are not answered in a site that is healthy")
        core = self.coordinator.core
        self.must(not core._unheard and not core._silent, "the coordinator waits for members that are there")
        for region in self.regions:
            hosts = core.site.hosts(region).keys()
            self.must({each.name for each in hosts} == self.members.keys(), f"only {sorted(hosts)} have {region}")
            self.must(core.site.regions[region].shared, f"{region} is not shared, though several members have it")
        for key, bucket in core.site.buckets.items():
            self.must(bucket.primary is not None or bucket.in_sync == (), f"{key} has no primary: {shown(bucket)}")
            if bucket.primary is None:
                continue
            lead = self.network.nodes[bucket.primary]
            entries = [self.network.nodes[each].copies[key].entries for each in bucket.in_sync]
            self.must(all(each == entries[0] for each in entries), f"the copies of {key} differ")
            self.must(lead.leads[key].active, f"{key} has no active primary")
            self.must(not bucket.leaving and not bucket.learners, f"{key} is not at rest: {shown(bucket)}")
            attributes = self.regions[key.region]
            if attributes.recovery_delay_ms >= 0:
                wanted = attributes.copies_wanted(len(core.site.hosts(key.region)))
                self.must(len(bucket.in_sync) >= wanted, f"{key} has not {wanted} copies: {shown(bucket)}")

    def check_histories(self) -> None:
        for of, history in self.history.items():
            if of in self.unchecked:
                continue
            verdict = check([each for each in history if not (each.is_unknown and each.name == "get")])
            self.statistics[f"histories {verdict.value}"] += 1
            self.must(
                verdict is not Verdict.VIOLATION,
                f"the history of {of} has no order that explains it:\n"
                + "\n".join(
                    f"    {each.called / 1e6:.4f}-{each.returned / 1e6 if each.returned < math.inf else math.inf:.4f} "
                    f"{each.name}{each.arguments} = {each.answer}"
                    for each in history
                ),
            )


def bucket_of(of: str) -> BucketKey:
    return BucketKey("data", KEYS.index(of) % 2)


def shown(bucket: Bucket) -> str:
    names = {
        "in sync": bucket.in_sync,
        "leaving": bucket.leaving,
        "learners": bucket.learning,
    }
    told = ", ".join(f"{name} {'+'.join(map(str, some))}" for name, some in names.items() if some)
    return f"epoch {bucket.epoch} version {bucket.version} life {bucket.life} primary {bucket.primary}, {told}"
