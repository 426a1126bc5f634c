"""Owns lines of a log that others cause: a flood of connections, or of events, must not become a flood of lines."""

from __future__ import annotations

import logging
import threading
import time

LINES_AT_ONCE = 20  # Lines of one kind ...
LINES_PERIOD_S = 10.0  # ... in this time. The next line says how many were left out.


class Lines:
    """Lines of one kind. Thread-safe."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._since, self._count, self._left_out = float("-inf"), 0, 0  # Guarded by _lock.

    def warning(self, text: str, *values: object) -> None:
        self._write(logging.WARNING, text, values)

    def exception(self, text: str, *values: object) -> None:
        """With the traceback of what is being handled."""
        self._write(logging.ERROR, text, values, True)

    def _write(self, level: int, text: str, values: tuple[object, ...], traceback: bool = False) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._since > LINES_PERIOD_S:
                self._since, self._count = now, 0
            self._count += 1
            if self._count > LINES_AT_ONCE:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.log(level, "%d lines like the next were left out", left_out)
        # As text: a handler that keeps its records would keep the frames of an error, and the memory and sockets in them.
        said = (str(value) if isinstance(value, BaseException) else value for value in values)
        self._log.log(level, text, *said, exc_info=traceback)
