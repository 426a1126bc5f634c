"""Owns the texts about the handover of a stopping member to other members, and about losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pywan.coordination.messages import StillNeeded


@dataclass(frozen=True, slots=True)
class LostReplicas:
    """By region: the number of buckets with their last whole replica in a member, and the number of entries in these
    buckets. Empty buckets are left out."""

    regions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_late: bool = False  # The time was too short for other members to take the replicas.


def lost_replicas_text(regions: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(
        f"region {name}: {entries:,} entries in {buckets} buckets"
        for name, (buckets, entries) in sorted(regions.items())
    )


def still_needed_text(needed: StillNeeded) -> str:
    """Returns the text, to follow a member's name, about the pending handover."""
    buckets = ", ".join(
        f"{count} buckets of region {region} are still to be handed over{f' to {to}' if to else ''}"
        for region, count, to in needed.buckets
    )
    if needed.waits_for:
        return f"waits until {needed.waits_for} has left{f': {buckets}' if buckets else ''}"
    return f"waits for other members: {buckets or 'the coordinator has not answered yet'}"


def volatile_events_of(states: Iterable[Mapping[str, Any]], time_out: float | None) -> dict[str, Any]:
    """Returns by member the events in queues without persistence that the end of all members would lose.

    Args:
        states: The reported state of every member.
        time_out: How long every member waits for its queues. None: the member's own setting. A member with an unlimited
            wait for empty queues loses no event.
    """
    return {
        state["member"]: state["volatile_events"]
        for state in states
        if state["volatile_events"] and not (time_out is None and state["maximum_shutdown_wait_time"] == -1)
    }


def volatile_entries_of(states: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Returns by region the sum of the members' entries without persistence."""
    entries = Counter[str]()
    for state in states:
        entries.update(state["volatile_entries"])
    return entries
