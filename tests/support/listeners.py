"""Owns listeners of asynchronous event queues that tests name in commands and in a cache.xml."""

from __future__ import annotations

import threading
from typing import Any

import pywan


class RecordingListener(pywan.AsyncEventListener):
    """Keeps what it hears, for `heard()`. One that is made keeps apart from those that were made before."""

    made: list[RecordingListener] = []  # noqa: RUF012 - Of the process: a test has no other way to an object that a member made.

    def __init__(self, **parameters: str) -> None:
        self.parameters = parameters
        self.batches: list[list[tuple[Any, ...]]] = []
        self.lock = threading.Lock()
        self.closed = 0
        self.made.append(self)

    def process_events(self, events: Any) -> bool:
        with self.lock:
            self.batches.append([(event.region, event.operation, event.key, event.value) for event in events])
        return True

    def close(self) -> None:
        self.closed += 1

    @property
    def received(self) -> list[tuple[Any, ...]]:
        with self.lock:
            return [event for batch in self.batches for event in batch]


class Failing(RecordingListener):
    fails = True

    def process_events(self, events: Any) -> bool:
        if self.fails:
            raise ConnectionError("no database")
        return super().process_events(events)


class NoListener:
    """It has no method of a listener."""

    def __init__(self) -> None:
        raise AssertionError("a class that is no listener was made")


class Filter(pywan.GatewayEventFilter):
    """It lets everything through."""
