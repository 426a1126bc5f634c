"""Keeps the parked events of a gateway sender equal in the members of a site (docs/decisions/0108). The module owns the
choice of the leader by bucket, the comparison of a holder with the leader, and the propagation of a replay or a drop.
Code with questions to other members is written as steps: a generator yields (member, question) and receives the reply,
or None without a reply."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.lines import Lines
from pywan.base.threads import start_essential
from pywan.config.values import to_bool, to_int
from pywan.coordination.tables import Incarnation, is_role
from pywan.errors import ConnectivityError, ProtocolError, PywanError
from pywan.gateway.parked import Led
from pywan.gateway.sender_core import SenderCore
from pywan.member.feeding import running, sender_of
from pywan.member.sender_roles import RoleAgent, RoleSharing, is_shared_sender, role_name
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.sender")

PARKED_EVENTS = "parked-events"  # The message.
COMPARE_S = 5.0  # A holder compares with the leading members at least so often.
LOOK_S = 0.05  # Between two checks for acknowledged replays, and between any two comparisons.
MISSED_S = 0.2  # Between two checks for an announced parked event that was not kept at once.
TIMEOUT_S = 10.0  # Timeout of one reply.
MARKS_MAX = 1 << 16  # Marks in one message: 1 MiB.
EVENTS_BYTES = 1 << 20  # Limit of the events in one reply. A single longer event is allowed.
PIECE_BYTES = 8 << 20  # A longer reply is sent in pieces of this size.
LENGTH_MAX = 1 << 32
AGAIN_S = 0.1  # Pause before a new question after a missing reply.
COMPARING = "comparing parked events with other members"
BUCKETS_MAX = 4096

Question = tuple[Incarnation | None, dict[str, Any]]  # None: a pause.
T = TypeVar("T")
Steps = Generator[Question, "Mapping[str, Any] | None", T]

_PAUSE: Question = (None, {})


@dataclass
class _Region:
    """Cluster metadata about the parked events of one region and sender."""

    leaders: list[Incarnation | None]  # By bucket. None: no member can lead now.
    held: bytes  # One byte by bucket: 1 for a bucket held by this member.
    led: bytes  # 1 if this member leads the bucket.
    alone: bytes  # 1 if this member leads, and no second member holds the bucket.

    def of_nobody(self) -> _Region:
        nothing = bytes(len(self.led))
        return _Region([None] * len(nothing), nothing, nothing, nothing)


@dataclass
class _Known:
    """The metadata of one sender, after some number of calls of `decided`."""

    generation: int = 0
    me: Incarnation | None = None
    regions: dict[str, _Region] = field(default_factory=dict)
    others: list[Incarnation] = field(default_factory=list)  # The remaining members with the sender.


@dataclass
class Found:
    """The result of a comparison."""

    unreachable: set[str] = field(default_factory=set)  # The members without a reply.
    differs: bool = False  # This member or a leader had a gap.


class ParkedSharing:
    """Any thread may call the methods. The owner runs `round` soon after a call of `look`, and every COMPARE_S."""

    def __init__(
        self,
        agent: RoleAgent,
        sharing: RoleSharing,
        cores: Callable[[], Iterable[SenderCore]],
        run: Callable[[Steps[Any]], Any],
        look: Callable[[], None],
    ) -> None:
        """`run`: executes steps to their end. `look`: makes `round` run soon, and returns at once."""
        self._agent, self._sharing, self._cores, self._run = agent, sharing, cores, run
        self.look = look
        self._generation = 0  # Counts the calls of `decided`.
        self._lock = threading.Lock()  # Guards the following fields.
        self._known: dict[str, _Known] = {}  # By sender.
        # The marks of events that this leader does not have. The key is sender, region, offering member, and the
        # compared part of the marks.
        self._offered: dict[tuple[str, str, Incarnation, int], bytes] = {}

    def decided(self) -> None:
        """Called after the member adopted newer metadata as a whole."""
        with self._lock:
            self._generation += 1
        self.look()

    def add(self, core: SenderCore) -> None:
        """Called after a sender was made on this member."""
        if is_shared_sender(core.attributes):
            core.parked.share(core.queue, lambda: self.led(core))

    # Leaders

    def led(self, core: SenderCore) -> Led:
        return [(name, region.led) for name, region in self._view(core).regions.items()]

    def alone(self, core: SenderCore) -> Led:
        return [(name, region.alone) for name, region in self._view(core).regions.items()]

    def _view(self, core: SenderCore) -> _Known:
        """Returns the newest metadata of a sender. For a removed region, returns the last metadata, as long as this
        member is the same incarnation. A view made during the adoption of new metadata is made again after
        `decided`."""
        me = self._agent.me
        with self._lock:
            known = self._known.get(core.id)
            if known is not None and (known.generation, known.me) == (self._generation, me):
                return known
            tables = self._agent.tables
            members, attributes = list(tables.members.values()), dict(list(tables.regions.items()))
            hosts = {each.incarnation for each in members if role_name(core.id) in dict(each.hosting)}
            found = _Known(self._generation, me, {}, sorted(hosts - {me}))
            if known is not None:
                is_same = known.me == me
                found.regions = {name: each if is_same else each.of_nobody() for name, each in known.regions.items()}
            runs = running(members).get(core.id, set())
            primary = None if core.attributes.parallel else self._sharing.sender_primary(core.id)
            buckets: dict[str, dict[int, Any]] = {}
            for key, bucket in list(tables.buckets.items()):
                if not is_role(key.region):
                    buckets.setdefault(key.region, {})[key.number] = bucket
            for name, of_region in buckets.items():
                if name not in attributes:
                    continue
                count = attributes[name].total_num_buckets
                leaders: list[Incarnation | None] = [None] * count
                held, led, alone = bytearray(count), bytearray(count), bytearray(count)
                for number, bucket in of_region.items():
                    leader = bucket.primary
                    if not core.attributes.parallel:
                        leader = sender_of(bucket, primary, runs) or leader
                    if leader is not None and leader not in hosts and leader != me:
                        leader = next((each for each in sorted(bucket.isr) if each in hosts), None)
                    leaders[number] = leader
                    held[number] = me in bucket.named
                    led[number] = leader == me
                    alone[number] = leader == me and not (set(bucket.isr) & hosts) - {me}
                found.regions[name] = _Region(leaders, bytes(held), bytes(led), bytes(alone))
            self._known[core.id] = found
            return found

    # Comparisons

    def round(self) -> Steps[Found]:
        """Compares the parked events here with the leading members, and lets acknowledged replays leave."""
        found = Found()
        for core in [each for each in self._cores() if is_shared_sender(each.attributes)]:
            yield from self._take_offered(core, found)
            if core.parked.are_replayed:
                yield from self._tell_left(core, core.parked.finish(core.queue))
            view = self._view(core)
            asked: dict[Incarnation, list[tuple[str, bytes]]] = {}
            for name, region in view.regions.items():
                for leader, buckets in self._of_others(core, name, region, view).items():
                    asked.setdefault(leader, []).append((name, buckets))
            for leader, regions in sorted(asked.items()):
                if not (yield from self._compare(core, leader, regions, found)):
                    found.unreachable.add(leader.name)
        return found

    def _of_others(self, core: SenderCore, name: str, region: _Region, view: _Known) -> dict[Incarnation, bytes]:
        """Returns by leader the buckets with their queue or parked events in this member."""
        has = {bucket for bucket, _, _ in core.parked.sums(name, len(region.leaders))}
        found: dict[Incarnation, bytearray] = {}
        for number, leader in enumerate(region.leaders):
            if leader in view.others and (region.held[number] or number in has):
                assert leader is not None
                found.setdefault(leader, bytearray(len(region.leaders)))[number] = 1
        return {leader: bytes(buckets) for leader, buckets in found.items()}

    def _compare(
        self, core: SenderCore, leader: Incarnation, regions: list[tuple[str, bytes]], found: Found
    ) -> Steps[bool]:
        """Compares the sums of buckets first, and then the marks of the differing buckets. Returns whether the leader
        replied."""
        told = [
            [name, buckets, [list(each) for each in core.parked.sums(name, len(buckets)) if buckets[each[0]]]]
            for name, buckets in regions
        ]
        reply = yield leader, {"what": "sums", "sender": core.id, "regions": told}
        if reply is None:
            return False
        differing = {name: (buckets, count) for name, buckets, count in _differing(reply)}
        for name, asked in regions:
            different, count = differing.get(name, (b"", 0))
            if len(different) != len(asked):
                different = bytes(len(asked))
            found.differs |= any(different)
            strange = self._strange(core, name, len(asked))
            held = bytes(each and not other for each, other in zip(different, strange, strict=True))
            if not (yield from self._compare_marks(core, leader, name, held, count)):
                return False
            # Even if the leader has exactly the same events, this member has to forget the events.
            strange = bytes(each and other for each, other in zip(asked, strange, strict=True))
            if not (yield from self._compare_marks(core, leader, name, strange, count, forgets=True)):
                return False
        return True

    def _strange(self, core: SenderCore, name: str, buckets: int) -> bytes:
        """Returns one byte for each bucket of a region: 1 for a bucket neither held nor led by this member."""
        region = self._view(core).regions.get(name)
        if region is None or len(region.held) != buckets:
            return bytes(buckets)
        return bytes(not held and not led for held, led in zip(region.held, region.led, strict=True))

    def _compare_marks(
        self, core: SenderCore, leader: Incarnation, name: str, buckets: bytes, count: int, *, forgets: bool = False
    ) -> Steps[bool]:
        """Compares the marks of some buckets. The leader has at most `count` marks in the buckets. If `forgets`, the
        leader fetches its gap, and this member forgets the events known to the leader. Returns whether the leader
        replied."""
        if not any(buckets):
            return True
        mine = sum(each[1] for each in core.parked.sums(name, len(buckets)) if buckets[each[0]])
        parts = 1 + 2 * max(mine, count) // MARKS_MAX
        for part in range(parts):
            marks = core.parked.marks(name, buckets, part, parts)
            question = {"sender": core.id, "region": name, "buckets": buckets, "part": part, "parts": parts}
            reply = yield leader, {"what": "marks", **question, "marks": marks, "from": list(self._agent.me)}
            if reply is None:
                return False
            if "left" not in reply:
                continue
            core.parked.leave(_bytes(reply, "left"))
            if forgets:
                core.parked.forget(b"".join(sorted(_each(marks) - _each(_bytes(reply, "lacking")))))
                continue
            gone, lacking = core.parked.lacking(_bytes(reply, "more"))
            if gone:
                yield leader, {"what": "left", "sender": core.id, "marks": gone}
            yield from self._fetch(core, leader, name, lacking)
        return True

    def _take_offered(self, core: SenderCore, found: Found) -> Steps[None]:
        """Fetches events of other members for buckets led by this member."""
        with self._lock:
            offered = [(key, self._offered.pop(key)) for key in list(self._offered) if key[0] == core.id]
        for (_, name, member, _), marks in offered:
            _, lacking = core.parked.lacking(marks)
            if not (yield from self._fetch(core, member, name, lacking)):
                found.unreachable.add(member.name)

    def _fetch(self, core: SenderCore, member: Incarnation, name: str, marks: bytes) -> Steps[bool]:
        """Fetches the events with the given marks from another member. Returns whether the member replied."""
        while marks:
            some, events, begin = marks[: MARKS_MAX * _core.PARKED_MARK_BYTES], b"", 0
            while True:
                reply = yield member, {"what": "copy", "sender": core.id, "marks": some, "begin": begin}
                if reply is None:
                    return False
                length = to_int(reply.get("length", 0), "length", 0, LENGTH_MAX)
                looked = to_int(reply.get("looked", 0), "looked", 0, MARKS_MAX)
                events += _bytes(reply, "events") if length else b""
                if len(events) >= length or len(events) == begin:
                    break
                begin = len(events)
            if looked == 0 or len(events) != length:
                return True  # An event has left meanwhile. The next comparison will tell.
            core.parked.take(name, events)
            marks = marks[looked * _core.PARKED_MARK_BYTES :]
        return True

    def _tell_left(self, core: SenderCore, marks: bytes) -> Steps[None]:
        """Tells the other members the marks of removed events. A member without a reply learns the marks by a later
        comparison."""
        size = MARKS_MAX * _core.PARKED_MARK_BYTES
        for begin in range(0, len(marks), size):
            for member in self._view(core).others:
                yield member, {"what": "left", "sender": core.id, "marks": marks[begin : begin + size]}

    # Requests of users

    def records(self, core: SenderCore, limit: int) -> list[tuple[bytes, str]]:
        """Returns up to `limit` parked events of every other leading member, with the reason in words."""
        found: list[tuple[bytes, str]] = self._run(self._records(core, limit))
        return found

    def _records(self, core: SenderCore, limit: int) -> Steps[list[tuple[bytes, str]]]:
        found: list[tuple[bytes, str]] = []

        def ask(member: Incarnation) -> Steps[bool]:
            got: list[tuple[bytes, str]] = []
            while len(got) < limit:
                reply = yield member, {"what": "shown", "sender": core.id, "limit": limit, "begin": len(got)}
                if reply is None:
                    return False
                events = reply.get("events")
                if not events:
                    break
                got += [(_core.of_region(record, region), reason) for region, reason, record in events]
            found.extend(got)
            return True

        yield from self._ask_leaders(core, ask, lambda: f"{len(found)} parked events of others were found")
        return found

    def replay(self, core: SenderCore, count: int, *, force: bool) -> int:
        """Makes the other members replay their led events. Returns the number of replayed events plus `count`."""
        question = {"what": "replay", "force": force}
        return int(self._run(self._count(core, question, count, "queued again")))

    def drop(self, core: SenderCore, count: int) -> int:
        """Makes the other members drop their led events. Returns the number of dropped events plus `count`."""
        return int(self._run(self._count(core, {"what": "drop"}, count, "dropped")))

    def drop_here(self, core: SenderCore) -> int:
        """Drops the events led by this member, and tells the other members."""
        marks = core.parked.drop_led()
        self._run(self._tell_left(core, marks))
        return len(marks) // _core.PARKED_MARK_BYTES

    def _count(self, core: SenderCore, question: dict[str, Any], count: int, done: str) -> Steps[int]:
        total = count

        def ask(member: Incarnation) -> Steps[bool]:
            nonlocal total
            reply = yield member, {**question, "sender": core.id}
            if reply is not None:
                total += to_int(reply.get("count", 0), "count", 0, LENGTH_MAX)
            return reply is not None

        yield from self._ask_leaders(core, ask, lambda: f"{total} parked events were {done}")
        return total

    def _ask_leaders(
        self, core: SenderCore, ask: Callable[[Incarnation], Steps[bool]], done: Callable[[], str]
    ) -> Steps[None]:
        """Asks all other leading members, including members that became leaders meanwhile. ConnectivityError: a member
        did not reply within the timeout of a call; the remaining members did as asked."""
        until_us = _core.monotonic_us() + int(self._sharing.call_timeout_s * 1e6)
        answered: set[Incarnation] = set()
        while True:
            view = self._view(core)
            leaders = {each for region in view.regions.values() for each in region.leaders}
            undecided = any(
                leader is None and held
                for region in view.regions.values()
                for leader, held in zip(region.leaders, region.held, strict=True)
            )
            left = sorted(each for each in leaders if each in view.others and each not in answered)
            for member in left:
                if (yield from ask(member)):
                    answered.add(member)
            left = [each for each in left if each not in answered]
            if not left and not undecided:
                return
            if _core.monotonic_us() >= until_us:
                who = ", ".join(each.name for each in left) or "to be elected for some buckets"
                raise ConnectivityError(
                    f"{core.what}: {done()}, and the member that leads others did not answer: {who}; repeat it"
                )
            yield _PAUSE

    # Answers

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers another member. Empty: unknown sender, or the two members know different leaders."""
        id, what = request.get("sender"), request.get("what")
        core = next((each for each in self._cores() if each.id == id and is_shared_sender(each.attributes)), None)
        if core is None:
            return {}
        if what == "sums":
            return self._answer_sums(core, request)
        if what == "marks":
            return self._answer_marks(core, request)
        if what == "copy":
            begin = to_int(request.get("begin"), "begin", 0, LENGTH_MAX)
            events, looked = core.parked.copy(_bytes(request, "marks"), EVENTS_BYTES)
            return {"events": events[begin : begin + PIECE_BYTES], "length": len(events), "looked": looked}
        if what == "left":
            core.parked.leave(_bytes(request, "marks"))
            return {}
        if what == "shown":
            return self._answer_shown(core, request)
        if what == "replay":
            return {"count": core.replay_parked_here(force=to_bool(request.get("force"), "force"))}
        if what == "drop":
            return {"count": core.drop_parked_here()}
        raise ProtocolError(f"{PARKED_EVENTS}: {what!r} is no question")

    def _answer_sums(self, core: SenderCore, request: Mapping[str, Any]) -> dict[str, Any]:
        differ = []
        for name, buckets, sums in _regions(request):
            region = self._view(core).regions.get(name)
            if region is None or len(region.led) != len(buckets):
                continue
            theirs = {bucket: (count, each) for bucket, count, each in sums}
            mine = {bucket: (count, each) for bucket, count, each in core.parked.sums(name, len(buckets))}
            different = bytes(
                wanted and led and theirs.get(number) != mine.get(number)
                for number, (wanted, led) in enumerate(zip(buckets, region.led, strict=True))
            )
            if any(different):
                differ.append([name, different, sum(count for b, (count, _) in mine.items() if different[b])])
        return {"differ": differ}

    def _answer_marks(self, core: SenderCore, request: Mapping[str, Any]) -> dict[str, Any]:
        name, buckets, asker = request.get("region"), _bytes(request, "buckets"), _member(request.get("from"))
        region = self._view(core).regions.get(name) if isinstance(name, str) else None
        if region is None or len(region.led) != len(buckets):
            return {}
        assert isinstance(name, str)
        if any(wanted and not led for wanted, led in zip(buckets, region.led, strict=True)):
            return {}  # The metadata of the two members differ.
        parts = to_int(request.get("parts"), "parts", 1, 1 << 20)
        part = to_int(request.get("part"), "part", 0, parts - 1)
        left, lacking, more = core.parked.compare(name, buckets, part, parts, _bytes(request, "marks"))
        if lacking:
            with self._lock:
                self._offered[core.id, name, asker, part] = lacking
            self.look()
        return {"left": left, "lacking": lacking, "more": more}

    def _answer_shown(self, core: SenderCore, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = to_int(request.get("limit"), "limit", 0, 2**31 - 1)
        begin = to_int(request.get("begin"), "begin", 0, 2**31 - 1)
        events: list[list[Any]] = []
        size = 0
        for record, reason in core.parked.records(limit)[begin:]:
            if events and size + len(record) > EVENTS_BYTES:
                break
            size += len(record)
            events.append([_core.region_name(_core.record_fields(record)["region"]) or "?", reason, record])
        return {"events": events}


def _each(marks: bytes) -> set[bytes]:
    size = _core.PARKED_MARK_BYTES
    return {marks[at : at + size] for at in range(0, len(marks), size)}


def _bytes(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise ProtocolError(f"{PARKED_EVENTS}: {name} is no bytes")
    return value


def _member(value: Any) -> Incarnation:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ProtocolError(f"{PARKED_EVENTS}: it does not say from whom it is")
    return Incarnation(value[0], to_int(value[1], "from", 0, (1 << 64) - 1))


def _regions(request: Mapping[str, Any]) -> Iterable[tuple[str, bytes, list[tuple[int, int, int]]]]:
    """Returns the regions of a question for sums: name, buckets, and (bucket, count, sum) of the buckets with
    events."""
    regions = request.get("regions")
    for each in regions if isinstance(regions, list) else ():
        match each:
            case [str(name), bytes(buckets), list(sums)] if 0 < len(buckets) <= BUCKETS_MAX:
                yield name, buckets, [_sums(one) for one in sums]
            case _:
                raise ProtocolError(f"{PARKED_EVENTS}: {each!r:.80} are no sums")


def _sums(value: Any) -> tuple[int, int, int]:
    match value:
        case [int(bucket), int(count), int(sum)]:
            return bucket, count, sum
    raise ProtocolError(f"{PARKED_EVENTS}: {value!r:.80} is no sum")


def _differing(reply: Mapping[str, Any]) -> Iterable[tuple[str, bytes, int]]:
    for each in reply.get("differ", ()):
        match each:
            case [str(name), bytes(buckets), int(count)]:
                yield name, buckets, count
            case _:
                raise ProtocolError(f"{PARKED_EVENTS}: {each!r:.80} does not say what differs")


class ParkedRounds:
    """Runs the comparisons of a member in a separate thread, and sends questions over control connections."""

    def __init__(
        self,
        agent: RoleAgent,
        sharing: RoleSharing,
        cores: Callable[[], Collection[SenderCore]],
        way: Way = PLAIN.cluster,
    ) -> None:
        self._agent, self._way = agent, way
        self._wanted, self._ending = threading.Event(), threading.Event()
        self.sharing = ParkedSharing(agent, sharing, cores, self.run, self._wanted.set)
        self._cores = cores
        self._is_started = False  # Guarded by the lock of the member's senders.
        self._lines = Lines(log)

    def add(self, core: SenderCore) -> None:
        """Called after a sender was made on this member."""
        self.sharing.add(core)
        if is_shared_sender(core.attributes) and not self._is_started:
            self._is_started = True
            start_essential("comparing parked events", "parked events", self._keep)

    def stop(self) -> None:
        self._ending.set()
        self._wanted.set()

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._wanted.clear()
            missed = self._missed()
            self.round()
            self._ending.wait(LOOK_S)
            until = time.monotonic() + COMPARE_S
            while time.monotonic() < until and self._missed() == missed:
                if any(each.parked.are_replayed for each in self._cores()) or self._wanted.wait(MISSED_S):
                    break

    def _missed(self) -> int:
        return sum(each.queue.parked_missed for each in self._cores())

    def hand_over(self, until: float) -> None:
        """Returns when the leading members have all parked events of this member, at the time `until` at the latest
        (time.monotonic)."""
        while any(len(each.parked.queue) for each in self._cores()) and self.round() and time.monotonic() < until:
            self._ending.wait(LOOK_S)

    def round(self) -> bool:
        """Compares once. Returns whether a difference was found, or a comparison was impossible."""
        try:
            found = self.run(self.sharing.round())
        except (PywanError, MemoryError) as error:
            self._lines.failed(COMPARING, error)
            return True
        if found.unreachable:
            self._lines.failed(COMPARING, f"member {', '.join(sorted(found.unreachable))} does not answer")
        else:
            self._lines.works(COMPARING)
        return found.differs or bool(found.unreachable)

    def run(self, steps: Steps[T]) -> T:
        """Executes steps to their end."""
        try:
            question = next(steps)
            while True:
                question = steps.send(self._ask(*question))
        except StopIteration as done:
            result: T = done.value
            return result

    def _ask(self, member: Incarnation | None, question: dict[str, Any]) -> Mapping[str, Any] | None:
        if member is None:
            self._ending.wait(AGAIN_S)
            return None
        profile = self._agent.tables.members.get(member)
        if profile is None:
            return None
        try:
            return call_once(
                Address(profile.host, profile.port), PARKED_EVENTS, timeout=TIMEOUT_S, way=self._way, **question
            )
        except PywanError:
            return None
