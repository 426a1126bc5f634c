"""Owns what the counters mean to people: Geode's statistics in snake_case, and the ledger that must balance."""
from __future__ import annotations

from typing import Any, Mapping

from pywan.errors import DataLossError

NOT_RUNNING = "sender not running"


def sender_statistics(counts: Mapping[str, int], *, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """GatewaySenderStatistics from the core's counters."""
    return {
        "events_received": counts["received"],
        "events_queued": counts["queued"],
        "event_queue_size": counts["events"],
        "event_queue_bytes": counts["bytes"],
        "events_not_queued_conflated": counts["conflated"],
        "events_conflated_from_batches": counts["conflated_batch"],
        "not_queued_event": counts["not_queued"],
        "events_not_queued_already_there": counts["not_queued_loop"],
        "events_filtered": counts["filtered_enqueue"] + counts["filtered_transmit"],
        "events_dropped_due_to_primary_sender_not_running": counts["dropped_stopped"],
        "events_distributed": counts["distributed"],
        "events_parked": counts["parked"],
        "batches_distributed": counts["batches_distributed"],
        "batches_redistributed": counts["batches_redistributed"],
        "batches_resized": counts["batches_resized"],
        "events_exceeding_alert_threshold": counts["exceeding_alert_threshold"],
        "bytes_distributed": counts["bytes_distributed"],
        "wire_bytes_sent": counts["wire_bytes"],
        "possible_duplicates_sent": counts["possible_duplicates"],
        "entries_overflowed_bytes": counts["overflow_bytes"],
        "overflow_files_made": counts["overflow_files_made"],
        "queue_memory_bytes": counts["memory_bytes"],
        **(more or {}),
    }


def receiver_statistics(counts: Mapping[str, int]) -> dict[str, int]:
    """GatewayReceiverStatistics from the core's counters."""
    return {
        "events_received": counts["events_received"],
        "create_requests": counts["create_requests"],
        "update_requests": counts["update_requests"],
        "destroy_requests": counts["destroy_requests"],
        "batches_received": counts["batches_received"],
        "duplicate_batches_received": counts["duplicate_batches"],
        "duplicate_events_skipped": counts["duplicates_skipped"],
        "out_of_order_batches_received": counts["out_of_order_batches"],
        "exceptions_occurred": counts["exceptions_occurred"],
        "possible_duplicate_events_received": counts["possible_duplicates"],
        "conflicts_lost": counts["conflicts"],
        "bytes_received": counts["bytes_received"],
    }


def ledger(counts: Mapping[str, int]) -> dict[str, Any]:
    """What became of every event of a sender, with both sums of the design's ledger and whether they balance."""
    dropped = {NOT_RUNNING: counts["dropped_stopped"], "queue full, newest": counts["dropped_newest"]}
    entry: dict[str, Any] = {
        "received": counts["received"],
        "queued": counts["queued"],
        "not_queued": counts["not_queued"] + counts["not_queued_loop"],
        "filtered_before_enqueue": counts["filtered_enqueue"],
        "dropped": dropped,
        "distributed": counts["distributed"],
        "conflated": counts["conflated"] + counts["conflated_batch"],
        "filtered_before_transmit": counts["filtered_transmit"],
        "parked": counts["parked"],
        "restamped": counts["restamped"],
        "dropped_from_queue": {"queue full, oldest": counts["dropped_oldest"], "cleared": counts["dropped_cleared"]},
        "in_queue": counts["events"],
    }
    entry["unexplained"] = abs(
        entry["received"] - entry["queued"] - entry["not_queued"] - entry["filtered_before_enqueue"] - sum(dropped.values())
    ) + abs(
        entry["queued"] - entry["distributed"] - entry["conflated"] - entry["filtered_before_transmit"] - entry["parked"] - entry["restamped"]
        - sum(entry["dropped_from_queue"].values()) - entry["in_queue"]
    )
    entry["balanced"] = entry["unexplained"] == 0
    return entry


def check_ledger(sender_id: str, entry: Mapping[str, Any]) -> None:
    """DataLossError with the whole ledger if it does not balance."""
    if not entry["balanced"]:
        raise DataLossError(f"gateway sender {sender_id!r}: {entry['unexplained']} events are unaccounted for: {dict(entry)}", dict(entry))


def volatile_text(events: Mapping[str, Mapping[str, int]]) -> str:
    """What `Cache.volatile_events` gives, in words."""
    return "; ".join(f"sender {id}: {' and '.join(f'{count:,} {what}' for what, count in counts.items())}" for id, counts in sorted(events.items()))
