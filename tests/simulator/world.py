"""Owns a simulated world: sites that change their regions, links that carry the changes, and what must be true after
every step: nothing that was acknowledged is lost, nothing is applied twice while the receiver remembers, order per key,
positions, and the ledger."""
from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any, Callable

from pywan import _core
from pywan.errors import ProtocolError, QueueFullError

from .network import Pipe

REGION = "simulated"
KEYS = [f"k{n}" for n in range(12)]
SECRET_KEYS = ["s0", "s1"]           # Refused by filters where a link has one.
POISON_KEYS = ["p0", "p1"]           # Fail at receivers until the end.
POISONED = 4
CREATE, UPDATE, DESTROY = 0, 1, 2
TRACE = 40


class Failure(AssertionError):
    """What must be true was not; says which seed repeats it and what happened before."""


class Receiver:
    """A site that receives: its region, what it remembers of each link, and everything it ever applied."""

    def __init__(self, site: int, watched: bool):
        self.site = site
        self.core = _core.RegionCore(REGION, _core.Clock(), site=site)
        self.watched = watched      # Its applications go through Python and are recorded one by one.
        if watched:
            self.core.set_slow(lambda *change: None)
        self.counts = _core.ReceiverCounts()
        self.poisoned = True

    def find_region(self, name: str) -> Any:
        return self.core if name == REGION else None


class Link:
    """A queue at one site for another, the dispatchers that serve it, and the receiver's memory of it."""

    def __init__(self, rng: random.Random, site: int, receiver: Receiver):
        self.rng, self.receiver = rng, receiver
        self.partitions, self.dispatchers = rng.choice((1, 2, 5)), rng.choice((1, 1, 2))
        self.conflate, self.filters = rng.random() < 0.3, rng.random() < 0.4
        self.queue = _core.EventQueue(f"{site}->{receiver.site}", remote_site=receiver.site, partitions=self.partitions,
                                      dispatchers=self.dispatchers, conflate=self.conflate)
        self.queue.running = True
        self.parked = _core.EventQueue("parked", partitions=8)
        self.batch_conflation = rng.random() < 0.3
        self.memory = _core.SourceMemory(self.partitions)
        self.sessions = [_core.DispatcherSession(self.queue, n, self.parked, transmit_filter=self._filter if self.filters else None,
                                                 on_failure=self._on_failure) for n in range(self.dispatchers)]
        self.connections: list[Connection | None] = [None] * self.dispatchers
        self.events: dict[tuple[int, int], tuple[str, int]] = {}    # (partition, sequence) -> key, operation
        self.last_update: dict[tuple[int, str], int] = {}           # (partition, key) -> sequence of its newest update
        self.applied: set[tuple[int, int]] = set()                  # Ever.
        self.applied_since: set[tuple[int, int]] = set()            # Since the receiver lost its memory.
        self.last_of_key: dict[str, tuple[int, int]] = {}           # In the same time.
        self.excused: set[tuple[int, int]] = set()                  # Filtered or parked.
        self.conflated: set[tuple[int, int]] = set()                # Replaced by a newer update; may yet arrive, late and harmless.
        self.settled = [0] * self.partitions                        # Looked at up to here.
        self.wrong: list[str] = []      # What `apply` saw that cannot be: an exception there would be taken for a failed event.
        for session in range(self.dispatchers):
            self.configure(session)

    def configure(self, n: int) -> None:
        self.sessions[n].configure(self.rng.choice((1, 3, 10, 100)), self.rng.choice((-1, 0, 5, 50)), batch_conflation=self.batch_conflation,
                                   compress=self.rng.random() < 0.4)

    def note_change(self, key: str, operation: int, before: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Remembers the event of one change, if it was queued since `before` was taken. Returns the positions now."""
        after = self.queue.positions()
        for partition, (old, new) in enumerate(zip(before, after)):
            if new[2] > old[2]:
                self.events[partition, new[2]] = key, operation
                if operation == UPDATE:
                    self.last_update[partition, key] = new[2]
        return after

    def note_replayed(self, before: list[tuple[int, int, int]]) -> None:
        """Remembers what came back from the parked events since `before` was taken."""
        after = self.queue.positions()
        if all(a[2] == b[2] for a, b in zip(after, before)):
            return
        for partition, record in self.queue.records(1 << 30):
            fields = _core.record_fields(record)
            place = partition, fields["sequence"]
            if fields["sequence"] > before[partition][2]:
                key = fields["key"][1].decode()
                self.events[place] = key, fields["operation"]
                if fields["operation"] == UPDATE:
                    self.last_update[partition, key] = fields["sequence"]

    def _filter(self, records: list[bytes]) -> list[bool]:
        verdicts = []
        for record in records:
            fields = _core.record_fields(record)
            refused = fields["key"][1].decode() in SECRET_KEYS
            verdicts.append(not refused)
            if refused:
                self.excused.add((fields["partition"], fields["sequence"]))
        return verdicts

    def _on_failure(self, partition: int, sequence: int, reason: int) -> None:
        if reason == 0xffff:
            raise Failure("no room to park")
        self.excused.add((partition, sequence))

    def apply(self, core: Any, record: bytes) -> int:
        """The receiver's slow way in: checks what is applied against what was."""
        fields = _core.record_fields(record)
        key, place = fields["key"][1].decode(), (fields["partition"], fields["sequence"])
        if self.receiver.poisoned and key in POISON_KEYS:
            return POISONED
        if place in self.applied_since:
            self.wrong.append(f"{place} of key {key} was applied twice")
        if fields["sequence"] <= self.settled[fields["partition"]] and place not in self.conflated:
            self.wrong.append(f"{place} of key {key} was applied after it was settled")
        if self.last_of_key.get(key, (place[0], 0)) >= place:
            self.wrong.append(f"{place} of key {key} was applied after {self.last_of_key[key]}")
        if self.events.get(place, (key,))[0] != key:
            self.wrong.append(f"{place} is of key {self.events[place][0]} and arrived as {key}")
        self.applied.add(place)
        self.applied_since.add(place)
        self.last_of_key[key] = place
        value = None if fields["operation"] == DESTROY else fields["value"][1].decode()
        core.change(fields["operation"], key, value, version=(fields["stamp"], fields["stamp_site"]),
                    origin_=(fields["origin_site"], fields["recipients"], fields["event_id"]))
        return 0

    def forget(self) -> None:
        """The receiver's member is replaced by one that never heard of this link."""
        self.memory = _core.SourceMemory(self.partitions)
        self.applied_since.clear()
        self.last_of_key.clear()

    def check(self) -> None:
        counts = self.queue.counts()
        went = sum(counts[n] for n in ("distributed", "conflated", "conflated_batch", "filtered_transmit", "parked", "dropped_cleared"))
        came = sum(counts[n] for n in ("not_queued", "not_queued_loop", "filtered_enqueue", "dropped_stopped"))
        _must(counts["queued"] == went + counts["events"] and counts["received"] == counts["queued"] + came, f"ledger: {counts}")
        _must(not self.wrong, "; ".join(self.wrong))
        for partition, (removed, peeked, appended) in enumerate(self.queue.positions()):
            _must(removed <= peeked <= appended, f"positions of partition {partition}: {removed}, {peeked}, {appended}")
            _must(removed >= self.settled[partition], f"partition {partition} went back from {self.settled[partition]} to {removed}")
            for sequence in range(self.settled[partition] + 1, removed + 1):
                self._check_settled(partition, sequence)
            self.settled[partition] = removed

    def _check_settled(self, partition: int, sequence: int) -> None:
        place = partition, sequence
        key, operation = self.events.get(place, (None, None))      # None: it was conflated before anybody looked.
        newest = self.last_update.get((partition, key), 0)
        replaced = (self.conflate or self.batch_conflation) and (key is None or operation == UPDATE and newest > sequence)
        if replaced:
            self.conflated.add(place)
        if place in self.excused or not self.receiver.watched or place in self.applied:
            return
        _must(replaced, f"{place} of key {key} was acknowledged and neither applied nor filtered, parked or conflated")


class Connection:
    """A dispatcher's session and the receiver's over two pipes. The receiver's end may outlive the dispatcher's."""

    def __init__(self, rng: random.Random, link: Link, dispatcher: int, now_us: int):
        latency_us = rng.choice((10, 1000, 50_000))
        self.link, self.dispatcher = link, link.sessions[dispatcher]
        self.out, self.back = Pipe(rng, latency_us), Pipe(rng, latency_us)
        self.receiver = _core.ReceiverSession(link.memory, link.receiver.counts, link.receiver.find_region, link.apply,
                                              max_drift_ms=1 << 40)
        self.memory = link.memory
        credit = rng.choice(((1_000_000, 64 << 20), (1_000_000, 64 << 20), (5, 1 << 20), (0, 0)))
        self.dispatcher.connected(*credit, now_us)
        self.receiver_open = True

    def pump(self, now_us: int) -> None:
        """What the dispatcher has to say, and what arrives at either end. ProtocolError: the dispatcher gives up."""
        while data := self.dispatcher.data_to_send(now_us):
            self.out.send(data, now_us)
        self.pump_receiver(now_us)
        for piece in self.back.arrivals(now_us):
            self.dispatcher.receive_data(piece, now_us)
        if not self.receiver_open and not len(self.back):
            raise ProtocolError("the receiver closed the connection")

    def pump_receiver(self, now_us: int) -> None:
        for piece in self.out.arrivals(now_us):
            if not self.receiver_open:
                return
            try:
                self.receiver.receive_data(piece)
            except (ProtocolError, QueueFullError):
                self.receiver_open = False
            self.back.send(self.receiver.data_to_send(), now_us)


class World:
    """All of it, from one seed."""

    def __init__(self, seed: int):
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.now_us = 1_000_000
        watched = rng.random() < 0.8
        self.receivers = [Receiver(site, watched) for site in (8, 9)[:rng.choice((1, 1, 2))]]
        self.sites: dict[int, Any] = {}
        self.links: list[Link] = []
        for site in range(1, rng.choice((2, 3, 4))):
            core = _core.RegionCore(REGION, _core.Clock(), site=site, member=site)
            links = [Link(rng, site, receiver) for receiver in self.receivers]
            core.attach([link.queue for link in links])
            self.sites[site] = core
            self.links += links
        self.late: list[Connection] = []        # Given up by the dispatcher; the receiver may still take what arrives.
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.steps = 0
        self.statistics: dict[str, int] = defaultdict(int)

    def run(self, steps: int) -> None:
        """Random steps, then a quiet end in which everything must arrive. Failure says what was wrong, where, and before."""
        try:
            for _ in range(steps):
                self.step()
            self.end()
        except Failure:
            raise
        except AssertionError as error:
            past = "\n  ".join(self.trace)
            raise Failure(f"seed {self.seed}, step {self.steps}: {error}\nbefore that:\n  {past}\nrepeat: python -m tests.simulator --seed {self.seed}") from error

    def step(self) -> None:
        self.steps += 1
        doings: list[tuple[int, Callable[[], object]]] = [
            (40, self.change), (60, self.pump), (20, self.advance), (6, self.cut), (3, self.damage), (2, self.restart_receiver),
            (4, self.reconfigure), (2, self.replay_parked), (2, self.pause), (2, self.flush)]
        self.do(self.rng.choices([doing for _, doing in doings], [weight for weight, _ in doings])[0])

    def do(self, doing: Callable[[], object]) -> None:
        said = doing()
        self.statistics[doing.__name__] += 1
        self.trace.append(f"{self.steps} at {self.now_us} us: {doing.__name__} {said if said is not None else ''}")
        for link in self.links:
            link.check()

    # What may happen

    def change(self) -> str:
        site = self.rng.choice(list(self.sites))
        before = [link.queue.positions() for link in self.links]
        count = self.rng.choice((1, 1, 5, 30))
        for _ in range(count):
            key = self.rng.choice(KEYS * 4 + SECRET_KEYS + POISON_KEYS)
            now_ms = self.now_us // 1000
            core = self.sites[site]
            operation = DESTROY if self.rng.random() < 0.15 else UPDATE if key in core else CREATE
            if operation == DESTROY:
                core.put_columns([key], None, operations=["destroy"], timestamps=[now_ms])
            else:
                value = f"{site}:{self.steps}:" + "x" * self.rng.choice((0, 10, 300, 3000))
                core.put_columns([key], [value], timestamps=[now_ms])
            before = [link.note_change(key, operation, positions) for link, positions in zip(self.links, before)]
        return f"{count} at site {site}"

    def pump(self) -> None:
        for link in self.links:
            for n in range(link.dispatchers):
                self.pump_one(link, n)
        for connection in list(self.late):
            connection.pump_receiver(self.now_us)
            if not connection.receiver_open or not len(connection.out):
                self.late.remove(connection)

    def pump_one(self, link: Link, n: int) -> None:
        connection = link.connections[n]
        if connection is None:
            link.connections[n] = connection = Connection(self.rng, link, n, self.now_us)
        try:
            connection.pump(self.now_us)
        except ProtocolError:
            self.give_up(link, n)

    def give_up(self, link: Link, n: int) -> None:
        connection = link.connections[n]
        if connection is None:
            return
        link.sessions[n].disconnected()
        link.connections[n] = None
        connection.out.truncate()
        if connection.receiver_open and connection.memory is link.memory and self.rng.random() < 0.7:
            self.late.append(connection)

    def advance(self) -> None:
        self.now_us += self.rng.choice((100, 5_000, 60_000))

    def cut(self) -> str:
        link = self.rng.choice(self.links)
        n = self.rng.randrange(link.dispatchers)
        self.give_up(link, n)
        return f"{link.queue.name} dispatcher {n}"

    def damage(self) -> bool:
        link = self.rng.choice(self.links)
        connection = self.rng.choice(link.connections)
        return connection is not None and self.rng.choice((connection.out, connection.back)).damage()

    def restart_receiver(self) -> str:
        receiver, lost = self.rng.choice(self.receivers), self.rng.random() < 0.5
        for connection in [c for c in self.late if c.link.receiver is receiver]:
            self.late.remove(connection)
        for link in self.links:
            if link.receiver is not receiver:
                continue
            for connection in link.connections:
                if connection is not None:
                    connection.receiver_open = False        # The dispatcher finds out when it has read what was sent.
                    connection.back.truncate()
            if lost:
                link.forget()
        return f"site {receiver.site}{', memory lost' if lost else ''}"

    def reconfigure(self) -> None:
        link = self.rng.choice(self.links)
        link.configure(self.rng.randrange(link.dispatchers))

    def replay_parked(self) -> int:
        link = self.rng.choice(self.links)
        before = link.queue.positions()
        moved = link.parked.replay_into(link.queue)
        link.note_replayed(before)
        return moved

    def pause(self) -> None:
        self.rng.choice(self.rng.choice(self.links).sessions).pause(self.rng.random() < 0.3)

    def flush(self) -> None:
        self.rng.choice(self.rng.choice(self.links).sessions).flush(self.rng.random() < 0.5)

    # The end

    def end(self) -> None:
        for receiver in self.receivers:
            receiver.poisoned = False
        for link in self.links:
            for session in link.sessions:
                session.pause(False)
        for round_ in range(2000):
            self.do(self.advance)
            self.do(self.pump)
            if round_ % 10 == 0:
                for link in self.links:
                    before = link.queue.positions()
                    link.parked.replay_into(link.queue)
                    link.note_replayed(before)
            if not self.late and all(not len(link.queue) and not len(link.parked) and not any(s.in_flight for s in link.sessions) for link in self.links):
                break
        else:
            _must(False, "the end was never reached: " + ", ".join(
                f"{link.queue.name} holds {len(link.queue)}, parked {len(link.parked)}, in flight {[s.in_flight for s in link.sessions]}" for link in self.links))
        self.check_convergence()

    def check_convergence(self) -> None:
        """Every receiver holds, of every key, the latest version that any site made."""
        for receiver in self.receivers:
            for key in KEYS + POISON_KEYS:
                versions = [found for core in self.sites.values() if (found := core.lookup(key))]
                if not versions:
                    continue
                latest = max(versions, key=lambda found: found[1:3])
                held = receiver.core.lookup(key)
                _must(held == latest, f"site {receiver.site} holds {_short(held)} of {key}, and the latest is {_short(latest)}")
            for link in self.links:
                if link.receiver is receiver and link.filters and all(other.filters for other in self.links if other.receiver is receiver):
                    for key in SECRET_KEYS:
                        _must(receiver.core.lookup(key) is None, f"site {receiver.site} got the filtered key {key}")


def _short(found: Any) -> str:
    return repr(found)[:80]


def _must(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def run(seed: int, steps: int = 300) -> World:
    """One simulation; Failure if anything was not as it must be."""
    world = World(seed)
    world.run(steps)
    return world
