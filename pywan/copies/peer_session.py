"""Owns what one member keeps for another member of its site: the lane over which it sends changes, whether that has a
connection, and the questions of takeovers. It knows no thread, no socket and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.names import is_name, quoted
from pywan.coordination.encoding import epoch_of, incarnation_of, plain_epoch
from pywan.coordination.plain import Range, check_each_once, list_of
from pywan.coordination.tables import Incarnation, MemberProfile
from pywan.copies.region_copies import Answer, Question
from pywan.errors import ProtocolError

FIRST_PAUSE_US = 10_000  # After a connection that broke; doubled up to the next one.
LONGEST_PAUSE_US = 500_000
QUESTIONS_MAX = 1 << 16  # In a message, each about another bucket; and answers.
# A promise may be given a moment after the time from which the rest of it is counted.
PROMISED_US_MAX = 2 * _core.PROMISE_KEPT_US
SEQUENCE_MAX = 2**63 - 1  # wan_lane.c: SEQUENCE_MAX


class PeerSession:
    """Not thread-safe: the lock of the member's copies guards it. The lane itself may be used by its own thread."""

    def __init__(
        self, me: Incarnation, profile: MemberProfile, number: int, *, member_timeout_us: int, now_us: int
    ) -> None:
        self.member = profile.incarnation
        self.address = Address(profile.host, profile.port)
        self.number = number
        self.lane = _core.LaneSender(
            number, f"lane from {me} to {self.member}", member_timeout_us // 1000, self.member.name
        )
        self._me = me
        self._regions: dict[str, int] = {}
        self._next_region = 1
        self._down_since_us: int | None = now_us  # Since when the lane has no connection; None: it has one.
        # Of the present connection: since when there was none before it, and the promise that the lane had then. Each
        # answer renews that.
        self._was_down_since_us, self._promised_until_us = now_us, self.lane.promised_until_us
        self._pause_us = FIRST_PAUSE_US
        self._questions: dict[str, dict[int, Question]] = {}

    # The lane

    def add_region(self, name: str, core: Any) -> None:
        """The lane carries the region's changes from now on. It may be called again."""
        if name not in self._regions:
            number = self._regions[name] = self._next_region
            self._next_region += 1
            self.lane.add_region(number, name, core)

    def remove_region(self, name: str) -> None:
        """When this returns, the lane does not use the region any more."""
        self._questions.pop(name, None)
        if self._regions.pop(name, None) is not None:
            self.lane.remove_region(name)

    def remove_regions(self) -> None:
        for name in list(self._regions):
            self.remove_region(name)

    def down_us(self, now_us: int) -> int:
        """Returns for how long the lane has had no connection; 0: it has one."""
        return 0 if self._down_since_us is None else now_us - self._down_since_us

    def connected(self) -> None:
        """The other member has accepted the lane."""
        if self._down_since_us is not None:
            self._was_down_since_us, self._promised_until_us = self._down_since_us, self.lane.promised_until_us
        self._down_since_us = None
        self._pause_us = FIRST_PAUSE_US

    def broke(self, now_us: int) -> int:
        """The lane's connection has ended, or was not made. Returns how long to wait before the next attempt.

        A connection that was made and brought no answer counts as none. The network may let openings through and
        nothing else, and either end may be the first to give that up.
        """
        if self._down_since_us is None:
            was_answered = self.lane.promised_until_us != self._promised_until_us
            self._down_since_us = now_us if was_answered else self._was_down_since_us
        pause_us, self._pause_us = self._pause_us, min(self._pause_us * 2, LONGEST_PAUSE_US)
        return pause_us

    # Questions

    def ask(self, region: str, questions: list[Question]) -> None:
        waiting = self._questions.setdefault(region, {})
        waiting.update((question.bucket, question) for question in questions)

    @property
    def has_questions(self) -> bool:
        return bool(self._questions)

    def next_request(self) -> dict[str, Any] | None:
        """Returns the fields of the next message `adopt-buckets`; None: there is nothing to ask."""
        if not self._questions:
            return None
        region, asked = next(iter(self._questions.items()))
        del self._questions[region]
        return self._request(region, asked.values())

    def empty_request(self) -> dict[str, Any]:
        """Returns the fields of a message that asks nothing. It opens the connection before a takeover needs it."""
        return self._request("", ())

    def _request(self, region: str, questions: Iterable[Question]) -> dict[str, Any]:
        return {
            "region": region,
            "of": [self._me.name, self._me.member_id],
            "to": [self.member.name, self.member.member_id],
            "questions": [[each.bucket, plain_epoch(each.epoch), each.after] for each in questions],
        }


class Asked(NamedTuple):
    """A message with questions about a region. Without any, it only opens the connection."""

    asker: Incarnation
    to: Incarnation
    region: str
    questions: list[Question]


_bucket = Range(0, 2**32 - 1).reader("the number of a bucket")
_sequence = Range(0, SEQUENCE_MAX).reader("a sequence of a bucket")
_promised_us = Range(0, PROMISED_US_MAX).reader("for how long a copy has promised something, in us,")


def asked_of(request: dict[str, Any]) -> Asked:
    """Reads a message with questions. ProtocolError if it is not whole, or says what cannot be."""
    region: Any = request.get("region")
    questions = list_of(request.get("questions"), QUESTIONS_MAX, "questions about copies")
    if questions and not is_name(region):
        raise ProtocolError(f"questions about the copies of region {quoted(region)}, which is no name")
    read = [
        Question(_bucket(number), epoch_of(epoch), _sequence(after))
        for number, epoch, after in (_parts(each, 3, "a question about copies") for each in questions)
    ]
    check_each_once((each.bucket for each in read), "questions about buckets")
    asker, to = incarnation_of(request.get("of")), incarnation_of(request.get("to"))
    return Asked(asker, to, region if questions else "", read)


def answers_of(reply: dict[str, Any]) -> tuple[list[Answer], int]:
    """Reads a reply: the answers, and for how many us, from now at most, the copy has promised an earlier primary
    something. ProtocolError if it is not whole, or says what cannot be."""
    answers = [
        _answer_of(*_parts(each, 7, "an answer about copies"))
        for each in list_of(reply.get("answers"), QUESTIONS_MAX, "answers about copies")
    ]
    check_each_once((each.bucket for each in answers), "answers about buckets")
    return answers, _promised_us(reply.get("promised_us"))


def _answer_of(number: Any, epoch: Any, after: Any, last: Any, entries: Any, before: Any, led: Any) -> Answer:
    if type(entries) is not bytes or type(led) is not bool:
        raise ProtocolError(f"an answer about copies has entries {quoted(entries)}, and led {quoted(led)}")
    answer = Answer(_bucket(number), epoch_of(epoch), _sequence(after), _sequence(last), entries, epoch_of(before), led)
    if bool(entries) != (answer.last > answer.after):
        raise ProtocolError(
            f"an answer about copies has {len(entries)} bytes of entries from sequence {answer.after} to {answer.last}"
        )
    return answer


def plain_answers(answers: list[Answer]) -> list[Any]:
    """Returns answers as a reply has them."""
    return [
        [each.bucket, plain_epoch(each.epoch), each.after, each.last, each.entries, plain_epoch(each.before), each.led]
        for each in answers
    ]


def _parts(value: Any, count: int, what: str) -> list[Any]:
    if len(list_of(value, count, what)) != count:
        raise ProtocolError(f"{what} has {count} parts, and is not {quoted(value)}")
    return value  # type: ignore[no-any-return]
