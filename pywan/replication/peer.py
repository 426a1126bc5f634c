"""Owns the connections of one member to another member of its site: the replication link, and the questions of
takeovers.

Each connection has a thread. The thread ends when the other member leaves the view.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import start_essential, told_error
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError, PywanError
from pywan.protocol import between_members as wire
from pywan.replication.peer_session import PeerSession
from pywan.transport import sockets
from pywan.transport.control import ControlClient
from pywan.transport.data import receive_exactly
from pywan.transport.link import Link
from pywan.transport.links import PLAIN, Way
from pywan.transport.own_openings import OwnOpenings

log = logging.getLogger("pywan.replication")

CONNECT_TIMEOUT_S = 1.0
# The other member answers an opening after a question back to this member, over a separate connection. So the answer
# may take some round trips more than the connect.
ANSWER_TIMEOUT_S = 1.5
ANSWER_ROUND_TRIPS = 3
QUESTION_TIMEOUT_S = 2.0
KEPT_OPEN_S = 300.0  # The interval of messages: an idle connection is closed after twice this time.


class Peer:
    """Drives a PeerSession. Any thread may call the methods.

    Args:
        me: The member of this process.
        session: The changes to send and the questions to ask. `lock` guards the session.
        lock: The lock of the member's replicas.
        site_identity: The site's identity.
        openings: The own openings in flight.
        way: Connects to members.
        suspect: Called when a connection was refused or broke.
        answered: Called with the reply to questions: (member, region, the reply).
    """

    def __init__(
        self,
        me: Incarnation,
        session: PeerSession,
        lock: threading.RLock,
        site_identity: str,
        openings: OwnOpenings,
        *,
        way: Way = PLAIN.cluster,
        suspect: Callable[[Incarnation], None],
        answered: Callable[[Incarnation, str, dict[str, Any]], None],
    ) -> None:
        self.session, self.member = session, session.member
        self._me, self._site_identity, self._openings = me, site_identity, openings
        self._way, self._suspect, self._answered = way, suspect, answered
        self._lines = Lines(log)
        self._repl_link = f"the replication link to member {self.member}"
        self._talk = f"asking member {self.member} about its replicas"
        self._changed = threading.Condition(lock)  # Guards all fields below.
        self._ending = False
        self._sock: Link | None = None
        self._client: ControlClient | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        what = f"member {self._me.name}: connections to member {self.member.name}"
        self._threads = [
            start_essential(what, f"replication link to {self.member.name}", self._run_repl_link),
            start_essential(what, f"questions to {self.member.name}", self._run_questions),
        ]

    def look(self) -> None:
        """Wakes up the thread of questions if the session has a question."""
        with self._changed:
            if self.session.has_questions:
                self._changed.notify_all()

    def stop(self) -> None:
        """Ends the connections. `join` waits for the threads."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            sock, client = self._sock, self._client
        self.session.repl_link.stop()
        sockets.shut(sock)
        if client is not None:
            client.close()

    def join(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # The replication link

    def _run_repl_link(self) -> None:
        while not self._ending:
            try:
                self._run_connection()
            except (PywanError, OSError) as error:
                if not self._ending:
                    self._lines.failed(self._repl_link, error)
            except Exception as error:
                self._lines.failed(self._repl_link, told_error(error))
            with self._changed:
                sock, self._sock = self._sock, None
                pause_us = self.session.broke(_core.monotonic_us())
            if sock is not None:
                sock.close()
            if self._ending:
                return
            self._suspect(self.member)
            with self._changed:
                self._changed.wait_for(lambda: self._ending, pause_us / 1e6)

    def _run_connection(self) -> None:
        """Opens a connection, and returns when the connection has ended."""
        began = time.monotonic()
        sock = self._way.connect(
            self.session.address, CONNECT_TIMEOUT_S, what=f"member {self.member.name}", on_socket=self._keep
        )
        sock.settimeout(ANSWER_TIMEOUT_S + ANSWER_ROUND_TRIPS * (time.monotonic() - began))
        word = self._openings.begin(wire.REPLICATION, self._me, self.member)
        try:
            opening = wire.Opening(self._me, self.member, self._site_identity, word)
            sock.sendall(wire.encode_opening(wire.REPLICATION, opening))
            head = receive_exactly(sock, wire.HEAD_BYTES)
            body = receive_exactly(sock, wire.length_of_body(wire.REPLICATION, head))
        finally:
            self._openings.end(word)
        wire.check_answer(body, f"member {self.member}")
        sock.settimeout(None)
        self._lines.works(self._repl_link)
        with self._changed:
            self.session.connected()
        ended = self.session.repl_link.run_over_socket(sock)
        if not self._ending:
            self._lines.info("the replication link to member %s ended: %s", self.member, ended)

    def _keep(self, sock: Link) -> None:
        with self._changed:
            self._sock = sock
            if self._ending:
                raise ConnectivityError(f"the replication link to member {self.member} is closed")

    # Questions

    def _run_questions(self) -> None:
        wait_s = 0.0  # The connection is opened at once.
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self.session.has_questions, wait_s)
                request = self.session.next_request() or self.session.empty_request()
                if self._ending:
                    return
            wait_s = KEPT_OPEN_S
            try:
                self._ask(request)
            except (PywanError, OSError) as error:  # The replicas repeat a question until the answer arrives.
                if not self._ending and request["questions"]:
                    self._lines.failed(self._talk, error)
            except Exception as error:
                self._lines.failed(self._talk, told_error(error))

    def _ask(self, request: dict[str, Any]) -> None:
        if self._client is None:
            with self._changed:
                if self._ending:
                    return
                what = f"member {self.member.name}"
                self._client = ControlClient(self.session.address, QUESTION_TIMEOUT_S, what=what, way=self._way)
        reply = self._client.call("adopt-buckets", **request)
        self._lines.works(self._talk)
        self._answered(self.member, request["region"], reply)
