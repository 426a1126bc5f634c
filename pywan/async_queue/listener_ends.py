"""Owns the listener's end of the dispatchers of one asynchronous event queue: what becomes of a batch on which the
listener fails.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.async_queue.listeners import Listener
from pywan.config.attributes import AsyncEventQueueAttributes
from pywan.config.classes import let_through
from pywan.errors import ConfigurationError

log = logging.getLogger("pywan.async_queue")

LONGEST_PAUSE_S = 10.0  # The pause before a failed batch comes again. The first one is 50 ms, and it doubles each time.
WORDS_MAX = 10_000  # So many parked events are remembered with the listener's own words.


class ListenerEnds:
    """The ends of all dispatchers of one queue. A dispatcher opens its end again after each batch that failed."""

    trouble_word, slow_word, link_word = "", "listener slow", "listener slow"
    running_words = ("Running", "Running, listener fails")
    longest_retry_s = LONGEST_PAUSE_S
    each_end_is_trouble = True

    def __init__(self, attributes: AsyncEventQueueAttributes, numbering: Callable[[], int]) -> None:
        try:
            self.listener = Listener(attributes.async_event_listener, attributes.what)
        except ConfigurationError as error:
            raise attributes.error(str(error)) from error.__cause__
        self._attributes, self._numbering = attributes, numbering
        self._lock = threading.Lock()
        # Of parked events, by their identity: what the listener said. Under `_lock`.
        self._words: OrderedDict[tuple[int, int, int], str] = OrderedDict()
        self._tries: dict[int, tuple[dict[int, int], int]] = {}  # By dispatcher: the batch that failed, and how often.

    def configure(self, attributes: AsyncEventQueueAttributes) -> None:
        self._attributes = attributes

    def begin(self, dispatchers: object) -> None:
        """There is nothing to begin."""

    def unreachable_reason(self, index: int) -> None:
        return None

    def wait_reachable(self, *_: object) -> None:
        """The listener is always there."""

    def close(self) -> None:
        self.listener.close()

    @property
    def is_own_thread(self) -> bool:
        return self.listener.is_own_thread

    def session_options(self, attributes: AsyncEventQueueAttributes) -> dict[str, Any]:
        return {}

    def open(self, index: int, stopping: threading.Event, on_opening: Callable[[Any], None]) -> ListenerEnd:
        return ListenerEnd(self, index)

    def words(self, event_id: tuple[int, int, int]) -> str | None:
        """Returns what the listener said of a parked event. None: it is not known any more."""
        with self._lock:
            return self._words.get(event_id)

    def deliver(self, index: int, batch: _core.EventBatch) -> tuple[list[tuple[int, int]] | None, str]:
        """Hands a batch over.

        Returns:
            The events to park, by place and reason. None: the batch is to come again, and the words say why.
        """
        reason = self._call(batch)
        if reason is None:
            self._tries.pop(index, None)
            return [], ""
        limit = self._attributes.park_after_tries
        marks, tries = self._tries.get(index, ({}, 0))
        # A batch that comes again may be a longer one, if more events came: it begins with the same ones.
        tries = tries + 1 if marks == _firsts(batch) else 1
        self._tries[index] = _firsts(batch), tries
        if not limit or tries < limit:
            return None, reason
        parked = []
        for place in range(len(batch)):
            alone = self._call(batch[place : place + 1])
            if alone is not None:
                parked.append((place, _core.FAILED_LISTENER))
                self._note_words(batch[place], alone)
        self._tries.pop(index, None)
        return parked, reason

    def _call(self, batch: _core.EventBatch) -> str | None:
        try:
            return self.listener.call(batch)
        except BaseException as error:  # The user's code: whatever it raises, the batch is not done.
            let_through(error)
            return f"{type(error).__name__}: {error}"

    def _note_words(self, event: _core.AsyncEvent, words: str) -> None:
        log.warning("%s: event %r is parked: %s", self._attributes.label, event, words)
        with self._lock:
            self._words[tuple(event.event_id)] = words
            while len(self._words) > WORDS_MAX:
                self._words.popitem(last=False)

    @property
    def numbering(self) -> int:
        """The identity of the queue's sequences."""
        return self._numbering()

    @property
    def queue_id(self) -> str:
        return self._attributes.id


def _firsts(batch: _core.EventBatch) -> dict[int, int]:
    """Returns for the first event of a batch where it is in the queue."""
    return {batch[0].partition: batch[0].sequence} if len(batch) else {}


class ListenerEnd:
    """The end of one dispatcher, until a batch fails or the queue is stopped."""

    place = None
    held_back_us = untaken_bytes = 0

    def __init__(self, ends: ListenerEnds, index: int) -> None:
        self._ends, self._index = ends, index
        self._reason = ""

    def begin(self, session: _core.DispatcherSession) -> None:
        session.connected(1, 1)  # One batch at a time.

    def run(self, session: _core.DispatcherSession) -> str:
        return _core.run_listener(session, self._deliver, self._ends.queue_id, self._ends.numbering)

    def _deliver(self, batch: _core.EventBatch) -> list[tuple[int, int]] | None:
        parked, self._reason = self._ends.deliver(self._index, batch)
        return parked

    def ended(self, session: _core.DispatcherSession, outcome: str) -> str:
        return f"listener fails: {self._reason or outcome}"

    def shut(self) -> None:
        """A listener that was called is waited for."""

    def close(self) -> None:
        pass
