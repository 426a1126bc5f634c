"""Owns where the logs of one gateway sender or asynchronous event queue are in a disk store: the log of its queued
events, and that of its parked ones."""

from __future__ import annotations

from typing import Any

from pywan import _core
from pywan.base.draws import drawn_number
from pywan.config.attributes import QueueAttributes
from pywan.disk.store import StoreCore

# The longest delay of a write without disk-synchronous. It is short, because events are sent only from the disk.
FLUSH_LIMIT_MS = 10


class SenderLogs:
    """The logs of one sender. Without a disk store (`store` is None) there are none, and the events end with the
    process."""

    def __init__(self, attributes: QueueAttributes, store: StoreCore | None, site: int) -> None:
        self._attributes, self._store, self._site = attributes, store, site
        self._queues_with_writer: list[_core.EventQueue] = []  # The queues whose logs have a writer.

    @property
    def store_name(self) -> str:
        return self._store.name if self._store is not None else ""

    def partitions(self, kind: str) -> int | None:
        """Returns how many partitions the log of that kind has. None: there is no log."""
        partitions = self._store.made_for(self._owner(kind)).get("partitions") if self._store is not None else None
        return (
            partitions if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0 else None
        )

    def options(self, kind: str, partitions: int) -> dict[str, Any]:
        """Returns the options with which a queue of this `kind` ("queue" or "parked") is opened, so that it finds its
        log."""
        a, store = self._attributes, self._store
        if store is None:
            return {}
        place = store.log_place(
            self._owner(kind),
            {
                "kind": kind,
                "sender": a.core_id,
                "remote_distributed_system_id": next(iter(a.reaches), None),
                "parallel": a.parallel,
                "partitions": partitions,
                "site": self._site,
            },
        )
        # Failed events find room also in a full store: the queue cannot go on until they are parked.
        return {
            "log_directory": place.folder,
            "log_id": drawn_number(63) | 1,
            "synchronous": a.disk_synchronous,
            "log_budget": place.budget,
            "log_known": place.known,
            "log_may_use_reserve": kind == "parked",
            "flush_ms": min(store.attributes.time_interval, FLUSH_LIMIT_MS),
        }

    def start(self, queues: dict[str, _core.EventQueue]) -> None:
        """Starts the threads of the disk store that write the logs of these queues, by their kind. If one cannot start,
        none does."""
        if self._store is None:
            return
        self._queues_with_writer = list(queues.values())
        try:
            for kind, queue in queues.items():
                self._store.start_writer(self._owner(kind), f"{self._attributes.thread_name}-log", queue.commit_loop)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Tells the logs to end when all that was enqueued is written. The disk store waits for that."""
        for queue in self._queues_with_writer:
            queue.stop_log()

    def forget(self) -> None:
        """Removes the logs of a sender that is destroyed."""
        if self._store is not None:
            for kind in ("queue", "parked"):
                self._store.forget(self._owner(kind))

    def trouble(self) -> str | None:
        """Returns why one of the logs is not written now. None: they are written."""
        for queue in self._queues_with_writer:
            failing: str | None = queue.log_state().get("failing")
            if failing:
                return failing
        return None

    def _owner(self, kind: str) -> str:
        return f"{kind}-{self._attributes.core_id}"
