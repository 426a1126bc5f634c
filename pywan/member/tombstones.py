"""Owns how long a member's regions remember destroyed keys: what its senders tell other sites of that, and what those
told."""

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

# A destroyed key is remembered for so long whatever floors say: stamps that callers give are in none of them.
TOMBSTONE_AGE_MS = 60_000
FLOORS_SAVED_S = 60.0


class Tombstones:
    """`lock` is held while floors are found and told, and while tombstones go."""

    def __init__(self, state: MemberState, regions: Regions, senders: Senders, file: Path | None) -> None:
        self._state, self._regions, self._senders = state, regions, senders
        self.sources = SourceFloors(state.site, file, lambda: state.clock.now_ms)
        self.lock = threading.Lock()
        # While the clock is repaired: the stamp that our own floor does not rise above.
        self._own_floor_limit: int | None = None
        self._saved_at = time.monotonic()

    def tell_and_forget(self) -> bool:
        """Tells the remote sites below which stamps nothing comes from here any more, and drops the tombstones that
        what they told makes needless. Whether some more go as soon as a disk has taken something."""
        with self.lock:
            return self._tell()

    def begin_repair(self, core: _core.ClockRepair) -> bool:
        """Whether the clock was ahead. What was promised while it was is taken back first: what comes now has earlier
        stamps."""
        with self.lock:
            was_ahead = core.begin()
            self._own_floor_limit = core.began
            self._tell()
        return was_ahead

    @contextlib.contextmanager
    def repairing(self) -> Iterator[None]:
        """What `begin_repair` keeps low rises again in the end."""
        try:
            yield
        finally:
            with self.lock:
                self._own_floor_limit = None

    def held_by(self) -> str:
        """What keeps destroyed keys remembered: the sender that may still send the oldest event; "" if nobody feeds
        this member."""
        stamp, who = self.sources.lowest()
        return who and f"{who}, which may send events from {format_stamp(stamp)} on"

    def _tell(self) -> bool:
        low = self._state.clock.raise_low() if self._own_floor_limit is None else self._own_floor_limit
        for region in self._regions.all():
            region.fix_stamps()
        self.sources.begin_look()
        for sender in self._senders.cores():
            reached = self._regions.reached_with(sender)
            coming = self.sources.forwarded(sender.attributes.remote_distributed_system_id, reached)
            sender.floors.tell({**coming, self._state.site: Floor(low, reached)})
        below = min(low, self.sources.lowest()[0])
        is_waiting = self._regions.keep_tombstones(below, int(time.time() * 1000) - TOMBSTONE_AGE_MS)
        if time.monotonic() - self._saved_at >= FLOORS_SAVED_S:
            self._saved_at = time.monotonic()
            self.sources.save()
        return is_waiting
