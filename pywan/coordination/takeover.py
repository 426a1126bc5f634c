"""Owns whether the standby may take over from a coordinator that nobody hears any more.

A state machine without sockets, disk or clock, in the locator that is the standby. Its records have all that the
coordinator has told anybody (pywan.coordination.standbys). It takes over when no member of its records can make the
coordinator go on without it: each one has promised to ask the coordinator nothing, or is proved to have ended.

A member whose next incarnation is in the records has ended: the coordinator has taken that one in as of its folder. A
member that the records name need not know of this standby: the coordinator may have been killed before the member heard
of it. Its question for news tells it (`hear_question`).

Members say first that they have not heard the coordinator for a whole lease. When all have said so, the standby draws a
*round*, a random number, and asks for promises. A member keeps its promise until the standby says that the round is
over, or that it coordinates. A round that not all have promised in time is over.

For example, n1 is killed; n2 is the standby, and a, b and c are members. a and b say that they do not hear n1. c was
killed with n1. It starts again and proves by its folder that its earlier incarnation has ended. n2 draws round 77. a
and b promise it, and n2 coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pywan.coordination.actions import Store
from pywan.coordination.proofs import is_proved
from pywan.coordination.tables import DRIFT_DIVISOR, NO_DECISION, DecisionId, Incarnation, MemberProfile, Standby

SAID_US = 8_000_000  # What a member has said counts for so long: between two words it asks a coordinator in vain.
_WAITS = "the standby waits"
ROUND_US = 8_000_000  # A round that not all members have promised in this time is over.


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    """What the standby tells a member. `round` 0: it keeps no promise. Otherwise it is to promise that round."""

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
        self._heard_us = now_us  # The coordinator was heard after this moment.
        self._said_us: dict[Incarnation, int] = {}  # When a member said last that it does not hear the coordinator.
        self._ended: set[Incarnation] = set()  # Members that have proved that they have ended.
        self._replaced: set[Incarnation] = set()  # Members of the records whose later incarnation is there too.
        self._lacks = NO_DECISION  # The newest decision of which a member has told, and which the records lack.
        self.round = 0  # 0: there is none.
        self._round_us = 0  # When it began.
        self._promised: set[Incarnation] = set()

    # --- the coordinator ---

    def stored(self, store: Store, *, is_whole: bool) -> None:
        """The records have this now."""
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

    def heard(self, sent_us: int) -> None:
        """The coordinator has answered a question that was sent then."""
        self._heard_us = max(self._heard_us, sent_us)
        self._end_round()

    def _end_round(self) -> None:
        self.round = 0
        self._promised.clear()

    # --- members ---

    def hear_member(self, me: Incarnation, stored: DecisionId, promised: int, now_us: int) -> StandbyAnswer:
        """A member of the records does not hear the coordinator. `promised`: the round that it has promised."""
        self._note_seen(stored)
        self._said_us[me] = now_us
        if promised and promised == self.round:
            self._promised.add(me)
        self.tick(now_us)
        return StandbyAnswer(self.round, self.problem(now_us))

    def hear_question(self, stored: DecisionId) -> bool:
        """A member of the records asks for news, or to be taken in: it has not heard that it was. Returns whether it is
        to tell this locator that it does not hear the coordinator."""
        self._note_seen(stored)
        return self.is_standby

    def hear_join(self, profile: MemberProfile, nonces: Mapping[int, bytes], stored: DecisionId) -> None:
        """A member asks to be taken in. It may prove that earlier incarnations of its folder have ended: one process
        locks the folder. It names the newest decision that any of them has heard of."""
        name = profile.incarnation.name
        for member_id in profile.before:
            earlier = Incarnation(name, member_id)
            if is_proved(self.members.get(earlier), nonces.get(member_id)):
                self._note_seen(max(profile.seen, stored))
                self._ended.add(earlier)

    def hear_goodbye(self, me: Incarnation, stored: DecisionId) -> None:
        """A member of the records has ended, and asks the coordinator nothing any more."""
        self._note_seen(stored)
        self._ended.add(me)

    def revoke(self, name: str, now_us: int) -> list[Incarnation]:
        """An operator says that the incarnations of a member that are waited for never come back. Returns them. One
        that has said something lately is there."""
        found = [each for each in self._missing(self._heard_lately(now_us)) if each.name == name]
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

    def _missing(self, heard: Iterable[Incarnation]) -> list[Incarnation]:
        return sorted(self.members.keys() - self._ended - self._replaced - set(heard))

    def _heard_lately(self, now_us: int) -> list[Incarnation]:
        return [each for each, at in self._said_us.items() if now_us - at <= SAID_US]

    @property
    def awaited(self) -> list[Incarnation]:
        """The members of the records that are not proved to have ended."""
        return self._missing(())

    def waits_for_members(self, now_us: int) -> bool:
        """Whether nobody but members keeps the standby from taking over."""
        return bool(self.round) or self._obstacle(now_us).startswith(_WAITS)

    @property
    def is_standby(self) -> bool:
        """Whether this locator may take over, as its records say."""
        return self.standby is not None and self.standby.name == self.name and not self.standby.is_out

    def _obstacle(self, now_us: int) -> str:
        """Why the standby cannot begin to take over; empty: it can."""
        if not self.is_standby or not self.members:
            return f"locator {self.name} is not the standby of its coordinator, as far as it knows"
        if self._lacks > self.newest:
            return f"locator {self.name} lacks decision {self._lacks}, of which a member has told: it has {self.newest}"
        if now_us - self._heard_us <= self._wait_us:
            return f"locator {self.name} has heard the coordinator a moment ago"
        silent = self._missing(self._heard_lately(now_us))
        if silent:
            return _waits_for("that these say that they do not hear the coordinator", silent)
        return ""

    def problem(self, now_us: int) -> str:
        """Why the standby does not take over, in words for the user; empty: it does."""
        obstacle = self._obstacle(now_us)
        if not obstacle and (missing := self._missing(self._promised)):
            obstacle = _waits_for("that these promise to ask it nothing", missing)
        if not obstacle:
            return ""
        if self.is_standby and self._lacks > self.newest:
            return (
                f"{obstacle}; the coordinator goes on when it starts again; if it is gone for good, use `start locator"
                " --recover-from-members`"
            )
        return (
            f"{obstacle}; it takes over by itself when that is so; if the coordinator is gone for good, revoke members"
            " that are gone too (`revoke member`), or use `start locator --recover-from-members`"
        )


def _waits_for(what: str, members: list[Incarnation]) -> str:
    return f"{_WAITS} {what}, or are proved to have ended: {', '.join(map(str, members[:8]))}"
