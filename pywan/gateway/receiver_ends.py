"""Owns the connection of one dispatcher to a receiver of the remote site, from its opening to its end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from pywan import _core
from pywan.config.attributes import SenderAttributes
from pywan.errors import (
    AuthenticationError,
    ConnectivityError,
    GatewaySenderError,
    NotAuthorizedError,
    OutOfMemoryError,
    ProtocolError,
    PywanError,
)
from pywan.gateway.dispatchers import Dispatchers
from pywan.gateway.queue import SenderQueue
from pywan.gateway.remote import RemoteReceivers
from pywan.gateway.remote_site import CONNECT_TIMEOUT_S, QUICK_TIMEOUT_S, ReceiverPlace
from pywan.gateway.same_receiver import SameReceiver
from pywan.gateway.unresponsive_receivers import ReceiverWatch, UnresponsiveReceivers
from pywan.protocol.gateway import SenderHello, Welcome, encode
from pywan.protocol.members import MEMBER_ID_MAX
from pywan.security import operations
from pywan.security.guard import OPEN, Guard, admit, credentials_of
from pywan.transport import data
from pywan.transport.link import Link
from pywan.transport.links import PLAIN, Way
from pywan.transport.sockets import shut

# Attempts to meet the one receiver of all dispatchers, where several are behind its address. There are so many more for
# each other receiver that was met: the more of them there are, the rarer is the right one.
ATTEMPTS_A_RECEIVER = 5


class WrongReceiver(ConnectivityError):
    """Another receiver answered than the one that was wanted: that of member `name`, whose id is `member`."""

    def __init__(self, place: ReceiverPlace, member: int, name: str) -> None:
        super().__init__(f"the receiver of {name} answers at {place}, and not that of {place.name}")
        self.member, self.name = member, name


class ReceiverEnd:
    """A connection that a receiver has welcomed. `on_close` is called at its end."""

    words = "receiver"

    def __init__(
        self,
        sock: socket.socket,
        place: ReceiverPlace,
        welcome: Welcome,
        receivers: RemoteReceivers,
        on_close: Callable[[], None],
    ) -> None:
        self.place, self._sock, self._welcome, self._receivers = place, sock, welcome, receivers
        self._on_close = on_close
        self._given_up = ""  # Why the sender has ended the connection.

    def begin(self, session: _core.DispatcherSession) -> None:
        w = self._welcome
        session.connected(w.credit_events, w.credit_bytes, 0, w.maximum_time_between_pings * 1000 // 3)

    def run(self, session: _core.DispatcherSession) -> str:
        return session.run(self._sock)

    def give_up(self, why: str) -> None:
        """Ends the connection, as the receiver is silent. Any thread may call it."""
        self._given_up = why
        shut(self._sock)

    def shut(self) -> None:
        shut(self._sock)

    def close(self) -> None:
        self._sock.close()
        self._on_close()

    def ended(self, session: _core.DispatcherSession, outcome: str) -> str:
        """Returns why it ended, in words."""
        if session.is_given_up:
            self._receivers.avoid(self.place)
        if self._given_up:
            return f"connection to the receiver at {self.place} given up: {self._given_up}"
        return f"connection to the receiver at {self.place} ended: {outcome}"

    @property
    def held_back_us(self) -> int:
        """Microseconds in which the receiver's host had no room for more."""
        return data.held_back_us(self._sock)

    @property
    def untaken_bytes(self) -> int:
        """Bytes that left and that the receiver's host has not taken yet."""
        return data.untaken_bytes(self._sock)


class _Opening(NamedTuple):
    sock: socket.socket

    def shut(self) -> None:
        shut(self.sock)


class ReceiverEnds:
    """Opens connections to receivers of the remote site."""

    trouble_word, slow_word, link_word = "link down", "receiver slow", "link slow"
    running_words = ("Running and Connected", "Running, not Connected")
    each_end_is_trouble = False
    is_own_thread = False

    def __init__(
        self,
        attributes: SenderAttributes,
        queue: SenderQueue,
        receivers: RemoteReceivers,
        *,
        watch: ReceiverWatch,
        member_name: str,
        site: int,
        way: Way = PLAIN.gateway,
        guard: Guard = OPEN,
    ) -> None:
        """`watch`: the member's. `way`: connects to receivers. `guard`: knows receivers that prove who they are."""
        self._way, self._guard = way, guard
        self._watch = watch
        self._unresponsive: UnresponsiveReceivers | None = None  # While the dispatchers run.
        self._attributes, self._queue, self.receivers = attributes, queue, receivers
        self.balancing = threading.Lock()  # Held while connections are moved to other receivers.
        # What binds the dispatchers to one receiver. None: each of them may be at another one.
        self.same = SameReceiver(attributes.what) if attributes.enforce_threads_connect_same_receiver else None
        self._member_name, self._site = member_name, site
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_SNDBUF, attributes.what)

    @property
    def longest_retry_s(self) -> float:
        return self._attributes.retry_interval_ms / 1000

    def configure(self, attributes: SenderAttributes) -> None:
        """Takes altered attributes. The next connection goes by them."""
        self._attributes = attributes
        if self._unresponsive is not None:  # Otherwise it has never run.
            self.receivers.site.wake()

    def words(self, event_id: tuple[int, int, int]) -> str | None:
        return None

    def begin(self, dispatchers: Dispatchers) -> None:
        """Notes whose dispatchers begin to run, and has the site looked for at once."""
        self._unresponsive = UnresponsiveReceivers(dispatchers, self)
        self.receivers.site.wake()

    def close(self) -> None:
        pass

    def unreachable_reason(self, index: int) -> str | None:
        """Returns why dispatcher `index` cannot connect now. None: it can, as far as is known."""
        if self.same is not None and self.same.has_place:
            return None
        return self.receivers.unreachable_reason(index)

    def wait_reachable(
        self, stopping: threading.Event, on_opening: Callable[[Any | None], None], told: Callable[[str], None]
    ) -> None:
        """Returns when the remote site can be reached, as far as is known, or the sender stops. `told` gets the reason
        of the wait: at once, when it changes, and every minute."""
        on_opening(self.receivers.site)
        try:
            self.receivers.site.wait(self, stopping, told)
        finally:
            on_opening(None)

    def session_options(self, attributes: SenderAttributes) -> dict[str, object]:
        return {
            "compress": attributes.compression == "lz4",
            "alert_threshold_ms": attributes.alert_threshold,
            "receive_timeout_ms": attributes.socket_read_timeout,
        }

    def open(self, index: int, stopping: threading.Event, on_opening: Callable[[Any | None], None]) -> ReceiverEnd:
        """Connects to a receiver, which welcomes dispatcher number `index`.

        `on_opening` gets what to shut so that nobody waits for a host that does not answer.
        """
        same = self.same
        if same is None:
            return self._meet(index, self.receivers.find(index), None, stopping, on_opening, lambda: None)
        wanted = same.enter(index, stopping, on_opening)
        try:
            if wanted is None:
                end = self._choose(index, same, stopping, on_opening)
            else:
                end = self._follow(index, same, wanted, stopping, on_opening)
        except BaseException:
            same.leave(index)
            raise
        try:
            same.settle(index, end.place)
        except ConnectivityError:
            end.close()
            raise
        return end

    def _choose(
        self, index: int, same: SameReceiver, stopping: threading.Event, on_opening: Callable[[Any | None], None]
    ) -> ReceiverEnd:
        """Connects to the receiver that the other dispatchers will follow to."""
        place = self.receivers.find(index)
        return self._meet(index, place, None, stopping, on_opening, lambda: same.leave(index))

    def _follow(
        self,
        index: int,
        same: SameReceiver,
        wanted: ReceiverPlace,
        stopping: threading.Event,
        on_opening: Callable[[Any | None], None],
    ) -> ReceiverEnd:
        """Connects to the receiver that the other dispatchers are at. If others are behind its address, it tries again.

        ConnectivityError if it did not meet that receiver.
        """
        others: dict[int, str] = {}
        attempts = 0
        while attempts < ATTEMPTS_A_RECEIVER * (1 + len(others)):
            attempts += 1
            try:
                return self._meet(index, wanted, wanted.member, stopping, on_opening, lambda: same.leave(index))
            except WrongReceiver as error:
                others[error.member] = error.name
        raise ConnectivityError(
            f"dispatcher {index} has to be at the receiver of {wanted.name}, as the others are, and did not meet it in"
            f" {attempts} attempts at {wanted}: there it met {', '.join(sorted(others.values()))}"
            " (enforce-threads-connect-same-receiver)"
        )

    def _meet(
        self,
        index: int,
        place: ReceiverPlace,
        wanted: int | None,
        stopping: threading.Event,
        on_opening: Callable[[Any | None], None],
        on_close: Callable[[], None],
    ) -> ReceiverEnd:
        """Connects to a receiver. WrongReceiver if it is not that of the member `wanted`. None: any one is right."""
        what = f"receiver of site {self._attributes.remote_distributed_system_id}"

        def note(sock: Link) -> None:
            on_opening(_Opening(sock))
            if stopping.is_set():
                raise GatewaySenderError(f"{self._attributes.what} is stopping")

        limit_s = CONNECT_TIMEOUT_S if self.receivers.is_avoided(place) else QUICK_TIMEOUT_S
        try:
            sock = self._way.connect((place.host, place.port), limit_s, what=what, on_socket=note)
        except ConnectivityError as error:
            self.receivers.avoid_unmet(place, str(error))
            raise
        watch = contextlib.ExitStack()

        def closed() -> None:
            watch.close()
            on_close()

        try:
            welcome = self._open(index, sock, place, wanted, watch)
            sock.settimeout(None)
            assert welcome.member_id is not None, "_open refuses that"
            met = self.receivers.met(index, place, welcome.member_id, welcome.member)
            assert self._unresponsive is not None, "a dispatcher runs"
            watch.enter_context(self._watch.over(self._unresponsive))
            return ReceiverEnd(sock, met, welcome, self.receivers, closed)
        except BaseException:
            watch.close()
            sock.close()
            raise
        finally:
            on_opening(None)

    def why_silent(self, place: ReceiverPlace, index: int, limit_s: float) -> str | None:
        """Returns why no receiver welcomes a new connection in time. None: one does. Another one behind the address
        counts too."""
        nobody = (place.member + 1) % MEMBER_ID_MAX  # The receiver answers who it is, and ends the connection.
        what = f"receiver of site {self._attributes.remote_distributed_system_id}"
        try:
            sock = self._way.connect((place.host, place.port), limit_s, what=what)
            with contextlib.ExitStack() as watch, contextlib.closing(sock):
                self._open(index, sock, place, nobody, watch)
        except ConnectivityError as error:
            return None if isinstance(error, WrongReceiver) else str(error)
        except (PywanError, OSError):
            pass  # Somebody is there, and says what is wrong.
        return None

    def _open(
        self, index: int, sock: Link, place: ReceiverPlace, wanted: int | None, watch: contextlib.ExitStack
    ) -> Welcome:
        """Sends the hello, and returns the welcome. ProtocolError if this is not a receiver of the remote site.

        `watch` is closed when the connection ends.
        """
        a = self._attributes
        data.set_socket_options(sock, a.socket_buffer_size, socket.SO_SNDBUF)
        identity = self._way.identity.as_user(a.security_username, a.security_password_file)
        shown = self._way.shown_over(sock, f"the receiver at {place}", identity)
        hello = SenderHello(
            site=self._site,
            remote_site=a.remote_distributed_system_id,
            member=self._member_name,
            sender=a.id,
            dispatcher=index,
            numbering=self._queue.numbering,
            mount=self._queue.mount,
            partitions=self._queue.events.partitions,
            wanted_member=wanted,
            user=shown.user if shown is not None else None,
            password=shown.password if shown is not None else None,
            asks=a.authenticate_receiver or None,
        )
        sock.sendall(encode(hello, _core.FRAME_HELLO))
        try:
            welcome = data.receive_message(sock, Welcome)
        except ConnectivityError as error:
            reason = f"the receiver at {place} does not answer: {error}"
            self.receivers.avoid_unmet(place, reason)
            raise ConnectivityError(reason) from None
        except OutOfMemoryError as error:
            reason = f"the receiver at {place} takes no connection: {error}"
            self.receivers.avoid_unmet(place, reason)
            raise ConnectivityError(reason) from None
        except (AuthenticationError, NotAuthorizedError) as error:
            who = f"user {shown.user!r}" if shown is not None else "this sender, which shows no credentials"
            raise type(error)(f"the receiver at {place} does not take {who}: {error}") from None
        if a.authenticate_receiver:
            self._check_receiver(sock, place, welcome, watch)
        if welcome.site != a.remote_distributed_system_id:
            raise ProtocolError(
                f"the receiver at {place} belongs to site {welcome.site}, not to {a.remote_distributed_system_id}"
            )
        if welcome.member_id is None:
            raise ProtocolError(f"the receiver at {place} does not say of which member it is")
        if wanted not in (None, welcome.member_id):
            raise WrongReceiver(place, welcome.member_id, welcome.member)
        sock.settimeout(CONNECT_TIMEOUT_S)
        self._queue.check_past(hello.numbering, str(place), data.receive_known(sock, welcome.known))
        return welcome

    def _check_receiver(self, sock: Link, place: ReceiverPlace, welcome: Welcome, watch: contextlib.ExitStack) -> None:
        """AuthenticationError, NotAuthorizedError: the receiver is not one that may have the events. The connection
        ends when it may not any more."""
        where = f"the receiver at {place}"
        if self._guard.is_open:
            raise AuthenticationError(f"{where} cannot be asked who it is: this member has no security-manager")
        try:
            shown = credentials_of(welcome.user, welcome.password, sock.other_name)
            permission = operations.RECEIVER
            who = admit(self._guard, shown, place.host, where, permission, "a receiver", CONNECT_TIMEOUT_S)
        except (AuthenticationError, NotAuthorizedError) as error:
            raise type(error)(f"{where} is refused here: {error}") from None
        watch.enter_context(
            self._guard.watching(who, permission, lambda: shut(sock), f"the connection of {self._attributes.what}")
        )
