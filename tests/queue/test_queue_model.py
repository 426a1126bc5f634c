"""An EventQueue does what a plain list per partition does, whatever comes in whatever order, in memory and on disk."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pywan import _core
from support.records import CREATE, DESTROY, UPDATE, check_queue_ledger, make_record, read_record

PARTITIONS = 3
partitions = st.integers(0, PARTITIONS - 1)
# Small ones, and some of which a dozen are more than the memory that a queue may use.
value_sizes = st.sampled_from([0, 1, 7, 8, 40, 1000, 300_000, 300_000])


@dataclass
class ModelEvent:
    sequence: int
    key: bytes
    operation: int
    stamp: int
    length: int
    size: int  # The size of the value, which decides the order of equal stamps.


@dataclass
class ModelPartition:
    removed: int = 0
    peeked: int = 0
    appended: int = 0
    events: dict[int, ModelEvent] = field(default_factory=dict)  # By sequence; what is not here is a hole.
    newest: dict[bytes, int] = field(default_factory=dict)  # Key -> the update that a newer one may replace.

    def make_hole(self, sequence):
        if self.events.pop(sequence, None) is None:
            return 0
        if self.removed == self.peeked and sequence == self.removed + 1:
            self.drop_front_holes()
        return 1

    def drop_front_holes(self):
        """Nothing is on its way: holes in front are gone."""
        while self.removed < self.appended and self.removed + 1 not in self.events:
            self.removed = self.peeked = self.removed + 1


class QueueMachine(RuleBasedStateMachine):
    @initialize(conflate=st.booleans())
    def open(self, conflate):
        self.directory = tempfile.mkdtemp(prefix="pywan-queue-")
        self.conflate = conflate
        self.queue = _core.EventQueue(
            "model", partitions=PARTITIONS, dispatchers=2, memory_limit=0, directory=self.directory, conflate=conflate
        )
        self.model = [ModelPartition() for _ in range(PARTITIONS)]
        self.stamp = self.conflated = self.distributed = self.filtered = self.queued = self.cleared = 0

    def teardown(self):
        self.queue = None
        shutil.rmtree(self.directory)

    @rule(
        partition=partitions,
        key=st.sampled_from([b"a", b"b", b"c"]),
        operation=st.sampled_from([UPDATE, UPDATE, UPDATE, CREATE, DESTROY]),
        size=value_sizes,
        late=st.booleans(),
        times=st.sampled_from([1, 1, 3, 20]),
    )
    def append(self, partition, key, operation, size, late, times):
        for _ in range(times):
            self.stamp += 2
            stamp = self.stamp // 2 if late else self.stamp
            record = make_record(key, b"\x5a" * size, operation=operation, stamp=stamp)
            self.queue.append_record(record, partition)
            p = self.model[partition]
            p.appended += 1
            self.queued += 1
            p.events[p.appended] = ModelEvent(p.appended, key, operation, stamp, len(record), size)
            if not self.conflate or operation != UPDATE:
                continue
            old = p.events.get(p.newest.get(key, 0))
            if old and old.sequence > p.peeked:
                if (old.stamp, old.size) > (stamp, size):
                    continue
                self.conflated += p.make_hole(old.sequence)
            p.newest[key] = p.appended

    @rule(partition=partitions, count=st.sampled_from([1, 2, 5, 100]))
    def peek(self, partition, count):
        p = self.model[partition]
        expected = []
        while len(expected) < count and p.peeked < p.appended:
            p.peeked += 1
            if p.peeked in p.events:
                expected.append(p.events[p.peeked])
        found = [
            read_record(record, sequence, partition)
            for sequence, record in self.queue.peek_with_positions(partition, count)
        ]
        assert [(f.sequence, f.key, f.operation, f.stamp, f.partition) for f in found] == [
            (e.sequence, e.key, e.operation, e.stamp, partition) for e in expected
        ]
        assert all(set(f.value) <= {0x5A} for f in found)

    @rule(partition=partitions, share=st.floats(0, 1))
    def remove(self, partition, share):
        p = self.model[partition]
        through = p.removed + round((p.peeked - p.removed) * share)
        gone = [s for s in p.events if s <= through]
        for sequence in gone:
            del p.events[sequence]
        p.removed = through
        if p.removed == p.peeked:
            p.drop_front_holes()
        self.distributed += len(gone)
        assert self.queue.remove(partition, through) == len(gone)

    @rule(partition=partitions)
    def rewind(self, partition):
        self.model[partition].peeked = self.model[partition].removed
        self.model[partition].drop_front_holes()
        self.queue.rewind(partition)

    @rule(partition=partitions, share=st.floats(0, 1))
    def make_hole(self, partition, share):
        p = self.model[partition]
        sequence = p.removed + 1 + round(max(0, p.appended - p.removed - 1) * share)
        self.queue.make_hole(partition, sequence)
        self.filtered += p.make_hole(sequence)

    @rule(limit=st.integers(0, 50))
    def look(self, limit):
        expected = [
            (n, e.sequence, e.key)
            for n, p in enumerate(self.model)
            for e in sorted(p.events.values(), key=lambda e: e.sequence)
        ]
        found = [(n, read_record(record, sequence, n)) for n, sequence, record in self.queue.records(limit)]
        assert [(n, f.sequence, f.key) for n, f in found] == expected[:limit]

    @rule()
    def clear(self):
        events = sum(len(p.events) for p in self.model)
        assert self.queue.clear() == events
        self.cleared += events
        for p in self.model:
            p.events.clear()
            p.removed = p.peeked = p.appended
        counts = self.queue.counts()
        assert counts["overflow_bytes"] == 0 and counts["bytes"] == 0

    @invariant()
    def positions_and_sizes_agree(self):
        assert self.queue.positions() == [(p.removed, p.peeked, p.appended) for p in self.model]
        assert all(p.removed <= p.peeked <= p.appended for p in self.model)
        assert len(self.queue) == sum(len(p.events) for p in self.model)
        assert self.queue.bytes == sum(e.length for p in self.model for e in p.events.values())

    @invariant()
    def the_ledger_balances(self):
        counts = self.queue.counts()
        check_queue_ledger(counts)
        assert (
            counts["queued"],
            counts["distributed"],
            counts["conflated"],
            counts["filtered_transmit"],
            counts["dropped_cleared"],
        ) == (self.queued, self.distributed, self.conflated, self.filtered, self.cleared)


class TestQueueModel(QueueMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None, print_blob=True)
