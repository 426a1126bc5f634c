"""Decides whether the standby may take over from an unreachable coordinator.

A state machine without sockets, disk or clock, in the locator that is the standby. The records of the standby have
everything that the coordinator has told any member (pywan.coordination.standbys). The standby takes over when no member
of its records can enable the coordinator to go on without the standby: each member has promised to ask the coordinator
nothing, or is proved to have ended.

A member has ended if the records have a later incarnation of the member: the coordinator has admitted the later
incarnation as a process of the same folder. A member in the records may not know this standby yet, since the
coordinator may have been killed before the member received the record. The answer to the member's poll then says that
this locator is the standby (`receive_question`).

Members first report that the coordinator was unreachable for a whole lease. When all members have reported, the standby
draws a *round*, a random number, and asks for promises. A member keeps its promise until the standby ends the round or
becomes coordinator. A round ends without effect if a promise is missing after ROUND_US.

For example, n1 is killed; n2 is the standby, and a, b and c are members. a and b report that n1 is unreachable. c was
killed with n1. A new incarnation of c starts and proves by its folder that the earlier incarnation has ended. n2 draws
round 77. a and b promise the round, and n2 coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pywan.coordination.actions import Store
from pywan.coordination.proofs import is_proved
from pywan.coordination.tables import DRIFT_DIVISOR, NO_DECISION, DecisionId, Incarnation, MemberProfile, Standby

SAID_US = 8_000_000  # A member's report counts so long: between two reports the member polls a coordinator in vain.
_WAITS = "the standby waits"
ROUND_US = 8_000_000  # A round ends if a member has not promised in this time.


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    """The standby's answer to a member. `round` 0: the member keeps no promise. Otherwise the member has to promise
    this round."""

    round: int
    problem: str  # Why the standby does not coordinate, in words.


class Takeover:
    """Not thread-safe.

    Args:
        name: The locator's name.
        draw_round: Draws the number of a round, above 0.
        now_us: The time, of the clock by which leases count.
    """

    def __init__(self, name: str, *, member_timeout_us: int, draw_round: Callable[[], int], now_us: int) -> None:
        self.name, self._draw_round = name, draw_round
        self._wait_us = member_timeout_us + member_timeout_us // DRIFT_DIVISOR
        self.newest, self.term, self.identity = NO_DECISION, 0, ""  # Of the records.
        self.standby: Standby | None = None
        self.members: dict[Incarnation, MemberProfile] = {}
        self._received_us = now_us  # The coordinator was in contact after this moment.
        self._said_us: dict[Incarnation, int] = {}  # When a member last reported that the coordinator is unreachable.
        self._ended: set[Incarnation] = set()  # Members with a proof of their end.
        self._replaced: set[Incarnation] = set()  # Members of the records with a later incarnation in the records.
        self._lacks = NO_DECISION  # The newest record that a member has named and that this locator lacks.
        self.round = 0  # 0: no round.
        self._round_us = 0  # When the round began.
        self._promised: set[Incarnation] = set()

    # --- the coordinator ---

    def stored(self, store: Store, *, is_whole: bool) -> None:
        """The locator has stored these records."""
        if is_whole:
            self.members.clear()
        self.newest, self.term, self.identity, self.standby = (
            store.newest,
            store.term,
            store.site_identity,
            store.standby,
        )
        for member, profile in store.members:
            self.members.pop(member, None)
            if profile is not None:
                self.members[member] = profile
        self._ended &= self.members.keys()
        self._replaced = {
            Incarnation(member.name, earlier) for member, profile in self.members.items() for earlier in profile.before
        }
        self._said_us = {each: at for each, at in self._said_us.items() if each in self.members}
        self._end_round()

    def received(self, sent_us: int) -> None:
        """The coordinator has answered a question. `sent_us`: when the question was sent."""
        self._received_us = max(self._received_us, sent_us)
        self._end_round()

    def _end_round(self) -> None:
        self.round = 0
        self._promised.clear()

    # --- members ---

    def receive_from_member(self, me: Incarnation, stored: DecisionId, promised: int, now_us: int) -> StandbyAnswer:
        """For a member of the records, the coordinator is unreachable. `promised`: the round that the member has
        promised."""
        self._note_seen(stored)
        self._said_us[me] = now_us
        if promised and promised == self.round:
            self._promised.add(me)
        self.tick(now_us)
        return StandbyAnswer(self.round, self.problem(now_us))

    def receive_question(self, stored: DecisionId) -> bool:
        """A member of the records polls this locator, or asks to join: the member has not received its admission.
        Returns whether the member has to report an unreachable coordinator to this locator."""
        self._note_seen(stored)
        return self.is_standby

    def receive_join(self, profile: MemberProfile, nonces: Mapping[int, bytes], stored: DecisionId) -> None:
        """A member asks to join, and may prove that earlier incarnations of its folder have ended: a single process
        locks the folder. The member names the newest record that any of the incarnations has received."""
        name = profile.incarnation.name
        for member_id in profile.before:
            earlier = Incarnation(name, member_id)
            if is_proved(self.members.get(earlier), nonces.get(member_id)):
                self._note_seen(max(profile.seen, stored))
                self._ended.add(earlier)

    def receive_goodbye(self, me: Incarnation, stored: DecisionId) -> None:
        """A member of the records has ended, and asks the coordinator nothing any more."""
        self._note_seen(stored)
        self._ended.add(me)

    def revoke(self, name: str, now_us: int) -> list[Incarnation]:
        """An operator declares that the awaited incarnations of a member never come back. Returns these incarnations. A
        member with a recent report is alive, and is not revoked."""
        found = [each for each in self._missing(self._received_lately(now_us)) if each.name == name]
        self._ended.update(found)
        return found

    def _note_seen(self, seen: DecisionId) -> None:
        if seen > self.newest:
            self._lacks = max(self._lacks, seen)

    # --- time ---

    def tick(self, now_us: int) -> None:
        """Begins and ends rounds."""
        if self.round and now_us - self._round_us > ROUND_US:
            self._end_round()
        if not self.round and not self._obstacle(now_us):
            self.round, self._round_us = self._draw_round(), now_us

    def is_due(self, now_us: int) -> bool:
        """Whether the standby takes over now."""
        self.tick(now_us)
        return bool(self.round) and not self._obstacle(now_us) and not self._missing(self._promised)

    def _missing(self, received: Iterable[Incarnation]) -> list[Incarnation]:
        return sorted(self.members.keys() - self._ended - self._replaced - set(received))

    def _received_lately(self, now_us: int) -> list[Incarnation]:
        return [each for each, at in self._said_us.items() if now_us - at <= SAID_US]

    @property
    def awaited(self) -> list[Incarnation]:
        """The members without a proof of their end."""
        return self._missing(())

    def waits_for_members(self, now_us: int) -> bool:
        """Whether the standby waits for members only."""
        return bool(self.round) or self._obstacle(now_us).startswith(_WAITS)

    @property
    def is_standby(self) -> bool:
        """Whether this locator may take over, according to its records."""
        return self.standby is not None and self.standby.name == self.name and not self.standby.is_out

    def _obstacle(self, now_us: int) -> str:
        """Returns why the standby cannot begin a takeover; empty: no obstacle."""
        if not self.is_standby or not self.members:
            return f"locator {self.name} is not the standby of its coordinator, as far as it knows"
        if self._lacks > self.newest:
            return f"locator {self.name} lacks metadata record {self._lacks} of a member; its newest is {self.newest}"
        if now_us - self._received_us <= self._wait_us:
            return f"locator {self.name} has heard the coordinator a moment ago"
        unreported = self._missing(self._received_lately(now_us))
        if unreported:
            return _waits_for("until these members report that the coordinator is unreachable", unreported)
        return ""

    def problem(self, now_us: int) -> str:
        """Returns why the standby does not take over, in words for the user; empty: the takeover is possible."""
        obstacle = self._obstacle(now_us)
        if not obstacle and (missing := self._missing(self._promised)):
            obstacle = _waits_for("until these members promise to ask the coordinator nothing", missing)
        if not obstacle:
            return ""
        if self.is_standby and self._lacks > self.newest:
            return (
                f"{obstacle}; the coordinator goes on when it starts again; if it is gone for good, use `start locator"
                " --recover-from-members`"
            )
        return (
            f"{obstacle}; the standby takes over by itself as soon as possible; if the coordinator is gone for good,"
            " revoke members that are gone too (`revoke member`), or use `start locator --recover-from-members`"
        )


def _waits_for(what: str, members: list[Incarnation]) -> str:
    return f"{_WAITS} {what}, or are proved to have ended: {', '.join(map(str, members[:8]))}"
