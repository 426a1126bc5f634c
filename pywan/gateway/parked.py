"""Owns the parked events of one gateway sender: those that the remote site could not apply, and those that did not
leave because the substitution filter failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from pywan import _core
from pywan._core import Encoded
from pywan.config.attributes import QueueAttributes
from pywan.config.values import to_int
from pywan.errors import PywanError
from pywan.gateway.logs import SenderLogs

log = logging.getLogger("pywan.sender")

NOT_PARKED = 0xFFFF  # Stands for a reason: the parked queue had no room.
MEMORY_LIMIT = 4 << 20
WITHHOLD_WAIT_S = 10.0  # So long a change waits for the disk to take an event that is withheld.


# By region: a byte for each of its buckets, whether this member leads the bucket's parked events.
Led = Iterable[tuple[str, bytes]]


class ParkedEvents:
    """The parked events. `queue` keeps them until they are replayed or dropped.

    Of a sender that several members have, `queue` also has events for another member, which leads them
    (docs/decisions/0108): from `share` on, all methods are about those that this member leads.
    """

    def __init__(self, attributes: QueueAttributes, logs: SenderLogs, *, directory: str) -> None:
        self._waits_for_disk = bool(attributes.disk_synchronous)
        self._what, self._label = attributes.what, attributes.label
        self._where = "".join(f" at site {site}" for site in attributes.reaches)
        self.queue = _core.EventQueue(
            f"{attributes.core_id} (parked)",
            partitions=_core.PARK_PARTITIONS,
            memory_limit=MEMORY_LIMIT,
            directory=directory,
            **logs.options("parked", _core.PARK_PARTITIONS),
        )
        self.queue.running = True
        self.words_of: Callable[[tuple[int, int, int]], str | None] = lambda event_id: None  # What the end said of it.
        self.lock = threading.Lock()  # A replay, drop or repair holds it.
        self._failures_logged = 0
        self._index: _core.ParkedIndex | None = None
        self._led: Callable[[], Led] = lambda: ()

    def share(self, queue: _core.EventQueue, led: Callable[[], Led]) -> None:
        """Several members have the sender, whose queue is `queue`. `led` says what this one leads now; it leads all of
        the regions that `led` leaves out."""
        self._index, self._led = _core.ParkedIndex(self.queue), led
        queue.park_in(self.queue)

    def __len__(self) -> int:
        return self.count(self._led()) if self._index is not None else len(self.queue)

    def note_failure(self, partition: int, sequence: int, reason: int, event: tuple[str, str, Encoded]) -> None:
        """Logs the first failures, and some of the later ones. `event`: its region, operation and key."""
        region, operation, key = event
        self._failures_logged += 1
        if self._failures_logged > 10 and self._failures_logged % 10000:
            return
        if reason == NOT_PARKED:
            log.error(
                "%s: the %s of key %s of region %r failed and could not be parked: no room in the parked queue"
                " (event %d/%d)",
                self._label,
                operation,
                f"{key!r:.80}",
                region,
                partition,
                sequence,
            )
        else:
            log.warning(
                "%s: the %s of key %s of region %r failed%s and is parked: %s (event %d/%d)",
                self._label,
                operation,
                f"{key!r:.80}",
                region,
                self._where,
                _core.failure_text(reason),
                partition,
                sequence,
            )

    def withhold(self, record: bytes) -> None:
        """Parks an event whose substitution filter failed, as safely as the sender queues events. If it cannot be
        parked, the loss is logged."""
        try:
            self.queue.append_record(record, _core.FAILED_WITHHELD)
            if self.queue.persistent and self._waits_for_disk:
                self.queue.wait_durable(WITHHOLD_WAIT_S)
        except (PywanError, MemoryError) as error:
            log.error("%s: an event was withheld, and it could not be parked: %s", self._label, error)

    def shown(self, limit: int) -> list[dict[str, Any]]:
        """Returns up to `limit` parked events as plain values, the oldest first, each with the reason why it failed."""
        return [shown_event(record, reason) for record, reason in self.records(limit)]

    def records(self, limit: int) -> list[tuple[bytes, str]]:
        """The same as records, each with the reason in words."""
        limit = to_int(limit, f"{self._what}: parked: limit", 0, 2**31 - 1)
        if self._index is None:
            found = [(_core.parked_reason(partition), record) for partition, _, record in self.queue.records(limit)]
        else:
            led = self._led()
            with self.lock:
                found = self._fresh.shown(led, limit)
        return [
            (record, self.words_of(_core.event_of_record(record).event_id) or _core.failure_text(reason))
            for reason, record in found
        ]

    def replay_into(self, queue: _core.EventQueue, mask: Callable[[bytes], bytes | None], *, force: bool) -> int:
        """Queues every event again that is parked now, behind the events that wait. Returns how many.

        `mask(record)` gives the record to send for an event that was withheld. With None the event stays.
        """
        if self._index is not None:
            return self._replay_led(queue, mask, force=force)
        with self.lock:
            self._mask(mask)
            self.queue.wait_durable(10.0)  # An event can be replayed only when it is on the disk.
            return self.queue.replay_into(queue, force, _core.FAILED_WITHHELD)

    def _replay_led(self, queue: _core.EventQueue, mask: Callable[[bytes], bytes | None], *, force: bool) -> int:
        """The events stay parked, unseen, until `finish` finds that they have left the queue."""
        led = self._led()
        with self.lock:
            index = self._fresh
            for reason, record in index.shown(led, 2**31 - 1) if self._has_withheld() else ():
                masked = mask(record) if reason == _core.FAILED_WITHHELD else None
                if masked is not None:
                    index.replace(masked, _core.FAILED_OTHER)
            return index.replay(queue, led, force, _core.FAILED_WITHHELD)

    def _has_withheld(self) -> bool:
        return bool(self.queue.run_events(_core.FAILED_WITHHELD, 1)[0])

    def _mask(self, mask: Callable[[bytes], bytes | None]) -> None:
        """Moves the withheld events for which there is a value to send now to the other parked events."""
        for partition, sequence, record in self.queue.records(len(self.queue)):
            if partition == _core.FAILED_WITHHELD:
                masked = mask(record)
                if masked is not None:
                    self.queue.append_record(masked, _core.FAILED_OTHER)
                    self.queue.make_hole(partition, sequence)

    def drop(self) -> int:
        """Forgets every parked event. They stay counted as parked. Returns how many there were."""
        if self._index is not None:
            return len(self.drop_led()) // _core.PARKED_MARK_BYTES
        with self.lock:
            return self.queue.clear()

    # Several members have the sender. An event is named by its mark, of PARKED_MARK_BYTES.

    @property
    def _fresh(self) -> _core.ParkedIndex:
        """The index, which knows all that is parked now. The caller has the lock."""
        assert self._index is not None
        self._index.refresh()
        return self._index

    def count(self, led: Led) -> int:
        """Returns how many of the parked events are led, as `led` says; of a broken queue, how many it has."""
        if self.queue.broken is not None:
            return len(self.queue)
        with self.lock:
            return self._fresh.count(led)

    @property
    def are_replayed(self) -> bool:
        """Whether events were queued again, and `finish` is to be called now and then."""
        return self._index is not None and self._index.replayed > 0

    def finish(self, queue: _core.EventQueue) -> bytes:
        """Forgets the events that were queued again and have left the queue. Returns their marks."""
        with self.lock:
            return self._fresh.finish(queue)

    def drop_led(self) -> bytes:
        """As `drop`. Returns the marks of the events."""
        led = self._led()
        with self.lock:
            return self._fresh.drop(led)

    def leave(self, marks: bytes) -> int:
        """The member that leads these events has replayed or dropped them. Returns how many were here."""
        with self.lock:
            return self._fresh.leave(marks)

    def forget(self, marks: bytes) -> None:
        """Other members keep these events."""
        with self.lock:
            self._fresh.forget(marks)

    def sums(self, region: str, buckets: int) -> list[tuple[int, int, int]]:
        """Returns (bucket, count, sum of the marks) of each bucket that has events here, whoever leads them."""
        with self.lock:
            return self._fresh.sums(region, buckets)

    def marks(self, region: str, buckets: bytes, part: int, parts: int) -> bytes:
        """Returns the marks of these buckets of a region, or of one of so many parts of them."""
        with self.lock:
            return self._fresh.marks(region, buckets, part, parts)

    def compare(self, region: str, buckets: bytes, part: int, parts: int, theirs: bytes) -> tuple[bytes, bytes, bytes]:
        """Compares with the `marks` of another member: those that have left, as known here; those that are lacking
        here; those that are lacking there."""
        with self.lock:
            return self._fresh.compare(region, buckets, part, parts, theirs)

    def lacking(self, marks: bytes) -> tuple[bytes, bytes]:
        """Returns those of these marks that have left, as known here, and those that are lacking here."""
        with self.lock:
            return self._fresh.lacking(marks)

    def copy(self, marks: bytes, most: int) -> tuple[bytes, int]:
        """Returns about `most` bytes of the events with these marks, and how many of the marks were looked at."""
        with self.lock:
            return self._fresh.copy(marks, most)

    def take(self, region: str, events: bytes) -> int:
        """Parks what another member's `copy` returned. Returns how many events were new."""
        with self.lock:
            return self._fresh.take(region, events)


def shown_event(record: bytes, reason: str) -> dict[str, Any]:
    """Returns a parked event as plain values."""
    event = _core.event_of_record(record)
    return {
        "region": event.region,
        "operation": event.operation,
        "key": event.key,
        "value": event.value,
        "timestamp": event.creation_timestamp,
        "reason": reason,
    }
