"""Owns starting threads: what the system refuses is an error, in our words where a member cannot do without; none is waited for that never begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pywan.errors import IllegalStateError

BEGIN_TIMEOUT_S = 5.0


class _Begun(threading.Event):
    """What `Thread.start` of the standard library waits for, there without a limit."""

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(BEGIN_TIMEOUT_S if timeout is None else timeout) or timeout is not None:
            return self.is_set()
        raise RuntimeError("a new thread did not begin; the process may be out of memory")


class Thread(threading.Thread):
    """A daemon thread. RuntimeError from `start` if there is none left, or if it does not begin: one that finds no memory for its first steps ends
    without a word, and who started it would wait for ever."""

    def __init__(self, run: Callable[..., object], *args: Any, name: str) -> None:
        super().__init__(target=run, args=args, name=name, daemon=True)
        self._started = _Begun()

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            getattr(threading, "_limbo", {}).pop(self, None)  # Or it counts as one that is about to begin, for ever.
            raise


def start_thread(what: str, name: str, run: Callable[..., object], *args: Any) -> threading.Thread:
    """Runs `run(*args)` in a thread. IllegalStateError, which names `what` needs it, if the system has no thread left."""
    thread = Thread(run, *args, name=name)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise IllegalStateError(
            f"{what}: the system gives this process no more threads ({error or 'no memory'}); end other processes, or raise the limit (ulimit -u), and try again"
        ) from error
    return thread
