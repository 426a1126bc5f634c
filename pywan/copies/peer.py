"""Owns what one member keeps for another member of its site: the lane over which it sends changes, and the questions of
takeovers.

Each of them has a thread, which lives as long as the other member is in the view.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.lines import Lines
from pywan.base.threads import start_thread
from pywan.coordination.encoding import bucket_of, plain_bucket
from pywan.coordination.tables import BucketKey, Epoch, Incarnation, MemberProfile
from pywan.copies.region_copies import Answer, Question
from pywan.errors import ConnectivityError, ProtocolError, PywanError
from pywan.protocol import between_members as wire
from pywan.transport import sockets
from pywan.transport.control import ControlClient
from pywan.transport.data import receive_exactly

log = logging.getLogger("pywan.copies")

CONNECT_TIMEOUT_S = 1.0
QUESTION_TIMEOUT_S = 2.0
FIRST_PAUSE_S = 0.01  # After a connection that broke; doubled up to the next one.
LONGEST_PAUSE_S = 0.5


class Peer:
    """Any thread may call it. `suspect` is called when a connection was refused or broke; `answered` with what came
    of questions: (member, region, answers, for how many us it has promised others something)."""

    def __init__(
        self,
        me: Incarnation,
        profile: MemberProfile,
        number: int,
        site_identity: str,
        *,
        member_timeout_us: int,
        suspect: Callable[[Incarnation], None],
        answered: Callable[[Incarnation, str, list[Answer], int], None],
    ) -> None:
        self.member = profile.incarnation
        self.lane = _core.LaneSender(number, f"lane from {me} to {self.member}")
        timeout_ms = member_timeout_us // 1000
        self.lane.configure(timeout_ms, timeout_ms)
        self._me, self._site_identity = me, site_identity
        self._address = Address(profile.host, profile.port)
        self._suspect, self._answered = suspect, answered
        self._lines = Lines(log)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ending = False
        self._sock: socket.socket | None = None
        self._regions: dict[str, int] = {}
        self._next_region = 1
        # Since when the lane has no connection (time.monotonic); None: it has one.
        self._down_since: float | None = time.monotonic()
        self._questions: dict[str, dict[int, Question]] = {}
        self._client: ControlClient | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        what = f"member {self._me.name}: connections to member {self.member.name}"
        self._threads = [
            start_thread(what, f"lane to {self.member.name}", self._run_lane),
            start_thread(what, f"questions to {self.member.name}", self._run_questions),
        ]

    @property
    def down_s(self) -> float:
        """For how many seconds the lane has had no connection; 0: it has one."""
        since = self._down_since
        return 0.0 if since is None else time.monotonic() - since

    def add_region(self, name: str, core: Any) -> None:
        """The lane carries the region's changes from now on. It may be called again."""
        with self._lock:
            if name in self._regions or self._ending:
                return
            number = self._regions[name] = self._next_region
            self._next_region += 1
        self.lane.add_region(number, name, core)

    def remove_region(self, name: str) -> None:
        with self._lock:
            known = self._regions.pop(name, None)
            self._questions.pop(name, None)
        if known is not None:
            self.lane.remove_region(name)

    def ask(self, region: str, questions: list[Question]) -> None:
        with self._lock:
            waiting = self._questions.setdefault(region, {})
            waiting.update((question.bucket, question) for question in questions)
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the connections. `join` waits for the threads."""
        with self._lock:
            self._ending = True
            self._changed.notify_all()
            sock, client = self._sock, self._client
        self.lane.stop()
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
        pause = FIRST_PAUSE_S
        while not self._ending:
            try:
                self._run_connection()
                pause = FIRST_PAUSE_S
            except PywanError as error:
                if not self._ending:
                    self._lines.warning("%s", error)
            except Exception:
                log.exception("the lane to member %s broke", self.member)
            finally:
                with self._lock:
                    sock, self._sock = self._sock, None
                    if self._down_since is None:
                        self._down_since = time.monotonic()
                if sock is not None:
                    sock.close()
            if self._ending:
                return
            self._suspect(self.member)
            with self._lock:
                if not self._ending:
                    self._changed.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _run_connection(self) -> None:
        """Returns when a connection that was opened has ended."""
        sock = sockets.connect(
            self._address, CONNECT_TIMEOUT_S, what=f"member {self.member.name}", on_socket=self._keep
        )
        opening = wire.Opening(self._me, self.member, self._site_identity)
        sock.sendall(wire.encode_opening(wire.LANE, opening))
        head = receive_exactly(sock, wire.HEAD_BYTES)
        body = receive_exactly(sock, wire.length_of_body(wire.LANE, head))
        wire.check_answer(body, f"member {self.member}")
        sock.settimeout(None)
        self._down_since = None
        ended = self.lane.run_over_socket(sock.fileno())
        if not self._ending:
            log.info("the lane to member %s ended: %s", self.member, ended)

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sock = sock
            if self._ending:
                raise ConnectivityError(f"the lane to member {self.member} is closed")

    # Questions

    def _run_questions(self) -> None:
        while True:
            with self._lock:
                while not self._questions and not self._ending:
                    self._changed.wait()
                if self._ending:
                    return
                region, asked = next(iter(self._questions.items()))
                del self._questions[region]
            try:
                self._ask(region, list(asked.values()))
            except PywanError as error:  # The copies ask again as long as they need an answer.
                if not self._ending:
                    self._lines.warning("%s", error)
            except Exception:
                log.exception("questions about region %s to member %s failed", region, self.member)

    def _ask(self, region: str, questions: list[Question]) -> None:
        if self._client is None:
            with self._lock:
                if self._ending:
                    return
                what = f"member {self.member.name}"
                self._client = ControlClient(self._address, QUESTION_TIMEOUT_S, what=what)
        reply = self._client.call(
            "adopt-buckets",
            region=region,
            of=[self._me.name, self._me.member_id],
            to=[self.member.name, self.member.member_id],
            questions=[[each.bucket, plain_bucket(each.decision), each.after] for each in questions],
        )
        self._answered(self.member, region, answers_of(reply), int(reply["promised_us"]))


def answers_of(reply: dict[str, Any]) -> list[Answer]:
    """Reads the answers in a reply. ProtocolError if they are not whole."""
    try:
        return [
            Answer(int(number), Epoch(int(generation), int(count)), int(after), int(last), bytes(entries))
            for number, (generation, count), after, last, entries in reply["answers"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"an answer about copies is not whole: {error!r}") from None


def plain_answers(answers: list[Answer]) -> list[Any]:
    """Returns answers as a reply has them."""
    return [[each.bucket, list(each.epoch), each.after, each.last, each.entries] for each in answers]


def questions_of(request: dict[str, Any]) -> list[Question]:
    """Reads the questions in a request. ProtocolError if they are not whole."""
    try:
        return [
            Question(int(number), bucket_of(decision, BucketKey(str(request["region"]), int(number))), int(after))
            for number, decision, after in request["questions"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a question about copies is not whole: {error!r}") from None
