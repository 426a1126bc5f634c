"""Owns what goes wrong in a round of the campaign of gateways: each fault is a method. The fault is over when the
method returns, and the site may be far from whole then: the next fault comes at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from pywan.testing.waiting import eventually
from support.wan_site import WanMember, WanSite

MEMBER_TIMEOUT_MS = 3000
END_S = 120.0  # A member that ends waits up to a minute for others to take what only that member has.
WAIT_S = 120.0
# How often each fault is drawn, beside the others.
FAULTS = {"kill": 8, "end": 2, "silence": 2, "locator": 2, "pause": 1, "alter": 1}


class Faults:
    """What can go wrong.

    A site of several members has one redundant copy of each bucket, so it survives the loss of one member until the
    replica is made anew. Until then only the members that were started since are taken: no bucket is at one of them
    alone.

    Attributes:
        resumed_s: After each kill that was measured, how long it took until an event left the site again.
    """

    def __init__(
        self,
        sites: Mapping[str, WanSite],
        chance: random.Random,
        start: Callable[[str, str], WanMember],
        is_whole: Callable[[str], bool],
    ) -> None:
        self._sites, self._chance, self._start, self._is_whole = sites, chance, start, is_whole
        self._started: dict[str, set[str]] = {name: set() for name in sites}  # Since the site was last seen whole.
        self._marks = 0
        self.resumed_s: list[float] = []

    def happen(self) -> str:
        """Lets one fault happen, and returns its name."""
        fault = self._chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        getattr(self, f"_{fault}")(self._chance.choice(sorted(self._sites)))
        return fault

    def _victim(self, site: str) -> WanMember:
        """A member whose loss its site survives."""
        living, started = self._sites[site].living(), self._started[site]
        if len(living) == 1:
            return next(iter(living.values()))  # The member is persistent.
        if self._is_whole(site):
            started.clear()
        return living[self._chance.choice(sorted(started or living))]

    def _begin_again(self, site: str, name: str) -> None:
        self._start(site, name)
        self._started[site].add(name)

    def _kill(self, site: str) -> None:
        victim = self._victim(site)
        victim.kill()
        killed = time.monotonic()
        others = sorted(self._sites[site].living().items())
        if others and self._chance.random() < 0.5:
            self._marks += 1
            marker = f"mark {self._marks}"
            self._chance.choice(others)[1].ask("do", "data", "put", marker, self._marks)
            far = self._sites[self._chance.choice(sorted(self._sites.keys() - {site}))]
            remote = next(iter(far.living().values()))
            eventually(lambda: remote.ask("has", "data", marker), WAIT_S, what=f"{marker} at the other site")
            self.resumed_s.append(time.monotonic() - killed)
        self._begin_again(site, victim.name)

    def _end(self, site: str) -> None:
        """A member ends in order, which leaves the others its buckets."""
        victim = self._victim(site)
        victim.ask("halt")
        victim.end(END_S)
        self._begin_again(site, victim.name)

    def _silence(self, site: str) -> None:
        """A process stands still, at times so long that the site gives it up. Then it comes back, and learns."""
        victim = self._victim(site)
        victim.stop()
        time.sleep(self._chance.uniform(0.1, 1.6 * MEMBER_TIMEOUT_MS / 1000))
        victim.go_on()
        self._started[site].add(victim.name)

    def _locator(self, site: str) -> None:
        self._sites[site].kill_locator()
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._sites[site].restart_locator()

    def _pause(self, site: str) -> None:
        """The senders of a member stop sending for a while. Its events wait, or others send them."""
        member = self._chance.choice(sorted(self._sites[site].living().items()))[1]
        others = sorted(self._sites.keys() - {site})
        for id in others:
            member.sender(id, "pause")
        time.sleep(self._chance.uniform(0.1, 1.0))
        for id in others:
            member.sender(id, "resume")

    def _alter(self, site: str) -> None:
        """A sender works with other batches from now on."""
        member = self._chance.choice(sorted(self._sites[site].living().items()))[1]
        id = self._chance.choice(sorted(self._sites.keys() - {site}))
        changes = {"batch_size": self._chance.choice((1, 20, 500)), "batch_time_interval": self._chance.choice((0, 50))}
        member.sender(id, "alter", **changes)
