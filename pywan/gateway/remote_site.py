"""Owns whether each remote site can be reached, for all gateway senders of a member (docs/decisions/0119)."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pywan.base.addresses import Address
from pywan.base.lines import ONCE_PERIOD_S
from pywan.base.threads import start_essential
from pywan.errors import ConnectivityError, ProtocolError, PywanError

CONNECT_TIMEOUT_S = 5.0
# A receiver that does not welcome a connection in this time is avoided. If there is no other, CONNECT_TIMEOUT_S holds.
QUICK_TIMEOUT_S = 1.0
# The pause before the first probe. It doubles each time, up to the shortest retry interval of the waiting senders, and
# to the longest pause.
FIRST_PROBE_S = 0.05
LONGEST_PROBE_S = 2.0
APART_S = 0.05  # Probes begin at least so long after each other, however many senders start.
JITTER = 0.2  # A pause is shorter by a random part of it, up to this one, so that members do not ask together.
END_TIMEOUT_S = 10.0


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
    """The questions of a sender about other sites. The member's `Membership` answers it."""

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
    def receivers(
        self, distributed_system_id: int, *, timeout: float = ..., max_age_s: float = ...
    ) -> list[dict[str, Any]]: ...
    def remote_locators(self, distributed_system_id: int, *, max_age_s: float = ...) -> list[Address]: ...
    def unreachable_locators(self, distributed_system_id: int) -> dict[Address, str]: ...


class Waiter(Protocol):
    """A sender that waits for a site."""

    @property
    def longest_retry_s(self) -> float: ...

    def why_silent(self, place: ReceiverPlace, index: int, limit_s: float) -> str | None:
        """Returns why no receiver welcomes a new connection in time. None: one does."""


class RemoteSite:
    """One remote site as this member reaches it. Any thread may use the methods.

    A site counts as reachable until a dispatcher finds no receiver there. From then on the dispatchers of all senders
    wait, and one thread, the prober, asks for them: first a locator of the site for the receivers; then, if dispatchers
    found nobody at every address, the receivers themselves. The prober ends when the site is back or no sender waits.

    Example: 50 senders of 5 dispatchers wait for a site whose locator is away. The prober makes one attempt to connect
    to the locator each second, instead of 250.
    """

    def __init__(self, other_sites: OtherSites, number: int) -> None:
        self.other_sites, self.number = other_sites, number
        self._changed = threading.Condition()  # Its lock guards the fields below.
        self._reason: str | None = None  # Why the site cannot be reached. None: it can, as far as is known.
        self._refused: dict[tuple[str, int], str] = {}  # Addresses where nobody answered, with the reason.
        self._shared: set[tuple[str, int]] = set()  # Addresses behind which several receivers are.
        self._waiting: list[Waiter] = []
        self._is_probing = False
        self._thread: threading.Thread | None = None  # The prober, or the last one.
        self._pause_s = FIRST_PROBE_S
        self._began = -APART_S  # When the last probe began.
        self._due = 0.0  # When the next one is to begin.
        self._is_wanted = False  # Whether somebody wants an answer of a probe that begins from now on.
        self._times_back = 0  # How often the site was found again.

    @property
    def reason(self) -> str | None:
        """Why the site cannot be reached. None: it can, as far as is known."""
        return self._reason

    # News from dispatchers

    def nobody_found(self) -> PywanError:
        """Notes that no receiver of the site was found. Returns the error that says why: ProtocolError if no receiver
        is known, ConnectivityError if no locator of the site answers."""
        error = self._why_nobody()
        self.note_unreachable(str(error))
        return error

    def note_unreachable(self, reason: str) -> None:
        with self._changed:
            self._unreachable(reason)

    def note_refused(self, place: ReceiverPlace, reason: str) -> None:
        """Notes that nobody answered at the address of a receiver. The prober finds out whether anybody else does.

        An address with several receivers behind it says nothing about the site: the next connection there may meet
        another receiver, and a probe would take its turn.
        """
        with self._changed:
            if (place.host, place.port) not in self._shared:
                self._refused[place.host, place.port] = reason
                self._unreachable(reason)

    def _unreachable(self, reason: str) -> None:
        """The caller holds the lock."""
        if self._reason is None:
            self._due = time.monotonic() + self._next_pause()
        self._reason = reason
        self._changed.notify_all()

    def note_welcome(self, place: ReceiverPlace) -> None:
        """Notes that a receiver welcomed a connection."""
        with self._changed:
            self._refused.pop((place.host, place.port), None)
            self._pause_s = FIRST_PROBE_S

    # Waiting

    def wake(self) -> None:
        """Has the prober look at once, and soon again: somebody needs the answer now, or it may have changed."""
        with self._changed:
            self._pause_s, self._is_wanted = FIRST_PROBE_S, True
            self._due = self._soonest()
            self._changed.notify_all()

    def wait(self, waiter: Waiter, stopping: threading.Event, told: Callable[[str], None]) -> None:
        """Returns when the site can be reached, as far as is known, or when `stopping` is set and `shut` was called.

        `told` gets the reason of the wait: at once, when it changes, and every minute. IllegalStateError if the system
        has no thread for the prober.
        """
        with self._changed:
            if self._reason is None:
                return
            if not self._is_probing:
                self._thread = start_essential(
                    f"site {self.number} is not looked for", f"remote site {self.number}", self._probe_until_back
                )
                self._is_probing = True
            times_back = self._times_back
            self._waiting.append(waiter)
            self._changed.notify_all()  # The new one may want shorter pauses.
        known: str | None = None

        def is_over() -> bool:
            return stopping.is_set() or self._reason is None or self._times_back != times_back

        def is_news() -> bool:
            return is_over() or self._reason != known

        try:
            while True:
                with self._changed:
                    self._changed.wait_for(is_news, ONCE_PERIOD_S)
                    if is_over():
                        return
                    known = self._reason
                if known is not None:
                    told(known)
        finally:
            with self._changed:
                self._waiting.remove(waiter)
                self._changed.notify_all()

    def shut(self) -> None:
        """Wakes those who wait, so that they see that their sender stops."""
        with self._changed:
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Waits for the end of the prober. No sender waits any more."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    # The prober

    def _probe_until_back(self) -> None:
        while True:
            with self._changed:
                while self._waiting and self._reason is not None and (left := self._left_s()) > 0:
                    self._changed.wait(left)
                if not self._waiting or self._reason is None:
                    # A sender that comes later asks by itself.
                    self._reason, self._is_probing = None, False
                    return
                self._began, self._is_wanted, waiter = time.monotonic(), False, self._waiting[0]
                max_age_s = min(self._pause_s, self._longest_s())
            reason = self._probe(waiter, max_age_s)
            with self._changed:
                self._due = self._soonest() if self._is_wanted else time.monotonic() + self._next_pause()
                self._times_back += reason is None
                if waiter in self._waiting:  # The next probe is made as another sender: one may be refused for itself.
                    self._waiting.remove(waiter)
                    self._waiting.append(waiter)
                if reason != self._reason:
                    self._reason = reason
                    self._changed.notify_all()

    def _soonest(self) -> float:
        """Returns when the next probe may begin."""
        return max(time.monotonic(), self._began + APART_S)

    def _left_s(self) -> float:
        """Returns the seconds until the next probe. A sender that waits since the pause began may want a shorter one.
        The caller holds the lock."""
        now = time.monotonic()
        self._due = min(self._due, now + self._longest_s())
        return self._due - now

    def _longest_s(self) -> float:
        return max(APART_S, min([LONGEST_PROBE_S, *(each.longest_retry_s for each in self._waiting)]))

    def _next_pause(self) -> float:
        """The caller holds the lock."""
        longest = self._longest_s()
        pause = min(self._pause_s, longest)
        self._pause_s = min(2 * pause, longest)
        return max(APART_S, pause * (1 - JITTER * random.random()))

    def _probe(self, waiter: Waiter, max_age_s: float) -> str | None:
        """Returns why the site cannot be reached. None: it can."""
        try:
            told = self.other_sites.receivers(self.number, timeout=CONNECT_TIMEOUT_S, max_age_s=max_age_s)
        except (PywanError, OSError) as error:
            return str(error)
        if not told:
            return str(self._why_nobody())
        places = {(each["host"], each["port"]): place_of(each) for each in told}
        counts = Counter((each["host"], each["port"]) for each in told)
        with self._changed:
            self._shared = {address for address, count in counts.items() if count > 1}
            kept = places.keys() - self._shared
            self._refused = {address: why for address, why in self._refused.items() if address in kept}
            if len(self._refused) < len(places):
                return None
        limit_s = max(QUICK_TIMEOUT_S, CONNECT_TIMEOUT_S / len(places))
        reason = ""
        for address, place in places.items():
            if not self._waiting:
                return reason or None  # Nobody waits for the answer.
            silent = waiter.why_silent(place, 0, limit_s)
            if silent is None:
                with self._changed:
                    self._refused.pop(address, None)
                return None
            reason = reason or silent
        return reason

    def _why_nobody(self) -> PywanError:
        known = self.other_sites.remote_locators(self.number, max_age_s=math.inf)
        unreachable = self.other_sites.unreachable_locators(self.number)
        if known and all(address in unreachable for address in known):
            return ConnectivityError(f"no locator of site {self.number} answers: {'; '.join(unreachable.values())}")
        return ProtocolError(
            f"no receiver of site {self.number} is known to its locators {', '.join(map(str, known))}"
            if known
            else f"site {self.number} is not known to this site's locators; check their remote-locators"
        )


class RemoteSites:
    """The remote sites of a member, by number. Any thread may use it."""

    def __init__(self, other_sites: OtherSites) -> None:
        self._other_sites = other_sites
        self._lock = threading.Lock()
        self._sites: dict[int, RemoteSite] = {}  # Under `_lock`.

    def site(self, number: int) -> RemoteSite:
        with self._lock:
            if number not in self._sites:
                self._sites[number] = RemoteSite(self._other_sites, number)
            return self._sites[number]

    def wake(self, numbers: Sequence[int]) -> None:
        """Has the probers of sites look at once, because their locators are known from now on, or are others."""
        with self._lock:
            sites = [site for number, site in self._sites.items() if number in numbers]
        for site in sites:
            site.wake()

    def join(self) -> None:
        """Waits for the end of all probers. All senders have stopped."""
        deadline = time.monotonic() + END_TIMEOUT_S
        for site in list(self._sites.values()):
            site.join(max(0.0, deadline - time.monotonic()))


def place_of(receiver: dict[str, Any]) -> ReceiverPlace:
    return ReceiverPlace(receiver["host"], receiver["port"], receiver["member_id"], receiver["member"])
