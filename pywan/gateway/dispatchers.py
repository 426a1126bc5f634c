"""Owns the dispatchers of one gateway sender: their threads, and the connection of each one to a receiver, from its
opening to its end."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from pywan import _core
from pywan.base.repeats import Repeats
from pywan.base.threads import start_thread
from pywan.config.attributes import SenderAttributes
from pywan.errors import ConnectivityError, GatewaySenderError, ProtocolError, PywanError
from pywan.gateway.filters import SenderFilters
from pywan.gateway.parked import ParkedEvents
from pywan.gateway.queue import SenderQueue
from pywan.gateway.remote import CONNECT_TIMEOUT_S, ReceiverPlace, RemoteReceivers
from pywan.protocol.gateway import SenderHello, Welcome, encode
from pywan.transport import data
from pywan.transport.sockets import connect, shut

log = logging.getLogger("pywan.sender")

# The wait before the first attempt after a connection that worked. It doubles each time, up to retry-interval-ms.
FIRST_RETRY_S = 0.05
JOIN_TIMEOUT_S = 15.0


class Connected(NamedTuple):
    """A connection that a receiver has welcomed."""

    sock: socket.socket
    place: ReceiverPlace


class Dispatcher:
    """One dispatcher of a sender. Only its own thread changes the fields; other threads read them."""

    def __init__(self, index: int, session: _core.DispatcherSession) -> None:
        self.index, self.session = index, session
        self.connecting: socket.socket | None = None  # A connection that the receiver has not welcomed yet.
        self.connection: Connected | None = None
        # Why the last connection was given up or refused. None again when a receiver shows progress.
        self.given_up: str | None = None

    def end(self) -> None:
        """Ends its connection and its work. Any thread may call it."""
        self.session.stop()
        connection = self.connection
        for sock in (self.connecting, connection.sock if connection is not None else None):
            if sock is not None:
                shut(sock)

    @property
    def hung_reason(self) -> str | None:
        """Why the last connection was given up, as long as no receiver shows progress."""
        return self.given_up if not self.session.has_progressed else None

    def times(self) -> dict[str, int]:
        """Returns the microseconds spent so far in each kind of work or waiting. `Lag` makes shares of them."""
        connection = self.connection
        held_back = data.held_back_us(connection.sock) if connection is not None else 0
        return {**self.session.times(time.monotonic_ns() // 1000), "held_back": held_back}

    def flow(self) -> dict[str, int]:
        """Returns how many batches and bytes are on their way, and how fast they are acknowledged."""
        return {**self.session.flow(time.monotonic_ns() // 1000), "batches_in_flight": self.session.in_flight}

    def is_left_waiting(self, is_held_back: bool) -> bool:
        """Returns whether the receiver has been silent for longer than the link takes.

        It is not counted as silent while its host has not taken all bytes, unless that host has no room for more
        (`is_held_back`).
        """
        flow, connection = self.flow(), self.connection
        if connection is None or flow["unanswered_us"] <= max(1_000_000, 4 * flow["link_us"]):
            return False
        return is_held_back or data.untaken_bytes(connection.sock) == 0


class Dispatchers:
    """All dispatchers of one sender. They run from `begin` and `start` to `end`."""

    def __init__(
        self,
        attributes: SenderAttributes,
        queue: SenderQueue,
        parked: ParkedEvents,
        receivers: RemoteReceivers,
        *,
        member_name: str,
        site: int,
    ) -> None:
        self._attributes, self._queue, self._receivers = attributes, queue, receivers
        self._member_name, self._site = member_name, site
        self._what = f"gateway sender {attributes.id!r}"
        self._each = [
            Dispatcher(n, _core.DispatcherSession(queue.events, n, parked.queue, on_failure=parked.note_failure))
            for n in range(queue.dispatchers)
        ]
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._stopping.set()
        # The reason why the last attempt to connect failed. None while a dispatcher is connected.
        self.trouble: str | None = None
        self._repeats = Repeats()  # Limits the log lines about troubles, until a receiver shows progress.
        self._flushes_lock = threading.Lock()
        self._flushes = 0  # The number of callers that wait until the queue is flushed.
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_SNDBUF, self._what)

    # State

    def __iter__(self) -> Iterator[Dispatcher]:
        return iter(self._each)

    @property
    def is_running(self) -> bool:
        return not self._stopping.is_set()

    @property
    def is_connected(self) -> bool:
        return any(each.connection is not None for each in self._each)

    @property
    def receiver_place(self) -> ReceiverPlace | None:
        """The address of a receiver that one of the dispatchers is connected to. None: no dispatcher is connected."""
        return next((connection.place for each in self._each if (connection := each.connection) is not None), None)

    @property
    def is_sending(self) -> bool:
        """Whether a batch is on its way."""
        return any(each.session.in_flight for each in self._each)

    def wait_stopping(self, seconds: float) -> bool:
        """Waits until the dispatchers are told to end, `seconds` at most. Returns whether they were."""
        return self._stopping.wait(seconds)

    def is_own_thread(self) -> bool:
        """Returns whether the calling thread is one of the dispatchers, for example in a filter."""
        return threading.current_thread() in self._threads

    def late_threads(self) -> str:
        """Returns the names of the threads that were told to end and have not, apart from the caller's."""
        return ", ".join(t.name for t in self._threads if t.is_alive() and t is not threading.current_thread())

    # Orders

    def configure(self, attributes: SenderAttributes, filters: SenderFilters) -> None:
        """Gives all dispatchers the attributes and filters that hold from now on."""
        a = attributes
        for each in self._each:
            each.session.configure(
                a.batch_size,
                a.batch_time_interval,
                batch_conflation=a.enable_batch_conflation,
                compress=a.compression == "lz4",
                alert_threshold_ms=a.alert_threshold,
                silence_ms=a.socket_read_timeout,
            )
            each.session.set_callbacks(
                filters.choose if filters.decides_transmit else None,
                filters.tell_acknowledged if filters.hears_acknowledgements else None,
            )
        self._queue.events.wake()  # A dispatcher that waits for a full batch must look at the new attributes.

    def pause(self, is_paused: bool) -> None:
        """Pauses all dispatchers, or ends their pause."""
        for each in self._each:
            each.session.pause(is_paused)

    def ask_to_flush(self, by: int) -> None:
        """Counts the callers that wait for an empty queue: `by` is 1 or -1.

        As long as there is such a caller, the dispatchers send without waiting for full batches.
        """
        with self._flushes_lock:
            self._flushes += by
            for each in self._each:
                each.session.flush(self._flushes > 0)

    def begin(self) -> None:
        """Makes the dispatchers count as running. `start` follows."""
        self._stopping.clear()
        self.pause(False)
        self._threads = []

    def start(self) -> None:
        """Starts the threads. IllegalStateError if the system has not enough of them; the caller must call
        `end` then."""
        for each in self._each:
            name = f"sender-{self._attributes.id}-{each.index}"
            self._threads.append(start_thread(f"{self._what} is not started", name, self._dispatch, each))

    def end(self) -> None:
        """Ends the threads. GatewaySenderError if one of them does not end in time."""
        self._stopping.set()
        for each in self._each:
            each.end()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        late = self.late_threads()
        if late:
            raise GatewaySenderError(
                f"{self._what}: {late} did not end within {JOIN_TIMEOUT_S:.0f} s; a filter may hang"
            )
        self._threads = []

    # The work of one dispatcher, in its own thread

    def _dispatch(self, own: Dispatcher) -> None:
        """Connects, serves the connection, and connects again, until the sender is stopped."""
        longest = self._attributes.retry_interval_ms / 1000
        retry = min(FIRST_RETRY_S, longest)
        while not self._stopping.is_set():
            try:
                if self._serve_connection(own, longest):
                    retry = min(FIRST_RETRY_S, longest)
            except Exception as error:
                with contextlib.suppress(MemoryError):  # There may be no memory even for the line of the log.
                    if isinstance(error, (PywanError, OSError, MemoryError)):
                        self._note_trouble(str(error) or "out of memory: the process cannot get any for a connection")
                    else:
                        log.exception(
                            "gateway sender %s: dispatcher %d failed to connect", self._attributes.id, own.index
                        )
            self._stopping.wait(retry)
            retry = min(2 * retry, longest)

    def _serve_connection(self, own: Dispatcher, long_s: float) -> bool:
        """Serves one connection from its opening to its end.

        Returns whether it worked: the receiver showed progress, or the connection lasted longer than `long_s`.
        """
        session = own.session
        try:
            connection, welcome = self._connect(own)
        finally:
            own.connecting = None
        try:
            since = time.monotonic()
            session.connected(
                welcome.credit_events, welcome.credit_bytes, 0, welcome.maximum_time_between_pings * 1000 // 3
            )
            own.connection = connection
            self.trouble = None
            if self._stopping.is_set():  # `end` may have stopped the session just before `connected` cleared that.
                session.stop()
            outcome = session.run(connection.sock.fileno())
        finally:
            own.connection = None
            session.disconnected()
            connection.sock.close()
        if outcome == "stopped":
            return False
        if session.has_progressed:
            own.given_up = None
            self._repeats.clear()
        reason = f"connection to the receiver at {connection.place} ended: {outcome}"
        if session.is_given_up or session.is_refused:
            own.given_up = reason
        if session.is_given_up:
            self._receivers.avoid(connection.place)
        self._note_trouble(reason)
        return session.has_progressed or (not session.is_given_up and time.monotonic() - since > long_s)

    def _connect(self, own: Dispatcher) -> tuple[Connected, Welcome]:
        """Connects to a receiver, and returns the connection with the receiver's welcome."""
        a = self._attributes
        place = self._receivers.find()
        try:
            sock = connect(
                (place.host, place.port),
                CONNECT_TIMEOUT_S,
                what=f"receiver of site {a.remote_distributed_system_id}",
                on_socket=lambda opened: self._note_connecting(own, opened),
            )
        except ConnectivityError:
            self._receivers.avoid(place)
            raise
        try:
            welcome = self._open(own, sock, place)
            sock.settimeout(None)
            return Connected(sock, place), welcome
        except BaseException:
            sock.close()
            raise

    def _open(self, own: Dispatcher, sock: socket.socket, place: ReceiverPlace) -> Welcome:
        """Sends the hello, and returns the welcome. ProtocolError if this is not a receiver of the remote site."""
        a = self._attributes
        data.set_socket_options(sock, a.socket_buffer_size, socket.SO_SNDBUF)
        hello = SenderHello(
            site=self._site,
            remote_site=a.remote_distributed_system_id,
            member=self._member_name,
            sender=a.id,
            dispatcher=own.index,
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

    def _note_connecting(self, own: Dispatcher, sock: socket.socket) -> None:
        """Remembers the socket, so that `end` can close it and need not wait for a host that does not answer."""
        own.connecting = sock
        if self._stopping.is_set():
            raise GatewaySenderError(f"{self._what} is stopping")

    def _note_trouble(self, reason: str) -> None:
        """Logs a trouble when it is new, and every minute while it lasts."""
        if self._stopping.is_set():
            return
        if self._repeats.is_due(reason):
            log.warning(
                "gateway sender %s: %s; %d events wait in the queue; it tries again, in the end every %d ms",
                self._attributes.id,
                reason,
                len(self._queue.events),
                self._attributes.retry_interval_ms,
            )
        self.trouble = reason
