"""Owns the memory of who failed to show who they are: who fails again and again has to wait, and nobody else."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

FREE_TRIES = 3  # So many tries of one user from one address may fail in a row before the next one has to wait.
FIRST_WAIT_S = 0.25  # Doubled with each try that fails, up to the next one.
LONGEST_WAIT_S = 5.0
OF_ADDRESS = 20  # So many tries of all users together may fail at once from one address,
OF_ADDRESS_A_SECOND = 2.0  # and then so many a second.
KEPT_MAX = 4096  # Of each kind, so many are remembered: those that failed last.
FORGET_S = 600.0


class Tries:
    """Any thread may use it. Addresses are shares of `transport/openings`.

    Args:
        clock: Returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # Guards all below.
        self.failed_count = self.slowed_count = 0
        self._users: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()  # How often in a row, and when.
        self._addresses: OrderedDict[str, tuple[float, float]] = OrderedDict()  # Tries that are left, and when.

    def wait_s(self, address: str, user: str) -> float:
        """Returns for how long a try has to wait. One that waits is refused without a look at the password."""
        with self._lock:
            now = self._clock()
            times, at = self._users.get((address, user), (0, now))
            wait = 0.0
            if times >= FREE_TRIES and now - at < FORGET_S:
                wait = min(FIRST_WAIT_S * 2.0 ** min(times - FREE_TRIES, 16), LONGEST_WAIT_S) - (now - at)
            left = self._left(address, now)
            if left < 1.0:
                wait = max(wait, (1.0 - left) / OF_ADDRESS_A_SECOND)
            if wait > 0:
                self.slowed_count += 1
            return max(0.0, wait)

    def failed(self, address: str, user: str) -> int:
        """Notes a try that failed. Returns how many of that user and address have failed in a row."""
        with self._lock:
            now = self._clock()
            self.failed_count += 1
            times, at = self._users.pop((address, user), (0, now))
            times = times + 1 if now - at < FORGET_S else 1
            self._users[address, user] = times, now
            left = self._left(address, now) - 1.0
            self._addresses.pop(address, None)
            self._addresses[address] = left, now
            for each in (self._users, self._addresses):
                while len(each) > KEPT_MAX:
                    each.popitem(last=False)
            return times

    def worked(self, address: str, user: str) -> None:
        """Notes a try that worked."""
        with self._lock:
            self._users.pop((address, user), None)

    def _left(self, address: str, now: float) -> float:
        left, at = self._addresses.get(address, (float(OF_ADDRESS), now))
        return min(float(OF_ADDRESS), left + (now - at) * OF_ADDRESS_A_SECOND)


__all__ = ["Tries"]
