"""Rows of columns into a region that stores and has a sender: some of them share one hold of the queue's lock, and
nothing else tells them from single changes."""

from __future__ import annotations

import threading

import numpy
import pytest

from pywan import _core
from pywan.errors import BatchError, QueueFullError
from pywan.testing.waiting import LIMIT_S

CREATE, UPDATE, DESTROY = 0, 1, 2


class Member:
    def __init__(self, **options):
        self.queue = _core.EventQueue("ln", **{"remote_site": 2, **options})
        self.queue.running = True
        self.clock = _core.Clock()
        self.region = _core.RegionCore("rows", self.clock, site=1, member=1)
        self.region.attach([self.queue])

    def queued(self, partitions=1):
        """(key, value, stamp, operation) of what is queued, by partition."""
        found = []
        for partition in range(partitions):
            for record in self.queue.peek(partition, 1_000_000):
                fields = _core.record_fields(record)
                found.append((fields["key"][1], fields["value"][1], fields["stamp"], fields["operation"]))
        return found


def keys_of(*names):
    return [name.encode() for name in names]


def test_rows_are_queued_in_their_order_with_what_they_did():
    member = Member()
    keys = keys_of("a", "b", "a", "c", "b", "a")
    values = [b"1", b"2", b"3", b"4", None, b"6"]
    assert member.region.put_columns(keys, values, operations=["update"] * 4 + ["destroy", "update"]) == 6
    assert [(key, value, operation) for key, value, _, operation in member.queued()] == [
        (b"a", b"1", CREATE),
        (b"b", b"2", CREATE),
        (b"a", b"3", UPDATE),
        (b"c", b"4", CREATE),
        (b"b", b"", DESTROY),
        (b"a", b"6", UPDATE),
    ]
    assert member.region.get(b"a") == b"6" and member.region.get(b"b") is None


def test_a_row_that_changes_nothing_is_not_queued():
    member = Member()
    keys = [b"k%d" % n for n in range(40)]
    operations = ["destroy" if n % 3 == 0 else "update" for n in range(40)]
    assert member.region.put_columns(keys, [b"v"] * 40, operations=operations) == operations.count("update")
    queued = [key for key, _, _, operation in member.queued() if operation != DESTROY]
    assert queued == [key for key, operation in zip(keys, operations, strict=True) if operation == "update"]


def test_a_row_that_is_refused_stops_none_beside_it():
    member = Member()
    keys = [b"k%d" % n for n in range(50)]
    keys[7] = keys[23] = b"x" * 70_000
    with pytest.raises(BatchError):
        member.region.put_columns(keys, [b"v"] * 50)
    assert [key for key, *_ in member.queued()] == [key for key in keys if len(key) < 100]
    assert len(member.region) == 48


@pytest.mark.parametrize("value_bytes", [10, 3_000, 40_000])
def test_what_is_stored_is_queued_where_the_queue_becomes_full(value_bytes):
    member = Member(memory_limit=4 << 20)
    keys = [b"%08d" % n for n in range(60_000)]
    values = [b"v" * value_bytes] * len(keys) if value_bytes < 1000 else [b"v" * value_bytes] * 2_000
    with pytest.raises((QueueFullError, BatchError)):
        for at in range(0, len(keys), 2_000):
            member.region.put_columns(keys[at : at + 2_000], values[:2_000])
    queued = [key for key, *_ in member.queued()]
    assert queued == keys[: len(queued)] and len(member.region) == len(queued)
    counts = member.queue.counts()
    assert counts["received"] == counts["queued"] == len(queued)


def test_a_queue_that_conflates_keeps_the_newest_row_of_each_key():
    member = Member(conflate=True)
    names = [b"k%d" % (n % 700) for n in range(20_000)]
    member.region.put_columns(names, [b"%d" % n for n in range(20_000)])
    updates = {key: value for key, value, _, operation in member.queued() if operation == UPDATE}
    assert len(updates) == 700 and all(member.region.get(key) == value for key, value in updates.items())
    counts = member.queue.counts()
    assert counts["queued"] == 20_000 and len(member.queue) == 20_000 - counts["conflated"]


def test_the_order_of_the_queue_is_the_order_of_the_versions_whoever_puts():
    """Threads put rows with the same keys in opposite orders, and single changes between them: nobody waits for ever,
    and each partition has the versions of a key in their order."""
    partitions = 3
    member = Member(partitions=partitions)
    names = numpy.array([b"%04d" % n for n in range(500)])

    def rows(n):
        order = names if n % 2 else names[::-1]
        for turn in range(60):
            member.region.put_columns(numpy.roll(order, turn), [b"%d.%d" % (n, turn)] * len(order))

    def singles():
        for n in range(3_000):
            member.region.put(names[n % 500].item(), b"single %d" % n)

    threads = [threading.Thread(target=rows, args=(n,)) for n in range(4)] + [threading.Thread(target=singles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    newest: dict[bytes, tuple[int, bytes]] = {}
    queued = member.queued(partitions)
    for key, value, stamp, _ in queued:
        assert key not in newest or newest[key][0] < stamp
        newest[key] = (stamp, value)
    assert len(queued) == 4 * 60 * 500 + 3_000
    assert all(member.region.get(name.item()) == newest[name.item()][1] for name in names)


def test_rows_that_come_while_senders_are_attached_and_detached_all_go_one_way():
    member = Member()
    stop = threading.Event()
    keys = [b"%06d" % n for n in range(2_000)]
    put = 0

    def rows():
        nonlocal put
        while not stop.is_set():
            put += member.region.put_columns(keys, [b"v"] * len(keys))

    thread = threading.Thread(target=rows)
    thread.start()
    for _ in range(200):
        member.region.attach([])
        member.region.attach([member.queue])
        member.queue.running = False
        member.queue.running = True
    stop.set()
    thread.join(LIMIT_S)
    counts = member.queue.counts()
    assert (
        counts["queued"] == len(member.queue)
        and counts["received"] == counts["queued"] + counts["dropped_stopped"] <= put
    )
