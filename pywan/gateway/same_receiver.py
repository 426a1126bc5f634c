"""Owns the one receiver that all dispatchers of a gateway sender are at, if they have to be at the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pywan.errors import ConnectivityError, GatewaySenderError
from pywan.gateway.remote_site import ReceiverPlace


class SameReceiver:
    """Binds dispatchers to one receiver. Any thread may use it.

    The first dispatcher chooses, and the others wait until it knows whom it has met. So an address behind which several
    receivers are is asked by one dispatcher before the others follow it. Once no dispatcher is connected, the next one
    chooses again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()  # Its lock guards the fields below.
        self._place: ReceiverPlace | None = None  # Where the dispatchers are. None: they are nowhere.
        self._there: set[int] = set()  # The dispatchers that are connected. Not empty while there is a place.
        self._chooser: int | None = None  # The dispatcher that chooses now.
        self._is_moving = False  # Whether all of them leave, to choose again. Those that have left wait for the others.

    def enter(
        self, index: int, stopping: threading.Event, on_opening: Callable[[Any | None], None]
    ) -> ReceiverPlace | None:
        """Returns where dispatcher `index` has to connect. None: it chooses, and then calls `settle` or `leave`."""
        on_opening(self)
        try:
            with self._changed:
                self._changed.wait_for(lambda: stopping.is_set() or self._is_known)
                if stopping.is_set():
                    raise GatewaySenderError(f"{self._what} is stopping")
                if self._place is None:
                    self._chooser = index
                return self._place
        finally:
            on_opening(None)

    @property
    def has_place(self) -> bool:
        """Whether it is known where the dispatchers are, so that another one need not ask a locator."""
        return self._place is not None

    @property
    def _is_known(self) -> bool:
        return not self._is_moving and (self._place is not None or self._chooser is None)

    def shut(self) -> None:
        """Wakes those who wait, so that they see that the sender stops."""
        with self._changed:
            self._changed.notify_all()

    def settle(self, index: int, place: ReceiverPlace) -> None:
        """Notes that dispatcher `index` is connected to `place`. ConnectivityError if the others have left that."""
        with self._changed:
            if self._chooser == index:
                self._chooser, self._place = None, place
            elif self._place is None or self._place.member != place.member:
                raise ConnectivityError(f"{self._what}: its other dispatchers have left the receiver at {place}")
            self._there.add(index)
            self._changed.notify_all()

    def leave(self, index: int) -> None:
        """Notes that dispatcher `index` is not connected. Does nothing if it was not."""
        with self._changed:
            if self._chooser == index:
                self._chooser = None
            self._there.discard(index)
            if not self._there:
                self._place, self._is_moving = None, False
            self._changed.notify_all()

    def move(self, is_moving: bool) -> None:
        """Lets no dispatcher come back before all have left, or ends that: they come back to where the others are."""
        with self._changed:
            self._is_moving = is_moving and bool(self._there)
            self._changed.notify_all()
