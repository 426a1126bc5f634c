"""Owns a member's state for one peer, a member of the same site: the replication link for changes, the state of the
link's connection, and the questions of takeovers. The session has no thread, no socket and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.names import is_name, quoted
from pywan.coordination.encoding import epoch_of, incarnation_of, plain_epoch
from pywan.coordination.plain import Range, check_each_once, list_of
from pywan.coordination.tables import Incarnation, MemberProfile
from pywan.errors import ProtocolError
from pywan.replication.region_replicas import Answer, Question

FIRST_PAUSE_US = 10_000  # The pause after a broken connection; doubled for each further attempt.
LONGEST_PAUSE_US = 500_000
QUESTIONS_MAX = 1 << 16  # In a message, each about a different bucket; also the limit of answers.
# The remaining time of a read lease may count from a moment before the lease was given.
READ_LEASE_LEFT_US_MAX = 2 * _core.READ_LEASE_KEPT_US
SEQUENCE_MAX = 2**63 - 1  # wan_repl_link.c: SEQUENCE_MAX


class PeerSession:
    """Not thread-safe: the lock of the member's replicas guards the session. The replication link's own thread may use
    the link."""

    def __init__(
        self, me: Incarnation, profile: MemberProfile, number: int, *, member_timeout_us: int, now_us: int
    ) -> None:
        self.member = profile.incarnation
        self.address = Address(profile.host, profile.port)
        self.number = number
        self.repl_link = _core.ReplSender(
            number, f"replication link from {me} to {self.member}", member_timeout_us // 1000, self.member.name
        )
        self._me = me
        self._regions: dict[str, int] = {}
        self._next_region = 1
        self._down_since_us: int | None = now_us  # Start of the time without a connection; None: connected.
        # For the present connection: the start of the time without a connection before, and the read lease at the
        # connect. Each answer renews the read lease.
        self._was_down_since_us, self._read_lease_until_us = now_us, self.repl_link.read_lease_until_us
        self._pause_us = FIRST_PAUSE_US
        self._questions: dict[str, dict[int, Question]] = {}

    # The replication link

    def add_region(self, name: str, core: Any) -> None:
        """The replication link carries the region's changes from now on. A repeated call has no effect."""
        if name not in self._regions:
            number = self._regions[name] = self._next_region
            self._next_region += 1
            self.repl_link.add_region(number, name, core)

    def remove_region(self, name: str) -> None:
        """Removes the region from the replication link. After the return the link does not use the region any more."""
        self._questions.pop(name, None)
        if self._regions.pop(name, None) is not None:
            self.repl_link.remove_region(name)

    def remove_regions(self) -> None:
        for name in list(self._regions):
            self.remove_region(name)

    def down_us(self, now_us: int) -> int:
        """Returns for how many us the replication link has had no connection; 0: connected."""
        return 0 if self._down_since_us is None else now_us - self._down_since_us

    def connected(self) -> None:
        """The peer has accepted the replication link."""
        if self._down_since_us is not None:
            self._was_down_since_us, self._read_lease_until_us = self._down_since_us, self.repl_link.read_lease_until_us
        self._down_since_us = None
        self._pause_us = FIRST_PAUSE_US

    def broke(self, now_us: int) -> int:
        """The connection of the replication link has ended, or the attempt to connect failed. Returns the pause before
        the next attempt, in us.

        A connection without any answer counts as no connection. The network may let openings through and no later
        bytes, and either end may be the first to give up such a connection.
        """
        if self._down_since_us is None:
            was_answered = self.repl_link.read_lease_until_us != self._read_lease_until_us
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
        """Returns the fields of the next message `adopt-buckets`; None: no question waits."""
        if not self._questions:
            return None
        region, asked = next(iter(self._questions.items()))
        del self._questions[region]
        return self._request(region, asked.values())

    def empty_request(self) -> dict[str, Any]:
        """Returns the fields of a message without questions. The message opens the connection before a takeover needs
        the connection."""
        return self._request("", ())

    def _request(self, region: str, questions: Iterable[Question]) -> dict[str, Any]:
        return {
            "region": region,
            "of": [self._me.name, self._me.member_id],
            "to": [self.member.name, self.member.member_id],
            "questions": [[each.bucket, plain_epoch(each.epoch), each.after] for each in questions],
        }


class Asked(NamedTuple):
    """A message with questions about a region. A message without questions only opens the connection."""

    asker: Incarnation
    to: Incarnation
    region: str
    questions: list[Question]


_bucket = Range(0, 2**32 - 1).reader("the number of a bucket")
_sequence = Range(0, SEQUENCE_MAX).reader("a sequence of a bucket")
_read_lease_left_us = Range(0, READ_LEASE_LEFT_US_MAX).reader("for how long a replica has promised something, in us,")


def asked_of(request: dict[str, Any]) -> Asked:
    """Reads a message with questions. ProtocolError: the message is incomplete, or has impossible values."""
    region: Any = request.get("region")
    questions = list_of(request.get("questions"), QUESTIONS_MAX, "questions about replicas")
    if questions and not is_name(region):
        raise ProtocolError(f"questions about the replicas of region {quoted(region)}, which is no name")
    read = [
        Question(_bucket(number), epoch_of(epoch), _sequence(after))
        for number, epoch, after in (_parts(each, 3, "a question about replicas") for each in questions)
    ]
    check_each_once((each.bucket for each in read), "questions about buckets")
    asker, to = incarnation_of(request.get("of")), incarnation_of(request.get("to"))
    return Asked(asker, to, region if questions else "", read)


def answers_of(reply: dict[str, Any]) -> tuple[list[Answer], int]:
    """Reads a reply: the answers, and the upper limit, from now, of the replica's read leases to earlier primaries, in
    us. ProtocolError: the reply is incomplete, or has impossible values."""
    answers = [
        _answer_of(*_parts(each, 7, "an answer about replicas"))
        for each in list_of(reply.get("answers"), QUESTIONS_MAX, "answers about replicas")
    ]
    check_each_once((each.bucket for each in answers), "answers about buckets")
    return answers, _read_lease_left_us(reply.get("promised_us"))


def _answer_of(number: Any, epoch: Any, after: Any, log_end: Any, entries: Any, before: Any, led: Any) -> Answer:
    if type(entries) is not bytes or type(led) is not bool:
        raise ProtocolError(f"an answer about replicas has entries {quoted(entries)}, and led {quoted(led)}")
    answer = Answer(
        _bucket(number), epoch_of(epoch), _sequence(after), _sequence(log_end), entries, epoch_of(before), led
    )
    if bool(entries) != (answer.log_end > answer.after):
        raise ProtocolError(
            f"an answer about replicas has {len(entries)} bytes of entries from sequence {answer.after} to"
            f" {answer.log_end}"
        )
    return answer


def plain_answers(answers: list[Answer]) -> list[Any]:
    """Returns the answers in the form of a reply."""
    return [
        [
            each.bucket,
            plain_epoch(each.epoch),
            each.after,
            each.log_end,
            each.entries,
            plain_epoch(each.before),
            each.led,
        ]
        for each in answers
    ]


def _parts(value: Any, count: int, what: str) -> list[Any]:
    if len(list_of(value, count, what)) != count:
        raise ProtocolError(f"{what} has {count} parts, and is not {quoted(value)}")
    return value  # type: ignore[no-any-return]
