"""Owns the start of threads, and what happens when one fails. If the system refuses a thread, there is an error. No
caller waits for a thread that never begins. No thread ends by an error without a line in the log, and one that must not
end is begun again (docs/architecture.md, "Threads")."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pywan.base.lines import Lines
from pywan.errors import IllegalStateError

log = logging.getLogger("pywan.threads")

BEGIN_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.01  # Before the work of a thread begins again; doubled up to the next one.
LONGEST_PAUSE_S = 1.0
CALM_S = 10.0  # A thread that has worked for so long before it fails again has got over its last failure.
GIVE_UP_S = 60.0  # A thread that fails for so long, again and again, is given up, if its owner can end then.
NAMES_KEPT = 256  # Of threads that were begun again, for the status.

_lines = Lines(log)


class Restarts(NamedTuple):
    """How often a thread was begun again, and the reason of the last time."""

    times: int
    reason: str


_restarts: dict[str, Restarts] = {}  # By the thread's name.
_restarts_lock = threading.Lock()


def restarts() -> dict[str, Restarts]:
    """Returns the threads of this process that failed and were begun again."""
    with _restarts_lock:
        return dict(_restarts)


def _note_restart(name: str, reason: str) -> None:
    with _restarts_lock:
        known = _restarts.pop(name, None)  # The newest ones are last.
        _restarts[name] = Restarts(known.times + 1 if known is not None else 1, reason)
        while len(_restarts) > NAMES_KEPT:
            del _restarts[next(iter(_restarts))]


def told_error(error: BaseException) -> str:
    """Returns an error in one line, with the place in the code where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    try:
        text = str(error)
    except Exception:  # An error of a user's own class. Its thread is not to end for that.
        text = "it does not say why"
    return f"{type(error).__name__}: {text}{place}"


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
    If its work fails, the log has one line, and the traceback at the level debug.
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

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            with contextlib.suppress(MemoryError):  # There may be no memory even for the line of the log.
                _lines.error("thread %s ended by an error: %s", self.name, told_error(error))
                log.debug("thread %s ended by an error", self.name, exc_info=True)


class EssentialThread(Thread):
    """A thread that ends when its work returns, and not before: if that fails, it is begun again after a pause.

    The work begins with a look whether it is to end, and may begin again after any error. `gives_up` is called when it
    has failed again and again for GIVE_UP_S seconds, with the reason in words: then the thread ends. None: it goes on.
    """

    def __init__(
        self,
        run: Callable[..., object],
        *args: Any,
        name: str,
        gives_up: Callable[[str], object] | None = None,
    ) -> None:
        # The thread forgets its target and the arguments when it ends. An owner that keeps its ended thread is not kept
        # by it, and goes with what it has open.
        super().__init__(_run_again_and_again, run, args, name, gives_up, name=name)


def _run_again_and_again(
    run: Callable[..., object], args: tuple[Any, ...], name: str, gives_up: Callable[[str], object] | None
) -> None:
    """The work of an EssentialThread."""
    pause_s, failing_since = FIRST_PAUSE_S, None
    lines, what = Lines(log), f"thread {name} failed and is begun again"
    while True:
        began = time.monotonic()
        try:
            run(*args)
            return
        except BaseException as error:
            now = time.monotonic()
            if failing_since is None or now - began > CALM_S:
                pause_s, failing_since = FIRST_PAUSE_S, now
                lines.ended()
            reason = type(error).__name__
            with contextlib.suppress(MemoryError):  # There may be no memory even for the line of the log.
                reason = told_error(error)
                _note_restart(name, reason)
                lines.failed(what, reason)
                log.debug("thread %s failed", name, exc_info=True)
            if gives_up is not None and now - failing_since > GIVE_UP_S:
                gives_up(f"its thread {name} has failed for {now - failing_since:.0f} s: {reason}")
                return
        time.sleep(pause_s)  # Its owner waits for no longer than LONGEST_PAUSE_S, if it ends meanwhile.
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def start_thread(what: str, name: str, run: Callable[..., object], *args: Any) -> threading.Thread:
    """Runs `run(*args)` in a thread, and returns it.

    IllegalStateError if the system has no thread left. Its text begins with `what`, which says what the thread is for.
    """
    return _started(what, Thread(run, *args, name=name))


def start_essential(
    what: str, name: str, run: Callable[..., object], *args: Any, gives_up: Callable[[str], object] | None = None
) -> threading.Thread:
    """As `start_thread`, for a thread without which its owner does not work: an EssentialThread."""
    return _started(what, EssentialThread(run, *args, name=name, gives_up=gives_up))


def _started(what: str, thread: Thread) -> threading.Thread:
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
            except BaseException as error:  # The thread is there for the next work, whatever this one did.
                with contextlib.suppress(MemoryError):
                    _lines.error("%s: work failed: %s", threading.current_thread().name, told_error(error))
                    log.debug("%s: work failed", threading.current_thread().name, exc_info=True)
