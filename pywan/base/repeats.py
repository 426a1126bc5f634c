"""Owns when a line of the log is repeated. A trouble that lasts is not logged at every attempt."""

from __future__ import annotations

import threading
import time

AGAIN_S = 60.0
KEPT = 20  # The number of lines that are remembered.


class Repeats:
    """Lines of a log that come at every attempt. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}  # The time when each line was logged. `_lock` guards it.

    def is_due(self, line: str) -> bool:
        """Returns whether `line` is new, or was logged more than a minute ago. The caller logs it then."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(line, float("-inf")) <= AGAIN_S:
                return False
            self._said.pop(line, None)
            if len(self._said) >= KEPT:
                del self._said[next(iter(self._said))]  # The oldest line is forgotten.
            self._said[line] = now
            return True

    def clear(self) -> None:
        """Forgets all lines: the trouble is over, and a later one is new."""
        with self._lock:
            self._said.clear()
