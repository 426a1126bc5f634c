"""Owns the clocks of members that tests set, and stamps that ran ahead."""

from __future__ import annotations

import time

HOUR = 3_600_000
START = 1_700_000_000_000


class Machine:
    """A member's wall clock, which can jump, and the clock that only runs forward."""

    def __init__(self, clock, now_ms=START):
        self.clock, self.true_ms, self.started_ms, self.wrong_ms = clock, now_ms, now_ms - 1000, 0
        self.run(0)

    def run(self, ms):
        self.true_ms += ms
        self.clock.set_time(self.true_ms + self.wrong_ms, self.true_ms - self.started_ms)

    def jump(self, ms):
        self.wrong_ms += ms
        self.run(0)

    def stamp_ahead(self):
        return (self.clock.take() >> 16) - self.true_ms


def now_ms():
    return time.time_ns() // 1_000_000


def run_ahead(cache, ms=HOUR):
    """The member's clock was so far ahead for a moment, and is right now: its stamps go on from the highest."""
    cache._core.state.clock.set_time(now_ms() + ms)
    cache._core.state.clock.take()
    cache._core.state.clock.set_time(0)
    assert cache._core.state.clock.ahead_ms > ms - 60_000
