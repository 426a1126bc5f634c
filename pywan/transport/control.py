"""Owns the sockets and threads of control connections: a server that answers requests, and a client that asks them.

One listening port serves control connections and other protocols. The first four bytes tell them apart.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from pywan.base.addresses import Address
from pywan.errors import (
    AuthenticationError,
    ConnectivityError,
    NotFoundError,
    ProtocolError,
    PywanError,
)
from pywan.forks import of_one_process
from pywan.protocol import control as wire
from pywan.security.guard import NEEDED, OPEN, Caller, Guard
from pywan.security.operations import Needed, for_members_at_member, needed_at_member
from pywan.transport import sockets
from pywan.transport.link import Link
from pywan.transport.links import OPEN_GATE, PLAIN, Gate, Way
from pywan.transport.openings import MAX_CONNECTIONS, OPENING_TIMEOUT_S, STOP_TIMEOUT_S, Acceptor, Connection
from pywan.transport.request_memory import MEMORY, RequestCounts
from pywan.transport.tls_words import in_words

log = logging.getLogger("pywan.control")

FRAME_TIMEOUT_S = 30.0  # A frame that has begun is whole within this time. A reply is taken within it.
IDLE_TIMEOUT_S = 600.0  # A control connection without a request for so long is closed.
RECEIVE_BYTES = 1 << 16
STRANGER_BYTES = 1 << 16  # The limit for a request of somebody who has not shown who it is.

Handler = Callable[
    [dict[str, Any], tuple[Any, ...]],
    "Mapping[str, Any] | Generator[dict[str, Any], None, Mapping[str, Any] | None] | None",
]
OtherProtocol = Callable[[Connection, bytes], None]


class Reply(dict[str, Any]):
    """A reply that is followed by an action: `after()` runs when the reply has been sent, or could not be."""

    def __init__(self, *args: Any, after: Callable[[], None] | None = None, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.after = after


@of_one_process(lambda server: server.name, nothing_in_child=("stop",))
class ControlServer:
    """A server that listens from its construction. `start()` begins to answer, and `stop()` ends every connection and
    thread.

    `handler(request, peer)` is called in the connection's own thread. It returns the reply's fields (`ok` is added), or
    raises a PywanError to refuse. It may also be a generator: what it yields is sent as progress, and what it returns
    is the reply.

    `other_protocols[first four bytes](connection, first_bytes)` handles a connection of another protocol until it
    returns. It calls `opened` when the opening is done, returns when the socket is shut from outside, and does not
    detach the socket. A client that breaks the protocol loses its connection, and the log gets one line.

    `gate` takes the connections in, and says of each which protocol it speaks. `guard` lets requests in: each needs the
    permission that `needed(request)` returns, and is a member's that proves the secret of the members, if there is one
    and `for_members(request)`. The requests `authenticate` and `prove-member` are answered here.

    `ended(peer)` is called in the connection's own thread when a control connection has ended.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        *,
        name: str,
        other_protocols: Mapping[bytes, OtherProtocol] | None = None,
        gate: Gate = OPEN_GATE,
        guard: Guard = OPEN,
        needed: Needed = needed_at_member,
        for_members: Callable[[Mapping[str, Any]], bool] = for_members_at_member,
        max_connections: int = MAX_CONNECTIONS,
        first_bytes_timeout: float = OPENING_TIMEOUT_S,
        frame_timeout: float = FRAME_TIMEOUT_S,
        idle_timeout: float = IDLE_TIMEOUT_S,
        ended: Callable[[tuple[Any, ...]], None] = lambda peer: None,
    ) -> None:
        self.name = name
        self._handler = handler
        self._ended = ended
        self._gate, self._guard, self._needed, self._for_members = gate, guard, needed, for_members
        self._other_protocols = dict(other_protocols or {})
        self._frame_timeout = frame_timeout
        self._idle_timeout = idle_timeout
        listener = sockets.listen(host, port, what=name)
        self.host, self.port = listener.getsockname()[:2]
        self._acceptor = Acceptor(
            listener,
            self._serve,
            name=name,
            log=log,
            opening_timeout=first_bytes_timeout,
            max_connections=max_connections,
        )

    def start(self) -> ControlServer:
        self._acceptor.start()
        return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Closes the port and every connection, and waits for their threads.

        It may be called twice. A handler may call it too; the handler's own thread ends when the handler returns.
        """
        self._acceptor.stop(timeout)

    def __enter__(self) -> ControlServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _serve(self, connection: Connection) -> None:
        """Serves one connection of any protocol until its end."""
        sock, place = connection.sock, connection.place
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            first = self._gate.first_bytes(connection)
            if not first:
                return  # This was a port scan or a health check. There is nothing to log about it.
            other = self._other_protocols.get(first)
            if other is not None:
                other(connection, first)
            else:
                self._serve_control(connection, first)
        except TimeoutError:
            self._complain(connection, "it began a message and did not finish it in time")
        except PywanError as error:
            self._complain(connection, error)
        except MemoryError as error:
            self._complain(connection, wire.out_of_memory(error))
        except OSError as error:
            log.debug("%s: connection from %s broke: %s", self.name, place, error)
        except Exception:
            connection.exception("%s: closed the connection from %s after an internal error", self.name, place)

    def _complain(self, connection: Connection, reason: object) -> None:
        connection.warning("%s: closed the connection from %s: %s", self.name, connection.place, reason)

    def _serve_control(self, connection: Connection, first: bytes) -> None:
        """Serves a control connection until its end."""
        sock = connection.sock
        caller = Caller(self._guard, connection.address, connection.place, sock.other_name)
        counts = RequestCounts(MEMORY, self._frame_timeout)
        decoder = wire.Decoder(
            wire.MAX_PAYLOAD_BYTES if caller.is_known else STRANGER_BYTES,
            on_long=lambda request_id: self._admit_long(connection, caller, decoder, request_id),
            on_values=counts.unpacks,
        )
        frame_deadline = time.monotonic() + self._frame_timeout
        if first != wire.MAGIC:
            # With a few more bytes the error can say better what this is. Only bytes that are there already are taken.
            sock.settimeout(0.05)
            with contextlib.suppress(OSError):
                first += sock.recv(60)
        data: bytes | None = first
        is_open = False
        try:
            while data is not None:
                decoder.add(data)
                while (message := decoder.next()) is not None:
                    if not self._handle(connection, caller, message, is_open, counts):
                        return
                    frame_deadline = 0.0
                    if not caller.is_proving:
                        is_open, decoder.max_payload_bytes = True, wire.MAX_PAYLOAD_BYTES
                counts.arrives(decoder.buffered)
                if is_open:
                    connection.waits()
                # One limit holds for the whole frame. So a client that sends a byte a second does not hold a thread for
                # ever.
                if not decoder.buffered:
                    frame_deadline = 0.0
                elif not frame_deadline:
                    frame_deadline = time.monotonic() + self._frame_timeout
                data = self._receive(connection, decoder.buffered, frame_deadline)
        finally:
            counts.end()
            self._ended(connection.peer)

    def _receive(self, connection: Connection, buffered: int, frame_deadline: float) -> bytes | None:
        """Returns what comes next. None: the connection has ended between two messages, or is idle."""
        sock = connection.sock
        left_s = frame_deadline - time.monotonic() if buffered else self._idle_timeout
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        try:
            data = sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            if buffered:
                raise
            return None  # The client connects again when it has something to ask.
        if not data and buffered and not connection.given_up:
            raise ProtocolError(f"it ended inside a message, {buffered} bytes into it")
        return data or None

    def _admit_long(self, connection: Connection, caller: Caller, decoder: wire.Decoder, request_id: int) -> None:
        """Looks at the certificate of somebody who begins with a long message, which is no user and password, before
        more of it is taken. AuthenticationError: nobody is known by it."""
        if caller.is_known or not caller.has_certificate:
            return
        try:
            caller.show_certificate()
        except AuthenticationError as error:
            self._reply(connection.sock, request_id, wire.error_reply(error))
            raise
        decoder.max_payload_bytes = wire.MAX_PAYLOAD_BYTES

    def _handle(
        self, connection: Connection, caller: Caller, message: wire.Message, is_open: bool, counts: RequestCounts
    ) -> bool:
        """Answers a request. Returns whether the connection goes on.

        The opening of a control connection ends with its first whole request. A stranger's does not end: it gets no
        place among the open ones.
        """
        op = message.body.get("op")
        if op == wire.PROVE:
            reply = self._prove(connection, caller, message)
            if reply is None:
                return False
            if not caller.is_proving:
                connection.works() if is_open else connection.opened()
            self._reply(connection.sock, message.request_id, {**reply, "ok": True})
            counts.is_done()
            return True
        is_about_itself = op == wire.AUTHENTICATE
        if (is_about_itself or not caller.is_known) and not self._authenticate(connection, caller, message):
            return False
        try:
            connection.works() if is_open else connection.opened()
        except ConnectivityError as error:
            self._reply(connection.sock, message.request_id, wire.error_reply(error))
            raise
        if is_about_itself:
            self._reply(connection.sock, message.request_id, {"ok": True})
            counts.is_done()
        else:
            self._answer(connection, caller, message, counts)
        return True

    def _prove(self, connection: Connection, caller: Caller, message: wire.Message) -> dict[str, Any] | None:
        """Takes a message of a member or locator of the site that proves its secret. Returns the reply; None: it is
        refused, was told so, and the connection ends."""
        try:
            return caller.prove(message.body, connection.sock.bound_to)
        except AuthenticationError as error:
            self._reply(connection.sock, message.request_id, wire.error_reply(error))
            return None

    def _authenticate(self, connection: Connection, caller: Caller, message: wire.Message) -> bool:
        """Takes the request of somebody who says who it is; any other request stands for the certificate. Returns
        whether it is known then. It is refused otherwise, and the connection ends."""
        request, limit_s = message.body, max(1.0, connection.time_left())
        try:
            if request.get("op") == wire.AUTHENTICATE:
                caller.authenticate(request.get("user"), request.get("password"), limit_s)
            elif caller.has_certificate:
                caller.show_certificate()
            else:
                connection.warning("%s: refused %s: it does not say who it is", self.name, connection.place)
                raise AuthenticationError(NEEDED)
        except AuthenticationError as error:
            self._reply(connection.sock, message.request_id, wire.error_reply(error))
            return False
        return True

    def _answer(self, connection: Connection, caller: Caller, message: wire.Message, counts: RequestCounts) -> None:
        """Carries out a request, and sends the reply."""
        sock, peer, request = connection.sock, connection.peer, message.body
        after = None
        try:
            if not isinstance(request.get("op"), str):
                raise ProtocolError("the request has no field 'op' that says what is wanted")
            what = f"the request {request['op'][:64]!r}"
            if self._for_members(request):
                caller.check_member(what)
            caller.check(self._needed(request), what)
            result = self._handler(request, peer)
            if isinstance(result, Generator):
                result = self._stream(sock, message.request_id, result)
            after = getattr(result, "after", None)
            frame = wire.encode(message.request_id, {**(result or {}), "ok": True})
        except ProtocolError as error:
            connection.warning("%s: refused %.80r from %s: %s", self.name, request.get("op"), connection.place, error)
            frame = wire.encode(message.request_id, wire.error_reply(error))
        except PywanError as error:
            frame = wire.encode(message.request_id, wire.error_reply(error))
        except OSError:
            raise  # The client's connection broke while progress was sent.
        except MemoryError as error:
            frame = wire.encode(message.request_id, wire.error_reply(error))
            connection.warning(
                "%s: request %.80r from %s: %s",
                self.name,
                request.get("op"),
                connection.place,
                wire.out_of_memory(error),
            )
        except Exception as error:
            connection.exception("%s: request %.80r from %s failed", self.name, request.get("op"), connection.place)
            frame = wire.encode(message.request_id, wire.error_reply(error))
        request.clear()  # While the reply waits to be taken, the request takes no memory.
        counts.is_done()
        try:
            self._send(sock, message.request_id, frame)
        finally:
            if after is not None:
                after()

    def _reply(self, sock: socket.socket, request_id: int, reply: dict[str, Any]) -> None:
        self._send(sock, request_id, wire.encode(request_id, reply))

    def _send(self, sock: socket.socket, request_id: int, frame: bytes) -> None:
        """Sends a reply. It is an error instead, if too many others wait to be taken."""
        sock.settimeout(self._frame_timeout)
        try:
            with MEMORY.answers.holding(len(frame)):
                sock.sendall(frame)
        except ProtocolError as error:
            sock.sendall(wire.encode(request_id, wire.error_reply(error)))

    def _stream(
        self, sock: socket.socket, request_id: int, progress: Generator[dict[str, Any], None, Mapping[str, Any] | None]
    ) -> Mapping[str, Any] | None:
        """Sends the progress that a handler yields. Returns the reply that the handler returns."""
        try:
            while True:
                try:
                    item = next(progress)
                except StopIteration as done:
                    reply: Mapping[str, Any] | None = done.value
                    return reply
                self._reply(sock, request_id, {**item, "ok": True, "more": True})
        finally:
            progress.close()


@of_one_process(lambda client: f"the connection to {client._what} {client.address}", nothing_in_child=("close",))
class ControlClient:
    """Asks one server. It connects when it is first used, and again after a break. Any thread may use it; requests go
    one at a time.

    `timeout` seconds are the limit for each call as a whole: name lookup, connection, request and reply. `way`
    connects.
    """

    def __init__(
        self, address: Address | tuple[str, int], timeout: float = 10.0, *, what: str = "", way: Way = PLAIN.cluster
    ) -> None:
        self.address = Address(*address)
        self.timeout = timeout
        self._way = way
        self._what = what
        self._lock = threading.Lock()
        self._sock: Link | None = None  # Used under _lock; `close` may shut it from any thread.
        self._decoder = wire.Decoder()
        self._request_id = 0
        self._closed = False

    def call(
        self,
        op: str,
        *,
        _timeout: float | None = None,
        _progress: Callable[[dict[str, Any]], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Returns the reply to `op`. `_progress` is called with each reply that comes before the last one.

        It raises the error that the server raised, by its name (RemoteError if the name is unknown here).
        ConnectivityError if there is no answer in time; it is unknown then whether the request was carried out.
        ProtocolError if the other side is no control server.
        """
        limit = self.timeout if _timeout is None else _timeout
        deadline = time.monotonic() + limit
        if not self._lock.acquire(timeout=max(0.0, limit)):
            raise ConnectivityError(f"{self}: another request took the whole {limit:.1f} s")
        try:
            request_id = self._request_id = (self._request_id + 1) & 0xFFFFFFFF
            frame = wire.encode(request_id, {"op": op, **fields})
            try:
                sock = self._connect(deadline)
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                sock.sendall(frame)
                reply = self._receive(sock, request_id, deadline, _progress)
            except OSError as error:
                self._drop()
                if isinstance(error, PywanError):
                    raise
                if self._closed:
                    raise ConnectivityError(f"{self}: {op}: the connection was closed on this side") from None
                reason = f"no reply within {limit:.1f} s" if isinstance(error, TimeoutError) else in_words(error)
                raise ConnectivityError(f"{self}: {op}: {reason}") from None
            except BaseException:
                self._drop()
                raise
        finally:
            self._lock.release()
        refusal = wire.error_of(reply)
        if refusal is not None:
            raise refusal
        return reply

    def close(self) -> None:
        """Ends the connection. A call that is under way fails with ConnectivityError, and so do later ones."""
        self._closed = True
        sockets.shut(self._sock)
        if self._lock.acquire(timeout=1.0):  # The thread that holds the lock closes the socket itself.
            try:
                self._drop()
            finally:
                self._lock.release()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self._what} {self.address}".strip()

    def _connect(self, deadline: float) -> Link:
        """Returns a socket that is connected to the server."""
        if self._closed:
            raise ConnectivityError(f"{self}: this client was closed")
        if self._sock is not None:
            if self._is_whole(self._sock):
                return self._sock
            self._drop()
        self._decoder = wire.Decoder()
        left = deadline - time.monotonic()
        sock = self._way.connect(self.address, max(0.001, left), what=self._what, on_socket=self._remember)
        try:
            self._say_who(sock, deadline)
        except BaseException:
            self._drop()
            raise
        return sock

    def _say_who(self, sock: Link, deadline: float) -> None:
        """Shows who this process is, if it is configured. AuthenticationError: the server does not believe it."""
        secret = self._way.secret
        if secret is not None:  # It makes this end known, and a password is not shown to who cannot prove it.
            fields, nonce = secret.begin()
            try:
                reply = self._say(sock, wire.PROVE, fields, deadline)
                self._say(sock, wire.PROVE, secret.finish(nonce, reply, sock.bound_to), deadline)
            except AuthenticationError as error:
                raise AuthenticationError(
                    f"{self} is no member or locator of this site, or has another members-secret-file: {error}"
                ) from None
            return
        shown = self._way.shown_over(sock, str(self))
        if shown is None:
            return
        try:
            self._say(sock, wire.AUTHENTICATE, {"user": shown.user, "password": shown.password}, deadline)
        except AuthenticationError as error:
            raise AuthenticationError(f"{self} does not take user {shown.user!r}: {error}") from None

    def _say(self, sock: Link, op: str, fields: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Returns the reply to a message about this end. AuthenticationError: it is refused."""
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.sendall(wire.encode(0, {"op": op, **fields}))
        reply = self._receive(sock, 0, deadline, None)
        refusal = wire.error_of(reply)
        if refusal is not None:
            raise AuthenticationError(str(refusal))
        return reply

    def _remember(self, sock: Link) -> None:
        self._sock = sock
        if self._closed:
            raise ConnectivityError(f"{self}: this client was closed")

    @staticmethod
    def _is_whole(sock: socket.socket) -> bool:
        """Returns whether the server has left the connection open.

        A connection that the server closed while it was idle can be replaced: no request can have been carried out.
        """
        try:
            sock.setblocking(False)
            sock.recv(1)  # This reads the connection's end, or bytes that nobody asked for.
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _receive(
        self,
        sock: socket.socket,
        request_id: int,
        deadline: float,
        progress: Callable[[dict[str, Any]], None] | None,
    ) -> dict[str, Any]:
        """Returns the last reply to a request. `progress` is called with those before it."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectivityError(f"{self}: the other side closed the connection without a reply")
            try:
                messages = self._decoder.feed(data)
            except ProtocolError as error:
                raise ProtocolError(f"{self} is not a pywan control port: {error}") from None
            for message in messages:
                if message.request_id != request_id:
                    raise ProtocolError(f"{self}: reply to request {message.request_id}, expected {request_id}")
                if message.body.get("more") is not True:
                    return message.body
                if progress is not None:
                    progress(message.body)

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def dispatch(handlers: Mapping[str, Callable[[dict[str, Any], tuple[Any, ...]], Any]], who: str) -> Handler:
    """Returns a handler that calls `handlers[op](request, peer)`. An unknown op is refused with the list of
    known ones."""

    def handle(request: dict[str, Any], peer: tuple[Any, ...]) -> Any:
        operation = handlers.get(request["op"])
        if operation is None:
            raise NotFoundError(f"{who} has no operation {request['op'][:64]!r}; it has {', '.join(sorted(handlers))}")
        return operation(request, peer)

    return handle


def call_once(
    address: Address | tuple[str, int], /, op: str, *, timeout: float = 5.0, way: Way = PLAIN.cluster, **fields: Any
) -> dict[str, Any]:
    """Makes one request over a connection of its own, and returns the reply."""
    with ControlClient(address, timeout, way=way) as client:
        return client.call(op, **fields)


__all__ = ["ControlClient", "ControlServer", "Reply", "call_once", "dispatch"]
