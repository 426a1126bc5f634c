"""Runs pytest, and every test that failed once more, alone. Says which tests failed once only: they are unsteady.

    again.py FILE [pytest's arguments]    adds the unsteady tests, with their first failures, to FILE
    again.py --say FILE                   prints what FILE has, and a line for each test or seed last
    again.py --keep FILE [LIST]           adds what FILE has to LIST (tests/unsteady.txt). FILE may also be the output
                                          of a run that printed it

The exit status is that of pytest, but 0 if every test that failed has passed alone. Other failures get no second run: a
module that cannot be collected, an internal error, a worker that ends without a test that did it.

A line of LIST has a test or a seed, the days on which it failed, and the first line of its last failure.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

AGAIN_MAX = 10  # If more tests fail, the change is broken, and no test runs again.
TIMES_MAX = 3  # What has failed on so many occasions stops the next change: its fault is mended first.
LIST = Path(__file__).resolve().with_name("unsteady.txt")
MARK = "unsteady | "  # A line that a run printed begins so.


class Unsteady(NamedTuple):
    """A test or a seed that failed, though nobody knows whether by the change at hand."""

    name: str
    days: tuple[str, ...]  # One for each time.
    failure: str  # The first line of the last one.

    def __str__(self) -> str:
        return f"{self.name} | {' '.join(self.days)} | {self.failure}"


class FirstRun:
    """A plugin that notes which tests failed, with their first failure, and whether anything else did."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._collection_failed = False
        self._ended_workers = 0
        self._tests_that_ended_workers = 0

    @property
    def has_other_failures(self) -> bool:
        return self._collection_failed or self._ended_workers > self._tests_that_ended_workers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._collection_failed |= report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._ended_workers += error is not None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        self._tests_that_ended_workers += 1


def run(file: Path, arguments: list[str]) -> int:
    first = FirstRun()
    status = int(pytest.main(arguments, plugins=[first]))
    if first.has_other_failures:
        return status or 1
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    if not 0 < len(first.failures) <= AGAIN_MAX:
        print(f"again: {len(first.failures)} tests failed, so none runs once more: {AGAIN_MAX} at most do", flush=True)
        return status
    failed_twice = 0
    for test, failure in first.failures.items():
        print(f"again: {test} runs once more, alone", flush=True)
        if subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", test]).returncode:
            failed_twice += 1
            continue
        note(file, test, failure)
    return status if failed_twice else 0


def note(file: Path, name: str, failure: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as unsteady:
        unsteady.write(json.dumps([name, f"{datetime.date.today()}", failure]) + "\n")


def noted(file: Path) -> list[tuple[str, str, str]]:
    """Each test or seed that failed, with the day and the failure."""
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def first_line(failure: str) -> str:
    """What a failure says first. Pytest shows lines of the test before it."""
    lines = [line.strip() for line in failure.splitlines() if line.strip()] or ["no word was said"]
    return next((line.removeprefix("E").strip() for line in lines if re.match(r"E\s", line)), lines[0])


def say(file: Path) -> None:
    unsteady = noted(file)
    for name, _, failure in unsteady:
        print(f"--- the first failure of {name}\n{failure}")
    if unsteady:
        print(
            f"unsteady: {len(unsteady)} tests or seeds failed, perhaps not by this change (a test passed alone). The"
            " next change begins with `make unsteady FROM=FILE`, where FILE has this output:"
        )
        for name, day, failure in unsteady:
            print(f"{MARK}{Unsteady(name, (day,), first_line(failure))}")


def read(text: str) -> list[Unsteady]:
    """Reads the lines of a list. ValueError: one has not got its three parts."""
    parts = [line.split(" | ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return [Unsteady(name, tuple(days.split()), failure) for name, days, failure in parts]


def too_often(unsteady: list[Unsteady]) -> list[Unsteady]:
    return [each for each in unsteady if len(each.days) >= TIMES_MAX]


def keep(file: Path, to: Path) -> None:
    """Adds what failed in a run to a list: to the line that it has there, or in a new one."""
    text = file.read_text()
    if MARK in text:
        found = read("\n".join(line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)))
    else:
        found = [Unsteady(name, (day,), first_line(failure)) for name, day, failure in noted(file)]
    old = to.read_text() if to.exists() else ""
    kept = {each.name: each for each in read(old)}
    for each in found:
        before = kept[each.name].days if each.name in kept else ()
        kept[each.name] = Unsteady(each.name, before + each.days, each.failure)
    head = "".join(f"{line}\n" for line in old.splitlines() if line.startswith("#"))
    to.write_text(head + "".join(f"{each}\n" for each in kept.values()))
    print(f"{to.name}: {len(found)} added; {len(kept)} tests and seeds are there")


if __name__ == "__main__":
    if sys.argv[1] == "--say":
        say(Path(sys.argv[2]))
    elif sys.argv[1] == "--keep":
        keep(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else LIST)
    else:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
