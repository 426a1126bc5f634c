"""Gives connections to a receiver up that answers nothing, where another receiver of the site answers."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

from pywan.errors import PywanError
from pywan.gateway.dispatchers import Dispatcher, Dispatchers
from pywan.gateway.remote import ReceiverPlace, RemoteReceivers

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

    def answers(self, place: ReceiverPlace, index: int, limit_s: float) -> bool: ...


class UnresponsiveReceivers:
    """The watch of one sender. A receiver may be silent because it works long on one event, because the link is narrow,
    or because it is not there any more. So it is asked over a connection of its own, and so is another receiver: only
    if that one alone answers, the connections leave (docs/decisions/0102)."""

    def __init__(self, dispatchers: Dispatchers, ends: Ends) -> None:
        self._dispatchers, self._ends = dispatchers, ends
        self._asked: dict[int, float] = {}  # By the receiver's member: when it was asked last.

    def watch(self) -> None:
        """Returns when the sender stops."""
        while not self._dispatchers.wait_stopping(LOOK_S):
            for member, unresponsive in self._unresponsive().items():
                now = time.monotonic()
                if now - self._asked.get(member, -AGAIN_S) >= AGAIN_S:
                    self._asked[member] = now
                    self._look_into(unresponsive)

    def _unresponsive(self) -> dict[int, list[_Unresponsive]]:
        """Returns the connections without a word for long, by the receiver's member."""
        found: dict[int, list[_Unresponsive]] = {}
        for each in self._dispatchers:
            end: Any = each.end_open
            flow = each.flow()
            if end is not None and flow["unanswered_us"] > max(UNRESPONSIVE_US, 4 * flow["link_us"]):
                found.setdefault(end.place.member, []).append(_Unresponsive(each, end, flow["link_us"] / 1e6))
        for member in self._asked.keys() - found.keys():
            del self._asked[member]
        return found

    def _look_into(self, unresponsive: list[_Unresponsive]) -> None:
        place, index = unresponsive[0].end.place, unresponsive[0].dispatcher.index
        limit_s = max(ANSWER_S, 6 * unresponsive[0].link_s)
        if self._ends.answers(place, index, limit_s):
            return
        try:
            other = self._ends.receivers.another(index, place)
        except PywanError:
            return
        if other is None or not self._ends.answers(other, index, limit_s):
            return
        self._ends.receivers.avoid(place)
        for dispatcher, end, _ in unresponsive:
            still: Any = dispatcher.end_open
            if still is end:
                end.give_up(f"it welcomes no new connection within {limit_s:g} s, and the receiver at {other} does")
