"""Fuzzes a dispatcher's session: acknowledgements, progress and rewinds whose batches, counts, partitions and sequences
are wrong.

Whatever comes: the connection goes on or ends with a ProtocolError, each event is in the queue, distributed, or parked
once, and the ledger balances.
"""

from __future__ import annotations

import itertools
from random import Random

from pywan import _core
from pywan.errors import ProtocolError
from support.records import PONG, REWIND, check_ledger, read_batch, split_frames

from .grammar import ACK, BATCH, FAILURE, FRAME_ACK, frame, odd_number

PARTITIONS = 4
_names = itertools.count()


class Sender:
    """A queue with one dispatcher, over one connection after another."""

    def __init__(self, source: Random) -> None:
        self.source = source
        self.queue = _core.EventQueue(
            "fuzz", remote_site=2, partitions=PARTITIONS, dispatchers=1, conflate=source.random() < 0.5
        )
        self.queue.running = True
        self.region = _core.RegionCore(f"fuzz-sender{next(_names)}", _core.Clock(), site=1, stores=False)
        self.region.attach([self.queue])
        self.parked = _core.EventQueue("parked", partitions=8)
        filters = _core.EventFilters(after_acknowledgement=[lambda event: None]) if source.random() < 0.3 else None
        self.session = _core.DispatcherSession(self.queue, 0, self.parked, filters=filters)
        self.session.configure(source.choice((1, 3, 10)), -1, batch_conflation=source.random() < 0.3)
        self.now = 1
        self.puts = 0
        self.connect()

    def connect(self) -> None:
        self.session.connected(odd_number(self.source, 100, 32), odd_number(self.source, 1 << 20), self.now)
        self.sent: dict[int, list[tuple[int, int]]] = {}

    def step(self) -> None:
        source = self.source
        self.now += source.randrange(1, 100_000)
        for _ in range(source.choice((0, 1, 5, 40))):
            self.region.put(source.randrange(8), b"v")
            self.puts += 1
        for _ in range(source.choice((0, 1, 4))):
            for sent in split_frames(self.session.data_to_send(self.now)):
                if sent.type == BATCH:
                    self.sent[sent.id] = [
                        (s.partition, r.sequence) for s in read_batch(sent.payload) for r in s.records
                    ]
        data = b"".join(self.answer() for _ in range(source.choice((0, 1, 1, 3))))
        try:
            self.session.receive_data(data, self.now)
        except ProtocolError:
            self.session.disconnected()
            self.connect()
        counts = self.queue.counts()
        check_ledger(counts)
        assert counts["parked"] == len(self.parked) <= self.puts, (counts["parked"], len(self.parked), self.puts)

    def answer(self) -> bytes:
        source = self.source
        kind = source.random()
        if kind < 0.1:
            return frame(
                source,
                source.choice((REWIND, PONG, 1, 10, 12, 13, 14)),
                b"x" * source.choice((0, 0, 3, 16)),
                odd_number(source),
            )
        oldest = min(self.sent, default=0)
        number = odd_number(source, oldest) if kind < 0.2 else oldest + source.choice((0, 0, 0, 1, 5))
        carried = [event for batch in sorted(self.sent) if batch <= number for event in self.sent[batch]]
        for batch in [batch for batch in self.sent if batch <= number]:
            del self.sent[batch]
        failures = [(p, source.randrange(1, 6), s) for p, s in carried if source.random() < 0.2]
        if failures and source.random() < 0.3:
            at = source.randrange(len(failures))
            kind = source.randrange(5)
            if kind == 0:
                failures.insert(at, failures[at])
            elif kind == 1:
                failures[at] = (
                    odd_number(source, failures[at][0], 32),
                    odd_number(source, 3, 32),
                    odd_number(source, failures[at][2]),
                )
            elif kind == 2:
                source.shuffle(failures)
            elif kind == 3:
                failures *= source.choice((2, 100))
            else:
                failures += [(p, 1, odd_number(source, 5)) for p in range(PARTITIONS)]
        count = odd_number(source, len(failures), 32) if source.random() < 0.05 else len(failures)
        payload = ACK.pack(odd_number(source, 1000, 32), count, odd_number(source, 1 << 20)) + b"".join(
            FAILURE.pack(*f) for f in failures
        )
        return frame(source, FRAME_ACK, payload, number, odd_number(source, 100, 32))


def run(source: Random) -> None:
    sender = Sender(source)
    for _ in range(source.choice((5, 20, 60))):
        sender.step()
