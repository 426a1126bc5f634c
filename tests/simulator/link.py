"""Owns what connects two sites of the simulation: a queue with its dispatchers, the receiver and what it remembers,
connections, and what must be true of them: nothing that was acknowledged is lost, nothing is applied twice while the
receiver remembers, order per key, positions, and the ledger."""

from __future__ import annotations

import random
from operator import itemgetter
from typing import Any

from pywan import _core
from pywan.errors import DiskError, ProtocolError, QueueFullError

from .network import Pipe

REGION = "simulated"
KEYS = [f"k{n}" for n in range(12)]
SECRET_KEYS = ["s0", "s1"]  # Refused by filters where a link has one.
POISON_KEYS = ["p0", "p1"]  # Fail at receivers until the end.
POISONED = 4
CREATE, UPDATE, DESTROY = 0, 1, 2
RECEIVE_TIMEOUT_US = 2_000_000
_WENT = itemgetter(
    "events",
    "distributed",
    "conflated",
    "conflated_batch",
    "filtered_transmit",
    "parked",
    "dropped_cleared",
    "dropped_oldest",
    "restamped",
)
_CAME = itemgetter("not_queued", "not_queued_loop", "filtered_enqueue", "withheld", "dropped_stopped", "dropped_newest")


def must(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _placed(record: bytes, place: tuple[int, int, bool]) -> dict[str, Any]:
    """A record's fields with its place, which a receiver is told beside it."""
    fields = _core.record_fields(record)
    return {
        **fields,
        "partition": place[0],
        "sequence": place[1],
        "possible_duplicate": place[2],
        "place": place[3],
    }


class Failure(AssertionError):
    """A promise was broken. The error says which seed repeats it and what happened before."""


class Receiver:
    """A site that receives: its region, what it remembers of each link, and everything it ever applied."""

    def __init__(self, site: int, watched: bool):
        self.site = site
        self.core = _core.RegionCore(REGION, _core.Clock(), site=site)
        self.watched = watched  # Its applications go through Python and are recorded one by one.
        if watched:
            self.core.set_callback_path(lambda *change: None)
        self.counts = _core.ReceiverCounts()
        self.poisoned = True

    def find_region(self, name: str) -> Any:
        return self.core if name == REGION else None


class Remembered:
    """What a receiver knows of a queue under one identity, and the events that were applied since then."""

    def __init__(self, partitions: int, name: str):
        self.memory = _core.SourceMemory(partitions, None, name)
        self.applied: dict[tuple[int, int], tuple[str, tuple[int, int]]] = {}  # (partition, sequence) -> key, version
        self.last_of_key: dict[str, tuple[int, int]] = {}
        self.mount = 0  # That connected last.

    def begin_mount(self, mount: int) -> None:
        """As a receiver does when another mount comes."""
        self.mount = mount
        forgotten = self.memory.forget_passed_over()
        self.applied = {place: event for place, event in self.applied.items() if place[0] not in forgotten}
        self.last_of_key = {key: place for key, place in self.last_of_key.items() if place[0] not in forgotten}


class Link:
    """A queue at one site for another, the dispatchers that serve it, and the receiver's memory of it."""

    def __init__(self, rng: random.Random, site: int, receiver: Receiver):
        self.rng, self.receiver = rng, receiver
        self.partitions, self.dispatchers = rng.choice((1, 2, 5)), rng.choice((1, 1, 2))
        self.conflate, self.filters = rng.random() < 0.3, rng.random() < 0.4
        self.name = f"{site}->{receiver.site}"
        self.openings = 0  # How often the queue was opened.
        self.line = 0  # How often its disk was put back to a copy: from there on sequences stand for other events.
        self.batch_conflation = rng.random() < 0.3
        self.remembered: dict[int, Remembered] = {}  # By identity.
        # (place, (key, version)), whatever the receiver remembers.
        self.ever_applied: set[tuple[tuple[int, int], Any]] = set()
        self.ever_failed: set[tuple[tuple[int, int], Any]] = set()
        self.open()
        self.connections: list[Connection | None] = [None] * self.dispatchers
        self.events: dict[tuple[int, int], tuple[str, int]] = {}  # (partition, sequence) -> key, operation
        self.last_update: dict[tuple[int, str], int] = {}  # (partition, key) -> sequence of its newest update
        self.applied: set[tuple[int, int]] = set()  # Ever.
        self.excused: set[tuple[int, int]] = set()  # Filtered or parked.
        self.conflated: set[tuple[int, int]] = set()  # Replaced by a newer update; may yet arrive, late and harmless.
        self.removed_before = [0] * self.partitions  # Looked at up to here.
        # Broken promises that `apply` saw. An exception there would be taken for a failed event.
        self.wrong: list[str] = []

    def open(self) -> None:
        """The queue, its parked events and its dispatchers."""
        self.openings += 1
        self.queue, self.parked = self.open_queues()
        self.queue.running = True
        self.sessions = [
            _core.DispatcherSession(
                self.queue,
                n,
                self.parked,
                filters=_core.EventFilters(before_transmit=[self._filter]) if self.filters else None,
                on_failure=self._on_failure,
            )
            for n in range(self.dispatchers)
        ]
        for session in range(self.dispatchers):
            self.configure(session)

    def open_queues(self) -> tuple[Any, Any]:
        return _core.EventQueue(self.name, **self.options), _core.EventQueue("parked", partitions=8)

    @property
    def known(self) -> Remembered:
        """What the receiver knows of the queue under its present identity."""
        return self.remembered.setdefault(
            self.queue.numbering, Remembered(self.partitions, f"{self.name}/{self.queue.numbering:x}")
        )

    @property
    def options(self) -> dict[str, Any]:
        return {
            "remote_site": self.receiver.site,
            "partitions": self.partitions,
            "dispatchers": self.dispatchers,
            "conflate": self.conflate,
        }

    def configure(self, n: int) -> None:
        self.sessions[n].configure(
            self.rng.choice((1, 3, 10, 100)),
            self.rng.choice((-1, 0, 5, 50)),
            batch_conflation=self.batch_conflation,
            compress=self.rng.random() < 0.4,
        )

    def note_change(self, key: str, operation: int, before: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Remembers the event of one change, if it was queued since `before` was taken. Returns the positions now."""
        after = self.queue.positions()
        for partition, (old, new) in enumerate(zip(before, after, strict=True)):
            for sequence in range(old[2] + 1, new[2] + 1):
                # Otherwise it was queued while the change waited, and is noted already.
                if (
                    partition,
                    sequence,
                ) not in self.events:
                    self.note(partition, sequence, key, operation)
        return after

    def note(
        self, partition: int, sequence: int, key: str, operation: int, version: tuple[int, int] | None = None
    ) -> None:
        self.events[partition, sequence] = key, operation
        if operation == UPDATE:
            self.last_update[partition, key] = max(sequence, self.last_update.get((partition, key), 0))

    def replay_parked(self, force: bool = False) -> int | str:
        before = self.queue.positions()
        try:
            return self.parked.replay_into(self.queue, force=force)
        except (QueueFullError, DiskError) as error:
            return str(error)
        finally:
            self._note_replayed(before)

    def _note_replayed(self, before: list[tuple[int, int, int]]) -> None:
        after = self.queue.positions()
        if all(a[2] == b[2] for a, b in zip(after, before, strict=True)):
            return
        for partition, sequence, record in self.queue.records(1 << 30):
            fields = _core.record_fields(record)
            if sequence > before[partition][2]:
                self.note(
                    partition,
                    sequence,
                    fields["key"][1].decode(),
                    fields["operation"],
                    (fields["stamp"], fields["stamp_site"]),
                )

    def _filter(self, event: _core.GatewayQueueEvent) -> bool:
        if event.key not in SECRET_KEYS:
            return True
        for partition, sequence, record in self.queue.records(1 << 30):
            if _core.record_fields(record)["event_id"] == event.event_id:
                self.excused.add((partition, sequence))
        return False

    def _on_failure(self, partition: int, sequence: int, reason: int, event: object) -> None:
        if reason == 0xFFFF:
            raise Failure("no room to park")
        self.excused.add((partition, sequence))

    def apply(self, core: Any, fields: dict[str, Any], connection: Connection) -> int:
        """The receiver's slow way in: checks what is applied against what was."""
        key, place = fields["key"][1].decode(), (fields["partition"], fields["sequence"])
        if self.receiver.poisoned and key in POISON_KEYS:
            return POISONED
        if fields["place"] is None:
            return self.apply_ahead(core, fields, connection)
        if place in connection.known.applied:
            self.wrong.append(f"{place} of key {key} was applied twice")
        if place[1] <= self.removed_before[place[0]] and place not in self.conflated:
            self.wrong.append(f"{place} of key {key} was applied after it was settled")
        if connection.known.last_of_key.get(key, (place[0], 0)) >= place:
            self.wrong.append(f"{place} of key {key} was applied after {connection.known.last_of_key[key]}")
        if self.events.get(place, (key,))[0] != key:
            self.wrong.append(f"{place} is of key {self.events[place][0]} and arrived as {key}")
        value = None if fields["operation"] == DESTROY else fields["value"][1].decode()
        self.change_receiver(core, key, value, fields, connection)
        self.applied.add(place)
        connection.known.applied[place] = event = key, (fields["stamp"], fields["stamp_site"])
        self.ever_applied.add((place, event))
        connection.known.last_of_key[key] = place
        return 0

    def apply_ahead(self, core: Any, fields: dict[str, Any], connection: Connection) -> int:
        """A destroy that makes room: an event before it was refused. It comes again in its place, as all behind that
        event do."""
        key = fields["key"][1].decode()
        if fields["operation"] != DESTROY:
            self.wrong.append(f"an event of key {key} that destroys nothing was applied out of its order")
        self.change_receiver(core, key, None, fields, connection)
        return 0

    def change_receiver(
        self, core: Any, key: str, value: str | None, fields: dict[str, Any], connection: Connection
    ) -> str:
        return core.change(
            fields["operation"],
            key,
            value,
            decisions=(),
            version=(fields["stamp"], fields["stamp_site"]),
            origin_=(
                fields["origin_site"],
                fields["recipients"],
                fields["event_id"],
                fields["possible_duplicate"],
                0,
                None,
                fields["place"],
            ),
        )

    def forget(self) -> None:
        """The receiver's member is replaced by one that never heard of this link."""
        self.remembered.clear()

    def on_floors(self, data: bytes) -> None:
        """The floor that the sender told: nothing older can come."""

    def check(self) -> None:
        counts = self.queue.counts()
        went, came = sum(_WENT(counts)), sum(_CAME(counts))
        if counts["queued"] != went or counts["received"] != counts["queued"] + came:
            raise AssertionError(f"ledger: {counts}")  # Said only then: this comes after every step of every link.
        must(not self.wrong, "; ".join(self.wrong))
        for partition, (removed, peeked, appended) in enumerate(self.queue.positions()):
            if not self.removed_before[partition] <= removed <= peeked <= appended:
                raise AssertionError(
                    f"positions of partition {partition}: {removed}, {peeked}, {appended}; removed was "
                    f"{self.removed_before[partition]}"
                )
            for sequence in range(self.removed_before[partition] + 1, removed + 1):
                self._check_removed(partition, sequence)
            self.removed_before[partition] = removed

    def _check_removed(self, partition: int, sequence: int) -> None:
        place = partition, sequence
        key, operation = self.events.get(place, (None, None))  # None: it was conflated before anybody looked.
        newest = self.last_update.get((partition, key), 0)
        replaced = (self.conflate or self.batch_conflation) and (
            key is None or (operation == UPDATE and newest > sequence)
        )
        if replaced:
            self.conflated.add(place)
        if place in self.excused or not self.receiver.watched or place in self.applied:
            return
        must(replaced, f"{place} of key {key} was acknowledged and neither applied nor filtered, parked or conflated")


class Connection:
    """A dispatcher's session and the receiver's over two pipes. The receiver's end may outlive the dispatcher's."""

    def __init__(self, rng: random.Random, link: Link, dispatcher: int, now_us: int):
        latency_us = rng.choice((10, 1000, 50_000))
        self.link, self.dispatcher = link, link.sessions[dispatcher]
        self.out, self.back = Pipe(rng, latency_us), Pipe(rng, latency_us)
        self.known, self.mount = link.known, link.queue.mount
        self.receiver = _core.ReceiverSession(
            self.known.memory,
            link.receiver.counts,
            link.receiver.find_region,
            lambda core, record, place: link.apply(core, _placed(record, place), self),
            max_drift_ms=1 << 40,
            mount=self.mount,
            on_floors=link.on_floors,
        )
        self.openings, self.line = link.openings, link.line
        credit = rng.choice(((1_000_000, 64 << 20), (1_000_000, 64 << 20), (5, 1 << 20), (0, 0)))
        self.dispatcher.connected(*credit, now_us)
        self.receiver_open = True
        self.last_received_us = now_us

    def pump(self, now_us: int) -> None:
        """Carries the bytes of both ends to the other one. ProtocolError: the dispatcher gives up."""
        while data := self.dispatcher.data_to_send(now_us):
            self.out.send(data, now_us)
        self.pump_receiver(now_us)
        if not self.dispatcher.in_flight:
            self.last_received_us = now_us
        for piece in self.back.arrivals(now_us):
            self.last_received_us = now_us
            self.dispatcher.receive_data(piece, now_us)
        if now_us - self.last_received_us > RECEIVE_TIMEOUT_US:
            # As the loop around the session says: a damaged length can make it wait for ever.
            raise ProtocolError("no answer")
        if not self.receiver_open and not len(self.back):
            raise ProtocolError("the receiver closed the connection")

    def send_back(self, now_us: int) -> None:
        try:
            while data := self.receiver.data_to_send(now_us):
                self.back.send(data, now_us)
        except (ProtocolError, QueueFullError):  # A log here did not take the events, so they are not acknowledged.
            self.receiver_open = False

    def pump_receiver(self, now_us: int) -> None:
        for piece in self.out.arrivals(now_us):
            if not self.receiver_open:
                return
            try:
                self.receiver.receive_data(piece, now_us)
            except (ProtocolError, QueueFullError):
                self.receiver_open = False
            self.send_back(now_us)
        self.send_back(now_us)
