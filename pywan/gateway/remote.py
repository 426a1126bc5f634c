"""Owns the choice of a receiver of the remote site, for all dispatchers of one gateway sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pywan.errors import PywanError
from pywan.gateway.remote_site import CONNECT_TIMEOUT_S, ReceiverPlace, RemoteSite, place_of

ANOTHER_TIMEOUT_S = 1.0
AVOID_S = 60.0  # A receiver that did not answer is avoided for so long, if there is another one.
SHARED_MAX = 64  # So many addresses behind which several receivers are, are remembered.


class RemoteReceivers:
    """The receivers of one remote site, as the locators tell them. Any thread may use it.

    A dispatcher that connects again keeps its receiver as long as the locators know that.
    """

    def __init__(self, site: RemoteSite, number_of: Callable[[int], int] | None = None) -> None:
        """`number_of`: returns what the locators call a dispatcher (`dispatcher_number`). None: they are not told."""
        self.site, self._number_of = site, number_of
        self._other_sites = site.other_sites
        self._lock = threading.Lock()
        # `_lock` guards the fields below.
        self._avoided: dict[int, float] = {}  # For each member whose receiver did not answer: until when it is avoided.
        self._kept: dict[int, int] = {}  # For each dispatcher: the member whose receiver it met last.
        self._next: dict[int, ReceiverPlace] = {}  # For each dispatcher that is to move: where it connects next.
        self._shared: dict[tuple[str, int], None] = {}  # Addresses behind which several receivers were met.

    def avoid(self, place: ReceiverPlace) -> None:
        """Notes that a receiver did not answer."""
        with self._lock:
            self._avoided[place.member] = time.monotonic() + AVOID_S

    def avoid_unmet(self, place: ReceiverPlace, reason: str) -> None:
        """Notes that nobody answered at an address, and why.

        If several receivers are behind it, nobody knows which of them that was, and none is avoided.
        """
        with self._lock:
            is_shared = (place.host, place.port) in self._shared
        if not is_shared:
            self.avoid(place)
            self.site.note_refused(place, reason)

    def forget_avoided(self) -> None:
        """Makes receivers that did not answer count like others again."""
        with self._lock:
            self._avoided.clear()
        self.site.wake()

    def unreachable_reason(self, index: int) -> str | None:
        """Returns why dispatcher `index` cannot connect now. None: it can, as far as is known."""
        with self._lock:
            if index in self._next:
                return None
        return self.site.reason

    def find(self, index: int) -> ReceiverPlace:
        """Returns the receiver that dispatcher `index` is to connect to: the one that it had, or the one with the
        lowest load. A receiver that did not answer is returned only if there is no other.

        ProtocolError if no receiver is known, ConnectivityError if no locator of the site answers.
        """
        avoided = self._avoided_now()
        with self._lock:
            following, kept = self._next.pop(index, None), self._kept.get(index)
        if following is not None:
            return following
        try:
            receiver = self._ask(index, kept, avoided) if avoided else None
            receiver = receiver or self._ask(index, kept, [])
        except PywanError as error:
            self.site.note_unreachable(str(error))
            raise
        if receiver is None:
            raise self.site.nobody_found()
        return receiver

    def _ask(self, index: int, kept: int | None, exclude: list[int]) -> ReceiverPlace | None:
        numbers = self._numbers([index])
        receiver = self._other_sites.find_receiver(
            self.site.number, exclude, keep=kept, dispatchers=numbers, timeout=CONNECT_TIMEOUT_S
        )
        return None if receiver is None else place_of(receiver)

    def met(self, index: int, wanted: ReceiverPlace, member: int, name: str) -> ReceiverPlace:
        """Notes which receiver dispatcher `index` met where it wanted another one or the same. Returns what it met."""
        with self._lock:
            self._kept[index] = member
            self._next.pop(index, None)
            if member != wanted.member:
                self._shared.setdefault((wanted.host, wanted.port))
                while len(self._shared) > SHARED_MAX:
                    del self._shared[next(iter(self._shared))]
        self.site.note_welcome(wanted)
        return wanted._replace(member=member, name=name)

    def less_loaded(self, place: ReceiverPlace, dispatchers: Sequence[int]) -> ReceiverPlace | None:
        """Returns the receiver to which these dispatchers are to move from `place`. None: the loads are even enough.

        NoLocatorError if no locator of the remote site answers.
        """
        receiver = self._other_sites.less_loaded_receiver(
            self.site.number,
            place.member,
            len(dispatchers),
            self._avoided_now(),
            dispatchers=self._numbers(dispatchers),
            timeout=CONNECT_TIMEOUT_S,
        )
        return None if receiver is None else place_of(receiver)

    def another(self, index: int, than: ReceiverPlace) -> ReceiverPlace | None:
        """Returns the receiver to which dispatcher `index` would go if this one were not there. None: there is none.

        NoLocatorError if no locator of the remote site answers.
        """
        exclude = {than.member, *self._avoided_now()}
        numbers = self._numbers([index])
        receiver = self._other_sites.find_receiver(
            self.site.number, exclude, dispatchers=numbers, timeout=ANOTHER_TIMEOUT_S
        )
        return None if receiver is None else place_of(receiver)

    def is_avoided(self, place: ReceiverPlace) -> bool:
        return place.member in self._avoided_now()

    def send_to(self, index: int, place: ReceiverPlace | None) -> None:
        """Says where dispatcher `index` connects next. None: where `find` says."""
        with self._lock:
            if place is None:
                self._next.pop(index, None)
            else:
                self._next[index] = place

    def _numbers(self, dispatchers: Sequence[int]) -> list[int]:
        return [] if self._number_of is None else list(map(self._number_of, dispatchers))

    def _avoided_now(self) -> list[int]:
        now = time.monotonic()
        with self._lock:
            self._avoided = {member: until for member, until in self._avoided.items() if until > now}
            return list(self._avoided)
