"""Owns the order between the locks of life cycles (senders, caches) and those under which a region's callbacks run: the
first are taken before the second, and a callback that would take them the other way round is told so instead of waiting for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pywan.errors import IllegalStateError

_held = threading.local()  # .regions: names of the regions whose callback lock this thread has, innermost last.


class CallbackLock:
    """A region's callbacks run under it, one change at a time. Re-entrant."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        try:
            held = _held.regions
        except AttributeError:
            held = _held.regions = []
        self._lock.acquire()
        try:
            held.append(self._region)
        except BaseException:  # No memory: `__exit__` is not called then.
            self._lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        _held.regions.pop()
        self._lock.release()


def check_no_callback(what: str) -> None:
    """IllegalStateError if this thread runs a callback of a region."""
    regions = getattr(_held, "regions", None)
    if regions:
        raise IllegalStateError(
            f"{what} cannot be started, stopped, paused, altered, destroyed or closed by a"
            f" callback of region {regions[-1]!r}, since that waits "
            "for the region's callbacks to end; do it in another thread"
        )


class LifeCycleLock:
    """Guards what is created, started, stopped and destroyed, and is held while regions learn of it. Re-entrant.

    `is_waited_for()`: whether who has the lock waits for this very thread to end.
    """

    def __init__(self, what: str, is_waited_for: Callable[[], bool] | None = None) -> None:
        self._what, self._is_waited_for = what, is_waited_for
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        check_no_callback(self._what)
        if self._is_waited_for is None:
            self._lock.acquire()
            return
        while not self._lock.acquire(timeout=0.05):
            if self._is_waited_for():
                raise IllegalStateError(
                    f"{self._what} is being stopped, which waits for its own filter to return; the"
                    " filter cannot change it meanwhile"
                )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
