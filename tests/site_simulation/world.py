"""Owns a simulated site: coordinator, members, clients, and a run from its start to its rest."""

from __future__ import annotations

import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pywan import _core
from pywan.base.clocks import DRIFT_MS
from pywan.config.attributes import RegionAttributes
from pywan.coordination import agent_session, asked, tables
from pywan.coordination.actions import Store
from pywan.coordination.agent_session import Remembered
from pywan.coordination.tables import Incarnation
from pywan.errors import PywanError
from support.linearizability import Operation

from .broken import Broken
from .client import ANSWERED, AT_REPLICA, FAILED, Client
from .coordinator import MEMBER_TIMEOUT_US, CoordinatorNode
from .faults import Faults
from .member import Member, SimulatedRegion, WatchedChangelog
from .proofs import Proofs
from .rest import Rest
from .shown import Keys
from .simulation import MS, Network, Simulation
from .watch import Watch

NAMES = ("m1", "m2", "m3", "m4")
PAUSES = ((agent_session, "RETRY_US"), (agent_session, "RETRY_MAX_US"), (asked, "REPEAT_MAX_US"))  # Of an agent.
READS = ("get",)
OPERATIONS = (*READS * 3, "put", "put", "put_if_absent", "replace", "remove", "compare", "destroy")  # Each as likely.
AHEAD_MS = 2 * 3_600_000  # By so much the clock of a member is wrong from its start, in some worlds.
BEHIND_US = MEMBER_TIMEOUT_US * 11 // 10  # A lease, by the slowest clock.
WHOLE_AGAIN_US = 12 * MEMBER_TIMEOUT_US  # So long a site that has healed takes at most until it is whole.


Told = Callable[[str], object]  # Hears what became of an operation.


def _nobody(_: str) -> None:
    pass


class _Errors(logging.Handler):
    """Hears of errors that the product logs and goes on from. In a simulation nothing raises any but a check that
    failed, or a fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, PywanError):
            self.seen.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


class SiteWorld:
    """All of it, from one seed. Worlds of a kind of their own change its form (`_form`, `_members_begin`) and its
    timeline (`_live`)."""

    kind = "faults"
    # Statistics that some seeds of this kind have to count. Otherwise it shows nothing.
    must_happen: tuple[str, ...] = ("times of pieces", "connections that damage ended")
    keys = Keys(2, "abcdefgh")
    keeps_decisions = False  # The coordinator never loses any.

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.simulation = Simulation(seed)
        self.network = Network(self.simulation)
        rng = self.simulation.rng
        self.statistics: defaultdict[str, int] = defaultdict(int)
        self.regions: list[RegionAttributes] = []
        self.roles: list[RegionAttributes] = []  # Of senders (pywan/member/sender_roles.py).
        self.value_bytes = 0  # 0: values are numbers.
        self.hosts_from = dict.fromkeys(NAMES, 0)  # When each member begins to create its regions.
        clocks = random.Random(f"{seed} clocks")  # By how much they are wrong. The others must not follow.
        self.ahead_ms = {clocks.choice(NAMES): AHEAD_MS} if clocks.random() < 0.3 else {}
        self._form(rng)
        self.is_one_machine = rng.random() < 0.5  # Locator and members see each other's processes.
        self.journal: list[Store] = []
        # By region and key. Regions that are colocated have the same keys.
        self.history: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
        self.members: dict[str, Member] = {}
        self.nonces = self.words = 0  # How many were drawn.
        self.folders: dict[str, Remembered] = {}  # What outlives the process of a member.
        self.ended_processes: set[str] = set()
        self.processes = 0
        self.threads = 0
        self.trace: list[str] = []
        self.is_healing = False
        self.is_over = False  # What is cleared away afterwards keeps no promise.
        self.watch, self.faults, self.rest, self.proofs = Watch(self), Faults(self), Rest(self), Proofs(self)
        self.coordinator = self.network.nodes["coordinator"] = CoordinatorNode(self, self.journal)
        self._members_begin(rng)

    def _form(self, rng: random.Random) -> None:
        """Chooses regions and values."""
        self.regions = self._regions(rng)
        self._ask_for_replicas(random.Random(f"{self.seed} replicas"))
        self.value_bytes = random.Random(f"{self.seed} values").choice([0, 0, 40_000])

    def _members_begin(self, rng: random.Random) -> None:
        """Starts the first members."""
        chance = random.Random(self.seed)
        self.hosts_from = {name: chance.choice([0, 0, 1500, 3000]) * MS for name in NAMES}
        if self.regions[0].is_partitioned and chance.random() < 0.06:
            self.faults.of_coordination.isolate_first_host()
        for name in NAMES[: rng.choice([2, 3, 3, 4])]:
            self.start(name)

    def _regions(self, rng: random.Random) -> list[RegionAttributes]:
        if rng.random() < 0.3:
            made = RegionAttributes("data", "REPLICATE")
            made.total_num_buckets = self.keys.buckets
            return [made]
        made = RegionAttributes(
            "data",
            "PARTITION",
            total_num_buckets=self.keys.buckets,
            redundant_copies=rng.choice([1, 1, 2, 0, 3]),
            recovery_delay=rng.choice([-1, 0, 500]),
            unclean_recovery_timeout=rng.choice([None, 1500]),
        )
        if rng.random() < 0.7:
            return [made]
        beside = RegionAttributes(
            "more",
            "PARTITION",
            total_num_buckets=self.keys.buckets,
            redundant_copies=made.redundant_copies,
            recovery_delay=made.recovery_delay,
            unclean_recovery_timeout=made.unclean_recovery_timeout,
            colocated_with="data",
        )
        return [made, beside]

    def _ask_for_replicas(self, rng: random.Random) -> None:
        """In some worlds a change needs two replicas. Where lost replicas are not made again, it would wait for
        ever."""
        least = rng.choice([1, 1, 2])
        for each in self.regions:
            if not each.is_partitioned or (each.redundant_copies and each.recovery_delay >= 0):
                each.min_in_sync_replicas = least

    def attributes_of(self, region: str) -> RegionAttributes:
        return next(each for each in (*self.regions, *self.roles) if each.name == region)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.simulation.now_us / 1e6:.4f} {text}")

    def must(self, holds: bool, what: str) -> None:
        if not holds and not self.is_over:
            past = "\n  ".join(self.trace[-200:])
            raise Broken(f"seed {self.seed} at {self.simulation.now_us / 1e6:.3f} s: {what}\nbefore that:\n  {past}")

    # --- processes ---

    def has_ended(self, process: str) -> bool:
        return process in self.ended_processes

    def start_coordinator(self) -> None:
        if not self.coordinator.is_dead:
            return
        self.coordinator = CoordinatorNode(self, self.journal)
        self.network.nodes["coordinator"] = self.coordinator

    def start(self, name: str) -> None:
        self.processes += 1
        member = self.members[name] = Member(self, name, f"{name}-{self.processes}")
        self.note(f"{member.me} starts")
        self.simulation.after(self.hosts_from[name] - self.simulation.now_us, lambda: self._host(member))

    def _host(self, member: Member) -> None:
        """The member creates its regions, the one that others are colocated with first."""
        missing = [each for each in self.regions if each.name not in member.regions]
        if not missing or member.is_leaving or member.is_dead:
            return
        if not any(key[0] == "host" for key in member.agent.session.asked.requests):
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
        self.start(member.name)

    def renamed(self, member: Member, me: Incarnation) -> None:
        """The member has begun anew as another incarnation."""
        self.note(f"{member.name} begins anew as {me}")
        self.statistics["begun anew"] += 1
        for each, node in list(self.network.nodes.items()):
            if node is member:
                del self.network.nodes[each]
        self.network.nodes[me] = member

    def moved(self, member: Member) -> None:
        """A member has done what it could do now."""

    def queue_of(self, member: Member, id: str) -> Any:
        """Returns the queue of a sender of a member. None: it has none."""
        return None

    def parked_answer(self, member: Member, request: dict[str, Any]) -> Any:
        """Returns what a member answers another one about parked events. None: it has no senders."""
        return None

    def creates(self, member: Member, region: SimulatedRegion) -> None:
        """A member has created a region, and is about to tell its site so."""

    def decided(self, store: Store) -> None:
        """The coordinator has stored decisions."""

    def shares(self, member: Member, region: str, changelog: WatchedChangelog, each_tells: bool) -> None:
        """A member begins to share a region. `each_tells`: each member with a replica tells its listeners. Otherwise
        only the primary's member does."""

    # --- clients ---

    def new_thread(self) -> int:
        self.threads += 1
        return self.threads

    def client(self, told: Told = _nobody, at: str = "", is_read: bool = False) -> None:
        """One operation of a thread of some member, or of the member `at`. `told` hears what became of it."""
        rng = self.simulation.rng
        there = [each for each in self.members.values() if not each.is_dead and len(each.regions) == len(self.regions)]
        there = [each for each in there if at in ("", each.name)]
        if not there:
            self.statistics["calls where no region is"] += 1
            return
        member = rng.choice(there)
        self.call(
            member, rng.choice(self.regions).name, rng.choice(self.keys.names), READS if is_read else OPERATIONS, told
        )

    def call(
        self, member: Member, region: str, of: str, names: Sequence[str] = OPERATIONS, told: Told = _nobody
    ) -> int:
        """One operation of a thread of this member on this key, with one of these names. Returns the number of the
        thread, which is the value of what it puts."""
        rng = self.simulation.rng
        name = rng.choice(names)
        history = self.history[region, of]
        values = [each.arguments[-1] for each in history if each.arguments] or [0]
        thread = self.new_thread()
        arguments: tuple[Hashable, ...] = {
            "get": (),
            "destroy": (),
            "remove": (rng.choice(values[-3:]),),
            "compare": (rng.choice(values[-3:]), thread),
        }.get(name, (thread,))
        if None in arguments:
            arguments = (0, *arguments[1:])
        name = "replace" if name == "compare" else name
        member.do(lambda: self._begin(member, region, of, name, arguments, thread, told))
        return thread

    def _begin(
        self,
        member: Member,
        region: str,
        of: str,
        name: str,
        arguments: tuple[Hashable, ...],
        thread: int,
        told: Told,
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
            # A replica that was cut off, and is no in-sync replica any more, may be a lease behind. If the coordinator
            # has lost the decision that says so, the replica gets a lease again, until later decisions are heard.
            if what == AT_REPLICA and not self.statistics.get("files"):
                history[slot] = Operation(thread, name, arguments, answer, called - BEHIND_US, self.simulation.now_us)
            elif what == ANSWERED:
                history[slot] = Operation(thread, name, arguments, answer, called, self.simulation.now_us)
            elif what == FAILED:  # It says that nothing was changed. Nobody may ever see its value.
                history[slot] = Operation(thread, "get", (), None, called)
            told(what)

        Client(member, region, of, name, arguments, (member.member_id, thread, 1), over)

    def clients_soon(self, most: int, within_us: int = 400 * MS) -> None:
        for _ in range(self.simulation.rng.randrange(most + 1)):
            self.simulation.after(self.simulation.rng.randrange(within_us), self.client)

    # --- a run ---

    def run(self, steps: int = 25) -> None:
        pauses = {(module, name): getattr(module, name) for module, name in PAUSES}
        drawn, log, told = os.urandom, logging.getLogger("pywan"), _Errors()
        propagates, log.propagate = log.propagate, False
        log.addHandler(told)
        try:
            # The identities of calls are drawn by it, and a bucket keeps calls in the order of their identities.
            os.urandom = random.Random(f"{self.seed} drawn").randbytes
            for (module, name), pause_us in pauses.items():  # They are shorter, as the lease is.
                setattr(module, name, pause_us * MEMBER_TIMEOUT_US // tables.MEMBER_TIMEOUT_US)
            self._run(steps)
            self.must(not told.seen, f"what the product calls back has raised an error: {'; '.join(told.seen[:3])}")
        finally:
            log.removeHandler(told)
            log.propagate = propagates
            os.urandom = drawn
            for (module, name), pause_us in pauses.items():
                setattr(module, name, pause_us)
            _core.simulate_monotonic_us(0)
            self.is_over = True
            for member in self.members.values():
                if not member.is_dead:
                    member.end()

    def _run(self, steps: int) -> None:
        self._live(steps)
        self.end_well()
        self.watch.check_histories()
        self._check_clocks()

    def _check_clocks(self) -> None:
        for name, member in self.members.items():
            ahead_ms = member.clock_of_stamps.ahead_ms
            self.must(
                ahead_ms <= DRIFT_MS or name in self.ahead_ms,
                f"the clock of member {name} is {ahead_ms / 1000:.0f} s ahead, as that of another one is",
            )
        self.statistics["clocks that were wrong"] += any(name in self.ahead_ms for name in self.members)

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        self.simulation.run_until(self.simulation.now_us + 300 * MS)
        for _ in range(steps):
            self.clients_soon(20, 300 * MS)
            if rng.random() < 0.5:
                self.faults.happen()
            self.simulation.run_until(self.simulation.now_us + rng.randrange(10, 400) * MS)

    def end_well(self) -> None:
        """Everything heals: in bounded time every bucket has an active primary and all its replicas."""
        self.is_healing = True
        self.network.heal()
        self.start_coordinator()
        for member in list(self.members.values()):
            if member.is_dead:
                self.start(member.name)
            elif member.is_leaving:
                self.restart(member)
        self.note("everything heals")
        self._find_rest()
        held = [each for each in self.network.damaged if each.ends[0].is_open and each.ends[1].is_open]
        names = [f"{each.ends[0].node.name} and {each.ends[1].node.name}" for each in held]
        self.must(not held, f"connections whose bytes were damaged go on: between {', '.join(names)}")
        self.statistics["connections that damage ended"] += len(self.network.damaged)
        told: list[str] = []
        for _ in range(8):
            self.client(told.append)
        self.simulation.run_until(self.simulation.now_us + 1000 * MS)
        self.must(
            len(told) == 8 and {ANSWERED, AT_REPLICA}.issuperset(told),
            f"operations in a healthy site end {', '.join(told)}",
        )
        self._find_rest()

    def unrest(self) -> str:
        """Why what worlds of this kind have beside their site is not at rest; empty: it is."""
        return ""

    def _find_rest(self) -> None:
        end_us, why = self.simulation.now_us + WHOLE_AGAIN_US, ""
        while self.simulation.now_us < end_us:
            self.simulation.run_until(self.simulation.now_us + 500 * MS)
            why = self.rest.why_not() or self.unrest()
            if not why:
                break
        self.must(not why, f"a healthy site finds no rest: {why}")
