"""Owns the limit of a member's memory: the choice of the limit, the measurement of the process, and the log lines about
a member above the limit."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.machine_memory import left_bytes, machine_bytes, process_bytes
from pywan.base.threads import start_essential
from pywan.config.member_attributes import CRITICAL_PERCENT, EVICTION_PERCENT
from pywan.errors import ConfigurationError

log = logging.getLogger("pywan.cache")

MEMORY_SHARE = 0.8  # Part of the machine or its cgroup, for a member without maximum-memory.
CALM_PERCENT = 2.0  # A state ends this far below its beginning.
LOOK_S = 0.2  # Interval of measurements above half of the limit, or with a nearly full machine.
REST_S = 1.0  # Interval otherwise.
LEFT_MIN_BYTES = 256 << 20  # Least memory left on the machine, or a twentieth of the limit. Below, changes are refused.
TRIM_S = 1.0  # Interval of giving freed memory back to the system, above the limit.

_of_process: weakref.WeakSet[MemoryWatch] = weakref.WeakSet()


class Measured(Protocol):
    @property
    def free_bytes(self) -> int: ...


class MemoryWatch:
    """Measures the process now and then, and updates `limit`, the shared limit of the member's regions, queues and
    replication links.

    The measurement of a member with a `maximum_memory` leaves out the bytes of other members in this process. A member
    without `maximum_memory` is measured as the process as a whole.
    """

    def __init__(
        self,
        name: str,
        maximum_memory: int | None,
        critical_heap_percentage: float | None,
        eviction_heap_percentage: float | None,
    ) -> None:
        """`maximum_memory` in MB; None: a share of the machine. Percentages refer to `maximum_memory`; None: the
        default; 0: no refusal, or no log line. ConfigurationError: an argument cannot be used."""
        self._name = name
        what = f"cache {name!r}"
        critical = CRITICAL_PERCENT if critical_heap_percentage is None else critical_heap_percentage
        eviction = min(EVICTION_PERCENT, critical or EVICTION_PERCENT)
        if eviction_heap_percentage is not None:
            eviction = eviction_heap_percentage
        if critical and eviction > critical:
            raise ConfigurationError(
                f"{what}: eviction_heap_percentage {eviction:g} is above critical_heap_percentage {critical:g}; it"
                " warns before changes are refused, so make it lower"
            )
        self._is_own = maximum_memory is not None
        bytes_ = int(machine_bytes() * MEMORY_SHARE) if maximum_memory is None else maximum_memory << 20
        self.critical_percent, self.eviction_percent = critical, eviction
        self.is_limited = critical > 0
        self.limit = _core.MemoryLimit(
            name,
            bytes_ if self.is_limited else 1 << 62,
            int(bytes_ * critical / 100) if self.is_limited else 1 << 62,
            int(bytes_ * max(0.0, critical - CALM_PERCENT) / 100),
        )
        self._bytes = bytes_
        self._is_warned = self._is_short = False
        self._shorts = 0
        self._since = time.time()  # Start of the time above the limit.
        self._lines = Lines(log)
        self._trimmed_s = 0.0
        self._thread: threading.Thread | None = None
        _of_process.add(self)

    def start(
        self,
        closed: threading.Event,
        regions: Callable[[], Iterable[Measured]],
        gives_up: Callable[[str], object],
    ) -> None:
        """Measures once, and starts the thread. `regions` returns the member's regions."""
        self._regions = regions
        self.look()
        self._thread = start_essential(
            f"member {self._name} cannot start", f"{self._name}-memory", lambda: self._watch(closed), gives_up=gives_up
        )

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)
        _of_process.discard(self)

    def look(self) -> None:
        """Measures the process, and logs changes."""
        counted = sum(watch.limit.counted for watch in list(_of_process)) if self._is_own else self.limit.counted
        free = sum(region.free_bytes for region in self._regions())
        left = left_bytes() if self.is_limited else 1 << 62
        is_low = left < min(LEFT_MIN_BYTES, self._bytes // 20)
        self.limit.note(process_bytes() - counted, free, left if is_low else None)
        self._say(left)
        if self.limit.is_short and time.monotonic() - self._trimmed_s > TRIM_S:
            self._trimmed_s = time.monotonic()
            _core.trim_memory(1 << 20)

    def status(self) -> dict[str, Any]:
        """Returns the numbers as plain values, in bytes."""
        limit = self.limit
        return {
            "used": limit.used,
            "regions_and_queues": limit.counted,
            "free": min(limit.free, limit.counted),
            "maximum": self._bytes,
            "critical": limit.critical if self.is_limited else None,
            "is_above_critical": limit.is_short,
            "above_critical_since": self._since if self._is_short else None,
            "times_above_critical": limit.shorts,
            "refused": limit.refused,
        }

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(LOOK_S if self.limit.is_short or self._fill() > 0.5 else REST_S):
            self.look()

    def _fill(self) -> float:
        return max(0, self.limit.used - self.limit.free) / self._bytes

    def _say(self, left: int) -> None:
        percent = self._fill() * 100
        is_short = self.limit.is_short
        came = self.limit.shorts != self._shorts
        self._shorts = self.limit.shorts
        if came and not self._is_short:
            self._since = time.time()
        if (is_short or came) and not self._is_short:
            self._lines.warning(
                "member %s is above its limit of memory: %d MB of %d MB (critical-heap-percentage %g), the machine has"
                " %d MB left; changes that need memory are refused until there is some: destroy entries, start another"
                " member, or raise maximum-memory",
                self._name,
                self.limit.used >> 20,
                self._bytes >> 20,
                self.critical_percent,
                left >> 20,
                once=("critical",),
            )
        elif self._is_short and not is_short:
            self._lines.warning(
                "member %s has memory again: %d MB of %d MB; %d changes were refused so far",
                self._name,
                self.limit.used >> 20,
                self._bytes >> 20,
                self.limit.refused,
                once=("back",),
            )
        self._is_short = is_short
        if not self.eviction_percent or is_short:
            return
        if percent >= self.eviction_percent and not self._is_warned:
            self._is_warned = True
            self._lines.warning(
                "member %s has %d MB of its %d MB (eviction-heap-percentage %g); from %d MB on changes that need"
                " memory are refused",
                self._name,
                self.limit.used >> 20,
                self._bytes >> 20,
                self.eviction_percent,
                self.limit.critical >> 20,
                once=("warning",),
            )
        elif percent < self.eviction_percent - CALM_PERCENT:
            self._is_warned = False
