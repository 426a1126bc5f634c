"""Owns what one member keeps for another member of its site: the lane over which it sends changes, whether that has a
connection, and the questions of takeovers. It knows no thread, no socket and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pywan import _core
from pywan.base.addresses import Address
from pywan.coordination.encoding import bucket_of, epoch_of, plain_bucket, plain_epoch
from pywan.coordination.tables import BucketKey, Incarnation, MemberProfile
from pywan.copies.region_copies import Answer, Question
from pywan.errors import ProtocolError

FIRST_PAUSE_US = 10_000  # After a connection that broke; doubled up to the next one.
LONGEST_PAUSE_US = 500_000


class PeerSession:
    """Not thread-safe: the lock of the member's copies guards it. The lane itself may be used by its own thread."""

    def __init__(
        self, me: Incarnation, profile: MemberProfile, number: int, *, member_timeout_us: int, now_us: int
    ) -> None:
        self.member = profile.incarnation
        self.address = Address(profile.host, profile.port)
        self.number = number
        self.lane = _core.LaneSender(number, f"lane from {me} to {self.member}", member_timeout_us // 1000)
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
            "questions": [[each.bucket, plain_bucket(each.decision), each.after] for each in questions],
        }


def answers_of(reply: dict[str, Any]) -> list[Answer]:
    """Reads the answers in a reply. ProtocolError if they are not whole."""
    try:
        return [
            Answer(int(number), epoch_of(epoch), int(after), int(last), bytes(entries), epoch_of(before), led is True)
            for number, epoch, after, last, entries, before, led in reply["answers"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"an answer about copies is not whole: {error!r}") from None


def plain_answers(answers: list[Answer]) -> list[Any]:
    """Returns answers as a reply has them."""
    return [
        [each.bucket, plain_epoch(each.epoch), each.after, each.last, each.entries, plain_epoch(each.before), each.led]
        for each in answers
    ]


def questions_of(request: dict[str, Any]) -> list[Question]:
    """Reads the questions in a request. ProtocolError if they are not whole."""
    try:
        return [
            Question(int(number), bucket_of(decision, BucketKey(str(request["region"]), int(number))), int(after))
            for number, decision, after in request["questions"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a question about copies is not whole: {error!r}") from None
