"""Owns the telling of filters about events that are queued here and that another member of the site has sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from pywan import _core
from pywan.base.threads import start_essential
from pywan.gateway.filters import SenderFilters

EVENTS_MAX = 1000  # That are taken out of the queue together, before the filters are told of them.

_Taken = tuple[bytes, tuple[int, int, bool]]  # As `SenderFilters.tell_acknowledged` gets it.


class DispatchedByOthers:
    """Geode calls `after_acknowledgement` once on each member that holds an event. Where this member did not send it, a
    thread of its own calls it, after the member that did has told that the event is settled.

    The queue keeps such events until the thread takes them. A few of them at a time are in memory outside the queue: if
    the filters are slow, the others stay in the queue. If this member begins to send them meanwhile, it sends them
    again, and then its dispatcher tells the filters.
    """

    def __init__(self, queue: _core.EventQueue, stopping: threading.Event) -> None:
        """`stopping` is set while the sender does not run."""
        self._queue, self._stopping = queue, stopping
        self._filters: SenderFilters | None = None
        self._tells = False
        self._thread: threading.Thread | None = None
        self._left: Iterator[_Taken] = iter(())  # What was taken, and the filters were not told of yet.

    def configure(self, filters: SenderFilters, *, tells: bool) -> None:
        """Gives it the filters that hold from now on. `tells`: they want to hear of these events."""
        self._filters, self._tells = filters, tells

    def follow(self, what: str, name: str) -> threading.Thread | None:
        """Does what `configure` said, while the sender runs. Returns the thread if it had to be started.

        Raises:
            IllegalStateError: The system has no thread left. The text begins with `what`.
            OSError: The system has no file descriptor left.
        """
        started = None
        if self._tells and (self._thread is None or not self._thread.is_alive()):
            started = self._thread = start_essential(what, name, self._tell)
        self._queue.keep_acknowledged(self._tells)
        return started

    def end(self) -> None:
        """Lets the queue drop these events again, and has the thread end. `stopping` is set."""
        self._queue.keep_acknowledged(False)

    def _tell(self) -> None:
        while True:
            if self._filters is not None:
                self._filters.tell_acknowledged(self._left)  # What is left if it failed in the middle.
            if self._stopping.is_set():
                return
            self._left = iter(self._queue.take_acknowledged(EVENTS_MAX))
