"""Owns the thread that looks after a member: tombstones, logs that are not written, the clock, memory that was
freed."""

from __future__ import annotations

import logging
import threading
import time

from pywan import _core
from pywan.base.clocks import clock_trouble
from pywan.base.threads import start_thread
from pywan.errors import PywanError
from pywan.member.regions import Regions
from pywan.member.senders import Senders
from pywan.member.state import MemberState
from pywan.member.tombstones import Tombstones

log = logging.getLogger("pywan.cache")

HOUSEKEEPING_S = 5.0
DISK_LOOK_S = 0.2  # Until a look at tombstones that wait for a disk.
TROUBLE_S = 60.0  # How often a log that cannot be written is told again.
TRIM_BYTES = 16 << 20  # When so much was freed by regions and logs the process gives it back to the system.


class Housekeeper:
    """From `start` until the member is closed and its bell rung."""

    def __init__(self, state: MemberState, regions: Regions, senders: Senders, tombstones: Tombstones) -> None:
        self._state, self._regions, self._senders, self._tombstones = state, regions, senders, tombstones
        self._thread: threading.Thread | None = None
        # Its thread's: what is wrong with a log or the clock, and when that was said.
        self._troubles: dict[str, tuple[str, float]] = {}

    def start(self) -> None:
        name = self._state.name
        self._thread = start_thread(f"member {name} cannot start", f"{name}-housekeeping", self._keep_house)

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)
            self._tombstones.sources.save()

    def _keep_house(self) -> None:
        is_waiting = False  # Tombstones go as soon as the disk knows that they may be gone.
        while True:
            was_called = self._state.bell.wait(min(HOUSEKEEPING_S, DISK_LOOK_S) if is_waiting else HOUSEKEEPING_S)
            if self._state.closed.is_set():
                return
            # A bell tells what was destroyed, not what came back since: counted anew, that may still be within the
            # limit.
            if was_called and not self._regions.watch_tombstones():
                continue
            try:
                is_waiting = self._tombstones.tell_and_forget()
            except (PywanError, MemoryError) as error:
                log.error("member %s: tombstones were not looked at, and stay: %s", self._state.name, error)
            for sender in self._senders.cores():
                self._watch_log(f"gateway sender {sender.id}", sender.logs.trouble())
            for region in self._regions.all():
                self._watch_log(f"region {region.name}", region.log_trouble())
            self._watch_clock()
            _core.trim_memory(TRIM_BYTES)

    def _watch_log(self, what: str, reason: str | None) -> None:
        """Says why a log takes nothing, when that changes and once a minute while it lasts."""
        if reason is None:
            if self._troubles.pop(what, None) is not None:
                log.info("%s: its log is written again", what)
        elif self._is_due(what, reason):
            log.error(
                "%s: its log is not written: %s; what is staged waits in memory, and new changes are refused"
                " until the disk takes it",
                what,
                reason,
            )

    def _watch_clock(self) -> None:
        """Says what is wrong with the clock, when that changes and once a minute while it lasts."""
        for stamp in self._tombstones.sources.clocks():
            self._state.clock.hear(stamp)
        trouble = clock_trouble(self._state.clock)
        if trouble is None:
            if self._troubles.pop("clock", None) is not None:
                log.info(
                    "the clock of member %s is followed, and its stamps are not ahead of it any more", self._state.name
                )
        elif self._is_due("clock", trouble.kind):
            log.error("the clock of member %s: %s", self._state.name, trouble.text)

    def _is_due(self, what: str, reason: str) -> bool:
        """Whether that is to be said now; then it counts as said."""
        said, at = self._troubles.get(what, (None, 0.0))
        if reason == said and time.monotonic() - at <= TROUBLE_S:
            return False
        self._troubles[what] = reason, time.monotonic()
        return True
