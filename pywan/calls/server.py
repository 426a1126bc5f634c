"""Owns the connections on which other members call this member."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from pywan import _core
from pywan.base.lines import Lines
from pywan.coordination.tables import INCARNATIONS_KEPT, Incarnation
from pywan.errors import ConnectivityError, IllegalStateError, IncompatibleSystemError, ProtocolError, PywanError
from pywan.forks import of_one_process
from pywan.protocol import between_members
from pywan.transport import data
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.openings import Connection

log = logging.getLogger("pywan.calls")

REPLY_TIMEOUT_S = 10.0  # The time in which a client has to read the answer to the opening.
STOP_TIMEOUT_S = 10.0
REPLACE_TIMEOUT_S = 2.0  # So long a connection waits for the end of the connections that it replaces.
MAX_CALLERS = 512  # Connections of other members, each with a connection for each depth.


class _Caller(NamedTuple):
    """The owner of the calls on a connection: a later connection of the same owner replaces the earlier connection."""

    member: Incarnation
    depth: int


@of_one_process(lambda server: f"the calls to member {server._me}", nothing_in_child=("stop",))
class CallServer:
    """Serves the calls of other members of the site. `find_region(name)` returns the RegionCore of the name, or None.
    `questions`: asks other members whether openings are their own. `budget`: of the member; while the budget is full,
    the connections take no calls.

    Each connection has a thread, which the port provides.
    """

    def __init__(
        self,
        me: Incarnation,
        site_identity: str,
        find_region: Callable[[str], Any],
        questions: OpeningQuestions,
        budget: _core.MemoryBudget | None = None,
    ) -> None:
        self._me, self._site_identity, self._find_region, self._budget = me, site_identity, find_region, budget
        self._questions = questions
        self._ends = Lines(log)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # Notified when a connection has ended, or the view is new.
        # The caller and the number of each connection. `_lock` guards `_sessions` and the next three fields.
        self._sessions: dict[_core.CallSession, tuple[_Caller, int]] = {}
        self._newest: dict[_Caller, int] = {}  # The newest connection number of each caller.
        self._view: set[Incarnation] = set()  # The members of the site. All callers above are in the view.
        # The last numbers of each name in the view. A member that goes on as another incarnation repeats the calls
        # under way, and the calls keep their identities.
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._stopping = False

    def serve(self, connection: Connection, first: bytes) -> None:
        """Serves a connection until the connection ends."""
        sock = connection.sock
        try:
            self._serve(connection, first)
        except (PywanError, MemoryError) as error:
            connection.warning("calls of another member, from %s, refused: %s", connection.place, error)
            self._refuse(sock, error)
        except OSError as error:
            self._ends.info("calls of another member, from %s: %s", connection.place, error)

    def stop(self) -> None:
        """Ends all connections. Returns when the calls in service are done, after STOP_TIMEOUT_S at the latest."""
        with self._changed:
            self._stopping = True
            for session in self._sessions:
                session.stop()
            self._changed.wait_for(lambda: not self._sessions, STOP_TIMEOUT_S)

    def keep_only(self, members: Collection[Incarnation]) -> None:
        """Adopts the members of the site: no other member is served. Ends the connections of members that have left."""
        with self._changed:
            self._view = set(members)
            for name, number in self._view:
                known = tuple(each for each in self._numbers.get(name, ()) if each != number)
                self._numbers[name] = (number, *known)[:INCARNATIONS_KEPT]
            self._newest = {caller: line for caller, line in self._newest.items() if caller.member in self._view}
            for session, (caller, _) in self._sessions.items():
                if caller.member not in self._view:
                    session.stop()
            self._changed.notify_all()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._sessions)

    def _serve(self, connection: Connection, first: bytes) -> None:
        sock = connection.sock
        sock.settimeout(connection.time_left())
        head = data.receive_exactly(sock, between_members.HEAD_BYTES, first)
        following = between_members.length_of_body(between_members.CALLS, head)
        opening = between_members.decode_opening(data.receive_exactly(sock, following))
        refusal = between_members.refusal_of(opening, self._me, self._site_identity)
        if refusal:
            raise IncompatibleSystemError(refusal)
        if opening.depth > _core.CALL_DEPTH_MAX:
            raise ProtocolError(
                f"calls within {opening.depth} calls, one within the other; {_core.CALL_DEPTH_MAX} are possible"
            )
        self._wait_for_view(opening)
        self._questions.check(between_members.CALLS, opening, connection.time_left())
        session = _core.CallSession(self._find_region, opening.depth, self._budget, self._callers(opening.from_))
        self._take_place(session, _Caller(opening.from_, opening.depth), opening.line)
        try:
            connection.opened(session.stop)
            sock.settimeout(REPLY_TIMEOUT_S)
            sock.sendall(between_members.encode_answer(between_members.CALLS))
            sock.settimeout(None)
            data.keep_alive(sock)
            outcome = session.run(sock)
            if outcome not in ("closed", "stopped"):
                connection.warning(
                    "gave up the calls of member %s, from %s: %s", opening.from_, connection.place, outcome
                )
        finally:
            with self._changed:
                del self._sessions[session]
                self._changed.notify_all()

    def _callers(self, opener: Incarnation) -> tuple[int, ...]:
        """Returns the numbers of the incarnations whose calls the member may bring: the opener, and earlier
        incarnations."""
        with self._lock:
            known = self._numbers.get(opener.name, ())
        return (opener.member_id, *(each for each in known if each != opener.member_id))

    def _wait_for_view(self, opening: between_members.Opening) -> None:
        """Returns when the opener is in the view. ConnectivityError if the opener is not in the view soon."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._stopping or opening.from_ in self._view, between_members.VIEW_WAIT_S
            ):
                raise ConnectivityError(between_members.stranger(opening, self._me))

    def _take_place(self, session: _core.CallSession, caller: _Caller, line: int) -> None:
        """Adds a session, when the sessions of the caller's earlier connections have ended.

        The caller has given up the earlier connections. A call from an earlier connection must not be done after a call
        from the new connection.
        """
        with self._changed:
            if self._stopping:
                raise ConnectivityError(f"member {self._me.name} is stopping")
            if caller.member not in self._view:
                raise ConnectivityError(f"member {caller.member} was given up by the site")
            if line < self._newest.get(caller, 0):
                raise ConnectivityError(f"member {caller.member} has opened a later connection already")
            if len(self._sessions) >= MAX_CALLERS:
                raise IllegalStateError(
                    f"member {self._me.name} serves {MAX_CALLERS} connections of other members already"
                )
            self._newest[caller] = line
            earlier = {each for each, (of, before) in self._sessions.items() if of == caller and before < line}
            for each in earlier:
                each.stop()
            self._sessions[session] = caller, line
            if not self._changed.wait_for(lambda: earlier.isdisjoint(self._sessions), REPLACE_TIMEOUT_S):
                del self._sessions[session]
                raise ConnectivityError(
                    f"member {self._me.name} is still doing a call that came over an earlier connection of member"
                    f" {caller.member}"
                )

    @staticmethod
    def _refuse(sock: socket.socket, error: BaseException) -> None:
        try:
            sock.settimeout(data.REFUSE_TIMEOUT_S)
            sock.sendall(between_members.encode_answer(between_members.CALLS, str(error)))
        except OSError as broken:
            log.debug("the refusal did not leave: %s", broken)
