"""Statistics, the ledger and a log's state are made of one table of counters (csrc/session/wan_counts.h)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pywan import _core
from pywan.stats import SENDER_GAUGES, ledger, sender_statistics

ROWS = _core.queue_counter_rows()
QUEUE = {"events": 0, "bytes": 0, "conflated": 0, "forgotten": 0, "overflow_bytes": 0, "overflow_files_made": 0}
QUEUE |= {"memory_bytes": 0, "removed_by_primary": 0}


class NoSender:
    local_queue_size = secondary_queue_size = renewals = 0
    is_running = True
    attributes = SimpleNamespace(parallel=False)
    is_secondary = False

    def flows(self):
        return [{"batches_in_flight": 0, "bytes_in_flight": 0, "window_bytes": 0, "round_trip_us": 0}]


def counts(**some: int) -> dict[str, int]:
    return {**QUEUE, **{row[1]: 0 for row in ROWS}, **some}


def test_a_number_is_that_of_one_counter():
    numbers = [row[0] for row in ROWS]
    assert len(set(numbers)) == len(numbers) and min(numbers) == 1 and max(numbers) == len(numbers)


@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_a_counter_is_told_by_its_statistic_and_its_entry_of_the_ledger(row):
    """Also one that is added later: it is in the sum that it is a part of, or the ledger does not balance."""
    _, field, statistic, entry, part_of, about = row
    assert about and not about.endswith(".")
    if statistic:
        assert sender_statistics(NoSender(), counts(**{field: 3}))[statistic] == 3
    if entry and field not in ("received", "queued"):
        total = counts(received=3, queued=3 * (part_of == "queued"), **{field: 3})
        name, _, part = entry.partition("/")
        shown = ledger(total)
        assert (shown[name][part] if part else shown[name]) == 3 and shown["balanced"], shown
        assert not ledger({**total, field: 2})["balanced"]


def test_a_gauge_is_no_counter():
    assert not {gauge.name for gauge in SENDER_GAUGES} & {row[2] for row in ROWS}
