"""Owns a region as its member works with it: its log, the senders that take its events, its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pywan import _core, forks
from pywan.callbacks import CacheListener, GatewayConflictResolver
from pywan.config.attributes import RegionAttributes
from pywan.config.values import DiskLevel
from pywan.errors import RegionNotFoundError
from pywan.region.callback_path import CallbackPath
from pywan.region.region import Region

log = logging.getLogger("pywan.region")


class MemberRegion(_core.RegionCore):
    """What a `Region` has. The table, the put path and the log are compiled (see pywan._core).

    `alter(region, changes)` is how the member changes its attributes.
    """

    def __init__(
        self,
        name: str,
        clock: _core.Clock,
        *,
        site: int,
        member: int,
        stores: bool,
        forwards: bool,
        buckets: int,
        attributes: RegionAttributes,
        listeners: Iterable[CacheListener] = (),
        resolver: GatewayConflictResolver | None = None,
        alter: Callable[[MemberRegion, dict[str, Any]], None] | None = None,
    ) -> None:
        self.attributes = attributes
        self.callbacks = CallbackPath(self, site, listeners, resolver)
        self.face: Region[Any, Any] = Region(self)
        self._alter = alter
        self.set_slow(self._way())

    @property
    def gateway_sender_ids(self) -> tuple[str, ...]:
        return tuple(self.attributes.gateway_sender_ids)

    # Its log

    def make_persistent(
        self,
        directory: str,
        *,
        log_id: int,
        synchronous: DiskLevel,
        flush_ms: int,
        start_writer: Callable[[str, Callable[[], None]], None],
        **room: Any,
    ) -> None:
        """Recovers what the log in `directory` holds and logs every change from now on, within the `room` of its disk
        store, which runs its writer in a thread (by name) with `start_writer`, and waits for it. Before the region is
        used."""
        recovery = self.open_log(directory, log_id=log_id, synchronous=synchronous, flush_ms=flush_ms, **room)
        if recovery["cut_bytes"]:
            log.warning(
                "region %s: the log ended with what was not synced, and is not whole; %d bytes were cut",
                self.name,
                recovery["cut_bytes"],
            )
        if recovery["records"]:
            log.info(
                "region %s: %d entries recovered from %d records", self.name, recovery["entries"], recovery["records"]
            )
        start_writer(f"region-{self.name}-log", self.commit_loop)

    def log_trouble(self) -> str | None:
        """Why its log is not written now; None: it is."""
        return self.log_state().get("failing")

    def say_unwritten(self) -> None:
        """After its log has ended: why some of it could not be written."""
        failing = self.log_state().get("failing")
        if failing:
            log.error("region %s: the newest changes could not be written: %s", self.name, failing)

    def close(self) -> None:
        """Every operation is refused from now on, and the log of a persistent region ends with what was changed: who
        runs its writer waits for that. In a child that was forked: nothing."""
        if self.is_inherited:
            return
        super().close()
        self.stop_log()
        self.release_entries()

    # What is on the way of its changes

    def attach_senders(self, senders: Iterable[Any]) -> None:
        """The member says which senders (SenderCore) take this region's events."""
        by_queue = {sender.queue: sender for sender in senders}
        with self.callbacks.lock:
            self.callbacks.set_senders(by_queue)
            self.attach(
                by_queue, self._way(), [queue for queue, sender in by_queue.items() if sender.filters.decides_enqueue]
            )

    def add_listener(self, listener: CacheListener) -> None:
        self.check_usable()
        with self.callbacks.lock:
            self.callbacks.add_listener(listener)
            self.set_slow(self._way())

    def set_resolver(self, resolver: GatewayConflictResolver | None) -> None:
        self.check_not_inherited()
        with self.callbacks.lock:
            self.callbacks.set_resolver(resolver)
            self.set_slow(self._way())

    def _way(self) -> Callable[..., str] | None:
        """How changes go from now on: through the user's callbacks, where there are any."""
        return self.callbacks.change_locally if self.callbacks.is_needed else None

    def alter(self, changes: dict[str, Any]) -> None:
        assert self._alter is not None
        self.check_not_inherited()
        self._alter(self, changes)

    # Whether it can be used

    def check_not_inherited(self) -> None:
        """Before a lock is taken: in a forked child it may be held by a thread of the parent."""
        if self.is_inherited:
            raise forks.error(f"region {self.name!r}")

    def check_usable(self) -> None:
        """Before what changes, reads or waits: with nothing to do it would answer as if the region were there. What
        describes it answers always."""
        self.check_not_inherited()
        if self.is_closed:
            raise RegionNotFoundError(f"region {self.name!r} was destroyed, or its cache closed; nothing was changed")
