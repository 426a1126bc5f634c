"""A site of three members under attack by a stranger who reaches every port: an honest writer's puts beside those in
peace, in one run.

The attacks are those of `attacks.py`, all at once, by a process that gives way to the others. One thread of each member
puts at a steady rate, in peace and then under attack, in turn. Then all that was acknowledged is read back, and the
replicas of each bucket are compared. The exit status is 1 if a put was refused or lost, if replicas differ, if a member
was given up, if the 99th percentile under attack is 100 ms or more, if memory grew, if a log has a traceback or too
many lines, or if an attack was refused for another reason than it was meant to be. With `--tls` all of the site is
encrypted, and the stranger has no certificate: then he gets nothing but closed connections.

    .venv/bin/python bench/site_attack.py [--rounds 3] [--only ATTACK ...] [--tls]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attacks import ATTACKS, UNANSWERED
from measure import Options, add_forms, resident_bytes
from pywan.testing.processes import ChildProcess
from site_churn import differing
from site_processes import HERE, PywanSite, wait_until

sys.path.append(str(HERE.parent / "tests"))
from support.made_certificates import new_options

MEMBERS = ("a", "b", "c")
BUCKETS = 113
ROLES = ("primary", "copies", "learning")
COPIES = 1  # Beside the primary. So no process needs all three members.
KEYS = 10_000  # Of each member.
RATE = 200  # Puts a second of each member.
WHOLE_S = 60.0
P99_LIMIT_MS = 100.0
GROWTH_MAX_MB = 256  # Requests that are on their way to a port may take so much together (docs/security.md).
LINES_A_SECOND = 20  # Of each process: twice what openings may say, and some for each kind of message.
NICENESS = 10  # Of the attacker.


def attacker(folder: Path, port: int, encrypted: dict[str, Any], attacks: list[str]) -> ChildProcess:
    """The stranger at work. He has a machine of his own, elsewhere: here his process gives way to the others."""
    command = [sys.executable, HERE / "attacks.py"]
    process = ChildProcess("attacker", command, folder=folder, prefix=["nice", "-n", str(NICENESS)])
    process.ask("attack", port, encrypted, *attacks)
    return process


def is_settled(site: PywanSite) -> bool:
    """Whether all buckets have a primary and their replicas, on members of the site alone, and nobody learns."""
    counts = list(site.counts("data").values())
    primaries, replicas, learning = (sum(each.get(what, 0) for each in counts) for what in ROLES)
    return (primaries, replicas, learning) == (BUCKETS, BUCKETS * COPIES, 0)


def lines_of(folder: Path) -> dict[str, int]:
    """How many lines the log of each process of the site has."""
    return {path.name: path.read_bytes().count(b"\n") for path in folder.glob("*.log") if path.name != "attacker.log"}


class Attacked:
    """The site, and what was seen of it."""

    def __init__(self, site: PywanSite, folder: Path, attacks: list[str], *, is_encrypted: bool) -> None:
        # What the locator of an encrypted site would show to a stranger, did it show him anything.
        self.shown = site.locator.ask("coordination") if is_encrypted else {}
        self.site, self.folder, self.attacks = site, folder, attacks
        self.p99_ms: dict[str, list[float]] = {"peace": [], "attack": []}
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.problems: list[str] = []
        self.incarnations = self.of_members("incarnation")
        self.of_members("write", 1, RATE)
        wait_until(lambda: all(each["done"] for each in self.of_members("look")), WHOLE_S, "every member has put")
        self.resident = self.memory()

    def of_members(self, *words: Any) -> list[Any]:
        return [self.site.members[each].ask(*words) for each in MEMBERS]

    def memory(self) -> list[int]:
        return [resident_bytes(each.pid) for each in (self.site.locator, *self.site.members.values())]

    def round(self, number: int, length_s: float) -> None:
        """In peace, and then under attack. Prints what puts took."""
        told, lines, began = {}, lines_of(self.folder), time.monotonic()
        for state in self.p99_ms:
            stranger = attacker(self.folder, self.site.port, self.shown, self.attacks) if state == "attack" else None
            self.of_members("look")
            time.sleep(length_s)
            told[state] = self.of_members("look")
            self.p99_ms[state].append(max(each["p99_ms"] for each in told[state]))
            if stranger is not None:
                with stranger:
                    self.made.update(stranger.ask("rest"))
                    self.refused.update(stranger.ask("refused"))
                    self.problems += [f"a stranger was told {words}" for words in stranger.ask("told")]
                    self.problems += [f"not refused as it was meant: {words}" for words in stranger.ask("mistakes")]
        took_s = time.monotonic() - began
        per_s = {log: (count - lines.get(log, 0)) / took_s for log, count in lines_of(self.folder).items()}
        median_ms = {state: max(each["median_ms"] for each in looks) for state, looks in told.items()}
        print(
            f"| {number} | {median_ms['peace']:.2f}, {self.p99_ms['peace'][-1]:.1f} ms | {median_ms['attack']:.2f},"
            f" {self.p99_ms['attack'][-1]:.1f}, {max(each['longest_ms'] for each in told['attack']):,.0f} ms |"
            f" {', '.join(f'{log}: {count:.1f}' for log, count in sorted(per_s.items()))} |",
            flush=True,
        )
        if max(per_s.values()) > LINES_A_SECOND:
            self.problems.append(f"more than {LINES_A_SECOND} lines of log a second")

    def end(self) -> None:
        """Reads everything back. Prints what was found, and what is wrong."""
        ends, grown = self.of_members("written"), self.memory()
        wait_until(lambda: is_settled(self.site), WHOLE_S, "every bucket has its replica again")
        unequal, p99_ms = differing(self.site), {state: statistics.median(each) for state, each in self.p99_ms.items()}
        grown_mb = max(now - before for now, before in zip(grown, self.resident, strict=True)) / 1e6
        refused, lost = (sum(each[what] for each in ends) for what in ("refused", "lost"))
        missing = sorted(set(self.attacks or ATTACKS) - set(self.made))
        received = set() if self.shown else set(self.made) - UNANSWERED
        spared = sorted(received - set(self.refused))
        found = {
            f"the replicas of {len(unequal)} buckets differ: {unequal[:10]}": unequal,
            "a member was given up": self.of_members("incarnation") != self.incarnations,
            f"{refused} puts were refused: {self._refused_puts()}": refused,
            f"{lost} acknowledged puts were lost": lost,
            f"the 99th percentile is {p99_ms['attack']:.0f} ms": p99_ms["attack"] >= P99_LIMIT_MS,
            f"memory grew by {grown_mb:.0f} MB": grown_mb > GROWTH_MAX_MB,
            f"never made: {', '.join(missing)}": missing,
            f"never refused as it was meant: {', '.join(spared)}": spared,
            **self._tracebacks(),
        }
        self.problems += [problem for problem, is_there in found.items() if is_there]
        print(*self.problems, sep="\n", end="\n" if self.problems else "")
        print(
            f"{self.made.total():,} attacks of {len(self.made)} kinds, {sum(each['done'] for each in ends):,} puts;"
            f" 99th percentile {p99_ms['peace']:.1f} ms in peace, {p99_ms['attack']:.1f} ms under attack"
            f" ({p99_ms['attack'] / p99_ms['peace']:.1f} times, limit {P99_LIMIT_MS:.0f} ms); memory"
            f" {grown_mb:+.0f} MB:"
            f" {'problems' if self.problems else 'nothing lost, all replicas are equal'}"
        )

    def _refused_puts(self) -> str:
        """What the first refused put of each member was told."""
        lines = (
            line for log in sorted(self.folder.glob("*.log")) for line in log.read_text(errors="replace").split("\n")
        )
        return "; ".join(line for line in lines if line.startswith("a put failed"))

    def _tracebacks(self) -> dict[str, int]:
        """The first traceback of each log, and how many there are."""
        found = {}
        for log in sorted(self.folder.glob("*.log")):
            text = log.read_text(errors="replace")
            count, at = text.count("Traceback"), text.find("Traceback")
            found[f"{log.name} has {count} tracebacks: {text[at : at + 1500]}"] = count
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--rounds", type=int, help="rounds of peace and attack (default 5)")
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(ATTACKS), help="these attacks alone")
    parser.add_argument("--tls", action="store_true", help="the site is encrypted, and the stranger has no certificate")
    options, _ = parser.parse_known_args(namespace=Options())
    rounds, length_s = options.rounds or options.size(5, 3, 1), options.size(20.0, 5.0, 3.0)
    with (
        tempfile.TemporaryDirectory(prefix="pywan-attack-") as folder,
        tempfile.TemporaryDirectory(prefix="pywan-certificates-") as certificates,
        PywanSite(
            Path(folder), ssl=new_options(Path(certificates)) if options.tls else None, redundant_copies=COPIES
        ) as site,
    ):
        for each in MEMBERS:
            site.begin(each)
        for number, each in enumerate(MEMBERS):
            site.members[each].finish()
            site.members[each].ask("keys_of", number, KEYS)
        site.members["a"].ask("assign")
        wait_until(lambda: is_settled(site), WHOLE_S, "every bucket has its replica")
        # Until then everybody may tell of decisions that were lost: all report then, and writes may be in doubt.
        wait_until(
            lambda: not site.locator.ask("coordination")["believes_strangers"], WHOLE_S, "the site believes its own"
        )
        attacked = Attacked(site, Path(folder), options.only, is_encrypted=options.tls)
        print("| round | in peace: median, p99 | under attack: median, p99, longest | lines of log a second |")
        print("|---|---|---|---|", flush=True)
        for number in range(1, rounds + 1):
            attacked.round(number, length_s)
        attacked.end()
    return 1 if attacked.problems else 0


if __name__ == "__main__":
    sys.exit(main())
