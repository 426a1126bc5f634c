"""Owns a campaign: worlds of a site of three members, with clients, in which processes are killed and stopped.

After each world the histories of all keys are checked, and the copies are compared.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import eventually

from .history import read, violations
from .world import Site

MEMBERS = ("one", "two", "three")
ROUNDS_OF_A_WORLD = 5
MEMBER_TIMEOUT_MS = 2000
FAULTS = ("kill", "kill", "pause", "end", "locator", "nothing")
KEYS = 12
THREADS = 3


class CampaignFailure(AssertionError):
    """A check failed. The text has what repeats it."""


def regions_of(chance: random.Random) -> list[dict[str, object]]:
    if chance.random() < 0.3:
        return [{"name": "data", "type": "REPLICATE"}]
    return [
        {
            "name": "data",
            "type": "PARTITION",
            "total_num_buckets": 7,
            "redundant_copies": chance.choice([1, 1, 2]),
            "recovery_delay": 0,
        }
    ]


class World:
    """One site over some rounds. In each round one fault happens while clients work."""

    def __init__(self, seed: int, folder: Path, faults: tuple[str, ...]) -> None:
        self._chance = random.Random(seed)
        self._folder, self._faults = folder, faults
        self._lives: Counter[str] = Counter()
        self._next_process = 1
        self.counts: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        with Site(self._folder, regions=regions_of(self._chance), member_timeout_ms=MEMBER_TIMEOUT_MS) as site:
            for name in MEMBERS:
                site.start(name)
            self._wait_for_copies(site)
            for name in MEMBERS:
                self._begin_clients(site.members[name])
            for _ in range(rounds):
                self._round(site)
                self.counts["rounds"] += 1
            for process in site.members.values():
                answer = process.ask("halt", timeout=90)
                self.counts["operations"] += answer.get("done", 0)
                self.counts["failed operations"] += answer.get("failed", 0)
                if answer.get("alive"):
                    raise CampaignFailure(f"{answer['alive']} operations of {process.name} never return")
            self._compare(site)
        operations = read(self._folder.glob("history-*"))
        wrong, verdicts = violations(operations)
        for verdict, count in verdicts.items():
            self.counts[f"keys {verdict.value}"] += count
        if wrong:
            raise CampaignFailure(f"no order of the operations explains the answers for {', '.join(wrong)}")

    def _begin_clients(self, process: MemberProcess) -> None:
        self._lives[process.name] += 1
        path = self._folder / f"history-{process.name}-{self._lives[process.name]}"
        process.ask(
            "run",
            "data",
            path=str(path),
            first=self._next_process,
            threads=THREADS,
            keys=KEYS,
            seed=self._chance.randrange(1 << 30),
        )
        self._next_process += THREADS

    def _round(self, site: Site) -> None:
        time.sleep(self._chance.uniform(0.1, 0.6))
        fault, name = self._chance.choice(self._faults), self._chance.choice(MEMBERS)
        self.counts[f"fault {fault}"] += 1
        process = site.members[name]
        if fault == "kill":
            process.kill()
            time.sleep(self._chance.uniform(0.0, 1.0))
            self._begin_clients(site.start(name))
        elif fault == "pause":
            process.stop()
            time.sleep(self._chance.uniform(0.1, MEMBER_TIMEOUT_MS / 1000 * 1.6))
            process.go_on()
        elif fault == "end":
            process.end()
            self._begin_clients(site.start(name))
        elif fault == "locator":
            site.kill_locator()
            time.sleep(self._chance.uniform(0.0, 1.0))
            site.restart_locator()
        self._wait_for_copies(site)

    def _wait_for_copies(self, site: Site) -> None:
        """No bucket is without as many copies as the region wants: a second fault loses nothing then."""
        region = site.regions[0]
        buckets = int(region.get("total_num_buckets", 113))
        copies = min(len(MEMBERS), 1 + int(region.get("redundant_copies", len(MEMBERS) - 1)))

        def is_whole() -> bool:
            counts = list(site.counts("data").values())
            leads = sum(each.get("primary", 0) for each in counts)
            follows = sum(each.get("copies", 0) for each in counts)
            return (
                leads == buckets
                and follows == buckets * (copies - 1)
                and not any(each.get("learning") for each in counts)
            )

        eventually(is_whole, what=f"{buckets} buckets with {copies} copies each")

    def _compare(self, site: Site) -> None:
        contents = [process.ask("content", "data") for process in site.members.values()]
        if any(content != contents[0] for content in contents):
            raise CampaignFailure("members do not agree about the content of the region")


def run(
    seed: int,
    rounds: int,
    *,
    first_world: int = 0,
    faults: tuple[str, ...] = FAULTS,
    tell: Callable[[str], None] = print,
) -> Counter[str]:
    """Runs worlds until there were so many rounds. CampaignFailure names the world that failed."""
    counts: Counter[str] = Counter()
    world = first_world
    while counts["rounds"] < rounds:
        with tempfile.TemporaryDirectory(prefix="pywan-site-") as folder:
            try:
                this = World(seed * 1_000_003 + world, Path(folder), faults)
                this.run(min(ROUNDS_OF_A_WORLD, rounds - counts["rounds"]))
            except AssertionError as failure:
                again = f"python -m tests.site_crash --seed {seed} --world {world} --faults {','.join(faults)}"
                raise CampaignFailure(f"{failure}\nrepeat it with: {again}") from failure
        counts += this.counts
        world += 1
        tell(f"{counts['rounds']} of {rounds} rounds, {counts['operations']} operations")
    return counts
