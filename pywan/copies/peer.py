"""Owns the connections of one member to another member of its site: the lane, and the questions of takeovers.

Each of them has a thread, which lives as long as the other member is in the view.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.base.lines import Lines, Outage
from pywan.base.threads import start_essential, told_error
from pywan.coordination.tables import Incarnation
from pywan.copies.peer_session import PeerSession
from pywan.errors import ConnectivityError, PywanError
from pywan.protocol import between_members as wire
from pywan.transport import sockets
from pywan.transport.control import ControlClient
from pywan.transport.data import receive_exactly
from pywan.transport.link import Link
from pywan.transport.links import PLAIN, Way
from pywan.transport.own_openings import OwnOpenings

log = logging.getLogger("pywan.copies")

CONNECT_TIMEOUT_S = 1.0
# The other member answers an opening when it has asked this one about it, over a connection of its own. So it may take
# some round trips more than the connecting took.
ANSWER_TIMEOUT_S = 1.5
ANSWER_ROUND_TRIPS = 3
QUESTION_TIMEOUT_S = 2.0
KEPT_OPEN_S = 300.0  # So often something is said on a connection, which is closed after twice that time.


class Peer:
    """Drives a PeerSession. Any thread may call it.

    Args:
        me: The member that this process is.
        session: What is to be sent and asked. `lock` guards it.
        lock: The lock of the member's copies.
        site_identity: The site's identity.
        openings: What this member has under way to others.
        way: Connects to members.
        suspect: Called when a connection was refused or broke.
        answered: Called with what came of questions: (member, region, the reply).
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
        self._lane = Outage(log, f"the lane to member {self.member}")
        self._ends = Lines(log)
        self._talk = Outage(log, f"asking member {self.member} about its copies")
        self._changed = threading.Condition(lock)  # Guards all below.
        self._ending = False
        self._sock: Link | None = None
        self._client: ControlClient | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        what = f"member {self._me.name}: connections to member {self.member.name}"
        self._threads = [
            start_essential(what, f"lane to {self.member.name}", self._run_lane),
            start_essential(what, f"questions to {self.member.name}", self._run_questions),
        ]

    def look(self) -> None:
        """The session may have something to ask."""
        with self._changed:
            if self.session.has_questions:
                self._changed.notify_all()

    def stop(self) -> None:
        """Ends the connections. `join` waits for the threads."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            sock, client = self._sock, self._client
        self.session.lane.stop()
        sockets.shut(sock)
        if client is not None:
            client.close()

    def join(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # The lane

    def _run_lane(self) -> None:
        while not self._ending:
            try:
                self._run_connection()
            except (PywanError, OSError) as error:
                if not self._ending:
                    self._lane.failed(error)
            except Exception as error:
                self._lane.failed(told_error(error))
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
        """Returns when a connection that was opened has ended."""
        began = time.monotonic()
        sock = self._way.connect(
            self.session.address, CONNECT_TIMEOUT_S, what=f"member {self.member.name}", on_socket=self._keep
        )
        sock.settimeout(ANSWER_TIMEOUT_S + ANSWER_ROUND_TRIPS * (time.monotonic() - began))
        word = self._openings.begin(wire.LANE, self._me, self.member)
        try:
            opening = wire.Opening(self._me, self.member, self._site_identity, word)
            sock.sendall(wire.encode_opening(wire.LANE, opening))
            head = receive_exactly(sock, wire.HEAD_BYTES)
            body = receive_exactly(sock, wire.length_of_body(wire.LANE, head))
        finally:
            self._openings.end(word)
        wire.check_answer(body, f"member {self.member}")
        sock.settimeout(None)
        self._lane.over()
        with self._changed:
            self.session.connected()
        ended = self.session.lane.run_over_socket(sock)
        if not self._ending:
            self._ends.info("the lane to member %s ended: %s", self.member, ended)

    def _keep(self, sock: Link) -> None:
        with self._changed:
            self._sock = sock
            if self._ending:
                raise ConnectivityError(f"the lane to member {self.member} is closed")

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
            except (PywanError, OSError) as error:  # The copies ask again as long as they need an answer.
                if not self._ending and request["questions"]:
                    self._talk.failed(error)
            except Exception as error:
                self._talk.failed(told_error(error))

    def _ask(self, request: dict[str, Any]) -> None:
        if self._client is None:
            with self._changed:
                if self._ending:
                    return
                what = f"member {self.member.name}"
                self._client = ControlClient(self.session.address, QUESTION_TIMEOUT_S, what=what, way=self._way)
        reply = self._client.call("adopt-buckets", **request)
        self._talk.over()
        self._answered(self.member, request["region"], reply)
