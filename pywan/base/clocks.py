"""Owns the words for a member's clock that is not right: held, since it jumped ahead, or behind the stamps that were given."""

from __future__ import annotations

from typing import NamedTuple

from pywan import _core

DRIFT_MS = 300_000  # A stamp that is further ahead of their clock is parked by receivers (`max_drift_ms`).


class ClockTrouble(NamedTuple):
    kind: str  # Stays while the trouble does.
    text: str


def clock_trouble(clock: _core.Clock) -> ClockTrouble | None:
    held_ms, ahead_ms = clock.held_ms, clock.ahead_ms
    if ahead_ms > DRIFT_MS:
        return ClockTrouble(
            "ahead",
            f"stamps are {ahead_ms // 1000} s ahead of the time, and so is every new event: other sites park what is more than "
            f'{DRIFT_MS // 1000} s ahead of theirs. Put the clock right, then use `repair clock` ("Clocks" in docs/operations.md)',
        )
    if held_ms:
        return ClockTrouble(
            "held",
            f"it jumped ahead, and is {held_ms // 1000} s ahead of the time that has passed; it is not followed until another site's stamps agree with it, "
            "it is corrected, or the member restarts",
        )
    return None
