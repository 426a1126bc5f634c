"""A member that holds the queued events of a bucket alone: what a replication link brings it, what it says, and what
becomes of the events when the bucket is lost."""

from __future__ import annotations

import contextlib

import pytest

from pywan import _core
from pywan.testing.waiting import eventually
from support.fed_queues import balanced
from support.holders import Holders
from support.repl_pair import BUCKETS, EPOCH, TIMELINE, TRANSFER

ALONE = _core.REPLICA_QUEUE_ONLY


class QueueOnly(Holders):
    """The other member holds the events of all buckets, or begins to learn them."""

    def __init__(self, **options):
        super().__init__(learns=True, **options)

    def set_alone(self, role, transfer=0):
        for bucket in range(BUCKETS):
            self.there.changelog.set_role(bucket, role, TIMELINE, EPOCH, transfer, 0, True)

    def hold(self):
        self.set_alone(_core.REPLICA_IN_SYNC)
        self.set_replicas(_core.REPLICA_WAITED + ALONE)

    def learn_alone(self):
        self.set_alone(_core.REPLICA_LEARNER, TRANSFER)
        self.set_replicas(_core.REPLICA_LEARNING + ALONE, TRANSFER)

    def put(self, first, count, text="v"):
        for n in range(first, first + count):
            self.here.core.put(f"k{n}", f"{text}{n}")

    def entries(self):
        """How many entries the other member has."""
        return sum(self.there.core.bucket(n)["entries"] for n in range(BUCKETS))

    def streams(self, who):
        """The values in the streams of a member's queue, by bucket and sequence."""
        first, queue = self.firsts[who], self.queues[who]
        return {
            (number - first, sequence): _core.record_fields(record)["value"]
            for number, sequence, record in queue.records(100_000)
            if number >= first
        }


@pytest.fixture
def pair():
    with contextlib.closing(QueueOnly()) as made:
        yield made


def test_a_holder_of_events_alone_follows_and_stores_no_entry_and_answers_no_read(pair):
    pair.hold()
    pair.connect()
    pair.put(0, 50)
    eventually(lambda: len(pair.queues[1]) == 50, what="the events at the holder")
    assert pair.streams(0) == pair.streams(1) and pair.entries() == 0
    assert all(
        pair.there.changelog.state(n)["log_end"] == pair.here.changelog.state(n)["log_end"] for n in range(BUCKETS)
    )
    assert all(pair.there.changelog.state(n)["answers"] == 0 for n in range(BUCKETS))


def test_a_snapshot_for_a_holder_of_events_alone_brings_the_events_and_no_entries(pair):
    pair.set_replicas(_core.REPLICA_LEARNING + ALONE, TRANSFER)
    pair.put(0, 50)
    pair.learn_alone()
    pair.connect()
    eventually(
        lambda: all(each["waited"] for n in range(BUCKETS) for each in pair.here.changelog.state(n)["copies"]),
        what="a snapshot that is whole",
    )
    assert pair.streams(0) == pair.streams(1) and len(pair.streams(1)) == 50 and pair.entries() == 0
    pair.hold()
    pair.put(50, 50)
    eventually(lambda: len(pair.queues[1]) == 100, what="the later events at the holder")
    assert pair.streams(0) == pair.streams(1) and pair.entries() == 0


def test_what_left_the_primarys_queue_leaves_that_of_a_holder_of_events_alone(pair):
    pair.hold()
    pair.connect()
    pair.put(0, 50)
    eventually(lambda: len(pair.queues[1]) == 50, what="the events at the holder")
    pair.send(0)
    eventually(lambda: len(pair.queues[1]) == 0, what="an empty queue at the holder")
    assert balanced(pair.queues[1]) and pair.queues[1].counts()["removed_by_primary"] == 50


def test_a_lost_bucket_leaves_its_events_in_own_partitions_once_and_in_order(pair):
    pair.hold()
    pair.connect()
    pair.put(0, 30)
    pair.put(0, 30, "later")
    eventually(lambda: len(pair.queues[1]) == 60, what="the events at the holder")
    before = pair.streams(1)
    kept = [pair.there.changelog.keep_events(n) for n in range(BUCKETS)]
    assert sum(count for count, _ in kept) == 60 and not any(lost for _, lost in kept)
    for n in range(BUCKETS):
        pair.there.changelog.set_role(n, _core.REPLICA_ABSENT, TIMELINE, EPOCH)
        assert pair.there.changelog.keep_events(n) == (0, 0)
    queue = pair.queues[1]
    assert not pair.streams(1) and queue.counts()["forgotten"] == 0 and balanced(queue)
    taken = [each for p in range(queue.partitions) for each in queue.peek_with_positions(p, 100)]
    assert len(taken) == 60
    own = [_core.record_fields(record)["value"] for _, _, record in queue.records(100)]
    by_bucket = {n: [value for (bucket, _), value in sorted(before.items()) if bucket == n] for n in range(BUCKETS)}
    for values in by_bucket.values():
        at = [own.index(value) for value in values]
        assert at == sorted(at)
