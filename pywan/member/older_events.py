"""Owns the backfill: how a queue that was attached later than the queues of other members gets the older events
(docs/decisions/0093). The module asks these members bucket by bucket, and reports when no gap is left. The module uses
no thread and no socket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from pywan.config.values import to_int
from pywan.coordination.tables import Bucket, Incarnation
from pywan.errors import ProtocolError, PywanError

OLDER_EVENTS = "older-events"  # The message.
ANSWER_BYTES = 1 << 20  # Limit of the events in one reply. A single longer event is allowed.
PIECE_BYTES = 8 << 20  # A longer reply is sent in pieces of this size.
# Upper limit of a reply: the last event may be as long as a value can be (60 MiB).
ANSWER_BYTES_MAX = ANSWER_BYTES + (61 << 20)
SEQUENCE_MAX = (1 << 63) - 1
_BEING_ATTACHED = -1  # In place of a sequence.


class Queue(Protocol):
    """The methods of an EventQueue that the backfill needs."""

    def run_of(self, region: str) -> int | None: ...
    def runs(self) -> list[tuple[str, int, int]]: ...
    def lacking(self, first: int, count: int) -> list[int | None]: ...
    def older_events(
        self, partition: int, life: int, after: int, through: int, most: int
    ) -> tuple[int, int | None, int, bytes] | None: ...
    def take_older(self, partition: int, life: int, removed: int, events: bytes) -> bool: ...
    def end_lacking(self, partition: int, life: int, through: int) -> None: ...
    def run_events(self, first: int, count: int) -> list[int]: ...
    def lack_events_behind(self, partition: int, life: int, after: int) -> bool: ...


class Lack(NamedTuple):
    """A gap of a queue: events of a bucket through `through`. None: the queue is being attached."""

    number: int
    bucket: Bucket
    through: int | None


class Wanted(NamedTuple):
    """A question for the events of a bucket behind `after` through `through`. The reply makes the member announce
    removals again. `holds_after`: the queue of the asking member `member_id` has no gap, and has events behind this
    sequence."""

    region: str
    sender: str
    bucket: int
    life: int
    after: int
    through: int
    holds_after: int = SEQUENCE_MAX
    member_id: int = 0


Ask = Callable[[Incarnation, Wanted, int], Mapping[str, Any]]


def fields_of(wanted: Wanted, begin: int) -> dict[str, Any]:
    """Returns the fields of a question. `begin`: the number of bytes in earlier pieces of the reply."""
    return {**wanted._asdict(), "begin": begin}


def answer(request: Mapping[str, Any], queue_of: Callable[[str], Queue | None]) -> dict[str, Any]:
    """Answers a member whose queue has a gap. Empty: no queue of this member has the stream. `again`: the two members
    know different timelines of the stream, and one of them will learn the later timeline soon. ProtocolError: the
    request is no question.

    Args:
        request: The fields of the message.
        queue_of: Returns the queue of a sender of this member, by the sender's id.
    """
    region, sender = request.get("region"), request.get("sender")
    if not isinstance(region, str) or not isinstance(sender, str):
        raise ProtocolError(f"{OLDER_EVENTS}: region and sender are no names")
    bucket = to_int(request.get("bucket"), "bucket", 0, 1 << 16)
    life = to_int(request.get("life"), "life", 0, (1 << 64) - 1)
    after = to_int(request.get("after"), "after", 0, SEQUENCE_MAX)
    through = to_int(request.get("through"), "through", 0, SEQUENCE_MAX)
    begin = to_int(request.get("begin"), "begin", 0, 1 << 32)
    queue = queue_of(sender)
    first = None if queue is None else queue.run_of(region)
    if queue is None or first is None:
        return {}
    buckets = next((count for _, begins, count in queue.runs() if begins == first), 0)
    if bucket >= buckets:  # The next stream behind the region's last stream belongs to another region.
        raise ProtocolError(f"{OLDER_EVENTS}: there is no bucket {bucket}: the region has {buckets}")
    found = queue.older_events(first + bucket, life, after, through, ANSWER_BYTES)
    if found is None:
        return {"again": True}
    removed, lacks, reached, events = found
    return {
        "removed": removed,
        "lacks": _BEING_ATTACHED if lacks is None else lacks,
        "reached": reached,
        "length": len(events),
        "events": events[begin : begin + PIECE_BYTES],
    }


def begins_later(
    request: Mapping[str, Any], queue_of: Callable[[str], Queue | None], holders: Collection[Incarnation]
) -> bool:
    """Returns whether a queue of this member began behind events of the asking queue. The queue has a gap from now on.
    A queue that got the sender again may still have events that no other member has asked for
    (docs/decisions/0093). NotNow: this member does not know yet that the asking member is one of the `holders`. The
    request has passed `answer`."""
    held = to_int(request.get("holds_after", SEQUENCE_MAX), "holds_after", 0, SEQUENCE_MAX)
    member_id = to_int(request.get("member_id", 0), "member_id", 0, (1 << 32) - 1)
    queue = queue_of(request["sender"])
    first = None if queue is None else queue.run_of(request["region"])
    if queue is None or first is None or held == SEQUENCE_MAX:
        return False
    if not any(each.member_id == member_id for each in holders):
        raise NotNow(f"member {member_id:#x} is no holder of bucket {request['bucket']} yet")
    return queue.lack_events_behind(first + request["bucket"], request["life"], held)


class Older(NamedTuple):
    """A reply. `removed`: all events through `removed` have left the other queue. `lacks`: the other queue itself has a
    gap through `lacks` (None: the queue is being attached). `events`: the events through `reached`."""

    removed: int
    lacks: int | None
    reached: int
    events: bytes


class NotNow(PywanError):
    """The question has to be repeated, without a report to users."""


def ask_whole(ask: Ask, member: Incarnation, wanted: Wanted) -> Older | None:
    """Asks one member, piece by piece. None: the member has no queue with the stream. PywanError: no reply, or the
    reply is invalid. NotNow: the two members do not know the same timeline."""
    events, known = b"", None
    while True:
        reply = ask(member, wanted, len(events))
        if reply.get("again"):
            raise NotNow(f"member {member.name} knows another timeline of bucket {wanted.bucket}")
        if reply.get("removed") is None:
            return None
        length = to_int(reply.get("length"), "length", 0, ANSWER_BYTES_MAX)
        lacks = to_int(reply.get("lacks"), "lacks", _BEING_ATTACHED, SEQUENCE_MAX)
        reached = to_int(reply.get("reached"), "reached", 0, wanted.through)
        removed = to_int(reply.get("removed"), "removed", 0, SEQUENCE_MAX)
        if known not in (None, (reached, length)):
            raise NotNow(f"an event left the queue of member {member.name} while it was on its way here")
        known, piece = (reached, length), reply.get("events")
        left = length - len(events)
        if not isinstance(piece, bytes) or len(piece) > left or (not piece and left) or reached <= wanted.after:
            raise ProtocolError(f"{OLDER_EVENTS}: what member {member.name} sent is no answer")
        events += piece
        if len(events) >= length:
            return Older(removed, None if lacks == _BEING_ATTACHED else lacks, reached, events)


def others_of(bucket: Bucket, me: Incarnation) -> set[Incarnation]:
    """Returns the members that may have the missing events of a bucket. A learner has the events of its primary."""
    return {*bucket.isr, *bucket.leaving} - {me}


class OlderEvents:
    """The gaps of one sender's queue in one region. Only one thread at a time may call the methods.

    Two queues may have gaps at the same time. The queue with the smaller gap does not wait for the other; if the gaps
    are equal, the queue of the first member in order does not wait. So one of the two always ends. The queue without
    the wait asks the waiting member last, after all members without a gap have given their events, or have ended.
    """

    def __init__(self, region: str, sender: str, queue: Queue, ask: Ask) -> None:
        self.region, self.sender, self.queue = region, sender, queue
        self._ask = ask
        # The members that gave all their events, by bucket, timeline, and end of the gap.
        self._asked: dict[tuple[int, int, int | None], set[Incarnation]] = {}
        self._ended: list[Lack] = []  # The synced buckets whose removals other members have to announce again.
        self._announced: dict[tuple[int, int, int | None], set[Incarnation]] = {}  # As `_asked`.

    def round(self, me: Incarnation, lacks: list[Lack]) -> str:
        """Asks every member that has not yet given all its events of the given buckets. Returns the reason why a member
        could not be asked; empty: all members were asked."""
        unreachable: dict[Incarnation, str] = {}
        for lack in lacks:
            if lack.through is None:
                continue
            partly = [
                each for each in sorted(others_of(lack.bucket, me)) if not self._ask_one(me, each, lack, unreachable)
            ]
            # All events of members without a gap are here now. Members with a gap may have events of departed members.
            if set(partly) == others_of(lack.bucket, me) - self._that_gave_all(lack):
                for each in partly:
                    self._ask_one(me, each, lack, unreachable, is_last=True)
        return next((f"member {each.name}: {why}" for each, why in unreachable.items()), "")

    def _ask_one(
        self,
        me: Incarnation,
        other: Incarnation,
        lack: Lack,
        unreachable: dict[Incarnation, str],
        *,
        is_last: bool = False,
    ) -> bool:
        """Fetches the events of a member, unless the member gave all before. Returns False if the member has a gap
        itself, and does not wait for this member. `is_last`: such events are enough now. `unreachable`: the reasons of
        missing replies; the method adds entries."""
        if other in unreachable or other in self._that_gave_all(lack):
            return True
        try:
            if not self._take_all(me, other, lack) and not is_last:
                return False
            self._that_gave_all(lack).add(other)
        except NotNow:
            pass
        except PywanError as error:
            unreachable[other] = str(error)
        return True

    def _that_gave_all(self, lack: Lack) -> set[Incarnation]:
        return self._asked.setdefault((lack.number, lack.bucket.timeline, lack.through), set())

    def _that_announce(self, lack: Lack) -> set[Incarnation]:
        return self._announced.setdefault((lack.number, lack.bucket.timeline, lack.through), set())

    def has_asked(self, me: Incarnation, lack: Lack) -> bool:
        """Returns whether all members that hold the bucket have given their events."""
        return lack.through is not None and others_of(lack.bucket, me) <= self._that_gave_all(lack)

    def end(self, lacks: list[Lack]) -> None:
        """Marks buckets as synced after all members were asked: the queue may lead the buckets."""
        first = self.queue.run_of(self.region)
        for number, bucket, through in lacks:
            if first is not None and through is not None:
                self.queue.end_lacking(first + number, bucket.timeline, through)
        self._ended += lacks

    def ask_removed_through(self, me: Incarnation) -> bool:
        """Makes the other members announce removals of the synced buckets once more: earlier announcements had no
        effect. A member without a reply announces with its next removal. A queue that began behind the events of this
        queue asks for these events in turn (`begins_later`). Returns whether no member has to be asked again."""
        ended, self._ended = self._ended, []
        for lack in ended:
            left = others_of(lack.bucket, me) - self._that_announce(lack)
            for other in sorted(left):
                if not self._ask_other(me, other, lack):
                    self._ended.append(lack)
                    break
        return not self._ended

    def _ask_other(self, me: Incarnation, other: Incarnation, lack: Lack) -> bool:
        timeline = lack.bucket.timeline
        held = self._held_after(lack.number, timeline)
        wanted = Wanted(self.region, self.sender, lack.number, timeline, 0, 0, held, me.member_id)
        try:
            if self._ask(other, wanted, 0).get("again"):
                return False
        except NotNow:
            return False
        except PywanError:
            pass
        self._that_announce(lack).add(other)
        return True

    def _held_after(self, number: int, life: int) -> int:
        """Returns the sequence behind which the queue has events of a bucket. SEQUENCE_MAX: no event."""
        first = self.queue.run_of(self.region)
        if first is None or not self.queue.run_events(first + number, 1)[0]:
            return SEQUENCE_MAX
        found = self.queue.older_events(first + number, life, 0, 0, 0)
        return SEQUENCE_MAX if found is None or found[1] != 0 else found[0]

    def are_at_others(self, me: Incarnation, lacks: list[Lack]) -> bool:
        """Returns whether for every given bucket another member has all events. The member with all events sends them
        in any case, even after the loss of the sender."""
        return all(any(self._is_whole(each, lack) for each in sorted(others_of(lack.bucket, me))) for lack in lacks)

    def _is_whole(self, other: Incarnation, lack: Lack) -> bool:
        """Returns whether, by the member's own reply, its queue has the bucket's stream without a gap."""
        try:
            reply = self._ask(other, Wanted(self.region, self.sender, lack.number, lack.bucket.timeline, 0, 0), 0)
        except PywanError:
            return False
        return reply.get("lacks") == 0

    def _take_all(self, me: Incarnation, other: Incarnation, lack: Lack) -> bool:
        """Fetches all events of another member. Returns whether the member has no gap itself. NotNow: the question has
        to be repeated."""
        through, after, is_whole = lack.through or 0, 0, True
        while after < through:
            wanted = Wanted(self.region, self.sender, lack.number, lack.bucket.timeline, after, through)
            older = ask_whole(self._ask, other, wanted)
            first = self.queue.run_of(self.region)
            if older is None or first is None:
                return True
            if not self.queue.take_older(first + lack.number, lack.bucket.timeline, older.removed, older.events):
                raise NotNow("events of the stream are on their way from here")
            if older.lacks is None or (older.lacks > 0 and (older.lacks, other) < (through, me)):
                raise NotNow(f"member {other.name} lacks events, and is the first to have all")
            after, is_whole = older.reached, is_whole and not older.lacks
        return is_whole
