"""Owns `make nightly`: all that is random or takes long, with fresh seeds, each part for its share of the time.

A part makes trials: commands, one after another, until its share is over. The first one runs in any case. What fails
ends only its trial. Seeds that failed are added to `failing_seeds.txt`, a line of totals to docs/testing.md.

With `--unsteady FILE` failures are added to that file instead, and the exit status is 0: the change at hand need not
have caused them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import again
import failing_seeds
from failing_seeds import CONFIGURATIONS, FUZZ, ROOT, Command, FailingSeed, command_of
from fuzz_core import FUZZERS
from mutations.patches import read_mutations

WHOLE_NIGHT_M = 120
LOGS = ROOT / "build" / "nightly"
UNSTEADY = ROOT / "build" / "unsteady"
PAGE = ROOT / "docs" / "testing.md"
NO_END_S = 1800  # A trial that takes so much longer than it is given has no end.
ENDS_S = 20  # So long a program has to end by itself.
CORES = os.cpu_count() or 1
COUNTED = ("tests", "mutants", "seeds", "rounds", "runs")  # What trials consist of.


class Failure(NamedTuple):
    words: str  # The first line of what was said.
    seed: tuple[str, str] | None = None  # What repeats it: kind and arguments of `failing_seeds`.


class Outcome(NamedTuple):
    count: int
    failures: list[Failure]
    note: str = ""


class Said(NamedTuple):
    """How a program ended."""

    status: int
    output: str
    errors: str

    @property
    def first_line(self) -> str:
        lines = [line.strip() for line in (self.errors + self.output).splitlines() if line.strip()]
        if not lines:
            return f"it ended with status {self.status}"
        return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class Trial(NamedTuple):
    command: Command
    outcome_of: Callable[[Said], Outcome]
    enough_s: float = math.inf  # It is ended then, and that is no failure: what it has said until then counts.


class Share:
    """The time of a part."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(self._end - time.monotonic(), 1.0)

    def units(self, each_s: float, least: int, most: int) -> int:
        """Returns how many things that take so long fit, within limits."""
        return min(max(int(self.left_s / each_s), least), most)

    def has_room_for(self, seconds: float) -> bool:
        return time.monotonic() + seconds <= self._end


class Seeds:
    """Seeds that no night before had: a night takes fewer than a thousand a minute."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int = 1) -> int:
        self._next += count
        return self._next - count


class Part(NamedTuple):
    name: str
    minutes: float  # Of a night of `WHOLE_NIGHT_M`.
    counts: str  # One of `COUNTED`.
    trials: Callable[[Seeds, Share], Iterator[Trial]]


# Trials


def of_a_seed(kind: str, arguments: list[str], count: int) -> Trial:
    """A program that ends with its first failure: these arguments repeat it."""

    def outcome_of(said: Said) -> Outcome:
        failed = [Failure(said.first_line, (kind, " ".join(arguments)))] if said.status else []
        return Outcome(count, failed)

    return Trial(command_of(kind, arguments), outcome_of)


def line_with(words: str, said: Said) -> str:
    lines = (said.errors + said.output).splitlines()
    return next((line.strip() for line in lines if re.search(words, line)), said.first_line)


def counted(words: str, said: Said) -> int:
    return sum(int(each.replace(",", "")) for each in re.findall(words, said.output, re.MULTILINE))


def simulator(seeds: Seeds, share: Share) -> Iterator[Trial]:
    def outcome_of(said: Said) -> Outcome:
        named = re.findall(r"^failed: (.*)", said.output, re.MULTILINE)
        failed = [each.split() for line in named for each in line.split(", ")]
        failures = [
            Failure(line_with(rf"seed {seed}\b", said), ("simulator", f"--world {world} --seed {seed}"))
            for world, seed in failed
        ]
        return Outcome(counted(r"^(\d+) simulations", said), with_status(failures, said))

    while True:
        count = share.units(0.5, 6, 100)
        command = ["--first", str(seeds.take(count)), "--seeds", str(count), "--jobs", str(CORES)]
        yield Trial(command_of("simulator", command), outcome_of)


def site_simulation(seeds: Seeds, share: Share) -> Iterator[Trial]:
    def outcome_of(said: Said) -> Outcome:
        failures = [
            Failure(line, ("site_simulation", f"--first {seed} --seeds 1"))
            for line, seed in re.findall(r"^(seed (\d+)\b.*)", said.errors, re.MULTILINE)
        ]
        return Outcome(counted(r"^(\d+) simulations", said), with_status(failures, said))

    while True:
        count = share.units(0.6, 6, 100)
        command = ["--first", str(seeds.take(count)), "--seeds", str(count), "--jobs", str(CORES)]
        yield Trial(command_of("site_simulation", command), outcome_of)


def with_status(failures: list[Failure], said: Said) -> list[Failure]:
    """A program that failed and did not say by which seed has failed all the same."""
    return failures or ([Failure(said.first_line)] if said.status else [])


def campaign(
    kind: str, round_s: float, rounds: int, *ways: tuple[str, ...], option: str = "--rounds"
) -> Callable[[Seeds, Share], Iterator[Trial]]:
    """Processes that are killed: a trial is a world of so many rounds, in one of the ways. The number of a world says
    which kind it has.
    """

    def trials(seeds: Seeds, share: Share) -> Iterator[Trial]:
        chance = random.Random(seeds.take())
        for world in itertools.count(chance.randrange(1000)):
            count, way = share.units(round_s, 1, rounds), chance.choice(ways or ((),))
            arguments = ["--seed", str(seeds.take()), "--world", str(world), option, str(count), *way]
            yield of_a_seed(kind, arguments, count)

    return trials


def configurations(seeds: Seeds, share: Share) -> Iterator[Trial]:
    def outcome_of(said: Said) -> Outcome:
        failures = [
            Failure(words, (CONFIGURATIONS, seed))
            for seed, words in re.findall(r"^FAILED \S*\[(\d+)\] - (.*)", said.output, re.MULTILINE)
        ]
        return Outcome(counted(r"(\d+) passed", said) + len(failures), with_status(failures, said))

    while True:
        count = share.units(2.0, 1, 10)
        first = seeds.take(count)
        yield Trial(command_of(CONFIGURATIONS, [f"{first}-{first + count - 1}"]), outcome_of)


MUTANTS_S = 30  # In so much time some are seen.


def mutants(seeds: Seeds, share: Share) -> Iterator[Trial]:
    """Their seeds are not fresh: each is known to be seen at one of the first ones."""

    def outcome_of(said: Said) -> Outcome:
        tried = re.findall(r"^ *[\d.]+ s  (\S+): (.*)$", said.output, re.MULTILINE)
        failures = [Failure(f"mutant {name}: {words}") for name, words in tried if words.startswith("NOT SEEN")]
        return Outcome(len(tried), with_status(failures, said))

    names = [each.name for each in read_mutations() if not each.not_seen]
    random.Random(seeds.take()).shuffle(names)
    while names:
        some, names = names[: 4 * CORES], names[4 * CORES :]
        words = [sys.executable, "-m", "tests.mutations", "--seeds", "500", "--jobs", str(CORES), *some]
        yield Trial(Command(words, ROOT, {}), outcome_of, enough_s=max(share.left_s, MUTANTS_S))


def of_tests(said: Said) -> Outcome:
    """Tests that passed when they ran alone are unsteady, and noted as such."""
    unsteady = {name for name, *_ in again.noted(UNSTEADY)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+(?:.*?\])?)(?: - (.*))?$", said.output, re.MULTILINE)
    failures = [Failure(f"{test}: {words}") for test, words in dict(failed).items() if test not in unsteady]
    left_out = counted(r"^SKIPPED \[(\d+)\] .*: there is no time", said)
    first = re.search(r"(\d+) passed", said.output)
    return Outcome(
        int(first[1]) if first else 0,
        with_status(failures, said) if said.status else [],
        f"{left_out} left out: no time" if left_out else "",
    )


def long_tests(seeds: Seeds, share: Share) -> Iterator[Trial]:
    arguments = f"-m long --begin-until {time.time() + share.left_s * 0.9:.0f}"
    words = ["make", "--no-print-directory", "test-long", "AGAIN=1", "WORKERS=4", f"ARGS={arguments}"]
    yield Trial(Command(words, ROOT, {}), of_tests)


EVERY_CALL_S = 600  # All calls take about so long.


def every_call(seeds: Seeds, share: Share) -> Iterator[Trial]:
    every = min(math.ceil(EVERY_CALL_S / share.left_s), 50)
    arguments = f"tests/disk/test_every_call.py -m long --timeout {NO_END_S} -o faulthandler_timeout={NO_END_S}"
    words = ["make", "--no-print-directory", "test-long", f"WORKERS={CORES}", f"ARGS={arguments}"]

    def outcome_of(said: Said) -> Outcome:
        return of_tests(said)._replace(note=f"every {every}th call" if every > 1 else "")

    yield Trial(Command(words, ROOT, {"EVERY_CALL": str(every)}), outcome_of)


def fuzz_primitives(seeds: Seeds, share: Share) -> Iterator[Trial]:
    fuzzers = len(list((ROOT / "tests" / "c").glob("fuzz_*.c")))
    seconds = share.units(fuzzers / CORES, 1, 3600)

    def outcome_of(said: Said) -> Outcome:
        found = re.findall(r"^fuzz_(\w+) failed; repeat with (FUZZ_SEED=\d+ FUZZ_RUNS=1)", said.errors, re.MULTILINE)
        failures = [
            Failure(line_with("ERROR|runtime error|Assertion|check", said), (FUZZ, f"FUZZERS={name} {repeat}"))
            for name, repeat in found
        ]
        return Outcome(counted(r"^\w+: (\d+) runs$", said), with_status(failures, said))

    yield Trial(command_of(FUZZ, [f"FUZZ_SECONDS={seconds}", f"FUZZ_SEED={seeds.take()}"]), outcome_of)


def fuzz_covered(seeds: Seeds, share: Share) -> Iterator[Trial]:
    fuzzers = len(list((ROOT / "tests" / "c").glob("fuzz_*.c")))
    words = ["make", "--no-print-directory", "-C", "tests/c", "libfuzzer"]
    command = Command([*words, f"FUZZ_SECONDS={share.units(fuzzers, 1, 3600)}"], ROOT, {})

    def outcome_of(said: Said) -> Outcome:
        failures = [Failure(line) for line in re.findall(r"^.*(?:ERROR: |SUMMARY: ).*$", said.output, re.MULTILINE)[:1]]
        skipped = re.search(r"^libfuzzer: (skipped.*?);", said.output, re.MULTILINE)
        runs = counted(r"stat::number_of_executed_units: (\d+)", said)
        return Outcome(runs, with_status(failures, said), skipped[1] if skipped else "")

    yield Trial(command, outcome_of)


SANITIZED_S = 150  # The compiled core is built with sanitizers in about so long. In less time the fuzzers do without.


def fuzz_core(seeds: Seeds, share: Share) -> Iterator[Trial]:
    is_sanitized = share.left_s > 2 * SANITIZED_S
    seconds = int(max(share.left_s - SANITIZED_S * is_sanitized, len(FUZZERS)) / len(FUZZERS))
    seed = seeds.take()
    words = ["make", "--no-print-directory", "fuzz-core", f"FUZZ_SECONDS={seconds}", f"FUZZ_SEED={seed}"]
    plain = command_of("fuzz_core", ["--seconds", str(seconds), "--seed", str(seed)])

    def outcome_of(said: Said) -> Outcome:
        found = re.findall(r"repeat with (--fuzzers \w+ --seed \d+ --runs 1)", said.output + said.errors)
        failures = [Failure(line_with("ERROR|rror|fail", said), ("fuzz_core", each)) for each in found]
        runs = counted(r"^fuzz_core \w+: (\d+) runs from", said)
        return Outcome(runs, with_status(failures, said), "" if is_sanitized else "without sanitizers: no time")

    yield Trial(Command(words, ROOT, {}) if is_sanitized else plain, outcome_of)


def fuzz_python(kind: str) -> Callable[[Seeds, Share], Iterator[Trial]]:
    def trials(seeds: Seeds, share: Share) -> Iterator[Trial]:
        def outcome_of(said: Said) -> Outcome:
            found = re.findall(r"--seed \d+ --runs \d+", said.errors)
            failures = [Failure(said.errors.strip().splitlines()[0], (kind, each)) for each in found[:1]]
            return Outcome(counted(r": (\d+) runs, seed", said), with_status(failures, said))

        arguments = ["--seconds", str(int(share.left_s)), "--seed", str(seeds.take())]
        yield Trial(command_of(kind, arguments), outcome_of)

    return trials


PARTS = (
    Part("simulator", 10, "seeds", simulator),
    Part("site-simulation", 16, "seeds", site_simulation),
    Part("crash", 7, "rounds", campaign("crash", 2.0, 25, (), ("--tls",))),
    Part("crash-site", 10, "rounds", campaign("site_crash", 15.0, 5, (), ("--tls",))),
    Part("crash-site-locators", 7, "rounds", campaign("site_crash", 15.0, 5, option="--locators")),
    Part("crash-wan", 8, "rounds", campaign("wan_crash", 15.0, 5, (), ("--tls",))),
    Part("crash-sink", 5, "rounds", campaign("sink_crash", 4.0, 10, (), ("--database", "sqlite"))),
    Part("configurations", 4, "seeds", configurations),
    Part("mutants", 18, "mutants", mutants),
    Part("every-call", 6, "tests", every_call),
    Part("fuzz", 4, "runs", fuzz_primitives),
    Part("libfuzzer", 2, "runs", fuzz_covered),
    Part("fuzz-core", 6, "runs", fuzz_core),
    Part("fuzz-python", 2, "runs", fuzz_python("fuzz_control")),
    Part("fuzz-coordination", 2, "runs", fuzz_python("fuzz_coordination")),
    Part("long-tests", 13, "tests", long_tests),
)


# The night


@dataclass
class Total:
    part: Part
    trials: int = 0
    count: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)


class Night:
    """Runs parts one after another.

    Attributes:
        totals: What each part that began has done.
    """

    def __init__(self, minutes: float, seed: int, logs: Path) -> None:
        self.totals: list[Total] = []
        self.seconds = 60 * minutes
        self._seeds, self._logs = Seeds(seed), logs
        self._began = time.monotonic()
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def failures(self) -> list[Failure]:
        return [failure for total in self.totals for failure in total.failures]

    def run(self, parts: list[Part]) -> None:
        """KeyboardInterrupt: nothing that was started is left."""
        for n, part in enumerate(parts):
            weight = part.minutes / sum(each.minutes for each in parts[n:])
            self._run_part(part, Share(max(self.seconds - self.took_s, 0.0) * weight))

    def _run_part(self, part: Part, share: Share) -> None:
        total = Total(part)
        self.totals.append(total)
        print(f"{self.took_s:7.0f} s  {part.name}, for {share.left_s:.0f} s", flush=True)
        began = time.monotonic()
        try:
            for trial in part.trials(self._seeds, share):
                started = time.monotonic()
                self._run_trial(total, trial, share)
                if not share.has_room_for(time.monotonic() - started):
                    break
        finally:
            total.seconds = time.monotonic() - began

    def _run_trial(self, total: Total, trial: Trial, share: Share) -> None:
        total.trials += 1
        name = self._logs / f"{total.part.name}-{total.trials}"
        log, errors = name.with_suffix(".log"), name.with_suffix(".errors")
        limit_s = min(share.left_s + NO_END_S, trial.enough_s)
        with log.open("w") as output, errors.open("w") as complaints:
            status = run(trial.command, output.fileno(), complaints.fileno(), limit_s)
        is_endless = status is None and limit_s < trial.enough_s
        said = Said(
            is_endless if status is None else status, *(each.read_text(errors="replace") for each in (log, errors))
        )
        outcome = trial.outcome_of(said)
        if is_endless:
            words = f"it has no end within {limit_s:.0f} s: {' '.join(trial.command.words)}"
            outcome = Outcome(0, [failure._replace(words=words) for failure in outcome.failures[:1]])
        total.count += outcome.count
        total.failures += outcome.failures
        total.notes |= dict.fromkeys([outcome.note] if outcome.note else [])
        for failure in outcome.failures:
            print(f"{'':9}  FAILED: {failure.words} ({' '.join(failure.seed or ())} {log})", flush=True)

    def counted(self, what: str) -> int:
        return sum(total.count for total in self.totals if total.part.counts == what)

    def table(self) -> str:
        lines = [f"{'part':20} {'did':>24} {'s':>7} {'failures':>8}"]
        for total in self.totals:
            did = f"{total.count:,} {total.part.counts}"
            notes = "".join(f"  {note}" for note in total.notes)
            lines.append(f"{total.part.name:20} {did:>24} {total.seconds:7.0f} {len(total.failures):8}{notes}")
        return "\n".join(lines)

    def row(self) -> str:
        """The line of docs/testing.md."""
        now = datetime.datetime.now(datetime.UTC)
        cells = [
            f"{now:%Y-%m-%d %H:%M}",
            str(CORES),
            f"{self.took_s / 60:.0f}",
            *(f"{self.counted(what):,}" for what in COUNTED),
            str(len(self.failures)),
        ]
        return f"| {' | '.join(cells)} |"


HEAD = f"| night (UTC) | cores | minutes | {' | '.join(COUNTED)} | failures |"


def add_row(text: str, row: str) -> str:
    """Adds a row to the table of the nights."""
    before, head, rest = text.partition(HEAD)
    assert head, "the page has the table of the nights"
    table, blank, after = rest.partition("\n\n")
    return f"{before}{head}{table.rstrip()}\n{row}{blank or chr(10)}{after}"


# Processes


def run(command: Command, output: int, errors: int, limit_s: float) -> int | None:
    """Runs a program, and returns its exit status. None: it had no end within the limit. Nothing that it has started is
    left behind: also if KeyboardInterrupt comes.
    """
    child = subprocess.Popen(
        command.words,
        cwd=command.folder,
        env=command.environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,  # Ctrl-C reaches this process, which ends them.
    )
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends a program and all that it has started: asks it first."""
    for number, seconds in ((signal.SIGINT, ENDS_S), (signal.SIGKILL, None)):
        if child.poll() is None:
            os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    while orphans := children():  # Those with sessions of their own came to this process when their parents ended.
        for each in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each, 0)


def children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()):
                found.append(int(stat.parent.name))
    return found


def adopt_orphans() -> None:
    """What a child has started becomes a child of this process when its parent ends."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def report(night: Night, seeds: Path, unsteady: Path | None = None) -> int:
    """Prints the totals, and keeps the seeds that failed, or all failures as unsteady. Returns the exit status."""
    print(f"\n{night.table()}\n{night.took_s / 60:.1f} minutes, {len(night.failures)} failures", flush=True)
    if unsteady:
        for failure in night.failures:
            again.note(unsteady, " ".join(failure.seed) if failure.seed else "a seed of CI", failure.words)
        return 0
    today = f"{datetime.date.today()}"
    failed = [FailingSeed(*failure.seed, today, failure.words) for failure in night.failures if failure.seed]
    failing_seeds.add(failed, seeds)
    return bool(night.failures)


def main(all_parts: tuple[Part, ...] = PARTS, logs: Path = LOGS, seeds: Path = failing_seeds.FILE) -> int:
    parser = argparse.ArgumentParser(prog="make nightly", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=WHOLE_NIGHT_M, help="how long it takes (default %(default)s)")
    parser.add_argument("--seed", type=int, help="the first seed (default: from the date and time)")
    parser.add_argument(
        "--parts", default="", help="only these, with commas: " + ", ".join(part.name for part in all_parts)
    )
    parser.add_argument("--unsteady", type=Path, help="add failures to this file, and fail nothing")
    options = parser.parse_args()
    wanted = set(options.parts.split(",")) if options.parts else {part.name for part in all_parts}
    if unknown := wanted - {part.name for part in all_parts}:
        parser.error(f"there is no part {min(unknown)}")
    parts = [part for part in all_parts if part.name in wanted]
    seed = options.seed if options.seed is not None else int(time.time()) // 60 * 1000
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell has what it runs in the background ignore the first.
        signal.signal(number, interrupt)
    adopt_orphans()
    night = Night(options.minutes, seed, logs)
    print(f"{options.minutes:g} minutes, seeds from {seed}: --seed {seed} has the same", flush=True)
    try:
        night.run(parts)
    except KeyboardInterrupt:
        print("ended: these are the totals so far, and nothing is left behind", flush=True)
        report(night, seeds, options.unsteady)
        return 130
    status = report(night, seeds, options.unsteady)
    if not options.unsteady and parts == list(PARTS):
        PAGE.write_text(add_row(PAGE.read_text(), night.row()))
    return status


if __name__ == "__main__":
    sys.exit(main())
