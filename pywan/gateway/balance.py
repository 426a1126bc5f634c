"""Moves connections of a gateway sender to receivers that have fewer, until the loads of all receivers are even.

The locators of the remote site decide about each move, because they know the loads: those of other senders too, and
those of moves that are under way. A connection moves when all that was sent over it is acknowledged. So nothing is sent
twice by a move, and what follows of a key is sent after what came before it was applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from pywan.errors import GatewaySenderError
from pywan.gateway.dispatchers import Dispatcher, Dispatchers, End
from pywan.gateway.receiver_ends import ReceiverEnds
from pywan.gateway.remote_site import ReceiverPlace

ALL_S = 30.0  # The limit for all moves of one call.
LEAVE_S = 10.0  # A connection with something on its way for longer than this stays where it is.
COME_S = 10.0  # A connection that moves is waited for so long at its new receiver, before the next one moves.
LOOK_S = 0.005


class Balanced(NamedTuple):
    """What was done.

    Attributes:
        connections: The number of connections that the sender had.
        moved: How many of them moved.
        busy: How many should move, and stayed because their receiver did not acknowledge in time what was on its way.
    """

    connections: int
    moved: int
    busy: int


class _Connection(NamedTuple):
    dispatcher: Dispatcher
    end: End
    place: ReceiverPlace


class Balance:
    """Evens out the receivers of one sender. One thread at a time uses it."""

    def __init__(self, dispatchers: Dispatchers, ends: ReceiverEnds, what: str) -> None:
        self._dispatchers, self._ends, self._what = dispatchers, ends, what

    def even_out(self) -> Balanced:
        """Moves as many connections as make the loads even, one after the other.

        If all dispatchers have to be at one receiver, all of them move together or none does. NoLocatorError if no
        locator of the remote site answers. GatewaySenderError if a callback of the sender itself calls it.
        """
        if self._dispatchers.is_own_thread():
            raise GatewaySenderError(
                f"{self._what}: its own filter cannot balance its load; call it from another thread"
            )
        self._ends.receivers.forget_avoided()  # Who calls this knows that they are there again.
        deadline = time.monotonic() + ALL_S
        connections = len(self._connected())
        moved = busy = 0
        settled: set[int] = set()  # Members whose receivers none of our connections is to leave.
        done: set[int] = set()  # Dispatchers that have moved.
        while time.monotonic() < deadline and self._dispatchers.is_running:
            group = self._next_to_move(settled, done)
            if not group:
                break
            place = group[0].place
            better = self._ends.receivers.less_loaded(place, [each.dispatcher.index for each in group])
            if better is None:
                settled.add(place.member)
                continue
            if self._move(group, better):
                moved += len(group)
                done.update(each.dispatcher.index for each in group)
            else:
                busy += len(group)
                settled.add(place.member)
        return Balanced(connections, moved, busy)

    def _connected(self) -> list[_Connection]:
        return [
            _Connection(each, end, end.place)
            for each in self._dispatchers
            if (end := each.end_open) is not None and end.place is not None
        ]

    def _next_to_move(self, settled: set[int], done: set[int]) -> list[_Connection]:
        """Returns the connections that move next. They are at the receiver where most of ours are. []: none moves."""
        at: dict[int, list[_Connection]] = {}
        for each in self._connected():
            if each.place.member not in settled and each.dispatcher.index not in done:
                at.setdefault(each.place.member, []).append(each)
        most = max(at.values(), key=len, default=[])
        return most if self._ends.same is not None else most[-1:]

    def _move(self, group: list[_Connection], to: ReceiverPlace) -> bool:
        """Moves connections. Returns whether all that they had sent was acknowledged in time. If not, they stay."""
        same, receivers = self._ends.same, self._ends.receivers
        for dispatcher, _, _ in group:
            receivers.send_to(dispatcher.index, to)
        if same is not None:
            same.move(True)
        for dispatcher, _, _ in group:
            dispatcher.session.leave(True)
        if self._wait(lambda: all(each.end_open is not end for each, end, _ in group), LEAVE_S):
            self._wait(lambda: all(each.end_open is not None for each, _, _ in group), COME_S)
            return True
        for dispatcher, _, _ in group:
            receivers.send_to(dispatcher.index, None)
            dispatcher.session.leave(False)
        if same is not None:
            same.move(False)
        return False

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline or self._dispatchers.wait_stopping(LOOK_S):
                return condition()
        return True
