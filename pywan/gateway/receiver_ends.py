"""Owns the connection of one dispatcher to a receiver of the remote site, from its opening to its end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from pywan import _core
from pywan.config.attributes import SenderAttributes
from pywan.errors import ConnectivityError, GatewaySenderError, ProtocolError
from pywan.gateway.queue import SenderQueue
from pywan.gateway.remote import CONNECT_TIMEOUT_S, ReceiverPlace, RemoteReceivers
from pywan.protocol.gateway import SenderHello, Welcome, encode
from pywan.transport import data
from pywan.transport.sockets import connect, shut


class ReceiverEnd:
    """A connection that a receiver has welcomed."""

    words = "receiver"

    def __init__(self, sock: socket.socket, place: ReceiverPlace, welcome: Welcome, receivers: RemoteReceivers) -> None:
        self.place, self._sock, self._welcome, self._receivers = place, sock, welcome, receivers

    def begin(self, session: _core.DispatcherSession) -> None:
        w = self._welcome
        session.connected(w.credit_events, w.credit_bytes, 0, w.maximum_time_between_pings * 1000 // 3)

    def run(self, session: _core.DispatcherSession) -> str:
        return session.run(self._sock.fileno())

    def shut(self) -> None:
        shut(self._sock)

    def close(self) -> None:
        self._sock.close()

    def ended(self, session: _core.DispatcherSession, outcome: str) -> str:
        """Returns why it ended, in words."""
        if session.is_given_up:
            self._receivers.avoid(self.place)
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
        member_name: str,
        site: int,
    ) -> None:
        self._attributes, self._queue, self._receivers = attributes, queue, receivers
        self._member_name, self._site = member_name, site
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_SNDBUF, attributes.what)

    @property
    def longest_retry_s(self) -> float:
        return self._attributes.retry_interval_ms / 1000

    def configure(self, attributes: SenderAttributes) -> None:
        """Takes altered attributes. None of them counts here."""

    def words(self, event_id: tuple[int, int, int]) -> str | None:
        return None

    def close(self) -> None:
        pass

    def session_options(self, attributes: SenderAttributes) -> dict[str, object]:
        return {
            "compress": attributes.compression == "lz4",
            "alert_threshold_ms": attributes.alert_threshold,
            "silence_ms": attributes.socket_read_timeout,
        }

    def open(self, index: int, stopping: threading.Event, on_opening: Callable[[_Opening | None], None]) -> ReceiverEnd:
        """Connects to a receiver, which welcomes dispatcher number `index`.

        `on_opening` gets what to shut so that nobody waits for a host that does not answer.
        """
        place = self._receivers.find()
        what = f"receiver of site {self._attributes.remote_distributed_system_id}"

        def note(sock: socket.socket) -> None:
            on_opening(_Opening(sock))
            if stopping.is_set():
                raise GatewaySenderError(f"{self._attributes.what} is stopping")

        try:
            sock = connect((place.host, place.port), CONNECT_TIMEOUT_S, what=what, on_socket=note)
        except ConnectivityError:
            self._receivers.avoid(place)
            raise
        try:
            welcome = self._open(index, sock, place)
            sock.settimeout(None)
            return ReceiverEnd(sock, place, welcome, self._receivers)
        except BaseException:
            sock.close()
            raise
        finally:
            on_opening(None)

    def _open(self, index: int, sock: socket.socket, place: ReceiverPlace) -> Welcome:
        """Sends the hello, and returns the welcome. ProtocolError if this is not a receiver of the remote site."""
        a = self._attributes
        data.set_socket_options(sock, a.socket_buffer_size, socket.SO_SNDBUF)
        hello = SenderHello(
            site=self._site,
            remote_site=a.remote_distributed_system_id,
            member=self._member_name,
            sender=a.id,
            dispatcher=index,
            numbering=self._queue.numbering,
            mount=self._queue.mount,
            partitions=self._queue.events.partitions,
        )
        sock.sendall(encode(hello, _core.FRAME_HELLO))
        try:
            welcome = data.receive_message(sock, Welcome)
        except ConnectivityError as error:
            self._receivers.avoid(place)
            raise ConnectivityError(f"the receiver at {place} does not answer: {error}") from None
        self._queue.check_past(hello.numbering, str(place), data.receive_known(sock, welcome.known))
        if welcome.site != a.remote_distributed_system_id:
            raise ProtocolError(
                f"the receiver at {place} belongs to site {welcome.site}, not to {a.remote_distributed_system_id}"
            )
        return welcome
