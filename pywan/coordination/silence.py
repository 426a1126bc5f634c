"""Owns the silence of a coordinator that has just started: it decides nothing about buckets while members may know more
than it does."""

from __future__ import annotations

from collections.abc import Iterable

from pywan.coordination.tables import Incarnation

_SOMEBODY = Incarnation("", 0)  # Stands for members that this coordinator has forgotten.


class Silence:
    """There is silence until every member of earlier runs was heard, or is given up, and for one lease at most."""

    def __init__(self, members: Iterable[Incarnation], until_us: int) -> None:
        self._silent = set(members)  # Members of earlier runs that this run has not heard.
        self._until_us = until_us

    def __contains__(self, member: Incarnation) -> bool:
        return member in self._silent

    @property
    def is_on(self) -> bool:
        return bool(self._silent)

    def end_for(self, member: Incarnation) -> None:
        """The member was heard, or it was given up."""
        self._silent.discard(member)

    def begin(self, until_us: int) -> None:
        """Decisions were lost: a member that nobody knows of may still have a lease."""
        self._silent.add(_SOMEBODY)
        self._until_us = until_us

    def tick(self, now_us: int) -> None:
        if now_us >= self._until_us:
            self._silent.clear()

    def next_us(self) -> int | None:
        """When it is over at the latest. None: it is over."""
        return self._until_us if self._silent else None
