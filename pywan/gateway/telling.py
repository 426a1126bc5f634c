"""Owns what one gateway sender tells its receivers about destroyed keys: its floors, and, when it is destroyed, that no
more events come from it."""

from __future__ import annotations

import logging
import threading
import time

from pywan import _core
from pywan.gateway.dispatchers import Dispatchers
from pywan.gateway.floors import GOODBYE, Floors, QueueFloors, encode_floors
from pywan.gateway.parked import ParkedEvents

log = logging.getLogger("pywan.sender")

GOODBYE_S = 2.0  # How long a sender that is destroyed waits until its receivers have heard of it.


class FloorTelling:
    """Tells floors to receivers. Only the member's housekeeper calls `tell`. After `say_goodbye` it does nothing."""

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
        self._lock = threading.Lock()  # Held while the receivers are told something.
        self._is_over = False

    def tell(self, still_coming: Floors) -> None:
        """Tells the receivers the floors of the queue. `still_coming` are the floors of what can still be queued, by
        site of origin."""
        positions = self._queue.positions()
        parked = self._parked.queue.lowest_copied(until_empty=True)
        floors = self._floors.look(positions, parked, self._queue.lowest_copied(), still_coming)
        with self._lock:
            if not self._is_over:
                for each in self._dispatchers:
                    each.session.tell_floors(encode_floors(floors))

    def say_goodbye(self) -> None:
        """Tells the connected receivers that no more events come from this sender, so that they keep no destroyed keys
        for it.

        Receivers that are not connected need the command `forget site`.
        """
        self._dispatchers.pause(True)
        with self._lock:
            self._is_over = True
            for each in self._dispatchers:
                each.session.tell_floors(GOODBYE)
        deadline = time.monotonic() + (GOODBYE_S if not self._dispatchers.is_own_thread() else 0)
        while any(each.end_open is not None and not each.session.floors_are_acked for each in self._dispatchers):
            left = deadline - time.monotonic()
            if left <= 0 or self._dispatchers.wait_stopping(min(left, 0.005)):
                log.warning(
                    "gateway sender %s is destroyed, and its receiver did not answer: site %d may keep destroyed keys"
                    " for it until it is told to forget this site (forget site --distributed-system-id=%d)",
                    self._id,
                    self._remote_site,
                    self._site,
                )
                return
