"""Owns what a member tells its site of its regions: which ones are regions of the site, and what all members must say
alike of each."""

from __future__ import annotations

from pywan.config.attributes import RegionAttributes
from pywan.coordination import tables
from pywan.coordination.tables import ONLY_ONCE_MAX

SILENCE_LIMIT_MS = 60_000  # Of a region without redundant copies that says nothing else.
EQUAL_WEIGHT_MB = 1024  # What a member without local-max-memory counts for, beside others.


def is_of_site(made: RegionAttributes) -> bool:
    return made.is_partitioned or made.is_replicated


def weight_of(made: RegionAttributes) -> int:
    if not made.stores_entries:
        return 0
    return EQUAL_WEIGHT_MB if made.local_max_memory is None else made.local_max_memory


def silence_limit_ms(made: RegionAttributes) -> int:
    """How long the last copies of a bucket may be silent before it begins anew; -1: for ever."""
    if made.silence_limit is not None:
        return made.silence_limit
    return -1 if made.is_replicated or made.redundant_copies else SILENCE_LIMIT_MS


def why_only_once(made: RegionAttributes, persistent_sender: str | None, has_resolver: bool) -> str:
    """Returns why only one member can have the region; empty: several can.

    Args:
        made: The region's attributes.
        persistent_sender: The id of a sender with a log that takes its events. None: there is none.
        has_resolver: Whether the member has a conflict resolver.
    """
    if made.is_persistent:
        return "it is persistent"
    if persistent_sender is not None:
        return f"its sender {persistent_sender} is persistent"[:ONLY_ONCE_MAX]
    if made.async_event_queue_ids:
        return "it has asynchronous event queues"
    return "a conflict resolver is asked about it" if has_resolver else ""


def site_attributes(made: RegionAttributes, *, only_once: str = "", senders: str = "") -> tables.RegionAttributes:
    """Returns what all members of the site must say alike of the region.

    Args:
        made: The region's attributes.
        only_once: As `why_only_once` returns it.
        senders: The ids of its senders, as all say them alike.
    """
    return tables.RegionAttributes(
        tables.Kind.PARTITION if made.is_partitioned else tables.Kind.REPLICATE,
        total_num_buckets=made.total_num_buckets,
        redundant_copies=made.redundant_copies or 0,
        colocated_with=made.colocated_with or "",
        min_in_sync_copies=made.min_in_sync_copies,
        recovery_delay_ms=made.recovery_delay,
        startup_recovery_delay_ms=made.startup_recovery_delay,
        silence_limit_ms=silence_limit_ms(made),
        only_once=only_once,
        senders=senders,
    )
