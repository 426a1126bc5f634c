"""Owns the thread that tells the listeners of a region that several members hold (docs/decisions/0061)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pywan import _core

if TYPE_CHECKING:
    from pywan.region.member_region import MemberRegion

log = logging.getLogger("pywan.region")

WAIT_MS = 500  # How long the thread waits for a change before it looks whether it is to end.
STOP_S = 5.0  # How long the end of the region waits for a listener that is being told.


class Listening:
    """Tells the listeners of a region of each change that this member makes as primary, or follows as a copy.

    One thread does so, in the order in which the changes came into effect here. No lane and no caller waits for it.
    """

    def __init__(self, region: MemberRegion, tail: _core.Tail) -> None:
        self._region, self._tail = region, tail
        self._ends = False
        self._thread = threading.Thread(target=self._run, name=f"pywan-listeners-{region.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._region.refresh_path()  # Listeners need no detour any more.
        while not self._ends:
            for happened in self._tail.take_heard(WAIT_MS):
                if self._ends:
                    return
                self._region.callbacks.tell_heard(*happened)

    def stop(self) -> None:
        """Ends the thread when the listener that runs has returned. Changes that wait are dropped, and counted."""
        self._ends = True
        dropped = self._tail.end_hearing()
        if dropped:
            log.warning(
                "region %s: it was closed before its listeners were told of %d changes", self._region.name, dropped
            )
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
