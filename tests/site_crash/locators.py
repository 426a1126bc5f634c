"""Owns the rounds in which locators are killed: a site of three members and two locators, which take over from each
other while clients work. After each kill a member starts again, and has to be served.

A watcher asks both locators all the time: never do both decide.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan.errors import PywanError
from pywan.testing.site_processes import MemberProcess
from pywan.transport.control import call_once

from .campaign import ROUNDS_OF_A_WORLD, CampaignFailure, World
from .faults import END_S, MEMBERS, Faults
from .rest import wait_until, why_not_whole
from .world import Site

LOCATORS = ("n1", "n2")
WATCH_S = 0.02
TRY_AGAIN_S = 0.02


def still_bound(told: dict[str, Any]) -> str:
    """Why a coordinator could not go on without its standby yet, as it tells; empty: it can. Before, the standby may
    take over."""
    return "" if told.get("decides") and not told["standby"] else f"it tells {told}"


class SiteOfTwoLocators(Site):
    """`locator` is the one that decides now, or the one that did so last."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.locators: dict[str, MemberProcess] = {}
        self.ports = dict.fromkeys(LOCATORS, 0)
        super().__init__(*given, **more)

    def restart_locator(self, **more: Any) -> None:
        for name in LOCATORS:
            self.start_locator(name)
        self.locator = self.locators[LOCATORS[0]]

    def start_locator(self, name: str) -> None:
        process = self.locators[name] = self._process(name)
        peers = ",".join(self.address_of(each) for each in LOCATORS if each != name and self.ports[each])
        more = {"bind_address": self._address(name), "locators": peers, **self._attributes}
        self.ports[name] = process.ask("locate", name, self.ports[name], str(self.folder / name), **more)

    def address_of(self, name: str) -> str:
        return f"{self._address(name)}[{self.ports[name]}]"

    def locators_of_members(self) -> str:
        return ",".join(map(self.address_of, LOCATORS))

    def shown(self, name: str) -> dict[str, Any]:
        """What a locator says of the coordination; {}: it does not answer."""
        try:
            told: dict[str, Any] = call_once((self._address(name), self.ports[name]), "coordination-show", timeout=2.0)
            return dict(told["coordination"])
        except PywanError:
            return {}

    def decider(self) -> str:
        """The name of the locator that decides; empty: none does."""
        name = next((each for each in LOCATORS if self.shown(each).get("decides")), "")
        if name:
            self.locator = self.locators[name]
        return name

    def why_no_standby(self) -> str:
        decider = self.decider()
        told = self.shown(decider) if decider else {}
        return "" if told.get("standby") else f"{decider or 'no locator'} decides, without a standby: {told}"

    def __exit__(self, *exc: object) -> None:
        for process in self.locators.values():
            process.kill()
        super().__exit__(*exc)


class _Watcher:
    """Asks both locators whether they decide, and remembers if ever both did."""

    def __init__(self, site: SiteOfTwoLocators) -> None:
        self.both, self.asked = "", 0
        self._site, self._stop = site, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(WATCH_S):
            first, second = map(self._site.shown, LOCATORS)
            self.asked += 1
            # The first one is asked once more: it may have ended between both answers.
            if first.get("decides") and second.get("decides") and self._site.shown(LOCATORS[0]).get("decides"):
                self.both = f"both locators decide: {first} and {second}"

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


class LocatorWorld(World):
    """Each round kills a locator, or both in turn; restarts them with their files, sooner or later; and ends with two
    locators that run.

    Attributes:
        served_s: By kind of round: how long after the kill a member that was started again has put something.
    """

    network_share = 0.0
    site_class = SiteOfTwoLocators

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder, faults=(), layout="copies-1")
        self.served_s: dict[str, list[float]] = {}

    def _rounds(self, site: Site, faults: Faults, rounds: int) -> None:
        assert isinstance(site, SiteOfTwoLocators)
        kinds = [self._coordinator, self._standby, self._in_turn, self._one_after_the_other]
        with _Watcher(site) as watcher:
            for number in range(rounds):
                wait_until(site.why_no_standby, "the site has a standby")
                wait_until(lambda: why_not_whole(site, self._regions), "all buckets have their replicas")
                kind = self._chance.choice(kinds) if number else self._in_turn  # Each world has takeovers.
                name = kind.__name__.strip("_").replace("_", " ")
                self._happened.append(name)
                kind(site, name)
                for each in LOCATORS:
                    if not site.locators[each].is_running:
                        site.start_locator(each)
                self.counts[f"killed: {name}"] += 1
                self.counts["rounds"] += 1
                if watcher.both:
                    raise CampaignFailure(watcher.both)
            wait_until(site.why_no_standby, "the site has a standby")
        self.counts["times both locators were asked"] += watcher.asked
        self.counts["takeovers"] += max(site.shown(each)["term"] for each in LOCATORS)

    def _coordinator(self, site: SiteOfTwoLocators, kind: str) -> None:
        """The coordinator is killed. It comes back before the other one takes over, or after."""
        self._kill_and_serve(site, site.decider(), kind, comes_back=self._chance.random() < 0.5)

    def _standby(self, site: SiteOfTwoLocators, kind: str) -> None:
        decider = site.decider()
        (standby,) = {*LOCATORS} - {decider}
        self._kill_and_serve(site, standby, kind, comes_back=self._chance.random() < 0.5)
        if site.decider() != decider:
            raise CampaignFailure(f"{standby} was killed, and {decider} does not decide any more")

    def _in_turn(self, site: SiteOfTwoLocators, kind: str) -> None:
        """The coordinator is killed, and the one that has taken over, too, when the first one is its standby."""
        first = site.decider()
        self._kill_and_serve(site, first, kind, comes_back=False)
        site.start_locator(first)
        wait_until(site.why_no_standby, "the locator that was killed is the standby")
        self._kill_and_serve(site, site.decider(), kind, comes_back=False)
        if site.decider() != first:
            raise CampaignFailure(f"{first} has not taken over")

    def _one_after_the_other(self, site: SiteOfTwoLocators, kind: str) -> None:
        """The standby is killed, and the coordinator as soon as it goes on alone. The earlier standby starts first, and
        must not take over: it lacks decisions."""
        decider = site.decider()
        (standby,) = {*LOCATORS} - {decider}
        site.locators[standby].kill()
        wait_until(lambda: still_bound(site.shown(decider)), "the standby is out, and a member has stored that")
        site.locators[decider].kill()
        site.start_locator(standby)
        time.sleep(self._chance.uniform(0.0, 4.0))  # In 3 s it would take over.
        if site.decider():
            raise CampaignFailure(f"{standby} decides, which had been out")
        began = time.monotonic()
        site.start_locator(decider)
        self._serve(site, kind, began)

    def _kill_and_serve(self, site: SiteOfTwoLocators, victim: str, kind: str, *, comes_back: bool) -> None:
        began = time.monotonic()
        site.locators[victim].kill()
        if comes_back:
            time.sleep(self._chance.uniform(0.0, 4.0))
            site.start_locator(victim)
        self._serve(site, kind, began)

    def _serve(self, site: SiteOfTwoLocators, kind: str, began: float) -> None:
        """A member is killed, and starts again: it has its region, and takes a put."""
        name = self._chance.choice(MEMBERS)
        site.members[name].kill()
        process = site.start(name)
        while True:
            try:
                process.do(self._regions[0]["name"], "put", f"served {began}", name)
                break
            except AssertionError as error:
                if time.monotonic() > began + END_S:
                    shown = [site.shown(each) for each in LOCATORS]
                    raise CampaignFailure(f"{name} is not served: {error}\nthe locators say {shown}") from error
                time.sleep(TRY_AGAIN_S)
        self.served_s.setdefault(kind, []).append(time.monotonic() - began)
        self._begin_clients(process)

    def _end(self, site: Site) -> None:
        assert isinstance(site, SiteOfTwoLocators)
        for process in site.members.values():
            process.end(END_S)
        for process in site.locators.values():
            process.end()


def run_locators(
    seed: int, rounds: int, *, first_world: int = 0, tell: Callable[[str], None] = print
) -> tuple[Counter[str], str]:
    """Runs worlds until there were so many rounds. Returns what happened, and how long members waited, as a table."""
    counts: Counter[str] = Counter()
    served: dict[str, list[float]] = {}
    world = first_world
    while counts["rounds"] < rounds:
        folder = Path(tempfile.mkdtemp(prefix="pywan-site-"))
        this = LocatorWorld(seed * 1_000_003 + world, folder)
        try:
            this.run(min(ROUNDS_OF_A_WORLD, rounds - counts["rounds"]))
        except AssertionError as failure:
            raise CampaignFailure(f"seed {seed}, world {world}, {this.told()}: {failure}") from failure
        finally:
            shutil.rmtree(folder)
        counts += this.counts
        for kind, times in this.served_s.items():
            served.setdefault(kind, []).extend(times)
        world += 1
        tell(f"{counts['rounds']} of {rounds} rounds, {counts['operations']} operations: {this.told()}")
    lines = [f"{'killed':22} {'times':>5} {'median':>8} {'longest':>8}"]
    for kind, times in sorted(served.items()):
        times.sort()
        lines.append(f"{kind:22} {len(times):>5} {times[len(times) // 2]:>6.1f} s {times[-1]:>6.1f} s")
    return counts, "\n".join(lines)
