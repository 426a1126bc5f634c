"""Owns which members want to leave, which of them may, and whether the whole site ends.

Nothing of this is stored: a coordinator that starts again hears again who leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import MayLeave, StillNeeded
from pywan.coordination.outbox import Outbox
from pywan.coordination.tables import Incarnation

LOOK_AGAIN_US = 1_000_000  # So often at most a member that asks whether it may leave is looked at for no other reason.
LEAVE_REPEATED_US = 10_000_000  # Who has not asked for so long whether it may leave does not leave any more.
SITE_ENDS_US = 10_000_000  # When the site ends, members that have not asked for so long are waited for no longer.


@dataclass
class Leaver:
    asked_us: int
    is_released: bool = False  # It was told that it may end.
    needed: StillNeeded = field(default_factory=StillNeeded)  # What it was told last.
    lost: tuple[tuple[str, int], ...] = ()  # What it was told as it was released: by region, the buckets that end.
    looked_us: int = 0  # When its buckets were looked at because it asked.


class Leavers:
    """A part of the coordinator. `Moves` moves the buckets of those who leave, and says when nobody needs them."""

    def __init__(self, site: Decisions, liveness: Liveness, outbox: Outbox) -> None:
        self._site, self._liveness, self._outbox = site, liveness, outbox
        self._leavers: dict[Incarnation, Leaver] = {}  # In the order in which they asked.
        self._ends_at: int | None = None  # The site ends, and so long all members are waited for.

    # --- questions ---

    @property
    def first(self) -> Incarnation | None:
        """The member whose buckets are moved away now. The others that want to leave wait, and still take copies."""
        return next((each for each, leaver in self._leavers.items() if not leaver.is_released), None)

    def waiting(self) -> list[tuple[Incarnation, Leaver]]:
        """Those that may not leave yet, in the order in which they asked."""
        return [(each, leaver) for each, leaver in self._leavers.items() if not leaver.is_released]

    def is_leaving(self, member: Incarnation) -> bool:
        return member in self._leavers

    def is_released(self, member: Incarnation) -> bool:
        return member in self._leavers and self._leavers[member].is_released

    def takes_copies(self, member: Incarnation) -> bool:
        return member != self.first and not self.is_released(member)

    @property
    def site_ends(self) -> bool:
        return self._ends_at is not None

    def times_us(self) -> Iterator[int]:
        """When something is due."""
        for leaver in self._leavers.values():
            yield leaver.asked_us + LEAVE_REPEATED_US
        if self._ends_at is not None:
            yield self._ends_at

    # --- what happens ---

    def ask(self, member: Incarnation, now_us: int) -> tuple[Leaver, bool]:
        """The member asks whether it may leave. Returns whether it is to be looked at anew.

        That takes a second if it has all buckets of a large site. So a member that asks again and again is told again
        what it was told last. `Moves` looks at those that wait in any case when something is decided.
        """
        is_new = member not in self._leavers
        leaver = self._leavers.setdefault(member, Leaver(now_us))
        leaver.asked_us = now_us
        is_to_look = is_new or now_us - leaver.looked_us >= LOOK_AGAIN_US
        if is_to_look:
            leaver.looked_us, leaver.is_released = now_us, False
        elif leaver.is_released:
            self._outbox.tell(member, MayLeave(leaver.lost))
        return leaver, is_to_look

    def stay(self, member: Incarnation) -> bool:
        """The member does not leave any more, or is gone. Returns whether it wanted to."""
        return self._leavers.pop(member, None) is not None

    def release(self, member: Incarnation, lost: tuple[tuple[str, int], ...]) -> None:
        """Lets a member go that has asked. It is told once; it asks again if it did not hear that.

        `lost`: by region, the buckets that end with it.
        """
        leaver = self._leavers[member]
        leaver.is_released, leaver.lost = True, lost
        self._liveness.go_down(member)
        self._outbox.tell(member, MayLeave(lost))

    def drop_late(self, now_us: int) -> bool:
        """Drops those who have not asked for long. Returns whether there were any."""
        late = [each for each, leaver in self._leavers.items() if leaver.asked_us + LEAVE_REPEATED_US <= now_us]
        for member in late:
            self.stay(member)
        return bool(late)

    # --- the end of the site ---

    def end_site(self, now_us: int) -> None:
        """All members are about to ask whether they may leave."""
        self._ends_at = now_us + SITE_ENDS_US

    def site_goes_on(self) -> None:
        """A member has come."""
        self._ends_at = None

    def end_together(self, now_us: int) -> None:
        """Lets all go at the same time: when each member has asked, or when the time for that is over."""
        waiting = [each for each in self._site.members if self._liveness.is_there(each) and each not in self._leavers]
        is_late = self._ends_at is not None and self._ends_at <= now_us
        for member, leaver in self._leavers.items():
            if waiting and not is_late:
                leaver.needed = StillNeeded(waits_for=min(waiting).name)
            elif not leaver.is_released:
                self.release(member, ())
        if is_late:
            self._ends_at = None  # Those that are still there go on.
