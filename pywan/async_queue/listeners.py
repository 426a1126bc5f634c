"""Owns how a listener is called: which of its forms it has (events or columns, plain or awaitable), and the event loop
of an awaitable one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from pywan import _core
from pywan.async_queue.columns import to_arrow
from pywan.base.threads import start_thread
from pywan.config.classes import make_instance, overrides
from pywan.errors import ConfigurationError

log = logging.getLogger("pywan.async_queue")


class Listener:
    """A user's listener. `call(batch)` hands it a batch, in the thread of a dispatcher; several may call at once.

    It is an object with `process_arrow(batch)` or `process_events(events)`, or a function of events. Each may be
    awaitable: then it runs in an event loop of its own.
    """

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        is_function = not isinstance(given, (str, type)) and not _has(given, "process_events", "process_arrow")
        self.made: Any = given if is_function else make_instance(given, f"{what}: async_event_listener")
        call: Callable[[Any], Any]
        self._takes_arrow = overrides(self.made, "process_arrow")
        if self._takes_arrow:
            call = self.made.process_arrow
        elif overrides(self.made, "process_events"):
            call = self.made.process_events
        elif callable(self.made):
            call = self.made
        else:
            cls = type(self.made)
            raise ConfigurationError(
                f"{what}: async_event_listener: {cls.__module__}:{cls.__qualname__} has no method process_events or"
                " process_arrow, and is no function"
            )
        self._call = call
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
        self._loop = _Loop(what) if is_async else None

    def call(self, batch: _core.EventBatch) -> str | None:
        """Returns None if the listener has done with the batch, otherwise why not."""
        taken: Any = to_arrow(batch) if self._takes_arrow else batch
        answer = self._call(taken) if self._loop is None else self._loop.run(self._call(taken))
        if inspect.iscoroutine(answer):
            answer.close()
            return "its answer is a coroutine: declare the listener with `async def`"
        if answer is None:
            return "it returned None; a listener returns True when the events are done"
        return None if answer else f"it returned {answer!r:.80}"

    def close(self) -> None:
        """Tells the listener that no more events come."""
        close = getattr(self.made, "close", None)
        try:
            if callable(close):
                answer = close()
                if inspect.iscoroutine(answer):
                    if self._loop is not None:
                        self._loop.run(answer)
                    else:
                        asyncio.run(answer)
        except Exception:
            log.exception("%s: its listener failed as it was closed", self.what)
        finally:
            if self._loop is not None:
                self._loop.end()

    def __repr__(self) -> str:
        cls = type(self.made)
        name = getattr(self.made, "__qualname__", None)
        return f"{cls.__module__}:{cls.__qualname__}" if name is None else f"{self.made.__module__}:{name}"


def _has(given: Any, *methods: str) -> bool:
    return any(callable(getattr(given, method, None)) for method in methods)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self, what: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = start_thread(f"{what} has no event loop", "listener-loop", self._serve)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()
