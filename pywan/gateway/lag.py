"""Owns how far the remote site of one gateway sender is behind, and the words for the reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.base.clocks import clock_trouble
from pywan.gateway.dispatchers import Dispatchers
from pywan.gateway.status import SenderStatus

DISK_SLOW_S = 0.1  # The disk is called slow if events wait for longer than this, and most of them wait for the disk.
LOOK_S = 0.2  # The shortest time over which shares are computed. Over a shorter one they would be noise.

Times = list[dict[str, int]]  # For each dispatcher: microseconds since it was made, by kind of work or waiting.


class Lag:
    """Measures the lag of one sender. Any thread may ask. `status()` returns the sender's status."""

    def __init__(
        self,
        queue: _core.EventQueue,
        dispatchers: Dispatchers,
        clock: _core.Clock,
        status: Callable[[], SenderStatus],
        batch_time_interval: Callable[[], int],
        lacks: Callable[[], list[str]] = list,
    ) -> None:
        """`lacks`: returns a text for each member that leads buckets and lacks the sender."""
        self._lacks = lacks
        self._queue, self._dispatchers, self._clock, self._status = queue, dispatchers, clock, status
        self._batch_time_interval = batch_time_interval
        self._lock = threading.Lock()
        # `_lock` guards these three: the time of the last look, the dispatchers' times then, and the shares found.
        self._looked_at, self._times = time.monotonic(), self._measure()
        self._stopped_time_shares = dict.fromkeys(("filter", "blocked", "receiver", "held_back"), 0.0)

    def measure(self) -> dict[str, Any]:
        """Returns "events", "bytes", "seconds" (the age of the oldest event), and "cause": why events wait, and
        which members lack the sender, so that their events are queued nowhere."""
        counts, lacks = self._queue.counts(), self._lacks()
        oldest = self._queue.oldest_ms()
        seconds = max(0.0, time.time() - oldest / 1000) if oldest is not None else 0.0
        cause = self._cause(counts["events"], seconds)
        return {
            "events": counts["events"],
            "bytes": counts["bytes"],
            "seconds": round(seconds, 3),
            "cause": "; ".join([*([] if lacks and cause == "none" else [cause]), *lacks]),
        }

    def _cause(self, events: int, seconds: float) -> str:  # noqa: PLR0911 - Each cause returns at once.
        """Returns why events wait, in words."""
        status, broken = self._status(), self._queue.broken
        if broken:
            return f"broken: {broken}"
        if not status.is_running:
            return "stopped"
        log_state = self._queue.log_state()
        trouble = clock_trouble(self._clock)
        if log_state and log_state["failing"]:
            return f"disk: {log_state['failing']}"  # The queue takes no event now, so no other cause matters.
        if events == 0:
            return f"clock: {trouble.text}" if trouble else "none"
        if status.is_paused:
            return "paused"
        if not status.is_connected:
            hung = (each.hung_reason for each in self._dispatchers)
            reason = self._dispatchers.trouble or next((each for each in hung if each is not None), None)
            word = self._dispatchers.ends.trouble_word
            return f"{word}: {reason}" if reason and word else reason or word
        for each in self._dispatchers:
            if each.session.unreadable_reason:
                return f"disk: {each.session.unreadable_reason}"
        for each in self._dispatchers:
            reason = each.hung_reason or each.unopened
            if reason is not None:
                word = self._dispatchers.ends.trouble_word
                return f"{word}: {reason}" if word else reason
        if trouble:
            return f"clock: {trouble.text}"
        if log_state and log_state["pending"] * 2 >= events and seconds > DISK_SLOW_S:
            return "disk slow"
        return self._busy_cause(seconds)

    def _busy_cause(self, seconds: float) -> str:
        """Returns the cause when events are being sent, or could be."""
        shares = self._time_shares()
        if shares["filter"] > max(0.3, shares["blocked"]):
            return "filter slow"
        is_late = seconds > 1.0 + self._batch_time_interval() / 1000
        is_sending = self._dispatchers.is_sending
        if shares["blocked"] > 0.3 or (is_late and is_sending):
            is_held_back = shares["held_back"] > 0.5
            is_stuck = any(each.is_left_waiting(is_held_back) for each in self._dispatchers)
            ends = self._dispatchers.ends
            return ends.slow_word if shares["receiver"] > 0.5 or is_stuck else ends.link_word
        if is_sending:
            return "in flight"
        return "waiting for a batch to fill" if self._queue.led_events else "held for another member"

    def _time_shares(self) -> dict[str, float]:
        """Returns the shares of the time since the last look that the busiest dispatcher spent in four ways.

        "filter": it was in callbacks. "blocked": it waited with events to send. "receiver": its receiver worked.
        "held_back": its receiver's host had no room for more.
        """
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
