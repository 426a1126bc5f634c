"""Owns the gateway receiver of a member: its port, its connections, and the threads that apply what they bring."""
from __future__ import annotations

import collections
import contextlib
import logging
import random
import socket
import threading
from typing import Any, Callable, Iterator

from pywan import _core
from pywan.config import ReceiverAttributes, port_range_error
from pywan.errors import ConnectivityError, GatewayReceiverError, ProtocolError, PywanError
from pywan.protocol import gateway
from pywan.stats import receiver_statistics
from pywan.transport import data
from pywan.transport.sockets import PortInUseError, listen, shut

log = logging.getLogger("pywan.receiver")

HANDSHAKE_TIMEOUT_S = 10.0
JOIN_TIMEOUT_S = 15.0
MAX_CONNECTIONS = 1024
CREDIT_EVENTS = 4_000_000
CREDIT_BYTES = 256 << 20        # What the window of a sender may grow to. What it sends lies in the kernel's buffers until we read it.


class _Source:
    """The memory of one queue, and how many connections each of its dispatchers has now."""

    def __init__(self, partitions: int) -> None:
        self.memory = _core.SourceMemory(partitions)
        self.connections: collections.Counter[int] = collections.Counter()


class AppliedMemory:
    """What this member has applied of every queue of every other site: outlives the receiver's stops and starts, so that
    what is sent again is recognised. Bounded: queues without a connection, not heard of for longest, are forgotten first.

    Nothing is lost by that: a sender that comes back begins with what it has not heard of, and what failed then fails again.
    """

    LIMIT = 10_000                  # Queues.
    PARTITIONS_LIMIT = 4_000_000    # Their partitions: 32 bytes each.
    FAILURES_LIMIT = 2_000_000      # Failed events: with more, queues without a connection that have some go. Connected ones may have twice as many.
    WAITING_LIMIT = 4               # Connections of one dispatcher: the newest, and those before it that still apply what they brought.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[tuple[int, str, int], _Source] = {}     # Heard of last comes last.
        self._partitions = 0

    @contextlib.contextmanager
    def connected(self, hello: gateway.SenderHello) -> Iterator[Any]:
        """The memory of the queue that opens a connection, for as long as that lasts. A new incarnation is logged.
        ProtocolError if there is no room for it."""
        source = self._enter(hello)
        try:
            yield source.memory
        finally:
            with self._lock:
                source.connections[hello.dispatcher] -= 1
                source.connections += collections.Counter()     # Without those that are 0.

    def _enter(self, hello: gateway.SenderHello) -> _Source:
        key = hello.site, hello.sender, hello.incarnation
        with self._lock:
            self._forget_failures(key)
            source = self._sources.get(key)
            if source is None:
                self._make_room(hello)
                source = _Source(hello.partitions)
                self._partitions += hello.partitions
                log.info("gateway sender %s of %s at site %d: new queue %x with %d partitions", hello.sender, hello.member, hello.site,
                         hello.incarnation, hello.partitions)
            elif source.memory.partitions != hello.partitions:
                raise ProtocolError(f"sender {hello.sender!r} has {hello.partitions} partitions, and had {source.memory.partitions} before")
            elif source.connections[hello.dispatcher] >= self.WAITING_LIMIT:
                raise ProtocolError(
                    f"dispatcher {hello.dispatcher} of sender {hello.sender!r}: {self.WAITING_LIMIT} connections of it are not done with what they brought; a callback of a region"
                    " here may hang, or take longer than the sender waits (socket-read-timeout)")
            else:
                del self._sources[key]
            self._sources[key] = source
            source.connections[hello.dispatcher] += 1
            return source

    def _forget_failures(self, but: tuple[int, str, int]) -> None:
        """Who finds no room to note a failed event closes the connection; its sender comes back, and comes by here."""
        for key in list(self._sources):
            if _core.remembered_failures() < self.FAILURES_LIMIT:
                return
            source = self._sources[key]
            if key != but and not source.connections and source.memory.failures:
                self._partitions -= self._sources.pop(key).memory.partitions

    def _make_room(self, hello: gateway.SenderHello) -> None:
        def is_full() -> bool:
            return len(self._sources) >= self.LIMIT or self._partitions + hello.partitions > self.PARTITIONS_LIMIT

        if not is_full():
            return
        for key in [key for key, source in self._sources.items() if not source.connections]:
            self._partitions -= self._sources.pop(key).memory.partitions
            if not is_full():
                return
        raise ProtocolError(
            f"sender {hello.sender!r} with {hello.partitions} partitions: {len(self._sources)} queues with {self._partitions} partitions are connected already, and "
            f"at most {self.LIMIT} with {self.PARTITIONS_LIMIT} can be; use fewer senders, dispatcher threads or buckets")


class GatewayReceiver:
    """Takes batches of other sites' senders. Made by `Cache.create_gateway_receiver`.

    `find_region(name)` gives the RegionCore to apply to, or None. `on_change(receiver)` is called when it starts, stops,
    or its number of connections changes: the locators balance by it.
    """

    def __init__(
        self, attributes: ReceiverAttributes, *, site: int, member_name: str, bind_address: str, memory: AppliedMemory,
        find_region: Callable[[str], Any], on_change: Callable[["GatewayReceiver"], None] = lambda receiver: None,
    ) -> None:
        self.attributes = attributes
        self._site, self._member_name = site, member_name
        self._bind_address = attributes.bind_address or bind_address
        self._memory, self._find_region, self._on_change = memory, find_region, on_change
        self._counts = _core.ReceiverCounts()
        self._lock = threading.RLock()
        self._listener: socket.socket | None = None     # None while stopped. Guarded by _lock, like all below.
        self._acceptor: threading.Thread | None = None
        self._connections: dict[threading.Thread, tuple[socket.socket, Any, str]] = {}   # -> socket, session or None, sender
        self._ending: set[threading.Thread] = set()     # Done with their connection, perhaps not yet gone.
        self._port = 0
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_RCVBUF, "gateway receiver")

    @property
    def port(self) -> int:
        """The port it listens on; 0 while stopped."""
        return self._port

    @property
    def host(self) -> str:
        """The name that senders are given."""
        if self.attributes.hostname_for_senders:
            return self.attributes.hostname_for_senders
        return self._bind_address or socket.gethostname()

    @property
    def is_running(self) -> bool:
        return self._listener is not None

    @property
    def stats(self) -> dict[str, int]:
        """GatewayReceiverStatistics, in snake_case."""
        return receiver_statistics(self._counts.counts())

    @property
    def connected_senders(self) -> list[str]:
        with self._lock:
            return sorted({sender for _, _, sender in self._connections.values() if sender})

    @property
    def connection_count(self) -> int:
        with self._lock:
            return sum(1 for _, _, sender in self._connections.values() if sender)

    def start(self) -> None:
        """Listens on a free port of its range, tried from a random one on. A no-op with a warning while it runs."""
        with self._lock:
            if self.is_running:
                log.warning("gateway receiver: started already, on port %d", self._port)
                return
            self._listener = self._listen()
            self._port = self._listener.getsockname()[1]
            self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name="receiver-accept", daemon=True)
            self._acceptor.start()
        log.info("gateway receiver listens on %s port %d, known to senders as %s", self._bind_address, self._port, self.host)
        self._on_change(self)

    def _listen(self) -> socket.socket:
        a = self.attributes
        count = a.end_port - a.start_port + 1
        first = random.randrange(count)
        reason = "none is free"
        for n in range(count):
            try:
                return listen(self._bind_address, a.start_port + (first + n) % count, what="gateway receiver", backlog=256)
            except PortInUseError as error:
                reason = "every one is in use"
                last: PywanError = error
            except (PywanError, OSError) as error:
                raise GatewayReceiverError(str(error)) from error
        raise port_range_error(a, self._bind_address, reason) from last

    def stop(self) -> None:
        """Closes the port and every connection. Batches in work are finished or not acknowledged. GatewayReceiverError while stopped."""
        with self._lock:
            if self._listener is None:
                raise GatewayReceiverError("gateway receiver: not running, so it cannot be stopped")
            listener, self._listener, self._port = self._listener, None, 0
            acceptor = self._acceptor
            connections, ending = dict(self._connections), set(self._ending)
        shut(listener)
        listener.close()
        for sock, session, _ in connections.values():
            if session is not None:
                session.stop()
            shut(sock)
        for thread in [acceptor, *connections, *ending]:
            if thread is not None and thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)
        log.info("gateway receiver stopped")
        self._on_change(self)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return
                log.error("gateway receiver: accepting failed: %s", error)     # Out of descriptors, say: the next may do better.
                if self._wait_a_moment():
                    return
                continue
            thread = threading.Thread(target=self._serve, args=(sock, peer), name=f"receiver-{peer[0]}:{peer[1]}", daemon=True)
            with self._lock:
                if self._listener is not listener or len(self._connections) >= MAX_CONNECTIONS:
                    sock.close()
                    continue
                self._ending = {each for each in self._ending if each.is_alive()}
                self._connections[thread] = sock, None, ""
                thread.start()      # Under the lock: who stops us joins only what was started.

    def _wait_a_moment(self) -> bool:
        return threading.Event().wait(0.2) or self._listener is None

    def _serve(self, sock: socket.socket, peer: tuple) -> None:
        place = f"{peer[0]}:{peer[1]}"
        thread = threading.current_thread()
        try:
            hello = self._receive_hello(sock)
            with self._memory.connected(hello) as memory:
                session = self._welcome(sock, memory)
                with self._lock:
                    if self._listener is None:
                        return
                    self._connections[thread] = sock, session, f"{hello.sender}@{hello.member} (site {hello.site}, dispatcher {hello.dispatcher})"
                self._on_change(self)
                outcome = session.run(sock.fileno(), self.attributes.maximum_time_between_pings)
            if outcome not in ("closed", "stopped"):
                log.warning("gateway receiver: connection of sender %s of site %d from %s given up: %s", hello.sender, hello.site, place, outcome)
        except (PywanError, OSError) as error:
            if isinstance(error, PywanError) and not isinstance(error, ConnectivityError):
                data.refuse(sock, error)
            log.warning("gateway receiver: connection from %s refused: %s", place, error)
        except Exception:
            log.exception("gateway receiver: connection from %s failed", place)
        finally:
            with self._lock:
                self._connections.pop(thread, None)
                self._ending.add(thread)
            sock.close()
            self._on_change(self)

    def _receive_hello(self, sock: socket.socket) -> gateway.SenderHello:
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        hello = data.receive_message(sock, gateway.SenderHello)
        if hello.site == self._site:
            raise ProtocolError(f"sender {hello.sender!r} is of this very site {self._site}; a site does not send to itself")
        if hello.remote_site != self._site:
            raise ProtocolError(f"sender {hello.sender!r} wants site {hello.remote_site}; this is site {self._site}")
        return hello

    def _welcome(self, sock: socket.socket, memory: Any) -> Any:
        session = _core.ReceiverSession(memory, self._counts, self._find_region, _apply_slow, credit_bytes=CREDIT_BYTES)
        data.set_socket_options(sock, self.attributes.socket_buffer_size, socket.SO_RCVBUF, "gateway receiver")
        sock.sendall(gateway.encode(gateway.Welcome(self._site, self._member_name, CREDIT_EVENTS, CREDIT_BYTES, self.attributes.maximum_time_between_pings), _core.FRAME_WELCOME))
        sock.settimeout(None)
        return session


def _apply_slow(region: Any, record: bytes) -> int:
    return region.apply_record(record)
