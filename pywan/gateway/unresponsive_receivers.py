"""Gives connections to a receiver up that answers nothing, where another receiver of the site answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pywan.base.threads import start_essential
from pywan.errors import IllegalStateError, PywanError
from pywan.gateway.dispatchers import Dispatcher, Dispatchers
from pywan.gateway.remote import RemoteReceivers
from pywan.gateway.remote_site import ReceiverPlace

LOOK_S = 0.25
# Batches in flight without a word for so long, or for four times what the link takes, are looked into.
UNRESPONSIVE_US = 1_000_000
ANSWER_S = 0.5  # A receiver welcomes a new connection in this time, or in six times what the link takes.
AGAIN_S = 2.0  # A receiver that was asked, and stays, is asked again after so long.


class End(Protocol):
    """A connection to a receiver."""

    place: ReceiverPlace

    def give_up(self, why: str) -> None: ...


class _Unresponsive(NamedTuple):
    dispatcher: Dispatcher
    end: End
    link_s: float


class Ends(Protocol):
    """What it needs of ReceiverEnds."""

    receivers: RemoteReceivers

    def why_silent(self, place: ReceiverPlace, index: int, limit_s: float) -> str | None: ...


class UnresponsiveReceivers:
    """The rule by which one sender leaves silent receivers.

    A receiver may be silent because it works long on one event, because the link is narrow, or because it is not there
    any more. So it is asked over a connection of its own, and so is another receiver: only if that one alone answers,
    the connections leave (docs/decisions/0102).
    """

    def __init__(self, dispatchers: Dispatchers, ends: Ends) -> None:
        self._dispatchers, self._ends = dispatchers, ends
        self._asked: dict[int, float] = {}  # By the receiver's member: when it was asked last.
        self._is_asking = False  # Whether a thread asks now.

    def look(self) -> None:
        """Has a thread ask the receivers that have been silent for long."""
        if self._is_asking:
            return
        found, now = self._unresponsive(), time.monotonic()
        due = [each for member, each in found.items() if now - self._asked.get(member, -AGAIN_S) >= AGAIN_S]
        if due:
            self._is_asking = True
            try:
                self._dispatchers.run_aside("watch", lambda: self._ask(due))
            except IllegalStateError:  # There may be a thread for it at the next look.
                self._is_asking = False

    def _ask(self, due: list[list[_Unresponsive]]) -> None:
        try:
            for unresponsive in due:
                self._asked[unresponsive[0].end.place.member] = time.monotonic()
                self._look_into(unresponsive)
        finally:
            self._is_asking = False

    def _unresponsive(self) -> dict[int, list[_Unresponsive]]:
        """Returns the connections without a word for long, by the receiver's member."""
        found: dict[int, list[_Unresponsive]] = {}
        for each in self._dispatchers:
            end: Any = each.end_open
            if end is None or not each.session.in_flight:
                continue
            flow = each.flow()
            if flow["unanswered_us"] > max(UNRESPONSIVE_US, 4 * flow["link_us"]):
                found.setdefault(end.place.member, []).append(_Unresponsive(each, end, flow["link_us"] / 1e6))
        for member in self._asked.keys() - found.keys():
            del self._asked[member]
        return found

    def _look_into(self, unresponsive: list[_Unresponsive]) -> None:
        place, index = unresponsive[0].end.place, unresponsive[0].dispatcher.index
        limit_s = max(ANSWER_S, 6 * unresponsive[0].link_s)
        if self._ends.why_silent(place, index, limit_s) is None:
            return
        try:
            other = self._ends.receivers.another(index, place)
        except PywanError:
            return
        if other is None or self._ends.why_silent(other, index, limit_s) is not None:
            return
        self._ends.receivers.avoid(place)
        for dispatcher, end, _ in unresponsive:
            still: Any = dispatcher.end_open
            if still is end:
                end.give_up(f"it welcomes no new connection within {limit_s:g} s, and the receiver at {other} does")


class ReceiverWatch:
    """The thread of a member which looks for silent receivers, while a dispatcher of any sender is connected."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # Its lock guards the fields below.
        self._connections: Counter[UnresponsiveReceivers] = Counter()  # By sender. Those without any are left out.
        self._is_watching = False
        self._thread: threading.Thread | None = None  # The one that watches, or the last one.

    @contextlib.contextmanager
    def over(self, sender: UnresponsiveReceivers) -> Iterator[None]:
        """A context in which the sender has one more connection."""
        with self._changed:
            if not self._is_watching:
                self._thread = start_essential("receivers are not watched", "receiver watch", self._watch)
                self._is_watching = True
            self._connections[sender] += 1
        try:
            yield
        finally:
            with self._changed:
                self._connections[sender] -= 1
                if not self._connections[sender]:
                    del self._connections[sender]
                if not self._connections:
                    self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._connections, LOOK_S)
                if not self._connections:
                    self._is_watching = False
                    return
                senders = list(self._connections)
            for each in senders:
                each.look()

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread. No dispatcher is connected any more."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
