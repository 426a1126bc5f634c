"""Owns a member's exchange with the coordinator of its site: the threads, and the clock. The session
(pywan/coordination/agent_session.py) makes the questions and interprets the replies.

A member without a coordinator repeats its questions. Requests that need a metadata record wait.
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
from pywan.base.lines import Lines
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
PROGRESS_S = 3.0  # The interval of progress reports during a handover.
GOODBYE_S = 1.0
STOP_TIMEOUT_S = 5.0


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Handover:
    """The result of a handover. `lost`: by region, the number of buckets whose last complete replica ends with this
    member."""

    is_done: bool
    lost: dict[str, int]


@of_one_process(lambda agent: f"the agent of member {agent.name!r}", nothing_in_child=("leave", "hurry", "stop"))
class Agent:
    """A member's agent. Any thread may use the agent. `leave` or `stop` ends the two threads.

    Args:
        name: The member's name.
        member_id: The number of this incarnation of the member.
        host: The host for connections of other members.
        port: The port for connections of other members.
        site: The site's id.
        locators: Returns the addresses of the site's locators.
        claims: Returns the locators' claims about the coordinator.
        file: The file of the facts that outlive the process: the site's identity, the coordinator's name, the newest
            metadata record. None: no fact outlives the process.
        version: The version of pywan.
        way: Connects to locators.
        on_change: Called with each change of the metadata, in order, in the agent's thread. `tables` has the change
            already.
        on_lease: Called with the end of the lease, and with a time after which the coordinator has answered, both in
            microseconds of CLOCK_BOOTTIME.
        on_given_up: Called with the new incarnation when the coordinator has removed this one. All replicas are
            worthless now.
        reached: Returns the members that have sent this member an answer a moment ago.
        followed: Returns the metadata records of the member's replicas.
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
        self._requests = f"member {name}: a request to the coordinator failed"
        self._outcomes: deque[Outcome] = deque()  # Pending work after a reply. Used by the agent's thread only.
        self._claims, self._file = claims, RememberedFile(name, file)
        self._on_change, self._on_lease, self._on_given_up = on_change, on_lease, on_given_up
        self._changed = threading.Condition()  # Guards all fields below.
        self._lines = Lines(log)
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
        self._written: tuple[Standby | None, int] = (None, 0)  # The standby and the term in the file.
        self._stopping = False
        self._hurries = False  # Set: no call waits for the takeover by other members.
        self._threads: list[threading.Thread] = []

    # --- life cycle ---

    def start(self) -> None:
        with self._changed:
            what = f"member {self.name} cannot take part in the coordination of its site"
            for word, run in (("agent", self._run), ("agent-asks", self._run_requests)):
                name = f"{self.name}-{word}"
                self._threads.append(start_essential(what, name, run, gives_up=self._gives_up))

    def hand_over(self, timeout: float, on_progress: Callable[[StillNeeded], object] = _nothing) -> Handover:
        """Hands buckets and senders over to other members. The member serves as before during the handover, and stays
        in the site.

        Returns when the coordinator allows the member to leave, after `timeout` seconds, or after `hurry`. If the
        coordinator is away and no data would be lost, the call returns at once. `on_progress` is called every
        PROGRESS_S.
        """
        deadline = time.monotonic() + timeout
        progress_at = time.monotonic() + PROGRESS_S
        session, request = self._session, None
        while True:
            with self._changed:
                if (is_done := self._is_handed_over(request)) is not None:
                    may_leave = session.may_leave
                    return Handover(is_done, dict(may_leave.lost) if may_leave is not None else session.last_replicas)
                now = time.monotonic()
                if now >= deadline or self._hurries:
                    return Handover(False, session.last_replicas)
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
        """Returns whether the site needs this member no more; None: not known yet, so the caller has to wait. The
        caller holds the lock."""
        session = self._session
        if (request is not None and request.done) or not session.tables.members.keys() - {session.me}:
            return True
        if self._stopping:
            return not session.last_replicas
        is_away = bool(session.problem) or not session.is_joined
        return True if is_away and not session.last_replicas else None

    @property
    def wants_to_leave(self) -> bool:
        """Whether the member hands over, or has handed over, because its process ends."""
        return self._session.wants_to_leave

    @property
    def still_needed(self) -> StillNeeded:
        """The coordinator's last answer to a draining member that the site still needs."""
        return self._session.still_needed

    def hurry(self) -> None:
        """Ends the waiting of `hand_over` and `leave`, now and later."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()

    def stay(self) -> None:
        """Cancels the departure after `hand_over`: the member stays."""
        with self._asking() as session:
            session.stay()

    def leave(
        self,
        timeout: float,
        on_progress: Callable[[StillNeeded], object] = _nothing,
        on_handed_over: Callable[[Handover], object] = _nothing,
    ) -> Handover:
        """Hands over as `hand_over` does, leaves the site, and stops the agent. Pending ends of regions are sent first.

        `on_handed_over` is called before the goodbye. Afterwards the metadata do not name this member any more, and
        buckets without another replica are empty.
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
        is_told = False
        with self._changed:
            if session.is_joined and not self._stopping:
                goodbye = session.say_goodbye()
                self._changed.notify_all()
                self._changed.wait_for(lambda: goodbye.done or self._stopping or session.problem, GOODBYE_S)
                is_told = goodbye.done
        self.stop()
        if not is_told and (word := session.goodbye_to_standby()) is not None:
            # The threads have ended: no question follows, and no record is stored any more.
            self._coordinator.say_goodbye(*word)
        return handover

    def stop(self) -> None:
        """Ends the threads without a goodbye. May be called twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._coordinator.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(STOP_TIMEOUT_S)

    # --- state ---

    @property
    def me(self) -> Incarnation:
        """The present incarnation of the member. A removal by the coordinator begins a new incarnation."""
        return self._session.me

    @property
    def tables(self) -> SiteTables:
        """The metadata at this member. A join as a new member replaces the object."""
        return self._session.tables

    @property
    def site_identity(self) -> str:
        """The site's identity. Empty: not received from a coordinator yet."""
        return self._session.remembered.site_identity

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has admitted the member, and has not removed the member since, as far as is known."""
        return self._session.is_joined

    @property
    def is_away(self) -> bool:
        """Whether no locator coordinates, as far as is known."""
        return bool(self._session.problem) or not self._session.is_joined

    @property
    def lease_until_us(self) -> int:
        return self._session.lease_until_us

    @property
    def member_timeout_us(self) -> int:
        """`member-timeout` in the coordinator's last reply: an unreachable member is removed after so long."""
        return self._session.member_timeout_us

    @property
    def received_us(self) -> int:
        """A time after which the coordinator has answered."""
        return self._session.received_us

    def status(self) -> dict[str, Any]:
        """Returns the state of the coordination as plain values: the coordinator, the lease, the pending requests."""
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
        """Returns whether the member is in the view. Waits until the member is in the view, no locator coordinates, or
        the time is over.

        Raises IllegalStateError if the coordinator refuses the member for good.
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
        """Registers this member as a host of the region. Returns whether the metadata show the region here, with the
        replicas of its buckets.

        Args:
            region: The region's name.
            attributes: The attributes that all members must have in common.
            weight: local-max-memory in MB; 0: the member is an accessor.
            timeout: The limit in seconds. None: HOST_TIMEOUT_S. Afterwards the agent repeats the request in the
                background.

        Raises:
            IllegalStateError: The coordinator refuses the region, or the member. The text has the reason.
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

    def unreachable(self, epochs: Mapping[BucketKey, Epoch], replica: Incarnation) -> None:
        """As `AgentSession.unreachable`."""
        with self._asking() as session:
            session.unreachable(epochs, replica)

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
        """Yields the session, under the lock. The threads look for new requests afterwards."""
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
                self._lines.works(self._requests)
            except ProtocolError as error:
                self._lines.warning("member %s: the answer of the coordinator cannot be used: %s", self.name, error)
            except PywanError as error:
                log.debug("member %s: %s", self.name, error)
            except Exception as error:
                self._lines.failed(self._requests, told_error(error))

    def _send(self, address: Address, batch: list[tuple[RequestKey, Request]], message: dict[str, Any]) -> None:
        reply = self._coordinator.tell(address, "coordination-ask", **message)
        with self._changed:
            self._session.take_answers(batch, reply)
            self._changed.notify_all()

    # --- the thread that joins, renews the lease and receives records ---

    def _run(self) -> None:
        session = self._session
        while True:
            with self._changed:
                while not self._stopping and not self._outcomes and (wait_us := session.next_news_us() - boot_us()) > 0:
                    self._changed.wait(wait_us / 1e6)
                if self._stopping:
                    return
                word = session.word_to_standby(boot_us())
            if self._outcomes:  # The thread has failed, and was started again.
                self._do()
                continue
            if word is not None:
                self._tell_standby(*word)
            if session.promise.round or session.news_due_us > boot_us():
                continue
            claims = self._claims()
            with self._changed:
                if not session.receive_claims(claims, boot_us()):
                    self._changed.notify_all()
                    continue
                question, foreign = session.question(boot_us()), session.foreign
                identity, term = session.remembered.site_identity, session.remembered.term
            try:
                reply = self._coordinator.ask(
                    question.op, identity, foreign, question.fields, term, self._receive_standby
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

    def _receive_standby(self, address: str, at: Any) -> None:
        with self._changed:
            self._session.receive_standby(address, at)

    def _tell_standby(self, address: str, fields: dict[str, Any]) -> None:
        """Tells the standby that the coordinator is unreachable. The standby may ask for a promise, or coordinate
        already."""
        try:
            reply = self._coordinator.tell_standby(address, fields)
            with self._changed:
                self._session.take_word_of_standby(reply, boot_us())
                self._changed.notify_all()
        except PywanError as error:
            log.debug("member %s: the standby does not answer: %s", self.name, error)

    def _do(self) -> None:
        """Does the pending work of a reply. A failed step is done again: the coordinator does not repeat the news."""
        while self._outcomes:
            match self._outcomes[0]:
                case Changed(tables):
                    # The next poll names the record as stored: by then the users of the metadata have acted, and the
                    # file has the record. The file comes second, as calls may wait for a new primary during a slow
                    # write to the disk.
                    with self._changed:
                        remembered = self._session.remembered
                    # A member that acts on the record must not forget that the earlier standby is out
                    # (docs/decisions/0107).
                    is_first = (tables.standby, remembered.term) != self._written
                    if is_first:
                        self._file.write(remembered)
                        self._written = tables.standby, remembered.term
                    self._on_change(tables)
                    if not is_first:
                        self._file.write(remembered)
                case Extended(until_us, received_us):
                    self._on_lease(until_us, received_us)
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
