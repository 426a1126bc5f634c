"""Owns the question whether a simulated site is at rest: nobody waits, and all replicas are there and equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pywan import _core
from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import Bucket, BucketKey

from .member import Member
from .shown import changelog_of, contents, shown

if TYPE_CHECKING:
    from .world import SiteWorld


class Rest:
    def __init__(self, world: SiteWorld) -> None:
        self._world = world

    def why_not(self) -> str:
        """Why the site is not at rest; empty: it is."""
        core = self._world.coordinator.core
        if core.reports.undecided or core.grace_period.is_on:
            return "the coordinator waits for members that are there"
        nodes = [self._world.coordinator, *self._world.members.values()]
        if any(each.paused_until > self._world.simulation.now_us for each in nodes):
            return "somebody is paused"  # The unclean-recovery-timeout ends all answers while it is the coordinator.
        for member in self._world.members.values():
            why = self._member_unrest(member)
            if why:
                return why
        for attributes in self._world.regions:
            for number in range(self._world.keys.buckets):
                why = self._bucket_unrest(BucketKey(attributes.name, number), attributes)
                if why:
                    return why
        return ""

    def _member_unrest(self, member: Member) -> str:
        lease_until_us = self._world.coordinator.core.liveness.lease_until_us(member.me)
        if member.is_dead or not member.agent.is_joined or lease_until_us is None:
            return f"{member.name} is not there"
        missing = [each.name for each in self._world.regions if each.name not in member.regions]
        if missing:
            return f"{member.me} has no region {missing[0]}"
        if member.clients:
            return f"{len(member.clients)} callers of {member.me} wait"
        sessions = [each.session for each in member.streams if isinstance(each.session, _core.CallSession)]
        sessions += [member.lines.here.here] if member.lines is not None and member.lines.here.here else []
        pending = sum(each.pending for each in sessions)
        if pending:
            return f"{pending} calls are shelved at {member.me}"
        waiting = sorted(key[0] for key in member.agent.session.asked.requests)
        if waiting:
            return f"{member.me} waits for the effect of {', '.join(map(str, waiting))}"
        return ""

    def _bucket_unrest(self, key: BucketKey, attributes: RegionAttributes) -> str:
        core = self._world.coordinator.core
        bucket = core.site.buckets.get(key)
        if bucket is None or bucket.primary is None:
            return f"{key} has no primary"
        if bucket.leaving or bucket.learners:
            return f"{key} is not at rest: {shown(bucket)}"
        wanted = core.site.regions[key.region].replicas_wanted(len(core.site.hosts(key.region)))
        is_made_again = not attributes.is_partitioned or attributes.recovery_delay >= 0
        if len(bucket.replicas) > wanted or (is_made_again and len(bucket.replicas) < wanted):
            return f"{key} has not {wanted} replicas: {shown(bucket)}"
        return self._unrest_of_replicas(key, bucket)

    def _unrest_of_replicas(self, key: BucketKey, bucket: Bucket) -> str:
        if not self._world.coordinator.core.candidates.queueing(key.region) <= {*bucket.isr}:
            return f"the queued events of {key} are not at all members that run a serial sender: {shown(bucket)}"
        found, streams = set(), set()
        for each in bucket.isr:
            node = self._world.network.nodes.get(each)
            changelog = changelog_of(node, key)
            if changelog is None:
                return f"{each}, in sync, has no replica of {key}"
            state, region = changelog.state(key.number), node.regions[key.region]
            role = "primary" if each == bucket.primary else "copy"
            if state["role"] != role:
                return f"{each} is {state['role']} of {key}, and not {role}"
            streams.add((state["timeline"], state["epoch"], state["log_end"], state["high_watermark"]))
            if each in bucket.replicas:
                found.add(contents(region, key.number))
        if len(streams) > 1 or len(found) > 1:
            return f"the replicas of {key} differ: {sorted(streams)}, {sorted(found, key=str)}"
        for member in self._world.members.values():
            region = member.regions[key.region]
            if member.me not in bucket.replicas and contents(region, key.number)[0]:
                return f"{member.me} holds entries of {key}, and is no copy of it"
        return ""
