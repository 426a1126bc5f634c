"""Owns the announcement of a member's regions to its site: the choice of the site's regions, and the attributes that
must be equal at all members."""

from __future__ import annotations

from pywan.config.attributes import RegionAttributes
from pywan.coordination import tables
from pywan.coordination.tables import ONLY_ONCE_MAX

UNCLEAN_RECOVERY_TIMEOUT_MS = 60_000  # Default for a region without redundant copies.
EQUAL_WEIGHT_MB = 1024  # The weight of a member without local-max-memory among the members.


def is_of_site(made: RegionAttributes) -> bool:
    return made.is_partitioned or made.is_replicated


def weight_of(made: RegionAttributes) -> int:
    if not made.stores_entries:
        return 0
    return EQUAL_WEIGHT_MB if made.local_max_memory is None else made.local_max_memory


def unclean_recovery_timeout_ms(made: RegionAttributes) -> int:
    """Returns how long the last replicas of a bucket may be unreachable before the bucket begins a new timeline; -1: no
    limit."""
    if made.unclean_recovery_timeout is not None:
        return made.unclean_recovery_timeout
    return -1 if made.is_replicated or made.redundant_copies else UNCLEAN_RECOVERY_TIMEOUT_MS


def why_only_once(made: RegionAttributes, persistent_sender: str | None, has_resolver: bool) -> str:
    """Returns the reason why only one member can have the region; empty: several members can.

    Args:
        made: The region's attributes.
        persistent_sender: The id of a sender with a log that takes the region's events. None: no such sender.
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
    """Returns the attributes of the region that must be equal at all members of the site.

    Args:
        made: The region's attributes.
        only_once: The result of `why_only_once`.
        senders: The ids of the region's senders, in the same form at all members.
    """
    return tables.RegionAttributes(
        tables.Kind.PARTITION if made.is_partitioned else tables.Kind.REPLICATE,
        total_num_buckets=made.total_num_buckets,
        redundant_copies=made.redundant_copies or 0,
        colocated_with=made.colocated_with or "",
        min_in_sync_replicas=made.min_in_sync_replicas,
        recovery_delay_ms=made.recovery_delay,
        startup_recovery_delay_ms=made.startup_recovery_delay,
        unclean_recovery_timeout_ms=unclean_recovery_timeout_ms(made),
        only_once=only_once,
        senders=senders,
    )
