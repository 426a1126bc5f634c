"""Owns the start of threads. If the system refuses a thread, there is an error. No caller waits for a thread that never
begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pywan.errors import IllegalStateError

BEGIN_TIMEOUT_S = 5.0


class _Begun(threading.Event):
    """The event for which the standard library's `Thread.start` waits. There it waits without a limit; here there is
    one."""

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(BEGIN_TIMEOUT_S if timeout is None else timeout) or timeout is not None:
            return self.is_set()
        raise RuntimeError("a new thread did not begin; the process may be out of memory")


class Thread(threading.Thread):
    """A daemon thread. `start` raises RuntimeError if the system has no thread left, or if the thread does not begin.

    A thread that finds no memory for its first steps ends silently. Without the limit its starter would wait for ever.
    """

    def __init__(self, run: Callable[..., object], *args: Any, name: str) -> None:
        super().__init__(target=run, args=args, name=name, daemon=True)
        self._started = _Begun()

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            # Without this, it would count for ever as a thread that is about to begin.
            getattr(threading, "_limbo", {}).pop(self, None)
            raise


def start_thread(what: str, name: str, run: Callable[..., object], *args: Any) -> threading.Thread:
    """Runs `run(*args)` in a thread, and returns it.

    IllegalStateError if the system has no thread left. Its text begins with `what`, which says what the thread is for.
    """
    thread = Thread(run, *args, name=name)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise IllegalStateError(
            f"{what}: the system gives this process no more threads ({error or 'no memory'}); end other processes,"
            " or raise the limit (ulimit -u), and try again"
        ) from error
    return thread
