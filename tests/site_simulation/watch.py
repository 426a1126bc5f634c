"""Owns what must hold while a simulated site runs, and of the histories of its keys afterwards."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from linearizability import ABSENT, Operation, Verdict, check
from pywan.coordination.actions import Store
from pywan.coordination.tables import Bucket, BucketKey, Incarnation
from pywan.member.hosting import silence_limit_ms

from .member import Member
from .shown import shown, tail_of

if TYPE_CHECKING:
    from .world import SiteWorld

STEPS_MAX = 200_000  # Of one search for an order of a history.


class Activation:
    """A member became primary of a bucket, and began to accept changes behind sequence `last`."""

    def __init__(self, epoch: int, member: Incarnation, last: int) -> None:
        self.epoch, self.member, self.last = epoch, member, last


class Shown(NamedTuple):
    """What a member showed of a key from its own copy, which had all changes through `last`. That of the value was
    `sequence`, or it came with an image."""

    value: Hashable
    life: int
    sequence: int
    last: int


class Watch:
    """Sees decisions as they are stored, members that begin to lead, and answers."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self.lives: dict[BucketKey, tuple[int, int]] = {}  # Each bucket's life, and when it began.
        self.holders: dict[BucketKey, tuple[Incarnation, ...]] = {}  # The copies that the last decision names.
        # Buckets about which decisions were lost with the coordinator's file, each with their generation.
        self.forgotten: dict[BucketKey, int] = {}
        self.activations: defaultdict[tuple[BucketKey, int], list[Activation]] = defaultdict(list)  # Of each life.
        self.counted: defaultdict[tuple[BucketKey, int], int] = defaultdict(int)  # Of each life: what was acknowledged.
        self._shown: defaultdict[tuple[Incarnation, str, str], list[Shown]] = defaultdict(list)  # Of keys, at copies.
        self.unchecked: set[BucketKey] = set()  # Buckets whose life says that they may have lost their end.
        self.begun_anew: set[BucketKey] = set()  # Buckets that lost all their copies, and began a new life.
        self._queue_holders: dict[BucketKey, frozenset[Incarnation]] = {}  # Those in sync with the queued events alone.
        # Of buckets that lost all copies: when that was, and who held the queued events alone then.
        self.losses: defaultdict[BucketKey, list[tuple[int, frozenset[Incarnation]]]] = defaultdict(list)
        self.may_be_slow: set[str] | None = None  # Nobody gives up copies of other members. None: all may be slow.
        self.waits_at_most_us: int | None = None  # So long a member lets a call wait. None: members may be asleep.

    def lane_gave_up(self, member: Member, why: str) -> None:
        self._world.note(f"{member.me} gives a connection up: {why}")
        self._world.statistics["connections given up"] += 1
        self._world.must(
            "acknowledges sequence" not in why and "an answer to question" not in why, f"{member.me}: {why}"
        )

    def decided(self, store: Store) -> None:
        """Decisions as they are stored. A new life means that everything in the bucket is gone."""
        for key, bucket in store.buckets:
            if bucket is None or bucket.primary is None:
                if bucket is not None and not bucket.in_sync:  # Its queued events leave from those who hold them alone.
                    self._see_loss(key)
                continue
            if key in self._world.coordinator.core.reports.undecided:
                continue  # Members that know later decisions may yet report them.
            self._see_fork(key, store.generation)
            self._world.note(f"decision {store.newest} {key}: {shown(bucket)}")
            if key == self._world.faults.severed and bucket.leaving:
                self._world.faults.strike(bucket)
            self._world.proofs.decided(key, bucket, store)
            for each in self._world.keys.buckets_of(key):
                self._see_life(each, bucket)
                self._queue_holders[each] = frozenset({*bucket.queue_only} & {*bucket.in_sync})
                self.holders[each] = bucket.with_entries((*bucket.in_sync, *bucket.leaving))

    def _see_loss(self, key: BucketKey) -> None:
        for each in self._world.keys.buckets_of(key):
            self.begun_anew.add(each)
            holders = self._queue_holders.pop(each, frozenset())
            self.losses[each].append((self._world.simulation.now_us, holders))

    def _see_fork(self, key: BucketKey, generation: int) -> None:
        """Nobody who is there knows of the decisions that were lost, so others are made in their place.

        No protocol could avoid that. What was acknowledged under the lost decisions may be gone, or come back.
        """
        buckets = self._world.keys.buckets_of(key)
        for each in (BucketKey(key.region, -1), *buckets):
            if self.forgotten.get(each) == generation:
                self._world.statistics["forks"] += 1
                self.unchecked.update(buckets)
                for known in [known for known in self.activations if known[0] in buckets]:
                    del self.activations[known]

    def _see_life(self, key: BucketKey, bucket: Bucket) -> None:
        life, since = self.lives.get(key, (bucket.life, self._world.simulation.now_us))
        if bucket.goes_on_with(life):
            self._world.must("files" in self._world.statistics, f"{key} may have lost its end, and no file was lost")
            if {*self.holders[key]} <= {*bucket.in_sync}:  # All who had it go on: only its numbers are others.
                self._world.statistics["lives with all copies"] += 1
            else:  # Coordinator and members have lost decisions: acknowledged changes may be gone.
                self._world.statistics["lost ends"] += 1
                self.unchecked.add(key)
        elif bucket.life != life and (bucket.inherits or bucket.life) < life:
            # A coordinator that had forgotten it for a while hears of this life again. What was acknowledged in the
            # later one is gone.
            self._world.must("files" in self._world.statistics, f"{key} goes back from life {life} to {bucket.life}")
            self._world.statistics["lives that came back"] += 1
            self.unchecked.add(key)
        elif bucket.life != life:
            self._world.statistics["lives"] += 1
            self.begun_anew.add(key)
            self._see_proof(key)
            for of in self._world.keys.of(key):
                self._world.history[key.region, of].append(
                    Operation(self._world.new_thread(), "put", (ABSENT,), None, since, self._world.simulation.now_us)
                )
            since = self._world.simulation.now_us
        self.lives[key] = bucket.life, since

    def _see_proof(self, key: BucketKey) -> None:
        """A bucket begins anew. Where silence is no reason for that, everybody who held it has ended, or says so."""
        attributes = self._world.attributes_of(key.region)
        if silence_limit_ms(attributes) >= 0 or self._world.statistics.get("files"):
            return
        for each in self.holders.get(key, ()):
            node = self._world.network.nodes.get(each)
            self._world.must(
                not isinstance(node, Member) or node.is_dead or node.is_leaving,
                f"{key} begins anew, and {each}, which holds it, has not ended",
            )

    def activated(self, member: Member, key: BucketKey, life: int, epoch: int, last: int) -> None:
        """A member accepts changes of a bucket from now on. It has all that was acknowledged, and no other one does so
        under the same epoch."""
        self._world.note(f"{member.me} is primary of {key} in life {life} under {epoch:#x} from {last} on")
        self._world.statistics["takeovers"] += 1
        known = self.activations[key, life]
        for each in known:
            self._world.must(
                each.epoch != epoch or each.member == member.me,
                f"{member.me} and {each.member} are both primary of {key} under {epoch:#x}",
            )
        if key not in self.unchecked and all(each.epoch <= epoch for each in known):
            # One that slept, and wakes under an epoch that another one has followed, lacks what that one has. What it
            # answers is looked at in `answered`.
            counted = self.counted[key, life]
            self._world.must(last >= counted, f"{member.me} leads {key} from {last} on, and {counted} was acknowledged")
        known.append(Activation(epoch, member.me, last))

    def answered(self, member: Member, key: BucketKey, is_change: bool) -> None:
        """A member answers a call. No later primary is at work that does not know of it, and all copies in sync have
        the change."""
        region = member.regions[key.region]
        if region.tail is None:
            self._world.statistics["answers of members alone"] += 1
            return
        state = region.tail.state(key.number)
        life, epoch, counted = state["life"], state["epoch"], state["counted"]
        if self._world.statistics.get("files") and key in self.lives and life < self.lives[key][0]:
            # A bucket was given up, and the coordinator has forgotten that: its sole copy gets a lease again, and goes
            # on. Nobody can know better before a member of the later life is heard.
            self._world.statistics["answers in a life that was given up"] += 1
            self.unchecked.add(key)
        if key in self.unchecked:
            return
        self._world.must(
            is_change or key not in self.lives or life >= self.lives[key][0],  # A repeat gets its first answer.
            f"{member.me} answers a read of {key} in life {life}, and life {self.lives[key][0]} has begun",
        )
        for later in self.activations[key, life]:
            if later.epoch > epoch:
                # A member that was asleep may still tell of a change which the later primary has, and of nothing else.
                self._world.must(
                    is_change and counted <= later.last,
                    f"{member.me} answers {'a change' if is_change else 'a read'} of {key} under {epoch:#x}, where"
                    f" {counted} counts, and {later.member} leads it under {later.epoch:#x} from {later.last} on",
                )
        if not is_change:
            return
        others = [each for each in state["copies"] if not each["queue_only"]]
        in_sync = 1 + sum(each["waited"] and not each["transfer"] for each in others)
        least = region.attributes.min_in_sync_copies
        self._world.must(  # A member that leads no more has forgotten its copies.
            in_sync >= least or state["role"] != "primary",
            f"{member.me} answers a change of {key} with {in_sync} copies in sync, and min-in-sync-copies is {least}",
        )
        self.counted[key, life] = max(self.counted[key, life], counted)
        core, known = self._world.coordinator.core, member.agent.tables.buckets.get(key)
        bucket = core.site.buckets.get(key)
        if (
            bucket is None
            or known is None
            or core.silence.is_on
            or key in core.reports.undecided
            or bucket.version < known.version
        ):
            return  # The coordinator does not know better than the primary.
        if bucket.life != life:
            return
        self._world.proofs.answered(key, bucket, life, counted)
        for each in bucket.in_sync:
            node = self._world.network.nodes.get(each)
            tail = tail_of(node, key)
            if node is member or tail is None:
                continue
            theirs = tail.state(key.number)
            if theirs["life"] == life:
                self._world.must(
                    theirs["last"] >= counted,
                    f"{member.me} acknowledges {key} through {counted}, and {each}, in sync, has {theirs['last']}",
                )

    def gave_up(self, member: Member, copy: Incarnation) -> None:
        """A primary asks to have the copies of a member taken out, as it does not answer."""
        self._world.must(
            self.may_be_slow is None or copy.name in self.may_be_slow,
            f"{member.me} gives up the copies of {copy}, which is healthy",
        )
        self._world.statistics["copies of slow members given up"] += self.may_be_slow is not None

    def waited(self, member: Member, key: BucketKey, wait_us: int) -> None:
        """A call on a key of this bucket is answered after so long."""
        self._world.must(
            self.waits_at_most_us is None or wait_us <= self.waits_at_most_us,
            f"{member.me} answers a call of {key} after its limit: it waited for {wait_us / 1e6:.3f} s",
        )

    def read_at_copy(self, member: Member, key: BucketKey, of: str, shown: Shown) -> None:
        """A member answers a read from its own copy. It never goes back behind what it has shown."""
        self._world.statistics["reads at copies"] += 1
        known = self._shown[member.me, key.region, of]
        if known and known[-1].life != shown.life:
            known.clear()
        for each in known if key not in self.unchecked else ():
            is_earlier_value = shown.value is not None and each.value == shown.value != known[-1].value
            self._world.must(
                shown.last >= each.sequence and not is_earlier_value,
                f"{member.me} shows {of} of {key} at sequence {shown.sequence}, and has shown {each.sequence}",
            )
        known.append(shown)

    def check_histories(self) -> None:
        for (region, of), history in self._world.history.items():
            if BucketKey(region, self._world.keys.bucket_of(of)) in self.unchecked:
                self._world.statistics["histories unchecked"] += 1
                continue
            known = [each for each in history if not (each.is_unknown and each.name == "get")]
            verdict = check(known, steps_max=STEPS_MAX)
            self._world.statistics[f"histories {verdict.value}"] += 1
            self._world.must(
                verdict is not Verdict.VIOLATION,
                f"the history of {of} in {region} has no order that explains it:\n"
                + "\n".join(
                    f"    {each.called / 1e6:.4f}-{each.returned / 1e6 if each.returned < math.inf else math.inf:.4f} "
                    f"{each.name}{each.arguments} = {each.answer}"
                    for each in history
                ),
            )
