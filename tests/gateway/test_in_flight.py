"""What is on its way to a receiver, and what an acknowledgement does to the queue (`InFlight`, `Settlement`), compared
with a plain model: batches of events, of which a prefix is acknowledged, refused, or lost with the connection."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pywan import _core
from pywan.errors import ProtocolError
from support.records import BATCH, FRAME_ACK, check_ledger, read_batch, split_frames

PARTITIONS = 2
REASONS = 8
LATENCY_US = 1_000
_names = itertools.count()


@dataclass
class Batch:
    events: list[tuple[int, int]]  # (partition, sequence), as they were sent.
    bytes: int


class InFlightMachine(RuleBasedStateMachine):
    @initialize(batch_size=st.integers(1, 4), asks=st.booleans())
    def begin(self, batch_size, asks):
        self.queue = _core.EventQueue("ln", remote_site=2, partitions=PARTITIONS, dispatchers=1)
        self.queue.running = True
        self.region = _core.RegionCore(f"flight{next(_names)}", _core.Clock(), site=1)
        self.region.attach([self.queue])
        self.parked_queue = _core.EventQueue("parked", partitions=REASONS)
        self.told, self.acknowledged = [], []
        self.places = {}  # (partition, sequence) of each key.
        self.session = _core.DispatcherSession(
            self.queue,
            0,
            self.parked_queue,
            filters=_core.EventFilters(after_acknowledgement=[self.note_acknowledged]) if asks else None,
            on_failure=lambda *what: self.told.append(what[:3]),
        )
        self.session.configure(batch_size, -1)
        self.session.flush(True)
        self.asks, self.batch_size, self.now_us, self.keys = asks, batch_size, 1, 0
        self.waiting = {number: [] for number in range(PARTITIONS)}  # Sequences that are in the queue.
        self.ever_sent, self.failed, self.delivered = set(), [], []
        self.connect(1000, 1 << 20)

    def note_acknowledged(self, event):
        self.acknowledged.append(self.places[event.key])

    def connect(self, credit_events, credit_bytes):
        self.session.connected(credit_events, credit_bytes, self.now_us)
        self.credit_events, self.next_id, self.oldest_id = credit_events, 0, 0
        self.flight: list[Batch] = []
        self.last_sent = dict.fromkeys(range(PARTITIONS), 0)
        self.sent_before = set(self.ever_sent)

    def appended(self):
        return [appended for _, _, appended in self.queue.positions()]

    def bytes_in_flight(self):
        return sum(batch.bytes for batch in self.flight)

    def events_in_flight(self):
        return [event for batch in self.flight for event in batch.events]

    @rule(size=st.integers(0, 3000))
    def put(self, size):
        self.keys += 1
        before = self.appended()
        self.region.put(b"key%d" % self.keys, bytes(size))
        (number,) = (n for n in range(PARTITIONS) if self.appended()[n] != before[n])
        self.waiting[number].append(self.appended()[number])
        self.places[b"key%d" % self.keys] = number, self.appended()[number]

    @rule()
    def send(self):
        """Each batch leaves only if there was room for it, holds what comes next, and has the next number."""
        while True:
            has_room = not self.flight or (
                len(self.events_in_flight()) < self.credit_events
                and self.bytes_in_flight() < self.session.flow(self.now_us)["window_bytes"]
            )
            unsent = {n: [s for s in self.waiting[n] if s > self.last_sent[n]] for n in self.waiting}
            frames = split_frames(self.session.data_to_send(self.now_us))
            batches = [frame for frame in frames if frame.type == BATCH]
            for frame in batches:
                assert has_room and frame.id == self.next_id
                batch = Batch([], len(frame.payload))
                for section in read_batch(frame.payload):
                    for record in section.records:
                        event = section.partition, record.sequence
                        assert record.sequence == unsent[section.partition].pop(0)
                        assert record.possible_duplicate == (event in self.sent_before)
                        batch.events.append(event)
                    self.last_sent[section.partition] = section.through
                assert 0 < len(batch.events) <= self.batch_size
                self.ever_sent.update(batch.events)
                self.flight.append(batch)
                self.next_id += 1
                has_room = len(self.events_in_flight()) < self.credit_events and (
                    self.bytes_in_flight() < self.session.flow(self.now_us)["window_bytes"]
                )
            if not frames:
                break
        assert not (has_room and any(unsent.values()))

    def acknowledge(self, through, failures, credit_events, credit_bytes):
        """`failures`: (partition, sequence, reason). The batches of this connection up to id `through`."""
        payload = struct.pack("<IIQ", credit_events, len(failures), credit_bytes) + b"".join(
            struct.pack("<IIQ", partition, reason, sequence) for partition, sequence, reason in failures
        )
        self.session.receive_data(_core.pack_frame(FRAME_ACK, payload, through, 10), self.now_us)

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), credit_events=st.integers(1, 12), credit_bytes=st.sampled_from([1, 2_000, 1 << 20]))
    def receive(self, data, credit_events, credit_bytes):
        """What was applied leaves the queue; what failed is parked, and told once, in order."""
        self.now_us += LATENCY_US
        count = data.draw(st.integers(1, len(self.flight)), "batches")
        events = [event for batch in self.flight[:count] for event in batch.events]
        reasons = st.integers(1, REASONS - 1)
        failures = [(*event, data.draw(reasons)) for event in events if data.draw(st.integers(0, 3)) == 0]
        self.acknowledge(self.oldest_id + count - 1, failures, credit_events, credit_bytes)
        failing = {(partition, sequence) for partition, sequence, _ in failures}
        for partition, sequence in events:
            self.waiting[partition].remove(sequence)
        self.failed += failures
        self.delivered += [event for event in events if event not in failing]
        self.credit_events, self.oldest_id = credit_events, self.oldest_id + count
        del self.flight[:count]

    @rule(data=st.data())
    def receive_nonsense(self, data):
        """An acknowledgement of what was not sent, or of failures that are not in order, changes nothing."""
        events = self.events_in_flight()
        unknown = (PARTITIONS, 1, 1)
        wrong = [(self.next_id, []), (self.next_id + 7, [])]
        if self.flight:
            wrong.append((self.next_id - 1, [unknown]))
            wrong.append((self.next_id - 1, [(*events[-1], 1), (*events[-1], 1)]))
        through, failures = data.draw(st.sampled_from(wrong))
        with pytest.raises(ProtocolError):
            self.acknowledge(through, failures, 5, 1 << 20)
        self.reconnect(5, 1 << 20)

    @rule(credit_events=st.integers(1, 12), credit_bytes=st.sampled_from([1, 2_000, 1 << 20]))
    def reconnect(self, credit_events, credit_bytes):
        self.now_us += LATENCY_US
        self.session.disconnected()
        assert self.session.in_flight == 0
        self.connect(credit_events, credit_bytes)

    @invariant()
    def the_numbers_are_those_of_the_model(self):
        flow = self.session.flow(self.now_us)
        assert self.session.in_flight == len(self.flight)
        assert flow["events_in_flight"] == len(self.events_in_flight())
        assert flow["bytes_in_flight"] == self.bytes_in_flight()
        counts = self.queue.counts()
        assert len(self.queue) == sum(map(len, self.waiting.values()))
        assert counts["parked"] == len(self.parked_queue) == len(self.failed)
        assert counts["distributed"] == len(self.delivered)
        check_ledger(counts)

    @invariant()
    def users_receive_each_event_once(self):
        assert self.told == self.failed
        assert self.acknowledged == (self.delivered if self.asks else [])


class TestInFlight(InFlightMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None, print_blob=True)


def test_what_is_in_flight_stays_in_order_when_its_ring_grows_in_its_middle():
    """The ring has room for 64 batches at first. It grows when the oldest batch is not in its first place."""
    machine = InFlightMachine()
    machine.begin(batch_size=1, asks=True)
    for through, more in ((None, 40), (29, 300), (150, 200), (539, 0)):
        if through is not None:
            acknowledged = machine.events_in_flight()[: through + 1 - machine.oldest_id]
            machine.acknowledge(through, [], 1000, 1 << 20)
            machine.delivered += acknowledged
            for partition, sequence in acknowledged:
                machine.waiting[partition].remove(sequence)
            del machine.flight[: len(acknowledged)]
            machine.oldest_id = through + 1
        for _ in range(more):
            machine.put(10)
        machine.send()
        machine.the_numbers_are_those_of_the_model()
        machine.users_receive_each_event_once()
    assert machine.next_id == 540 and not machine.flight
