"""Owns how a listener is called: which of its forms it has (events or columns, plain or awaitable)."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pywan import _core
from pywan.async_queue.columns import check_there, to_arrow
from pywan.config.classes import import_class, make_instance, overrides
from pywan.errors import ConfigurationError
from pywan.forks import end_strayed_child

if TYPE_CHECKING:
    from pywan.async_queue.event_loop import EventLoop

log = logging.getLogger("pywan.async_queue")

CLOSE_LIMIT_S = 15.0  # The longest wait for the `close` of an awaitable listener.
_METHODS = ("process_events", "process_arrow")


class Listener:
    """A user's listener. `call(batch)` hands it a batch, in the thread of a dispatcher; several may call at once.

    It is an object with `process_arrow(batch)` or `process_events(events)`, or a function of events. Each may be
    awaitable: then it runs in an event loop of its own.
    """

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        self.made: Any = _made(given, f"{what}: async_event_listener")
        call: Callable[[Any], Any]
        self._takes_arrow = overrides(self.made, "process_arrow")
        if self._takes_arrow:
            check_there()
            call = self.made.process_arrow
        elif overrides(self.made, "process_events"):
            call = self.made.process_events
        elif callable(self.made):
            call = self.made
        else:
            raise _no_listener(type(self.made), f"{what}: async_event_listener")
        self._call = call
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
        self._loop = _event_loop(what) if is_async else None
        self._forks = _core.forks()
        self._lock = threading.Lock()  # Guards the two below.
        self._calls = 0  # How many dispatchers wait for it now.
        self._is_closed = False

    def call(self, batch: _core.EventBatch) -> str | None:
        """Returns None if the listener has done with the batch, otherwise why not. Raises what the listener raises."""
        with self._lock:
            if self._is_closed:
                return "it was closed"
            self._calls += 1
        try:
            taken: Any = to_arrow(batch) if self._takes_arrow else batch
            answer = self._answer(taken) if self._loop is None else self._loop.run(self._answer_later(taken))
        finally:
            self._end_call()
        if inspect.iscoroutine(answer):
            answer.close()
            return "its answer is a coroutine: declare the listener with `async def`"
        if answer is None:
            return "it returned None; a listener returns True when the events are done"
        return None if answer else f"it returned {answer!r:.80}"

    def _answer(self, taken: Any) -> Any:
        try:
            return self._call(taken)
        finally:
            self._end_strayed()

    async def _answer_later(self, taken: Any) -> Any:
        try:
            return await self._call(taken)
        finally:
            self._end_strayed()

    def _end_strayed(self) -> None:
        if self._forks != _core.forks():
            end_strayed_child("an asynchronous event queue")

    def _end_call(self) -> None:
        with self._lock:
            self._calls -= 1
            is_last = self._is_closed and not self._calls
        if is_last:
            self._close()

    def close(self) -> None:
        """Tells the listener that no more events come: now, or when the calls that are under way have returned. One of
        them may be the caller's, or hang."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._calls:
                return
        self._close()

    def _close(self) -> None:
        close = getattr(self.made, "close", None)
        try:
            if callable(close):
                answer = close()
                if inspect.iscoroutine(answer):
                    if self._loop is not None:
                        self._loop.run(answer, CLOSE_LIMIT_S)
                    else:
                        import asyncio

                        asyncio.run(answer)
        except Exception:
            log.exception("%s: its listener failed as it was closed", self.what)
        finally:
            if self._loop is not None:
                self._loop.end()

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is the one of the event loop, so that all calls wait for the caller."""
        return self._loop is not None and self._loop.is_own_thread

    def __repr__(self) -> str:
        cls = type(self.made)
        name = getattr(self.made, "__qualname__", None)
        return f"{cls.__module__}:{cls.__qualname__}" if name is None else f"{self.made.__module__}:{name}"


def _made(given: Any, what: str) -> Any:
    """Returns the listener itself: a class is called, an object or function is taken as it is."""
    cls = import_class(given, what) if isinstance(given, str) else given
    if not isinstance(cls, type):
        return given
    # Checked before it is called: calling a class that is no listener may do anything.
    if not any(callable(getattr(cls, method, None)) for method in _METHODS) and not any(
        "__call__" in vars(each) for each in cls.__mro__
    ):
        raise _no_listener(cls, what)
    return make_instance(given, what)


def _no_listener(cls: type, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}: {cls.__module__}:{cls.__qualname__} has no method process_events or process_arrow, and is no function"
    )


def _event_loop(what: str) -> EventLoop:
    from pywan.async_queue.event_loop import EventLoop  # With asyncio, which no other listener needs.

    return EventLoop(what)
