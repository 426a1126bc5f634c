"""Owns the time for which a member's regions keep tombstones. The member's senders tell tombstone watermarks to other
sites, and senders of other sites tell theirs to this member."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pywan import _core
from pywan.gateway.floors import Floor, SourceFloors, format_stamp
from pywan.member.regions import Regions
from pywan.member.senders import Senders
from pywan.member.state import MemberState

# Minimum age of a dropped tombstone. Tombstone watermarks do not cover stamps given by callers.
TOMBSTONE_AGE_MS = 60_000
FLOORS_SAVED_S = 60.0


class Tombstones:
    """The tombstones of all regions of a member. `lock` is held while tombstone watermarks are computed and told, and
    while tombstones are dropped."""

    def __init__(self, state: MemberState, regions: Regions, senders: Senders, file: Path | None) -> None:
        self._state, self._regions, self._senders = state, regions, senders
        self.sources = SourceFloors(state.site, file, lambda: state.clock.now_ms)
        self.lock = threading.Lock()
        # The upper limit of our own tombstone watermark while the clock is repaired. None: no repair runs.
        self._own_floor_limit: int | None = None
        self._saved_at = time.monotonic()

    def tell_and_forget(self) -> bool:
        """Tells remote sites our tombstone watermarks, and drops the tombstones below the watermarks of all sources.

        Returns whether more tombstones can be dropped as soon as a disk has stored written data.
        """
        with self.lock:
            return self._tell()

    def begin_repair(self, core: _core.ClockRepair) -> bool:
        """Begins a repair of the clock. Returns whether the clock was ahead.

        The tombstone watermarks told by a clock ahead of time are revoked first, because changes from now on have
        earlier stamps.
        """
        with self.lock:
            was_ahead = core.begin()
            self._own_floor_limit = core.began
            self._tell()
        return was_ahead

    @contextlib.contextmanager
    def repairing(self) -> Iterator[None]:
        """A context. At the end of the context our own tombstone watermark, which `begin_repair` keeps low, may rise
        again."""
        try:
            yield
        finally:
            with self.lock:
                self._own_floor_limit = None

    def held_by(self) -> str:
        """Names the sender that keeps tombstones from being dropped: the sender that may still send the oldest event.
        "" if no sender feeds this member."""
        stamp, who = self.sources.lowest()
        return who and f"{who}, which may send events from {format_stamp(stamp)} on"

    def _tell(self) -> bool:
        """Does the work of `tell_and_forget`. The caller holds the lock."""
        low = self._state.clock.raise_low() if self._own_floor_limit is None else self._own_floor_limit
        for region in self._regions.all():
            region.fix_stamps()
        self.sources.begin_look()
        for sender in self._senders.cores():
            if sender.floors is None:
                continue
            reached = self._regions.reached_with(sender)
            coming = self.sources.forwarded(min(sender.attributes.reaches), reached)
            sender.floors.tell({**coming, self._state.site: Floor(low, reached)})
        below = min(low, self.sources.lowest()[0])
        is_waiting = self._regions.keep_tombstones(below, int(time.time() * 1000) - TOMBSTONE_AGE_MS)
        if time.monotonic() - self._saved_at >= FLOORS_SAVED_S:
            self._saved_at = time.monotonic()
            self.sources.save()
        return is_waiting
