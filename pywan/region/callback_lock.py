"""Owns the order between two kinds of locks: locks of life cycles (senders, caches), and locks under which a region's
callbacks run.

A life cycle's lock is taken before a callback lock. A callback that would take the locks in the reverse order gets an
error instead of waiting for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pywan.errors import IllegalStateError

# `.regions`: the names of the regions whose callback lock this thread holds, the innermost last.
_held = threading.local()


class CallbackLock:
    """A region's callbacks run under the lock, so they handle one change at a time. The lock is re-entrant."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.RLock()

    @property
    def parts(self) -> tuple[object, threading.local, str]:
        """The lock, the thread's names of regions (`regions`), and the name of this region: compiled code takes the
        lock without a call of `__enter__`."""
        return self._lock, _held, self._region

    def __enter__(self) -> None:
        try:
            held = _held.regions
        except AttributeError:
            held = _held.regions = []
        self._lock.acquire()
        try:
            held.append(self._region)
        except BaseException:  # Out of memory. `__exit__` is not called then.
            self._lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        _held.regions.pop()
        self._lock.release()


def check_no_callback(what: str) -> None:
    """Raises IllegalStateError if this thread runs a callback of a region."""
    regions = getattr(_held, "regions", None)
    if regions:
        raise IllegalStateError(
            f"{what} cannot be started, stopped, paused, altered, destroyed or closed by a callback of region"
            f" {regions[-1]!r}, since that waits for the region's callbacks to end; do it in another thread"
        )


class LifeCycleLock:
    """Guards the objects that are created, started, stopped and destroyed. The lock is held while regions receive
    the change. The lock is re-entrant.

    `is_waited_for()` returns whether the holder of the lock waits for the calling thread to end.
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
                    f"{self._what} is being stopped, which waits for its own filter or listener to return;"
                    " that cannot change it meanwhile"
                )

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
