"""Owns the members that hold a queue together: a primary of all buckets, and a replica."""

from __future__ import annotations

import socket
import threading

from pywan import _core
from pywan.testing.waiting import eventually
from support.fed_queues import FedPair, first_of, queue_to
from support.records import UPDATE
from support.repl_pair import BUCKETS, TIMELINE, call_change, key_of

BACK = 9  # The number of the replication link from the replica to the primary.


class Holders(FedPair):
    """A primary of all buckets and a replica, which both hold the queue. The primary's member sends, unless told."""

    def __init__(self, *, learns: bool = False, **options):
        super().__init__()
        self.changes = 0
        if options:
            self.queues = [queue_to(buckets=BUCKETS, **options) for _ in range(2)]
            self.here.core.attach(self.queues[:1])
            self.there.core.attach(self.queues[1:])
        if not learns:
            self.there.set_roles(_core.REPLICA_IN_SYNC)
            self.set_replicas(_core.REPLICA_WAITED)
        self.back = _core.ReplSender(BACK, "the primary", 5000)
        self.at_primary = _core.ReplReceiver({self.name: self.here.core}.get, 5000)
        self.there.changelog.add_repl_link(BACK, self.back)
        self.back.add_region(1, self.name, self.there.core)
        self.firsts = [first_of(queue, self.name) for queue in self.queues]
        self.lead(0)

    def lead(self, who, leads=True):
        first = self.firsts[who]
        self.queues[who].lead(range(first, first + BUCKETS), leads)

    def end_lacking(self, who):
        """All members were asked, and had nothing."""
        queue, first = self.queues[who], self.firsts[who]
        for bucket, through in enumerate(queue.lacking(first, BUCKETS)):
            queue.end_lacking(first + bucket, TIMELINE, through)

    def take_older(self, who, most=1 << 20):
        """The queue of `who` gets what the other one has."""
        queue, first, other = self.queues[who], self.firsts[who], self.queues[1 - who]
        for bucket, through in enumerate(queue.lacking(first, BUCKETS)):
            after = 0
            while after < through:
                partition = self.firsts[1 - who] + bucket
                removed, lacks, after, events = other.older_events(partition, TIMELINE, after, through, most)
                assert lacks == 0 and queue.take_older(first + bucket, TIMELINE, removed, events)

    def connect(self):
        super().connect()
        pair = socket.socketpair()
        self.sockets += pair
        for end, file in ((self.back, pair[0]), (self.at_primary, pair[1])):
            thread = threading.Thread(target=self.run, args=(end, file))
            thread.start()
            self.threads.append(thread)

    def close(self):
        self.back.stop()
        self.at_primary.stop()
        super().close()

    def send_some(self, who, count=100, bucket=None):
        """Sends what is ready in a queue, as if it were acknowledged at once."""
        for each in range(BUCKETS) if bucket is None else [bucket]:
            sent = self.queues[who].peek_with_positions(self.firsts[who] + each, count)
            if sent:
                self.queues[who].remove(self.firsts[who] + each, sent[-1][0])

    def send(self, who, count=100, bucket=None):
        """Sends so many events of each bucket, or all that are queued: they are ready a moment after they count."""
        queue = self.queues[who]
        for each in range(BUCKETS) if bucket is None else [bucket]:
            partition, sent = self.firsts[who] + each, []
            wanted = min(count, sum(number == partition for number, *_ in queue.records(100_000)))
            eventually(
                lambda p=partition, n=wanted, s=sent: s.extend(queue.peek_with_positions(p, n - len(s))) or len(s) == n
            )
            if sent:
                queue.remove(partition, sent[-1][0])

    def change(self, key, value=b"v", operation=UPDATE):
        """Changes a key, and does not wait until that counts."""
        self.changes += 1
        call_change(self.here.core, key, value, operation, self.changes)

    def change_all(self, count, begin=0):
        for n in range(begin, begin + count):
            self.change(key_of(n % BUCKETS, n % 5))

    def removed(self, who, bucket=0):
        return self.queues[who].positions()[self.firsts[who] + bucket][0]

    def sizes(self):
        return [len(queue) for queue in self.queues]
