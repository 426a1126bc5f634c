"""Owns the repairs of a member's clock. One repair runs at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

from pywan.config.values import MAX_WAIT_S
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.limitations import Limitation
from pywan.member.regions import Regions
from pywan.member.senders import Senders
from pywan.member.state import MemberState
from pywan.member.tombstones import Tombstones
from pywan.region.clock_repair import ClockRepair, ClockRepairReport
from pywan.region.member_region import MemberRegion

log = logging.getLogger("pywan.cache")


class ClockRepairs:
    """The repairs of the clock of one member."""

    def __init__(self, state: MemberState, regions: Regions, senders: Senders, tombstones: Tombstones) -> None:
        self._state, self._regions, self._senders, self._tombstones = state, regions, senders, tombstones
        self._lock = threading.Lock()  # Held by the running repair.

    def steps(self, regions: Any, *, dry_run: bool, timeout: float) -> Iterator[ClockRepairReport]:
        """Runs a repair, and yields its report again and again, for the last time when the repair is done."""
        self._state.check_open()
        names = [regions] if isinstance(regions, str) else list(regions)
        wanted = [self._regions.get(name) for name in names]
        for region in wanted:
            if region.route is not None:
                raise IllegalStateError(
                    f"region {region.name!r} is on several members:"
                    f" {Limitation.NO_REPAIR_OF_STAMPS.refusal(outcome='nothing was changed')}"
                )
        wanted = wanted or [region for region in self._regions.all() if region.route is None]
        others = [region for region in self._regions.all() if region not in wanted]
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= MAX_WAIT_S:
            raise ConfigurationError(
                f"cache {self._state.name!r}: repair_clock: timeout {timeout!r} is not a number of"
                f" seconds from 0 to {MAX_WAIT_S}"
            )
        return self._steps(wanted, others, dry_run, timeout)

    def _steps(
        self,
        regions: list[MemberRegion],
        others: list[MemberRegion],
        dry_run: bool,
        timeout: float,
    ) -> Iterator[ClockRepairReport]:
        member, clock = self._state.name, self._state.clock
        if not self._lock.acquire(blocking=False):
            raise IllegalStateError(
                f"the clock of member {member!r} is being repaired already; nothing was changed."
                " Wait until that is done"
            )
        try:
            held_ms = clock.held_ms
            if held_ms and not dry_run:
                raise IllegalStateError(
                    f"the clock of member {member!r} jumped ahead, and is {held_ms // 1000} s ahead the time that has"
                    " passed; nothing was changed. Put it right first; if it is right by now, restart the member"
                )
            with self._tombstones.repairing():
                repair = ClockRepair(
                    clock,
                    regions,
                    # Events for a region of several members keep their stamps, as the region does.
                    [core for core in self._senders.cores() if not core.queue.runs()],
                    site=self._state.site,
                    others=others,
                    dry_run=dry_run,
                    timeout=timeout,
                    begin=self._tombstones.begin_repair,
                    pause=self._state.closed.wait,
                    floors_lock=self._tombstones.lock,
                )
                if not dry_run:
                    log.warning(
                        "member %s: its stamps are %d s ahead of its clock; entries and events ahead of it are"
                        " stamped anew",
                        member,
                        repair.report.ahead_ms // 1000,
                    )
                yield from repair.run()
                if not dry_run:
                    log.warning("member %s: its clock is repaired: %s", member, repair.report.to_dict())
        finally:
            self._lock.release()
