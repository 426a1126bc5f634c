"""Owns lines of a log that come again and again. A flood of connections, events or attempts must not become a flood of
lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES_AT_ONCE = 20  # The limit for lines of one kind in one period.
LINES_PERIOD_S = 10.0  # The length of a period. The first line after it says how many lines were left out.
ONCE_PERIOD_S = 60.0  # So often a line comes that is to come once, and one that says that something still fails.
PLACES_MAX = 256  # So many such lines are remembered. More are not due before one is old.


class _Told:
    """A line that is not to come again so soon."""

    __slots__ = ("at", "began", "failures")

    def __init__(self, at: float) -> None:
        self.at = self.began = at
        self.failures = 1


class Lines:
    """Lines of one kind, with a limit. Any thread may use it.

    A line without `once` may come LINES_AT_ONCE times in LINES_PERIOD_S, together with all others. A line with `once`
    comes at once and then once a minute for each `once`, such as (place, reason), until `ended`. `failed` and `works`
    are for what is tried again and again.

    Args:
        log: Where the lines go.
        clock: Returns seconds that only grow.
    """

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._since, self._count, self._left_out = float("-inf"), 0, 0  # `_lock` guards these.
        self._once_left_out = 0  # New lines with `once` that found no place.
        self._told: dict[tuple[str, ...], _Told] = {}  # The oldest line first. At most PLACES_MAX.

    def info(self, text: str, *values: object, once: tuple[str, ...] = (), now_us: int | None = None) -> None:
        """Logs what is no trouble. `now_us`: the time, for who has no clock."""
        self._write(logging.INFO, text, values, once, now_us)

    def warning(self, text: str, *values: object, once: tuple[str, ...] = (), now_us: int | None = None) -> None:
        """Logs a warning."""
        self._write(logging.WARNING, text, values, once, now_us)

    def error(self, text: str, *values: object, once: tuple[str, ...] = (), now_us: int | None = None) -> None:
        """Logs an error, without a traceback."""
        self._write(logging.ERROR, text, values, once, now_us)

    def exception(self, text: str, *values: object, error: BaseException | None = None) -> None:
        """Logs an error with the traceback of `error`, or of the exception that is being handled."""
        self._write(logging.ERROR, text, values, traceback=True if error is None else error)

    def ended(self, *once: str) -> bool:
        """Forgets the lines whose `once` begins so: the trouble is over, and a later one is new. Returns whether there
        were any."""
        with self._lock:
            ended = [each for each in self._told if each[: len(once)] == once]
            for each in ended:
                del self._told[each]
        return bool(ended)

    def failed(self, what: str, why: object) -> None:
        """Logs that what is tried failed once more: at first, and once a minute. `what` is the subject of the line."""
        with self._lock:
            now, told = self._clock(), self._told.get((what,))
            if told is None:
                text = f"{what}: {why}"
            else:
                told.failures += 1
                text = f"{what} has failed for {now - told.began:.0f} s, {told.failures} times: {why}"
            if not self._is_due((what,), now):
                return
        self._log.warning("%s", text)

    def works(self, what: str) -> None:
        """Logs that it works, if it failed last."""
        with self._lock:
            told = self._told.pop((what,), None)
            if told is None:
                return
            lasted = self._clock() - told.began
        self._log.info("%s works again after %.1f s, in which it failed %d times", what, lasted, told.failures)

    def _write(
        self,
        level: int,
        text: str,
        values: tuple[object, ...],
        once: tuple[str, ...] = (),
        now_us: int | None = None,
        traceback: bool | BaseException = False,
    ) -> None:
        with self._lock:
            now = self._clock() if now_us is None else now_us / 1e6
            if not (self._is_due(once, now) if once else self._is_one_of_few(now)):
                return
            if once:
                left_out, self._once_left_out = self._once_left_out, 0
            else:
                left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.log(level, "%d lines like the next were left out", left_out)
        # Errors are logged as text. A handler that keeps its records would keep the frames of an error, with their
        # memory and sockets.
        said = (str(value) if isinstance(value, BaseException) else value for value in values)
        self._log.log(level, text, *said, exc_info=traceback)

    def _is_one_of_few(self, now: float) -> bool:
        """Whether a line more is within the limit of this period. `_lock` is held, also by the caller of the next."""
        if now - self._since > LINES_PERIOD_S:
            self._since, self._count = now, 0
        self._count += 1
        self._left_out += self._count > LINES_AT_ONCE
        return self._count <= LINES_AT_ONCE

    def _is_due(self, once: tuple[str, ...], now: float) -> bool:
        """Whether the line is to be written. It counts as written then."""
        told = self._told.get(once)
        if told is None:
            if len(self._told) >= PLACES_MAX:
                oldest, of_oldest = next(iter(self._told.items()))
                if now - of_oldest.at < ONCE_PERIOD_S:
                    self._once_left_out += 1
                    return False
                del self._told[oldest]
            told = _Told(now)
        elif now - told.at < ONCE_PERIOD_S:
            return False
        told.at = now
        self._told.pop(once, None)
        self._told[once] = told  # Behind all others.
        return True
