"""Owns the clock of leases, and the words for what can be wrong with a member's clock: it jumped ahead and is not
followed, or the member's stamps are ahead of it."""

from __future__ import annotations

from typing import NamedTuple

from pywan import _core

DRIFT_MS = 300_000  # Receivers park an event whose stamp is further ahead of their clock (`max_drift_ms`).


def boot_us() -> int:
    """Microseconds by a clock that never goes back, and that goes on while the machine is suspended."""
    return _core.monotonic_us()


class ClockTrouble(NamedTuple):
    """What is wrong with a clock.

    Attributes:
        kind: A word that stays the same while the trouble lasts.
        text: The words for people.
    """

    kind: str
    text: str


def clock_trouble(clock: _core.Clock) -> ClockTrouble | None:
    """Returns what is wrong with a member's clock. None: nothing is."""
    held_ms, ahead_ms = clock.held_ms, clock.ahead_ms
    if ahead_ms > DRIFT_MS:
        return ClockTrouble(
            "ahead",
            f"stamps are {ahead_ms // 1000} s ahead of the time, and so is every new event: other sites park what is"
            f" more than {DRIFT_MS // 1000} s ahead of theirs. Put the clock right, then use `repair clock`"
            ' ("Clocks" in docs/operations.md)',
        )
    if held_ms:
        return ClockTrouble(
            "held",
            f"it jumped ahead, and is {held_ms // 1000} s ahead of the time that has passed; it is not followed until"
            " another site's stamps agree with it, it is corrected, or the member restarts",
        )
    return None
