"""Events of one key that have one version and differ: which of them stays is alike at every site, in every queue and
log, whatever comes last.
"""

from __future__ import annotations

import itertools
import struct

import pytest

from pywan import _core
from support.records import (
    BATCH,
    CREATE,
    DESTROY,
    NONE,
    REGION,
    UPDATE,
    make_batch,
    make_record,
    read_batch,
    split_frames,
)

CONTENTS = [(UPDATE, b"b"), (CREATE, b"a"), (UPDATE, b"aa"), (DESTROY, b""), (UPDATE, b"")]


def with_number_1(records):
    """As if their region had that number where they come from."""
    return [record[:32] + struct.pack("<H", 1) + record[34:] for record in records]


def receive(region, *records):
    """The way of a batch into a region, from its bytes."""
    session = _core.ReceiverSession(
        _core.SourceMemory(1),
        _core.ReceiverCounts(),
        {region.name: region}.get,
        lambda core, record, place: pytest.fail("user's Python is not on the way"),
    )
    payload, count = make_batch((0, 1, len(records), 0, list(records)))
    session.receive_data(_core.pack_frame(REGION, region.name.encode(), 1))
    session.receive_data(_core.pack_frame(BATCH, payload, 0, count))


def content_record(operation, value, stamp=7 << 16):
    return make_record(
        b"k",
        value,
        operation=operation,
        stamp=stamp,
        stamp_site=1,
        recipients=b"\x02",
        value_form=NONE if operation == DESTROY else 0,
    )


@pytest.mark.parametrize("first, second", list(itertools.permutations(CONTENTS, 2)))
def test_two_events_of_one_version_end_alike_in_whichever_order_they_come(first, second):
    ends = []
    for order in ((first, second), (second, first)):
        region = _core.RegionCore("ties", _core.Clock(), site=2)
        receive(region, *(content_record(*each) for each in order))
        ends.append(region.lookup(b"k"))
    assert ends[0] == ends[1] and ends[0][1:3] == (7 << 16, 1)


@pytest.mark.parametrize("first, second", list(itertools.permutations(CONTENTS, 2)))
def test_two_events_of_one_version_end_alike_through_a_relay_that_forwards_what_took_effect(first, second):
    ends = []
    for order in ((first, second), (second, first)):
        relay, queue = _core.RegionCore("ties", _core.Clock(), site=2), _core.EventQueue("to 3", remote_site=3)
        queue.running = True
        relay.attach([queue])
        receive(relay, *(content_record(*each) for each in order))
        end = _core.RegionCore("ties", _core.Clock(), site=3)
        receive(end, *with_number_1(queue.peek(0, 10)))
        assert end.lookup(b"k") == relay.lookup(b"k")
        ends.append(end.lookup(b"k"))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations([b"a", b"b", b"ab"])))
def test_conflation_keeps_of_one_version_what_a_region_would_keep(in_batch, order):
    queue = _core.EventQueue("to 2", remote_site=2, conflate=not in_batch)
    session = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
    session.configure(100, -1, batch_conflation=in_batch)
    for value in order:
        queue.append_record(content_record(UPDATE, value))
    session.connected(1000, 1 << 20, 1)
    [batch] = [read_batch(frame.payload) for frame in split_frames(session.data_to_send(2)) if frame.type == BATCH]
    assert b"ab" in [record.value for section in batch for record in section.records]


@pytest.mark.parametrize("order", list(itertools.permutations([b"a" * 100, b"b" * 100])))
def test_a_log_that_was_shortened_and_recovered_holds_what_the_region_held(tmp_path, order):
    """Both versions are in its oldest segments; only the one that stayed may be moved."""

    def opened():
        region = _core.RegionCore("ties", _core.Clock(), site=2)
        region.open_log(str(tmp_path), log_id=5, synchronous=False, log_budget=_core.LogBudget(2 << 20))
        return region

    region = opened()
    receive(region, *(content_record(UPDATE, value) for value in order))
    kept = region.lookup(b"k")
    assert kept[0] == b"b" * 100
    for n in range(600):
        region.put(f"other-{n % 7}", b"x" * 20_000)
        if n % 5 == 0:
            assert region.commit_once()
    region.stop_log()
    region.commit_loop()
    del region
    assert opened().lookup(b"k") == kept
