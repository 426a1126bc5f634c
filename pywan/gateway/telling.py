"""Owns what one gateway sender tells its receivers about destroyed keys: below which stamps nothing comes from it any
more, and, when it is destroyed, that nothing comes at all."""

from __future__ import annotations

import logging
import threading
import time

from pywan import _core
from pywan.gateway.dispatchers import Dispatchers
from pywan.gateway.floors import GOODBYE, Floors, QueueFloors, encode_floors
from pywan.gateway.parked import ParkedEvents

log = logging.getLogger("pywan.sender")

GOODBYE_S = 2.0  # How long a sender that is destroyed waits for its receivers to hear it.


class FloorTelling:
    """`tell` belongs to the member's housekeeper; after `say_goodbye` it says nothing."""

    def __init__(
        self,
        id: str,
        *,
        site: int,
        remote_site: int,
        low: int,
        queue: _core.EventQueue,
        parked: ParkedEvents,
        dispatchers: Dispatchers,
    ) -> None:
        self._id, self._site, self._remote_site = id, site, remote_site
        self._queue, self._parked, self._dispatchers = queue, parked, dispatchers
        self._floors = QueueFloors(site, low)
        self._lock = threading.Lock()  # One word to the receivers at a time.
        self._is_over = False

    def tell(self, still_coming: Floors) -> None:
        """`still_coming`: of what can still be queued, by site of origin."""
        positions = self._queue.positions()
        parked = self._parked.queue.lowest_copied(until_empty=True)
        floors = self._floors.look(positions, parked, self._queue.lowest_copied(), still_coming)
        with self._lock:
            if not self._is_over:
                for each in self._dispatchers:
                    each.session.tell_floors(encode_floors(floors))

    def say_goodbye(self) -> None:
        """The receivers that it is connected to hear that nothing more comes from here: they keep no destroyed keys for
        it. Others need `forget site`."""
        self._dispatchers.pause(True)
        with self._lock:
            self._is_over = True
            for each in self._dispatchers:
                each.session.tell_floors(GOODBYE)
        deadline = time.monotonic() + (GOODBYE_S if not self._dispatchers.is_own_thread() else 0)
        while any(each.connection is not None and not each.session.floors_are_heard for each in self._dispatchers):
            left = deadline - time.monotonic()
            if left <= 0 or self._dispatchers.wait_stopping(min(left, 0.005)):
                log.warning(
                    "gateway sender %s is destroyed, and its receiver did not answer that it knows: destroyed"
                    " keys may be kept for it at site %d until that is told to forget this one (forget site"
                    " --distributed-system-id=%d)",
                    self._id,
                    self._remote_site,
                    self._site,
                )
                return
