"""Owns what must hold while a simulated site runs, and of the histories of its keys afterwards."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from pywan.coordination.actions import Store
from pywan.coordination.tables import Bucket, BucketKey, Incarnation
from pywan.member.hosting import unclean_recovery_timeout_ms
from support.linearizability import ABSENT, Operation, Verdict, check

from .member import Member
from .shown import changelog_of, shown

if TYPE_CHECKING:
    from .world import SiteWorld

STEPS_MAX = 200_000  # Of one search for an order of a history.


class Activation:
    """A member became primary of a bucket, and began to accept changes behind sequence `last`."""

    def __init__(self, epoch: int, member: Incarnation, last: int) -> None:
        self.epoch, self.member, self.last = epoch, member, last


class Shown(NamedTuple):
    """What a member showed of a key from its own replica, which had all changes through `last`. That of the value was
    `sequence`, or it came with a snapshot."""

    value: Hashable
    timeline: int
    sequence: int
    last: int


class Watch:
    """Sees decisions as they are stored, members that begin to lead, and answers."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self.timelines: dict[BucketKey, tuple[int, int]] = {}  # Each bucket's timeline, and when it began.
        self.holders: dict[BucketKey, tuple[Incarnation, ...]] = {}  # The replicas that the last decision names.
        # Buckets about which decisions were lost with the coordinator's file, each with their generation.
        self.forgotten: dict[BucketKey, int] = {}
        self.activations: defaultdict[tuple[BucketKey, int], list[Activation]] = defaultdict(list)  # Of each timeline.
        self.high_watermark: defaultdict[tuple[BucketKey, int], int] = defaultdict(
            int
        )  # Of each timeline: what was acknowledged.
        self._shown: defaultdict[tuple[Incarnation, str, str], list[Shown]] = defaultdict(list)  # Of keys, at replicas.
        self.unchecked: set[BucketKey] = set()  # Buckets whose timeline says that they may have lost their end.
        self.begun_anew: set[BucketKey] = set()  # Buckets that lost all their replicas, and began a new timeline.
        self._queue_holders: dict[BucketKey, frozenset[Incarnation]] = {}  # Those in sync with the queued events alone.
        # Of buckets that lost all replicas: when that was, and who held the queued events alone then.
        self.losses: defaultdict[BucketKey, list[tuple[int, frozenset[Incarnation]]]] = defaultdict(list)
        self.may_be_slow: set[str] | None = None  # Nobody gives up replicas of other members. None: all may be slow.
        self.waits_at_most_us: int | None = None  # So long a member lets a call wait. None: members may be asleep.

    def repl_link_gave_up(self, member: Member, why: str) -> None:
        self._world.note(f"{member.me} gives a connection up: {why}")
        self._world.statistics["connections given up"] += 1
        self._world.must(
            "acknowledges sequence" not in why and "an answer to question" not in why, f"{member.me}: {why}"
        )

    def decided(self, store: Store) -> None:
        """Decisions as they are stored. A new timeline means that everything in the bucket is gone."""
        for key, bucket in store.buckets:
            if bucket is None or bucket.primary is None:
                if bucket is not None and not bucket.isr:  # Its queued events leave from those who hold them alone.
                    self._see_loss(key)
                continue
            if key in self._world.coordinator.core.reports.undecided:
                continue  # Members that know later decisions may yet report them.
            self._see_fork(key, store.recovery_epoch)
            self._world.note(f"decision {store.newest} {key}: {shown(bucket)}")
            if key == self._world.faults.severed and bucket.leaving:
                self._world.faults.strike(bucket)
            self._world.proofs.decided(key, bucket, store)
            for each in self._world.keys.buckets_of(key):
                self._see_timeline(each, bucket)
                self._queue_holders[each] = frozenset({*bucket.queue_only} & {*bucket.isr})
                self.holders[each] = bucket.with_entries((*bucket.isr, *bucket.leaving))

    def _see_loss(self, key: BucketKey) -> None:
        for each in self._world.keys.buckets_of(key):
            self.begun_anew.add(each)
            holders = self._queue_holders.pop(each, frozenset())
            self.losses[each].append((self._world.simulation.now_us, holders))

    def _see_fork(self, key: BucketKey, recovery_epoch: int) -> None:
        """Nobody who is there knows of the decisions that were lost, so others are made in their place.

        No protocol could avoid that. What was acknowledged under the lost decisions may be gone, or come back.
        """
        buckets = self._world.keys.buckets_of(key)
        for each in (BucketKey(key.region, -1), *buckets):
            if self.forgotten.get(each) == recovery_epoch:
                self._world.statistics["forks"] += 1
                self.unchecked.update(buckets)
                for known in [known for known in self.activations if known[0] in buckets]:
                    del self.activations[known]

    def _see_timeline(self, key: BucketKey, bucket: Bucket) -> None:
        timeline, since = self.timelines.get(key, (bucket.timeline, self._world.simulation.now_us))
        if bucket.goes_on_with(timeline):
            self._world.must("files" in self._world.statistics, f"{key} may have lost its end, and no file was lost")
            if {*self.holders[key]} <= {*bucket.isr}:  # All who had it go on: only its numbers are others.
                self._world.statistics["lives with all replicas"] += 1
            else:  # Coordinator and members have lost decisions: acknowledged changes may be gone.
                self._world.statistics["lost ends"] += 1
                self.unchecked.add(key)
        elif bucket.timeline != timeline and (bucket.inherits or bucket.timeline) < timeline:
            # A coordinator that had forgotten it for a while hears of this timeline again. What was acknowledged in the
            # later one is gone.
            self._world.must(
                "files" in self._world.statistics, f"{key} goes back from timeline {timeline} to {bucket.timeline}"
            )
            self._world.statistics["lives that came back"] += 1
            self.unchecked.add(key)
        elif bucket.timeline != timeline:
            self._world.statistics["lives"] += 1
            self.begun_anew.add(key)
            self._see_proof(key)
            for of in self._world.keys.of(key):
                self._world.history[key.region, of].append(
                    Operation(self._world.new_thread(), "put", (ABSENT,), None, since, self._world.simulation.now_us)
                )
            since = self._world.simulation.now_us
        self.timelines[key] = bucket.timeline, since

    def _see_proof(self, key: BucketKey) -> None:
        """A bucket begins anew. Where silence is no reason for that, everybody who held it has ended, or says so."""
        attributes = self._world.attributes_of(key.region)
        if unclean_recovery_timeout_ms(attributes) >= 0 or self._world.statistics.get("files"):
            return
        for each in self.holders.get(key, ()):
            node = self._world.network.nodes.get(each)
            self._world.must(
                not isinstance(node, Member) or node.is_dead or node.is_leaving,
                f"{key} begins anew, and {each}, which holds it, has not ended",
            )

    def activated(self, member: Member, key: BucketKey, timeline: int, epoch: int, last: int) -> None:
        """A member accepts changes of a bucket from now on. It has all that was acknowledged, and no other one does so
        under the same epoch."""
        self._world.note(f"{member.me} is primary of {key} in timeline {timeline} under {epoch:#x} from {last} on")
        self._world.statistics["takeovers"] += 1
        known = self.activations[key, timeline]
        for each in known:
            self._world.must(
                each.epoch != epoch or each.member == member.me,
                f"{member.me} and {each.member} are both primary of {key} under {epoch:#x}",
            )
        if key not in self.unchecked and all(each.epoch <= epoch for each in known):
            # One that slept, and wakes under an epoch that another one has followed, lacks what that one has. What it
            # answers is looked at in `answered`.
            high_watermark = self.high_watermark[key, timeline]
            self._world.must(
                last >= high_watermark, f"{member.me} leads {key} from {last} on, and {high_watermark} was acknowledged"
            )
        known.append(Activation(epoch, member.me, last))

    def answered(self, member: Member, key: BucketKey, is_change: bool) -> None:
        """A member answers a call. No later primary is at work that does not know of it, and all in-sync replicas have
        the change."""
        region = member.regions[key.region]
        if region.changelog is None:
            self._world.statistics["answers of members alone"] += 1
            return
        state = region.changelog.state(key.number)
        timeline, epoch, high_watermark = state["timeline"], state["epoch"], state["high_watermark"]
        if self._world.statistics.get("files") and key in self.timelines and timeline < self.timelines[key][0]:
            # A bucket was given up, and the coordinator has forgotten that: its sole replica gets a lease again, and
            # goes on. Nobody can know better before a member of the later timeline is heard.
            self._world.statistics["answers in a timeline that was given up"] += 1
            self.unchecked.add(key)
        if key in self.unchecked:
            return
        self._world.must(
            is_change
            or key not in self.timelines
            or timeline >= self.timelines[key][0],  # A repeat gets its first answer.
            f"{member.me} answers a read of {key} in timeline {timeline}, and timeline {self.timelines[key][0]} has"
            " begun",
        )
        for later in self.activations[key, timeline]:
            if later.epoch > epoch:
                # A member that was asleep may still tell of a change which the later primary has, and of nothing else.
                self._world.must(
                    is_change and high_watermark <= later.last,
                    f"{member.me} answers {'a change' if is_change else 'a read'} of {key} under {epoch:#x}, where"
                    f" {high_watermark} counts, and {later.member} leads it under {later.epoch:#x} from {later.last}"
                    " on",
                )
        if not is_change:
            return
        others = [each for each in state["copies"] if not each["queue_only"]]
        isr = 1 + sum(each["waited"] and not each["transfer"] for each in others)
        least = region.attributes.min_in_sync_replicas
        self._world.must(  # A member that leads no more has forgotten its replicas.
            isr >= least or state["role"] != "primary",
            f"{member.me} answers a change of {key} with {isr} in-sync replicas, and min-in-sync-replicas is {least}",
        )
        self.high_watermark[key, timeline] = max(self.high_watermark[key, timeline], high_watermark)
        core, known = self._world.coordinator.core, member.agent.tables.buckets.get(key)
        bucket = core.site.buckets.get(key)
        if (
            bucket is None
            or known is None
            or core.grace_period.is_on
            or key in core.reports.undecided
            or bucket.version < known.version
        ):
            return  # The coordinator does not know better than the primary.
        if bucket.timeline != timeline:
            return
        self._world.proofs.answered(key, bucket, timeline, high_watermark)
        for each in bucket.isr:
            node = self._world.network.nodes.get(each)
            changelog = changelog_of(node, key)
            if node is member or changelog is None:
                continue
            theirs = changelog.state(key.number)
            if theirs["timeline"] == timeline:
                self._world.must(
                    theirs["log_end"] >= high_watermark,
                    f"{member.me} acknowledges {key} through {high_watermark}, and {each}, in sync, has"
                    f" {theirs['log_end']}",
                )

    def gave_up(self, member: Member, replica: Incarnation) -> None:
        """A primary asks to have the replicas of a member taken out, as it does not answer."""
        self._world.must(
            self.may_be_slow is None or replica.name in self.may_be_slow,
            f"{member.me} gives up the replicas of {replica}, which is healthy",
        )
        self._world.statistics["replicas of slow members given up"] += self.may_be_slow is not None

    def waited(self, member: Member, key: BucketKey, wait_us: int) -> None:
        """A call on a key of this bucket is answered after so long."""
        self._world.must(
            self.waits_at_most_us is None or wait_us <= self.waits_at_most_us,
            f"{member.me} answers a call of {key} after its limit: it waited for {wait_us / 1e6:.3f} s",
        )

    def read_at_replica(self, member: Member, key: BucketKey, of: str, shown: Shown) -> None:
        """A member answers a read from its own replica. It never goes back behind what it has shown."""
        self._world.statistics["reads at replicas"] += 1
        known = self._shown[member.me, key.region, of]
        if known and known[-1].timeline != shown.timeline:
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
