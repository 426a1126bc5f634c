"""Owns worlds in which the replication links to one or two members are slow, so that calls are parked at primaries."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pywan import _core
from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import BucketKey
from pywan.protocol import between_members as wire

from .client import ANSWERED, AT_REPLICA, CALL_TIMEOUT_US, IN_DOUBT
from .coordinator import MEMBER_TIMEOUT_US
from .member import Member, Served
from .shown import Keys, shown
from .simulation import MS, Way
from .world import NAMES, OPERATIONS, SiteWorld

if TYPE_CHECKING:
    from collections.abc import Callable

# A single call of a bucket whose replicas are well takes so long at most, however many calls of others are parked
# beside it. The slowest of 37,000 took 5 ms, half of them less than 0.7 ms.
WELL_US = 25 * MS
# A primary lets a call wait for replicas until its caller gives up. Then it answers that the change is in doubt. The
# clocks of two members drift apart by 4%, and a session looks every 5 ms.
PARKED_US = CALL_TIMEOUT_US * 105 // 100
# A replica whose replication link stands still is taken out within this time. Its member may give up the connection
# just before the primary does, and a second connection brings nothing either.
TAKEN_OUT_US = 2 * MEMBER_TIMEOUT_US + 300 * MS


class SlowReplicas(SiteWorld):
    """Single calls go on beside parked ones, nobody healthy is given up, and no call waits longer than its limit."""

    kind = "slow-replicas"
    must_happen = (
        "calls parked at once",
        "single calls beside parked ones",
        "slow replication links",
        "replication links that stood still",
        "replicas of slow members given up",
        "calls that waited to their limit",
    )
    keys = Keys(8, (f"k{n}" for n in range(64)))

    def _form(self, rng: random.Random) -> None:
        self.count = rng.choice([3, 4, 4])
        if rng.random() < 0.25:
            made = RegionAttributes("data", "REPLICATE")
            made.total_num_buckets = self.keys.buckets
        else:
            made = RegionAttributes(
                "data",
                "PARTITION",
                total_num_buckets=self.keys.buckets,
                redundant_copies=rng.choice([1, 1, 2]),
                recovery_delay=rng.choice([-1, 0]),
            )
        self.regions = [made]
        self.slow: set[str] = set()

    def _members_begin(self, rng: random.Random) -> None:
        for name in NAMES[: self.count]:
            self.start(name)

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        self.watch.waits_at_most_us = PARKED_US
        episodes: list[Callable[[], None]] = [self._trickle, self._stand_still, self._nobody_decides]
        rng.shuffle(episodes)
        for episode in episodes:
            self._find_rest()
            self.slow = set(rng.sample(list(self.members), rng.choice([1, 1, 2]) if self.count > 3 else 1))
            self.watch.may_be_slow = self.slow
            self.note(f"replication links to {'+'.join(sorted(self.slow))}: {episode.__name__}")
            before = set(self.coordinator.core.site.members)
            episode()
            self.must(
                before == set(self.coordinator.core.site.members),
                "replication links are slow, and the members are other ones:"
                f" {before ^ set(self.coordinator.core.site.members)}",
            )
            self.network.heal()

    # What is slow

    def _ways(self) -> list[Way]:
        """The replication links to slow members."""
        return [(one, other, wire.REPLICATION) for one in self.members for other in self.slow if one != other]

    def _trickle(self) -> None:
        """Replication links carry few bytes a second, and so all calls that wait for them at most in the time of a few
        answers."""
        rng = self.simulation.rng
        for way in self._ways():
            self.network.rates[way] = rng.choice([2_000, 10_000, 50_000])
        self.statistics["slow replication links"] += 1
        self._call(rng.choice([800, 1500]))

    def _stand_still(self) -> None:
        """Replication links hold their bytes for longer than `member-timeout`: the replicas are taken out, and calls
        are answered."""
        before = dict(self.coordinator.core.site.buckets)
        self._hold(TAKEN_OUT_US // MS + 200)
        self._call(TAKEN_OUT_US // MS)
        for key in self.keys.buckets_of(BucketKey("data", -1)):
            was, bucket = before[key], self.coordinator.core.site.buckets[key]
            slow = [each for each in bucket.replicas if each.name in self.slow and each in was.replicas]
            self.must(  # If another one led meanwhile, the time began anew.
                bucket.epoch != was.epoch or not {*slow} - {bucket.primary},
                f"the replication link to a replica of {key} stands still, and it is not taken out: {shown(bucket)}",
            )
        self.simulation.run_until(self.simulation.now_us + 2 * MEMBER_TIMEOUT_US)  # Until what was held has come.

    def _nobody_decides(self) -> None:
        """As before, and there is no coordinator to take the replicas out: each parked call comes to its limit."""
        for_ms = PARKED_US // MS + 2500
        self._hold(for_ms)
        self.coordinator.is_dead = True
        self._call(for_ms)
        self.statistics["calls that waited to their limit"] += sum(each == IN_DOUBT for each in self._told_of_parked)
        self.network.heal()
        self.start_coordinator()
        self.simulation.run_until(self.simulation.now_us + 2500 * MS)

    def _hold(self, for_ms: int) -> None:
        for way in self._ways():
            self.network.held[way] = self.simulation.now_us + for_ms * MS
        self.statistics["replication links that stood still"] += 1

    # Calls

    def _call(self, for_ms: int) -> None:
        """Many calls of all buckets come, and then single calls of those that are well."""
        rng, end_us = self.simulation.rng, self.simulation.now_us + for_ms * MS
        well = [key for key in self.keys.buckets_of(BucketKey("data", -1)) if self._is_well(key)]
        parked = [of for of in self.keys.names if BucketKey("data", self.keys.bucket_of(of)) not in well]
        callers = list(self.members.values())
        self._told_of_parked: list[str] = []
        for of in parked * rng.choice([1, 3, 6]):
            self.simulation.after(
                rng.randrange(60 * MS),
                lambda of=of: self.call(rng.choice(callers), "data", of, OPERATIONS, self._told_of_parked.append),
            )
        self.simulation.run_until(self.simulation.now_us + 100 * MS)
        self.statistics["calls parked at once"] += self._parked()
        while well and self.simulation.now_us < end_us:
            key = rng.choice(well)
            if self._is_well(key):
                self._single_call(rng.choice(callers), key, rng.choice(self.keys.of(key)))
            self.simulation.run_until(self.simulation.now_us + rng.randrange(1, 40) * MS)
        self.simulation.run_until(max(end_us, self.simulation.now_us))

    def _is_well(self, key: BucketKey) -> bool:
        """Whether the bucket is led, and no slow replication link leads to a copy of it. A replica may be made anew
        meanwhile, and a new primary may yet wait for the promises of a slow replica to end."""
        bucket = self.coordinator.core.site.buckets[key]
        begun = self.watch.activations[key, bucket.timeline]
        is_led = bool(begun) and begun[-1].epoch == bucket.epoch.word
        return is_led and not any(each.name in self.slow for each in bucket.named if each != bucket.primary)

    def _single_call(self, member: Member, key: BucketKey, of: str) -> None:
        since_us, parked, ended = self.simulation.now_us, self._parked(), list[str]()

        def told(what: str) -> None:
            ended.append(what)
            took_us = self.simulation.now_us - since_us
            self.must(
                (what in (ANSWERED, AT_REPLICA) and took_us <= WELL_US) or not self._is_well(key),
                f"a call of {member.me} on {of}, whose replicas are well, ends {what} after {took_us / 1e6:.3f} s",
            )
            self.statistics["single calls beside parked ones"] += parked > 0

        self.call(member, "data", of, OPERATIONS, told)
        self.simulation.after(
            WELL_US + MS,
            lambda: self.must(
                bool(ended) or not self._is_well(key),
                f"a call of {member.me} on {of}, whose replicas are well, does not end",
            ),
        )

    def _parked(self) -> int:
        """How many calls wait at primaries."""
        return sum(
            each.session.pending
            for member in self.members.values()
            for each in member.streams
            if isinstance(each, Served)
        ) + sum(
            member.lines.here.here.pending
            for member in self.members.values()
            if member.lines is not None and isinstance(member.lines.here.here, _core.CallSession)
        )
