"""Owns what a member knows of the clocks of other members: whose changes have stamps that are ahead of the time here
(docs/decisions/0084). It knows no thread and no clock."""

from __future__ import annotations

from collections.abc import Collection

from pywan.coordination.tables import Incarnation

KEPT_US = 300_000_000  # A member whose changes were not ahead for so long is not shown any more.


class WrongClocks:
    """Not thread-safe: the lock of the member's copies guards it."""

    def __init__(self) -> None:
        self._seen: dict[Incarnation, tuple[int, int]] = {}  # By how many ms it was ahead, and when.
        self._news: dict[Incarnation, int] = {}

    def note(self, member: Incarnation, ahead_ms: int, now_us: int) -> None:
        """Stamps of changes that a member sent were ahead by so much, at most. 0: none was further ahead than this
        member's clock follows."""
        if ahead_ms:
            self._seen[member] = ahead_ms, now_us
            self._news[member] = ahead_ms

    def keep_only(self, members: Collection[Incarnation]) -> None:
        """Forgets members that are not among these."""
        self._seen = {each: seen for each, seen in self._seen.items() if each in members}

    def ahead_ms(self, now_us: int) -> dict[Incarnation, int]:
        """Returns the members whose changes are ahead, and by how many milliseconds."""
        return {each: ahead_ms for each, (ahead_ms, at_us) in self._seen.items() if now_us - at_us < KEPT_US}

    def take_news(self) -> dict[Incarnation, int]:
        """Returns what was noted since the last call."""
        news, self._news = self._news, {}
        return news
