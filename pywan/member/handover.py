"""Owns the words about what a member that stops hands over to others, and what is lost with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pywan.coordination.messages import StillNeeded


@dataclass(frozen=True, slots=True)
class LostCopies:
    """By region: of how many buckets a member has the last whole copy, and how many entries these have. Empty buckets
    do not count."""

    regions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_late: bool = False  # Other members could take them, and had too little time.


def lost_copies_text(regions: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(
        f"region {name}: {entries:,} entries in {buckets} buckets"
        for name, (buckets, entries) in sorted(regions.items())
    )


def still_needed_text(needed: StillNeeded) -> str:
    """Says, behind a member's name, what it waits for."""
    buckets = ", ".join(
        f"{count} buckets of region {region} are still to be handed over{f' to {to}' if to else ''}"
        for region, count, to in needed.buckets
    )
    if needed.waits_for:
        return f"waits until {needed.waits_for} has left{f': {buckets}' if buckets else ''}"
    return f"waits for other members: {buckets or 'the coordinator has not answered yet'}"


def volatile_events_of(states: Iterable[Mapping[str, Any]], time_out: float | None) -> dict[str, Any]:
    """Returns, by member, the events in queues without persistence that are lost by the end of all members.

    Args:
        states: What each member says of itself.
        time_out: How long each is let wait for its queues. None: as long as it is set to. One that waits until its
            queues are empty loses nothing.
    """
    return {
        state["member"]: state["volatile_events"]
        for state in states
        if state["volatile_events"] and not (time_out is None and state["maximum_shutdown_wait_time"] == -1)
    }


def volatile_entries_of(states: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Returns, by region, the entries without persistence that members have together."""
    entries = Counter[str]()
    for state in states:
        entries.update(state["volatile_entries"])
    return entries
