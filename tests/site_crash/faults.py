"""Owns what goes wrong in a round of the campaign: each fault is a method, and it is over when the method returns."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from pywan.testing.site_processes import MemberProcess
from support.private_network import PrivateNetwork

from .decisions import note_lost_file
from .rest import ROLES, wait_until
from .world import Site

MEMBERS = ("one", "two", "three")
MEMBER_TIMEOUT_MS = 2000
LEASE_S = MEMBER_TIMEOUT_MS / 1000
END_S = 120.0  # A member that ends waits up to a minute for others to take what only it has.
SLOW_PERIODS_S = (0.05, 0.3, 1.0)  # A slow process is awake a tenth of each period.
AWAKE = 0.1


class Faults:
    """What can go wrong. `begun` is called with each member that was started again.

    Attributes:
        site: The site.
        network: The links that can be cut. None: the processes are on loopback.
    """

    def __init__(
        self,
        site: Site,
        chance: random.Random,
        notes: Path,
        network: PrivateNetwork | None,
        begun: Callable[[MemberProcess], None],
    ) -> None:
        self.site, self.network = site, network
        self._chance, self._notes, self._begun = chance, notes, begun

    def happen(self, fault: str) -> None:
        getattr(self, f"_{fault.replace('-', '_')}")()

    def _one(self) -> MemberProcess:
        return self.site.members[self._chance.choice(MEMBERS)]

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))

    def _start(self, *names: str) -> None:
        """Starts members at once, and returns when all have their regions."""
        processes = [self.site.begin(name) for name in names]
        for process in processes:
            process.finish()
            self._begun(process)

    def _nothing(self) -> None:
        self._wait(0.0, 0.5)

    def _kill(self) -> None:
        victim = self._one()
        victim.kill()
        self._wait(0.0, 1.0)
        self._start(victim.name)

    def _kill_replicas(self) -> None:
        """All processes that have a replica of some bucket are killed at once."""
        region = self._chance.choice(self.site.regions)["name"]
        tables = {name: process.ask("buckets", region) for name, process in self.site.members.items()}
        number = self._chance.randrange(len(tables[MEMBERS[0]]))
        holders = [name for name, table in tables.items() if table[number].get("role") in ROLES]
        for name in holders:
            self.site.members[name].kill()
        self._wait(0.0, 1.0)
        self._start(*holders)

    def _kill_site(self) -> None:
        """All members are killed at once, and started again at once; sometimes the locator, too."""
        is_locator_killed = self._chance.random() < 0.5
        for name in MEMBERS:
            self.site.members[name].kill()
        if is_locator_killed:
            self.site.kill_locator()
            self.site.restart_locator()
        self._start(*MEMBERS)

    def _pause(self) -> None:
        victim = self._one()
        victim.stop()
        self._wait(0.1, 1.6 * LEASE_S)
        victim.go_on()

    def _slow(self) -> None:
        """A process gets a tenth of the time for a while."""
        victim, period_s = self._one(), self._chance.choice(SLOW_PERIODS_S)
        until = time.monotonic() + self._chance.uniform(10.0, 20.0)
        while time.monotonic() < until:
            victim.stop()
            time.sleep(period_s * (1 - AWAKE))
            victim.go_on()
            time.sleep(period_s * AWAKE)

    def _two(self) -> None:
        """One member is killed, and another one is paused or killed a moment later."""
        killed, other = self._chance.sample(MEMBERS, 2)
        self.site.members[killed].kill()
        self._wait(0.0, 0.4)
        if self._chance.random() < 0.5:
            self.site.members[other].kill()
            self._wait(0.0, 0.5)
            self._start(killed, other)
            return
        self.site.members[other].stop()
        process = self.site.begin(killed) if self._chance.random() < 0.5 else None
        self._wait(0.1, 1.6 * LEASE_S)
        self.site.members[other].go_on()
        process = process or self.site.begin(killed)
        process.finish()
        self._begun(process)

    def _end(self, name: str = "") -> None:
        victim = self.site.members[name] if name else self._one()
        victim.end(END_S)
        self._start(victim.name)

    def _rolling(self) -> None:
        """All members are ended and started again, one after the other. Nobody waits for replicas in between."""
        for name in self._chance.sample(MEMBERS, len(MEMBERS)):
            self._end(name)

    def _locator(self) -> None:
        self.site.kill_locator()
        self._wait(0.0, 1.0)
        self.site.restart_locator()

    def _locator_away(self) -> None:
        """The locator alone is cut off, or paused where no link can be cut."""
        if self.network is not None:
            self.network.part(["locator"], MEMBERS)
            self._wait(1.0, 5.0)
            self.network.heal()
        else:
            self.site.locator.stop()
            self._wait(1.0, 5.0)
            self.site.locator.go_on()

    def _cut(self) -> None:
        """One member is cut off from all others, or one way; it is paused where no link can be cut."""
        if self.network is None:
            self._pause()
            return
        name = self._chance.choice(MEMBERS)
        rest = ["locator", *(each for each in MEMBERS if each != name)]
        way = self._chance.choice(["both", "out", "in"])
        if way != "in":
            self.network.cut([name], rest)
        if way != "out":
            self.network.cut(rest, [name])
        self._wait(0.2, 2 * LEASE_S)
        self.network.heal()

    def _file(self) -> None:
        """The coordinator's file is lost. The locator knows that by its folder, or is told that it takes the place of
        one that is gone for good."""
        self.site.kill_locator()
        shutil.rmtree(self.site.folder / "locator")
        note_lost_file(self._notes)
        self._wait(0.0, 1.0)
        self.site.restart_locator(recover_from_members=self._chance.random() < 0.5)
        # A member that comes before the coordinator has heard of any other one would begin a site of its own.
        wait_until(self._who_is_unknown, "all members are known to a coordinator whose file was lost")

    def _who_is_unknown(self) -> str:
        told = self.site.locator.ask("coordination")
        known = {each["name"] for each in told.get("members", ()) if each["state"] == "alive"}
        return ", ".join(sorted(set(MEMBERS) - known)) or ("it waits for reports" if told["waits_us"] else "")


# Those that take no longer than a few seconds, and each of them as often as it stands here. `slow` takes twenty.
FAULTS = (
    *("kill", "kill", "kill-replicas", "kill-site", "pause", "two", "two", "end", "rolling"),
    *("locator", "locator-away", "cut", "file", "nothing"),
)
ALL = (*FAULTS, "slow")
