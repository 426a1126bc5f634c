"""Owns a campaign: worlds of a site of three members, with clients, in which something goes wrong again and again.

After each world the histories of all keys are checked, and all replicas are compared.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pywan.testing.site_processes import MemberProcess
from support import private_network
from support.made_certificates import LOCAL, new_options
from support.private_network import PrivateNetwork

from .decisions import Timelines
from .faults import END_S, FAULTS, MEMBER_TIMEOUT_MS, MEMBERS, Faults
from .history import Call, Histories, read, shown, violations
from .layouts import BUCKETS_OF_A_REPLICATE, LAYOUTS
from .rest import wait_until, why_no_rest, why_not_whole
from .world import Site

ROUNDS_OF_A_WORLD = 5
KEYS = 12
THREADS = 3
PAUSE_S = 0.002  # Of a client after an operation, in the mean: the machine is not the limit.
HALT_S = 90.0
# What a regular end leaves.
FILES_OF_A_MEMBER = ("site-{}.json", "gateway-sources-{}.json")
FILES_OF_THE_LOCATOR = ("locator/coordination.db", "locator/coordinator.json")


class CampaignFailure(AssertionError):
    """A check failed. The text has what repeats it."""


class World:
    """One site over some rounds. In each round one fault happens while clients work.

    Attributes:
        counts: What happened, how often.
        histories: What the clients did and heard, after the end.
    """

    pause_s = PAUSE_S
    goes_first = False  # Whether the site gets the cores before others that use this machine (needs root).
    encrypts = False  # Whether all connections are encrypted.
    site_class: type[Site] = Site
    network_share = 0.4  # Of the worlds that have a network whose links can be cut, where that can be made.

    def __init__(self, seed: int, folder: Path, *, faults: Sequence[str], layout: str) -> None:
        self._chance = random.Random(seed)
        self._folder, self._faults = folder, faults
        self._regions, self._late = list(LAYOUTS[layout].early), LAYOUTS[layout].late
        self._notes = folder / "decisions"
        self._lives: Counter[str] = Counter()
        self._next_process = 1
        self._happened: list[str] = []
        self.histories: Histories = defaultdict(list)
        self.counts: Counter[str] = Counter({f"worlds {layout}": 1})

    def run(self, rounds: int) -> None:
        with contextlib.ExitStack() as stack:
            network = None
            if self._chance.random() < self.network_share and not private_network.why_not():
                network = stack.enter_context(PrivateNetwork())
            ssl = None
            if self.encrypts:
                files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pywan-certificates-")))
                addresses = [network.address(name) for name in ("locator", *MEMBERS)] if network else []
                ssl = new_options(files, (*LOCAL, *addresses))
            site = stack.enter_context(
                self.site_class(
                    self._folder,
                    regions=self._regions,
                    network=network,
                    goes_first=self.goes_first,
                    member_timeout_ms=MEMBER_TIMEOUT_MS,
                    notes=str(self._notes),
                    ssl=ssl,
                )
            )
            for name in MEMBERS:
                self._begin_clients(site.start(name))
            faults = Faults(site, self._chance, self._notes, network, self._begin_clients)
            self._rounds(site, faults, rounds)
            self._halt(site)
            wait_until(
                lambda: why_no_rest(site, self._regions), "a healthy site is at rest, and its replicas are equal"
            )
            self.histories = read(self._folder.glob("history-*"))
            self._read_all(site)
            self._end(site)
            self._check(site)

    def _rounds(self, site: Site, faults: Faults, rounds: int) -> None:
        late_at = self._chance.randrange(rounds)
        for number in range(rounds):
            if self._late and number == late_at:
                self._create_late(site)
            if number == 0 or self._chance.random() < 0.6:  # Else the next fault meets a site that is not whole yet.
                wait_until(lambda: why_not_whole(site, self._regions), "all buckets have their replicas")
            time.sleep(self._chance.uniform(0.1, 0.6))
            fault = self._chance.choice(self._faults)
            self._happened.append(fault)
            faults.happen(fault)
            self.counts[f"fault {fault}"] += 1
            self.counts["rounds"] += 1

    def _begin_clients(self, process: MemberProcess) -> None:
        self._lives[process.name] += 1
        path = self._folder / f"history-{process.name}-{self._lives[process.name]}"
        process.ask(
            "run",
            *(each["name"] for each in self._regions),
            path=str(path),
            first=self._next_process,
            threads=THREADS,
            keys=KEYS,
            seed=self._chance.randrange(1 << 30),
            pause_s=self.pause_s,
        )
        self._next_process += THREADS

    def told(self) -> str:
        """The faults of this world in their order."""
        return ", ".join(self._happened)

    def _create_late(self, site: Site) -> None:
        for region in self._late:
            for process in site.members.values():
                process.ask("create", region)
        site.regions += self._late
        self._regions += self._late

    def _halt(self, site: Site) -> None:
        """The clients end. No call waits for ever."""
        for process in site.members.values():
            answer = process.ask("halt", timeout=HALT_S)
            for failure, count in answer.get("failures", {}).items():
                self.counts[f"calls that failed: {failure}"] += count
            if answer.get("alive"):
                raise CampaignFailure(f"{answer['alive']} operations of {process.name} never return")

    def _read_all(self, site: Site) -> None:
        """Each key, as each member reads it at the end."""
        for (region, key), calls in self.histories.items():
            for process in site.members.values():
                called = time.monotonic()
                value = process.do(region, "get", key)
                over = time.monotonic()
                calls.append(Call(self._next_process, "get", (), value, called, over, over))
                self._next_process += 1

    def _end(self, site: Site) -> None:
        """All members end in order, at once or one after the other, and then the locator. Nothing of them is left."""
        processes = self._chance.sample([*site.members.values()], len(site.members))
        if self._chance.random() < 0.5:
            with ThreadPoolExecutor(len(processes)) as pool:
                for ended in [pool.submit(process.end, END_S) for process in processes]:
                    ended.result()
        else:
            for process in processes:
                process.end(END_S)
        site.locator.end()
        kept = {f"{name}/{file.format(name)}" for name in MEMBERS for file in FILES_OF_A_MEMBER}
        kept |= {f"locator/{file}" for file in FILES_OF_THE_LOCATOR}
        files = (each for name in (*MEMBERS, "locator") for each in (self._folder / name).rglob("*") if each.is_file())
        found = {str(each.relative_to(self._folder)) for each in files}
        if found - kept:
            raise CampaignFailure(f"after their end the members have left {', '.join(sorted(found - kept))}")

    def _check(self, site: Site) -> None:
        timelines = Timelines(self._notes, site.ended_at)
        self.counts["buckets that began anew, empty"] += timelines.count
        self.counts["buckets left out"] += len(timelines.left_out)
        if timelines.unproved:
            raise CampaignFailure("\n".join(timelines.unproved[:5]))
        calls = [each for some in self.histories.values() for each in some]
        self.counts["operations"] += sum(not each.is_unknown for each in calls)
        self.counts["operations in doubt"] += sum(each.is_unknown for each in calls)
        buckets = {each["name"]: int(each.get("total_num_buckets", BUCKETS_OF_A_REPLICATE)) for each in self._regions}
        wrong, counts = violations(self.histories, timelines, buckets)
        self.counts += counts
        if wrong:
            names = ", ".join(f"{each.key} of {each.region}" for each in wrong)
            raise CampaignFailure(
                f"no order of the operations explains the answers for {names}\n{shown(self.histories[wrong[0]])}"
            )


def run(
    seed: int,
    rounds: int,
    *,
    first_world: int = 0,
    faults: Sequence[str] = FAULTS,
    layouts: Sequence[str] = tuple(LAYOUTS),
    keep: bool = False,
    encrypts: bool = False,
    tell: Callable[[str], None] = print,
) -> Counter[str]:
    """Runs worlds until there were so many rounds. The layouts take turns. CampaignFailure names the world that failed.

    Args:
        seed: What the random moments come from.
        rounds: How many rounds, with one fault each.
        first_world: The first world of the seed.
        faults: The faults among which each round chooses.
        layouts: The layouts.
        keep: Whether the folder of a world that failed stays.
        encrypts: Whether all connections are encrypted.
        tell: Gets a line for each world.
    """
    counts: Counter[str] = Counter()
    world = first_world
    while counts["rounds"] < rounds:
        folder = Path(tempfile.mkdtemp(prefix="pywan-site-"))
        layout = layouts[world % len(layouts)]
        this = World(seed * 1_000_003 + world, folder, faults=faults, layout=layout)
        this.encrypts = encrypts
        try:
            this.run(min(ROUNDS_OF_A_WORLD, rounds - counts["rounds"]))
        except AssertionError as failure:
            again = (
                f"python -m tests.site_crash --seed {seed} --world {world} --rounds {ROUNDS_OF_A_WORLD}"
                f" --faults {','.join(dict.fromkeys(faults))} --layouts {','.join(layouts)}"
                + (" --tls" if encrypts else "")
                + (f"\nits files are in {folder}" if keep else "")
            )
            raise CampaignFailure(
                f"world {world}, {layout}, {this.told()}: {failure}\nrepeat it with: {again}"
            ) from failure
        finally:
            if not keep or sys.exc_info()[0] is None:
                shutil.rmtree(folder)
        counts += this.counts
        world += 1
        tell(f"{counts['rounds']} of {rounds} rounds, {counts['operations']} operations; {layout}: {this.told()}")
    return counts


def table(counts: Counter[str]) -> str:
    """The totals, a line each."""
    width = max(map(len, counts))
    return "\n".join(f"{name:<{width}}  {count:>9}" for name, count in sorted(counts.items()))
