"""Owns worlds in which a member is above its limit of memory for a while: primaries of buckets with a replica there
refuse what needs memory, and all else goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import BucketKey

from .client import ANSWERED, AT_REPLICA
from .member import Member, SimulatedRegion
from .shown import Keys
from .simulation import MS
from .world import NAMES, SiteWorld

if TYPE_CHECKING:
    from collections.abc import Sequence

# A replication link pings each 100 ms. With the answer the primary knows that the member is above its limit.
TOLD_MS = 300
EPISODE_MS = 1500
MUCH = 1 << 50  # Bytes that the rest of a process takes: more than any limit.
CHANGES = ("put", "put", "put_if_absent", "destroy", "get", "get")
READS = ("get",)


class ReplicasWithoutMemory(SiteWorld):
    """A replica above its limit grows no further, stays in sync, and makes no bucket wait that has no replica there.
    When its member has memory again, everything is taken."""

    kind = "memory"
    must_happen = (
        "changes refused for memory",
        "replicas above their limit",
        "new keys beside a replica without memory",
        "destroys at a replica without memory",
    )
    keys = Keys(8, (f"k{n}" for n in range(96)))

    def _form(self, rng: random.Random) -> None:
        self.count = rng.choice([3, 4, 4])
        made = RegionAttributes(
            "data",
            "PARTITION",
            total_num_buckets=self.keys.buckets,
            redundant_copies=rng.choice([1, 1, 2]),
            recovery_delay=rng.choice([-1, 0]),
        )
        self.regions = [made]
        self.value_bytes = 3000  # Each new entry needs memory of its own.

    def _members_begin(self, rng: random.Random) -> None:
        for name in NAMES[: self.count]:
            self.start(name)

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        for _ in range(2):
            self._find_rest()
            self._call(list(self.keys.names), ("put",), 40, 400)
            self._find_rest()
            self._be_short(rng.choice(list(self.members.values())))

    def _be_short(self, member: Member) -> None:
        """One member is above its limit."""
        core, before = member.regions["data"], dict(self.coordinator.core.site.buckets)
        there = [key for key in self._buckets() if member.me in before[key].replicas]
        self.note(f"{member.me} is above its limit of memory")
        member.memory.note(MUCH, 0)
        self.simulation.run_until(self.simulation.now_us + TOLD_MS * MS)
        self.statistics["replicas above their limit"] += sum(before[key].primary != member.me for key in there)
        entries = _entries(core)
        end_us = self.simulation.now_us + EPISODE_MS * MS
        while self.simulation.now_us < end_us:
            self._call(list(self.keys.names), CHANGES, 12, 100)
            for key in self._buckets():
                if key not in there:
                    self._call(self.keys.of(key), ("put",), 1, 100, must_go=True)
            self._call(list(self.keys.names), READS, 4, 100, must_go=True)
            self.simulation.run_until(self.simulation.now_us + 150 * MS)
            now = _entries(core)
            self.must(
                now <= entries,
                f"{member.me} is above its limit of memory, and has {now} entries where it had {entries}",
            )
            self.statistics["destroys at a replica without memory"] += entries - now
            entries = now
        for key in there:
            bucket = self.coordinator.core.site.buckets[key]
            self.must(
                {*before[key].replicas} <= {*bucket.replicas},
                f"a replica of {key} was taken out because {member.me} is above its limit",
            )
        member.memory.note(0, 0)
        self.simulation.run_until(self.simulation.now_us + TOLD_MS * MS)
        self._call(list(self.keys.names), ("put",), 20, 200, must_go=True)
        self.simulation.run_until(self.simulation.now_us + 400 * MS)

    def _buckets(self) -> list[BucketKey]:
        return self.keys.buckets_of(BucketKey("data", -1))

    def _call(
        self, keys: Sequence[str], names: Sequence[str], count: int, within_ms: int, *, must_go: bool = False
    ) -> None:
        """So many operations at any members, within a time. `must_go`: none of them may be refused."""
        rng = self.simulation.rng

        def told(what: str) -> None:
            self.must(
                not must_go or what in (ANSWERED, AT_REPLICA), f"an operation that needs no memory there ends {what}"
            )
            if must_go and names == ("put",):
                self.statistics["new keys beside a replica without memory"] += 1

        for _ in range(count):
            member, of = rng.choice(list(self.members.values())), rng.choice(keys)
            self.simulation.after(
                rng.randrange(within_ms * MS), lambda m=member, k=of: self.call(m, "data", k, names, told)
            )


def _entries(core: SimulatedRegion) -> int:
    """How many entries a member has of a region, in its replicas too."""
    return sum(core.bucket(number)["entries"] for number in range(core.bucket_count))
