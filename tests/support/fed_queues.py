"""Owns queues that the change log of a shared region feeds: what they hold, and who leads their streams."""

from __future__ import annotations

from pywan import _core, stats
from support.records import read_record
from support.repl_pair import BUCKETS as REPL_LINK_BUCKETS, Pair, key_of

BUCKETS = 7


def queue_to(site=2, name="ln", buckets=BUCKETS, running=True, **options):
    queue = _core.EventQueue(name, remote_site=site, partitions=buckets, by_bucket=True, **options)
    queue.running = running
    return queue


def first_of(queue, region="r"):
    """The first partition of the region's newest run."""
    return [first for name, first, _ in queue.runs() if name == region][-1]


def lead(queue, buckets=None, leads=True, in_order=False, region="r"):
    """Has the queue's member send the events of these buckets, or of all."""
    _name, first, count = [run for run in queue.runs() if run[0] == region][-1]
    led = range(count) if buckets is None else buckets
    queue.lead([first + bucket for bucket in led], leads, in_order)
    return queue


def queued(queue, region="r"):
    """(bucket, sequence, key, value) of all that is queued for a region."""
    buckets = {number: bucket for number, name, bucket, *_ in queue.streams() if name == region}
    return [
        (buckets[number], sequence, (found := read_record(record)).key, found.value)
        for number, sequence, record in queue.records(100_000)
        if number in buckets
    ]


def peek(queue, bucket, count=100_000, region="r"):
    """The sequences of the next events of a bucket, which are on their way now."""
    return [sequence for sequence, _ in queue.peek_with_positions(first_of(queue, region) + bucket, count)]


def balanced(queue):
    return stats.ledger(queue.counts())["balanced"]


class FedPair(Pair):
    def __init__(self):
        super().__init__(learns=True)
        self.queues = [queue_to(buckets=REPL_LINK_BUCKETS) for _ in range(2)]
        self.here.core.attach(self.queues[:1])
        self.there.core.attach(self.queues[1:])
        self.news = []

    def put_many(self, count, begin=0):
        for n in range(begin, begin + count):
            self.here.core.put(key_of(n % REPL_LINK_BUCKETS, n % 5), b"%d" % n)

    def has_learned(self):
        self.news += self.sender.news()
        return len(self.news) == REPL_LINK_BUCKETS and self.is_even()
