"""Owns what the counters mean to people: Geode's statistics in snake_case, and the ledger, which must balance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pywan import _core
from pywan.base.faces import html_table
from pywan.config.attributes import queue_words
from pywan.errors import DataLossError

Counter = tuple[int, str, str, str, str, str]  # Number, field, statistic, entry, part of, about (see wan_counts.h).


class Gauge(NamedTuple):
    """A statistic that is not a counter: a measure of the present state.

    Attributes:
        name: The statistic's name.
        about: What it measures.
        read: Computes it from a sender at work and the counters of its queue.
    """

    name: str
    about: str
    read: Callable[[Any, Mapping[str, int]], int]


# The counters are listed in csrc/session/wan_counts.h.
SENDER_GAUGES = (
    Gauge(
        "event_queue_size",
        "events that wait or are on their way, and that this member sends; a stopped serial sender shows 0, and keeps"
        " its events",
        lambda sender, counts: sender.local_queue_size if sender.is_running or sender.attributes.parallel else 0,
    ),
    Gauge(
        "secondary_event_queue_size",
        "events of which this member has a replica, while another one sends them",
        lambda sender, counts: sender.secondary_queue_size,
    ),
    Gauge(
        "event_queue_bytes", "the bytes of the events in the queue, as laid out", lambda sender, counts: counts["bytes"]
    ),
    Gauge(
        "events_not_queued_conflated",
        "events that were replaced in the queue",
        lambda sender, counts: counts["conflated"],
    ),
    Gauge(
        "events_processed_by_pqrm",
        "parallel: events that left here because the member that sends them was done with them",
        lambda sender, counts: counts["removed_by_primary"] if sender.attributes.parallel else 0,
    ),
    Gauge(
        "unprocessed_events_removed_by_primary",
        "the same of a serial sender",
        lambda sender, counts: 0 if sender.attributes.parallel else counts["removed_by_primary"],
    ),
    Gauge(
        "events_in_flight_batches",
        "**batches** that were sent and are not acknowledged",
        lambda sender, counts: sum(flow["batches_in_flight"] for flow in sender.flows()),
    ),
    Gauge(
        "bytes_in_flight",
        "the bytes of these batches, over all dispatchers",
        lambda sender, counts: sum(flow["bytes_in_flight"] for flow in sender.flows()),
    ),
    Gauge(
        "window_bytes",
        "how many bytes may be in flight now, over all dispatchers",
        lambda sender, counts: sum(flow["window_bytes"] for flow in sender.flows()),
    ),
    Gauge(
        "round_trip_us",
        "the shortest known time from sending a batch to its acknowledgement, for the slowest dispatcher",
        lambda sender, counts: max(flow["round_trip_us"] for flow in sender.flows()),
    ),
    Gauge(
        "identities_renewed",
        "how often in this process the queue found that its disk store is a copy, and took another identity",
        lambda sender, counts: sender.renewals,
    ),
    Gauge(
        "queue_memory_bytes",
        "the bytes of the queue's memory segments (in steps of 2 MiB and 256 KiB)",
        lambda sender, counts: counts["memory_bytes"],
    ),
    Gauge("entries_overflowed_bytes", "the bytes of overflow files", lambda sender, counts: counts["overflow_bytes"]),
    Gauge(
        "overflow_files_made",
        "the number of overflow files that were ever made",
        lambda sender, counts: counts["overflow_files_made"],
    ),
)


def _counted(rows: Iterable[Counter], counts: Mapping[str, int]) -> dict[str, int]:
    """Returns the statistics that the counters make. Several counters may count into one statistic."""
    statistics: dict[str, int] = {}
    for _, field, statistic, _, _, _ in rows:
        if statistic:
            statistics[statistic] = statistics.get(statistic, 0) + counts[field]
    return statistics


def sender_statistics(sender: Any, counts: Mapping[str, int]) -> dict[str, int]:
    """Returns GatewaySenderStatistics."""
    gauges = {gauge.name: gauge.read(sender, counts) for gauge in SENDER_GAUGES}
    statistics = {**_counted(_core.queue_counter_rows(), counts), **gauges}
    if sender.is_secondary:  # As Geode's: what it holds for the primary counts as queued once it is primary.
        statistics["events_queued"] = 0
    return statistics


def receiver_statistics(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns GatewayReceiverStatistics."""
    return _counted(_core.receiver_counter_rows(), counts)


class Ledger(dict[str, Any]):
    """The ledger of a sender: a map that prints as one line, and shows itself as a table in a notebook."""

    def __repr__(self) -> str:
        counts = {name: sum(value.values()) if isinstance(value, dict) else value for name, value in self.items()}
        words = ", ".join(f"{name} {count:,}" for name, count in counts.items() if name != "balanced" and count)
        return f"<Ledger {'balanced' if self.get('balanced') else 'not balanced'}: {words or 'no events'}>"

    def _repr_html_(self) -> str:
        return html_table("Ledger", self)


def ledger(counts: Mapping[str, int]) -> dict[str, Any]:
    """Returns what became of every event of a sender, with both sums of the ledger and whether they balance."""
    entry: dict[str, Any] = {}
    gone = counts["conflated"] + counts["forgotten"] + counts["removed_by_primary"] + counts["events"]
    left = {"received": counts["received"], "queued": counts["queued"] - gone}
    for _, field, _, name, part_of, _ in _core.queue_counter_rows():
        if name:
            whole, _, part = name.partition("/")
            if part:
                entry.setdefault(whole, {})[part] = counts[field]
            else:
                entry[whole] = entry.get(whole, 0) + counts[field]
        if part_of:
            left[part_of] -= counts[field]
    entry["conflated"] += counts["conflated"]  # These were conflated in the queue, which counts them itself.
    if counts["forgotten"]:  # Only where the queue has replicas at other members.
        entry["forgotten_with_copies"] = counts["forgotten"]
    if counts["removed_by_primary"]:
        entry["removed_by_primary"] = counts["removed_by_primary"]
    entry["in_queue"] = counts["events"]
    entry["unexplained"] = sum(abs(rest) for rest in left.values())
    entry["balanced"] = entry["unexplained"] == 0
    return entry


def check_ledger(what: str, entry: Mapping[str, Any]) -> None:
    """Raises DataLossError, which has the whole ledger, if it does not balance. `what` names the sender or queue."""
    if not entry["balanced"]:
        raise DataLossError(
            f"{what}: {entry['unexplained']} events are unaccounted for: {dict(entry)}",
            dict(entry),
        )


def volatile_text(events: Mapping[str, Mapping[str, int]]) -> str:
    """Returns what `Cache.volatile_events` gives, in words."""
    return "; ".join(
        f"{queue_words(id)}: {' and '.join(f'{count:,} {what}' for what, count in counts.items())}"
        for id, counts in sorted(events.items())
    )
