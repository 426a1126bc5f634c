"""Owns when a line of the log is said again: what goes on being wrong is not told at every attempt."""

from __future__ import annotations

import threading
import time

AGAIN_S = 60.0
KEPT = 20  # So many lines are remembered.


class Repeats:
    """Lines of a log that come at every attempt. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}  # When; guarded by _lock.

    def is_due(self, line: str) -> bool:
        """Whether `line` is new, or was said last a minute ago; then it counts as said."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(line, float("-inf")) <= AGAIN_S:
                return False
            self._said.pop(line, None)
            if len(self._said) >= KEPT:
                del self._said[next(iter(self._said))]  # The oldest.
            self._said[line] = now
            return True

    def clear(self) -> None:
        """It is put right: what comes next is new."""
        with self._lock:
            self._said.clear()
