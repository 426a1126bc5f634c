"""Owns the crash campaign of gateways over members: three sites that send to each other, whose members are killed one
at a time while all of them write. Every acknowledged put has to arrive at all sites."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from made_certificates import new_options
from pywan.testing.waiting import eventually
from wan_site import WanMember, WanSite

ROUNDS_OF_A_WORLD = 10
PAUSE_S = 0.002  # Of each writer, between two puts: about a quarter of what the sites can do on two cores.
WAIT_S = 120.0
NAMES = ("ny", "ln", "tk")
BUCKETS = {"ny": 7, "ln": 13, "tk": 5}


class CampaignFailure(AssertionError):
    """Says which world of which seed failed, and how."""


class CrashSite(WanSite):
    program = Path(__file__).with_name("member.py")


@dataclass
class Counts:
    """What the rounds of a campaign did."""

    what: Counter[str] = field(default_factory=Counter)
    resumed_s: list[float] = field(default_factory=list)  # After each kill, until an event left the site again.


class World:
    """Three sites with their members."""

    def __init__(self, seed: int, number: int, folder: Path, counts: Counts, *, encrypts: bool = False) -> None:
        self.chance = random.Random(seed * 1_000_003 + number)
        self.folder, self.counts = folder, counts
        self.ssl = new_options(folder) if encrypts else None
        self.parallel, self.conflates = self.chance.random() < 0.5, self.chance.random() < 0.5
        self.replicated = not self.parallel and self.chance.random() < 0.5
        self.sizes = {"ny": self.chance.choice((2, 3)), "ln": self.chance.choice((2, 3)), "tk": 1}
        self.sites: dict[str, CrashSite] = {}
        self.lives: Counter[str] = Counter()
        self.written: list[tuple[str, Path]] = []  # The name of each writer, and its file.

    def __str__(self) -> str:
        kind = "parallel" if self.parallel else "serial"
        return (
            f"{kind}, {'replicated' if self.replicated else 'partitioned'}, conflation {self.conflates}, {self.sizes}"
        )

    def region_of(self, site: str) -> dict[str, Any]:
        persistent = "_PERSISTENT" if site == "tk" else ""
        others = [name for name in NAMES if name != site]
        made: dict[str, Any] = {"name": "data", "gateway_sender_ids": others}
        if self.replicated:
            return {**made, "type": f"REPLICATE{persistent}"}
        copies = {} if site == "tk" else {"redundant_copies": 1, "recovery_delay": 0}
        return {**made, "type": f"PARTITION{persistent}", "total_num_buckets": BUCKETS[site], **copies}

    def senders_of(self, site: str) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "remote_distributed_system_id": NAMES.index(name) + 1,
                "parallel": self.parallel,
                "enable_batch_conflation": self.conflates,
                "enable_persistence": site == "tk",
                "batch_time_interval": 20,
                # A log is opened with as many as it was written with.
                "dispatcher_threads": 3 if site == "tk" else self.chance.choice((1, 3)),
            }
            for name in NAMES
            if name != site
        ]

    def start(self) -> None:
        for name in NAMES:
            self.sites[name] = CrashSite(
                self.folder / name,
                NAMES.index(name) + 1,
                remotes=list(self.sites.values()),
                regions=[self.region_of(name)],
                member_timeout_ms=3000,
                ssl=self.ssl,
            )
        for name, size in self.sizes.items():
            for n in range(size):
                self.start_member(name, f"{name}{n}")
        self.wait_whole()

    def start_member(self, site: str, name: str) -> WanMember:
        member = self.sites[site].start_member(name, senders=self.senders_of(site), receiver={})
        self.lives[name] += 1
        writer = f"{name}.{self.lives[name]}"
        path = self.folder / f"{writer}.written"
        self.written.append((writer, path))
        member.ask("listen", "data")
        member.ask("write", "data", writer, str(path), PAUSE_S)
        return member

    def wait_whole(self) -> None:
        """Returns when each bucket has as many copies as it is to have."""
        for name, site in self.sites.items():
            if self.sizes[name] == 1:
                continue
            buckets = 113 if self.replicated else BUCKETS[name]
            site.wait_shared("data", buckets, self.sizes[name] if self.replicated else 2)

    def play(self, number: int) -> None:
        """One round: a member is killed and started again."""
        time.sleep(self.chance.uniform(0.1, 0.6))  # It dies somewhere amid its work; nothing is waited for.
        name = self.chance.choice(NAMES)
        site = self.sites[name]
        victim = self.chance.choice(sorted(site.living()))
        site.living()[victim].kill()
        killed = time.monotonic()
        self.counts.what["kills"] += 1
        others = site.living()
        if others:
            marker = f"mark {number}"
            self.chance.choice(list(others.values())).ask("do", "data", "put", marker, number)
            far = self.sites[self.chance.choice([each for each in NAMES if each != name])]
            remote = next(iter(far.living().values()))
            eventually(lambda: remote.ask("has", "data", marker), WAIT_S, what=f"{marker} at the other site")
            self.counts.resumed_s.append(time.monotonic() - killed)
        self.start_member(name, victim)
        self.wait_whole()

    def end(self) -> None:
        """All writers stop. Then all sites have to be equal, and to have what was acknowledged."""
        members = [member for site in self.sites.values() for member in site.living().values()]
        for member in members:
            for error, count in member.ask("halt").items():
                self.counts.what[f"puts that failed: {error}"] += count
        eventually(
            lambda: sum(each.ask("pending") for each in members) == 0, WAIT_S, what="empty queues at all members"
        )
        contents = {
            name: next(iter(site.living().values())).ask("content", "data") for name, site in self.sites.items()
        }
        first, doubtful = contents[NAMES[0]], set()
        for writer, path in self.written:
            lines = path.read_text().splitlines()
            numbers = [int(line[2:]) for line in lines if line.startswith("= ")]
            self.counts.what["puts"] += len(numbers)
            lost = [n for n in numbers if any(content.get(f"{writer} {n}") != n for content in contents.values())]
            assert not lost, f"{len(lost)} of {len(numbers)} acknowledged puts of {writer} are lost: {lost[:5]}"
            if writer.startswith("tk"):
                # A persistent member that is killed in a put may have it in one of its logs alone
                # (docs/decisions/0015). It was the last one of its writer, which was not acknowledged.
                doubtful |= {line[2:] for line in lines[-1:] if line.startswith("? ")}
        for name, content in contents.items():
            differ = {key for key in first.keys() | content.keys() if first.get(key) != content.get(key)}
            self.counts.what["keys that differ in doubt"] += len(differ & doubtful)
            differ -= doubtful
            assert not differ, f"site {name} differs from {NAMES[0]} in {len(differ)} keys: {sorted(differ)[:5]}"
        for member in members:
            assert member.ask("balanced"), f"the ledgers of {member.name} do not balance"
            assert member.ask("parked") == 0, f"{member.name} has parked events"
            twice = member.ask("twice")
            assert not twice, f"listeners of {member.name} were told twice, unmarked: {twice}"

    def close(self) -> None:
        for site in self.sites.values():
            site.__exit__()


def run(seed: int, rounds: int, *, first_world: int = 0, encrypts: bool = False, tell: Callable[[str], None]) -> Counts:
    counts, number = Counts(), first_world
    while counts.what["kills"] < rounds:
        with tempfile.TemporaryDirectory(prefix="pywan-wan-") as folder:
            world = World(seed, number, Path(folder), counts, encrypts=encrypts)
            try:
                world.start()
                for _ in range(min(ROUNDS_OF_A_WORLD, rounds - counts.what["kills"])):
                    world.play(counts.what["kills"])
                world.end()
            except AssertionError as failure:
                encrypted = ", encrypted" if encrypts else ""
                raise CampaignFailure(f"seed {seed}, world {number} ({world}{encrypted}): {failure}") from failure
            finally:
                world.close()
        counts.what["worlds"] += 1
        tell(f"world {number} ({world}): {counts.what['kills']} kills, {counts.what['puts']} puts")
        number += 1
    return counts
