"""Owns the threads and connections of a member's replicas, with `ReplicasSession` as the state machine.

A single thread does all work that takes more than a moment: takeovers, reports to the coordinator, notifications of
replication links. Callers leave long work to the thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import start_essential
from pywan.coordination.tables import Bucket, BucketKey, Incarnation, MemberProfile
from pywan.errors import PywanError
from pywan.protocol import between_members as wire
from pywan.replication.peer import Peer
from pywan.replication.peer_session import asked_of
from pywan.replication.replicas_session import ReplicasSession, Reports
from pywan.transport.data import receive_exactly
from pywan.transport.links import PLAIN, Way
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.openings import Connection
from pywan.transport.own_openings import OwnOpenings

log = logging.getLogger("pywan.replication")

WORK_MS = 10  # The interval of the thread's work during a takeover.
REST_MS = 250  # The interval without a takeover.
STOP_TIMEOUT_S = 5.0
NEWS_WAIT_S = 0.1  # The limit of a question's wait for metadata records. Afterwards the new primary asks again.


class MemberReplicas:
    """Any thread may call the methods. `start` is called once, after the join. `stop` ends all threads and
    connections."""

    def __init__(
        self,
        reports: Reports,
        openings: OwnOpenings,
        questions: OpeningQuestions,
        *,
        way: Way = PLAIN.cluster,
        member_timeout_us: int,
        memory: _core.MemoryLimit | None = None,
        gives_up: Callable[[str], object] | None = None,
    ) -> None:
        """`openings`: the own openings in flight. `questions`: ask members about openings in flight to this member.
        `way`: connects to members. `memory`: the memory limit of the member. `gives_up`: called with the reason if the
        thread cannot go on."""
        self._reports, self._openings, self._questions, self._gives_up = reports, openings, questions, gives_up
        self._way = way
        self._lock = threading.RLock()  # Guards all fields below. No thread waits for another process under the lock.
        self._changed = threading.Condition(self._lock)  # Notified with each metadata record and view.
        self._session = ReplicasSession(member_timeout_us=member_timeout_us, memory=memory)
        self._peers: dict[Incarnation, Peer] = {}
        self._thread: threading.Thread | None = None
        self._wake_file = -1
        self._lines = Lines(log)
        self._repl_link_ends = Lines(log)
        self._clock_lines = Lines(log)
        self._ahead: set[Incarnation] = set()  # Members with lines about their stamps. Used by the thread only.

    def start(self, me: Incarnation, site_identity: str) -> None:
        self._session.me, self._session.site_identity = me, site_identity

    def stop(self) -> None:
        with self._lock:
            self._session.is_stopping = True
            self._changed.notify_all()
            peers, thread = list(self._peers.values()), self._thread
            receivers = list(self._session.receivers)
        self._wake()
        for peer in peers:
            peer.stop()
        for receiver in receivers:
            receiver.stop()
        for peer in peers:
            peer.join(STOP_TIMEOUT_S)
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_S)
        with self._lock:
            if self._wake_file >= 0:
                os.close(self._wake_file)
                self._wake_file = -1

    # Regions and cluster metadata, as in ReplicasSession

    def share(self, name: str, core: Any, changelog: _core.Changelog, *, content: Mapping[int, Bucket]) -> None:
        with self._lock:
            self._session.share(name, core, changelog, content=content)
            if self._thread is None:
                self._wake_file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                what = f"member {self._session.me.name}: replicas"
                self._thread = start_essential(what, "replicas", self._run, gives_up=self._gives_up)

    def drop(self, name: str) -> None:
        with self._lock:
            self._session.drop(name)

    def take_view(self, profiles: tuple[MemberProfile, ...]) -> None:
        with self._lock:
            self._session.take_view(profiles)
            self._changed.notify_all()
        self._wake()

    def lease_renewed(self, member_timeout_us: int) -> None:
        with self._lock:
            self._session.lease_renewed(member_timeout_us)

    def take(self, name: str, buckets: Mapping[int, Bucket | None]) -> None:
        if not buckets:
            return
        with self._lock:
            self._session.take(name, buckets, _core.monotonic_us())
            self._changed.notify_all()
            self._follow_peers()
        self._wake()

    def find(self, name: str) -> Any:
        return self._session.find(name)

    def followed(self) -> dict[BucketKey, Bucket]:
        with self._lock:
            return self._session.followed()

    def reached(self) -> list[Incarnation]:
        with self._lock:
            return self._session.reached(_core.monotonic_us())

    def members_of_repl_links(self) -> dict[int, Incarnation]:
        """Returns the member at the end of each replication link, by the link's number in the change logs."""
        with self._lock:
            return self._session.members_of_repl_links()

    def clocks_ahead_ms(self) -> dict[Incarnation, int]:
        """Returns the members whose stamps are ahead of this member's time, each with the difference in ms."""
        with self._lock:
            return self._session.wrong_clocks.ahead_ms(_core.monotonic_us())

    def counts(self, name: str) -> dict[str, int]:
        with self._lock:
            return self._session.counts(name)

    # Questions and replication links of members

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the questions of a new primary, whose metadata may be a moment newer than this member's."""
        asked = asked_of(request)
        with self._changed:
            self._changed.wait_for(lambda: self._session.is_stopping or self._session.knows(asked), NEWS_WAIT_S)
            return self._session.answer(asked, _core.monotonic_us())

    def serve_repl_link(self, connection: Connection, first: bytes) -> None:
        """Serves a replication link from a member. `first` has the received bytes of the protocol's name.

        An earlier replication link of the member goes on until the member has confirmed the new opening.
        """
        sock = connection.sock
        sock.settimeout(connection.time_left())
        head = receive_exactly(sock, wire.HEAD_BYTES, first)
        opening = wire.decode_opening(receive_exactly(sock, wire.length_of_body(wire.REPLICATION, head)))
        with self._changed:
            self._changed.wait_for(lambda: self._takes(opening.from_), wire.VIEW_WAIT_S)
            refusal = self._session.refusal_of_repl_link(opening)
        receiver = None
        try:
            if not refusal:
                self._questions.check(wire.REPLICATION, opening, connection.time_left())
        except PywanError as error:
            refusal = str(error)
        if not refusal:
            with self._lock:  # The metadata may have changed meanwhile.
                refusal = self._session.refusal_of_repl_link(opening)
                receiver = None if refusal else self._session.repl_link_opened(opening.from_)
        if receiver is None:
            connection.warning("a replication link of another member, from %s, refused: %s", connection.place, refusal)
            sock.sendall(wire.encode_answer(wire.REPLICATION, refusal))
            return
        try:
            connection.opened(receiver.stop)
            sock.sendall(wire.encode_answer(wire.REPLICATION))
            sock.settimeout(None)
            ended = receiver.run_over_socket(sock)
            # Any process with access to the port can open short links, so `_repl_link_ends` limits the lines. If a
            # later link replaces a link ("stopped"), only the end of the later link has a line.
            if ended != "stopped":
                say = self._repl_link_ends.info if ended == "closed" else self._repl_link_ends.warning
                say("the replication link from member %s ended: %s", opening.from_, ended)
        finally:
            with self._lock:
                self._session.repl_link_closed(receiver, _core.monotonic_us())

    def _takes(self, member: Incarnation) -> bool:
        """Whether an opening of the member need not wait. The caller holds the lock."""
        return self._session.is_stopping or self._session.is_in_view(member)

    # The thread

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._wake_file >= 0:
                os.eventfd_write(self._wake_file, 1)

    def _run(self) -> None:
        while not self._session.is_stopping:
            self._wait(WORK_MS if self._work() else REST_MS)

    def _wait(self, timeout_ms: int) -> None:
        poll = select.poll()
        with self._lock:
            if self._session.is_stopping:
                return
            files = [self._wake_file, *(peer.repl_link.news_file for peer in self._session.peers.values())]
            for file in files:
                poll.register(file, select.POLLIN)
        ready = poll.poll(timeout_ms)
        if any(file == self._wake_file for file, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_file)

    def _work(self) -> bool:
        """Does the due work. Returns whether a takeover is under way."""
        with self._lock:
            is_busy = self._session.work(_core.monotonic_us())
            self._follow_peers()
            reports = self._session.take_reports()
            clocks = self._session.wrong_clocks
            ahead_ms, known = clocks.take_news(), clocks.ahead_ms(_core.monotonic_us())
        for member in self._ahead - known.keys():
            self._clock_lines.ended(_stamps_of(member))
        self._ahead = set(known)
        self._say_clocks(ahead_ms)
        for done, report in enumerate(reports):
            try:
                report(self._reports)
            except BaseException:
                with self._lock:
                    self._session.keep_reports(reports[done:])  # No later call would repeat the reports.
                raise
        return is_busy

    def _say_clocks(self, ahead_ms: Mapping[Incarnation, int]) -> None:
        """Logs the members whose stamps are ahead: at first, and then once a minute."""
        for member, by_ms in ahead_ms.items():
            self._clock_lines.failed(
                _stamps_of(member),
                f"its changes are {by_ms // 1000} s ahead of the time of this member: this member applies the"
                " changes, and its clock does not follow. The clock of one of the two was wrong when it started; put it"
                ' right and restart that member ("Clocks" in docs/operations.md)',
            )

    def _follow_peers(self) -> None:
        """Connects to the members that the session names, and passes the session's questions on. The caller holds the
        lock."""
        came, gone = self._session.take_peers()
        for session in came:
            peer = self._peers[session.member] = Peer(
                self._session.me,
                session,
                self._lock,
                self._session.site_identity,
                self._openings,
                way=self._way,
                suspect=self._suspect,
                answered=self._take_answers,
            )
            peer.start()
        for session in gone:
            self._peers.pop(session.member).stop()
        for peer in self._peers.values():
            peer.look()

    def _take_answers(self, member: Incarnation, name: str, reply: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._session.answered(member, name, reply, _core.monotonic_us())
            except PywanError as error:
                self._lines.warning("region %s: cannot take missing changes from member %s: %s", name, member, error)
        self._wake()

    def _suspect(self, member: Incarnation) -> None:
        with self._lock:
            self._session.suspect(member)
        self._wake()


def _stamps_of(member: Incarnation) -> str:
    return f"stamps of member {member}"
