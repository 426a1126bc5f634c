"""Owns worlds in which members get snapshots while others write without a pause, over replication links of limited
rate."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import BucketKey
from pywan.protocol import between_members as wire

from .coordinator import MEMBER_TIMEOUT_US
from .shown import Keys
from .simulation import MS
from .world import NAMES, SiteWorld
from .writers import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pywan.coordination.tables import Bucket

    from .member import Member

# A snapshot is whole within so many times its bytes by the replication link's rate (docs/decisions/0078), and a moment
# in which the learner is named, and the coordinator hears that it is whole.
SNAPSHOT_TIMES = 3
SNAPSHOT_MORE_US = 700 * MS
# While a snapshot is under way, some put is answered at least so often.
PUTS_US = MEMBER_TIMEOUT_US
RATES = (1_000_000, 2_000_000, 4_000_000)  # Of the replication links to a learner, in bytes a second.
ENTRY_BYTES = 150  # Of an entry in a snapshot, beside its value; or a little more.


class SnapshotsUnderWrites(SiteWorld):
    """A snapshot becomes whole however fast others write, and puts go on meanwhile."""

    kind = "snapshots"
    must_happen = (
        "puts while a snapshot was under way",
        "members that joined under writes",
        "members that began anew under writes",
        "replicas that came back under writes",
    )
    keys = Keys(2, "abcdefgh")

    def _form(self, rng: random.Random) -> None:
        made = RegionAttributes("data", rng.choice(["PARTITION", "REPLICATE"]))
        made.total_num_buckets = self.keys.buckets
        if made.is_partitioned:
            made.redundant_copies, made.recovery_delay = 1, 0
        self.regions = [made]
        self.value_bytes = rng.choice([5_000, 20_000, 40_000])

    def _members_begin(self, rng: random.Random) -> None:
        for name in NAMES[:2]:
            self.start(name)

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        self._find_rest()
        count, keys = rng.choice([2, 3, 4]), rng.choice([1_000_000, 3_000_000]) // self.value_bytes
        self.writers = [
            Writer(self, "m1", "data", [f"w{n}" for n in range(number, keys, count)], rng.choice([0, 2000]))
            for number in range(count)
        ]
        for each in self.writers:
            each.start()
        self.simulation.run_until(self.simulation.now_us + 500 * MS)
        may = [self._begin_anew, self._come_back]
        rng.choice(may if self.regions[0].is_partitioned else [self._join, *may])()
        for each in self.writers:
            each.stop()
        self.simulation.run_until(self.simulation.now_us + 100 * MS)
        self.network.heal()
        self._find_rest()
        for each in self.writers:
            self.statistics["answered"] += len(each.answered_us)
            each.check()

    # How a member comes to get a snapshot

    def _join(self) -> None:
        self._slow_down("m3")
        self.start("m3")
        self.statistics["members that joined under writes"] += 1
        self._see_snapshot(self.members["m3"])

    def _begin_anew(self) -> None:
        self._slow_down("m2")
        self.restart(self.members["m2"])
        self.statistics["members that began anew under writes"] += 1
        self._see_snapshot(self.members["m2"])

    def _come_back(self) -> None:
        """The replicas of a member are taken out, as its replication link stands still."""
        self._slow_down("m2")
        way = ("m1", "m2", wire.REPLICATION)
        self.network.held[way] = self.simulation.now_us + 3 * MEMBER_TIMEOUT_US
        replica = self.members["m2"]
        if self._wait(
            lambda: not any(replica.me in each.replicas for each in self._buckets() if each.primary != replica.me)
        ):
            self.network.held.pop(way, None)
            self.statistics["replicas that came back under writes"] += 1
            self._see_snapshot(replica)

    def _slow_down(self, learner: str) -> None:
        self.rate = self.simulation.rng.choice(RATES)
        for each in NAMES:
            self.network.rates[each, learner, wire.REPLICATION] = self.rate

    # The snapshot

    def _buckets(self) -> list[Bucket]:
        return [self.coordinator.core.site.buckets[key] for key in self.keys.buckets_of(BucketKey("data", -1))]

    def _wait(self, holds: Callable[[], bool], at_most_us: int = 5_000 * MS) -> bool:
        end_us = self.simulation.now_us + at_most_us
        while not holds() and self.simulation.now_us < end_us:
            self.simulation.run_until(self.simulation.now_us + 5 * MS)
        return holds()

    def _see_snapshot(self, learner: Member) -> None:
        """The member gets a snapshot in time, and puts are answered meanwhile."""
        self.must(
            self._wait(lambda: any(learner.me in each.learning for each in self._buckets())),
            f"{learner.me} does not learn",
        )
        since_us = self.simulation.now_us
        repl_links = dict.fromkeys(self.members, 0)
        for key, bucket in zip(self.keys.buckets_of(BucketKey("data", -1)), self._buckets(), strict=True):
            if learner.me not in bucket.replicas and bucket.primary is not None:
                written = sum(self.keys.bucket_of(of) == key.number for each in self.writers for of in each.keys)
                repl_links[bucket.primary.name] += written * (self.value_bytes + ENTRY_BYTES)
        alone_us = self.alone_us = max(repl_links.values()) * 1_000_000 // self.rate
        at_most_us = SNAPSHOT_TIMES * alone_us + SNAPSHOT_MORE_US
        is_whole = self._wait(lambda: all(learner.me in each.replicas for each in self._buckets()), at_most_us)
        took_us = self.simulation.now_us - since_us
        self.must(
            is_whole,
            f"a snapshot of {max(repl_links.values())} bytes at {self.rate} a second is not whole after"
            f" {took_us / 1e6} s",
        )
        self.simulation.run_until(self.simulation.now_us + PUTS_US)
        self._see_puts(since_us, took_us)

    def _see_puts(self, since_us: int, took_us: int) -> None:
        answered = sorted(at for each in self.writers for at in each.answered_us if at >= since_us)
        self.statistics["puts while a snapshot was under way"] += sum(at < since_us + took_us for at in answered)
        times = [since_us, *answered, self.simulation.now_us]
        gap_us, at_us = max((later - before, before) for before, later in itertools.pairwise(times))
        self.must(
            gap_us <= PUTS_US,
            f"beside a snapshot of {took_us / 1e6} s no put is answered for {gap_us / 1e6} s from {at_us / 1e6} s on",
        )
