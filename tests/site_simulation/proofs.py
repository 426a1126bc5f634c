"""Owns the question whether what a coordinator decides is backed by something that proves it.

It looks at messages, members and tables, and not at the coordinator's own reasons: who was heard and when, what a
primary asked for, which member reaches which, who has ended, and who has stored what.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pywan.coordination.actions import Store
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation
from pywan.member.hosting import unclean_recovery_timeout_ms

from .coordinator import MEMBER_TIMEOUT_US
from .member import Member
from .shown import changelog_of, shown

if TYPE_CHECKING:
    from .world import SiteWorld


class _Removal(NamedTuple):
    """A decision took somebody out of the in-sync replicas. It is in effect when one of those who stay has stored
    it."""

    epoch: Epoch
    version: int
    stay: tuple[Incarnation, ...]


class Proofs:
    """Each call says what happens. What must hold is checked at once."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self._received_us: dict[Incarnation, int] = {}  # When the coordinator heard the member last.
        self._unreachable: set[Incarnation] = (
            set()
        )  # Their leases were over, and nobody reached them, since they were heard.
        self._reaches: dict[Incarnation, list[Incarnation]] = {}  # As the member said last.
        # Which primary asked when to take which copy out.
        self._asked_us: dict[Incarnation, dict[Incarnation, int]] = defaultdict(dict)
        self._given_back: set[tuple[Incarnation, str]] = set()  # Who has closed which region.
        # The last decision that names a primary, and in which generation.
        self._decided: dict[BucketKey, tuple[Bucket, int]] = {}
        self._removals: dict[BucketKey, dict[Incarnation, _Removal]] = defaultdict(dict)  # Those not in effect.

    # What the coordinator hears, and what members store

    def received(self, member: Incarnation, reaches: list[Incarnation] | None = None) -> None:
        self._received_us[member] = self._world.simulation.now_us
        self._unreachable.discard(member)
        self._unreachable.update(each for each in self._received_us if self._is_lease_over(each))
        if reaches is not None:
            self._reaches[member] = reaches

    def asked_to_take_out(self, primary: Incarnation, replica: Incarnation) -> None:
        self._asked_us[primary][replica] = self._world.simulation.now_us

    def given_back(self, member: Incarnation, region: str) -> None:
        """A member closes a region that others may have."""
        self._given_back.add((member, region))

    def stored(self, member: Member) -> None:
        """A member has new tables."""
        for key, removals in self._removals.items():
            known = member.agent.tables.buckets.get(key)
            if known is None:
                continue
            for gone, removal in list(removals.items()):
                knows = (known.epoch, known.version) >= (removal.epoch, removal.version)
                if knows and member.me in (*removal.stay, gone):
                    del removals[gone]

    # Decisions

    def decided(self, key: BucketKey, bucket: Bucket, store: Store) -> None:
        """A bucket has a primary by this decision."""
        before, recovery_epoch = self._decided.get(key, (None, 0))
        self._decided[key] = bucket, store.recovery_epoch
        self._see_ignorance(key, store)
        if before is None or key in self._world.watch.unchecked or recovery_epoch != store.recovery_epoch:
            self._removals[key].clear()
        elif before.timeline != bucket.timeline:
            self._see_everybody_has_ended(key)
            self._removals[key].clear()
        else:
            for gone in set(before.replicas) - set(bucket.replicas):
                self._see_removal(key, before, bucket, gone)
                self._removals[key][gone] = _Removal(bucket.epoch, bucket.version, bucket.replicas)
            for each in bucket.replicas:
                self._removals[key].pop(each, None)

    def _see_ignorance(self, key: BucketKey, store: Store) -> None:
        """A coordinator that has started decides about no bucket where a member of its file knows better, before the
        leases that it gave are over. A new generation does not count: it has asked all, or `key` is not decided."""
        coordinator = self._world.coordinator
        if self._world.simulation.now_us - coordinator.started_us >= MEMBER_TIMEOUT_US:
            return
        for me in coordinator.core.site.members:
            member = self._world.network.nodes.get(me)
            if not isinstance(member, Member) or member.is_dead:
                continue
            newest = member.agent.tables.newest
            self._world.must(
                newest.controller_epoch < store.recovery_epoch or coordinator.core.site.made(newest),
                f"the coordinator decides about {key}, and does not know decision {newest}, which {me} has",
            )

    def _see_removal(self, key: BucketKey, before: Bucket, bucket: Bucket, gone: Incarnation) -> None:
        """A set of replicas gets smaller only for what proves something: its primary asks, a lease is over and nobody
        who is heard reaches the replica, or the replica has ended or was given back. Or it has too many."""
        if self._is_too_many(key, before, bucket, gone) or (gone, key.region) in self._given_back:
            return
        now_us = self._world.simulation.now_us
        asked_us = self._asked_us.get(gone, {})
        suspects = sum(at_us >= now_us - 2 * MEMBER_TIMEOUT_US for at_us in asked_us.values())
        is_asked = before.primary is not None and gone in self._asked_us.get(before.primary, {})
        self._world.must(
            self._has_ended(gone) or is_asked or suspects > 1 or gone in self._unreachable or self._is_lease_over(gone),
            f"{gone} is taken out of the replicas of {key} without proof: {shown(before)}; now {shown(bucket)}",
        )

    def _is_too_many(self, key: BucketKey, before: Bucket, bucket: Bucket, gone: Incarnation) -> bool:
        """Whether as many replicas stay as the region wants, the primary among them, and all of these are heard."""
        received_since_us = self._world.simulation.now_us - MEMBER_TIMEOUT_US * 21 // 20
        in_contact = [each for each in bucket.replicas if self._received_us.get(each, -1) >= received_since_us]
        wanted = self._world.coordinator.core.site.regions[key.region].replicas_wanted(len(before.replicas))
        stays = before.epoch == bucket.epoch and before.primary == bucket.primary != gone
        return stays and len(in_contact) >= wanted and bucket.primary in in_contact

    def _is_lease_over(self, member: Incarnation) -> bool:
        now_us = self._world.simulation.now_us
        since_us = max(self._received_us.get(member, 0), self._world.coordinator.started_us)
        is_reached = any(
            member in reached and self._received_us[each] >= now_us - MEMBER_TIMEOUT_US * 9 // 10
            for each, reached in self._reaches.items()
            if not self._has_ended(each)
        )
        return now_us - since_us >= MEMBER_TIMEOUT_US and not is_reached

    def _has_ended(self, member: Incarnation) -> bool:
        """Whether the process has ended, is about to, or goes on as another incarnation."""
        node = self._world.network.nodes.get(member)
        return not isinstance(node, Member) or node.is_dead or node.is_leaving

    def _see_everybody_has_ended(self, key: BucketKey) -> None:
        """A bucket begins anew. Whoever was taken out by a decision that none of the others has stored holds it still:
        no smaller set was in effect."""
        attributes = self._world.attributes_of(key.region)
        if unclean_recovery_timeout_ms(attributes) >= 0 or self._world.statistics.get("files"):
            return
        for each, removal in self._removals[key].items():
            self._world.must(
                self._has_ended(each),
                f"{key} begins anew, and {each}, which holds it, has not ended: nobody has stored that"
                f" {', '.join(map(str, removal.stay))} went on without it",
            )

    # Answers

    def answered(self, key: BucketKey, bucket: Bucket, timeline: int, high_watermark: int) -> None:
        """A change is answered. What one of the in-sync replicas knows may be all that is left of the decisions: so
        whoever is in sync by its tables has the change."""
        for each in bucket.isr:
            node = self._world.network.nodes.get(each)
            if not isinstance(node, Member) or node.is_dead:
                continue
            known = node.agent.tables.buckets.get(key)
            if known is None or known.epoch != bucket.epoch:
                continue
            for other in known.isr:
                holder = self._world.network.nodes.get(other)
                told = holder.agent.tables.buckets.get(key) if isinstance(holder, Member) else None
                is_later = told is not None and (told.epoch, told.version) > (known.epoch, known.version)
                if is_later and other not in told.isr:
                    continue  # It was taken out since, and would report that decision itself.
                changelog = changelog_of(holder, key)
                theirs = changelog.state(key.number) if changelog is not None else None
                if theirs is not None and theirs["timeline"] == timeline:
                    self._world.must(
                        theirs["log_end"] >= high_watermark,
                        f"a change of {key} is answered through {high_watermark}, and {other}, in sync as {each}"
                        " knows, has"
                        f" {theirs['log_end']}",
                    )
