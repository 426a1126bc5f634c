"""Owns the steps of a repair of a member's clock.

Entries of the member's regions, and events in the queues of the senders, are stamped anew and sent again if they are
ahead of the time. The repair works in rounds, until a round finds none. The member gives the regions and senders, and
announces the tombstone watermarks.

However much is changed meanwhile, the rounds end. The clock is set back first, and a change of an entry that is ahead
does not move the clock: so a change makes no entry ahead that was not ahead before. The first round stamps each entry
anew. The next round finds the results of changes with stamps from before the repair, at most one for each thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pywan import _core

IN_FLIGHT_LOOK_S = 0.02  # The time between two looks at events in flight: they will be parked, or taken.


class ClockRepairReport:
    """The numbers of entries and events found so far, or stamped anew."""

    def __init__(self, regions: Iterable[Any], senders: Iterable[Any], ahead_ms: int, dry_run: bool) -> None:
        self.ahead_ms = ahead_ms  # By how much the highest stamp was ahead of the member's clock.
        # The time of the member's clock, for the comparison with a second clock.
        self.now_ms = time.time_ns() // 1_000_000
        self.dry_run = dry_run
        self.rounds = 0
        self.left = 0  # The number of events that were in flight all the time, and stay ahead.
        self.regions = {region.name: {"entries": 0, "tombstones": 0} for region in regions}
        self.senders = {sender.id: {"queued": 0, "parked": 0} for sender in senders}

    @property
    def total(self) -> int:
        return sum(count for counts in (*self.regions.values(), *self.senders.values()) for count in counts.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return {
            "ahead_ms": self.ahead_ms,
            "now_ms": self.now_ms,
            "dry_run": self.dry_run,
            "rounds": self.rounds,
            "left": self.left,
            "total": self.total,
            "regions": {name: dict(counts) for name, counts in self.regions.items()},
            "senders": {id: dict(counts) for id, counts in self.senders.items()},
        }


class ClockRepair:
    """One repair, used by one thread.

    `regions` are repaired, with their events in the queues of `senders`. `others` are the member's regions that are not
    repaired. `begin(core)` must call `core.begin()`; from then on until the repair ends, `begin` must let the member
    announce no tombstone watermark above `core.began`. `pause` waits for a moment, and returns whether to give up.
    While `floors_lock` is held, no tombstones are dropped.
    """

    def __init__(
        self,
        clock: _core.Clock,
        regions: Iterable[Any],
        senders: Iterable[Any],
        *,
        site: int,
        others: Iterable[Any],
        dry_run: bool,
        timeout: float,
        begin: Callable[[_core.ClockRepair], bool],
        pause: Callable[[float], bool],
        floors_lock: AbstractContextManager[Any],
    ) -> None:
        self._clock, self._regions, self._senders, self._others = clock, list(regions), list(senders), list(others)
        self._timeout, self._begin, self._pause, self._floors_lock = timeout, begin, pause, floors_lock
        self._core = _core.ClockRepair(clock, self._regions, site=site, others=not self._others)
        self.report = ClockRepairReport(self._regions, self._senders, clock.ahead_ms, dry_run)

    def run(self) -> Iterator[ClockRepairReport]:
        """Yields the report whenever the report has changed."""
        if self.report.dry_run:
            self._count()
            yield self.report
            return
        core, report = self._core, self.report
        was_ahead = self._begin(core)
        restamped = {region.name for region in self._regions if was_ahead or core.log_is_ahead(region)}
        queues = {sender.id for sender in self._senders if core.lower_newest(sender.queue) or was_ahead}
        self._drops = {sender.id: _drops(sender) for sender in self._senders}
        self._fed = {sender.id: self._feeding(sender) for sender in self._senders}
        while True:
            idle_since = time.monotonic()
            while True:
                report.rounds += 1
                before = report.total
                waiting = yield from self._round()
                if waiting == 0 and report.total == before:
                    break
                if report.total != before:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > self._timeout or self._pause(IN_FLIGHT_LOOK_S):
                    report.left = waiting
                    break
            restamped |= {name for name, counts in report.regions.items() if any(counts.values())}
            queues |= {id for id, counts in report.senders.items() if any(counts.values())}
            if not report.left:
                self._settle(restamped, queues)
            # A change with an earlier stamp may have come meanwhile.
            is_ahead = core.begin()
            if report.left or (not is_ahead and not any(sum(core.count_entries(region)) for region in self._regions)):
                yield report
                return

    def _count(self) -> None:
        for region in self._regions:
            counts = self.report.regions[region.name]
            counts["entries"], counts["tombstones"] = self._core.count_entries(region)
        for sender in self._senders:
            self.report.senders[sender.id] = {
                "queued": self._core.count_events(sender.queue),
                "parked": self._core.count_events(sender.parked.queue),
            }

    def _round(self) -> Generator[ClockRepairReport, None, int]:
        """Stamps anew all entries and events that are ahead now. Returns how many events were found ahead."""
        core, report, waiting = self._core, self.report, 0
        by_name = {region.name: region for region in self._regions}
        core.begin()
        for sender in self._senders:
            waiting += core.count_events(sender.queue) + core.count_events(sender.parked.queue)
        # The events' turn comes first: an entry that changes afterwards gets a later stamp, which stays.
        for region in self._regions:
            report.regions[region.name]["entries"] += core.restamp_invalid(region)
        core.give_stamps()
        for region in self._regions:
            following: int | None = 0
            while following is not None:
                following = self._restamp(region, following)
                yield report
            region.wait_durable()
        for sender in self._senders if waiting else ():
            feeding, drops = self._feeding(sender), _drops(sender)
            self._fed[sender.id] = self._fed[sender.id] & feeding if drops == self._drops[sender.id] else set()
            self._drops[sender.id] = drops
            fed = [region for region in self._regions if region.name in self._fed[sender.id]]
            counts = report.senders[sender.id]
            taken, stale = core.restamp_events(sender.queue, sender.queue, fed)
            counts["queued"] += taken
            yield report
            with sender.parked.lock:
                taken, more = core.restamp_events(sender.parked.queue, sender.queue, fed)
            counts["parked"] += taken
            for region, record in stale + more:
                report.regions[region.name]["entries"] += by_name[region.name].callbacks.remake(core, record)
            yield report
        return waiting

    def _restamp(self, region: Any, shard: int) -> int | None:
        """Stamps entries anew, beginning with a shard. Returns the shard to go on with. None: all shards are done."""
        counts = self.report.regions[region.name]
        entries, tombstones, following, by_callbacks = self._core.restamp_entries(region, shard)
        counts["entries"] += entries
        counts["tombstones"] += tombstones
        if not by_callbacks:
            return following
        assert following is not None
        for key, is_tombstone in self._core.ahead_keys(region, following):
            counts["tombstones" if is_tombstone else "entries"] += region.callbacks.restamp(self._core, key)
        return following

    def _feeding(self, sender: Any) -> set[str]:
        """Returns the names of the regions whose changes enter the sender's queue."""
        return {region.name for region in self._regions if self._core.is_fed(sender.queue, region)}

    def _settle(self, regions: set[str], queues: set[str]) -> None:
        """Makes logs forget stamps that were ahead: a restart must not make the clock run ahead again."""
        for region in self._regions:
            if region.name in regions:
                with self._floors_lock:
                    self._core.finish_region(region)
                region.wait_durable()
        for sender in self._senders:
            if sender.id in queues and not self._others:  # Otherwise the queue may hold events that are ahead.
                self._core.finish_queue(sender.queue)


def _drops(sender: Any) -> int:
    """Returns how many events the queue did not take. Events of the repair count too."""
    counts: Mapping[str, int] = sender.queue.counts()
    return counts["dropped_stopped"] + counts["dropped_newest"] + counts["dropped_oldest"]
