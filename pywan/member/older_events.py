"""Owns how queues that are fed later than those of other members get the events that only the others have: it asks
them, bucket by bucket, and says when nothing is lacking (docs/decisions/0093). It knows no thread and no socket."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from pywan.config.values import to_int
from pywan.coordination.tables import Bucket, Incarnation
from pywan.errors import ProtocolError, PywanError

OLDER_EVENTS = "older-events"  # The message.
ANSWER_BYTES = 1 << 20  # Of the events of one answer, but for a single one that is longer.
PIECE_BYTES = 8 << 20  # A longer answer goes in pieces of so many bytes.
# What an answer is at most: the last event of it may be as long as a value can be (60 MiB).
ANSWER_BYTES_MAX = ANSWER_BYTES + (61 << 20)
SEQUENCE_MAX = (1 << 63) - 1
_BEING_ATTACHED = -1  # Instead of a sequence.


class Queue(Protocol):
    """What it needs of an EventQueue."""

    def run_of(self, region: str) -> int | None: ...
    def runs(self) -> list[tuple[str, int, int]]: ...
    def lacking(self, first: int, count: int) -> list[int | None]: ...
    def older_events(
        self, partition: int, life: int, after: int, through: int, most: int
    ) -> tuple[int, int | None, int, bytes] | None: ...
    def take_older(self, partition: int, life: int, removed: int, events: bytes) -> bool: ...
    def end_lacking(self, partition: int, life: int, through: int) -> None: ...


class Lack(NamedTuple):
    """A queue lacks events of a bucket through `through`. None: it is being attached."""

    number: int
    bucket: Bucket
    through: int | None


class Wanted(NamedTuple):
    """A question: for the events of a bucket behind `after` through `through`. All that is settled is told again."""

    region: str
    sender: str
    bucket: int
    life: int
    after: int
    through: int


Ask = Callable[[Incarnation, Wanted, int], Mapping[str, Any]]


def fields_of(wanted: Wanted, begin: int) -> dict[str, Any]:
    """Returns the fields of a question. `begin`: how many bytes of the answer came before."""
    return {**wanted._asdict(), "begin": begin}


def answer(request: Mapping[str, Any], queue_of: Callable[[str], Queue | None]) -> dict[str, Any]:
    """Answers a member whose queue lacks events. Empty: no queue here has the stream. `again`: one has it in another
    life, and one of the two members is about to hear of the later one. ProtocolError: it is no question.

    Args:
        request: The fields of the message.
        queue_of: Returns the queue of a sender of this member, by its id.
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
    if bucket >= buckets:  # The stream behind the last one of the region is one of another region.
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


class Older(NamedTuple):
    """An answer: through which sequence all events have left the other queue, through which one it lacks events itself
    (None: it is being attached), and the events through `reached`."""

    removed: int
    lacks: int | None
    reached: int
    events: bytes


class NotNow(PywanError):
    """It has to be tried again, and nobody need hear of that."""


def ask_whole(ask: Ask, member: Incarnation, wanted: Wanted) -> Older | None:
    """Asks one member, piece by piece. None: it has no queue with the stream. PywanError: it did not answer, or what
    came is no answer. NotNow: the two members do not know the same life."""
    events, known = b"", None
    while True:
        reply = ask(member, wanted, len(events))
        if reply.get("again"):
            raise NotNow(f"member {member.name} knows another life of bucket {wanted.bucket}")
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
    """Returns the members that may have events of a bucket which this one lacks. A learner has those of its primary."""
    return {*bucket.in_sync, *bucket.leaving} - {me}


class OlderEvents:
    """What the queue of one sender lacks of one region. One thread at a time calls it.

    Two queues may lack events at a time. The one that lacks fewer of them, or else the member that is less, does not
    wait until the other one lacks none, and the other one waits. So there is always one that is done. It asks the other
    one last, when all members without a lack have given what they have, or are gone.
    """

    def __init__(self, region: str, sender: str, queue: Queue, ask: Ask) -> None:
        self.region, self.sender, self.queue = region, sender, queue
        self._ask = ask
        # The members that gave all that they have, by bucket, its life, and through where the queue lacks.
        self._asked: dict[tuple[int, int, int | None], set[Incarnation]] = {}

    def round(self, me: Incarnation, lacks: list[Lack]) -> str:
        """Asks each member that has not given all that it has of these buckets. Returns why one could not be asked;
        empty: all could."""
        silent: dict[Incarnation, str] = {}
        for lack in lacks:
            if lack.through is None:
                continue
            partly = [each for each in sorted(others_of(lack.bucket, me)) if not self._ask_one(me, each, lack, silent)]
            # All that the others have is here now. What these have of members that are gone may not be.
            if set(partly) == others_of(lack.bucket, me) - self._that_gave_all(lack):
                for each in partly:
                    self._ask_one(me, each, lack, silent, is_last=True)
        return next((f"member {each.name}: {why}" for each, why in silent.items()), "")

    def _ask_one(
        self, me: Incarnation, other: Incarnation, lack: Lack, silent: dict[Incarnation, str], *, is_last: bool = False
    ) -> bool:
        """Takes what a member has, unless it gave all before. Returns False if that lacks events itself, and does not
        wait for this one. `is_last`: that is enough now. `silent`: why members did not answer; it is added to."""
        if other in silent or other in self._that_gave_all(lack):
            return True
        try:
            if not self._take_all(me, other, lack) and not is_last:
                return False
            self._that_gave_all(lack).add(other)
        except NotNow:
            pass
        except PywanError as error:
            silent[other] = str(error)
        return True

    def _that_gave_all(self, lack: Lack) -> set[Incarnation]:
        return self._asked.setdefault((lack.number, lack.bucket.life, lack.through), set())

    def has_asked(self, me: Incarnation, lack: Lack) -> bool:
        """Whether all members that hold the bucket have given what they have."""
        return lack.through is not None and others_of(lack.bucket, me) <= self._that_gave_all(lack)

    def end(self, lacks: list[Lack]) -> None:
        """All members were asked about these buckets: the queue may lead them."""
        first = self.queue.run_of(self.region)
        for number, bucket, through in lacks:
            if first is not None and through is not None:
                self.queue.end_lacking(first + number, bucket.life, through)

    def ask_what_is_settled(self, me: Incarnation, ended: list[Lack]) -> None:
        """Has the others tell once more what is settled of these buckets: it was not heeded until now. Who does not
        answer tells it with the next event that it settles."""
        for number, bucket, _ in ended:
            for other in sorted(others_of(bucket, me)):
                with contextlib.suppress(PywanError):
                    self._ask(other, Wanted(self.region, self.sender, number, bucket.life, 0, 0), 0)

    def are_elsewhere(self, me: Incarnation, lacks: list[Lack]) -> bool:
        """Whether another member has all events of each of these buckets. That one sends them in any case: also if it
        loses the sender."""
        return all(any(self._is_whole(each, lack) for each in sorted(others_of(lack.bucket, me))) for lack in lacks)

    def _is_whole(self, other: Incarnation, lack: Lack) -> bool:
        """Whether a member says that its queue has the bucket's stream and lacks nothing of it."""
        try:
            reply = self._ask(other, Wanted(self.region, self.sender, lack.number, lack.bucket.life, 0, 0), 0)
        except PywanError:
            return False
        return reply.get("lacks") == 0

    def _take_all(self, me: Incarnation, other: Incarnation, lack: Lack) -> bool:
        """Takes all that another member has. Returns whether that lacks nothing itself. NotNow: it is to be asked
        again."""
        through, after, is_whole = lack.through or 0, 0, True
        while after < through:
            wanted = Wanted(self.region, self.sender, lack.number, lack.bucket.life, after, through)
            older = ask_whole(self._ask, other, wanted)
            first = self.queue.run_of(self.region)
            if older is None or first is None:
                return True
            if not self.queue.take_older(first + lack.number, lack.bucket.life, older.removed, older.events):
                raise NotNow("events of the stream are on their way from here")
            if older.lacks is None or (older.lacks > 0 and (older.lacks, other) < (through, me)):
                raise NotNow(f"member {other.name} lacks events, and is the first to have all")
            after, is_whole = older.reached, is_whole and not older.lacks
        return is_whole
