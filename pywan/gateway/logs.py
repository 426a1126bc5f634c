"""Owns where the logs of one gateway sender stand: its queue's and that of its parked events, in a disk store."""

from __future__ import annotations

import secrets
from typing import Any

from pywan import _core
from pywan.config.attributes import SenderAttributes
from pywan.disk.store import StoreCore

# Without disk-synchronous: an event is sent only when it is on the disk, so that delay is kept short.
FLUSH_LIMIT_MS = 10


class SenderLogs:
    """The logs of one sender; without a disk store (`store` is None) there are none, and its events end with the
    process."""

    def __init__(self, attributes: SenderAttributes, store: StoreCore | None, site: int) -> None:
        self._attributes, self._store, self._site = attributes, store, site
        self._queues_with_writer: list[_core.EventQueue] = []  # The queues whose logs have a writer.

    @property
    def store_name(self) -> str:
        return self._store.name if self._store is not None else ""

    def partitions(self, kind: str) -> int | None:
        """How many partitions the log of that kind has; None: there is no log."""
        partitions = self._store.made_for(self._owner(kind)).get("partitions") if self._store is not None else None
        return (
            partitions if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0 else None
        )

    def options(self, kind: str, partitions: int) -> dict[str, Any]:
        """What a queue of this `kind` ("queue", "parked") is opened with, so that it finds its log."""
        a, store = self._attributes, self._store
        if store is None:
            return {}
        place = store.log_place(
            self._owner(kind),
            {
                "kind": kind,
                "sender": a.id,
                "remote_distributed_system_id": a.remote_distributed_system_id,
                "parallel": a.parallel,
                "partitions": partitions,
                "site": self._site,
            },
        )
        # Events that failed find room also in a full store: until they are kept apart, the queue cannot go on.
        return {
            "log_directory": place.folder,
            "log_id": secrets.randbits(63) | 1,
            "synchronous": a.disk_synchronous,
            "log_budget": place.budget,
            "log_known": place.known,
            "log_may_use_reserve": kind == "parked",
            "flush_ms": min(store.attributes.time_interval, FLUSH_LIMIT_MS),
        }

    def start(self, queues: dict[str, _core.EventQueue]) -> None:
        """The disk store writes the logs of these queues, by their kind, from now on. If one cannot be, none is."""
        if self._store is None:
            return
        self._queues_with_writer = list(queues.values())
        try:
            for kind, queue in queues.items():
                self._store.start_writer(self._owner(kind), f"sender-{self._attributes.id}-log", queue.commit_loop)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """They end with what was enqueued. The disk store waits for that."""
        for queue in self._queues_with_writer:
            queue.stop_log()

    def forget(self) -> None:
        """The sender is destroyed: its logs go."""
        if self._store is not None:
            for kind in ("queue", "parked"):
                self._store.forget(self._owner(kind))

    def trouble(self) -> str | None:
        """Why one of them is not written now; None: they are."""
        for queue in self._queues_with_writer:
            failing: str | None = queue.log_state().get("failing")
            if failing:
                return failing
        return None

    def _owner(self, kind: str) -> str:
        return f"{kind}-{self._attributes.id}"
