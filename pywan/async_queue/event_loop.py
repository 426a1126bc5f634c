"""Owns the event loop of an awaitable listener."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

from pywan.base.threads import start_thread

log = logging.getLogger("pywan.async_queue")

END_LIMIT_S = 15.0  # The longest wait for the end of an event loop.


class EventLoop:
    """An event loop in a thread of its own, which begins with the first call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()  # Held while the thread begins.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Returns what the coroutine returns, or raises what it raises. TimeoutError after `timeout` seconds."""
        try:
            loop = self._begun()
        except BaseException:
            coroutine.close()
            raise
        answer, error = asyncio.run_coroutine_threadsafe(_guarded(coroutine), loop).result(timeout)
        if error is not None:
            raise error
        return answer

    def _begun(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                try:
                    self._thread = start_thread(f"{self._what} has no event loop", "listener-loop", _serve, loop)
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop

    def end(self) -> None:
        """Ends the loop. A coroutine that blocks it is waited for, up to a limit."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            loop, thread = self._loop, self._thread
        if thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_LIMIT_S)
            if thread.is_alive():
                log.error("%s: the event loop of its listener did not end within %d s", self._what, END_LIMIT_S)


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Returns what the coroutine returned, and what it raised. asyncio ends its loop when a task raises SystemExit."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
