"""Owns a member's exchange with the coordinator of its site: the threads, and the clock. What is asked, and what the
replies mean, is the session's (pywan/coordination/agent_session.py).

A member whose locators have no coordinator goes on asking. What needs a decision waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.draws import drawn_number
from pywan.base.lines import Lines, Outage
from pywan.base.nonces import draw_nonce
from pywan.base.processes import has_ended, this_process
from pywan.base.threads import start_essential, told_error
from pywan.coordination.agent_session import (
    LEAVE,
    RETRY_MAX_US,
    AgentSession,
    Changed,
    Extended,
    GivenUp,
    Outcome,
    SiteTables,
    tables_in,
)
from pywan.coordination.asked import Request, RequestKey
from pywan.coordination.claims import Claim
from pywan.coordination.messages import StillNeeded, Tables
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner, RegionAttributes, Standby
from pywan.errors import (
    IllegalStateError,
    IncompatibleSystemError,
    NotFoundError,
    ProtocolError,
    PywanError,
)
from pywan.forks import of_one_process
from pywan.site.asking import CoordinatorClient
from pywan.site.remembered import RememberedFile
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.agent")

HOST_TIMEOUT_S = 10.0
PROGRESS_S = 3.0  # So often a member that hands over says how far it is.
GOODBYE_S = 1.0
STOP_TIMEOUT_S = 5.0


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Handover:
    """What came of handing over. `lost`: by region, the buckets whose last whole copy ends with this member."""

    is_done: bool
    lost: dict[str, int]


@of_one_process(lambda agent: f"the agent of member {agent.name!r}", nothing_in_child=("leave", "hurry", "stop"))
class Agent:
    """A member's agent. Any thread may use it. `leave` or `stop` ends its two threads.

    Args:
        name: The member's name.
        member_id: Of this incarnation of the member.
        host: Where other members reach it.
        port: Where other members reach it.
        site: The site's id.
        locators: Returns the addresses of the site's locators.
        claims: Returns what those locators say of who coordinates.
        file: What outlives the process: the site's identity, the coordinator's name, the newest decision. None: nothing
            does.
        version: Of pywan.
        way: Connects to locators.
        on_change: Called with each change of the tables, in order, in the agent's thread. `tables` has it already.
        on_lease: Called with the time until which the lease runs, and one after which the coordinator was heard. Both
            are in microseconds of CLOCK_BOOTTIME.
        on_given_up: Called when the coordinator has given this incarnation up, with the new one. All copies are
            worthless now.
        reached: Returns the members whose answers came to this one a moment ago.
        followed: Returns the decisions that the member's copies follow.
        gives_up: Called with the reason if one of the threads cannot go on.
    """

    def __init__(
        self,
        name: str,
        member_id: int,
        *,
        host: str,
        port: int,
        site: int,
        locators: Callable[[], list[Address]],
        file: Path | None,
        version: str,
        way: Way = PLAIN.locator,
        claims: Callable[[], Collection[Claim]] = tuple,
        on_change: Callable[[Tables], object] = _nothing,
        on_lease: Callable[[int, int], object] = _nothing,
        on_given_up: Callable[[Incarnation], object] = _nothing,
        reached: Callable[[], Iterable[Incarnation]] = tuple,
        followed: Callable[[], Mapping[BucketKey, Bucket]] = dict,
        gives_up: Callable[[str], object] | None = None,
    ) -> None:
        self.name, self._gives_up = name, gives_up
        self._requests = Outage(log, f"member {name}: a request to the coordinator failed")
        self._outcomes: deque[Outcome] = deque()  # What the member has yet to do. Used by its thread only.
        self._claims, self._file = claims, RememberedFile(name, file)
        self._on_change, self._on_lease, self._on_given_up = on_change, on_lease, on_given_up
        self._changed = threading.Condition()  # Guards everything below.
        self._lines = Lines(log)  # What a coordinator answers that cannot be used.
        self._session = AgentSession(
            Incarnation(name, member_id),
            host=host,
            port=port,
            site=site,
            version=version,
            process=this_process(),
            remembered=self._file.read(),
            has_ended=has_ended,
            draw_id=lambda: drawn_number(32),
            draw_nonce=draw_nonce,
            reached=reached,
            followed=followed,
        )
        self._session.away_since_us = boot_us()
        self._coordinator = CoordinatorClient(name, site, locators, way)
        self._written: tuple[Standby | None, int] = (None, 0)  # Standby and term of which the file knows.
        self._stopping = False
        self._hurries = False  # Nobody waits until other members have taken over.
        self._threads: list[threading.Thread] = []

    # --- life cycle ---

    def start(self) -> None:
        with self._changed:
            what = f"member {self.name} cannot take part in the coordination of its site"
            for word, run in (("agent", self._run), ("agent-asks", self._run_requests)):
                name = f"{self.name}-{word}"
                self._threads.append(start_essential(what, name, run, gives_up=self._gives_up))

    def hand_over(self, timeout: float, on_progress: Callable[[StillNeeded], object] = _nothing) -> Handover:
        """Hands over to other members what needs this one. It serves as before until then, and does not leave yet.

        Returns when the coordinator says that the member may leave, after `timeout` seconds, or after `hurry`. It does
        not wait if nothing is lost without the coordinator, and that is away. `on_progress` is called now and then.
        """
        deadline = time.monotonic() + timeout
        progress_at = time.monotonic() + PROGRESS_S
        session, request = self._session, None
        while True:
            with self._changed:
                if (is_done := self._is_handed_over(request)) is not None:
                    may_leave = session.may_leave
                    return Handover(is_done, dict(may_leave.lost) if may_leave is not None else session.last_copies)
                now = time.monotonic()
                if now >= deadline or self._hurries:
                    return Handover(False, session.last_copies)
                if request is None or session.asked.requests.get(LEAVE) is not request:
                    request = session.leave()
                    self._changed.notify_all()
                self._wait_for_others(request, min(deadline, progress_at) - now)
                needed = session.still_needed
            if time.monotonic() >= progress_at:
                progress_at = time.monotonic() + PROGRESS_S
                on_progress(needed)

    def _wait_for_others(self, request: Request, timeout: float) -> None:
        """The caller holds the lock."""
        self._changed.wait_for(lambda: self._hurries or self._is_handed_over(request) is not None, timeout)

    def _is_handed_over(self, request: Request | None) -> bool | None:
        """Returns whether nobody needs this member any more; None: that has to be waited for. The caller holds the
        lock."""
        session = self._session
        if (request is not None and request.done) or not session.tables.members.keys() - {session.me}:
            return True
        if self._stopping:
            return not session.last_copies
        is_away = bool(session.problem) or not session.is_joined
        return True if is_away and not session.last_copies else None

    @property
    def wants_to_leave(self) -> bool:
        """Whether the member hands over, or has, because it ends."""
        return self._session.wants_to_leave

    @property
    def still_needed(self) -> StillNeeded:
        """What the coordinator said last of a member that wants to leave."""
        return self._session.still_needed

    def hurry(self) -> None:
        """Ends the waiting of `hand_over` and `leave`, now and later."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()

    def stay(self) -> None:
        """The member does not leave, though `hand_over` was called."""
        with self._asking() as session:
            session.stay()

    def leave(
        self,
        timeout: float,
        on_progress: Callable[[StillNeeded], object] = _nothing,
        on_handed_over: Callable[[Handover], object] = _nothing,
    ) -> Handover:
        """As `hand_over`; then it leaves the site, and the agent has stopped. Ends of regions are told first.

        `on_handed_over` is called before the goodbye: after it the tables do not name this member any more, and its
        buckets that end with it are empty.
        """
        session = self._session
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not session.has_ending_regions
                    or self._stopping
                    or self._hurries
                    or not session.is_joined
                    or bool(session.problem)
                ),
                min(timeout, GOODBYE_S),
            )
        handover = self.hand_over(timeout, on_progress)
        on_handed_over(handover)
        is_heard = False
        with self._changed:
            if session.is_joined and not self._stopping:
                goodbye = session.say_goodbye()
                self._changed.notify_all()
                self._changed.wait_for(lambda: goodbye.done or self._stopping or session.problem, GOODBYE_S)
                is_heard = goodbye.done
        self.stop()
        if not is_heard and (word := session.goodbye_to_standby()) is not None:
            # The threads have ended: nobody is asked anything any more, and nothing is stored.
            self._coordinator.say_goodbye(*word)
        return handover

    def stop(self) -> None:
        """Ends the threads, without a word to the coordinator. It may be called twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._coordinator.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(STOP_TIMEOUT_S)

    # --- what is known ---

    @property
    def me(self) -> Incarnation:
        """The incarnation that the member has now. It changes when the coordinator has given the member up."""
        return self._session.me

    @property
    def tables(self) -> SiteTables:
        """What the member knows of the decisions. Another object takes its place when the member begins anew."""
        return self._session.tables

    @property
    def site_identity(self) -> str:
        """The site's identity. Empty: no coordinator has told it yet."""
        return self._session.remembered.site_identity

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has taken the member in, and has not given it up as far as is known."""
        return self._session.is_joined

    @property
    def is_away(self) -> bool:
        """Whether nobody coordinates, as far as is known."""
        return bool(self._session.problem) or not self._session.is_joined

    @property
    def lease_until_us(self) -> int:
        return self._session.lease_until_us

    @property
    def member_timeout_us(self) -> int:
        """`member-timeout`, as the coordinator told it last: after so long a silent member is given up."""
        return self._session.member_timeout_us

    @property
    def heard_us(self) -> int:
        """The coordinator was heard after this moment."""
        return self._session.heard_us

    def status(self) -> dict[str, Any]:
        """Returns the state of the coordination as plain values: who coordinates, the lease, what waits."""
        with self._changed:
            session, now = self._session, boot_us()
            away = session.away_since_us
            return {
                "incarnation": str(session.me),
                "coordinator": session.remembered.coordinator,
                "site_identity": session.remembered.site_identity,
                "joined": session.is_joined,
                "away_since": None if away is None else time.time() - (now - away) / 1e6,
                "problem": session.refusal or session.away_problem,
                "standby": session.tables.standby.name if session.tables.standby is not None else "",
                "lease_ms": max(session.lease_until_us - now, 0) // 1000,
                "decision": list(session.tables.newest),
                "members": [str(each) for each in sorted(session.tables.members)],
                "regions": session.hosted,
                "waiting": sorted({str(key[0]) for key in session.asked.requests}),
            }

    def wait_joined(self, timeout: float) -> bool:
        """Returns whether the member is in the view, as soon as it is, or nobody coordinates, or the time is over.

        IllegalStateError if the coordinator refuses the member for good.
        """
        session = self._session
        with self._changed:
            self._changed.wait_for(
                lambda: session.is_joined or self._stopping or (session.has_tried and not session.retries), timeout
            )
            if session.refusal:
                raise IllegalStateError(session.refusal)
            return session.is_joined

    # --- requests ---

    def host(self, region: str, attributes: RegionAttributes, weight: int, timeout: float | None = None) -> bool:
        """Tells the site that this member has the region. Returns whether the tables show it, and who has its buckets.

        Args:
            region: The region's name.
            attributes: What all members say alike of it.
            weight: local-max-memory in MB; 0: it is an accessor.
            timeout: The limit in seconds. None: HOST_TIMEOUT_S. Afterwards the agent goes on telling in the background.

        Raises:
            IllegalStateError: The coordinator refuses the region, or the member. The text says why.
        """
        timeout = HOST_TIMEOUT_S if timeout is None else timeout
        deadline = time.monotonic() + timeout
        with self._asking() as session:
            request = session.host(region, attributes, weight)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: request.done or self._stopping or (bool(session.refusal) and not session.retries),
                deadline - time.monotonic(),
            )
            if session.refusal:
                session.give_up_hosting(region)
                raise IllegalStateError(session.refusal)
            if request.refused:
                session.give_up_hosting(region)
                raise IllegalStateError(request.refused)
            return request.done

    def unhost(self, region: str) -> None:
        """As `AgentSession.unhost`."""
        with self._asking() as session:
            session.unhost(region)

    def destroy_region(self, region: str) -> None:
        """As `AgentSession.destroy_region`."""
        with self._asking() as session:
            session.destroy_region(region)

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        """As `AgentSession.caught_up`."""
        with self._asking() as session:
            session.caught_up(key, epoch, learner)

    def unreachable(self, epochs: Mapping[BucketKey, Epoch], copy: Incarnation) -> None:
        """As `AgentSession.unreachable`."""
        with self._asking() as session:
            session.unreachable(epochs, copy)

    def ready(self, keys: Iterable[BucketKey]) -> None:
        """As `AgentSession.ready`."""
        with self._asking() as session:
            session.ready(keys)

    def suspect(self, member: Incarnation) -> None:
        """As `AgentSession.suspect`."""
        with self._asking() as session:
            session.suspect(member)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[AgentSession]:
        """The session, under the lock. The threads look for requests afterwards."""
        with self._changed:
            yield self._session
            self._changed.notify_all()

    # --- the thread that sends requests ---

    def _run_requests(self) -> None:
        session = self._session
        while True:
            with self._changed:
                if self._stopping:
                    return
                due_us, address = session.next_request_us(), self._coordinator.address
                if due_us is None or address is None:
                    self._changed.wait()
                    continue
                if (wait_us := due_us - boot_us()) > 0:
                    self._changed.wait(wait_us / 1e6)
                    continue
                batch = session.take_due(boot_us())
                message = session.encoded_requests(batch)
            try:
                self._send(address, batch, message)
                self._requests.over()
            except ProtocolError as error:
                self._lines.warning("member %s: what the coordinator answers cannot be used: %s", self.name, error)
            except PywanError as error:
                log.debug("member %s: %s", self.name, error)
            except Exception as error:
                self._requests.failed(told_error(error))

    def _send(self, address: Address, batch: list[tuple[RequestKey, Request]], message: dict[str, Any]) -> None:
        reply = self._coordinator.tell(address, "coordination-ask", **message)
        with self._changed:
            self._session.take_answers(batch, reply)
            self._changed.notify_all()

    # --- the thread that joins, renews and hears ---

    def _run(self) -> None:
        session = self._session
        while True:
            with self._changed:
                while not self._stopping and not self._outcomes and (wait_us := session.next_news_us() - boot_us()) > 0:
                    self._changed.wait(wait_us / 1e6)
                if self._stopping:
                    return
                word = session.word_to_standby(boot_us())
            if self._outcomes:  # The thread has failed, and was begun again.
                self._do()
                continue
            if word is not None:
                self._tell_standby(*word)
            if session.promise.round or session.news_due_us > boot_us():
                continue
            claims = self._claims()
            with self._changed:
                if not session.hear_locators(claims, boot_us()):
                    self._changed.notify_all()
                    continue
                question, foreign = session.question(boot_us()), session.foreign
                identity, term = session.remembered.site_identity, session.remembered.term
            try:
                reply = self._coordinator.ask(
                    question.op, identity, foreign, question.fields, term, self._hear_of_standby
                )
                tables = tables_in(reply)
                with self._changed:
                    self._outcomes.extend(session.take_news(question, reply, tables, boot_us()))
                    self._changed.notify_all()
            except PywanError as error:
                self._note_away(error)
                continue
            except Exception as error:
                self._note_away(ProtocolError(told_error(error)))
                log.debug("member %s: the exchange with the coordinator failed", self.name, exc_info=True)
                with self._changed:
                    session.news_due_us = boot_us() + RETRY_MAX_US
                continue
            self._do()

    def _hear_of_standby(self, address: str, at: Any) -> None:
        with self._changed:
            self._session.hear_of_standby(address, at)

    def _tell_standby(self, address: str, fields: dict[str, Any]) -> None:
        """Says that the coordinator is not heard. The standby may ask for a promise, or coordinate already."""
        try:
            reply = self._coordinator.tell_standby(address, fields)
            with self._changed:
                self._session.take_word_of_standby(reply, boot_us())
                self._changed.notify_all()
        except PywanError as error:
            log.debug("member %s: the standby does not answer: %s", self.name, error)

    def _do(self) -> None:
        """Does what came of the news. What fails is done again: the coordinator does not tell it twice."""
        while self._outcomes:
            match self._outcomes[0]:
                case Changed(tables):
                    # It counts as stored from the next question on: by then those who use the tables have acted, and
                    # the file says so. It comes second, as calls may wait for a new primary while a slow disk writes.
                    with self._changed:
                        remembered = self._session.remembered
                    # A member that acts on it must not forget that the earlier standby is out (docs/decisions/0107).
                    is_first = (tables.standby, remembered.term) != self._written
                    if is_first:
                        self._file.write(remembered)
                        self._written = tables.standby, remembered.term
                    self._on_change(tables)
                    if not is_first:
                        self._file.write(remembered)
                case Extended(until_us, heard_us):
                    self._on_lease(until_us, heard_us)
                case GivenUp(me):
                    self._on_given_up(me)
            self._outcomes.popleft()
        with self._changed:
            self._session.settle()
            self._changed.notify_all()

    def _note_away(self, error: PywanError) -> None:
        with self._changed:
            if self._stopping:
                self._session.has_tried = True
                return
            is_refused = isinstance(error, IncompatibleSystemError)
            is_new = self._session.news_failed(str(error), boot_us(), is_refused=is_refused)
            if is_new and not isinstance(error, NotFoundError):
                log.warning(
                    "member %s: coordinator %s is away: %s; the member goes on, and what needs a decision waits",
                    self.name,
                    self._session.remembered.coordinator or "(unknown)",
                    error,
                )
            self._changed.notify_all()


__all__ = ["Agent", "Handover", "SiteTables"]
