"""Asks the member that an opening names whether the opening is its own, before anybody believes it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pywan.base.addresses import Address
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError, IncompatibleSystemError, PywanError
from pywan.protocol.between_members import OWNS_OPENING, Claim, Opening, claim_request, is_own
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

QUESTION_TIMEOUT_S = 2.0  # The limit for the wait in line and the question together.
# So many questions about openings of one member are under way at the same time, and so many more wait in line. A
# question to a living member takes about a millisecond, so an honest opening behind a whole line waits for some tenths
# of a second.
OF_MEMBER_MAX = 4
WAITING_MAX = 256
ALL_MAX = 128  # So many are under way about all members together.


@dataclass(slots=True)
class _Line:
    """The questions about openings of one member."""

    asked: int = 0  # At most OF_MEMBER_MAX.
    # Each is set when its turn has come: the one that ends hands its place on. Nobody waits while there is a place.
    waiting: deque[threading.Event] = field(default_factory=deque)


class OpeningQuestions:
    """Any thread may use it. It keeps no connection: openings are rare.

    Args:
        address_of: Returns where a member is, as this member's own tables say; None: they do not know it.
        way: Connects to members.
    """

    def __init__(self, address_of: Callable[[Incarnation], Address | None], way: Way = PLAIN.cluster) -> None:
        self._address_of, self._way = address_of, way
        self._lock = threading.Lock()  # Guards all below. Nobody waits under it.
        self._lines: dict[Incarnation, _Line] = {}  # A line is there while anybody is in it.
        self._asked = 0  # The sum of all lines.

    def check(self, protocol: bytes, opening: Opening, time_left_s: float) -> None:
        """Returns when the member that the opening names has said that the opening is its own.

        IncompatibleSystemError: it said that it is not. ConnectivityError: it did not say so within `time_left_s`, nor
        within QUESTION_TIMEOUT_S; or there are too many questions.
        """
        deadline = time.monotonic() + min(time_left_s, QUESTION_TIMEOUT_S)
        member, claim = opening.from_, Claim(protocol, opening.word, opening.from_, opening.to)
        self._enter(member, deadline)
        try:
            self._ask(claim, deadline)
        finally:
            self._leave(member)

    @property
    def under_way(self) -> int:
        with self._lock:
            return self._asked

    def _ask(self, claim: Claim, deadline: float) -> None:
        member, address = claim.from_, self._address_of(claim.from_)
        if address is None:
            raise ConnectivityError(f"member {member} has left the site")
        try:
            left_s = max(0.001, deadline - time.monotonic())
            reply = call_once(address, OWNS_OPENING, timeout=left_s, way=self._way, **claim_request(claim))
        except (PywanError, OSError) as error:
            raise ConnectivityError(
                f"member {member}, in whose name it was opened, was asked whether it is its own, and did not say so:"
                f" {error}"
            ) from None
        if not is_own(reply):
            raise IncompatibleSystemError(
                f"member {member}, in whose name it was opened, says that it is not its own, or has given it up"
            )

    def _enter(self, member: Incarnation, deadline: float) -> None:
        """Returns when it is this thread's turn to ask that member. ConnectivityError: that does not come in time."""
        with self._lock:
            line = self._lines.get(member) or _Line()
            if line.asked < OF_MEMBER_MAX:
                if self._asked >= ALL_MAX:
                    raise ConnectivityError(f"{ALL_MAX} members are being asked whether openings are their own")
                self._lines[member] = line
                line.asked += 1
                self._asked += 1
                return
            if len(line.waiting) >= WAITING_MAX:
                raise ConnectivityError(f"{WAITING_MAX} openings wait until member {member} is asked about them")
            turn = threading.Event()
            line.waiting.append(turn)
        if turn.wait(max(0.0, deadline - time.monotonic())):
            return
        with self._lock:
            if turn.is_set():  # In the last moment.
                return
            line.waiting.remove(turn)
        raise ConnectivityError(
            f"member {member} was not asked in time whether it is its own: too many openings are in its name"
        )

    def _leave(self, member: Incarnation) -> None:
        """The question has ended. Its place goes to the next in line."""
        with self._lock:
            line = self._lines[member]
            if line.waiting:
                line.waiting.popleft().set()
                return
            line.asked -= 1
            self._asked -= 1
            if not line.asked:
                del self._lines[member]


__all__ = ["OpeningQuestions"]
