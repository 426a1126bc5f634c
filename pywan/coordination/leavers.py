"""The draining members: which members want to leave, which may leave, and whether the whole site ends.

Nothing of this state is stored: after a restart of the coordinator, draining members ask again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import MayLeave, StillNeeded
from pywan.coordination.outbox import Outbox
from pywan.coordination.tables import Incarnation

# Repeated questions of a draining member cause an examination of its buckets at most this often.
LOOK_AGAIN_US = 1_000_000
LEAVE_REPEATED_US = 10_000_000  # A member drains no more after this time without a repeated question.
SITE_ENDS_US = 10_000_000  # When the site ends, members are given at most this time to ask.


@dataclass
class Leaver:
    asked_us: int
    is_released: bool = False  # The member was given `MayLeave`.
    needed: StillNeeded = field(default_factory=StillNeeded)  # The last answer to the member.
    lost: tuple[tuple[str, int], ...] = ()  # The answer at the release: by region, the number of buckets that end.
    looked_us: int = 0  # When a question of the member last caused an examination of its buckets.


class Leavers:
    """A part of the coordinator. `Moves` moves the buckets of draining members, and says when no bucket needs a
    member."""

    def __init__(self, site: Decisions, liveness: Liveness, outbox: Outbox) -> None:
        self._site, self._liveness, self._outbox = site, liveness, outbox
        self._leavers: dict[Incarnation, Leaver] = {}  # In the order in which the members asked.
        self._ends_at: int | None = None  # The site ends, and all members are waited for until this time.

    # --- questions ---

    @property
    def first(self) -> Incarnation | None:
        """The member whose buckets are moved away now. Other draining members wait, and still take replicas."""
        return next((each for each, leaver in self._leavers.items() if not leaver.is_released), None)

    def waiting(self) -> list[tuple[Incarnation, Leaver]]:
        """The draining members that may not leave yet, in the order in which the members asked."""
        return [(each, leaver) for each, leaver in self._leavers.items() if not leaver.is_released]

    def is_leaving(self, member: Incarnation) -> bool:
        return member in self._leavers

    def is_released(self, member: Incarnation) -> bool:
        return member in self._leavers and self._leavers[member].is_released

    def takes_replicas(self, member: Incarnation) -> bool:
        return member != self.first and not self.is_released(member)

    @property
    def site_ends(self) -> bool:
        return self._ends_at is not None

    def times_us(self) -> Iterator[int]:
        """The times at which work is due."""
        for leaver in self._leavers.values():
            yield leaver.asked_us + LEAVE_REPEATED_US
        if self._ends_at is not None:
            yield self._ends_at

    # --- events ---

    def ask(self, member: Incarnation, now_us: int) -> tuple[Leaver, bool]:
        """The member asks whether it may leave. Returns the draining member, and whether to examine its buckets again.

        An examination takes a second if the member has all buckets of a large site. So a member that asks again soon
        gets the last answer again. `Moves` examines waiting members in any case after a new metadata record.
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
        """The member no longer drains, or has departed. Returns whether the member was draining."""
        return self._leavers.pop(member, None) is not None

    def release(self, member: Incarnation, lost: tuple[tuple[str, int], ...]) -> None:
        """Lets a draining member end. The answer is sent once; the member asks again if the answer was lost.

        `lost`: by region, the number of buckets that end with the member.
        """
        leaver = self._leavers[member]
        leaver.is_released, leaver.lost = True, lost
        self._liveness.go_down(member)
        self._outbox.tell(member, MayLeave(lost))

    def drop_late(self, now_us: int) -> bool:
        """Drops the members whose last question is too old. Returns whether any was dropped."""
        late = [each for each, leaver in self._leavers.items() if leaver.asked_us + LEAVE_REPEATED_US <= now_us]
        for member in late:
            self.stay(member)
        return bool(late)

    # --- the end of the site ---

    def end_site(self, now_us: int) -> None:
        """All members are about to ask whether they may leave."""
        self._ends_at = now_us + SITE_ENDS_US

    def site_goes_on(self) -> None:
        """A member has joined."""
        self._ends_at = None

    def end_together(self, now_us: int) -> None:
        """Lets all members end at the same time: when each member has asked, or when the time for asking is over."""
        waiting = [each for each in self._site.members if self._liveness.is_there(each) and each not in self._leavers]
        is_late = self._ends_at is not None and self._ends_at <= now_us
        for member, leaver in self._leavers.items():
            if waiting and not is_late:
                leaver.needed = StillNeeded(waits_for=min(waiting).name)
            elif not leaver.is_released:
                self.release(member, ())
        if is_late:
            self._ends_at = None  # The members that are still alive go on.
