"""Owns members in one process that share a region. The replication links between them are carried by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pywan import _core
from pywan.base.addresses import Address
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Incarnation
from pywan.testing.waiting import LIMIT_S
from pywan.transport.control import ControlServer
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.own_openings import OwnOpenings

TIMELINE = 1
NEVER = 2**64 - 1


EARLIER = 0  # The number of an earlier incarnation of each member. It has the callers below 2^32.


class Member:
    """A member with its part of the region, its replication links to the others, and its port for their calls."""

    def __init__(
        self,
        number: int,
        buckets: int,
        timeout_s: float,
        min_isr: int,
        budget: _core.MemoryBudget | None,
        ports: dict[str, int],
        name: str,
        **attributes: Any,
    ) -> None:
        """`ports`: those of all members of the site, by name; its own is added."""
        self.number = number
        self.me = Incarnation(f"member{number}", number + 1)
        self.core = _core.RegionCore(
            name, _core.Clock(), site=1, member=self.me.member_id, buckets=buckets, **attributes
        )
        self.changelog = _core.Changelog(buckets, self.core.shards, min_isr, budget)
        self.repl_links: dict[int, _core.ReplLinkState] = {}
        self.openings = OwnOpenings()
        questions = OpeningQuestions(lambda member: Address("127.0.0.1", ports[member.name]))
        self.calls = CallServer(self.me, "one", lambda asked: self.core if asked == name else None, questions, budget)
        self.pool = CallPool(self.me, "one", self.openings)
        self.table = BucketTable(name, buckets)
        self.route = Route(self.core, self.table, self.pool, timeout_s=timeout_s)
        self.port = ControlServer(
            "127.0.0.1",
            0,
            lambda request, peer: self.openings.answer(request),
            name=self.me.name,
            other_protocols={b"PWK1": self.calls.serve},
        )
        self.port.start()
        ports[self.me.name] = self.port.port

    @property
    def as_primary(self) -> tuple[Incarnation, str, int]:
        return self.me, "127.0.0.1", self.port.port

    def close(self) -> None:
        self.pool.close()
        self.calls.stop()
        self.port.stop()


class SharedSite:
    """Members that share a region. The first one leads all buckets, until `lead` says otherwise."""

    def __init__(
        self,
        members: int = 2,
        *,
        buckets: int = 7,
        timeout_s: float = LIMIT_S,
        reads_replicas: bool = False,
        min_isr: int = 1,
        budget_bytes: int | None = None,
        name: str = "r",
        **attributes: Any,
    ) -> None:
        """`budget_bytes`: the limit of each member's budget. None: nobody counts. `name`: the region's."""
        self.buckets = buckets
        self.budgets = [None if budget_bytes is None else _core.MemoryBudget(budget_bytes) for _ in range(members)]
        ports: dict[str, int] = {}
        self.members = [
            Member(n, buckets, timeout_s, min_isr, self.budgets[n], ports, name, **attributes) for n in range(members)
        ]
        self.epochs = [0] * buckets
        self.leaders = [0] * buckets
        self._lock = threading.Lock()  # A takeover, and the carrying of a bucket, are one step each.
        self._stop = threading.Event()
        self._carrier: threading.Thread | None = None
        for member in self.members:
            # Each member was there before, so it may repeat calls of its earlier incarnation.
            member.calls.keep_only([Incarnation(each.me.name, EARLIER) for each in self.members])
            member.calls.keep_only([each.me for each in self.members])
            for other in self.members:
                if other is not member:
                    repl_link = member.repl_links[other.number] = _core.ReplLinkState()
                    member.changelog.add_repl_link(other.number, repl_link)
            for bucket in range(buckets):
                member.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, TIMELINE, 0)
        self.set_read_leases(NEVER)
        for bucket in range(buckets):
            self.lead(bucket, 0)
        for member in self.members:
            member.core.share(member.changelog, member.route, reads_replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_carrying()
        for member in self.members:
            member.close()

    @property
    def cores(self) -> list[_core.RegionCore]:
        return [member.core for member in self.members]

    def bucket_of(self, key: Any) -> int:
        return self.members[0].core.bucket_of(key)

    def begin_anew(self, who: int, member_id: int) -> None:
        """The site gives a member up. It goes on calling as another incarnation, which all others know."""
        me = Incarnation(self.members[who].me.name, member_id)
        for member in self.members:
            member.calls.keep_only([*(each.me for each in self.members), me])
        self.members[who].pool.begin_anew(me, "one")

    def set_read_leases(self, until_us: int) -> None:
        """Every member promises every other one, until then, to adopt no later epoch silently."""
        for member in self.members:
            for repl_link in member.repl_links.values():
                repl_link.set_read_lease(until_us)

    def lead(self, bucket: int, who: int) -> None:
        """Makes a member primary of a bucket, as the coordinator's tables and the member's replicas do it."""
        with self._lock:
            self.epochs[bucket] += 1
            epoch, leader = self.epochs[bucket], self.members[who]
            self.leaders[bucket] = who
            for member in self.members:
                member.changelog.set_role(
                    bucket, _core.REPLICA_TAKING_OVER if member is leader else _core.REPLICA_IN_SYNC, TIMELINE, epoch
                )
            for member in self.members:
                last = leader.changelog.log_end(bucket)
                if member.changelog.log_end(bucket) > last:
                    leader.core.extend(bucket, TIMELINE, epoch, last + 1, member.changelog.fetch(bucket, last))
            leader.changelog.set_replicas(
                bucket,
                [
                    (member.number, _core.REPLICA_WAITED, 0, member.changelog.log_end(bucket))
                    for member in self.members
                    if member is not leader
                ],
            )
            leader.changelog.set_role(bucket, _core.REPLICA_PRIMARY, TIMELINE, epoch)
            for member in self.members:
                member.table.set_primaries({bucket: KnownPrimary(*leader.as_primary, epoch)})

    def carry(self) -> None:
        """Brings to every replica what it lacks, tells the primaries, and tells the replicas what counts."""
        for bucket in range(self.buckets):
            with self._lock:
                epoch, leader = self.epochs[bucket], self.members[self.leaders[bucket]]
                for member in self.members:
                    last = member.changelog.log_end(bucket)
                    if member is leader:
                        continue
                    if leader.changelog.log_end(bucket) > last:
                        member.core.extend(bucket, TIMELINE, epoch, last + 1, leader.changelog.fetch(bucket, last))
                    leader.changelog.acknowledged(
                        bucket, member.number, TIMELINE, epoch, member.changelog.log_end(bucket)
                    )
                high_watermark, notified = (
                    leader.changelog.state(bucket)["high_watermark"],
                    leader.changelog.notified_through(bucket),
                )
                for member in self.members:
                    member.changelog.told(bucket, TIMELINE, epoch, high_watermark, notified)

    def keep_carrying(self) -> None:
        """Has a thread carry until the end of the test."""

        def run() -> None:
            while not self._stop.wait(0.0005):
                self.carry()

        self._carrier = threading.Thread(target=run, name="carrier")
        self._carrier.start()

    def stop_carrying(self) -> None:
        if self._carrier is not None:
            self._stop.set()
            self._carrier.join()
            self._carrier = None
            self._stop.clear()


class Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = call(*arguments, **named)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Returns what the call returned, or raises what it raised."""
        self._thread.join(LIMIT_S)
        assert self.is_done, f"a call takes more than {LIMIT_S} s"
        if self._error is not None:
            raise self._error
        return self._result
