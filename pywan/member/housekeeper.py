"""Owns the thread that looks after a member: its tombstones, its logs, its clock, the senders of its regions, rows that
nobody came for, and the memory that was freed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pywan import _core
from pywan.base.clocks import clock_trouble
from pywan.base.threads import start_essential
from pywan.errors import PywanError
from pywan.member.regions import Regions
from pywan.member.senders import Senders
from pywan.member.staging import RowStages
from pywan.member.state import MemberState
from pywan.member.tombstones import Tombstones

log = logging.getLogger("pywan.cache")

HOUSEKEEPING_S = 5.0
DISK_LOOK_S = 0.2  # The time until the next look at tombstones that wait for a disk.
TROUBLE_S = 60.0  # The time after which the same trouble of a log or the clock is logged again.
TRIM_BYTES = 16 << 20  # When regions and logs have freed so many bytes, the process gives them back to the system.


class Housekeeper:
    """The thread. It runs from `start` until the member is closed and its bell is rung."""

    def __init__(
        self,
        state: MemberState,
        regions: Regions,
        senders: Senders,
        tombstones: Tombstones,
        stages: RowStages,
        say_other_senders: Callable[[float], object],
    ) -> None:
        """`say_other_senders`: logs where members have given a region different senders, for long enough."""
        self._stages, self._say_other_senders = stages, say_other_senders
        self._state, self._regions, self._senders, self._tombstones = state, regions, senders, tombstones
        self._thread: threading.Thread | None = None
        # Used by the thread only. For each log and for the clock: what is wrong with it, and when that was logged.
        self._troubles: dict[str, tuple[str, float]] = {}

    def start(self, gives_up: Callable[[str], object]) -> None:
        """Starts the thread. IllegalStateError if the system has none. `gives_up`: called with the reason if it cannot
        go on."""
        name = self._state.name
        self._thread = start_essential(
            f"member {name} cannot start", f"{name}-housekeeping", self._keep_house, gives_up=gives_up
        )

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, then saves the floors that other sites told."""
        if self._thread is not None:
            self._thread.join(timeout)
            self._tombstones.sources.save()

    def _keep_house(self) -> None:
        """Looks after the member every few seconds, or when the bell rings."""
        is_waiting = False  # Whether tombstones can go as soon as a disk has taken what was written.
        while not self._state.closed.is_set():
            was_called = self._state.bell.wait(min(HOUSEKEEPING_S, DISK_LOOK_S) if is_waiting else HOUSEKEEPING_S)
            if self._state.closed.is_set():
                return
            # The bell counts destroyed keys, also those that came back since. A new count may be within the limit.
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
        """Logs why a log cannot be written: when the reason changes, and once a minute while it lasts."""
        if reason is None:
            if self._troubles.pop(what, None) is not None:
                log.info("%s: its log is written again", what)
        elif self._is_due(what, reason):
            log.error(
                "%s: its log is not written: %s; changes that are not written yet wait in memory, and new changes are"
                " refused until the disk takes them (a full store takes what makes room: destroys, shorter values)",
                what,
                reason,
            )

    def _watch_clock(self) -> None:
        """Logs what is wrong with the clock: when it changes, and once a minute while it lasts."""
        for stamp in self._tombstones.sources.clocks():
            self._state.clock.hear(stamp)
        trouble = clock_trouble(self._state.clock)
        if trouble is None:
            if self._troubles.pop("clock", None) is not None:
                log.info(
                    "member %s follows its clock again, and its stamps are not ahead of it any more", self._state.name
                )
        elif self._is_due("clock", trouble.kind):
            log.error("the clock of member %s: %s", self._state.name, trouble.text)

    def _is_due(self, what: str, reason: str) -> bool:
        """Returns whether a trouble is to be logged now. The caller logs it then."""
        said, at = self._troubles.get(what, (None, 0.0))
        if reason == said and time.monotonic() - at <= TROUBLE_S:
            return False
        self._troubles[what] = reason, time.monotonic()
        return True
