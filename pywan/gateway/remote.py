"""Owns the choice of a receiver of the remote site, for all dispatchers of one gateway sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pywan.base.addresses import Address
from pywan.errors import ProtocolError

CONNECT_TIMEOUT_S = 5.0
AVOID_S = 60.0  # A receiver that did not answer is avoided for so long, if there is another one.


class ReceiverPlace(NamedTuple):
    """The address of a receiver.

    Attributes:
        host: The host name or address.
        port: The port.
        member: The id of the receiver's member.
    """

    host: str
    port: int
    member: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class OtherSites(Protocol):
    """What a sender asks about other sites. The member's `Membership` answers it."""

    def find_receiver(
        self, distributed_system_id: int, exclude: Iterable[int] = (), timeout: float = ...
    ) -> dict[str, Any] | None: ...
    def remote_locators(self, distributed_system_id: int) -> list[Address]: ...


class RemoteReceivers:
    """The receivers of one remote site, as the locators tell them. Any thread may use it."""

    def __init__(self, other_sites: OtherSites, site: int) -> None:
        self._other_sites, self._site = other_sites, site
        self._lock = threading.Lock()
        # For each member whose receiver did not answer: until when it is avoided. `_lock` guards it.
        self._avoided: dict[int, float] = {}

    def avoid(self, place: ReceiverPlace) -> None:
        """Notes that a receiver did not answer."""
        with self._lock:
            self._avoided[place.member] = time.monotonic() + AVOID_S

    def find(self) -> ReceiverPlace:
        """Returns the receiver with the lowest load. One that did not answer is returned only if there is no other.

        ProtocolError if no receiver is known.
        """
        now = time.monotonic()
        with self._lock:
            self._avoided = {member: until for member, until in self._avoided.items() if until > now}
            avoided = list(self._avoided)
        ask = self._other_sites.find_receiver
        receiver = ask(self._site, avoided, timeout=CONNECT_TIMEOUT_S) if avoided else None
        receiver = receiver or ask(self._site, timeout=CONNECT_TIMEOUT_S)
        if receiver is not None:
            return ReceiverPlace(receiver["host"], receiver["port"], receiver["member_id"])
        known = self._other_sites.remote_locators(self._site)
        raise ProtocolError(
            f"no receiver of site {self._site} is known to its locators {', '.join(map(str, known))}"
            if known
            else f"site {self._site} is not known to this site's locators; check their remote-locators"
        )
