"""Owns the thread that notifies the listeners of a region that several members hold (docs/decisions/0076)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import start_essential

if TYPE_CHECKING:
    from pywan.callbacks import CacheListener
    from pywan.region.member_region import MemberRegion

log = logging.getLogger("pywan.region")

WAIT_MS = 500  # How long the thread waits for a change before it checks for the end.
STOP_S = 5.0  # How long the end of the region waits for a running listener.


class Listening:
    """Notifies the listeners of a region of every replicated change for which the member is responsible.

    A single thread notifies, one change at a time, for every key in order. No replication link and no client waits for
    the thread. The thread holds no lock while a listener runs.
    """

    def __init__(self, region: MemberRegion, changelog: _core.Changelog) -> None:
        self._region, self._changelog = region, changelog
        self._ends = False
        self._lock = threading.Lock()
        # Dropped changes that were logged already. The lock guards both fields.
        self._said, self._said_in_all = {"dropped": 0, "forgotten": 0}, 0
        self._lines = Lines(log)
        what = f"region {region.name}: its listeners are not told"
        self._thread = start_essential(what, f"pywan-listeners-{region.name}", self._run)

    def _run(self) -> None:
        """Delivers one notification after another. A notification that failed counts as delivered when the thread
        begins again."""
        self._region.callbacks.wait_until_shared()
        _core.call_for_listeners()
        while not self._ends:
            told = self._region.callbacks.notify_listeners(self._changelog, WAIT_MS)
            if told and not self._ends and self._changelog.notifications_dropped != self._said_in_all:
                self.watch()

    def watch(self) -> None:
        """Drops changes that wait for a stuck listener, if callers wait for the room. Logs how many changes were
        dropped since the last call, and the name of the listener."""
        self._changelog.relieve()
        callbacks = self._region.callbacks
        listeners = (callbacks.told,) if callbacks.told is not None else callbacks.listeners
        with self._lock:
            state = self._changelog.notifications_state()
            dropped, forgotten = (state[name] - self._said[name] for name in ("dropped", "forgotten"))
            self._said = {name: state[name] for name in self._said}
            self._said_in_all = sum(self._said.values())
        if dropped:
            self._lines.warning(
                "region %s: the listener %s stood still at one change for %.1f s: %d changes that waited for it were"
                " dropped, and the rest of the site goes on",
                self._region.name,
                ", ".join(_name_of(each) for each in listeners),
                max(state["standing_us"], state["stood_us"]) / 1e6,
                dropped,
            )
        if forgotten:
            self._lines.warning(
                "region %s: a listener of another member stands still: %d changes not yet delivered to that listener"
                " were dropped here; if this member takes over, its listeners will not receive these changes",
                self._region.name,
                forgotten,
            )

    def state(self) -> dict[str, int]:
        """Returns the bytes of pending notifications, the time of the running listener at its change, and the number of
        dropped changes, as `Changelog.notifications_state`."""
        return self._changelog.notifications_state()

    def stop(self) -> None:
        """Ends the thread when the running listener has returned. Waiting changes are dropped, and counted."""
        self._ends = True
        dropped = self._changelog.end_notifications()
        self.watch()
        if dropped:
            log.warning(
                "region %s: it was closed before its listeners were told of %d changes", self._region.name, dropped
            )
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)


def _name_of(listener: CacheListener) -> str:
    """The name of the listener's class. The `repr` of a listener is user code, and must not end the thread, or the
    thread of the housekeeper."""
    return f"{type(listener).__module__}.{type(listener).__qualname__}"
