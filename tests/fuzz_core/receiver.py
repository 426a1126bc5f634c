"""Fuzzes a receiver's session: batches whose sections repeat, go back, leave gaps, overlap or lie about their counts.

Whatever comes: the connection goes on or ends with a ProtocolError; a sequence is applied once; an acknowledgement
names only failed events that its batch carried, each once; and no more failures are remembered than events failed.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import lz4.block

from pywan import _core
from pywan.errors import ProtocolError
from records import BYE, PING, REGION, REWIND, UPDATE, read_ack, split_frames

from .grammar import BATCH, FRAME_ACK, SectionPlan, frame, odd_number, payload_of, plan_records, spoil

PARTITIONS = 4
BUCKETS = 3
NAMES = ((1, b"fast"), (2, b"slow"), (3, b"shared"))
_names = itertools.count()


class Receiver:
    """A receiver's memory with three regions, over one connection after another. The changes of one region go through
    the user's Python. Another one is shared, and this member leads all of its buckets but one, of which it loses its
    part now and then: what is on its way then is not acknowledged.
    """

    def __init__(self, source: Random) -> None:
        self.source = source
        self.memory = _core.SourceMemory(PARTITIONS)
        self.counts = _core.ReceiverCounts()
        clock = _core.Clock()
        self.regions = {
            name: _core.RegionCore(f"fuzz{next(_names)}", clock, site=2, stores=True) for name in ("fast", "slow")
        }
        self.regions["slow"].set_callback_path(lambda *change: None)
        self.share(clock)
        self.applied: set[tuple[int, int]] = set()  # (partition, sequence) of the slow region.
        self.failing: set[tuple[int, int]] = set()  # Events that may fail, of all that came.
        self.at = [1] * PARTITIONS  # Where each partition goes on.
        self.connect()

    def share(self, clock: _core.Clock) -> None:
        region = self.regions["shared"] = _core.RegionCore(f"fuzz{next(_names)}", clock, site=2, buckets=BUCKETS)
        self.tail, self.epoch = _core.Tail(BUCKETS, region.shards), 0
        self.lead()
        region.share(self.tail, None)

    def lead(self) -> None:
        """Takes the lead of all buckets, under a new epoch."""
        self.epoch += 1
        for bucket in range(BUCKETS):
            for role in (_core.TAIL_TAKING_OVER, _core.TAIL_PRIMARY):
                self.tail.set_role(bucket, role, 1, self.epoch)

    def connect(self) -> None:
        self.session = _core.ReceiverSession(self.memory, self.counts, self.regions.get, self.apply)
        self.batch = 0
        self.acked = 0
        self.sent: dict[int, list[SectionPlan]] = {}
        self.through: dict[int, int] = {}

    def apply(self, core: object, record: bytes, place: tuple[int, int, bool]) -> int:
        self.happened.append(place[1])
        return self.source.choice((0, 0, 0, 5))

    def plan(self) -> list[SectionPlan]:
        source, plans = self.source, []
        for _ in range(source.choice((0, 1, 1, 1, 2, 3, 8))):
            partition = source.randrange(PARTITIONS)
            first = self.at[partition]
            kind = source.random()
            if kind < 0.15:
                first = max(1, first - source.randrange(1, 20))  # Once more.
            elif kind < 0.2:
                first = 1
            elif kind < 0.25:
                first += source.randrange(1, 5)  # A gap.
            through = first + source.choice((0, 1, 5, 30, 30, 1 << 40 if kind > 0.97 else 30))
            plan = SectionPlan(partition, first, through, source.choice((0, max(0, first - 1), max(0, first - 5))))
            plan_records(source, plan, [1, 1, 2, 3, 3, 4], 12)
            if kind > 0.5 and plan.sequences:
                plan.through = plan.sequences[-1]
            if source.random() < 0.05:
                spoil(source, plan)
            plans.append(plan)
            for _ in range(source.choice((0,) * 20 + (1, 50))):  # The same section again.
                plans.append(plan)
        return plans

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
            self.sent[number] = plans
        self.batch += 1
        for plan in plans:
            self.failing.update((plan.partition, s) for s in plan.carried)
        if source.random() < 0.2:
            return packed_frame(source, payload, number, count)
        return frame(source, BATCH, payload, number, count)

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
        return self.batch_frame()

    def step(self) -> None:
        data = b"".join(self.any_frame() for _ in range(self.source.choice((1, 1, 3))))
        self.happened: list[int] = []
        before = self.memory.last()
        if self.source.random() < 0.1:
            self.tail.set_role(self.source.randrange(BUCKETS), _core.TAIL_COPY, 1, self.epoch)
        elif self.source.random() < 0.2:
            self.lead()
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
            while more := self.session.data_to_send():
                sent += more
        except ProtocolError:
            ended = True
        answers = split_frames(sent)
        last = self.memory.last()
        assert all(new >= old for new, old in zip(last, before, strict=True)), (before, last)
        assert len(self.happened) <= len(self.failing), "more was applied than came"
        for answer in answers:
            if answer.type == FRAME_ACK:
                self.check_ack(answer)
        assert self.memory.failures <= len(self.failing), (self.memory.failures, len(self.failing))
        for partition in range(PARTITIONS):
            if last[partition] < 1 << 39:
                self.at[partition] = last[partition] + 1
        if ended:
            self.connect()
            self.session.receive_data(b"".join(frame(self.source, REGION, name, n) for n, name in NAMES))

    def check_ack(self, answer: Any) -> None:
        assert answer.id in self.sent and answer.id >= self.acked, f"an acknowledgement of batch {answer.id}"
        batches = [self.sent[number] for number in range(self.acked, answer.id + 1)]
        self.acked = answer.id + 1
        _, _, failures = read_ack(answer.payload)
        carried = [(p.partition, s) for plans in batches for p in plans for s in p.carried]
        told = [(partition, sequence) for partition, _, sequence in failures]
        assert len(set(told)) == len(told), f"{len(told)} failures are told, {len(set(told))} different ones"
        assert set(told) <= set(carried), f"failures of events that no batch carried: {set(told) - set(carried)}"
        places = [carried.index(each) for each in told]
        assert places == sorted(places), f"failures in another order than the events: {told}"
        for plans in batches:
            self.check_batch(plans)

    def check_batch(self, plans: list[SectionPlan]) -> None:
        partitions = [p.partition for p in plans]
        assert plans and len(set(partitions)) == len(partitions), (
            f"a batch with sections of partitions {partitions} was acknowledged"
        )
        for plan in plans:
            behind = self.through.get(plan.partition, 0)
            assert plan.first > behind, (
                f"partition {plan.partition}: a section from {plan.first} on was taken behind one through {behind}"
            )
            self.through[plan.partition] = plan.through


def packed_frame(source: Random, payload: bytes, number: int, count: int) -> bytes:
    """As lz4 packs it; the unpacked length may be a lie."""
    from records import FRAME, MAGIC

    packed = lz4.block.compress(payload, store_size=False) if source.random() < 0.9 else source.randbytes(40)
    raw = odd_number(source, len(payload), 27) if source.random() < 0.1 else len(payload)
    whole = bytearray(_core.pack_frame(BATCH, packed, number, count))
    head = FRAME.pack(MAGIC, BATCH, 1, 0, len(packed), 0, raw, count, number)
    whole[:32] = head
    whole[12:16] = _core.crc32c(head + packed).to_bytes(4, "little")
    return bytes(whole)


def run(source: Random) -> None:
    receiver = Receiver(source)
    receiver.session.receive_data(b"".join(frame(source, REGION, name, n) for n, name in NAMES))
    for _ in range(source.choice((3, 10, 30))):
        receiver.step()


assert UPDATE == 1
