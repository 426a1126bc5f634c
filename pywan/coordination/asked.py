"""Owns the requests of a member to its coordinator: which are to be sent when, and which are settled.

A request is repeated until the tables show its effect, so the coordinator may drop any of them. The work of each call
grows with the requests that it is about, and not with all that wait: a member that loses a neighbour has thousands.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

REPEAT_US = 200_000  # So soon a request is repeated whose effect the tables do not show. The pause grows.
REPEAT_MAX_US = 2_000_000
REQUESTS_AT_ONCE = 1000  # In one message.

RequestKey = tuple[
    Any, ...
]  # What is asked, and about whom. A later request with the same key replaces an earlier one.


@dataclass
class Request:
    """What is asked until `is_done` says that the tables show its effect. None: an answer is enough.

    Tables that are older than the newest answer may show the effect of an earlier request. So they do not count.
    """

    fields: list[Any]
    is_done: Callable[[], bool] | None
    shown_by: Collection[Hashable]  # The entries of the tables on which `is_done` depends.
    needs_answer: bool = False  # The tables count as soon as they have what was decided before an answer.
    answered_at: int = -1  # The newest decision at an answer.
    due_us: int = 0
    pause_us: int = REPEAT_US
    is_held: bool = False  # It is not sent yet.
    refused: str = ""
    done: bool = False


class Asked:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.requests: dict[RequestKey, Request] = {}  # Read by others.
        self._shown_by: defaultdict[Hashable, dict[RequestKey, None]] = defaultdict(dict)  # By entry of the tables.
        self._to_look_at: dict[RequestKey, None] = {}  # What they wait for may have happened.
        # Heaps. An entry counts if the request is still asked, and has the same number in it.
        self._due: list[tuple[int, int, RequestKey, Request]] = []  # By `due_us`.
        self._answered: list[tuple[int, int, RequestKey, Request]] = []  # By `answered_at`: newer than the tables.
        self._order = itertools.count()  # Requests that are due at the same time are sent in the order of the asking.

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
        """Adds a request, in place of an earlier one with the same key. One that is asked already goes on as it was.

        `known`: the number of the newest decision in the tables, which may show the effect already.
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
        """Says whether the request waits with being sent."""
        request = self.requests.get(key)
        if request is not None and request.is_held != is_held:
            request.is_held = is_held
            self._push(key, request)

    def drop(self, key: RequestKey) -> None:
        """The request is asked no more, and never done."""
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

    # --- settling ---

    def entry_changed(self, entry: Hashable) -> None:
        """The tables have another decision about the entry."""
        self._to_look_at.update(self._shown_by.get(entry, ()))

    def look_at(self, key: RequestKey) -> None:
        """What the request waits for may have happened."""
        self._to_look_at[key] = None

    def answered(self, batch: Sequence[tuple[RequestKey, Request]], decision: int, *, is_heeded: bool = True) -> None:
        """The coordinator has answered these requests, after that decision. `is_heeded`: it has looked at them.
        Otherwise those that need an answer are asked again."""
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

        `known`: the number of the newest decision in the tables.
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
        """When the next request is to be sent; None: nothing is."""
        while self._due and not self._is_due_then(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_us: int) -> list[tuple[RequestKey, Request]]:
        """Returns the requests that are to be sent now, in one message. They are due again after their pause."""
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
