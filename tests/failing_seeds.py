"""Owns the list of what has failed by a seed, `failing_seeds.txt`: what a line is, and which command runs it again.
`make test` runs the lines of simulations and fuzzers, `make test-long` those of processes that are killed.

    kind arguments | day | the first line of the failure
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FILE = TESTS / "failing_seeds.txt"

# Programs of this folder that take a seed, and whether a seed takes about a second.
PROGRAMS = {
    "simulator": True,
    "site_simulation": True,
    "fuzz_core": True,
    "fuzz_control": True,
    "fuzz_coordination": True,
    "crash": False,
    "site_crash": False,
    "wan_crash": False,
    "sink_crash": False,
}
FUZZ = "fuzz"  # The fuzzers of the C primitives.
CONFIGURATIONS = "configuration_model"


class FailingSeed(NamedTuple):
    kind: str
    arguments: str
    day: str
    failure: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.arguments}"

    @property
    def is_quick(self) -> bool:
        return PROGRAMS.get(self.kind, True)

    def __str__(self) -> str:
        return f"{self.name} | {self.day} | {self.failure}"


class Command(NamedTuple):
    """How a program is run: its words, the folder, and what it has in its environment beside ours."""

    words: list[str]
    folder: Path
    more: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.more}


def command_of(kind: str, arguments: Iterable[str]) -> Command:
    """KeyError: there is no such kind."""
    if kind == FUZZ:
        return Command(["make", "--no-print-directory", "-C", "tests/c", "fuzz", *arguments], ROOT, {})
    if kind == CONFIGURATIONS:
        (seeds,) = arguments
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/config/test_{kind}.py"]
        return Command(words, ROOT, {"CONFIGURATION_SEEDS": seeds})
    if kind not in PROGRAMS:
        raise KeyError(f"there is no kind {kind}: there are {', '.join([*PROGRAMS, FUZZ, CONFIGURATIONS])}")
    return Command([sys.executable, "-m", kind, *arguments], TESTS, {})


def read(file: Path = FILE) -> list[FailingSeed]:
    """ValueError: a line has not got its three parts."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else []:
        if line and not line.startswith("#"):
            name, day, failure = line.split(" | ", 2)
            kind, _, arguments = name.partition(" ")
            found.append(FailingSeed(kind, arguments, day, failure))
    return found


def add(seeds: Iterable[FailingSeed], file: Path = FILE) -> None:
    """A seed that is there already is not added."""
    known = {each.name for each in read(file)}
    with file.open("a") as lines:
        for each in seeds:
            if each.name not in known:
                known.add(each.name)
                lines.write(f"{each}\n")
