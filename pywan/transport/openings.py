"""Owns a listening port. It takes connections in, gives each one a thread, and limits their number and the time of
their openings.

A connection is *half open* until its opening is done (`Connection.opened`). Half-open connections have a deadline, and
places of their own, of which each address has a share. So a client that opens connections and sends nothing takes no
place of an open connection, and no half-open place of another address.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pywan.base.lines import Lines
from pywan.base.threads import Thread, start_essential
from pywan.errors import ConnectivityError, IllegalStateError
from pywan.forks import end_strayed_child, is_inherited, of_one_process
from pywan.transport import sockets
from pywan.transport.link import Link

OPENING_TIMEOUT_S = 10.0  # The time from the accept to the end of the whole opening.
MAX_OPENINGS = 512  # The limit of half-open connections of a port.
MAX_OPENINGS_OF_ADDRESS = 128  # The share of one address in them.
YOUNG_S = 1.0  # A half-open connection that is younger does not make room: honest clients do not need longer.
MAX_CONNECTIONS = 1024  # The limit of open connections of a port.
STOP_TIMEOUT_S = 10.0
ACCEPT_PAUSE_S = 0.05  # The pause after an accept that failed. A descriptor may be free then.


class Connection:
    """One connection that came in, from its accept to its close. Its own thread calls the methods."""

    def __init__(self, owner: Acceptor, sock: Link, peer: tuple[Any, ...]) -> None:
        self.sock = sock
        self.peer = peer
        self.place = f"{peer[0]}:{peer[1]}"
        self.address = share_of(peer[0])
        self.began = time.monotonic()
        self.given_up = ""  # The reason why its place was taken away. The log has a line about it then.
        self._owner = owner
        # It ends the work on the connection, besides the shutting of the socket.
        self._stop: Callable[[], None] | None = None

    def time_left(self) -> float:
        """Returns the seconds until the opening must be done, for `settimeout`."""
        return max(0.001, self.began + self._owner.opening_timeout - time.monotonic())

    def opened(self, stop: Callable[[], None] | None = None, *, waiting: bool = False) -> None:
        """Says that the opening is done. The connection takes a place among the open ones.

        `stop` is called, from another thread, when the connection is to end. `waiting` says that nothing is under way
        on it (see `waits`). ConnectivityError if there is no place, or if its time was over.
        """
        self._owner._opened(self, stop, waiting)

    def waits(self) -> None:
        """Says that nothing is under way. This connection makes room when there is no other place. The one that has
        waited longest goes first."""
        self._owner._waits(self)

    def works(self) -> None:
        """Says that something is under way. The connection keeps its place. ConnectivityError if it has made room
        already."""
        self._owner._works(self)

    def warning(self, text: str, *values: object, once: tuple[str, ...] = ()) -> None:
        """Logs a warning about this connection; with `once`: one a minute for each. If the connection was given up,
        that was logged already, and nothing more is."""
        if not self.given_up:
            self._owner.lines.warning(text, *values, once=once)

    def exception(self, text: str, *values: object) -> None:
        """Logs our own mistake in serving this connection, with its traceback. There is a limit for these lines too:
        who found out how to cause it may do so again and again."""
        self._owner.lines.exception(text, *values)

    def end(self) -> None:
        """Ends the connection. Any thread may call it."""
        if self._stop is not None:
            self._stop()
        sockets.shut(self.sock)


@of_one_process(lambda acceptor: acceptor.name, nothing_in_child=("stop",))
class Acceptor:
    """Takes the connections of `listener` from `start` to `stop`. It owns the listener.

    `serve(connection)` runs in a thread for each connection. It returns when the socket is shut from outside. Then the
    acceptor closes the socket and calls `ended(connection)`. Nothing that a client does ends the accepting thread, and
    neither does a lack of threads, memory or descriptors. The connection is refused then, with a line in the log.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[Connection], None],
        *,
        name: str,
        log: logging.Logger,
        ended: Callable[[Connection], None] = lambda connection: None,
        opening_timeout: float = OPENING_TIMEOUT_S,
        max_openings: int = MAX_OPENINGS,
        max_openings_of_address: int = MAX_OPENINGS_OF_ADDRESS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.name = name
        self.opening_timeout = opening_timeout
        self.lines = Lines(log)
        self._listener = listener
        self._serve, self._ended = serve, ended
        self._max_openings, self._max_openings_of_address, self._max_connections = (
            max_openings,
            max_openings_of_address,
            max_connections,
        )
        self._log = log
        self._lock = threading.Lock()
        # For each address: its half-open connections, the oldest first. `_lock` guards it, and all below.
        self._openings: dict[str, dict[Connection, None]] = {}
        self._opening_count = 0
        self._open: dict[Connection, None] = {}
        self._waiting: dict[Connection, None] = {}  # The connections of `_open` that wait, the longest first.
        # The threads of all connections. Some are done with theirs, and have not ended yet.
        self._threads: set[threading.Thread] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._stopping:
                raise IllegalStateError(f"{self.name}: this port was closed; make a new one")
            if self._thread is None:
                self._thread = start_essential(f"{self.name} takes no connections", f"{self.name}-accept", self._accept)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Closes the port and every connection, and waits for their threads.

        It may be called twice. A connection's own thread may call it too; that thread ends when `serve` returns.
        """
        with self._lock:
            self._stopping = True
            connections = [*self._open, *(each for share in self._openings.values() for each in share)]
            threads = [thread for thread in (self._thread, *self._threads) if thread is not None]
        sockets.shut(self._listener)
        self._listener.close()
        for connection in connections:
            connection.end()
        deadline = time.monotonic() + timeout
        late = []
        for thread in threads:
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                late.append(thread.name)
        if late:
            self._log.error("%s: still busy %.0f s after stop: %s", self.name, timeout, ", ".join(late[:8]))

    # --- the accepting thread ---

    def _accept(self) -> None:
        """Accepts connections until the port is closed."""
        while True:
            sock = None
            try:
                sock, peer = sockets.accept(self._listener)
                self._admit(sock, peer)
            except (OSError, MemoryError, RuntimeError) as error:
                # There are no more descriptors, memory or threads, or the client has left already. The port itself
                # works.
                if sock is not None:
                    sock.close()
                if self._stopping:
                    return
                with contextlib.suppress(MemoryError):  # There may be no memory even for the line of the log.
                    self.lines.warning("%s: could not take a connection: %s", self.name, error or type(error).__name__)
                    if sock is None:
                        self._make_descriptor(error)
                if sock is None:
                    time.sleep(ACCEPT_PAUSE_S)

    def _make_descriptor(self, error: BaseException) -> None:
        if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE):
            return
        with self._lock:
            oldest = self._oldest_of_most()
            if oldest is not None:
                self._give_up(oldest, "the process has no more descriptors")

    def _admit(self, sock: Link, peer: tuple[Any, ...]) -> None:
        """Gives a connection a place and a thread, or refuses it."""
        connection = Connection(self, sock, peer)
        thread = Thread(self._run, connection, name=f"{self.name}-{connection.place}")
        with self._lock:
            refusal = "the port is being closed" if self._stopping else self._make_place(connection)
            if not refusal:
                self._threads.add(thread)
                self._openings.setdefault(connection.address, {})[connection] = None
                self._opening_count += 1
                try:
                    thread.start()  # Under the lock, so that `stop` joins only threads that were started.
                    return
                except BaseException:
                    self._threads.discard(thread)
                    self._forget_opening(connection)
                    raise
        sock.close()
        self.lines.warning("%s: refused a connection from %s: %s", self.name, connection.place, refusal)

    def _make_place(self, connection: Connection) -> str:
        """Makes a place for one more half-open connection of that address. Returns why there is none; "" if there is
        one."""
        share = self._openings.get(connection.address, {})
        if len(share) >= self._max_openings_of_address:
            oldest = next(iter(share))
            if connection.began - oldest.began < YOUNG_S:
                return (
                    f"{len(share)} connections of {connection.address} are half open, the most that one address"
                    " may have"
                )
            self._give_up(
                oldest,
                f"{len(share)} connections of {connection.address} are half open, and a newer one takes its place",
            )
        elif self._opening_count >= self._max_openings:
            first = self._oldest_of_most()
            fewer = first is not None and len(share) + 1 < len(self._openings[first.address])
            if first is None or (not fewer and connection.began - first.began < YOUNG_S):
                return f"{self._opening_count} connections are half open, the most that this port has"
            self._give_up(first, f"{self._opening_count} connections are half open, most of them of {first.address}")
        return ""

    def _oldest_of_most(self) -> Connection | None:
        """Returns the oldest half-open connection of the address that has most of them."""
        share = max(self._openings.values(), key=len, default=None)
        return next(iter(share)) if share else None

    # --- called with _lock held ---

    def _give_up(self, connection: Connection, reason: str) -> None:
        """Ends a connection, and takes its place away."""
        connection.given_up = reason
        self._forget(connection)
        sockets.shut(connection.sock)  # Its thread wakes up and ends.
        self.lines.warning("%s: gave up the connection from %s: %s", self.name, connection.place, reason)

    def _forget(self, connection: Connection) -> None:
        """Takes the places of a connection away."""
        self._forget_opening(connection)
        self._open.pop(connection, None)
        self._waiting.pop(connection, None)

    def _forget_opening(self, connection: Connection) -> bool:
        """Takes a connection's half-open place away. Returns whether it had one."""
        share = self._openings.get(connection.address)
        if share is None or connection not in share:
            return False
        del share[connection]
        if not share:
            del self._openings[connection.address]
        self._opening_count -= 1
        return True

    # --- a connection's own thread ---

    def _run(self, connection: Connection) -> None:
        """Serves one connection, and closes it."""
        try:
            self._serve(connection)
        except Exception:
            connection.exception("%s: the connection from %s ended by an internal error", self.name, connection.place)
        finally:
            if is_inherited(self):
                end_strayed_child(self.name)
            with self._lock:
                self._forget(connection)
                # This thread itself stays in the set until the next one ends.
                self._threads = {thread for thread in self._threads if thread.is_alive()}
            connection.sock.close()
            self._ended(connection)

    def _opened(self, connection: Connection, stop: Callable[[], None] | None, waiting: bool) -> None:
        """Moves a connection from its half-open place to an open one."""
        with self._lock:
            if self._stopping:
                raise ConnectivityError(f"{self.name} is stopping; try again later")
            if connection.given_up:
                raise ConnectivityError(f"{self.name}: {connection.given_up}; try again later")
            if len(self._open) >= self._max_connections:
                if not self._waiting:
                    raise ConnectivityError(
                        f"{self.name}: {len(self._open)} connections are open already, the most that this port has;"
                        " try again later"
                    )
                self._give_up(
                    next(iter(self._waiting)),
                    f"{len(self._open)} connections are open; it waited for longest, and a newer one takes its place",
                )
            if self._forget_opening(connection):
                self._open[connection] = None
            connection._stop = stop
            if waiting:
                self._waiting[connection] = None

    def _waits(self, connection: Connection) -> None:
        with self._lock:
            if connection in self._open:
                self._waiting[connection] = None

    def _works(self, connection: Connection) -> None:
        with self._lock:
            if connection.given_up:
                raise ConnectivityError(f"{self.name}: {connection.given_up}; try again later")
            self._waiting.pop(connection, None)


def share_of(host: str) -> str:
    """Returns the address whose share a connection counts to. For IPv6 it is the first 64 bits, because one machine has
    all of them."""
    if ":" not in host or host.lower().startswith("::ffff:"):
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


__all__ = ["Acceptor", "Connection"]
