"""Owns the member's side of a region: the log, the senders of the events, and the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from pywan import _core, forks
from pywan.base.faces import counted
from pywan.callbacks import CacheListener, GatewayConflictResolver
from pywan.config.attributes import CALLBACK_METHODS, RegionAttributes
from pywan.config.classes import make_instance
from pywan.config.values import DiskLevel
from pywan.errors import RegionNotFoundError
from pywan.region.callback_path import CallbackPath
from pywan.region.listening import Listening
from pywan.region.region import Region

log = logging.getLogger("pywan.region")


class MemberRegion(_core.RegionCore):
    """The core of a `Region`. The table, the path of a put and the log are compiled (see pywan._core).

    The member changes its attributes through `alter(region, changes)`.
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
        # Guards the choice and the publishing of the path of changes. The holder waits for no callback.
        self._path_lock = threading.Lock()
        # For a region that several members hold. `_listening` is made once the region has listeners. The lock guards
        # both.
        self._listening_lock = threading.Lock()
        self._shared_changelog: _core.Changelog | None = None
        self._each_tells = False  # All members with a replica notify their own listeners, whatever the interest policy.
        self._listening: Listening | None = None
        self._alter = alter
        self.set_callback_path(self._path())

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
        """Recovers the entries that the log in `directory` holds, and logs every change from now on.

        Call the method before the region is used. `room` is the size that the disk store allows the log. `start_writer`
        is a function of the store: it runs the log's writer in a thread. The store waits for the end of the thread.
        """
        recovery = self.open_log(directory, log_id=log_id, synchronous=synchronous, flush_ms=flush_ms, **room)
        if recovery["cut_bytes"]:
            log.warning(
                "region %s: the end of its log was not synced, and is not whole; %d bytes were cut",
                self.name,
                recovery["cut_bytes"],
            )
        if recovery["records"]:
            log.info(
                "region %s: %d entries recovered from %d records", self.name, recovery["entries"], recovery["records"]
            )
        start_writer(f"region-{self.name}-log", self.commit_loop)

    def log_trouble(self) -> str | None:
        """Returns why writing the region's log fails now. None: writing does not fail."""
        return self.log_state().get("failing")

    def say_unwritten(self) -> None:
        """Logs why some changes could not be written. Call the method after the log has ended."""
        failing = self.log_state().get("failing")
        if failing:
            count, keys = self.unwritten()
            if not count:
                log.error("region %s: the end of its log could not be written: %s", self.name, failing)
                return
            log.error(
                "region %s: %s not on the disk and lost with this process, of the keys %s%s: %s",
                self.name,
                f"{counted(count, 'change')} {'is' if count == 1 else 'are'}",
                ", ".join(map(repr, keys)),
                " and others" if count > len(keys) else "",
                failing,
            )

    def close(self) -> None:
        """Refuses every operation from now on. The log of a persistent region ends when all changes are written.

        The disk store waits for the log's writer. In a forked child the method does nothing.
        """
        if self.is_inherited:
            return
        super().close()
        with self._listening_lock:
            listening, self._shared_changelog = self._listening, None
        if listening is not None:
            listening.stop()
        self.stop_log()
        self.release_entries()

    # Callbacks and senders on the path of changes

    def attach_senders(self, senders: Iterable[Any]) -> None:
        """Connects the region to the senders (SenderCore) that take the region's events. Called by the member."""
        by_queue = {sender.queue: sender for sender in senders}
        asking = [queue for queue, sender in by_queue.items() if sender.filters.decides_enqueue]
        with self.callbacks.lock:
            self.callbacks.set_senders(by_queue)
            with self._path_lock:
                self.attach(by_queue, self._path(), asking)

    def end_feeds(self, now: bool = False) -> bool:
        """As `RegionCore.end_feeds`."""
        with self.callbacks.lock, self._path_lock:
            return super().end_feeds(now)

    def add_listener(self, listener: CacheListener) -> None:
        self.check_usable()
        listener = make_instance(listener, f"region {self.name!r}: add_listener", CALLBACK_METHODS["cache_listeners"])
        with self.callbacks.lock:
            self.callbacks.add_listener(listener)
            self._publish_path()
        self._listen()

    def share(
        self, changelog: _core.Changelog, route: Any, reads_replicas: bool = False, content: bool = False
    ) -> None:
        """As `RegionCore.share`. If each member has a replica (`reads_replicas`), or by interest policy ALL, this
        member notifies its listeners of the changes of all its replicas; otherwise of the buckets with this member as
        primary. The method waits for no callback."""
        with self._listening_lock:
            self._each_tells = reads_replicas
            if self.callbacks.listeners:
                self._keep_notifications(changelog)  # Before the first change, so that listeners get every change once.
            super().share(changelog, route, reads_replicas, content)
            self._shared_changelog = changelog
        self._publish_path()
        self._listen()

    def _listen(self) -> None:
        with self._listening_lock:
            if self._shared_changelog is not None and self._listening is None and self.callbacks.listeners:
                self._keep_notifications(self._shared_changelog)
                self._listening = Listening(self, self._shared_changelog)

    def _keep_notifications(self, changelog: _core.Changelog) -> None:
        tells_replicas = self._each_tells or self.attributes.interest_policy == "all"
        changelog.keep_notifications(by_primary=not tells_replicas, says=not self._each_tells)

    def watch_listeners(self) -> None:
        """As `Listening.watch`, if the region has such a thread."""
        listening = self._listening
        if listening is not None:
            listening.watch()

    def listening_state(self) -> dict[str, int]:
        """Returns the pending notifications of the region's listeners, if several members hold the region: as
        `Changelog.notifications_state`."""
        listening = self._listening
        return listening.state() if listening is not None else {}

    def set_resolver(self, resolver: GatewayConflictResolver | None) -> None:
        self.check_not_inherited()
        with self.callbacks.lock:
            self.callbacks.set_resolver(resolver)
            self._publish_path()

    def _publish_path(self) -> None:
        with self._path_lock:
            if not self.is_closed:
                self.set_callback_path(self._path())

    def _path(self) -> Callable[..., str] | _core.FilterPath | None:
        """Returns the path of changes from now on: the function that asks the user's callbacks. None: no callbacks."""
        return self.callbacks.path if self.callbacks.is_needed else None

    def alter(self, changes: dict[str, Any]) -> None:
        assert self._alter is not None
        self.check_not_inherited()
        self._alter(self, changes)

    # Checks

    def check_not_inherited(self) -> None:
        """Raises IllegalStateError in a forked child. The check comes before a lock is taken: a thread of the parent
        may hold the lock."""
        if self.is_inherited:
            raise forks.error(f"region {self.name!r}")

    def check_usable(self) -> None:
        """Raises an error if the region was destroyed or inherited. Every method that changes, reads or waits calls the
        check.

        Otherwise a call without any work would succeed as if the region existed. Calls that only describe the region
        always answer.
        """
        self.check_not_inherited()
        if self.is_closed:
            raise RegionNotFoundError(f"region {self.name!r} was destroyed, or its cache closed; nothing was changed")
