"""Owns a simulated site: coordinator, members, clients, what goes wrong, and what must hold."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable

from linearizability import ABSENT, Operation, Verdict, check
from pywan import _core
from pywan.config.attributes import RegionAttributes
from pywan.coordination import agent_session, tables
from pywan.coordination.actions import Store
from pywan.coordination.agent_session import Remembered
from pywan.coordination.tables import Bucket, BucketKey, Incarnation
from pywan.member.hosting import silence_limit_ms
from pywan.protocol import between_members as wire

from .client import ANSWERED, FAILED, Client
from .coordinator import MEMBER_TIMEOUT_US, CoordinatorNode
from .member import Member, SimulatedRegion
from .simulation import MS, Network, Node, Simulation

NAMES = ("m1", "m2", "m3", "m4")
BUCKETS = 2
KEYS = tuple("abcdefgh")  # Some are in either bucket.
# What a world has only if it is asked for: the product does not keep its promises there yet.
# Changes of which an attempt was made when their bucket was lost and began anew. The new life remembers nothing of
# them, and makes them again.
REPEATS_OVER_LIVES = "repeats-over-lives"
# The coordinator's file is lost where regions are colocated: some of their buckets never get their copies again.
LOST_FILES_OF_COLOCATED = "lost-files-of-colocated"
EXTRAS = (REPEATS_OVER_LIVES, LOST_FILES_OF_COLOCATED)
PAUSES = ("RETRY_US", "RETRY_MAX_US", "REPEAT_US", "REPEAT_MAX_US")  # Of an agent: shorter, as the lease is.
STEPS_MAX = 200_000  # Of one search for an order of a history.
WHOLE_AGAIN_US = 12 * MEMBER_TIMEOUT_US  # So long a site that has healed takes at most until it is whole.


class Broken(Exception):
    """A promise was not kept."""


class Activation:
    """A member became primary of a bucket, and began to accept changes behind sequence `last`."""

    def __init__(self, epoch: int, member: Incarnation, last: int) -> None:
        self.epoch, self.member, self.last = epoch, member, last


class SiteWorld:
    """All of it, from one seed."""

    def __init__(self, seed: int, extras: Collection[str] = ()) -> None:
        self.seed, self._extras = seed, extras
        self.simulation = Simulation(seed)
        self.network = Network(self.simulation)
        rng = self.simulation.rng
        self.statistics: defaultdict[str, int] = defaultdict(int)
        self.regions = self._regions(rng)
        self._ask_for_copies(random.Random(f"{seed} copies"))
        self.is_one_machine = rng.random() < 0.5  # Locator and members see each other's processes.
        self.journal: list[Store] = []
        # By region and key. Regions that are colocated have the same keys.
        self.history: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
        self.under_way: defaultdict[tuple[str, str], dict[int, Client]] = defaultdict(dict)  # By region, key; thread.
        self.unclear: set[tuple[str, str]] = set()  # Keys that had such a change when a life of their bucket ended.
        self.lives: dict[BucketKey, tuple[int, int]] = {}  # Each bucket's life, and when it began.
        self.holders: dict[BucketKey, tuple[Incarnation, ...]] = {}  # The copies that the last decision names.
        self.severed: BucketKey | None = None  # The pair that `_sever` has cut.
        # Buckets about which decisions were lost with the coordinator's file, each with their generation.
        self.forgotten: dict[BucketKey, int] = {}
        self.activations: defaultdict[tuple[BucketKey, int], list[Activation]] = defaultdict(list)  # Of each life.
        self.counted: defaultdict[tuple[BucketKey, int], int] = defaultdict(int)  # Of each life: what was acknowledged.
        self.members: dict[str, Member] = {}
        self.folders: dict[str, Remembered] = {}  # What outlives the process of a member.
        self.unchecked: set[BucketKey] = set()  # Buckets whose life says that they may have lost their end.
        self.ended_processes: set[str] = set()
        self.processes = 0
        self.threads = 0
        self.trace: list[str] = []
        self.is_healing = False
        self.coordinator = self.network.nodes["coordinator"] = CoordinatorNode(self, self.journal)
        chance = random.Random(seed)
        self.hosts_from = {name: chance.choice([0, 0, 1500, 3000]) * MS for name in NAMES}
        for name in NAMES[: rng.choice([2, 3, 3, 4])]:
            self._start(name)

    @staticmethod
    def _regions(rng: random.Random) -> list[RegionAttributes]:
        if rng.random() < 0.3:
            made = RegionAttributes("data", "REPLICATE")
            made.total_num_buckets = BUCKETS
            return [made]
        made = RegionAttributes(
            "data",
            "PARTITION",
            total_num_buckets=BUCKETS,
            redundant_copies=rng.choice([1, 1, 2, 0, 3]),
            recovery_delay=rng.choice([-1, 0, 500]),
            silence_limit=rng.choice([None, None, 2000]),
        )
        if rng.random() < 0.7:
            return [made]
        beside = RegionAttributes(
            "more",
            "PARTITION",
            total_num_buckets=BUCKETS,
            redundant_copies=made.redundant_copies,
            recovery_delay=made.recovery_delay,
            silence_limit=made.silence_limit,
            colocated_with="data",
        )
        return [made, beside]

    def _ask_for_copies(self, rng: random.Random) -> None:
        """In some worlds a change needs two copies. Where lost copies are not made again, it would wait for ever."""
        least = rng.choice([1, 1, 2])
        for each in self.regions:
            if not each.is_partitioned or (each.redundant_copies and each.recovery_delay >= 0):
                each.min_in_sync_copies = least

    def note(self, text: str) -> None:
        self.trace.append(f"{self.simulation.now_us / 1e6:.4f} {text}")

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            past = "\n  ".join(self.trace[-200:])
            raise Broken(f"seed {self.seed} at {self.simulation.now_us / 1e6:.3f} s: {what}\nbefore that:\n  {past}")

    # --- processes ---

    def has_ended(self, process: str) -> bool:
        return process in self.ended_processes

    def _start_coordinator(self) -> None:
        if not self.coordinator.is_dead:
            return
        self.coordinator = CoordinatorNode(self, self.journal)
        self.network.nodes["coordinator"] = self.coordinator

    def _start(self, name: str) -> None:
        self.processes += 1
        member = self.members[name] = Member(self, name, f"{name}-{self.processes}")
        self.note(f"{member.me} starts")
        self.simulation.after(self.hosts_from[name] - self.simulation.now_us, lambda: self._host(member))

    def _host(self, member: Member) -> None:
        """The member creates its regions, the one that others are colocated with first."""
        missing = [each for each in self.regions if each.name not in member.regions]
        if not missing or member.is_leaving or member.is_dead:
            return
        if not any(key[0] == "host" for key in member.agent.session.requests):
            member.do(lambda: member.host(missing[0]))
        member.later(50 * MS, lambda: self._host(member))

    def end(self, member: Member) -> None:
        if member.is_dead:
            return
        self.note(f"{member.me} ends")
        member.end()
        self.ended_processes.add(member.process)
        self.network.process_ended(member)
        coordinator = self.coordinator
        if not self.network.is_cut(member.name, "coordinator"):  # Its connection to the locator is reset.
            self.simulation.after(MS, lambda: coordinator.do(lambda: coordinator.connection_ended(member.me)))

    def restart(self, member: Member) -> None:
        self.end(member)
        self._start(member.name)

    def renamed(self, member: Member, me: Incarnation) -> None:
        """The member has begun anew as another incarnation."""
        self.note(f"{member.name} begins anew as {me}")
        self.statistics["begun anew"] += 1
        for each, node in list(self.network.nodes.items()):
            if node is member:
                del self.network.nodes[each]
        self.network.nodes[me] = member

    # --- what is watched ---

    def lane_gave_up(self, member: Member, why: str) -> None:
        self.note(f"{member.me} gives a connection up: {why}")
        self.statistics["connections given up"] += 1
        self.must("acknowledges sequence" not in why and "an answer to question" not in why, f"{member.me}: {why}")

    def decided(self, store: Store) -> None:
        """Decisions as they are stored. A new life means that everything in the bucket is gone."""
        for key, bucket in store.buckets:
            if bucket is None or bucket.primary is None:
                continue
            if key in self.coordinator.core._unheard:
                continue  # Members that know later decisions may yet report them.
            self._see_fork(key, store.newest.generation)
            self.note(f"decision {store.newest.generation}.{store.newest.number} {key}: {shown(bucket)}")
            if key == self.severed and bucket.leaving:
                self._strike(bucket)
            for each in _buckets_of(key):
                self._see_life(each, bucket)
                self.holders[each] = (*bucket.in_sync, *bucket.leaving)

    def _see_fork(self, key: BucketKey, generation: int) -> None:
        """Nobody who is there knows of the decisions that were lost, so others are made in their place.

        No protocol could avoid that. What was acknowledged under the lost decisions may be gone, or come back.
        """
        buckets = _buckets_of(key)
        for each in (BucketKey(key.region, -1), *buckets):
            if self.forgotten.get(each) == generation:
                self.statistics["forks"] += 1
                self.unchecked.update(buckets)
                for known in [known for known in self.activations if known[0] in buckets]:
                    del self.activations[known]

    def _see_life(self, key: BucketKey, bucket: Bucket) -> None:
        life, since = self.lives.get(key, (bucket.life, self.simulation.now_us))
        if bucket.life != life and bucket.inherits == life:
            # Coordinator and members have lost decisions: acknowledged changes may be gone, as the new life says.
            self.statistics["lost ends"] += 1
            self.unchecked.add(key)
        elif bucket.life != life and (bucket.inherits or bucket.life) < life:
            # A coordinator that had forgotten it for a while hears of this life again. What was acknowledged in the
            # later one is gone.
            self.must("files" in self.statistics, f"{key} goes back from life {life} to {bucket.life}")
            self.statistics["lives that came back"] += 1
            self.unchecked.add(key)
        elif bucket.life != life:
            self.statistics["lives"] += 1
            self._see_proof(key)
            for region, of in self._keys_of(key):
                self.threads += 1
                if any(each.is_in_doubt for each in self.under_way[region, of].values()):
                    self.unclear.add((region, of))
                self.history[region, of].append(
                    Operation(self.threads, "put", (ABSENT,), None, since, self.simulation.now_us)
                )
            since = self.simulation.now_us
        self.lives[key] = bucket.life, since

    def _see_proof(self, key: BucketKey) -> None:
        """A bucket begins anew. Where silence is no reason for that, everybody who held it has ended, or says so."""
        attributes = next(each for each in self.regions if each.name == key.region)
        if silence_limit_ms(attributes) >= 0 or self.statistics.get("files"):
            return
        for each in self.holders.get(key, ()):
            node = self.network.nodes.get(each)
            self.must(
                not isinstance(node, Member) or node.is_dead or node.is_leaving,
                f"{key} begins anew, and {each}, which holds it, has not ended",
            )

    @staticmethod
    def _keys_of(key: BucketKey) -> list[tuple[str, str]]:
        return [(key.region, of) for of in KEYS if bucket_of(of) == key.number]

    def activated(self, member: Member, key: BucketKey, life: int, epoch: int, last: int) -> None:
        """A member accepts changes of a bucket from now on. It has all that was acknowledged, and no other one does so
        under the same epoch."""
        self.note(f"{member.me} is primary of {key} in life {life} under {epoch:#x} from {last} on")
        self.statistics["takeovers"] += 1
        known = self.activations[key, life]
        for each in known:
            self.must(
                each.epoch != epoch or each.member == member.me,
                f"{member.me} and {each.member} are both primary of {key} under {epoch:#x}",
            )
        if key not in self.unchecked and all(each.epoch <= epoch for each in known):
            # One that slept, and wakes under an epoch that another one has followed, lacks what that one has. What it
            # answers is looked at in `answered`.
            counted = self.counted[key, life]
            self.must(last >= counted, f"{member.me} leads {key} from {last} on, and {counted} was acknowledged")
        known.append(Activation(epoch, member.me, last))

    def answered(self, member: Member, key: BucketKey, is_change: bool) -> None:
        """A member answers a call. No later primary is at work that does not know of it, and all copies in sync have
        the change."""
        region = member.regions[key.region]
        if region.tail is None:
            self.statistics["answers of members alone"] += 1
            return
        state = region.tail.state(key.number)
        life, epoch, counted = state["life"], state["epoch"], state["counted"]
        if self.statistics.get("files") and key in self.lives and life < self.lives[key][0]:
            # A bucket was given up, and the coordinator has forgotten that: its sole copy gets a lease again, and goes
            # on. Nobody can know better before a member of the later life is heard.
            self.statistics["answers in a life that was given up"] += 1
            self.unchecked.add(key)
        if key in self.unchecked:
            return
        for later in self.activations[key, life]:
            if later.epoch > epoch:
                # A member that was asleep may still tell of a change which the later primary has, and of nothing else.
                self.must(
                    is_change and counted <= later.last,
                    f"{member.me} answers {'a change' if is_change else 'a read'} of {key} under {epoch:#x}, where"
                    f" {counted} counts, and {later.member} leads it under {later.epoch:#x} from {later.last} on",
                )
        if not is_change:
            return
        in_sync = 1 + sum(each["waited"] and not each["transfer"] for each in state["copies"])
        least = region.attributes.min_in_sync_copies
        self.must(  # A member that leads no more has forgotten its copies.
            in_sync >= least or state["role"] != "primary",
            f"{member.me} answers a change of {key} with {in_sync} copies in sync, and min-in-sync-copies is {least}",
        )
        self.counted[key, life] = max(self.counted[key, life], counted)
        core, known = self.coordinator.core, member.agent.tables.buckets.get(key)
        bucket = core.site.buckets.get(key)
        if bucket is None or known is None or core._silent or key in core._unheard or bucket.version < known.version:
            return  # The coordinator does not know better than the primary.
        if bucket.life != life:
            return
        for each in bucket.in_sync:
            node = self.network.nodes.get(each)
            tail = self._tail(node, key)
            if node is member or tail is None:
                continue
            theirs = tail.state(key.number)
            if theirs["life"] == life:
                self.must(
                    theirs["last"] >= counted,
                    f"{member.me} acknowledges {key} through {counted}, and {each}, in sync, has {theirs['last']}",
                )

    @staticmethod
    def _tail(node: Node | None, key: BucketKey) -> _core.Tail | None:
        if not isinstance(node, Member) or node.is_dead or key.region not in node.regions:
            return None
        return node.regions[key.region].tail

    # --- clients ---

    def client(self, told: list[str] | None = None, at: str = "", is_read: bool = False) -> None:
        """One operation of a thread of some member, or of the member `at`. `told` gets what became of it."""
        rng = self.simulation.rng
        there = [each for each in self.members.values() if not each.is_dead and len(each.regions) == len(self.regions)]
        there = [each for each in there if at in ("", each.name)]
        if not there:
            self.statistics["calls where no region is"] += 1
            return
        member = rng.choice(there)
        region, of = rng.choice(self.regions).name, rng.choice(KEYS)
        name = rng.choice(
            ["get", "get", "get", "put", "put", "put_if_absent", "replace", "remove", "compare", "destroy"]
        )
        name = "get" if is_read else name
        history = self.history[region, of]
        values = [each.arguments[-1] for each in history if each.arguments] or [0]
        self.threads += 1
        thread = self.threads
        arguments: tuple[Hashable, ...] = {
            "get": (),
            "destroy": (),
            "remove": (rng.choice(values[-3:]),),
            "compare": (rng.choice(values[-3:]), thread),
        }.get(name, (thread,))
        if None in arguments:
            arguments = (0, *arguments[1:])
        name = "replace" if name == "compare" else name
        member.do(lambda: self._begin(member, region, of, name, arguments, thread, [] if told is None else told))

    def _begin(
        self,
        member: Member,
        region: str,
        of: str,
        name: str,
        arguments: tuple[Hashable, ...],
        thread: int,
        told: list[str],
    ) -> None:
        core = member.regions.get(region)
        if core is None:
            self.statistics["calls where no region is"] += 1
            return
        history, slot = self.history[region, of], len(self.history[region, of])
        called = self.simulation.now_us
        history.append(Operation(thread, name, arguments, None, called))
        self.statistics["operations"] += 1

        def over(what: str, answer: Hashable) -> None:
            self.statistics[what] += 1
            self.under_way[region, of].pop(thread, None)
            told.append(what)
            if what == ANSWERED:
                history[slot] = Operation(thread, name, arguments, answer, called, self.simulation.now_us)
            elif what == FAILED:  # It says that nothing was changed. Nobody may ever see its value.
                history[slot] = Operation(thread, "get", (), None, called)

        client = Client(member, region, of, name, arguments, (member.member_id, thread, 1), over)
        self.under_way[region, of][thread] = client

    # --- what goes wrong ---

    def trouble(self) -> None:
        rng = self.simulation.rng
        what: Callable[[], object] = rng.choice(
            [
                *[self._kill, self._start_one, self._cut, self._isolate, self._ambush, self._heal, self._hold] * 2,
                *[self._part, self._sever] * 2,
                *[self._pause, self._lossy, self._slow, self._leave, self._coordinator, self._file],
                *[self._coordinator_cut, self._all_again, self._reset],
            ]
        )
        what()
        self.statistics["faults while calls were on their way"] += any(each.clients for each in self.members.values())

    @property
    def _alive(self) -> list[Member]:
        return [each for each in self.members.values() if not each.is_dead]

    def _kill(self) -> None:
        for member in self.simulation.rng.sample(
            self._alive, min(len(self._alive), self.simulation.rng.choice([1, 1, 2]))
        ):
            self.end(member)
            self.statistics["kills"] += 1

    def _start_one(self) -> None:
        for name, member in self.members.items():
            if member.is_dead:
                self._start(name)
                return

    def _all_again(self) -> None:
        """All members die at once, and are started again."""
        if self.simulation.rng.random() < 0.5:
            return
        self.statistics["sites restarted"] += 1
        for member in self._alive:
            self.end(member)
        for name in list(self.members):
            self.simulation.after(self.simulation.rng.randrange(300 * MS), lambda name=name: self._start_again(name))

    def _start_again(self, name: str) -> None:
        if self.members[name].is_dead:
            self._start(name)

    def _pause(self) -> None:
        rng = self.simulation.rng
        victim: Node = rng.choice([*self._alive, self.coordinator])
        victim.pause(rng.choice([50, 400, 1500, 4000]) * MS)
        self.note(f"{victim.name} pauses")
        self.statistics["pauses"] += 1

    def _cut(self) -> None:
        rng = self.simulation.rng
        one, other = rng.sample([*self.members, "coordinator"], 2)
        is_both = rng.random() < 0.6
        self.network.cut |= {(one, other), (other, one)} if is_both else {(one, other)}
        self.note(f"cut {sorted(self.network.cut)}")
        self.statistics["cuts" if is_both else "one-way cuts"] += 1

    def _isolate(self) -> None:
        rng = self.simulation.rng
        name = rng.choice([*self.members])
        rest = [each for each in [*self.members, "coordinator"] if each != name]
        self.network.cut |= {(name, each) for each in rest} | {(each, name) for each in rest}
        self.note(f"{name} is isolated")
        if rng.random() < 0.6:  # By something that resets connections, which both ends see at once.
            self.network.reset(self.members[name])
        self._clients_soon(6)
        # It may still answer from what it leads, while others take over and go on.
        for _ in range(rng.choice([0, 12])):
            self.simulation.after(rng.randrange(700 * MS), lambda: self.client(at=name, is_read=True))
            self.simulation.after(rng.randrange(700 * MS), self.client)
        self.statistics["isolations"] += 1

    def _part(self) -> None:
        """A primary reaches one of its copies, but neither the coordinator nor the others, which take over."""
        rng = self.simulation.rng
        several = [each for each in self.coordinator.core.site.buckets.values() if len(each.in_sync) > 2]
        if not several:
            return
        bucket = rng.choice(several)
        primary = self.network.nodes.get(bucket.primary)
        if not isinstance(primary, Member) or primary.is_dead:
            return
        kept = rng.choice([each.name for each in bucket.in_sync if each != bucket.primary])
        rest = [each for each in [*self.members, "coordinator"] if each not in (primary.name, kept)]
        self.network.cut |= {(primary.name, each) for each in rest} | {(each, primary.name) for each in rest}
        self.note(f"{primary.name} reaches {kept} and nobody else")
        self.network.reset(primary)
        for _ in range(12):
            self.simulation.after(rng.randrange(1500 * MS), lambda: self.client(at=primary.name))
            self.simulation.after(rng.randrange(1500 * MS), self.client)
        self.statistics["parts"] += 1

    def _sever(self) -> None:
        """A primary loses its one other copy, and asks to have it taken out. See `_strike`."""
        pairs = [key for key, each in self.coordinator.core.site.buckets.items() if len(each.in_sync) == 2]
        if pairs:
            self.severed = self.simulation.rng.choice(pairs)
            one, other = (each.name for each in self.coordinator.core.site.buckets[self.severed].in_sync)
            self.network.cut |= {(one, other), (other, one)}
            self.note(f"{one} and {other} are cut")
            self.statistics["severed pairs"] += 1

    def _strike(self, bucket: Bucket) -> None:
        """The primary hears that its copy leaves, cannot say that it has stored that, and dies after some changes."""
        self.severed = None
        primary = self.network.nodes.get(bucket.primary)
        if not isinstance(primary, Member):
            return
        way = (primary.name, "coordinator")
        self.simulation.after(0, lambda: self.network.cut.add(way))
        for _ in range(12):
            self.simulation.after(self.simulation.rng.randrange(150 * MS), lambda: self.client(at=primary.name))

        def over() -> None:
            self.network.heal()
            if not self.is_healing:
                self.end(primary)

        self.simulation.after(200 * MS, over)

    def _coordinator_cut(self) -> None:
        """Nobody reaches the coordinator for a while, and all members reach each other."""
        ways = {(one, other) for name in self.members for one, other in ((name, "coordinator"), ("coordinator", name))}
        self.network.cut |= ways
        self.note("the coordinator is cut off")
        self.statistics["coordinator cut off"] += 1
        self._clients_soon(8, 1000 * MS)

        def over() -> None:
            self.network.cut -= ways

        self.simulation.after(self.simulation.rng.randrange(1000, 6000) * MS, over)

    def _heal(self) -> None:
        self.network.heal()
        self.note("heals")

    def _lossy(self) -> None:
        rng = self.simulation.rng
        self.network.loss, self.network.slow_us = rng.choice([0.01, 0.1, 0.3]), rng.choice([0, 100 * MS, 1500 * MS])
        self.note(f"loss {self.network.loss}, delays up to {self.network.slow_us} us")
        self.statistics["losses"] += 1

    def _slow(self) -> None:
        one, other = self.simulation.rng.sample([*self.members], 2)
        self.network.rates[one, other] = self.simulation.rng.choice([2_000, 20_000])
        self.note(f"{one} sends {self.network.rates[one, other]} bytes a second to {other}")
        self.statistics["slow ways"] += 1

    def _hold(self) -> None:
        """A proxy holds the bytes between two members. Often it resets the caller's end, and what it holds comes late:
        after calls were repeated over other connections."""
        rng = self.simulation.rng
        one, other = rng.sample([*self.members], 2)
        for_us = rng.choice([50, 300, 1000, 3000]) * MS
        self.network.held[one, other] = self.simulation.now_us + for_us
        self.note(f"bytes from {one} to {other} are held for {for_us} us")
        self.statistics["holds"] += 1
        self._clients_soon(4, 100 * MS)
        if rng.random() < 0.6:
            self.simulation.after(rng.randrange(5, 200) * MS, lambda: self._reset_calls(one, other))

    def _reset_calls(self, one: str, other: str) -> None:
        for connection in list(self.network.connections):
            end = connection.ends[0]
            if connection.protocol == wire.CALLS and (end.node.name, end.to.name) == (one, other):
                end.reset()
                self.network.held.pop((one, other), None)
                self.statistics["late calls"] += 1

    def _reset(self) -> None:
        """Some connections break, for no reason that anybody knows."""
        rng = self.simulation.rng
        for connection in list(self.network.connections):
            if rng.random() < 0.5:
                rng.choice(connection.ends).reset()
        self.statistics["resets"] += 1

    def _leave(self) -> None:
        rng = self.simulation.rng
        for member in rng.sample(self._alive, min(len(self._alive), rng.choice([1, 1, 2]))):
            if member.paused_until <= self.simulation.now_us and not member.is_leaving:
                self.note(f"{member.me} leaves")
                member.do(member.leave)
                self.statistics["leaves"] += 1

    def _coordinator(self) -> None:
        self.coordinator.is_dead = True
        self.note("coordinator starts again")
        self.simulation.after(self.simulation.rng.choice([0, 200, 3000]) * MS, self._start_coordinator)
        self.statistics["coordinators"] += 1

    def _file(self) -> None:
        rng = self.simulation.rng
        if rng.random() < 0.6 or len(self.journal) < 5:
            return
        if len(self.regions) > 1 and LOST_FILES_OF_COLOCATED not in self._extras:
            return
        self.network.cut.clear()  # Members that cannot be heard now could not be told from members that never were.
        for member in self._alive:
            if member.paused_until > self.simulation.now_us:
                member.paused_until = self.simulation.now_us
                self.simulation.after(0, member._go_on)
        self.coordinator.is_dead = True
        kept = rng.randrange(len(self.journal))
        for store in self.journal[kept:]:
            self.forgotten.update((key, store.newest.generation) for key, _ in store.buckets)
        del self.journal[kept:]
        self.note(f"coordinator comes back with {len(self.journal)} of its decisions")
        self.simulation.after(rng.choice([0, 200, 3000]) * MS, self._start_coordinator)
        self.statistics["files"] += 1

    def _ambush(self) -> None:
        """A primary dies in the middle of changes that some of its copies have and others have not."""
        rng = self.simulation.rng
        several = [each for each in self.coordinator.core.site.buckets.values() if len(each.in_sync) > 1]
        if not several:
            return
        bucket = rng.choice(several)
        assert bucket.primary is not None
        primary = self.network.nodes.get(bucket.primary)
        copy = rng.choice([each for each in bucket.in_sync if each != bucket.primary])
        if not isinstance(primary, Member) or primary.is_dead:
            return
        way = (primary.name, copy.name)
        self.network.cut.add(way)
        self._clients_soon(6, 20 * MS)

        def strike() -> None:
            self.network.cut.discard(way)
            if self.is_healing:
                return
            if rng.random() < 0.7:
                self.end(primary)
            else:
                primary.pause(rng.choice([400, 1500]) * MS)

        self.simulation.after(rng.randrange(2, 60) * MS, strike)
        self.statistics["ambushes"] += 1

    def _clients_soon(self, most: int, within_us: int = 400 * MS) -> None:
        for _ in range(self.simulation.rng.randrange(most + 1)):
            self.simulation.after(self.simulation.rng.randrange(within_us), self.client)

    # --- a run ---

    def run(self, steps: int = 25) -> None:
        pauses = {name: getattr(agent_session, name) for name in PAUSES}
        try:
            for name, pause_us in pauses.items():
                setattr(agent_session, name, pause_us * MEMBER_TIMEOUT_US // tables.MEMBER_TIMEOUT_US)
            self._run(steps)
        finally:
            for name, pause_us in pauses.items():
                setattr(agent_session, name, pause_us)
            _core.simulate_monotonic_us(0)
            for member in self.members.values():
                if not member.is_dead:
                    member.end()

    def _run(self, steps: int) -> None:
        rng = self.simulation.rng
        self.simulation.run_until(self.simulation.now_us + 300 * MS)
        for _ in range(steps):
            self._clients_soon(20, 300 * MS)
            if rng.random() < 0.5:
                self.trouble()
            self.simulation.run_until(self.simulation.now_us + rng.randrange(10, 400) * MS)
        self.end_well()
        self.check_histories()

    def end_well(self) -> None:
        """Everything heals: in bounded time every bucket has an active primary and all its copies."""
        self.is_healing = True
        self.network.heal()
        self._start_coordinator()
        for member in list(self.members.values()):
            if member.is_dead:
                self._start(member.name)
            elif member.is_leaving:
                self.restart(member)
        self.note("everything heals")
        self._find_rest()
        told: list[str] = []
        for _ in range(8):
            self.client(told)
        self.simulation.run_until(self.simulation.now_us + 1000 * MS)
        self.must(told == [ANSWERED] * 8, f"operations in a healthy site end {', '.join(told)}")
        self._find_rest()

    def _find_rest(self) -> None:
        end_us, why = self.simulation.now_us + WHOLE_AGAIN_US, ""
        while self.simulation.now_us < end_us:
            self.simulation.run_until(self.simulation.now_us + 500 * MS)
            why = self._unrest()
            if not why:
                break
        self.must(not why, f"a healthy site finds no rest: {why}")

    def _unrest(self) -> str:
        """Why the site is not at rest; empty: it is."""
        core = self.coordinator.core
        if core._unheard or core._silent:
            return "the coordinator waits for members that are there"
        if any(each.paused_until > self.simulation.now_us for each in self.members.values()):
            return "a member is paused"
        for member in self.members.values():
            why = self._member_unrest(member)
            if why:
                return why
        for attributes in self.regions:
            for number in range(BUCKETS):
                why = self._bucket_unrest(BucketKey(attributes.name, number), attributes)
                if why:
                    return why
        return ""

    def _member_unrest(self, member: Member) -> str:
        if member.is_dead or not member.agent.is_joined or member.me not in self.coordinator.core._lease_until:
            return f"{member.name} is not there"
        missing = [each.name for each in self.regions if each.name not in member.regions]
        if missing:
            return f"{member.me} has no region {missing[0]}"
        if member.clients:
            return f"{len(member.clients)} callers of {member.me} wait"
        sessions = [each.session for each in member.streams if isinstance(each.session, _core.CallSession)]
        sessions += [member.lines.here.here] if member.lines is not None and member.lines.here.here else []
        shelved = sum(each.shelved for each in sessions)
        if shelved:
            return f"{shelved} calls are shelved at {member.me}"
        waiting = sorted(key[0] for key in member.agent.session.requests)
        if waiting:
            return f"{member.me} waits for the effect of {', '.join(map(str, waiting))}"
        return ""

    def _bucket_unrest(self, key: BucketKey, attributes: RegionAttributes) -> str:
        core = self.coordinator.core
        bucket = core.site.buckets.get(key)
        if bucket is None or bucket.primary is None:
            return f"{key} has no primary"
        if bucket.leaving or bucket.learners:
            return f"{key} is not at rest: {shown(bucket)}"
        if not attributes.is_partitioned or attributes.recovery_delay >= 0:
            wanted = core.site.regions[key.region].copies_wanted(len(core.site.hosts(key.region)))
            if len(bucket.in_sync) < wanted:
                return f"{key} has not {wanted} copies: {shown(bucket)}"
        found = set()
        for each in bucket.in_sync:
            node = self.network.nodes.get(each)
            tail = self._tail(node, key)
            if tail is None:
                return f"{each}, in sync, has no copy of {key}"
            state, region = tail.state(key.number), node.regions[key.region]
            role = "primary" if each == bucket.primary else "copy"
            if state["role"] != role:
                return f"{each} is {state['role']} of {key}, and not {role}"
            found.add((state["life"], state["epoch"], state["last"], state["counted"], *contents(region, key.number)))
        if len(found) > 1:
            return f"the copies of {key} differ: {sorted(found, key=str)}"
        for member in self.members.values():
            region = member.regions[key.region]
            if member.me not in bucket.in_sync and contents(region, key.number)[0]:
                return f"{member.me} holds entries of {key}, and is no copy of it"
        return ""

    def check_histories(self) -> None:
        for (region, of), history in self.history.items():
            if BucketKey(region, bucket_of(of)) in self.unchecked:
                self.statistics["histories unchecked"] += 1
                continue
            if (region, of) in self.unclear and REPEATS_OVER_LIVES not in self._extras:
                self.statistics["histories with changes over a lost life"] += 1
                continue
            known = [each for each in history if not (each.is_unknown and each.name == "get")]
            verdict = check(known, steps_max=STEPS_MAX)
            self.statistics[f"histories {verdict.value}"] += 1
            self.must(
                verdict is not Verdict.VIOLATION,
                f"the history of {of} in {region} has no order that explains it:\n"
                + "\n".join(
                    f"    {each.called / 1e6:.4f}-{each.returned / 1e6 if each.returned < math.inf else math.inf:.4f} "
                    f"{each.name}{each.arguments} = {each.answer}"
                    for each in history
                ),
            )


def contents(region: SimulatedRegion, bucket: int) -> tuple[int, int, int]:
    """How many entries a member holds of a bucket, how many tombstones, and what is in the entries."""
    found = region.bucket(bucket)
    return found["entries"], found["tombstones"], region.bucket_digest(bucket)


def bucket_of(of: str) -> int:
    return ((_core.key_hash(of) >> 32) * BUCKETS) >> 32


def _buckets_of(key: BucketKey) -> list[BucketKey]:
    """The bucket, or all of them where the key stands for the region as a whole."""
    return [BucketKey(key.region, number) for number in range(BUCKETS)] if key.number < 0 else [key]


def shown(bucket: Bucket) -> str:
    names = {
        "in sync": bucket.in_sync,
        "leaving": bucket.leaving,
        "learners": bucket.learning,
    }
    told = ", ".join(f"{name} {'+'.join(map(str, some))}" for name, some in names.items() if some)
    return f"epoch {bucket.epoch} version {bucket.version} life {bucket.life} primary {bucket.primary}, {told}"
