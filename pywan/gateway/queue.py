"""Owns the queue of one gateway sender, and the identity by which receivers know its sequences."""

from __future__ import annotations

import logging
import os
import secrets

from pywan import _core
from pywan.config.attributes import BUCKETS, SenderAttributes
from pywan.errors import DataLossError, GatewaySenderConfigurationError, GatewaySenderError
from pywan.gateway.logs import SenderLogs
from pywan.protocol.gateway import Known
from pywan.stats import check_ledger, ledger

log = logging.getLogger("pywan.sender")


def overflow_directory(attributes: SenderAttributes, directory: str) -> str:
    """Where records go that find no room in memory. GatewaySenderConfigurationError if nothing can be written there."""
    overflow = attributes.overflow_directory or directory
    if not os.access(overflow, os.W_OK | os.X_OK):
        raise GatewaySenderConfigurationError(
            f"gateway sender {attributes.id!r}: overflow_directory {overflow} is not a directory that can be written"
            " to; make it, or name another"
        )
    return overflow


class SenderQueue:
    """What waits for the remote site (`events`), under one identity.

    That of a parallel sender has a partition for each bucket of the regions that feed it: `buckets` of them, or as many as
    its log has. Before a region says so these are as many as a region has that says nothing.

    Receivers skip a sequence that they have. So a queue whose sequences were given twice, since its disk store is an
    older copy or has one, takes another identity.
    """

    def __init__(
        self,
        attributes: SenderAttributes,
        logs: SenderLogs,
        *,
        directory: str,
        buckets: int | None = None,
    ) -> None:
        a = attributes
        self._id, self._logs = a.id, logs
        partitions = (buckets or logs.partitions("queue") or BUCKETS) if a.parallel else a.dispatcher_threads
        self.dispatchers = min(a.dispatcher_threads, partitions)
        self.events = _core.EventQueue(
            a.id,
            remote_site=a.remote_distributed_system_id,
            partitions=partitions,
            dispatchers=self.dispatchers,
            memory_limit=a.maximum_queue_memory << 20,
            directory=directory,
            conflate=a.enable_batch_conflation,
            by_thread=a.order_policy == "thread" and not a.parallel,
            by_bucket=a.parallel or a.order_policy == "partition",
            **logs.options("queue", partitions),
        )
        self.events.set_full_policy(a.full_policy, a.full_timeout_ms)
        self._own_identity = secrets.randbits(63) | 1  # Without persistence: the sequences start afresh here.
        self.renewals = 0  # How often it took another identity, in this process.
        if self.events.persistent:
            self._say_recovered()

    @property
    def incarnation(self) -> int:
        """With persistence it outlives the process, as its sequences do."""
        return self.events.incarnation or self._own_identity

    @property
    def mount(self) -> int:
        """Of its disk store: which opening of it this is."""
        return self.events.mount or self._own_identity

    def check_past(self, incarnation: int, place: str, known: list[Known]) -> None:
        """What the receiver has of other mounts was sent by this queue, before. If not, the disk store is an older
        copy, or there is another one: sequences were given twice, or events settled that are queued here, and the
        receiver would take them for known. Then the queue goes on under another identity, and connects again."""
        is_past = self.events.is_past
        foreign = next(
            (each for each in known if not is_past(each.mount, each.partition, each.last, each.settled)), None
        )
        if foreign is None:
            return
        fresh = secrets.randbits(63) | 1
        self.events.renew(incarnation, fresh)
        renewed = self.events.incarnation
        problem = (
            f"the receiver at {place} knows events up to {foreign.last} of partition {foreign.partition}, settled"
            f" to {foreign.settled}, of which the disk store {self._logs.store_name} does not know: it was"
            f" restored from a copy, or is a copy. Its queue goes on as {renewed:x}, in place of {incarnation:x};"
            " what is queued is sent as possible duplicates, and what only the other copy had is not here"
        )
        if renewed == fresh:  # Else another dispatcher came first, and has said it.
            self.renewals += 1
            log.error("gateway sender %s: %s", self._id, problem)
        raise GatewaySenderError(problem)

    def _say_recovered(self) -> None:
        recovery = self.events.recovery()
        if recovery["cut_bytes"]:
            log.warning(
                "gateway sender %s: the log ended with what was not synced, and is not whole; %d bytes were cut",
                self._id,
                recovery["cut_bytes"],
            )
        if len(self.events) or recovery["records"]:
            log.info(
                "gateway sender %s: %d events recovered from disk store %s",
                self._id,
                len(self.events),
                self._logs.store_name,
            )
        try:
            check_ledger(self._id, ledger(self.events.counts()))
        except DataLossError as error:  # What is there can be sent all the same.
            log.error("after recovery: %s", error)
