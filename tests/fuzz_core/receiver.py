"""Fuzzes a receiver's sessions: batches whose sections repeat, go back, leave gaps, overlap or lie about their counts,
from two members of a site, which have streams in common.

Whatever comes: the connection goes on or ends with a ProtocolError; a sequence is applied once; an acknowledgement
names only failed events that its batch carried, each once; no more failures are remembered than events failed; and the
timeline of a stream, and its last sequence within a timeline, only grow.
"""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import lz4.block

from pywan import _core
from pywan.errors import ProtocolError
from support.records import BYE, PING, REGION, REWIND, STREAM, STREAM_NAME, UPDATE, make_stream, read_ack, split_frames

from .grammar import BATCH, FRAME_ACK, SectionPlan, frame, odd_number, payload_of, plan_records, spoil

PARTITIONS = 4
BUCKETS = 3
NAMES = ((1, b"fast"), (2, b"slow"), (3, b"shared"))
# By partition: the region, and its number.
STREAMS = {PARTITIONS + n: (name, number) for n, (number, name) in enumerate(NAMES)}
_names = itertools.count()


class Receiver:
    """A receiver's memory with three regions, and the connections of two members that send to it. The changes of one
    region go through the user's Python. Another one is shared, and this member leads all of its buckets but one, of
    which it loses its part now and then: what is on its way then is not acknowledged.
    """

    def __init__(self, source: Random) -> None:
        self.source = source
        self.counts = _core.ReceiverCounts()
        clock = _core.Clock()
        self.regions = {
            name: _core.RegionCore(f"fuzz{next(_names)}", clock, site=2, stores=True) for name in ("fast", "slow")
        }
        self.regions["slow"].set_callback_path(lambda *change: None)
        self.share(clock)
        self.happened: list[int] = []
        self.streams = _core.StreamMemory()
        self.failing: set[tuple[int, int, int]] = (
            set()
        )  # Events of streams that may fail: partition, timeline, sequence.
        self.members = [Member(self) for _ in range(2)]

    def share(self, clock: _core.Clock) -> None:
        region = self.regions["shared"] = _core.RegionCore(f"fuzz{next(_names)}", clock, site=2, buckets=BUCKETS)
        self.changelog, self.epoch = _core.Changelog(BUCKETS, region.shards), 0
        self.lead()
        region.share(self.changelog, None)

    def lead(self) -> None:
        """Takes the lead of all buckets, under a new epoch."""
        self.epoch += 1
        for bucket in range(BUCKETS):
            for role in (_core.REPLICA_TAKING_OVER, _core.REPLICA_PRIMARY):
                self.changelog.set_role(bucket, role, 1, self.epoch)

    def follow(self) -> None:
        """Loses the lead of a bucket."""
        self.changelog.set_role(self.source.randrange(BUCKETS), _core.REPLICA_IN_SYNC, 1, self.epoch)

    def apply(self, core: object, record: bytes, place: tuple[int, int, bool]) -> int:
        self.happened.append(place[1])
        return self.source.choice((0, 0, 0, 5))

    def known(self) -> dict[int, tuple[int, int]]:
        """The newest timeline of each stream, and its last sequence."""
        return {
            partition: (self.streams.last(name.decode(), 1) or [(0, 0)])[0] for partition, (name, _) in STREAMS.items()
        }

    def step(self) -> None:
        before = self.known()
        self.source.choice(self.members).step()
        after = self.known()
        assert all(after[partition] >= before[partition] for partition in STREAMS), (before, after)
        assert self.streams.failures <= len(self.failing), (self.streams.failures, len(self.failing))


class Member:
    """The queue of a sending member, over one connection after another."""

    def __init__(self, receiver: Receiver) -> None:
        self.source, self.receiver = receiver.source, receiver
        self.memory = _core.SourceMemory(PARTITIONS, receiver.streams)
        self.failing: set[tuple[int, int]] = set()  # Events of own partitions that may fail, of all that came.
        self.came = 0
        self.at = [1] * PARTITIONS  # Where each own partition goes on.
        self.connect()

    def connect(self) -> None:
        self.session = _core.ReceiverSession(
            self.memory, self.receiver.counts, self.receiver.regions.get, self.receiver.apply
        )
        self.batch = 0
        self.acked = 0
        self.sent: dict[int, tuple[list[SectionPlan], Counter[int]]] = {}
        self.named: Counter[int] = Counter()  # By partition: how often the name of a stream was sent.
        self.through: dict[tuple[int, int], int] = {}  # The same with the number of that name.
        self.timelines = {partition: self.source.choice((1, 1, 2)) for partition in STREAMS}
        self.session.receive_data(
            b"".join(frame(self.source, REGION, name, n) for name, n in STREAMS.values())
            + b"".join(
                make_stream(partition, n, timeline=self.timelines[partition]) for partition, (_, n) in STREAMS.items()
            )
        )

    def plan(self) -> list[SectionPlan]:
        source, plans = self.source, []
        for _ in range(source.choice((0, 1, 1, 1, 2, 3, 8))):
            partition = source.randrange(PARTITIONS + len(STREAMS) + (source.random() < 0.02))
            first = self.at[partition] if partition < PARTITIONS else self.next_of_stream(partition)
            kind = source.random()
            if kind < 0.15:
                first = max(1, first - source.randrange(1, 20))  # Once more.
            elif kind < 0.2:
                first = 1
            elif kind < 0.25:
                first += source.randrange(1, 5)  # A gap.
            through = first + source.choice((0, 1, 5, 30, 30, 1 << 40 if kind > 0.97 else 30))
            plan = SectionPlan(partition, first, through, source.choice((0, max(0, first - 1), max(0, first - 5))))
            own_region = partition in STREAMS and source.random() > 0.02
            plan_records(source, plan, [STREAMS[partition][1]] if own_region else [1, 1, 2, 3, 3, 4], 12)
            if kind > 0.5 and plan.sequences:
                plan.through = plan.sequences[-1]
            if source.random() < 0.05:
                spoil(source, plan)
            plans.append(plan)
            for _ in range(source.choice((0,) * 20 + (1, 50))):  # The same section again.
                plans.append(plan)
        return plans

    def next_of_stream(self, partition: int) -> int:
        """Where a stream goes on: behind what its other member sent, or behind what this one did."""
        timeline, last = self.receiver.known().get(partition, (0, 0))
        behind = self.through.get((partition, self.named[partition]), 0)
        behind = behind if behind < 1 << 62 else 0  # A section with spoiled numbers.
        behind = max(last, behind) if timeline == self.timelines.get(partition) and last < 1 << 39 else behind
        return behind + 1 if behind < 1 << 62 else 1

    def batch_frame(self) -> bytes:
        source = self.source
        plans = self.plan()
        count = sum(len(p.records) for p in plans)
        payload = payload_of(plans, odd_number(source, len(plans), 32) if source.random() < 0.03 else None)
        if source.random() < 0.03:
            count = odd_number(source, count, 32)
        if source.random() < 0.03:
            payload = payload[: source.randrange(len(payload) + 1)]
        number = odd_number(source, self.batch) if source.random() < 0.03 else self.batch
        if number == self.batch:
            self.sent[number] = plans, Counter(self.named)
        self.batch += 1
        for plan in plans:
            self.came += len(plan.carried)
            if plan.partition < PARTITIONS:
                self.failing.update((plan.partition, s) for s in plan.carried)
            else:
                timeline = self.timelines.get(plan.partition, 0)
                self.receiver.failing.update((plan.partition, timeline, s) for s in plan.carried)
        if source.random() < 0.2:
            return packed_frame(source, payload, number, count)
        return frame(source, BATCH, payload, number, count)

    def stream_frame(self) -> bytes:
        """A later timeline of a stream, or anything else in the form of a stream's name."""
        source = self.source
        if source.random() < 0.5:
            partition = source.choice(list(STREAMS))
            self.timelines[partition] += source.choice((1, 1, 1, 5))
            self.named[partition] += 1
            return make_stream(partition, STREAMS[partition][1], timeline=self.timelines[partition])
        fields = STREAM_NAME.pack(*(odd_number(source, 1, bits) for bits in (16, 16, 16, 16, 64)))
        partition = odd_number(source, PARTITIONS)
        self.named[partition] += 1
        return frame(source, STREAM, fields[: source.choice((16, 16, 8))], partition)

    def any_frame(self) -> bytes:
        source = self.source
        kind = source.random()
        if kind < 0.06:
            return frame(
                source,
                REGION,
                source.choice((b"fast", b"slow", b"shared", b"absent", b"\xff", b"n" * 1025)),
                source.choice((1, 2, 3, 4, odd_number(source, 3))),
            )
        if kind < 0.09:
            return frame(
                source,
                source.choice((PING, BYE, FRAME_ACK, REWIND, 10, 11, 13, 14)),
                b"x" * source.choice((0, 0, 3)),
                odd_number(source),
            )
        if kind < 0.14:
            return self.stream_frame()
        return self.batch_frame()

    def step(self) -> None:
        data = b"".join(self.any_frame() for _ in range(self.source.choice((1, 1, 3))))
        self.receiver.happened.clear()
        before = self.memory.last()
        if self.source.random() < 0.1:
            self.receiver.follow()
        elif self.source.random() < 0.2:
            self.receiver.lead()
        ended = False
        try:
            if self.source.random() < 0.1:
                data = data[: self.source.randrange(len(data) + 1)]
                ended = True
            self.session.receive_data(data)
        except ProtocolError:
            ended = True
        sent = b""
        try:
            while self.source.random() < 0.9 and (more := self.session.data_to_send()):
                sent += more  # Else a round stays under way, and the other member may begin one.
        except ProtocolError:
            ended = True
        answers = split_frames(sent)
        last = self.memory.last()
        assert all(new >= old for new, old in zip(last, before, strict=True)), (before, last)
        assert len(self.receiver.happened) <= self.came, "more was applied than came"
        for answer in answers:
            if answer.type == FRAME_ACK:
                self.check_ack(answer)
        assert self.memory.failures <= len(self.failing), (self.memory.failures, len(self.failing))
        for partition in range(PARTITIONS):
            if last[partition] < 1 << 39:
                self.at[partition] = last[partition] + 1
        if ended:
            self.connect()

    def check_ack(self, answer: Any) -> None:
        assert answer.id in self.sent and answer.id >= self.acked, f"an acknowledgement of batch {answer.id}"
        batches = [self.sent[number] for number in range(self.acked, answer.id + 1)]
        self.acked = answer.id + 1
        _, _, failures = read_ack(answer.payload)
        carried = [(p.partition, s) for plans, _ in batches for p in plans for s in p.carried]
        told = [(partition, sequence) for partition, _, sequence in failures]
        assert len(set(told)) == len(told), f"{len(told)} failures are told, {len(set(told))} different ones"
        assert set(told) <= set(carried), f"failures of events that no batch carried: {set(told) - set(carried)}"
        places = [carried.index(each) for each in told]
        assert places == sorted(places), f"failures in another order than the events: {told}"
        for plans, named in batches:
            self.check_batch(plans, named)

    def check_batch(self, plans: list[SectionPlan], named: Counter[int]) -> None:
        assert plans, "a batch without sections was acknowledged"
        for plan in plans:  # A partition may have several, one behind the other.
            place = plan.partition, named[plan.partition]
            behind = self.through.get(place, 0)
            assert plan.first > behind, (
                f"partition {plan.partition}: a section from {plan.first} on was taken behind one through {behind}"
            )
            self.through[place] = plan.through


def packed_frame(source: Random, payload: bytes, number: int, count: int) -> bytes:
    """As lz4 packs it; the unpacked length may be a lie."""
    from support.records import FRAME, MAGIC

    packed = lz4.block.compress(payload, store_size=False) if source.random() < 0.9 else source.randbytes(40)
    raw = odd_number(source, len(payload), 27) if source.random() < 0.1 else len(payload)
    whole = bytearray(_core.pack_frame(BATCH, packed, number, count))
    head = FRAME.pack(MAGIC, BATCH, 1, 0, len(packed), 0, raw, count, number)
    whole[:32] = head
    whole[12:16] = _core.crc32c(head + packed).to_bytes(4, "little")
    return bytes(whole)


def run(source: Random) -> None:
    receiver = Receiver(source)
    for _ in range(source.choice((3, 10, 30))):
        receiver.step()


assert UPDATE == 1
