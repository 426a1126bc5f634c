"""Owns the thread for the periodic checks of a member: tombstones, logs, clock, senders of regions, abandoned rows, and
freed memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pywan import _core
from pywan.base.clocks import clock_trouble
from pywan.base.lines import Lines
from pywan.base.threads import start_essential
from pywan.errors import PywanError
from pywan.member.regions import Regions
from pywan.member.senders import Senders
from pywan.member.staging import RowStages
from pywan.member.state import MemberState
from pywan.member.tombstones import Tombstones

log = logging.getLogger("pywan.cache")

HOUSEKEEPING_S = 5.0
DISK_LOOK_S = 0.2  # Interval while tombstones wait for a disk.
TRIM_BYTES = 16 << 20  # After this many bytes freed by regions and logs, the process gives memory back.


class Housekeeper:
    """The thread. The thread runs from `start` until the member is closed and its bell is rung."""

    def __init__(
        self,
        state: MemberState,
        regions: Regions,
        senders: Senders,
        tombstones: Tombstones,
        stages: RowStages,
        say_other_senders: Callable[[float], object],
    ) -> None:
        """`say_other_senders`: logs regions whose senders differ between members for too long."""
        self._stages, self._say_other_senders = stages, say_other_senders
        self._state, self._regions, self._senders, self._tombstones = state, regions, senders, tombstones
        self._thread: threading.Thread | None = None
        self._lines = Lines(log)

    def start(self, gives_up: Callable[[str], object]) -> None:
        """Starts the thread. IllegalStateError: the system has no thread. `gives_up`: called with the reason if the
        thread cannot go on."""
        name = self._state.name
        self._thread = start_essential(
            f"member {name} cannot start", f"{name}-housekeeping", self._keep_house, gives_up=gives_up
        )

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread, then saves the tombstone watermarks of other sites."""
        if self._thread is not None:
            self._thread.join(timeout)
            self._tombstones.sources.save()

    def _keep_house(self) -> None:
        """Checks the member every few seconds, and when the bell rings."""
        is_waiting = False  # Whether tombstones can be dropped as soon as a disk has stored written data.
        while not self._state.closed.is_set():
            was_called = self._state.bell.wait(min(HOUSEKEEPING_S, DISK_LOOK_S) if is_waiting else HOUSEKEEPING_S)
            if self._state.closed.is_set():
                return
            # The bell counts destroyed keys, including keys put again since. A new count may be within the limit.
            if was_called and not self._regions.watch_tombstones():
                continue
            try:
                is_waiting = self._tombstones.tell_and_forget()
            except (PywanError, MemoryError) as error:
                log.error("member %s: its tombstones were not checked, and stay for now: %s", self._state.name, error)
            for sender in self._senders.cores():
                self._watch_log(sender.label, sender.logs.trouble())
            for region in self._regions.all():
                self._watch_log(f"region {region.name}", region.log_trouble())
                region.watch_listeners()
            self._watch_clock()
            self._say_other_senders(time.monotonic())
            self._stages.drop_expired(time.monotonic())
            _core.trim_memory(TRIM_BYTES)

    def _watch_log(self, what: str, reason: str | None) -> None:
        """Logs the reason why a log cannot be written: after a change of the reason, and once a minute while the reason
        lasts."""
        if reason is None:
            if self._lines.ended(what):
                log.info("%s: its log is written again", what)
        else:
            self._lines.error(
                "%s: its log is not written: %s; changes that are not written yet wait in memory, and new changes are"
                " refused until the disk takes them (a full store accepts only destroys and shorter values)",
                what,
                reason,
                once=(what, reason),
            )

    def _watch_clock(self) -> None:
        """Logs trouble of the clock: after a change of the trouble, and once a minute while the trouble lasts."""
        for stamp in self._tombstones.sources.clocks():
            self._state.clock.receive(stamp)
        trouble = clock_trouble(self._state.clock)
        if trouble is None:
            if self._lines.ended("clock"):
                log.info(
                    "member %s follows its clock again, and its stamps are not ahead of it any more", self._state.name
                )
        else:
            once = ("clock", trouble.kind)
            self._lines.error("the clock of member %s: %s", self._state.name, trouble.text, once=once)
