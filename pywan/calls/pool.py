"""Owns a member's connections to the members that it calls: one to each member, for each depth. All threads share the
connections.

A member that the site has given up goes on as another incarnation. The member keeps the pool, so calls under way go
on."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.threads import start_thread
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError, IllegalStateError, IncompatibleSystemError, PywanError
from pywan.forks import of_one_process
from pywan.protocol import between_members
from pywan.transport import data
from pywan.transport.links import PLAIN, Way
from pywan.transport.own_openings import OwnOpenings
from pywan.transport.tls_words import in_words

CONNECT_TIMEOUT_S = 3.0  # The longest time for an attempt to open a connection.
LEAST_TIMEOUT_S = 0.001  # A socket has no timeout of 0: a timeout of 0 means "do not wait".
AGAIN_S = 0.1  # The shortest time between a failed attempt to connect and the next attempt.
SLICE_US = 100_000  # A thread that waits for an answer checks so often for a signal.


class _Connection:
    """The connection to a member, of a single depth."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # One thread connects; other threads wait for the result.
        self.line: _core.CallLine | None = None
        # The last failed attempt, and its time. Threads that come soon after get the same error.
        self.failure = ""
        self.failed_at = -math.inf


@of_one_process(lambda pool: f"the connections of member {pool._me} to others", nothing_in_child=("close", "keep_only"))
class CallPool:
    """The connections of a member to all other members. All threads may use the pool."""

    def __init__(self, me: Incarnation, site_identity: str, openings: OwnOpenings, way: Way = PLAIN.cluster) -> None:
        """`openings`: the member's openings under way. `way`: connects to other members."""
        self._way = way
        self._me, self._site_identity, self._openings = me, site_identity, openings
        self.slots = _core.CallSlots(me.member_id)  # The identities of all calls of the member.
        self._lock = threading.Lock()
        self._connections: dict[
            tuple[Incarnation, int], _Connection
        ] = {}  # `_lock` guards the connections, the next three fields, and `_me`.
        self._lines = 0  # The number of opened connections.
        self._gone: set[Incarnation] = set()
        self._closed = False

    @property
    def me(self) -> Incarnation:
        return self._me

    @property
    def is_closed(self) -> bool:
        """Whether the pool makes no more calls, because the member ends."""
        return self._closed

    def line(
        self, member: Incarnation, address: Address | tuple[str, int], depth: int, deadline: float
    ) -> _core.CallLine:
        """Returns an open connection. ConnectivityError if no connection opens by `deadline` (of time.monotonic), or if
        the member refuses the connection."""
        with self._lock:
            if self._closed:
                raise ConnectivityError(f"member {self._me.name} makes no calls any more: it is closed")
            if member in self._gone:
                raise ConnectivityError(f"member {member.name} has left the site")
            connection = self._connections.setdefault((member, depth), _Connection())
        line = connection.line
        if line is not None and not line.is_broken:
            return line
        if not connection.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectivityError(f"member {member.name} at {address[0]}[{address[1]}] takes long to connect")
        try:
            line = connection.line
            if line is None or line.is_broken:
                if time.monotonic() - connection.failed_at < AGAIN_S:
                    raise ConnectivityError(connection.failure)
                try:
                    line = self._connect(member, address, depth, deadline)
                except (ConnectivityError, IncompatibleSystemError) as error:
                    connection.failure, connection.failed_at = str(error), time.monotonic()
                    raise
                with self._lock:
                    is_wanted = self._connections.get((member, depth)) is connection and not self._closed
                    connection.line = line if is_wanted else None
                if not is_wanted:
                    line.close()
                    raise ConnectivityError(f"member {member.name} has left the site")
            return line
        finally:
            connection.lock.release()

    def prepare(self, places: Mapping[Incarnation, Address | tuple[str, int]]) -> None:
        """Opens connections to possible future primaries, so that the first call to each member need not wait for a
        connection. Only a member that makes calls opens connections. Returns at once."""
        with self._lock:
            if self._closed or not self._lines:
                return
            fresh = [each for each in places if (each, 0) not in self._connections and each not in self._gone]
            for member in fresh:
                self._connections[member, 0] = _Connection()
        for member in fresh:
            with contextlib.suppress(IllegalStateError):  # If no thread starts, the first call connects.
                what = f"member {self._me.name}: a connection to member {member.name}"
                start_thread(what, f"calls to {member.name}", self._try, member, places[member])

    def _try(self, member: Incarnation, address: Address | tuple[str, int]) -> None:
        with contextlib.suppress(PywanError):  # The first call reports the error.
            self.line(member, address, 0, time.monotonic() + CONNECT_TIMEOUT_S)

    def keep_only(self, members: Collection[Incarnation]) -> None:
        """Closes the connections to all members except `members`. Calls under way to the closed members end at once."""
        with self._lock:
            gone = [key for key in self._connections if key[0] not in members]
            ended = [self._connections.pop(key) for key in gone]
            self._gone = {key[0] for key in gone} | {each for each in self._gone if each not in members}
        self._end(ended)

    def begin_anew(self, me: Incarnation, site_identity: str) -> None:
        """Begins again, as the member goes on as another incarnation. Calls under way lose their connections, and go
        again over new connections.

        The calls keep their identities, so no call is made twice: a bucket that remembers a call returns the cached
        reply, and a bucket that has forgotten the earlier incarnation refuses the call."""
        with self._lock:
            self._me, self._site_identity = me, site_identity
            self.slots.begin_anew(me.member_id)
            ended = self._take_all()
        self._end(ended)

    def close(self) -> None:
        """Closes all connections. Calls under way end at once."""
        with self._lock:
            self._closed = True
            ended = self._take_all()
        self._end(ended)

    def _take_all(self) -> list[_Connection]:
        """Removes all connections, and returns the removed connections. The caller holds the lock."""
        taken = list(self._connections.values())
        self._connections.clear()
        return taken

    @property
    def connections(self) -> int:
        with self._lock:
            return sum(
                connection.line is not None and not connection.line.is_broken
                for connection in self._connections.values()
            )

    @staticmethod
    def _end(connections: list[_Connection]) -> None:
        for connection in connections:
            line = connection.line
            if line is not None:
                line.close()

    def _connect(
        self, member: Incarnation, address: Address | tuple[str, int], depth: int, deadline: float
    ) -> _core.CallLine:
        if depth > _core.CALL_DEPTH_MAX:
            raise IllegalStateError(
                f"a call within {depth} calls, one within the other; {_core.CALL_DEPTH_MAX} are possible. Do not call"
                " regions in callbacks in a circle; nothing was changed"
            )
        began = time.monotonic()
        left = min(CONNECT_TIMEOUT_S, deadline - began)
        if left <= 0:
            raise ConnectivityError(f"no time is left to connect to member {member.name}")
        sock = self._way.connect(Address(*address), left, what=f"member {member.name}")
        word = 0
        try:
            with self._lock:
                self._lines += 1
                word = self._openings.begin(between_members.CALLS, self._me, member)
                opening = between_members.Opening(
                    self._me, member, self._site_identity, word, depth=depth, line=self._lines
                )
            until = min(began + CONNECT_TIMEOUT_S, deadline)

            def receive(count: int) -> bytes:
                sock.settimeout(max(LEAST_TIMEOUT_S, until - time.monotonic()))
                return data.receive_exactly(sock, count)

            sock.sendall(between_members.encode_opening(between_members.CALLS, opening))
            head = receive(between_members.HEAD_BYTES)
            following = between_members.length_of_body(between_members.CALLS, head)
            between_members.check_answer(receive(following), f"member {member}")
            sock.settimeout(None)
            data.keep_alive(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, SLICE_US))
            return _core.CallLine(sock)
        except OSError as error:
            sock.close()
            if isinstance(error, PywanError):
                raise
            raise ConnectivityError(f"member {member.name} at {address[0]}[{address[1]}]: {in_words(error)}") from None
        except BaseException:
            sock.close()
            raise
        finally:
            self._openings.end(word)
