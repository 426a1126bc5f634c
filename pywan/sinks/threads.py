"""Owns what each dispatcher's thread has of its own in a sink: a connection, a producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Closes it."""


C = TypeVar("C", bound=Closable)


class PerThread(Generic[C]):
    """One object for each thread that asks. That of a thread which has ended is closed when another thread comes."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[threading.Thread, C] = {}

    def get(self) -> C:
        """Returns the object of this thread."""
        thread = threading.current_thread()
        found = self._made.get(thread)
        if found is not None:
            return found
        with self._lock:
            ended = [self._made.pop(each) for each in list(self._made) if not each.is_alive()]
            made = self._made[thread] = self._make()
        for each in ended:
            each.close()
        return made

    def close(self) -> None:
        """Closes all of them. No thread works with its object any more."""
        with self._lock:
            made, self._made = list(self._made.values()), {}
        for each in made:
            each.close()
