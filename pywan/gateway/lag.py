"""Owns how far the remote site of one gateway sender is behind, and the words for why."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.base.clocks import clock_trouble
from pywan.gateway.dispatchers import Dispatchers
from pywan.gateway.status import SenderStatus

DISK_SLOW_S = 0.1  # Events that wait for longer than this, most of them for the disk, do so since it is slow.
LOOK_S = 0.2  # A shorter while says no more than the one before.

Times = list[dict[str, int]]  # Of each dispatcher, in microseconds since it was made.


class Lag:
    """Asked by any thread. `status()` is the sender's."""

    def __init__(
        self,
        queue: _core.EventQueue,
        dispatchers: Dispatchers,
        clock: _core.Clock,
        status: Callable[[], SenderStatus],
        batch_time_interval: Callable[[], int],
    ) -> None:
        self._queue, self._dispatchers, self._clock, self._status = queue, dispatchers, clock, status
        self._batch_time_interval = batch_time_interval
        self._lock = threading.Lock()
        # Guarded by _lock: the last look, the times then, and the shares that it found.
        self._looked_at, self._times = time.monotonic(), self._measure()
        self._stopped_time_shares = dict.fromkeys(("filter", "blocked", "receiver", "held_back"), 0.0)

    def measure(self) -> dict[str, Any]:
        """Events, bytes, seconds (age of the oldest event), and the cause."""
        counts = self._queue.counts()
        oldest = self._queue.oldest_ms()
        seconds = max(0.0, time.time() - oldest / 1000) if oldest is not None else 0.0
        return {
            "events": counts["events"],
            "bytes": counts["bytes"],
            "seconds": round(seconds, 3),
            "cause": self._cause(counts["events"], seconds),
        }

    def _cause(self, events: int, seconds: float) -> str:
        status, broken = self._status(), self._queue.broken
        if broken:
            return f"broken: {broken}"
        if not status.is_running:
            return "stopped"
        log_state = self._queue.log_state()
        trouble = clock_trouble(self._clock)
        if log_state and log_state["failing"]:
            return f"disk: {log_state['failing']}"  # It takes no event now, whatever else there is.
        if events == 0:
            return f"clock: {trouble.text}" if trouble else "none"
        if status.is_paused:
            return "paused"
        if not status.is_connected:
            reason = self._dispatchers.trouble
            return f"link down: {reason}" if reason else "link down"
        for each in self._dispatchers:
            if each.session.unreadable_reason:
                return f"disk: {each.session.unreadable_reason}"
        for each in self._dispatchers:
            if each.hung_reason is not None:
                return f"link down: {each.hung_reason}"
        if trouble:
            return f"clock: {trouble.text}"
        if log_state and log_state["pending"] * 2 >= events and seconds > DISK_SLOW_S:
            return "disk slow"
        return self._busy_cause(seconds)

    def _busy_cause(self, seconds: float) -> str:
        """Events go, or could."""
        shares = self._time_shares()
        if shares["filter"] > max(0.3, shares["blocked"]):
            return "filter slow"
        is_late = seconds > 1.0 + self._batch_time_interval() / 1000
        is_sending = self._dispatchers.is_sending
        if shares["blocked"] > 0.3 or (is_late and is_sending):
            is_held_back = shares["held_back"] > 0.5
            is_stuck = any(each.is_left_waiting(is_held_back) for each in self._dispatchers)
            return "receiver slow" if shares["receiver"] > 0.5 or is_stuck else "link slow"
        return "in flight" if is_sending else "waiting for a batch to fill"

    def _time_shares(self) -> dict[str, float]:
        """Which part of the time since it was last asked the busiest dispatcher spent in callbacks ("filter") and
        waiting with events to send ("blocked"), its receiver worked ("receiver"), and its receiver's host had no room
        for more ("held_back")."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_S:
                times = self._measure()
                elapsed = (now - self._looked_at) * 1e6
                self._stopped_time_shares = {
                    name: max((new[name] - old[name]) / elapsed for new, old in zip(times, self._times, strict=True))
                    for name in times[0]
                }
                self._looked_at, self._times = now, times
            return self._stopped_time_shares

    def _measure(self) -> Times:
        return [each.times() for each in self._dispatchers]
