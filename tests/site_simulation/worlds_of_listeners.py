"""Owns worlds whose regions have listeners at each member: slow ones, some that stand still, and all of them write."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import BucketKey

from .client import ANSWERED, AT_REPLICA, FAILED
from .coordinator import MEMBER_TIMEOUT_US
from .listeners import Listener, Told, Waiting
from .shown import Keys, changelog_of
from .simulation import MS
from .world import NAMES, OPERATIONS, SiteWorld
from .writers import Writer

if TYPE_CHECKING:
    from .member import Member, WatchedChangelog

# A call takes so long at most while listeners stand still. It does not wait for them.
CALL_US = 25 * MS
# Where so many bytes wait for listeners that no more are kept, calls wait until the listener has stood for
# `member-timeout`. Then the oldest changes are dropped.
FULL_US = MEMBER_TIMEOUT_US * 3 // 2
TOLD_US = 20_000 * MS  # So long slow listeners take at most for what is left when writers have stopped.
FULL_VALUE_BYTES = 400_000  # With 170 of these 64 MiB wait.


class SlowListeners(SiteWorld):
    """Listeners hear what counts, in the order of each key, each change once, and nobody waits for them."""

    kind = "slow-listeners"
    must_happen = (
        "listeners that stood still",
        "changes told",
        "changes told again after a takeover",
        "changes dropped",
        "puts of listeners",
        "single calls beside listeners that stood still",
    )
    keys = Keys(4, "abcdefghijkl")

    def _form(self, rng: random.Random) -> None:
        is_partitioned = rng.random() < 0.6
        for name in ("data", "more"):
            made = RegionAttributes(name, "PARTITION" if is_partitioned else "REPLICATE")
            made.total_num_buckets = self.keys.buckets
            if is_partitioned:
                made.redundant_copies, made.recovery_delay = rng.choice([1, 2]), 0
            self.regions.append(made)
        self.is_to_be_full = rng.random() < 0.1
        self.value_bytes = FULL_VALUE_BYTES if self.is_to_be_full else rng.choice([0, 0, 2_000])
        self.listeners: dict[tuple[str, str], Listener] = {}  # By the names of member and region.
        self.told: list[Told] = []
        self._tellers: defaultdict[tuple[str, str, int], list[Told]] = defaultdict(list)
        self._depth: dict[int, int] = {}  # Of values that listeners put: after how many others.
        self._put: list[tuple[str, str, int, str]] = []  # By listeners: region, key, value, what became of it.
        self._ended: set[str] = set()  # Members that were ended, and perhaps started again.
        self.waiting: list[Waiting] = []  # One for each member, also for each ended member.

    def _members_begin(self, rng: random.Random) -> None:
        for name in NAMES[:3]:
            self.start(name)

    def shares(self, member: Member, region: str, changelog: WatchedChangelog, each_tells: bool) -> None:
        changelog.keep_notifications(not each_tells)
        pace_us = self.simulation.rng.choice([0, 1 * MS, 5 * MS])
        self.listeners[member.name, region] = Listener(
            self, member, region, changelog, pace_us, self._received, lambda *put: self._put.append(put)
        )
        self.waiting.append(Waiting(self, member, region, changelog))

    def moved(self, member: Member) -> None:
        for each in self.waiting:
            if each.member is member:
                each.look()

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        self._find_rest()
        writers = [
            Writer(self, name, "data", [f"w{n}" for n in range(number, 24, 3)], (5 if self.is_to_be_full else 40) * MS)
            for number, name in enumerate(self.members)
        ]
        for each in writers:
            each.start()
        self._run_for(300)
        self._stand_still()
        if rng.random() < 0.6:
            self._take_over()
        self._run_for(300)
        for each in writers:
            each.stop()
        self._run_for(200)
        self._receive_all()
        puts = [("data", *each) for writer in writers for each in writer.put] + self._put
        self._check_all(puts)
        self._find_rest()
        for each in writers:
            each.check()

    def _run_for(self, for_ms: int) -> None:
        self.simulation.run_until(self.simulation.now_us + for_ms * MS)

    # What happens

    def _stand_still(self) -> None:
        """Some listeners stand still. Calls go on as before."""
        rng = self.simulation.rng
        for each in rng.sample(list(self.listeners.values()), rng.choice([1, 2, 4])):
            each.stand_still(rng.choice([1500, 2500]) * MS)
            self.statistics["listeners that stood still"] += 1
        while any(each.is_still for each in self.listeners.values()):
            self._single_call()
            self._run_for(rng.randrange(1, 30))

    def _single_call(self) -> None:
        rng, since_us, ended = self.simulation.rng, self.simulation.now_us, list[str]()
        member, of = rng.choice(list(self.members.values())), rng.choice(self.keys.names)
        at_most_us = FULL_US if self.is_to_be_full else CALL_US

        def told(what: str) -> None:
            ended.append(what)
            took_us = self.simulation.now_us - since_us
            self.must(
                (what in (ANSWERED, AT_REPLICA) or self.is_to_be_full) and took_us <= at_most_us,
                f"beside listeners a call of {member.me} on {of} ends {what} after {took_us / 1e6} s",
            )
            self.statistics["single calls beside listeners that stood still"] += 1

        self.call(member, "data", of, OPERATIONS, told)
        why = f"beside listeners a call of {member.me} on {of} does not end"
        self.simulation.after(at_most_us + MS, lambda: self.must(bool(ended), why))

    def _take_over(self) -> None:
        """A member ends while changes wait for its listeners, and others lead what it has led."""
        rng = self.simulation.rng
        self._find_replicas()
        name = rng.choice(list(self.members))
        for region in ("data", "more"):
            self.listeners[name, region].stand_still(60 * MS)
        self._run_for(rng.randrange(20, 60))
        self._ended.add(name)
        self.end(self.members[name])
        self._run_for(rng.choice([100, 600]))
        self.start(name)
        self._run_for(800)

    def _find_replicas(self) -> None:
        """Every bucket has its replicas, so that each has kept what is to be told."""
        for _ in range(100):
            if not any(each.learners for each in self.coordinator.core.site.buckets.values()):
                return
            self._run_for(20)

    def _receive_all(self) -> None:
        """Slow as they are, all listeners have heard everything after a while."""
        end_us = self.simulation.now_us + TOLD_US
        while self.simulation.now_us < end_us:
            self._run_for(50)
            if all(each.has_all for each in self.listeners.values()):
                self._run_for(50)
                if all(each.has_all for each in self.listeners.values()):
                    return
        self.must(False, "listeners are still told of changes long after the last one")

    # What they hear

    def _received(self, told: Told) -> tuple[str, str, int] | None:
        listener = self.listeners[told.member.name, told.region]
        self.statistics["changes told"] += 1
        self._see_that_it_is_stable(told)
        self.must(
            told.stamp > listener.stamps.get(told.key, 0) or (told.may_repeat and self._was_told(told)),
            f"{told} is told after a later change of its key, or twice",
        )
        listener.stamps[told.key] = max(told.stamp, listener.stamps.get(told.key, 0))
        if self._each_tells and told.member.name not in self._ended and not listener.changelog.notifications_dropped:
            before = listener.values.get(told.key, told.before)
            self.must(told.before == before or told.before is None, f"{told} is told, and {before} was told before it")
        listener.values[told.key] = told.value
        earlier = self._tellers[told.region, told.key, told.value]
        if not self._each_tells:
            self.must(not earlier or told.may_repeat, f"{told} is told again without a mark: {earlier}")
            self.statistics["changes told again after a takeover"] += bool(earlier)
        earlier.append(told)
        return self._write(told)

    def _was_told(self, told: Told) -> bool:
        return bool(self._tellers[told.region, told.key, told.value])

    @property
    def _each_tells(self) -> bool:
        return not self.regions[0].is_partitioned

    def _see_that_it_is_stable(self, told: Told) -> None:
        """Every in-sync replica has this change of the key, or a later one."""
        key = BucketKey(told.region, self.keys.bucket_of(told.key))
        for each in self.coordinator.core.site.buckets[key].replicas:
            node = self.network.nodes.get(each)
            if changelog_of(node, key) is None:
                continue
            found = node.regions[told.region].lookup(told.key)
            self.must(
                found is not None and found[1] >= told.stamp,
                f"{told} is told, and {each}, in sync, has {found and found[:2]}: it does not count",
            )

    def _write(self, told: Told) -> tuple[str, str, int] | None:
        """Some changes make a listener write into the other region, whose listeners may write back."""
        depth, region = self._depth.get(told.value, 0), "more" if told.region == "data" else "data"
        is_there = region in self.members[told.member.name].regions
        if depth == 2 or not is_there or self.simulation.rng.random() < 0.7:
            return None
        number = self.new_thread()
        self._depth[number] = depth + 1
        self.statistics["puts of listeners"] += 1
        return region, f"echo {told.key[-2:]}", number

    # In the end

    def _check_all(self, puts: list[tuple[str, str, int, str]]) -> None:
        """All that was answered was told, but for the changes that were dropped; what was refused was not."""
        self.statistics["changes dropped"] += sum(len(each.dropped) for each in self.waiting)
        for region, key, value, what in puts:
            tellers = {each.member.name for each in self._tellers[region, key, value]}
            self.must(what != FAILED or not tellers, f"{key} = {value} was refused, and is told at {tellers}")
            if what != ANSWERED:
                continue
            dropped = {each.member.name for each in self.waiting if (each.region, key, value) in each.dropped}
            if self._each_tells:
                is_told = set(self.members) - self._ended <= tellers | dropped
            else:
                is_told = bool(tellers or dropped)
            self.must(
                is_told, f"{key} = {value} in {region} was answered, is told at {tellers}, and was dropped at {dropped}"
            )
