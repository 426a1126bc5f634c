"""Owns the streams of a sender whose members share a region, and the receiver that they send to."""

from __future__ import annotations

import contextlib
import itertools

import lz4.block
import pytest

from pywan import _core, stats
from pywan.errors import ProtocolError
from pywan.testing.waiting import eventually
from support.records import (
    BATCH,
    FRAME,
    FRAME_ACK,
    MAGIC,
    REGION,
    make_batch,
    make_record,
    make_stream,
    read_ack,
    split_frames,
)
from support.shared_site import SharedSite

OWN = 2  # The own partitions of each queue here.
FAILS = 5  # A reason of failure.
_names = itertools.count()


class Remote:
    """A receiver's memory of one sender, and a region that remembers what was applied to it, in order."""

    def __init__(self, buckets=1):
        self.name, self.buckets = f"streams{next(_names)}", buckets
        self.streams = _core.StreamMemory()
        self.counts = _core.ReceiverCounts()
        self.core = _core.RegionCore(self.name, _core.Clock(), site=2)
        self.core.set_callback_path(lambda *change: None)
        self.applied = []
        self.failing = set()  # Values of events that cannot be applied.

    def apply(self, region, record, place):
        value = _core.record_fields(record)["value"][1].decode()
        if value in self.failing:
            return FAILS
        self.applied.append(value)
        return 0

    def member(self):
        """A queue of another member of the sending site, which connects."""
        return Line(self, _core.SourceMemory(OWN, self.streams))

    def last(self, bucket=0):
        return self.streams.last(self.name, self.buckets)[bucket]


class Line:
    """A connection of one member's queue."""

    def __init__(self, remote, memory):
        self.remote, self.memory, self.batch = remote, memory, 0
        self.session = _core.ReceiverSession(memory, remote.counts, {remote.name: remote.core}.get, remote.apply)
        self.session.receive_data(_core.pack_frame(REGION, remote.name.encode(), 1))

    def again(self):
        return Line(self.remote, self.memory)

    def name(self, partition=OWN, **stream):
        self.session.receive_data(make_stream(partition, **{"buckets": self.remote.buckets, **stream}))
        return self

    def send(self, first, through, *, partition=OWN, acknowledged=0, holes=(), packed=False, key=b"k"):
        """Sends a section whose values are the sequences. Returns the sequences that failed."""
        records = [(n, make_record(key, b"%d" % n, stamp=n << 16)) for n in range(first, through + 1) if n not in holes]
        payload, count = make_batch((partition, first, through, acknowledged, records))
        self.batch += 1
        data = _core.pack_frame(BATCH, payload, self.batch - 1, count)
        self.session.receive_data(packed_batch(payload, self.batch - 1, count) if packed else data)
        (ack,) = split_frames(self.session.data_to_send())
        assert ack.type == FRAME_ACK and ack.id == self.batch - 1
        failures = read_ack(ack.payload)[2]
        assert all(place == partition and reason == FAILS for place, reason, _ in failures)
        return [sequence for *_, sequence in failures]

    def refused(self, *section, match, **options):
        """The connection ends. Returns the types of the frames that say so."""
        with pytest.raises(ProtocolError, match=match):
            self.send(*section, **options)
        return [frame.type for frame in split_frames(self.session.data_to_send())]


def packed_batch(payload, number, count):
    packed = lz4.block.compress(payload, store_size=False)
    head = FRAME.pack(MAGIC, BATCH, 1, 0, len(packed), 0, len(payload), count, number)
    crc = _core.crc32c(head + packed).to_bytes(4, "little")
    return head[:12] + crc + head[16:] + packed + bytes(-len(packed) % 8)


class Sender:
    """The queue of one member of a site whose members share a region, with a dispatcher that sends to the remote."""

    def __init__(self, site, number, remote, *, serial, compress=False, dispatchers=1, by_thread=False, **callbacks):
        member = site.members[number]
        self.core, self.changelog, self.remote = member.core, member.changelog, remote
        self.queue = _core.EventQueue(
            "ln",
            remote_site=2,
            partitions=dispatchers if serial else site.buckets,
            dispatchers=dispatchers,
            by_bucket=not serial,
            by_thread=by_thread,
        )
        self.queue.running = True
        self.parked = _core.EventQueue("parked", partitions=8)
        self.core.attach([self.queue])
        self.session = _core.DispatcherSession(self.queue, 0, self.parked, **callbacks)
        self.session.configure(7, -1, compress=compress)
        self.memory = _core.SourceMemory(self.queue.partitions, remote.streams)
        self.connect()

    def connect(self):
        self.session.connected(1_000_000, 1 << 20, 1)
        self.receiver = _core.ReceiverSession(
            self.memory, self.remote.counts, {self.remote.name: self.remote.core}.get, self.remote.apply
        )

    def reconnect(self):
        self.session.disconnected()
        self.connect()

    def lead(self, leads=True):
        ((_, self.first, buckets),) = self.queue.runs()
        self.queue.lead(range(self.first, self.first + buckets), leads)
        return self

    def all_is_stable(self):
        return all(
            self.changelog.state(bucket)["high_watermark"] == self.changelog.log_end(bucket)
            for bucket in range(self.core.bucket_count)
        )

    def put(self, *values, key="k"):
        for value in values:
            self.core.put(key, str(value))

    def sent(self, now_us=1):
        return b"".join(iter(lambda: self.session.data_to_send(now_us), b""))

    def answer_to(self, data):
        self.receiver.receive_data(data)
        return self.receiver.data_to_send()

    def settle(self):
        while data := self.sent():
            self.session.receive_data(self.answer_to(data), 1)
        assert stats.ledger(self.queue.counts())["balanced"]


@contextlib.contextmanager
def members(count=1, *, buckets=1, serial=False, compress=False, **options):
    """The senders of members that share a region, and where they send to."""
    remote = Remote(buckets)
    with SharedSite(count, buckets=buckets, name=remote.name) as site:
        senders = [Sender(site, n, remote, serial=serial, compress=compress, **options) for n in range(count)]
        site.keep_carrying()
        yield (*senders, remote, site)


def all_there(senders, count):
    """Waits until all that was put is queued and counts at every member, so that it is ready where it is led."""
    for sender in senders:
        eventually(lambda sender=sender: len(sender.queue) == count and sender.all_is_stable())
