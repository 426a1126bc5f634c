"""Owns the events of one gateway sender or asynchronous event queue, and the identity of their sequences."""

from __future__ import annotations

import logging
import os

from pywan import _core
from pywan.base.draws import drawn_number
from pywan.config.attributes import BUCKETS, QueueAttributes, order_of
from pywan.errors import DataLossError, GatewaySenderError
from pywan.gateway.logs import SenderLogs
from pywan.protocol.gateway import Known
from pywan.stats import check_ledger, ledger

log = logging.getLogger("pywan.sender")


def overflow_directory(attributes: QueueAttributes, directory: str) -> str:
    """Returns the folder for records that find no room in memory. ConfigurationError if it cannot be
    written to."""
    overflow = attributes.overflow_directory or directory
    if not os.access(overflow, os.W_OK | os.X_OK):
        raise attributes.error(
            f"{attributes.what}: overflow_directory {overflow} is not a directory that can be written"
            " to; make it, or name another"
        )
    return overflow


class SenderQueue:
    """The events that wait for the remote site (`events`), under one identity.

    The queue of a parallel sender has a partition for each bucket of the regions that feed it: `buckets` of them, or as
    many as its log has. Before a region feeds it, it has the default number of buckets.

    Receivers skip the sequences that they know. If a disk store is an older copy, or was copied, the same sequences
    were given twice. The queue takes another identity then.
    """

    def __init__(
        self,
        attributes: QueueAttributes,
        logs: SenderLogs,
        *,
        directory: str,
        buckets: int | None = None,
    ) -> None:
        a = attributes
        self._label, self._what, self._logs = a.label, a.what, logs
        partitions = (buckets or logs.partitions("queue") or BUCKETS) if a.parallel else a.dispatcher_threads
        self.dispatchers = min(a.dispatcher_threads, partitions)
        self.events = _core.EventQueue(
            a.core_id,
            remote_site=next(iter(a.reaches), None),
            partitions=partitions,
            dispatchers=self.dispatchers,
            memory_limit=a.maximum_queue_memory << 20,
            directory=directory,
            conflate=a.enable_batch_conflation,
            by_thread=order_of(a) == "thread",
            by_bucket=a.parallel or order_of(a) == "partition",
            **logs.options("queue", partitions),
        )
        self.events.set_full_policy(a.full_policy, a.full_timeout_ms)
        self._own_identity = drawn_number(63) | 1  # Used without persistence: the sequences start anew then.
        self.renewals = 0  # How often the queue took another identity, in this process.
        if self.events.persistent:
            self._say_recovered()

    @property
    def numbering(self) -> int:
        """The identity of the queue. With persistence it outlives the process, as the sequences do."""
        return self.events.numbering or self._own_identity

    @property
    def mount(self) -> int:
        """The mount of the queue's disk store: one opening of it."""
        return self.events.mount or self._own_identity

    def check_past(self, numbering: int, place: str, known: list[Known]) -> None:
        """Checks that this queue has sent what a receiver knows of its other mounts.

        If not, the disk store is an older copy, or it was copied. Then sequences were given twice, or events are
        settled there and queued here, and the receiver would take new events for known ones. So the queue takes another
        identity, and its dispatchers connect again.
        """
        is_past = self.events.is_past
        foreign = next(
            (each for each in known if not is_past(each.mount, each.partition, each.last, each.acknowledged)), None
        )
        if foreign is None:
            return
        fresh = drawn_number(63) | 1
        self.events.renew(numbering, fresh)
        renewed = self.events.numbering
        problem = (
            f"the receiver at {place} knows events up to {foreign.last} of partition {foreign.partition}, settled"
            f" to {foreign.acknowledged}, of which the disk store {self._logs.store_name} does not know: it was"
            f" restored from a copy, or is a copy. Its queue goes on as {renewed:x}, in place of {numbering:x};"
            " what is queued is sent as possible duplicates, and what only the other replica had is not here"
        )
        if renewed == fresh:  # Otherwise another dispatcher came first, and has logged it.
            self.renewals += 1
            log.error("%s: %s", self._label, problem)
        raise GatewaySenderError(problem)

    def _say_recovered(self) -> None:
        """Logs what was recovered from the log."""
        recovery = self.events.recovery()
        if recovery["cut_bytes"]:
            log.warning(
                "%s: the end of its log was not synced, and is not whole; %d bytes were cut",
                self._label,
                recovery["cut_bytes"],
            )
        if len(self.events) or recovery["records"]:
            log.info(
                "%s: %d events recovered from disk store %s",
                self._label,
                len(self.events),
                self._logs.store_name,
            )
        try:
            check_ledger(self._what, ledger(self.events.counts()))
        except DataLossError as error:  # The events that are there can be sent all the same.
            log.error("after recovery: %s", error)
