"""Owns a simulated member: the product's agent, shared regions, replicas, replication links and calls, and what moves
them without threads and sockets."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pywan import _core
from pywan.base.nonces import NONCE_BYTES
from pywan.calls.table import BucketTable
from pywan.config.attributes import RegionAttributes
from pywan.coordination.agent_session import (
    AgentSession,
    Changed,
    Extended,
    GivenUp,
    Question,
    Remembered,
    tables_in,
)
from pywan.coordination.asked import Request, RequestKey
from pywan.coordination.messages import MayLeave
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    Epoch,
    Incarnation,
    Learner,
    MemberProfile,
    RegionAttributes as SharedAttributes,
)
from pywan.errors import IllegalStateError, ProtocolError, PywanError
from pywan.member.hosting import site_attributes, weight_of
from pywan.member.older_events import OLDER_EVENTS, NotNow, OlderEvents, Wanted, fields_of
from pywan.member.parked_events import PARKED_EVENTS
from pywan.member.sender_roles import ids_of
from pywan.member.sharing import SharedRegions
from pywan.protocol import between_members as wire
from pywan.replication.peer_session import PeerSession, asked_of
from pywan.replication.replicas_session import ReplicasSession
from pywan.transport.own_openings import OwnOpenings

from .coordinator import MEMBER_TIMEOUT_US
from .simulation import MS, End, Node

if TYPE_CHECKING:
    from .client import Client
    from .world import SiteWorld

# The product's times, as much shorter as the simulated `member-timeout` is.
CALL_TIMEOUT_US = 600 * MS  # Of a question to the coordinator.
QUESTION_TIMEOUT_US = 400 * MS  # Of a question of a takeover.
OPENING_TIMEOUT_US = 400 * MS  # Of a question whether an opening is of the member that it names.
LEAVE_TIMEOUT_US = 1000 * MS
GOODBYE_US = 200 * MS
WORK_US, REST_US = 10 * MS, 250 * MS  # As `MemberReplicas`.
AGAIN_US = 100 * MS  # As `CallPool`.
LOOK_US = 5 * MS  # A thread that looks every millisecond looks so often here.

CALL = struct.Struct("<IBBBBIIIHHIIQQQQ")
ANSWER = struct.Struct("<IBBBBIIIB3xQQ")
CRC_AT = 12  # In a call.
CALL_REGION, CALL_GET, CALL_CHANGE = 1, 2, 3
DONE = 0
DESTROYED = 2  # The last outcome of a change that did something.


class SimulatedRegion(_core.RegionCore):
    """A region with the parts of `MemberRegion` that sharing needs."""

    def __init__(self, name: str, clock: _core.Clock, *, attributes: RegionAttributes, **more: Any) -> None:
        self.attributes = attributes
        self.changelog: WatchedChangelog | None = None
        self.on_share: Callable[[WatchedChangelog, bool], object] = (
            _nothing  # Listeners begin to hear before it is shared.
        )

    def share(self, changelog: Any, route: Any, reads_replicas: bool = False, content: bool = False) -> None:
        self.on_share(changelog, reads_replicas)
        super().share(changelog, route, reads_replicas, content)
        self.changelog = changelog


class WatchedChangelog(_core.Changelog):
    """A change log that says when its member becomes primary of a bucket."""

    watch: Callable[[int, int, int, int], object]

    def set_role(self, bucket: int, role: int, timeline: int, epoch: int, *more: Any) -> None:
        super().set_role(bucket, role, timeline, epoch, *more)
        if role == _core.REPLICA_PRIMARY and timeline:
            self.watch(bucket, timeline, epoch, self.log_end(bucket))


class Stream:
    """A session over one end of a connection."""

    def __init__(self, member: Member, session: Any, end: End, over: Callable[[], object] = lambda: None) -> None:
        self.member, self.session, self.end, self.over = member, session, end, over
        end.receive, end.ended = self._receive, self._ended
        member.streams.append(self)

    def _receive(self, data: bytes) -> None:
        try:
            goes_on = self.session.receive_data(data, self.member.now_us)
        except ProtocolError as error:
            self.gave_up(str(error))
            goes_on = False
        if not goes_on:
            self.move()
            self.close()

    def move(self) -> bool:
        """Sends what the session has. Returns whether it had anything."""
        if not self.end.is_open:
            return False
        moved = False
        try:
            while not self.end.full_us() and (data := self.session.data_to_send(self.member.now_us)):
                self.sending(data)
                self.end.send(data)
                moved = True
        except ProtocolError as error:
            self.gave_up(str(error))
            self.close()
        return moved

    def gave_up(self, why: str) -> None:
        """The session gives the connection up."""
        self.member.world.watch.repl_link_gave_up(self.member, why)

    def sending(self, data: bytes) -> None:
        """Looks at what leaves."""

    def due_us(self) -> int | None:
        due: int | None = self.session.next_us(self.member.now_us)
        return due if due is None else max(due, self.member.now_us + self.end.full_us())

    def close(self) -> None:
        if self.end.is_open:
            self.end.close()
            self._ended()

    def _ended(self) -> None:
        if self in self.member.streams:
            self.member.streams.remove(self)
            self.end.receive = self.end.ended = _nothing
            self.over()


class Watched:
    """What a session of calls is asked and answers. The world hears of each answer."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._names: dict[int, str] = {}
        # By the call's id: the region, the bucket, the kind, and when it came.
        self._calls: dict[int, tuple[str, int, int, int]] = {}
        self._rest = b""  # The beginning of a call that is not whole yet.

    def asked(self, data: bytes) -> None:
        """Notes calls that have come, as far as they are whole. Nothing is noted behind a damaged one."""
        at, data = 0, self._rest + data
        while at + CALL.size <= len(data):
            _, kind, _, _, _, length, crc, call, region, _, bucket, *_ = CALL.unpack_from(data, at)
            end = at + CALL.size + length
            if end + -length % 8 > len(data):
                break
            head = data[at : at + CRC_AT] + bytes(4) + data[at + CRC_AT + 4 : end]
            if _core.crc32c(head, 0) != crc:
                break
            if kind == CALL_REGION:
                self._names[region] = data[at + CALL.size : end].decode()
            else:
                self._calls[call] = self._names[region], bucket, kind, self._member.now_us
            at = end + -length % 8
        self._rest = data[at:]

    def answers(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            _, _, status, outcome, _, length, _, call, *_ = ANSWER.unpack_from(data, at)
            at += ANSWER.size + length + -length % 8
            if call not in self._calls:  # It says why the connection ends, and answers nothing.
                continue
            region, bucket, kind, since_us = self._calls.pop(call)
            self._member.world.watch.waited(self._member, BucketKey(region, bucket), self._member.now_us - since_us)
            if status == DONE:
                is_change = kind == CALL_CHANGE and outcome <= DESTROYED
                self._member.world.watch.answered(self._member, BucketKey(region, bucket), is_change)


class Served(Stream):
    """The calls of one connection, at the member that serves them."""

    def __init__(self, member: Member, end: End, caller: tuple[Incarnation, int]) -> None:
        self._watched, self.caller = Watched(member), caller
        super().__init__(member, _core.CallSession(member.regions.get, caller[1]), end)

    def _receive(self, data: bytes) -> None:
        self._watched.asked(data)
        super()._receive(data)

    def sending(self, data: bytes) -> None:
        self._watched.answers(data)

    def due_us(self) -> int | None:
        due = super().due_us()
        return due if due is None else max(due, self.member.now_us + LOOK_US)


class Line:
    """A connection for calls, at the member that calls. Without an end it leads to this member itself."""

    def __init__(self, member: Member, end: End | None) -> None:
        self.line, self.member, self.end = _core.CallLine(None), member, end
        self._watched = Watched(member)
        self.here = _core.CallSession(member.regions.get, 0) if end is None else None
        if end is not None:
            end.receive, end.ended = self._receive, self.close

    def _receive(self, data: bytes) -> None:
        try:
            self.line.receive_data(data)
        except ProtocolError as error:
            self.member.world.watch.repl_link_gave_up(self.member, str(error))
            self.close()

    def move(self) -> bool:
        if self.end is not None and self.end.full_us():
            return False
        data = self.line.data_to_send()
        if self.here is None:
            if data and self.end is not None and self.end.is_open:
                self.end.send(data)
            return bool(data)
        now = self.member.now_us
        if data:
            self._watched.asked(data)
            self.here.receive_data(data, now)
        moved = bool(data)
        while answers := self.here.data_to_send(now):
            self._watched.answers(answers)
            self.line.receive_data(answers)
            moved = True
        return moved

    def due_us(self) -> int | None:
        full_us = self.end.full_us() if self.end is not None else 0
        due = self.here.next_us(self.member.now_us) if self.here is not None else None
        if full_us:
            return self.member.now_us + full_us
        return due if due is None else max(due, self.member.now_us + LOOK_US)

    def close(self) -> None:
        self.line.close()
        if self.end is not None:
            self.end.receive = self.end.ended = _nothing
            self.end.close()


class Lines:
    """The member's connections for calls, as `CallPool` has them."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.slots = _core.CallSlots(member.me.member_id)
        self.here = Line(member, None)
        self.lines: dict[Incarnation, Line] = {}
        self._opened_lines = 0
        self._opening: dict[Incarnation, list[Callable[[str | None], object]]] = {}
        self._failed: dict[Incarnation, tuple[int, str]] = {}
        self._gone: set[Incarnation] = set()

    @property
    def me(self) -> Incarnation:
        return self._member.me

    def open(self, to: Incarnation, then: Callable[[str | None], object]) -> None:
        """Calls `then(None)` when there is a connection, or `then` with the reason why there is none."""
        line = self.lines.get(to)
        if line is not None and not line.line.is_broken:
            then(None)
            return
        now = self._member.now_us
        failed_at, why = self._failed.get(to, (-AGAIN_US, ""))
        if to in self._gone or now - failed_at < AGAIN_US:
            then(why or "it has left the site")
            return
        waiting = self._opening.setdefault(to, [])
        waiting.append(then)
        if len(waiting) > 1:
            return
        self._opened_lines += 1
        agent = self._member.agent
        me, number = agent.me, self._opened_lines
        self._member.open(
            wire.CALLS,
            lambda word: wire.Opening(me, to, agent.site_identity, word, line=number),
            lambda end: self._opened(me, to, end),
            lambda words: self._not_opened(to, words),
        )

    def _opened(self, from_: Incarnation, to: Incarnation, end: End) -> None:
        if from_ != self.me or to in self._gone:
            end.close()
            self._not_opened(to, "it has left the site")
            return
        self.lines[to] = Line(self._member, end)
        for then in self._opening.pop(to):
            then(None)

    def _not_opened(self, to: Incarnation, why: str) -> None:
        self._failed[to] = self._member.now_us, why
        for then in self._opening.pop(to):
            then(why)

    def prepare(self, places: Mapping[Incarnation, Any]) -> None:
        for each in places if self._opened_lines else ():
            if each not in self.lines and each not in self._opening and each not in self._failed:
                self.open(each, lambda why: None)

    def keep_only(self, members: Mapping[Incarnation, Any]) -> None:
        gone = [each for each in self.lines if each not in members]
        for each in gone:
            self.lines.pop(each).close()
        self._gone = {*gone, *(each for each in self._gone if each not in members)}

    def begin_anew(self, me: Incarnation, site_identity: str) -> None:
        self.slots.begin_anew(me.member_id)
        for line in self.all():
            line.close()
        self.lines.clear()
        self.here = Line(self._member, None)

    def all(self) -> list[Line]:
        return [self.here, *self.lines.values()]


class Server:
    """The connections on which the member is called, as `CallServer` has them."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._newest: dict[tuple[Incarnation, int], int] = {}  # Of each caller and depth.
        self._view: set[Incarnation] = set()

    def refusal_of(self, told: wire.Opening) -> str:
        """Returns why a connection is not taken; "": it is."""
        if told.from_ not in self._view:
            return wire.stranger(told, self._member.me)
        if told.line < self._newest.get((told.from_, told.depth), 0):
            return "the caller has opened a later connection already"
        return ""

    def take(self, told: wire.Opening, end: End) -> None:
        """Takes a connection in the place of the caller's earlier ones."""
        caller = told.from_, told.depth
        self._newest[caller] = told.line
        self._end(lambda each: each.caller == caller)
        Served(self._member, end, caller)

    def keep_only(self, members: Mapping[Incarnation, Any]) -> None:
        self._view = set(members)
        self._newest = {caller: line for caller, line in self._newest.items() if caller[0] in self._view}
        self._end(lambda each: each.caller[0] not in self._view)

    def stop(self) -> None:
        self._end(lambda each: True)

    def _end(self, which: Callable[[Served], bool]) -> None:
        for stream in [each for each in self._member.streams if isinstance(each, Served) and which(each)]:
            stream.close()


class ReplLink:
    """The connection of a replication link to another member, made again and again, as `Peer` does it."""

    def __init__(self, replicas: Replicas, peer: PeerSession) -> None:
        self.replicas, self.peer, self.member = replicas, peer, replicas.member
        self.stream: Stream | None = None
        self.is_ending = self.is_asking = False
        self._connect()

    def _connect(self) -> None:
        if self.is_ending:
            return
        session = self.replicas.session
        self.member.open(
            wire.REPLICATION,
            lambda word: wire.Opening(session.me, self.peer.member, session.site_identity, word),
            self._opened,
            lambda words: self._broke(),
        )

    def _opened(self, end: End) -> None:
        if self.is_ending:
            end.close()
            return
        self.peer.connected()
        self.peer.repl_link.session.connected()
        self.stream = Stream(self.member, self.peer.repl_link.session, end, self._broke)

    def _broke(self) -> None:
        self.stream = None
        pause_us = self.peer.broke(self.member.now_us)
        if not self.is_ending:
            self.replicas.session.suspect(self.peer.member)
            self.replicas.wake()
            self.member.later(pause_us, self._connect)

    def ask(self) -> None:
        """Asks what is to be asked. One question is under way at a time."""
        if self.is_asking or self.is_ending or not self.peer.has_questions:
            return
        request = self.peer.next_request()
        assert request is not None
        self.is_asking = True

        def answered(reply: dict[str, Any]) -> None:
            self.is_asking = False
            try:
                self.replicas.session.answered(self.peer.member, request["region"], reply, self.member.now_us)
            except PywanError as error:
                self.member.world.note(f"{self.member.name}: answers of {self.peer.member}: {error}")
            self.replicas.wake()

        def failed() -> None:
            self.is_asking = False

        self.member.world.network.ask(
            self.member, self.peer.member, {"op": "adopt-buckets", **request}, answered, failed, QUESTION_TIMEOUT_US
        )

    def stop(self) -> None:
        self.is_ending = True
        if self.stream is not None:
            self.stream.close()


class Replicas:
    """Drives a ReplicasSession, as `MemberReplicas` does it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.session = ReplicasSession(member_timeout_us=MEMBER_TIMEOUT_US, memory=member.memory)
        self.repl_links: dict[Incarnation, ReplLink] = {}
        self.due_us = 0
        self.share, self.drop, self.find = self.session.share, self.session.drop, self.session.find
        self.followed, self.counts = self.session.followed, self.session.counts
        self.members_of_repl_links = self.session.members_of_repl_links

    def start(self, me: Incarnation, site_identity: str) -> None:
        self.session.me, self.session.site_identity = me, site_identity

    def take_view(self, profiles: tuple[MemberProfile, ...]) -> None:
        self.session.take_view(profiles)
        self.wake()

    def lease_renewed(self, member_timeout_us: int) -> None:
        self.session.lease_renewed(member_timeout_us)

    def take(self, name: str, buckets: Mapping[int, Bucket | None]) -> None:
        self.session.take(name, buckets, self.member.now_us)
        self.wake()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.session.answer(asked_of(request), self.member.now_us)

    def wake(self) -> None:
        """The thread looks soon."""
        self.due_us = min(self.due_us, self.member.now_us + self.member.world.simulation.rng.randrange(2 * MS))

    def work(self) -> None:
        """Does what is due."""
        is_busy = self.session.work(self.member.now_us)
        self.due_us = self.member.now_us + (WORK_US if is_busy else REST_US)
        self.follow()
        for report in self.session.take_reports():
            report(self.member.agent)

    def follow(self) -> None:
        came, gone = self.session.take_peers()
        for peer in came:
            self.repl_links[peer.member] = ReplLink(self, peer)
        for peer in gone:
            self.repl_links.pop(peer.member).stop()
        for repl_link in self.repl_links.values():
            repl_link.ask()

    def stop(self) -> None:
        self.session.is_stopping = True
        for repl_link in self.repl_links.values():
            repl_link.stop()
        for stream in [each for each in self.member.streams if isinstance(each.session, _core.ReplReceiverSession)]:
            stream.close()


class Asking:
    """The questions about older events that a queue asks in one round, and their answers."""

    def __init__(self) -> None:
        # By member, question, and how often the round has asked that. None: there was no answer.
        self.replies: dict[tuple[Incarnation, Wanted, int], dict[str, Any] | None] = {}
        self.pending: set[tuple[Incarnation, Wanted, int]] = set()
        self.waits = False  # Something that the round has asked is not answered yet.
        self._asked: Counter[tuple[Incarnation, Wanted]] = Counter()

    def begin(self) -> None:
        """The round begins, or is done again."""
        self.waits = False
        self._asked.clear()

    def question(self, member: Incarnation, wanted: Wanted) -> tuple[Incarnation, Wanted, int]:
        if wanted.through:  # Otherwise it asks for no events, perhaps in no round.
            self._asked[member, wanted] += 1
        return member, wanted, self._asked[member, wanted]

    def answered(self, question: tuple[Incarnation, Wanted, int], reply: dict[str, Any] | None) -> None:
        self.pending.discard(question)
        self.replies[question] = reply


class Sharing(SharedRegions):
    """The product's SharedRegions, with what is made in its own way here."""

    def __init__(self, member: Member) -> None:
        self._member = member
        super().__init__(member.agent, member.regions.get)
        self._asking: dict[tuple[str, str], Asking] = {}  # By region and sender.
        self.openings = self._openings = OwnOpenings(self._draw_word)

    def _draw_word(self) -> int:
        """A word that no other opening has. It is counted, as nonces are."""
        world = self._member.world
        world.words += 1
        return world.words

    def _make_replicas(self) -> Any:
        self._member.replicas = Replicas(self._member)
        return self._member.replicas

    def _make_calls(self, site_identity: str) -> Any:
        self._member.server = Server(self._member)
        return self._member.server

    def _make_pool(self, site_identity: str) -> Any:
        self._member.lines = Lines(self._member)
        return self._member.lines

    def _new_changelog(self, region: Any) -> Any:
        changelog = WatchedChangelog(
            region.bucket_count, region.shards, region.attributes.min_in_sync_replicas, self.budget
        )
        world, member = self._member.world, self._member

        def watch(bucket: int, timeline: int, epoch: int, last: int) -> None:
            world.watch.activated(member, BucketKey(region.name, bucket), timeline, epoch, last)

        changelog.watch = watch
        return changelog

    def _run_older(self, older: OlderEvents) -> None:
        asking = self._asking[older.region, older.sender] = Asking()

        def work() -> None:
            asking.begin()
            is_done = self.older_round(older)
            if not asking.waits:  # A later round asks again.
                asking.replies.clear()
            if not is_done:
                self._member.later(LOOK_US if asking.waits else AGAIN_US, work)

        self._member.later(0, work)

    def _ask_older(self, member: Incarnation, wanted: Wanted, begin: int) -> dict[str, Any]:
        """The question goes over the network. The round is done again until all its questions are answered, so that it
        has the answers of one moment, as a round of a thread that waits for each."""
        asking = self._asking[wanted.region, wanted.sender]
        question = asking.question(member, wanted)
        if question in asking.replies:
            reply = asking.replies[question]
            if reply is None:
                raise NotNow("it did not answer")
            return reply
        asking.waits = True
        if question not in asking.pending:
            asking.pending.add(question)
            self._member.world.network.ask(
                self._member,
                member,
                {"op": OLDER_EVENTS, **fields_of(wanted, begin)},
                lambda reply: asking.answered(question, reply),
                lambda: asking.answered(question, None),
                QUESTION_TIMEOUT_US,
            )
        raise NotNow("it was asked")

    def _tell_sender_changed(self, sender: Any) -> None:
        self._member.later(0, lambda: self.sender_changed(sender))

    def table(self, region: str) -> BucketTable | None:
        """Who is primary of what. None: this member alone has the region."""
        return self._regions[region].table


class SimulatedAgent:
    """Drives an AgentSession, with the calls of `Agent`."""

    def __init__(self, member: Member, me: Incarnation) -> None:
        self._member = member
        world = member.world
        self.session = AgentSession(
            me,
            host="127.0.0.1",
            port=1,
            site=1,
            version="1",
            process=member.process,
            remembered=world.folders.get(member.name, Remembered()),
            has_ended=world.has_ended,
            draw_id=lambda: world.simulation.rng.randrange(1, 1 << 32),
            draw_nonce=self._draw_nonce,
            reached=lambda: member.replicas.session.reached(member.now_us),
            followed=lambda: member.replicas.session.followed(),
        )
        self.session.away_since_us = 0
        self._has_address = False
        self._is_asking_news = self._is_sending = False
        self.destroy_region = self.session.destroy_region
        self.ready = self.session.ready

    def _draw_nonce(self) -> bytes:
        """A nonce that no other incarnation has. It is counted and not drawn: nobody guesses in a simulation."""
        world = self._member.world
        world.nonces += 1
        return world.nonces.to_bytes(NONCE_BYTES, "little")

    @property
    def me(self) -> Incarnation:
        return self.session.me

    @property
    def tables(self) -> Any:
        return self.session.tables

    @property
    def site_identity(self) -> str:
        return self.session.remembered.site_identity

    @property
    def is_joined(self) -> bool:
        return self.session.is_joined

    @property
    def lease_until_us(self) -> int:
        return self.session.lease_until_us

    @property
    def member_timeout_us(self) -> int:
        return self.session.member_timeout_us

    @property
    def received_us(self) -> int:
        return self.session.received_us

    def status(self) -> dict[str, Any]:
        session = self.session
        coordinator = session.remembered.coordinator
        return {"problem": session.problem, "joined": session.is_joined, "coordinator": coordinator}

    def host(self, region: str, attributes: SharedAttributes, weight: int, timeout: float | None = None) -> bool:
        """As `Agent.host`, without a wait: it returns whether the tables show the region now."""
        return self.session.host(region, attributes, weight).done

    def unhost(self, region: str) -> None:
        self._member.world.proofs.given_back(self.me, region)
        self.session.unhost(region)

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        self.session.caught_up(key, epoch, learner)

    def unreachable(self, epochs: Mapping[BucketKey, Epoch], replica: Incarnation) -> None:
        self._member.world.watch.gave_up(self._member, replica)
        self._member.world.statistics["reports of unreachable replicas"] += 1
        self.session.unreachable(epochs, replica)

    def suspect(self, member: Incarnation) -> None:
        self.session.suspect(member)

    def move(self) -> None:
        """Asks what is due."""
        member, now, session = self._member, self._member.now_us, self.session
        network = member.world.network
        if not self._is_asking_news and session.news_due_us <= now:
            question = session.question(now)
            self._is_asking_news = True
            network.ask(
                member,
                "coordinator",
                {"op": question.op, **question.fields},
                lambda reply: self._take_news(question, reply),
                self._news_failed,
                CALL_TIMEOUT_US,
            )
        due = session.next_request_us()
        if not self._is_sending and self._has_address and due is not None and due <= now:
            batch = session.take_due(now)
            self._is_sending = True
            network.ask(
                member,
                "coordinator",
                {"op": "coordination-ask", **session.encoded_requests(batch)},
                lambda reply: self._take_answers(batch, reply),
                self._not_sent,
                CALL_TIMEOUT_US,
            )

    def due_us(self) -> int | None:
        due = [] if self._is_asking_news else [self.session.news_due_us]
        request = self.session.next_request_us()
        if request is not None and not self._is_sending and self._has_address:
            due.append(request)
        return min(due, default=None)

    def _take_answers(self, batch: list[tuple[RequestKey, Request]], reply: dict[str, Any]) -> None:
        self._is_sending = False
        self.session.take_answers(batch, reply)

    def _not_sent(self) -> None:
        self._is_sending = False

    def _news_failed(self) -> None:
        self._is_asking_news = self._has_address = False
        self.session.news_failed("nobody answers", self._member.now_us)

    def _take_news(self, question: Question, reply: dict[str, Any]) -> None:
        self._is_asking_news, self._has_address = False, True
        member = self._member
        for outcome in self.session.take_news(question, reply, tables_in(reply), member.now_us):
            member.turn += 1
            match outcome:
                case Changed(tables):
                    member.world.folders[member.name] = self.session.remembered
                    member.sharing.take(tables)
                    member.world.proofs.stored(member)
                case Extended(until_us, received_us):
                    member.sharing.take_lease(until_us, received_us)
                case GivenUp(me):
                    member.world.renamed(member, me)
                    member.sharing.take_new_incarnation(me)
        self.session.settle()


class Member(Node):
    """A process of a member. Another process of the same name is another object."""

    def __init__(self, world: SiteWorld, name: str, process: str) -> None:
        super().__init__(world.simulation, name)
        self.world, self.process = world, process
        self.streams: list[Stream] = []
        self.clients: list[Client] = []
        self.regions: dict[str, SimulatedRegion] = {}
        self.replicas: Replicas
        self.lines: Lines | None = None
        self.server: Server
        self.clock_of_stamps = _core.Clock()
        self.memory = _core.MemoryLimit(name, 1 << 40, 1 << 40, 1 << 39)  # It is above it when a world says so.
        self._wall_ms = 1_700_000_000_000 + world.simulation.rng.randrange(-5000, 5000) + world.ahead_ms.get(name, 0)
        self.member_id = world.simulation.rng.randrange(1, 1 << 32)
        self.agent = SimulatedAgent(self, Incarnation(name, self.member_id))
        self.sharing = Sharing(self)
        self.turn = 0  # Counts the tables and incarnations that the member has got.
        self.is_leaving = False
        self._leave_until_us = 0
        self._says_goodbye: Request | None = None
        self._timer_us: int | None = None
        world.network.nodes[self.agent.me] = self
        self.later(0, lambda: None)

    @property
    def me(self) -> Incarnation:
        return self.agent.me

    @property
    def now_us(self) -> int:
        """The member's clock. The core has it too."""
        return _core.monotonic_us()

    def later(self, delay_us: int, what: Callable[[], object]) -> None:
        """Does something after a time of the member's own clock."""
        self.simulation.after(int(delay_us / self._drift), lambda: self.do(what))

    def do(self, what: Callable[[], object]) -> None:
        self.clock_of_stamps.set_time(self._wall_ms + int(self.simulation.now_us * self._drift) // 1000)
        super().do(what)

    # Regions

    def host(self, made: RegionAttributes) -> None:
        """Creates a region. It is there when the site has allowed it."""
        if made.name in self.regions:
            return
        request = self.agent.session.host(made.name, site_attributes(made, senders=ids_of(made)), weight_of(made))

        def look() -> None:
            if request.refused:
                self.agent.session.give_up_hosting(made.name)
                self.world.note(f"{self.me} may not create {made.name}: {request.refused}")
            elif request.done:
                self._create(made)
            elif not any(each is request for each in self.agent.session.asked.requests.values()) and not self._is_asked(
                made
            ):
                # The member has become another one meanwhile, and its operator may have altered the region.
                self.host(self.world.attributes_of(made.name))
            else:
                self.later(20 * MS, look)

        look()

    def _is_asked(self, made: RegionAttributes) -> bool:
        return ("host", made.name) in self.agent.session.asked.requests

    def _create(self, made: RegionAttributes) -> None:
        if made.name in self.regions or self.is_leaving:
            return
        region = SimulatedRegion(
            made.name,
            self.clock_of_stamps,
            site=1,
            member=self.member_id,
            buckets=made.total_num_buckets,
            attributes=made,
        )
        region.limit_memory(self.memory)
        region.on_share = lambda changelog, each_tells: self.world.shares(self, made.name, changelog, each_tells)
        self.regions[made.name] = region
        self.world.note(f"{self.me} creates {made.name}")
        self.world.creates(self, region)
        self.sharing.hosted(region)

    # Others

    def asked(self, request: dict[str, Any], reply: Callable[[dict[str, Any] | None], object]) -> None:
        op = request.pop("op")
        if op == wire.OWNS_OPENING:
            reply(self.sharing.answer_opening(request))
            return
        if op == PARKED_EVENTS:
            reply(self.world.parked_answer(self, request))
            return
        if op == OLDER_EVENTS:
            reply(self.sharing.answer_older(request, lambda id: self.world.queue_of(self, id)))
            return
        try:
            reply(self.sharing.answer(request))
        except IllegalStateError:
            reply(None)

    def open(
        self,
        protocol: bytes,
        opening_of: Callable[[int], wire.Opening],
        opened: Callable[[End], object],
        failed: Callable[[str], object],
    ) -> None:
        """Opens a connection. `opening_of`: the opening that says this word."""
        draft = opening_of(1)
        word = self.sharing.openings.begin(protocol, draft.from_, draft.to)

        def over(what: Callable[[], object]) -> None:
            self.sharing.openings.end(word)
            what()

        self.world.network.connect(
            self,
            draft.to,
            protocol,
            wire.encode_opening(protocol, opening_of(word)),
            lambda end: over(lambda: opened(end)),
            lambda words: over(lambda: failed(words)),
        )

    def accept(self, protocol: bytes, opening: bytes, end: End, answer: Callable[[str], object]) -> None:
        """Takes a connection when the member that it names has said that it is its own. `answer` gets the reason why
        not, or ""."""
        told = wire.decode_opening(opening[wire.HEAD_BYTES :])
        self.sharing._connections()
        refusal = self._refusal_of(protocol, told)
        if refusal:
            answer(refusal)
            return
        claim = wire.Claim(protocol, told.word, told.from_, told.to)
        self.world.network.ask(
            self,
            told.from_,
            {"op": wire.OWNS_OPENING, **wire.claim_request(claim)},
            lambda reply: answer(self._take(protocol, told, end) if wire.is_own(reply) else "it is not its own"),
            lambda: answer("it was asked whether it is its own, and did not say so"),
            OPENING_TIMEOUT_US,
        )

    def _refusal_of(self, protocol: bytes, told: wire.Opening) -> str:
        if protocol == wire.REPLICATION:
            return self.replicas.session.refusal_of_repl_link(told)
        return wire.refusal_of(told, self.me, self.agent.site_identity) or self.server.refusal_of(told)

    def _take(self, protocol: bytes, told: wire.Opening, end: End) -> str:
        """Takes a connection, or says why not: the tables may have changed while the other member was asked."""
        refusal = self._refusal_of(protocol, told) or ("" if end.is_open else "it broke")
        if refusal:
            return refusal
        if protocol == wire.CALLS:
            self.server.take(told, end)
            return ""
        replicas = self.replicas
        receiver = replicas.session.repl_link_opened(told.from_)
        Stream(self, receiver.open_session(), end, lambda: replicas.session.repl_link_closed(receiver, self.now_us))
        return ""

    # Time

    def pump(self) -> None:
        for _ in range(100):
            moved = False
            if self.replicas.due_us <= self.now_us:
                self.replicas.work()
            self.replicas.follow()
            self.agent.move()
            for stream in list(self.streams):
                moved = stream.move() or moved
            for line in self.lines.all() if self.lines is not None else ():
                moved = line.move() or moved
            for client in list(self.clients):
                moved = client.move() or moved
            if not moved:
                break
        else:
            self.world.must(False, f"{self.me} finds no end of its work")
        self.world.moved(self)
        if self.is_leaving:
            self._leave()
        if not self.is_dead:
            self._set_timer()

    def _set_timer(self) -> None:
        due = [self.replicas.due_us, self.agent.due_us(), *(each.due_us() for each in self.streams)]
        due += [each.due_us() for each in (self.lines.all() if self.lines is not None else ())]
        due += [each.due_us() for each in self.clients]
        first = max(min(each for each in due if each is not None), self.now_us)
        at_us = self.simulation.now_us + max(self.until(first), 50)
        if self._timer_us is None or at_us < self._timer_us or self._timer_us <= self.simulation.now_us:
            self._timer_us = at_us
            self.simulation.after(at_us - self.simulation.now_us, lambda: self._tick(at_us))

    def _tick(self, at_us: int) -> None:
        if self._timer_us == at_us:
            self._timer_us = None
            self.do(lambda: None)

    # The end

    def leave(self) -> None:
        """Begins to leave the site, as `Agent.leave`."""
        self.is_leaving = True
        self._leave_until_us = self.now_us + LEAVE_TIMEOUT_US
        self.later(LEAVE_TIMEOUT_US, lambda: None)
        session = self.agent.session
        session.asked.clear()
        if session.is_joined and session.tables.members.keys() - {session.me}:
            session.leave()
        else:
            session.may_leave = MayLeave()

    def _leave(self) -> None:
        session = self.agent.session
        is_late = self.now_us >= self._leave_until_us
        if self._says_goodbye is None and (session.may_leave or is_late or not session.is_joined):
            self.world.statistics["left in order" if session.may_leave else "left in haste"] += 1
            self._says_goodbye = session.say_goodbye()
            self._leave_until_us = self.now_us + GOODBYE_US
            self.later(GOODBYE_US, lambda: None)
            self.agent.move()
        elif self._says_goodbye is not None and (self._says_goodbye.done or is_late):
            self.world.end(self)

    def end(self) -> None:
        """Ends the process."""
        self.is_dead = True
        for client in list(self.clients):
            client.end()
        if self.lines is not None:
            for line in self.lines.all():
                line.line.close()
        self.streams.clear()


def _nothing(*_: object) -> None:
    pass
