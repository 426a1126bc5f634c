"""Owns a simulated world whose machines have disks and clocks: queues and regions are persistent, machines stop, are
killed or lose power at any call to the disk and start again on what it kept; after that nothing that was reported
durable may be missing."""

from __future__ import annotations

import copy
import random
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.errors import DiskError, QueueFullError

from .link import CREATE, DESTROY, KEYS, POISON_KEYS, POISONED, SECRET_KEYS, UPDATE, Connection, Link, Receiver, must
from .machine import Copy, Machine, Version
from .world import World

FIRST_MS = 1_000_000_000_000  # When the simulation begins.
STREAM_PLACE = struct.Struct("<16sQQQ")  # Of an event in its stream: source, mount, sequence, partition.
COPIES_MAX = 4  # That are kept; the oldest goes.
MACHINES_MAX = 6  # With clones.
PENDING_MAX = (
    4  # Changes that wait for the disk at a site before its committer gets a turn; a full stage would hold them up.
)


class MachineReceiver(Receiver):
    """The receiver of a machine: its region is what the machine's process has now."""

    def __init__(self, machine: Machine):
        self.machine, self.site, self.watched = machine, machine.site, machine.watched
        self.counts = _core.ReceiverCounts()
        self.poisoned = True

    @property
    def core(self) -> Any:
        return self.machine.core


class LoggedLink(Link):
    """A persistent queue, and what has to be in it after a crash."""

    receiver: MachineReceiver

    def __init__(self, rng: random.Random, machine: Machine, receiver: MachineReceiver):
        self.machine = machine
        super().__init__(rng, machine.site, receiver)
        self.versions: dict[tuple[int, int], tuple[str, Version]] = {}  # The key and version of each event in `events`.
        self.newest: dict[str, Version] = defaultdict(lambda: (0, 0))  # The newest version of each key in `versions`.
        self.durable = [0] * self.partitions  # In the log up to here, as was said;
        self.synced = [0] * self.partitions  # and on the disk.
        self.checkpointed = [0] * self.partitions  # Removed, and the disk knows it.
        self.recovered_through = [0] * self.partitions  # Up to here events may have been sent by an earlier process.
        # The receiver knows it by the first; the second may be on the disk already.
        self.identity = self.wanted = self.queue.numbering
        self.may_tie = False  # Machines of one site may give one stamp to two changes.
        self.is_copied = False  # There is, or was, another store with these sequences.
        # The events that were queued, and are not in the copy that the disk was set back to.
        self.lost: dict[str, set[Version]] = defaultdict(set)
        # By the place of an event in the stream that it came by: its partition and sequence here.
        self.taken: dict[bytes, tuple[int, int]] = {}
        self.ever_recovered: dict[int, int] = {}  # By partition: up to here events were ever recovered.
        self.gives_way_to: LoggedLink | None = None
        machine.out.append(self)

    # Copies of its store

    STATE = (
        "events",
        "last_update",
        "applied",
        "excused",
        "conflated",
        "removed_before",
        "versions",
        "newest",
        "durable",
        "synced",
        "checkpointed",
        "recovered_through",
        "identity",
        "wanted",
        "taken",
    )

    def state(self) -> dict[str, Any]:
        return {name: copy.copy(getattr(self, name)) for name in self.STATE}

    def put_back(self, state: dict[str, Any]) -> None:
        """Its queue will have what `state` says, and events of other kinds under later sequences."""
        for key, version in self.versions.values():
            self.lost[key].add(version)
        for name, value in state.items():
            setattr(self, name, copy.copy(value))
        self.line += 1
        self.is_copied = True

    def is_own_past(self) -> bool:
        """Whether the receiver has only events that this queue sent. The sender asks this before it sends, as
        `GatewaySender._check_past` does. If not, the queue takes another identity."""
        if self.known.mount != self.queue.mount:
            self.known.begin_mount(self.queue.mount)
        foreign = [
            each
            for each in self.known.memory.known(self.queue.mount)
            if not self.queue.is_past(each[2], each[0], each[1], each[3])
        ]
        if not foreign:
            if self.is_copied:
                self._note_sent_by_copies()
            return True
        must(
            self.is_copied,
            f"the queue {self.name} does not know what it sent: (partition, last, mount, settled) {foreign[0]}",
        )
        if self.wanted == self.identity:
            self.wanted = self.rng.getrandbits(62) | 1
        try:
            self.queue.renew(self.queue.numbering, self.wanted, timeout=0)
        except DiskError:
            self.machine.commit(self.queue)  # As the committer does, while `renew` waits.
        if self.queue.numbering == self.wanted:
            self.identity = self.wanted
        return False

    def clone(self, machine: Machine) -> LoggedLink:
        """The same queue on another machine, which has a copy of the store, or will have one."""
        found = LoggedLink(self.rng, machine, self.receiver)
        for name in (
            "partitions",
            "dispatchers",
            "conflate",
            "filters",
            "batch_conflation",
            "remembered",
            "ever_applied",
            "ever_failed",
        ):
            setattr(found, name, getattr(self, name))
        found.may_tie = True
        found.connections = [None] * self.dispatchers
        found.removed_before = [0] * self.partitions
        return found

    def open_queues(self) -> tuple[Any, Any]:
        return self.machine.open_queue(self.name, **self.options), self.machine.open_queue(
            self.name + "-parked", parked=True, partitions=8
        )

    def note(self, partition: int, sequence: int, key: str, operation: int, version: Version | None = None) -> None:
        super().note(partition, sequence, key, operation)
        is_fresh = version is None and not self.machine.watched  # Not replayed, and not from a site before.
        version = version or self.machine.core.lookup(key)[1:3]
        if is_fresh and version <= self.newest[key]:
            self.wrong.append(
                f"{partition}, {sequence} of key {key} has version {version}, and was queued behind {self.newest[key]}"
            )
        self.newest[key] = max(version, self.newest[key])
        self.versions[partition, sequence] = key, version

    def note_durable(self, removed: list[int]) -> None:
        self.durable = self.synced = self.queue.log_state()["durable"]
        for partition, through in enumerate(removed):
            self.checkpointed[partition] = max(through, self.checkpointed[partition])

    def _on_failure(self, partition: int, sequence: int, reason: int, event: object) -> None:
        if reason != 0xFFFF:  # Otherwise its disk does not take the parked event, and the batch is sent again.
            self.excused.add((partition, sequence))
            self.ever_failed.add(((partition, sequence), self.versions.get((partition, sequence))))

    def _note_sent_by_copies(self) -> None:
        """Another store with the same past may have sent of it what this one has not."""
        for place, event in self.known.applied.items():
            must(
                self.versions.get(place, event) == event,
                (
                    f"{place} of {self.name} is {self.versions.get(place)}, another one was sent under it: {event}, "
                    "and the queue keeps its identity"
                ),
            )
        # Not of what was queued since this one began: another store may have given the same sequence and stamp to a
        # change of the same key.
        self.applied |= {
            place
            for place, event in self.versions.items()
            if (place, event) in self.ever_applied and place[1] <= self.recovered_through[place[0]]
        }

    def apply(self, core: Any, fields: dict[str, Any], connection: Connection) -> int:
        try:
            if connection.line != self.line and fields["place"] is not None:
                return self.apply_lost(core, fields, connection)
            return super().apply(core, fields, connection)
        except (QueueFullError, DiskError):
            return -1

    def apply_lost(self, core: Any, fields: dict[str, Any], connection: Connection) -> int:
        """It was sent before the disk was put back."""
        key, place = fields["key"][1].decode(), (fields["partition"], fields["sequence"])
        if self.receiver.poisoned and key in POISON_KEYS:
            return POISONED
        self.change_receiver(
            core, key, None if fields["operation"] == DESTROY else fields["value"][1].decode(), fields, connection
        )
        connection.known.applied[place] = event = key, (fields["stamp"], fields["stamp_site"])
        self.ever_applied.add((place, event))
        connection.known.last_of_key[key] = place
        return 0

    def change_receiver(
        self, core: Any, key: str, value: str | None, fields: dict[str, Any], connection: Connection
    ) -> str:
        machine, version, partition = (
            self.receiver.machine,
            (fields["stamp"], fields["stamp_site"]),
            fields["partition"],
        )
        before = [link.queue.positions() for link in machine.out]
        outcome = super().change_receiver(core, key, value, fields, connection)
        sent_again = (
            fields["place"] is not None
            and connection.openings == self.openings
            and fields["sequence"] <= self.recovered_through[partition]
        )
        if sent_again and not fields["possible_duplicate"]:
            self.wrong.append(
                f"{partition}, {fields['sequence']} of key {key} was recovered, and was not sent as possible duplicate"
            )
        # Then it is another change, and its content wins.
        if (
            outcome in ("created", "updated", "destroyed")
            and version <= machine.durable_versions.get(key, (0, 0))
            and (version != machine.durable_versions[key] or not self.may_tie)
        ):
            self.wrong.append(
                f"{version} of key {key} was applied again at site {machine.site}, which had it on its disk"
            )
        operation = {"created": CREATE, "updated": UPDATE, "destroyed": DESTROY}.get(outcome, fields["operation"])
        for link, positions in zip(machine.out, before, strict=True):
            link.note_taken(fields, positions)
            link.note_change(key, operation, positions)
        return outcome

    def note_taken(self, fields: dict[str, Any], before: list[tuple[int, int, int]]) -> None:
        """An event of another queue was applied here. If it came before, it must not have entered this queue again,
        whatever the region had lost of it."""
        if self.queue.positions() == before or fields["place"] is None:
            return
        source, timeline, _, place_in = STREAM_PLACE.unpack(fields["place"])
        # Sequences of another mount may stand for other events: a queue recognises those of the newest mount alone.
        for each in list(self.taken):
            other = STREAM_PLACE.unpack(each)
            if (other[0], other[3]) == (source, place_in) and other[1] != timeline:
                del self.taken[each]
        for partition, sequence, record in self.queue.records(1 << 30):
            found = _core.record_fields(record) if sequence > before[partition][2] else {}
            if any(found.get(name) != fields[name] for name in ("event_id", "key", "stamp", "stamp_site")):
                continue  # It was queued while the change waited.
            known = self.taken.setdefault(fields["place"], (partition, sequence))
            if known != (partition, sequence):
                self.wrong.append(f"{known} of {self.name} entered again, as {(partition, sequence)}")

    def forget_taken(self, partition: int, appended: int) -> None:
        """Events behind that sequence are in no log any more, and have to enter again."""
        self.taken = {
            source: place for source, place in self.taken.items() if place[0] != partition or place[1] <= appended
        }

    def check(self) -> None:
        super().check()
        durable = self.queue.log_state()["durable"]
        for partition, (_, peeked, appended) in enumerate(self.queue.positions()):
            if not max(peeked, self.durable[partition]) <= durable[partition] <= appended:
                raise AssertionError(
                    f"partition {partition} is durable to {durable[partition]}, was to "
                    f"{self.durable[partition]}; peeked {peeked}, "
                    f"appended {appended}"
                )
        self.durable = durable

    def _check_removed(self, partition: int, sequence: int) -> None:
        super()._check_removed(partition, sequence)
        place = partition, sequence
        if place in self.applied and place not in self.excused and place not in self.conflated:
            key, version = self.versions[place]
            acknowledged = self.receiver.machine.acknowledged
            acknowledged[key] = max(version, acknowledged[key])

    def check_recovered(self, loses: bool) -> None:
        """The machine started again: what is in the queue, against what was. `loses`: what was sent may be gone, if it
        was not synced.
        """
        must(
            self.queue.numbering in (self.identity, self.wanted),
            f"{self.name} was {self.identity:x} or {self.wanted:x}, and came back as {self.queue.numbering:x}",
        )
        self.identity = self.wanted = self.queue.numbering
        found = {
            (partition, sequence): _core.record_fields(record)
            for partition, sequence, record in self.queue.records(1 << 30)
        }
        for partition, (removed, _, appended) in enumerate(self.queue.positions()):
            must(
                self.checkpointed[partition] <= removed,
                (
                    f"partition {partition} was recovered as removed to {removed}, and "
                    f"{self.checkpointed[partition]} was on the disk"
                ),
            )
            least = self.synced[partition] if loses else self.durable[partition]
            must(appended >= least, f"partition {partition} was recovered to {appended}, and {least} was on the disk")
            if loses and appended < self.durable[partition]:
                self._lose_behind(partition, appended)
            self._forget_behind(partition, appended)
            self.forget_taken(partition, appended)
            for sequence in range(self.removed_before[partition] + 1, removed + 1):
                self._check_event((partition, sequence), None)  # At the front, and a hole.
            for sequence in range(removed + 1, appended + 1):
                self._check_event((partition, sequence), found.get((partition, sequence)))
            self.removed_before[partition], self.recovered_through[partition] = removed, appended
            self.ever_recovered[partition] = max(appended, self.ever_recovered.get(partition, 0))
        self.durable = self.synced = self.queue.log_state()["durable"]
        self.newest.clear()
        for key, version in self.versions.values():
            self.newest[key] = max(version, self.newest[key])

    def _check_event(self, place: tuple[int, int], fields: dict[str, Any] | None) -> None:
        # Replayed, and replaced before it was seen: by one replayed behind it.
        if fields is not None and place not in self.events and (self.conflate or self.batch_conflation):
            key, version = fields["key"][1].decode(), (fields["stamp"], fields["stamp_site"])
            must(
                (key, version) in self.versions.values(),
                f"{place} was recovered as {key} of {version}, which was never queued",
            )
            self.note(*place, key, fields["operation"], version)
        known = self.events.get(place)
        if fields is None:
            key, operation = known or (None, None)
            newest = self.last_update.get((place[0], key), 0)
            replaced = (self.conflate or self.batch_conflation) and (
                key is None or (operation == UPDATE and newest > place[1])
            )
            must(
                place in self.excused or replaced, f"{place} of key {key} was on the disk and is gone after the restart"
            )
            if replaced:
                self.conflated.add(place)  # An old connection may still carry it.
            return
        key, version = fields["key"][1].decode(), (fields["stamp"], fields["stamp_site"])
        must(
            known is not None and (key, version) == self.versions[place] and known[1] == fields["operation"],
            f"{place} was recovered as {key} of {version}, and was {known} of {self.versions.get(place)}",
        )

    def _lose_behind(self, partition: int, appended: int) -> None:
        """Forgets events that were in the log and never got onto the disk, because this is an older copy. They may have
        been sent."""
        for place in [place for place in self.versions if place[0] == partition and place[1] > appended]:
            key, version = self.versions[place]
            self.lost[key].add(version)
            self.applied.discard(place)
            self.conflated.discard(place)
        self.line += 1
        self.is_copied = True

    def _forget_behind(self, partition: int, appended: int) -> None:
        """Forgets events that were queued and never got onto the disk. Their sequences come again."""
        for place in [place for place in self.events if place[0] == partition and place[1] > appended]:
            must(place not in self.applied, f"{place} was applied, and its queue lost it")
            key, _ = self.events.pop(place)
            self.versions.pop(place)
            self.excused.discard(place)
            if self.last_update.get((partition, key), 0) > appended:
                self.last_update[partition, key] = max(
                    (
                        sequence
                        for (p, sequence), event in self.events.items()
                        if p == partition and sequence <= appended and event == (key, UPDATE)
                    ),
                    default=0,
                )


class MachinesWorld(World):
    """Senders, receivers and perhaps a relay between them, each a machine."""

    kind = "machines"
    change_counts = (1, 1, 4, 10)  # Each may wait for a disk.
    value_bytes = (0, 300, 20_000)  # Logs of the smallest limit go around a few times.
    links: list[LoggedLink]
    receivers: list[MachineReceiver]

    def make(self, watched: bool) -> None:
        rng = self.rng
        self.machines: dict[int, Machine] = {}
        self.nested = self.changing = self.pumping = False
        self.rounds_of_end = 0
        self.copies: list[tuple[Machine, Copy]] = []
        self.has_copies = rng.random() < 0.4  # Elsewhere no queue may ever take another identity.
        self.make_sites(watched)
        for link in self.links:
            link.may_tie = self.has_copies

    def make_sites(self, watched: bool) -> None:
        rng = self.rng
        relay = watched and rng.random() < 0.4
        ends = [self.add_machine(site, watched) for site in (8, 9)[: rng.choice((1, 1, 2))]]
        self.receivers = [MachineReceiver(machine) for machine in ends]
        targets = self.receivers
        if relay:
            middle = self.add_machine(5, watched)
            targets = [MachineReceiver(middle)]
            self.connect(middle, self.receivers)
            self.receivers = [*self.receivers, *targets]
        for site in range(1, rng.choice((2, 3, 3))):
            self.connect(self.add_machine(site, False), targets)

    def add_machine(self, site: int, watched: bool) -> Machine:
        rng = self.rng
        machine = self.machines[site] = Machine(
            rng,
            site,
            region_is_persistent=rng.random() < 0.6,
            synchronous=rng.random() < 0.5 or rng.choice((False, "written", "written")),
            watched=watched,
        )
        machine.disk.meanwhile = lambda: self.meanwhile(machine)
        return machine

    def connect(self, machine: Machine, receivers: list[MachineReceiver]) -> None:
        self.links += [LoggedLink(self.rng, machine, receiver) for receiver in receivers]
        machine.core.attach([link.queue for link in machine.out])
        self.sites[machine.site] = machine.core

    def doings(self) -> list[tuple[int, Callable[[], object]]]:
        return [
            *super().doings(),
            (40, self.commit),
            (3, self.change_disk),
            (2, self.change_clock),
            (2, self.invalidate),
            (2, self.restart_machine),
            *(
                [(3, self.copy_store), (2, self.put_store_back), (3, self.lose_store), (1, self.clone_machine)]
                if self.has_copies
                else []
            ),
        ]

    def do(self, doing: Callable[[], object]) -> None:
        super().do(doing)
        for machine in self.machines.values():
            if machine.disk.is_off:

                def lose_power(machine=machine) -> str:
                    return self.restart(machine, power=True)

                super().do(lose_power)

    # Steps that may happen

    def change(self) -> str:
        self.changing = True
        try:
            return super().change()
        finally:
            self.changing = False

    def pump(self) -> None:
        self.pumping = True
        try:
            super().pump()
        finally:
            self.pumping = False

    def put(self, site: int, core: Any, operation: int, key: str, value: str | None) -> None:
        machine = self.machines[site]
        if machine.disk.is_off or not self.has_room(machine):
            return
        machine.clock.set_time(self.now_ms(machine))
        before = core.lookup(key)
        try:
            core.change(
                DESTROY if value is None else UPDATE, key, value, None, (), origin_=self.local_origin(machine.site)
            )
        except QueueFullError:
            must(core.lookup(key) == before, f"a change of key {key} at site {site} was refused and took effect")
        except DiskError:
            pass  # It is stored and queued, and nobody was told that it is durable.

    def invalidate(self) -> str:
        machine, key = self.rng.choice(list(self.machines.values())), self.rng.choice(KEYS)
        if machine.disk.is_off or not self.has_room(machine):
            return "nothing"
        before = machine.core.lookup(key)
        try:
            machine.core.invalidate(key)
        except KeyError:
            must(before is None or not before[3], f"{key} is at site {machine.site}, and could not be invalidated")
            return "nothing"
        except DiskError:
            return f"{key} at site {machine.site}, not known to be durable"
        if machine.region_is_persistent and machine.synchronous:
            machine.invalidated[key] = before[1:3]
        return f"{key} at site {machine.site}"

    def now_ms(self, machine: Machine) -> int:
        return FIRST_MS + self.now_us // 1000 + machine.clock_offset_ms

    def has_room(self, machine: Machine) -> bool:
        """A change at a persistent region waits long for a log that is behind; it is not made then."""
        for log in machine.logs:
            state = log.log_state()
            if (state["pending"] > PENDING_MAX and not machine.commit(log, False)) or (
                state["failing"] is not None and machine.region_is_persistent
            ):
                return False
        return True

    def commit(self) -> str:
        machine = self.rng.choice([machine for machine in self.machines.values() if machine.logs])
        log, checkpoint = self.rng.choice(machine.logs), self.rng.random() < 0.3
        done = machine.commit(log, checkpoint)
        return f"{log.name} at site {machine.site}{' with checkpoint' if checkpoint else ''}{'' if done else ' fails'}"

    def meanwhile(self, machine: Machine) -> None:
        """Others go on while a committer waits for the disk."""
        if self.nested or not machine.busy or self.rng.random() < 0.8:
            return
        doings = [self.advance]
        if not self.changing:
            doings.append(self.change)
            if not self.pumping:
                doings += [self.pump, self.pump, self.cut]
        self.nested = True
        try:
            for doing in self.rng.choices(doings, k=self.rng.choice((1, 1, 3))):
                said = doing()
                self.tell(f"    while site {machine.site} syncs: {doing.__name__} {said if said is not None else ''}")
        finally:
            self.nested = False

    def change_disk(self) -> str:
        machine, rng = self.rng.choice(list(self.machines.values())), self.rng
        disk, what = (
            machine.disk,
            rng.choice(("well", "well", "fails now and then", "fails", "is full", "loses power soon")),
        )
        disk.heal()
        if what == "fails now and then":
            disk.error_rate = 0.05
        elif what == "fails":
            disk.error_rate = rng.choice((0.5, 1.0))
        elif what == "is full":
            disk.capacity = disk.used + rng.choice((0, 10_000, 600_000))
        elif what == "loses power soon":
            disk.off_in = rng.randint(1, 30)
        return f"of site {machine.site}: {what}"

    def change_clock(self) -> str:
        machine = self.rng.choice(list(self.machines.values()))
        machine.clock_offset_ms = self.rng.choice(
            (0, self.rng.randint(-2000, 2000), self.rng.choice((-1, 1)) * 3_600_000)
        )
        return f"of site {machine.site}: {machine.clock_offset_ms} ms"

    def restart_machine(self) -> str:
        machine = self.rng.choice(list(self.machines.values()))
        stopped = self.rng.random() < 0.3 and machine.stop()
        return f"{'stopped, ' if stopped else ''}{self.restart(machine, power=not stopped and self.rng.random() < 0.6)}"

    def restart(self, machine: Machine, power: bool) -> str:
        if not machine.out and not machine.region_is_persistent:
            machine.disk.crash(power)
            return f"of site {machine.site}: nothing to lose"  # Its site has other members with the same entries.
        self.disconnect(machine)
        said = machine.restart(power)
        self.note_core(machine)
        return f"of site {machine.site}: {said}"

    def disconnect(self, machine: Machine) -> None:
        for link in machine.out:
            link.check()
            self.stop_sender(link)
        for link in self.links:
            if link.receiver.machine is machine:
                self.close_receiver(link)
                link.forget()

    def stop_sender(self, link: LoggedLink) -> None:
        for n in range(link.dispatchers):
            self.give_up(link, n)

    def note_core(self, machine: Machine) -> None:
        if machine.number in self.sites:
            self.sites[machine.number] = machine.core

    # Copies of disk stores. Only of machines that no other one sends to: what a receiver acknowledged is gone with its
    # disk.

    def copy_store(self) -> str:
        machine = self.rng.choice(
            [machine for machine in self.machines.values() if machine.out and not machine.watched]
        )
        if machine.disk.is_off:
            return "nothing"
        self.copies = [*self.copies[-COPIES_MAX + 1 :], (machine, machine.copy())]
        return f"of site {machine.site}"

    def put_store_back(self) -> str:
        if not self.copies:
            return "nothing"
        machine, taken = self.rng.choice(self.copies)
        self.disconnect(machine)
        attempts = machine.put_back(taken)
        self.note_core(machine)
        return f"of machine {machine.number}, starts {attempts} times"

    def lose_store(self) -> str:
        """A copy is taken, what is queued goes on its way, with little that is new, and the disk is put back: what
        became of these events only the lost one knew.
        """
        machine = self.rng.choice(
            [machine for machine in self.machines.values() if machine.out and not machine.watched]
        )
        if machine.disk.is_off:
            return "nothing"
        taken = machine.copy()
        for _ in range(self.rng.choice((2, 5, 20))):
            self.rng.choices((self.pump, self.advance, self.change), (4, 4, 1))[0]()
            for log in machine.logs:
                machine.commit(log, self.rng.random() < 0.5)
        self.disconnect(machine)
        attempts = machine.put_back(taken)
        self.note_core(machine)
        return f"of machine {machine.number}, starts {attempts} times"

    def clone_machine(self) -> str:
        if not self.copies or len(self.machines) > MACHINES_MAX:
            return "nothing"
        machine, taken = self.rng.choice(self.copies)
        clone = Machine(
            self.rng, machine.site, region_is_persistent=machine.region_is_persistent, synchronous=machine.synchronous
        )
        clone.number, clone.store_bytes, clone.clock_offset_ms = (
            100 * len(self.machines) + machine.site,
            machine.store_bytes,
            machine.clock_offset_ms,
        )
        for link in machine.out:
            self.links.append(link.clone(clone))
            link.is_copied = True
        attempts = clone.put_back(taken)
        clone.disk.meanwhile = lambda: self.meanwhile(clone)
        self.machines[clone.number] = clone
        self.sites[clone.number] = clone.core
        return f"of machine {machine.number} as {clone.number}, starts {attempts} times"

    def pump_one(self, link: LoggedLink, n: int) -> None:
        if link.connections[n] is not None or self.may_connect(link):
            super().pump_one(link, n)

    def may_connect(self, link: LoggedLink) -> bool:
        """The receiver refuses one mount of a queue while another is connected: then somebody stops the other member,
        some time.
        """
        if link.gives_way_to is not None:
            if not any(link.gives_way_to.connections) and len(link.gives_way_to.queue):
                return False
            link.gives_way_to = None
        others: list[LoggedLink] = [
            connection.link
            for connection in [
                *self.late,
                *(each for other in self.links for each in other.connections if each is not None),
            ]
            if connection.receiver_open and connection.known is link.known and connection.mount != link.queue.mount
        ]
        for other in others:
            if other is not link and (not len(other.queue) or self.rng.random() < 0.02):
                self.stop_sender(other)
                other.gives_way_to = link
        return not others and link.is_own_past()

    # The end

    def end(self) -> None:
        for machine in self.machines.values():
            machine.disk.heal()
            machine.disk.meanwhile = None
        super().end()

    def settle(self) -> None:
        self.rounds_of_end += 1
        if self.rounds_of_end == 1000:
            self.enlarge_stores()
        for machine in self.machines.values():
            for log in machine.logs:
                machine.commit(log)  # It may fail as long as the log is full of what was not acknowledged.

    def enlarge_stores(self) -> None:
        """A store of which more than a quarter is needed may stand still with events that failed (operations.md): it
        gets more room, as it is told to want. Any other has to come through as it is."""
        for machine in self.machines.values():
            if machine.holds_bytes > machine.store_bytes // 4:

                def enlarge(machine=machine) -> str:
                    machine.store_bytes *= 8
                    return self.restart(machine, power=False)

                self.do(enlarge)

    def check_convergence(self) -> None:
        """Every end holds, of every key, the latest version that was queued for it and not lost with what had not
        reached the disk.
        """
        for machine in self.machines.values():
            for log in machine.logs:
                must(machine.commit(log), f"site {machine.site} cannot write {log.name} in the end: {log.log_state()}")
        for receiver in self.receivers:
            machine, expected = receiver.machine, self.expected(receiver)
            if not machine.out:
                for key in sorted(
                    {key for link in self.links if link.receiver is receiver for key, _ in link.versions.values()}
                ):
                    found = machine.core.lookup(key)
                    held, latest = (found[1:3] if found else (0, 0)), expected.get(key, (0, 0))
                    must(
                        held == latest
                        or (machine.may_lack and held < latest)
                        or (held > latest and any(held in link.lost[key] for link in self.links)),
                        (
                            f"site {receiver.site} holds {repr(found)[:80]} of {key}, and {expected.get(key)} is the "
                            "latest"
                        ),
                    )
            elif machine.synchronous is True:
                self.check_relayed(machine, expected)

    def expected(self, receiver: MachineReceiver) -> dict[str, Version]:
        found: dict[str, Version] = {}
        for link in self.links:
            if link.receiver is receiver:
                for key, version in link.versions.values():
                    if not (link.filters and key in SECRET_KEYS):
                        found[key] = max(version, found.get(key, (0, 0)))
        return found

    def check_relayed(self, machine: Machine, expected: dict[str, Version]) -> None:
        """Checks that all events which a relay acknowledged reached the sites behind it."""
        for link in machine.out:
            queued = set(link.versions.values())
            for key, version in expected.items() if not link.receiver.machine.may_lack else ():
                # A change of its own that had not returned may be in its region and not in its queue: what comes after
                # loses against that.
                held = machine.core.lookup(key)
                if held and held[2] == machine.site and (key, held[1:3]) not in queued:
                    continue
                if key in KEYS + POISON_KEYS or not link.filters:
                    found = link.receiver.core.lookup(key)
                    must(
                        found is not None and found[1:3] >= version,
                        f"site {link.receiver.site} holds {repr(found)[:80]} of {key}, and the relay got {version}",
                    )
