"""Owns rolling restarts of a site under load: what they cost a call, beside the same load without restarts.

Rolling restarts and times without any take turns, each as long as the other, so that both meet the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .campaign import World
from .faults import MEMBERS, Faults
from .rest import wait_until, why_not_whole
from .world import Site

CALLER = "caller"  # A member that stores nothing and is never restarted.
PAUSE_S = 0.005  # Of a client after an operation, in the mean. The processes together use less than one core.
PERCENTILES = (50.0, 99.0, 99.9, 100.0)


class Window(NamedTuple):
    began: float
    over: float
    has_restarts: bool


class RollingWorld(World):
    """A site whose members are restarted one after the other, again and again.

    Attributes:
        windows: When restarts were going on, and when not.
    """

    pause_s = PAUSE_S
    network_share = 0.0

    def __init__(self, seed: int, folder: Path, *, layout: str, goes_first: bool, tell: Callable[[str], None]) -> None:
        super().__init__(seed, folder, faults=("rolling",), layout=layout)
        self._tell, self.goes_first = tell, goes_first
        self.windows: list[Window] = []

    def _rounds(self, site: Site, faults: Faults, rounds: int) -> None:
        proxies = [{**each, "type": f"{each['type']}_PROXY"} for each in site.regions]
        self._begin_clients(site.start(CALLER, proxies))
        wait_until(lambda: why_not_whole(site, self._regions), "all buckets have their replicas")
        for number in range(rounds):
            began = time.monotonic()
            faults.happen("rolling")
            middle = time.monotonic()
            time.sleep(middle - began)
            self.windows += [Window(began, middle, True), Window(middle, time.monotonic(), False)]
            self._tell(f"{number + 1} of {rounds} rolling restarts, the last one in {middle - began:.1f} s")
        self.counts["restarts"] += rounds * len(MEMBERS)

    def times(self, has_restarts: bool) -> list[float]:
        """How long each call took that began in such a window, sorted."""
        ends = [each for each in self.windows if each.has_restarts == has_restarts]
        return sorted(
            call.over - call.called
            for calls in self.histories.values()
            for call in calls
            if any(each.began <= call.called < each.over for each in ends)
        )


def percentile(times: list[float], percent: float) -> float:
    return times[min(len(times) - 1, int(len(times) * percent / 100))]


def comparison(world: RollingWorld) -> str:
    """A table of how long calls took, with restarts and without."""
    with_restarts, without = world.times(True), world.times(False)
    lines = [
        f"{'':10} {'restarts':>12} {'none':>12} {'ratio':>7}",
        f"{'calls':10} {len(with_restarts):>12} {len(without):>12}",
    ]
    for percent in PERCENTILES:
        some, others = percentile(with_restarts, percent), percentile(without, percent)
        name = "longest" if percent == 100 else f"p{percent:g}"
        lines.append(f"{name:10} {some * 1e3:>9.2f} ms {others * 1e3:>9.2f} ms {some / others:>7.2f}")
    return "\n".join(lines)
