"""Rows of columns, and of a client's task, into a region that has a sender: some of them share one hold of the queue's
lock, and nothing else tells them from single changes."""

from __future__ import annotations

import random
import threading

import numpy
import pytest

from pywan import _core
from pywan.errors import BatchError, QueueFullError
from pywan.testing.waiting import LIMIT_S

CREATE, UPDATE, DESTROY = 0, 1, 2


class Member:
    def __init__(self, *, stores=True, **options):
        self.queue = _core.EventQueue("ln", **{"remote_site": 2, **options})
        self.queue.running = True
        self.clock = _core.Clock()
        self.region = _core.RegionCore("rows", self.clock, site=1, member=1, stores=stores)
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


class Way:
    """A region and the queue of its one sender, with a log or without."""

    def __init__(self, folder, *, stores, partitions, is_persistent):
        folder.mkdir()
        log = {"log_directory": str(folder), "log_id": 1, "synchronous": "written"} if is_persistent else {}
        self.queue = _core.EventQueue("ln", remote_site=2, partitions=partitions, dispatchers=partitions, **log)
        self.queue.running = True
        self.region = _core.RegionCore("rows", _core.Clock(), site=1, member=1, stores=stores)
        self.region.attach([self.queue])
        self.stores, self.partitions, self.committer = stores, partitions, None
        if is_persistent:
            self.committer = threading.Thread(target=self.queue.commit_loop, daemon=True)
            self.committer.start()

    def put_alone(self, rows):
        for key, value, destroys in rows:
            if not destroys:
                self.region.put(key, value)
            elif not self.stores or key in self.region:
                self.region.destroy(key)

    def put_columns(self, rows):
        keys, values, destroys = zip(*rows, strict=True)
        self.region.put_columns(
            list(keys), list(values), operations=["destroy" if each else "update" for each in destroys]
        )

    def stage(self, rows):
        sender, stage = _core.RowSender(), _core.RowStage(None, run_id=b"0123456789abcdef", task=1)
        stage.connected(1)
        keys, values, destroys = zip(*rows, strict=True)
        sender.put_columns(list(keys), list(values), ["destroy" if each else "update" for each in destroys])
        sender.commit()
        while data := sender.data_to_send():
            stage.receive_data(data)
        assert stage.apply(self.region)
        assert stage.applied + stage.missing == len(rows)

    def end(self):
        """What the queue has, by partition; whether all of its events are this member's own, each once."""
        if self.committer is not None:
            self.queue.wait_durable()
        records = [
            [_core.record_fields(record) for record in self.queue.peek(partition, 1_000_000)]
            for partition in range(self.partitions)
        ]
        if self.committer is not None:
            self.queue.stop_log()
            self.committer.join()
        ids = [each["event_id"] for part in records for each in part]
        assert len(set(ids)) == len(ids) == self.queue.counts()["queued"]
        for part in records:
            assert [each["stamp"] for each in part] == sorted(each["stamp"] for each in part)
            assert [each["event_sequence"] for each in part] == sorted(each["event_sequence"] for each in part)
        return [[(each["key"], each["value"], each["operation"]) for each in part] for part in records]


@pytest.mark.parametrize("is_persistent", [False, True], ids=["in-memory", "persistent"])
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("stores", [True, False], ids=["stored", "proxy"])
def test_rows_make_the_events_that_single_changes_make(stores, partitions, is_persistent, tmp_path):
    chance = random.Random(f"{stores} {partitions} {is_persistent}")
    lengths = [0, 1, 100, 700, 20_000, 70_000]
    rows = [
        (
            b"key %d" % chance.randrange(300),
            chance.randbytes(chance.choices(lengths, [1, 4, 40, 10, 1, 0.2])[0]),
            chance.random() < 0.2,
        )
        for _ in range(1500)
    ]
    events = []
    for way in (Way.put_alone, Way.put_columns, Way.stage):
        subject = Way(tmp_path / way.__name__, stores=stores, partitions=partitions, is_persistent=is_persistent)
        way(subject, rows)
        events.append(subject.end())
    assert events[0] == events[1] == events[2]
    assert sum(map(len, events[0])) > 1000


def test_a_row_that_changes_nothing_is_not_queued():
    member = Member()
    keys = [b"k%d" % n for n in range(40)]
    operations = ["destroy" if n % 3 == 0 else "update" for n in range(40)]
    assert member.region.put_columns(keys, [b"v"] * 40, operations=operations) == operations.count("update")
    queued = [key for key, _, _, operation in member.queued() if operation != DESTROY]
    assert queued == [key for key, operation in zip(keys, operations, strict=True) if operation == "update"]


@pytest.mark.parametrize("stores", [True, False], ids=["stored", "proxy"])
def test_a_row_that_is_refused_stops_none_beside_it(stores):
    member = Member(stores=stores)
    keys = [b"k%d" % n for n in range(300)]
    for row in (0, 7, 8, 150, 299):
        keys[row] = b"x" * 70_000
    with pytest.raises(BatchError) as refused:
        member.region.put_columns(keys, [b"v"] * 300)
    assert [row for row, _ in refused.value.failures] == [0, 7, 8, 150, 299]
    assert [key for key, *_ in member.queued()] == [key for key in keys if len(key) < 100]
    assert len(member.region) == (295 if stores else 0)


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
