"""Owns the rounds of a crash campaign and what is checked after them. Rounds run in worlds: a world is one
configuration and one set of disk stores, over many kills."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pywan
from pywan.protocol.discovery import Timings
from pywan.testing.doors import door_to
from pywan.testing.waiting import eventually

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.made_certificates import new_options

from . import load
from .history import Applications, Written, check_journal
from .processes import Member, MemberFailed, Nursery
from .region_log import RegionLog, live_segments

QUICK = Timings(ping_ms=200, retry_ms=10, retry_max_ms=50, change_delay_ms=1)
ROUNDS_OF_A_WORLD = 25
UNDER_LOAD_S = 0.25  # A member is killed at most so long after all work, or
STARTING_S = 0.06  # so long after the last one was started, or
CLOSING_S = 0.1  # so long after it was told to stop, while its disk is held up.
DRAIN_S = 60.0
# Lines that no log of a member has.
ALARMS = (
    "Traceback",
    "internal check",
    "unaccounted for",
    "could not be",
    "is damaged",
)
# A member with a small store may end while that is full. What it does not write then was never acknowledged.
FULL_STORE = "have reached their limit"
SENDER = {
    "enable_persistence": True,
    "disk_synchronous": True,
    "batch_time_interval": 2,
    "retry_interval_ms": 10,
    "dispatcher_threads": 3,
}

# The worlds. Each site sends to the next one. `store_mb`: the limit of their disk stores. None: there is no limit, so
# that no log is shortened.
WORLDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("serial", {}),
    ("parallel", {"sender": {"parallel": True}, "type": "PARTITION_PERSISTENT"}),
    (
        "serial, not synchronous",
        {"sender": {"disk_synchronous": False, "batch_size": 30}, "region_a": {"disk_synchronous": False}},
    ),
    ("serial, written", {"sender": {"disk_synchronous": "written"}, "region_a": {"disk_synchronous": "written"}}),
    (
        "parallel, conflating, small store",
        {
            "sender": {"parallel": True, "enable_batch_conflation": True},
            "type": "PARTITION_PERSISTENT",
            "store_mb": (8, None),
        },
    ),
    ("serial, lz4, with a listener", {"sender": {"compression": "lz4", "batch_size": 500}, "journal": True}),
    ("serial, small stores", {"sender": {"batch_size": 1000}, "store_mb": (4, 2)}),
    ("a chain of three", {"sites": "abc"}),
    (
        "a parallel chain of three, small stores",
        {"sites": "abc", "sender": {"parallel": True}, "type": "PARTITION_PERSISTENT", "store_mb": (8, 8, None)},
    ),
)


class CampaignFailure(AssertionError):
    """A promise was broken. The error names the seed, the world, the round, and where the stores are kept."""


class Remote:
    """A site that receives: its member, and what it had on its disk over all its lives."""

    def __init__(self, member: Member, folder: Path) -> None:
        self.member = member
        self.log = RegionLog(folder / "region-data")
        self.applied = Applications()

    def note_applied(self) -> int:
        """While its member does not run, or rests. Gives how many were new."""
        applied = self.log.read()
        check(self.applied.note(applied))
        return len(applied)


def check(wrong: list[str]) -> None:
    assert not wrong, f"{len(wrong)} wrong, first: " + "; ".join(wrong[:5])


class World:
    """Its members on fresh stores, what the writers did, and what the receiving ones had on their disks."""

    def __init__(
        self, chance: random.Random, nursery: Nursery, directory: Path, index: int, *, encrypts: bool = False
    ) -> None:
        self.chance, self.nursery, self.directory = chance, nursery, directory
        self.name, choices = WORLDS[index % len(WORLDS)]
        self.counts: Counter[str] = Counter()
        sites = choices.get("sites", "ab")
        self.ssl = new_options(directory) if encrypts else None
        self.locators = start_locators(sites, self.ssl)
        sender = {**SENDER, **choices.get("sender", {})}
        sizes = choices.get("store_mb", (None,) * len(sites))
        self.has_small_stores = "store_mb" in choices
        self.members = [
            Member(
                nursery,
                {
                    "site": site,
                    "directory": str(directory / site),
                    "locators": str(locator.address),
                    "ssl": self.ssl,
                    "store_mb": size,
                    "sender": sender,
                    "type": choices.get("type", "REPLICATE_PERSISTENT"),
                    "region": choices.get(f"region_{site}", {}),
                    "sends_to": n + 2 if n < len(sites) - 1 else 0,
                    "receives": n > 0,
                    "journal": choices.get("journal", False) and n > 0,
                },
            )
            for n, (site, locator, size) in enumerate(zip(sites, self.locators, sizes, strict=True))
        ]
        self.first = self.members[0]
        self.remotes = [
            Remote(member, directory / member.spec["site"] / f"disk-store-{'small' if size else 'DEFAULT'}")
            for member, size in zip(self.members[1:], sizes[1:], strict=True)
        ]
        self.conflates = bool(sender.get("enable_batch_conflation"))
        self.written = Written()
        self.next = [0] * load.WRITERS
        self.copy: Path | None = None  # A copy of the first member's folder, taken between two lives.
        self.is_restored = False  # It runs on a copy, or did.
        self.is_same_queue = False  # The copy's queue has the identity of the one that runs.

    # Rounds

    def run(self, rounds: int, tell: Callable[[str], None]) -> None:
        for member in self.members:
            self._start(member)
        for n in range(rounds):
            try:
                self._round()
                if n == rounds - 1 or self.chance.random() < 0.12:
                    self._check_at_rest()
                    if n < rounds - 1:
                        self.first.ask("resume")
            except (AssertionError, MemberFailed, ValueError, OSError) as error:
                raise AssertionError(f"round {n + 1} of {rounds} in this world: {error}") from error
            tell(f"{n + 1} of {rounds} rounds")
        for member in self.members:
            member.stop()
            member.let_go()
        self._check_applied()
        check([wrong for path in self.directory.glob("*/journal") for wrong in check_journal(path)])
        self.counts["copies found out"] += sum(
            "restored from a copy" in line for line in (Path(self.first.spec["directory"]) / "log").open()
        )
        if self.copy is not None:
            shutil.rmtree(self.copy)
        check(left_over(self.directory))
        check(
            [
                f"{log}: {line.strip()}"
                for log in self.directory.glob("*/log")
                for line in log.open()
                if any(word in line for word in ALARMS) and not (self.has_small_stores and FULL_STORE in line)
            ]
        )

    def _start(self, member: Member) -> None:
        member.start(**({"next": self.next} if member is self.first else {}))

    def _round(self) -> None:
        all_or_one = [*([member] for member in self.members), *([member] for member in self.members), self.members]
        victims = self.chance.choice(all_or_one)
        how = self.chance.random()
        if how < 0.25:
            self._receive(self.chance.uniform(0, STARTING_S))
            self.counts["killed while starting"] += 1
        else:
            for member in self.members:
                member.wait_until_ready()
            self._receive(self.chance.uniform(0, UNDER_LOAD_S))
            self.counts["killed under load"] += how >= 0.45
        if closes := 0.25 <= how < 0.45:
            self._begin_close(victims)
        for member in victims:
            if closes:
                self._end_close(member)
            else:
                member.kill()
            self.counts[f"ends of {member.spec['site']}"] += 1
        for remote in self.remotes:
            if remote.member in victims:
                self.counts["applied"] += remote.note_applied()
        if self.remotes[0].member in victims and self.first not in victims:
            self._check_acknowledged_is_on_disk(self.remotes[0])
        if self.first in victims:
            self._receive(5.0)  # To the end of the pipe.
            for writer, number in enumerate(self.next):
                self.written.note(writer, number, in_doubt=True)
                self.next[writer] += 1
            self._copy_or_restore()
        for member in victims:
            member.let_go()
            self._start(member)
        if self.is_same_queue and self.chance.random() < 0.2:
            self._try_clone()

    # Disks that are slow while a member closes

    def _begin_close(self, members: list[Member]) -> None:
        for member in members:
            member.hold_disk()
        for member in members:
            member.begin_stop()
        self._receive(self.chance.uniform(0, CLOSING_S))

    def _end_close(self, member: Member) -> None:
        """It is killed in its close, or the disk goes on and so does the close."""
        if self.chance.random() < 0.5:
            member.let_disk_go()
            member.end_stop()
            self.counts["closed on a slow disk"] += 1
        elif member.kill_while_it_ends():
            self.counts["killed while closing on a slow disk"] += 1
        member.let_disk_go()

    # Copies of the store of the first member. What others receive cannot be put back: it was acknowledged.

    def _copy_or_restore(self) -> None:
        """Between two lives of it."""
        folder, what = Path(self.first.spec["directory"]), self.chance.random()
        if self.copy is not None and what < 0.2:
            told = (folder / "log").read_bytes()
            shutil.rmtree(folder)
            shutil.copytree(self.copy, folder)
            (folder / "log").write_bytes(told)
            self.written.doubt_since_mark()  # At the other sites it may be.
            self.is_restored, self.is_same_queue = True, False  # It takes another one if the receiver knows more.
            self.counts["restored from a copy"] += 1
        elif what > 0.7:
            self.copy = folder.with_name(folder.name + ".copy")
            shutil.rmtree(self.copy, ignore_errors=True)
            shutil.copytree(folder, self.copy, ignore=shutil.ignore_patterns("log"))
            self.written.mark()
            # If not, it has no identity yet.
            self.is_same_queue = any(self.copy.glob("disk-store-*/queue-next/MANIFEST"))

    def _try_clone(self) -> None:
        """A second member begins on a copy of the first one's store: it is not let in while the first is connected."""
        for member in self.members:
            member.wait_until_ready()
        eventually(lambda: self.first.ask("tell")["is_connected"], DRAIN_S, what="the connection of the first member")
        folder = self.copy.with_name("clone")
        shutil.copytree(self.copy, folder)
        # It is in a site of its own: two members of one site cannot both have a persistent region.
        with (
            door_to(self.locators[1], timings=QUICK, ssl=self.ssl) as door,
            pywan.Locator(
                "locator_clone",
                distributed_system_id=1,
                port=0,
                timings=QUICK,
                remote_locators=door,
                ssl=self.ssl,
            ) as locator,
        ):
            spec = {**self.first.spec, "site": "clone", "directory": str(folder), "locators": str(locator.address)}
            clone = Member(self.nursery, spec)
            clone.start()
            try:
                told: dict[str, Any] = {}

                def is_refused() -> bool:
                    told.update(clone.ask("tell"))
                    assert not told["is_connected"] or not self.first.ask("tell")["is_connected"], (
                        f"both are connected: {told}"
                    )
                    return "connected from another opening" in (folder / "log").read_text()

                eventually(is_refused, DRAIN_S, what="the refusal of a clone")
                clone.stop()
                self.counts["clones refused"] += 1
            finally:
                if clone.pid:
                    clone.kill()
                clone.let_go()
        shutil.rmtree(folder)

    def _receive(self, seconds: float) -> None:
        """Lets the writers work for `seconds` from now, and returns what they did."""
        for writer, outcome, number in self.first.outcomes(seconds):
            assert number == self.next[writer], (
                f"writer {writer} told of operation {number} where {self.next[writer]} was to come"
            )
            self.next[writer] += 1
            self.counts[("acknowledged", "not there", "refused", "unknown")[outcome]] += 1
            if outcome in (load.DONE, load.UNKNOWN):
                self.written.note(writer, number, in_doubt=outcome == load.UNKNOWN)

    # Checks

    def _check_acknowledged_is_on_disk(self, remote: Remote) -> None:
        """It is dead and the first member lives: all that it acknowledged must be on its disk."""
        if self.is_restored and self.conflates:
            # The store before had replaced some events, and this one sent them again. They were acknowledged and not
            # applied, because the newer ones are there.
            return
        distributed = self.first.ask("tell")["ledger"]["distributed"]
        on_disk = len(remote.applied)
        assert on_disk >= distributed or not remote.log.is_whole, (
            f"{distributed} events were acknowledged, and {on_disk} are on the disk of the killed receiver"
        )
        self.counts["acknowledgements compared with the disk"] += 1

    def _check_at_rest(self) -> None:
        """The writers pause and the queues drain: then everything acknowledged is at all sites, once, and the ledgers
        say so.
        """
        self.first.ask("pause", meanwhile=lambda: self._receive(0.01))
        self._receive(0.0)
        for sender in self.members[:-1]:  # In the order in which events go.
            ledger = self._drain(sender)
            assert ledger["balanced"] and ledger["queued"] == ledger["distributed"] + ledger["conflated"], ledger
            if sender is self.first:
                least, doubt = self.written.acknowledged, self.written.in_doubt
                assert least <= ledger["queued"] == ledger["received"] <= least + doubt, (
                    f"{least} acknowledged, {doubt} in doubt: {ledger}"
                )
        contents = [member.ask("contents") for member in self.members]
        if self.first.spec["region"].get("disk_synchronous", True):
            check([f"where it was written: {wrong}" for wrong in self.written.check_contents(contents[0])])
        for remote, at_remote in zip(self.remotes, contents[1:], strict=True):
            told = remote.member.ask("tell")["received"]
            assert told["exceptions_occurred"] == 0, told
            check(self.written.check_contents(at_remote))
            differ = {key for key in at_remote | contents[1] if at_remote.get(key) != contents[1].get(key)}
            # A relay that was killed as well may have a change in its region and not in its queue. The site that sent
            # it would send it again.
            alone = {key for key in differ if self.written.was_put_back(key, contents[1].get(key))}
            check([f"{key}: the sites that receive differ" for key in differ - alone])
            self.counts["entries that only a relay has, after a copy took the place of their store"] += len(alone)
        self.counts["entries that only the first site has otherwise, after a change in doubt"] += sum(
            contents[0].get(key) != contents[1].get(key) for key in contents[0] | contents[1]
        )
        self._check_applied()
        self.counts["checks at rest"] += 1

    @staticmethod
    def _drain(sender: Member) -> dict[str, Any]:
        told: dict[str, Any] = {}

        def is_drained() -> bool:
            told.update(sender.ask("tell"))
            return told["ledger"]["in_queue"] == 0

        try:
            eventually(is_drained, DRAIN_S)
        except AssertionError:
            raise AssertionError(f"the queue of {sender} did not drain within {DRAIN_S:.0f} s: {told}") from None
        return told["ledger"]

    def _check_applied(self) -> None:
        for n, remote in enumerate(self.remotes):
            self.counts["applied"] += remote.note_applied()
            # If a site in the middle was killed, the next one gets the newest change of a key, and perhaps not the
            # changes before it.
            if remote.log.is_whole and n == 0:
                check(remote.applied.compare(self.written, self.conflates))

    def close(self) -> None:
        """Kills every process that still runs."""
        for member in self.members:
            if member.pid:
                member.kill()
            member.let_go()
        for locator in self.locators:
            locator.stop()


def start_locators(sites: str, ssl: dict[str, Any] | None) -> list[pywan.Locator]:
    """One for each site; each site is told of the one before."""
    found: list[pywan.Locator] = []
    for n, site in enumerate(sites):
        found.append(
            pywan.Locator(
                f"locator_{site}",
                distributed_system_id=n + 1,
                port=0,
                timings=QUICK,
                remote_locators=str(found[-1].address) if found else "",
                ssl=ssl,
            ).start()
        )
    eventually(lambda: all(len(locator.known_sites()) == len(sites) for locator in found), what="discovery")
    return found


def left_over(directory: Path) -> list[str]:
    """Files that nobody will ever need again, after all members stopped."""
    wrong = [f"{path} is left over" for path in directory.glob("*/overflow-*")]
    for folder in directory.glob("*/disk-store-*/*/"):
        known = {"owner.json", "MANIFEST", "MANIFEST.new"}  # The last keeps room for the next manifest.
        known |= {f"{number:012}.seg" for number in live_segments(folder)}
        wrong += [f"{path} is left over" for path in folder.iterdir() if path.name not in known]
    return wrong


def run(
    seed: int,
    rounds: int,
    *,
    first_world: int = 0,
    rounds_of_a_world: int = ROUNDS_OF_A_WORLD,
    encrypts: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Counter[str]:
    """Runs `rounds` rounds in as many worlds as that takes. Gives what was counted. CampaignFailure says what was wrong
    and how to repeat it.

    The seed fixes the worlds, who is killed and how long after; the machine decides what that interrupts.
    """
    counts: Counter[str] = Counter()
    index, done = first_world, 0
    with Nursery() as nursery:
        while done < rounds:
            here = min(rounds_of_a_world, rounds - done)
            directory = Path(tempfile.mkdtemp(prefix="pywan-crash-"))
            world = World(random.Random(f"{seed}/{index}"), nursery, directory, index, encrypts=encrypts)
            try:
                world.run(here, lambda text, index=index, world=world: tell(f"world {index} ({world.name}): {text}"))
            except (AssertionError, MemberFailed) as error:
                raise CampaignFailure(
                    f"seed {seed}, world {index} ({world.name}): {error}\n{dict(world.counts)}\n"
                    f"stores and logs are kept in {directory}\n"
                    f"repeat: python -m tests.crash --seed {seed} --world {index} --rounds {here}"
                    + (" --tls" if encrypts else "")
                ) from error
            finally:
                world.close()
            shutil.rmtree(directory)
            counts.update(world.counts)
            counts["rounds"] += here
            counts["worlds"] += 1
            done += here
            index += 1
    return counts
