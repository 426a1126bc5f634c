"""Owns lines of a log that others cause. A flood of connections or events must not become a flood of lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES_AT_ONCE = 20  # The limit for lines of one kind in one period.
LINES_PERIOD_S = 10.0  # The length of a period. The first line after it says how many lines were left out.
OUTAGE_PERIOD_S = 60.0  # So often a line says that something still fails.
PLACES_MAX = 256  # So many lines of different places and reasons are remembered. More are not due before one is old.


class Lines:
    """Lines of one kind. Any thread may use it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._since, self._count, self._left_out = float("-inf"), 0, 0  # `_lock` guards these.

    def info(self, text: str, *values: object) -> None:
        """Logs what is no trouble."""
        self._write(logging.INFO, text, values)

    def warning(self, text: str, *values: object) -> None:
        """Logs a warning."""
        self._write(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        """Logs an error, without a traceback."""
        self._write(logging.ERROR, text, values)

    def exception(self, text: str, *values: object) -> None:
        """Logs an error with the traceback of the exception that is being handled."""
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
        # Errors are logged as text. A handler that keeps its records would keep the frames of an error, with their
        # memory and sockets.
        said = (str(value) if isinstance(value, BaseException) else value for value in values)
        self._log.log(level, text, *said, exc_info=traceback)


class OncePerMinute:
    """Says which lines about other processes are due: one a minute for each place and reason.

    Not thread-safe: the lock of its owner guards it. The time comes in, from any clock that only grows.
    """

    def __init__(self) -> None:
        self._told_us: dict[tuple[str, str], int] = {}  # The oldest first. At most PLACES_MAX.

    def is_due(self, place: str, reason: str, now_us: int) -> bool:
        """Whether the line is to be written. It counts as written then."""
        for each, told_us in list(self._told_us.items()):
            if now_us - told_us < OUTAGE_PERIOD_S * 1e6:
                break
            del self._told_us[each]
        if (place, reason) in self._told_us or len(self._told_us) >= PLACES_MAX:
            return False
        self._told_us[place, reason] = now_us
        return True


class Outage:
    """The lines about one thing that is tried again and again: the first failure, one a minute, and the end. Any thread
    may use it.

    Args:
        log: Where the lines go.
        what: What is tried, as the subject of each line.
        clock: Returns seconds that only grow.
    """

    def __init__(self, log: logging.Logger, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._what, self._clock = log, what, clock
        self._lock = threading.Lock()
        self._began: float | None = None  # `_lock` guards these. None: it did not fail last.
        self._told, self._failures = 0.0, 0

    def failed(self, why: object) -> None:
        """It failed once more."""
        with self._lock:
            now = self._clock()
            if self._began is None:
                self._began, self._failures, text = now, 0, f"{self._what}: {why}"
            elif now - self._told < OUTAGE_PERIOD_S:
                self._failures += 1
                return
            else:
                text = f"{self._what} has failed for {now - self._began:.0f} s, {self._failures + 2} times: {why}"
                self._failures += 1
            self._told = now
        self._log.warning("%s", text)

    def over(self) -> None:
        """It works."""
        with self._lock:
            if self._began is None:
                return
            lasted, self._began = self._clock() - self._began, None
            failures = self._failures + 1
        self._log.info("%s works again after %.1f s, in which it failed %d times", self._what, lasted, failures)
