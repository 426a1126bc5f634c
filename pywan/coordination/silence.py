"""Owns the silence of a coordinator that has just started: it decides nothing about buckets while members may know more
than it does."""

from __future__ import annotations

from collections.abc import Iterable

from pywan.coordination.tables import Incarnation

_SOMEBODY = Incarnation("", 0)  # Stands for members that this coordinator has forgotten.
GENERATIONS_MAX = 16  # They may begin in one silence: members that come back may know different runs.


class Silence:
    """There is silence until every member of earlier runs was heard, or is given up, and for one lease at most.

    In a silence that a generation has begun, more of them may begin: each may tell of later decisions. The silence gets
    no longer by that: the leases of members that nobody knows were given before this run. When it is over, nothing
    begins another one for as long as it lasted. So the site decides half of the time, whatever members tell.

    For example, with a lease of 5 s: a member comes at 100 s that knows lost decisions, and another one at 102 s that
    knows later ones. The silence is over at 105 s. A third one that comes at 107 s is taken in at 110 s.
    """

    def __init__(self, members: Iterable[Incarnation], until_us: int) -> None:
        self._silent = set(members)  # Members of earlier runs that this run has not heard.
        self._until_us = until_us
        self._generations = 0  # They have begun since the last silence of that kind began.
        self._next_us = 0  # Before this time, no other silence of that kind begins.

    def __contains__(self, member: Incarnation) -> bool:
        return member in self._silent

    @property
    def is_on(self) -> bool:
        return bool(self._silent)

    def end_for(self, member: Incarnation) -> None:
        """The member was heard, or it was given up."""
        self._silent.discard(member)

    def begin(self, now_us: int, lease_us: int) -> None:
        """Decisions were lost: a member that nobody knows of may still have a lease."""
        if _SOMEBODY not in self._silent:
            self._silent.add(_SOMEBODY)
            self._until_us, self._next_us, self._generations = now_us + lease_us, now_us + 2 * lease_us, 0
        self._generations += 1

    def wait_us(self, now_us: int) -> int:
        """How long a member waits that would begin a generation; 0: not at all."""
        if self._generations == 0 or (_SOMEBODY in self._silent and self._generations < GENERATIONS_MAX):
            return 0
        return max(self._next_us - now_us, 0)

    def tick(self, now_us: int) -> None:
        if now_us >= self._until_us:
            self._silent.clear()

    def next_us(self) -> int | None:
        """When it is over at the latest. None: it is over."""
        return self._until_us if self._silent else None
