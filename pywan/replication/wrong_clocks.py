"""Owns a member's record of wrong clocks: the members whose changes have stamps ahead of this member's time
(docs/decisions/0084). The record has no thread and no clock."""

from __future__ import annotations

from collections.abc import Collection

from pywan.coordination.tables import Incarnation

KEPT_US = 300_000_000  # A member is shown for so long after the last stamp ahead.


class WrongClocks:
    """Not thread-safe: the lock of the member's replicas guards the record."""

    def __init__(self) -> None:
        self._seen: dict[Incarnation, tuple[int, int]] = {}  # By member: ms ahead, and time of the note.
        self._news: dict[Incarnation, int] = {}

    def note(self, member: Incarnation, ahead_ms: int, now_us: int) -> None:
        """Notes that a member's stamps were ahead by at most so many ms. 0: no stamp was further ahead than this
        member's clock follows."""
        if ahead_ms:
            self._seen[member] = ahead_ms, now_us
            self._news[member] = ahead_ms

    def keep_only(self, members: Collection[Incarnation]) -> None:
        """Keeps only the notes about these members."""
        self._seen = {each: seen for each, seen in self._seen.items() if each in members}

    def ahead_ms(self, now_us: int) -> dict[Incarnation, int]:
        """Returns the members whose changes are ahead, each with the difference in milliseconds."""
        return {each: ahead_ms for each, (ahead_ms, at_us) in self._seen.items() if now_us - at_us < KEPT_US}

    def take_news(self) -> dict[Incarnation, int]:
        """Returns the notes since the last call."""
        news, self._news = self._news, {}
        return news
