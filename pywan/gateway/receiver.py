"""Owns the gateway receiver of a member: its port, its connections, and the threads that apply what they bring."""

from __future__ import annotations

import dataclasses
import logging
import random
import socket
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from pywan import _core
from pywan.base.addresses import WILDCARDS, check_told_host
from pywan.base.amounts import size_text
from pywan.base.faces import Described, counted
from pywan.base.lines import Lines
from pywan.base.threads import told_error
from pywan.config.attributes import ReceiverAttributes
from pywan.errors import (
    AuthenticationError,
    GatewayReceiverError,
    IllegalStateError,
    NotAuthorizedError,
    OutOfMemoryError,
    PortInUseError,
    ProtocolError,
    PywanError,
)
from pywan.forks import is_inherited, of_one_process
from pywan.gateway.applied import AppliedMemory
from pywan.gateway.floors import SourceFloors
from pywan.protocol import gateway
from pywan.protocol.members import dispatcher_number
from pywan.security import operations
from pywan.security.guard import OPEN, Guard, admit, credentials_of
from pywan.security.identity import NOBODY, Identity
from pywan.stats import receiver_statistics
from pywan.transport import data
from pywan.transport.links import OPEN_GATE, Gate
from pywan.transport.openings import Acceptor, Connection
from pywan.transport.sockets import listen, reachable_address

log = logging.getLogger("pywan.receiver")

WELCOME_TIMEOUT_S = 10.0  # The time that a sender has to take its welcome.
JOIN_TIMEOUT_S = 15.0
CREDIT_EVENTS = 4_000_000
# The limit of bytes on their way in a sender's window. They wait in the kernel's buffers until this process reads them.
CREDIT_BYTES = 256 << 20


@of_one_process(lambda receiver: f"the gateway receiver of member {receiver._member_name!r}")
class GatewayReceiver(Described):
    """Takes batches from the gateway senders of other sites, and applies their events to this member's regions.

    A receiver is made by `Cache.create_gateway_receiver`.

    Attributes:
        attributes: The attributes that the receiver was created with.
    """

    def __init__(
        self,
        attributes: ReceiverAttributes,
        *,
        site: int,
        member_name: str,
        member_id: int,
        gate: Gate = OPEN_GATE,
        guard: Guard = OPEN,
        identity: Identity = NOBODY,
        bind_address: str,
        memory: AppliedMemory,
        floors: SourceFloors,
        find_region: Callable[[str], Any],
        peers: Callable[[], Iterable[tuple[str, int]]] = lambda: (),
        on_change: Callable[[GatewayReceiver], None] = lambda receiver: None,
    ) -> None:
        """Internal: `find_region(name)` returns the MemberRegion to apply to, or None. `peers()` returns addresses in
        the direction of the senders. `on_change(receiver)` is called when the receiver starts or stops, and when its
        number of connections changes; the locators balance senders by it. `gate` takes connections in, and `guard`
        lets senders in. `identity` is shown to those that ask."""
        self._gate, self._guard, self._identity = gate, guard, identity
        self.attributes = attributes
        self._site, self._member_name, self._member_id = site, member_name, member_id
        self._bind_address = attributes.bind_address or bind_address
        self._memory, self._find_region, self._on_change = memory, find_region, on_change
        self._floors = floors
        self._counts = _core.ReceiverCounts()
        # The answer to a sender whose connection gets no memory is made now, while there is memory for the answer.
        self._no_memory = gateway.encode_error(
            OutOfMemoryError(f"member {member_name} is out of memory, and cannot get any for a connection")
        )
        self._failures = Lines(log)
        self._lock = threading.RLock()
        self._acceptor: Acceptor | None = None  # None while stopped. `_lock` guards it, and all below.
        # For each connection whose opening is done: what its sender said of itself.
        self._senders: dict[Connection, gateway.SenderHello] = {}
        self._port = 0
        announced = check_told_host(attributes.hostname_for_senders, "gateway receiver: hostname_for_senders")
        self._host = announced or self._bind_address
        self._peers = peers
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_RCVBUF, "gateway receiver")

    @property
    def port(self) -> int:
        """The port on which the receiver listens. 0 while it is stopped."""
        return self._port

    @property
    def host(self) -> str:
        """The host name or address that senders are given.

        If the receiver listens on every interface, `start` sets it to the address towards the senders.
        """
        return self._host

    @property
    def is_running(self) -> bool:
        """Whether the receiver listens."""
        return self._acceptor is not None

    @property
    def stats(self) -> dict[str, int]:
        """The receiver's statistics: Geode's GatewayReceiverStatistics in snake_case.

        docs/operations.md lists them.
        """
        return receiver_statistics(self._counts.counts())

    @property
    def connected_senders(self) -> list[str]:
        """One text for each connected dispatcher: its sender, that sender's member and site."""
        with self._lock:
            return sorted(set(map(_words_of, self._senders.values())))

    @property
    def connected_dispatchers(self) -> list[int]:
        """What the locators call the dispatchers that are connected. One may have an earlier connection, too, whose end
        is not known here yet."""
        with self._lock:
            hellos = list(self._senders.values())
        return list(dict.fromkeys(dispatcher_number(h.site, h.member, h.sender, h.dispatcher) for h in hellos))

    @property
    def connection_count(self) -> int:
        """The number of connections that dispatchers of senders have opened."""
        with self._lock:
            return len(self._senders)

    # How it shows itself

    def _line(self) -> str:
        if is_inherited(self):
            return f"of member {self._member_name}, of the parent process"
        if not self.is_running:
            return f"of member {self._member_name}, stopped"
        return (
            f"of member {self._member_name}, running on {self._host}[{self._port}],"
            f" {counted(len(self._senders), 'connection')}"
        )

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"member": self._member_name}
        if is_inherited(self):
            return {**facts, "state": "of the parent process"}
        counts = self._counts.counts()
        return {
            **facts,
            "state": "running" if self.is_running else "stopped",
            "address": f"{self._host}[{self._port}]" if self.is_running else "none",
            "connections": len(self._senders),
            "senders": sorted(set(map(_words_of, dict(self._senders).values()))),
            "events received": counts["events_received"],
            "bytes received": size_text(counts["bytes_received"]),
        }

    # Life cycle

    def start(self) -> None:
        """Listens on a free port of the range. The search begins at a random port. If the receiver runs, it only logs a
        warning.

        Raises:
            GatewayReceiverError: No port of the range can be used.
            IllegalStateError: The system has no more threads for this process.
        """
        with self._lock:
            if self.is_running:
                log.warning("gateway receiver: started already, on port %d", self._port)
                return
            listener = self._listen()
            self._port = listener.getsockname()[1]
            if not self.attributes.hostname_for_senders and self._bind_address in WILDCARDS:
                self._host = reachable_address(self._bind_address, self._peers())
            self._acceptor = Acceptor(listener, self._serve, name="receiver", log=log, ended=self._ended)
            try:
                self._acceptor.start()
            except IllegalStateError:
                self._acceptor.stop()
                self._acceptor, self._port = None, 0
                raise
        log.info(
            "gateway receiver listens on %s port %d, known to senders as %s",
            self._bind_address or "every interface",
            self._port,
            self.host,
        )
        self._on_change(self)

    def _listen(self) -> socket.socket:
        """Returns a socket that listens on a free port of the range."""
        a = self.attributes
        count = a.end_port - a.start_port + 1
        first = random.randrange(count)
        reason = "none is free"
        for n in range(count):
            try:
                port = a.start_port + (first + n) % count
                return listen(self._bind_address, port, what="gateway receiver", backlog=256)
            except PortInUseError as error:
                reason = "every one is in use"
                last: PywanError = error
            except (PywanError, OSError) as error:
                raise GatewayReceiverError(str(error)) from error
        raise a.port_range_error(self._bind_address, reason) from last

    def stop(self) -> None:
        """Closes the port and every connection. A batch that is being applied is finished, or is not acknowledged.

        Raises:
            GatewayReceiverError: The receiver is stopped already.
        """
        with self._lock:
            if self._acceptor is None:
                raise GatewayReceiverError("gateway receiver: not running, so it cannot be stopped")
            acceptor, self._acceptor, self._port = self._acceptor, None, 0
        # The locators hear of it before the senders do: they send nobody here any more.
        self._on_change(self)
        acceptor.stop(JOIN_TIMEOUT_S)
        log.info("gateway receiver stopped")

    def _serve(self, connection: Connection) -> None:
        """Serves one connection, from its opening to its end."""
        place = connection.place
        try:
            first = self._gate.first_bytes(connection)
            if not first:
                return  # This was a port scan or a health check. There is nothing to log about it.
            hello, principal = self._receive_hello(connection, first)
            if hello.wanted_member not in (None, self._member_id):
                log.debug("gateway receiver: %s wants the receiver of another member", place)
                welcome = self._welcome_message(hello, connection)
                connection.sock.sendall(gateway.encode(welcome, _core.FRAME_WELCOME))
                return
            what = f"the connection of sender {hello.sender} of site {hello.site} from {place}"
            regions = self._regions_of(principal)
            with self._memory.connected(hello) as (memory, known):
                self._floors.opened(hello.site, hello.member, hello.sender, hello.numbering)
                session = self._welcome(connection, memory, hello, known, regions)
                with self._lock:
                    self._senders[connection] = hello
                self._on_change(self)
                with self._guard.watching(
                    principal,
                    operations.GATEWAY,
                    connection.end,
                    what,
                    in_some_region=regions is not None,
                    goes_on=(lambda: regions.look(session)) if regions is not None else None,
                ):
                    outcome = session.run(connection.sock, self.attributes.maximum_time_between_pings)
            if outcome not in ("closed", "stopped"):
                connection.warning(
                    "gateway receiver: connection of sender %s of site %d from %s given up: %s",
                    hello.sender,
                    hello.site,
                    place,
                    outcome,
                    once=("given up", f"{hello.site} {hello.sender}", outcome),  # The sender comes back at once.
                )
        except (AuthenticationError, NotAuthorizedError) as error:  # The guard has logged why.
            data.refuse(connection.sock, error)
        except (PywanError, OSError) as error:
            if isinstance(error, PywanError):
                data.refuse(connection.sock, error)
            connection.warning("gateway receiver: connection from %s refused: %s", place, error)
        except MemoryError as error:
            data.send_refusal(connection.sock, self._no_memory)
            connection.warning(
                "gateway receiver: connection from %s ended: out of memory: %s",
                place,
                error or "the process cannot get any for it",
                once=("no memory", connection.address),
            )
        except Exception as error:
            connection.warning("gateway receiver: connection from %s failed: %s", place, told_error(error))
            log.debug("gateway receiver: connection from %s failed", place, exc_info=True)

    def _ended(self, connection: Connection) -> None:
        with self._lock:
            was_sender = self._senders.pop(connection, None) is not None
        if was_sender:
            self._on_change(self)

    def _receive_hello(self, connection: Connection, first: bytes) -> tuple[gateway.SenderHello, Hashable | None]:
        """Returns the first message of a sender, and who it is; None: nobody is asked.

        AuthenticationError if it is nobody who may send. ProtocolError if the sender is of this site, or wants
        another one.
        """
        connection.sock.settimeout(connection.time_left())
        hello = data.receive_message(connection.sock, gateway.SenderHello, first=first)
        principal = admit(
            self._guard,
            credentials_of(hello.user, hello.password, connection.sock.other_name),
            connection.address,
            connection.place,
            operations.GATEWAY,
            "a sender",
            connection.time_left(),
            in_some_region=True,
        )
        hello = dataclasses.replace(hello, user=None, password=None)  # They are of no use any more.
        if hello.site == self._site:
            raise ProtocolError(
                f"sender {hello.sender!r} is of this very site {self._site}; a site does not send to itself"
            )
        if hello.remote_site != self._site:
            raise ProtocolError(f"sender {hello.sender!r} wants site {hello.remote_site}; this is site {self._site}")
        return hello, principal

    def _regions_of(self, principal: Hashable | None) -> _SomeRegions | None:
        """Returns the regions that the user of a sender may write. None: all of them, as long as the guard lets the
        connection go on."""
        if principal is None or self._guard.may(principal, operations.GATEWAY):
            return None
        return _SomeRegions(self._guard, principal, self._find_region)

    def _say_failed(
        self, hello: gateway.SenderHello, region: str, operation: str, key: _core.Encoded, reason: int
    ) -> None:
        """Logs that an event is not applied. Where memory is short, a line a minute is enough."""
        is_short = reason == _core.FAILED_NO_MEMORY
        self._failures.warning(
            "gateway receiver: the %s of key %s of region %r, from sender %s of site %d, is not applied; that sender"
            " parks it, and is told: %s",
            operation,
            f"{key!r:.80}",
            region,
            hello.sender,
            hello.site,
            _core.failure_text(reason),
            once=("no memory", f"{hello.site} {hello.sender}") if is_short else (),
        )

    def _welcome(
        self,
        connection: Connection,
        memory: Any,
        hello: gateway.SenderHello,
        known: list[gateway.Known],
        regions: _SomeRegions | None,
    ) -> Any:
        """Welcomes a sender. Returns the session that applies its batches."""
        sock = connection.sock
        session = _core.ReceiverSession(
            memory,
            self._counts,
            self._find_region,
            _apply_by_callbacks,
            credit_bytes=CREDIT_BYTES,
            mount=hello.mount,
            on_floors=lambda floors: self._floors.receive(hello.site, hello.member, hello.sender, floors),
            on_failure=lambda *event: self._say_failed(hello, *event),
            may_write=regions.may_write if regions is not None else None,
        )
        self._memory.take_over(hello, session)
        data.set_socket_options(sock, self.attributes.socket_buffer_size, socket.SO_RCVBUF)
        connection.opened(session.stop)
        sock.settimeout(WELCOME_TIMEOUT_S)
        welcome = self._welcome_message(hello, connection, len(known))
        sock.sendall(gateway.encode(welcome, _core.FRAME_WELCOME) + gateway.encode_known(known))
        sock.settimeout(None)
        return session

    def _welcome_message(self, hello: gateway.SenderHello, connection: Connection, known: int = 0) -> gateway.Welcome:
        """AuthenticationError: the sender asks who this is, and must not be told."""
        shown = None
        if hello.asks:
            if self._guard.is_open:  # Any stranger could ask.
                raise AuthenticationError("this receiver has no security-manager, and tells nobody who it is")
            shown = self._identity.shown_over(connection.sock.tls is not None, "a sender")
        return gateway.Welcome(
            self._site,
            self._member_name,
            CREDIT_EVENTS,
            CREDIT_BYTES,
            self.attributes.maximum_time_between_pings,
            known,
            self._member_id,
            shown.user if shown is not None else None,
            shown.password if shown is not None else None,
        )


class _SomeRegions:
    """The regions that the user of one connection may write, who may not write all. The connection's thread asks for
    them, and the guard's thread looks at them.

    Args:
        guard: Knows what the user may write.
        principal: The user.
        find_region: Returns the region of that name, or None.
    """

    def __init__(self, guard: Guard, principal: Hashable, find_region: Callable[[str], Any]) -> None:
        self._guard, self._principal, self._find_region = guard, principal, find_region
        self._written: set[str] = set()  # Regions of this member whose events were let in.

    def may_write(self, name: str) -> bool:
        may = self._guard.may(self._principal, operations.rows_into(name))
        if may and self._find_region(name) is not None:
            self._written.add(name)
        return may

    def look(self, session: Any) -> bool:
        """Has the session ask again. Returns whether the connection may go on.

        A security manager that cannot say whether somebody may write some region cannot say that a user was removed.
        Such a connection ends when its user may write none of the regions any more that it wrote: if the user is there
        still, it comes again.
        """
        written = tuple(self._written)
        if not self._guard.tells_some_region and written and not any(map(self.may_write, written)):
            return False
        session.look_again()
        return True


def _apply_by_callbacks(region: Any, record: bytes, position: tuple[int, int, bool, bytes | None]) -> int:
    """Applies a record on the path that asks callbacks. `region` is a MemberRegion.

    `position` holds the partition, the sequence, whether the event may have been applied before, and its place.
    """
    return int(region.callbacks.apply_record(record, position))


def _words_of(hello: gateway.SenderHello) -> str:
    return f"{hello.sender}@{hello.member} (site {hello.site}, dispatcher {hello.dispatcher})"
