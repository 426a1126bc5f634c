"""Owns the parked events of one gateway sender: those that the remote site could not apply, and those that did not
leave because the substitution filter failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan._core import Encoded
from pywan.config.attributes import QueueAttributes
from pywan.config.values import to_int
from pywan.errors import PywanError
from pywan.events import event_of_record
from pywan.gateway.logs import SenderLogs

log = logging.getLogger("pywan.sender")

NOT_PARKED = 0xFFFF  # Stands for a reason: the parked queue had no room.
MEMORY_LIMIT = 4 << 20
WITHHOLD_WAIT_S = 10.0  # So long a change waits for the disk to take an event that is withheld.


class ParkedEvents:
    """The parked events. `queue` keeps them until they are replayed or dropped."""

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

    def __len__(self) -> int:
        return len(self.queue)

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
        """Returns up to `limit` parked events as plain values, each with the reason why it failed."""
        limit = to_int(limit, f"{self._what}: parked: limit", 0, 2**31 - 1)
        listed = []
        for partition, _, record in self.queue.records(limit):
            event = event_of_record(record)
            listed.append(
                {
                    "region": event.region,
                    "operation": event.operation,
                    "key": event.key,
                    "value": event.value,
                    "timestamp": event.creation_timestamp,
                    "reason": self.words_of(event.event_id) or _core.failure_text(_core.parked_reason(partition)),
                }
            )
        return listed

    def replay_into(self, queue: _core.EventQueue, mask: Callable[[bytes], bytes | None], *, force: bool) -> int:
        """Queues every event again that is parked now, behind the events that wait. Returns how many.

        `mask(record)` gives the record to send for an event that was withheld. With None the event stays.
        """
        with self.lock:
            self._mask(mask)
            self.queue.wait_durable(10.0)  # An event can be replayed only when it is on the disk.
            return self.queue.replay_into(queue, force, _core.FAILED_WITHHELD)

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
        with self.lock:
            return self.queue.clear()
