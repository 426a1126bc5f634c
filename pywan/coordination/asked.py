"""The requests of a member to its coordinator: their send times, and their ends.

A request is repeated until the tables show the effect, so the coordinator may drop any request. The work of each call
grows with the requests in the call, and not with all waiting requests: a member that loses a neighbour has thousands.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

REPEAT_US = 200_000  # First pause before a request is repeated whose effect the tables do not show. The pause grows.
REPEAT_MAX_US = 2_000_000
REQUESTS_AT_ONCE = 1000  # In one message.

RequestKey = tuple[Any, ...]  # The question and its subject. A later request with the same key replaces an earlier one.


@dataclass
class Request:
    """A request, repeated until `is_done` says that the tables show the effect. `is_done` None: an answer is enough.

    Tables older than the newest answer may show the effect of an earlier request, and are ignored.
    """

    fields: list[Any]
    is_done: Callable[[], bool] | None
    shown_by: Collection[Hashable]  # The entries of the tables on which `is_done` depends.
    needs_answer: bool = False  # `is_done` is valid only for tables that are as new as an answer.
    answered_at: int = -1  # The newest metadata record at an answer.
    due_us: int = 0
    pause_us: int = REPEAT_US
    is_held: bool = False  # The request is not sent yet.
    refused: str = ""
    done: bool = False


class Asked:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.requests: dict[RequestKey, Request] = {}  # Read by the owner too.
        self._shown_by: defaultdict[Hashable, dict[RequestKey, None]] = defaultdict(dict)  # By entry of the tables.
        self._to_look_at: dict[RequestKey, None] = {}  # Requests whose end is to be checked.
        # Heaps. An entry is valid if the request is still present, and has the same number as the entry.
        self._due: list[tuple[int, int, RequestKey, Request]] = []  # By `due_us`.
        self._answered: list[tuple[int, int, RequestKey, Request]] = []  # By `answered_at`: newer than the tables.
        self._order = itertools.count()  # Requests that are due at the same time are sent in the order of `ask`.

    def __contains__(self, key: RequestKey) -> bool:
        return key in self.requests

    # --- asking ---

    def ask(
        self,
        key: RequestKey,
        fields: list[Any],
        is_done: Callable[[], bool] | None,
        shown_by: Collection[Hashable],
        *,
        needs_answer: bool,
        known: int,
    ) -> Request:
        """Adds a request. The request replaces an earlier one with the same key; an equal request goes on unchanged.

        `known`: the number of the newest metadata record in the tables, which may show the effect already.
        """
        request = self.requests.get(key)
        if request is None or request.fields != fields:
            self.drop(key)
            request = self.requests[key] = Request(fields, is_done, shown_by, needs_answer)
            for entry in shown_by:
                self._shown_by[entry][key] = None
            self._push(key, request)
        if self._is_settled(request, known):
            self._end(key, request)
        return request

    def hold(self, key: RequestKey, *, is_held: bool) -> None:
        """Holds the sending of the request back, or permits the sending."""
        request = self.requests.get(key)
        if request is not None and request.is_held != is_held:
            request.is_held = is_held
            self._push(key, request)

    def drop(self, key: RequestKey) -> None:
        """Drops the request: the request is not repeated, and never done."""
        request = self.requests.pop(key, None)
        if request is None:
            return
        self._to_look_at.pop(key, None)
        for entry in request.shown_by:
            waiting = self._shown_by[entry]
            waiting.pop(key, None)
            if not waiting:
                del self._shown_by[entry]

    def clear(self) -> None:
        """Drops all requests."""
        for records in (self.requests, self._shown_by, self._to_look_at, self._due, self._answered):
            records.clear()

    def _end(self, key: RequestKey, request: Request) -> None:
        self.drop(key)
        request.done = True

    # --- ending ---

    def entry_changed(self, entry: Hashable) -> None:
        """Notes that the tables have another metadata record about the entry."""
        self._to_look_at.update(self._shown_by.get(entry, ()))

    def look_at(self, key: RequestKey) -> None:
        """Notes that the end of the request is to be checked."""
        self._to_look_at[key] = None

    def answered(self, batch: Sequence[tuple[RequestKey, Request]], decision: int, *, is_heeded: bool = True) -> None:
        """Notes the coordinator's answer to these requests, made after the record `decision`. `is_heeded`: the
        coordinator has processed the requests. Otherwise requests that need an answer are repeated."""
        for key, request in batch:
            if request.needs_answer and not is_heeded and not request.refused:
                continue
            request.answered_at = decision
            is_asked = self.requests.get(key) is request
            if request.refused or request.is_done is None:
                request.done = True
                if is_asked:
                    self.drop(key)
            elif is_asked and request.needs_answer:
                heapq.heappush(self._answered, (decision, next(self._order), key, request))

    def settle(self, known: int) -> list[RequestKey]:
        """Drops the requests whose effect the tables show. Returns their keys.

        `known`: the number of the newest metadata record in the tables.
        """
        while self._answered and self._answered[0][0] <= known:
            _, _, key, request = heapq.heappop(self._answered)
            if self.requests.get(key) is request:
                self._to_look_at[key] = None
        looked_at, self._to_look_at = self._to_look_at, {}
        settled = []
        for key in looked_at:
            request_now = self.requests.get(key)
            if request_now is not None and self._is_settled(request_now, known):
                self._end(key, request_now)
                settled.append(key)
        return settled

    @staticmethod
    def _is_settled(request: Request, known: int) -> bool:
        if request.is_done is None or (request.needs_answer and not 0 <= request.answered_at <= known):
            return False
        return request.is_done()

    # --- sending ---

    def next_us(self) -> int | None:
        """When the next request is to be sent. None: no request waits."""
        while self._due and not self._is_due_then(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_us: int) -> list[tuple[RequestKey, Request]]:
        """Returns the requests that are due, for one message. The requests are due again after their pause."""
        batch: list[tuple[RequestKey, Request]] = []
        while len(batch) < REQUESTS_AT_ONCE and (due_us := self.next_us()) is not None and due_us <= now_us:
            _, _, key, request = heapq.heappop(self._due)
            request.due_us = now_us + request.pause_us
            request.pause_us = min(request.pause_us * 2, REPEAT_MAX_US)
            batch.append((key, request))
        for key, request in batch:
            self._push(key, request)
        return batch

    def _push(self, key: RequestKey, request: Request) -> None:
        if not request.is_held:
            heapq.heappush(self._due, (request.due_us, next(self._order), key, request))

    def _is_due_then(self, due_us: int, order: int, key: RequestKey, request: Request) -> bool:
        return self.requests.get(key) is request and request.due_us == due_us and not request.is_held
