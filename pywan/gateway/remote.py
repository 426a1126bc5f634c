"""Owns the choice of a receiver of the remote site, for all dispatchers of one gateway sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pywan.base.addresses import Address
from pywan.errors import ConnectivityError, ProtocolError

CONNECT_TIMEOUT_S = 5.0
ANOTHER_TIMEOUT_S = 1.0
AVOID_S = 60.0  # A receiver that did not answer is avoided for so long, if there is another one.
SHARED_MAX = 64  # So many addresses behind which several receivers are, are remembered.


class ReceiverPlace(NamedTuple):
    """A receiver, and where it is.

    Attributes:
        host: The host name or address.
        port: The port. Several receivers may be behind one host and port.
        member: The id of the receiver's member.
        name: The name of that member.
    """

    host: str
    port: int
    member: int
    name: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class OtherSites(Protocol):
    """What a sender asks about other sites. The member's `Membership` answers it."""

    def find_receiver(
        self,
        distributed_system_id: int,
        exclude: Iterable[int] = (),
        *,
        keep: int | None = None,
        dispatchers: Iterable[int] = (),
        timeout: float = ...,
    ) -> dict[str, Any] | None: ...
    def less_loaded_receiver(
        self,
        distributed_system_id: int,
        instead_of: int,
        connections: int,
        exclude: Iterable[int] = (),
        *,
        dispatchers: Iterable[int] = (),
        timeout: float = ...,
    ) -> dict[str, Any] | None: ...
    def remote_locators(self, distributed_system_id: int) -> list[Address]: ...
    def unreachable_locators(self, distributed_system_id: int) -> dict[Address, str]: ...


class RemoteReceivers:
    """The receivers of one remote site, as the locators tell them. Any thread may use it.

    A dispatcher that connects again keeps its receiver as long as the locators know that.
    """

    def __init__(self, other_sites: OtherSites, site: int, number_of: Callable[[int], int] | None = None) -> None:
        """`number_of`: returns what the locators call a dispatcher (`dispatcher_number`). None: they are not told."""
        self._other_sites, self._site, self._number_of = other_sites, site, number_of
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

    def avoid_unmet(self, place: ReceiverPlace) -> None:
        """Notes that nobody answered at an address.

        If several receivers are behind it, nobody knows which of them that was, and none is avoided.
        """
        with self._lock:
            is_shared = (place.host, place.port) in self._shared
        if not is_shared:
            self.avoid(place)

    def forget_avoided(self) -> None:
        """Makes receivers that did not answer count like others again."""
        with self._lock:
            self._avoided.clear()

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
        ask = self._other_sites.find_receiver
        numbers, limit_s = self._numbers([index]), CONNECT_TIMEOUT_S
        receiver = None
        if avoided:
            receiver = ask(self._site, avoided, keep=kept, dispatchers=numbers, timeout=limit_s)
        if receiver is None:
            receiver = ask(self._site, keep=kept, dispatchers=numbers, timeout=limit_s)
        if receiver is not None:
            return _place_of(receiver)
        known = self._other_sites.remote_locators(self._site)
        unreachable = self._other_sites.unreachable_locators(self._site)
        if known and all(address in unreachable for address in known):
            raise ConnectivityError(f"no locator of site {self._site} answers: {'; '.join(unreachable.values())}")
        raise ProtocolError(
            f"no receiver of site {self._site} is known to its locators {', '.join(map(str, known))}"
            if known
            else f"site {self._site} is not known to this site's locators; check their remote-locators"
        )

    def met(self, index: int, wanted: ReceiverPlace, member: int, name: str) -> ReceiverPlace:
        """Notes which receiver dispatcher `index` met where it wanted another one or the same. Returns what it met."""
        with self._lock:
            self._kept[index] = member
            self._next.pop(index, None)
            if member != wanted.member:
                self._shared.setdefault((wanted.host, wanted.port))
                while len(self._shared) > SHARED_MAX:
                    del self._shared[next(iter(self._shared))]
        return wanted._replace(member=member, name=name)

    def less_loaded(self, place: ReceiverPlace, dispatchers: Sequence[int]) -> ReceiverPlace | None:
        """Returns the receiver to which these dispatchers are to move from `place`. None: the loads are even enough.

        NoLocatorError if no locator of the remote site answers.
        """
        receiver = self._other_sites.less_loaded_receiver(
            self._site,
            place.member,
            len(dispatchers),
            self._avoided_now(),
            dispatchers=self._numbers(dispatchers),
            timeout=CONNECT_TIMEOUT_S,
        )
        return None if receiver is None else _place_of(receiver)

    def another(self, index: int, than: ReceiverPlace) -> ReceiverPlace | None:
        """Returns the receiver to which dispatcher `index` would go if this one were not there. None: there is none.

        NoLocatorError if no locator of the remote site answers.
        """
        exclude = {than.member, *self._avoided_now()}
        numbers = self._numbers([index])
        receiver = self._other_sites.find_receiver(self._site, exclude, dispatchers=numbers, timeout=ANOTHER_TIMEOUT_S)
        return None if receiver is None else _place_of(receiver)

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


def _place_of(receiver: dict[str, Any]) -> ReceiverPlace:
    return ReceiverPlace(receiver["host"], receiver["port"], receiver["member_id"], receiver["member"])
