"""Owns the start of threads. If the system refuses a thread, there is an error. No caller waits for a thread that never
begins."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pywan.errors import IllegalStateError

log = logging.getLogger("pywan.threads")

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


class Workers:
    """At most `most` threads that do what is submitted, in order. A thread begins when there is work and none is free.

    The standard library's pool waits without a limit for a thread that does not begin, under its lock.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most, self._name = most, name
        self._changed = threading.Condition()  # Guards all below.
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._threads: list[Thread] = []
        self._free = 0
        self._stopping = False

    def submit(self, run: Callable[..., object], *args: Any) -> None:
        """Has a thread call `run(*args)`. What that raises is logged. RuntimeError: there is no thread for it, or the
        workers are being stopped."""
        with self._changed:
            if self._stopping:
                raise RuntimeError("the workers are being stopped")
            work = (run, args)
            self._waiting.append(work)
            if len(self._waiting) <= self._free or len(self._threads) == self._most:
                self._changed.notify()
                return
            thread = Thread(self._work, name=f"{self._name}-{len(self._threads)}")
            self._threads.append(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            with self._changed:
                self._threads.remove(thread)
                if any(each is work for each in self._waiting):  # Otherwise another thread does it.
                    self._waiting = deque(each for each in self._waiting if each is not work)
                    raise

    def stop(self, *, wait: bool = True) -> None:
        """Forgets what has not begun. With `wait` it returns when all threads have ended."""
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads if wait else ():
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                if threading.current_thread() not in self._threads:
                    return  # It began too late: its starter has given it up.
                self._free += 1
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                self._free -= 1
                if not self._waiting:
                    return
                run, args = self._waiting.popleft()
            try:
                run(*args)
            except BaseException:  # The thread is there for the next work, whatever this one did.
                log.exception("%s: work failed", threading.current_thread().name)
