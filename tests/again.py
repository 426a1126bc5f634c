"""Runs pytest, and every test that failed once more, alone. Says which tests failed once only: they are unsteady.

    again.py FILE [pytest's arguments]    adds the unsteady tests, with their first failures, to FILE
    again.py --say FILE                   prints what FILE has, and the names of the tests last

The exit status is that of pytest, but 0 if every test that failed has passed alone. Other failures get no second run: a
module that cannot be collected, an internal error, a worker that ends without a test that did it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGAIN_MAX = 10  # If more tests fail, the change is broken, and no test runs again.


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
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as unsteady:
            unsteady.write(json.dumps([test, failure]) + "\n")
    return status if failed_twice else 0


def say(file: Path) -> None:
    unsteady = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for test, failure in unsteady:
        print(f"--- the first failure of {test}\n{failure}")
    if unsteady:
        tests = "1 test" if len(unsteady) == 1 else f"{len(unsteady)} tests"
        print(f"unsteady: {tests} failed once and passed alone: {', '.join(test for test, _ in unsteady)}")


if __name__ == "__main__":
    if sys.argv[1] == "--say":
        say(Path(sys.argv[2]))
    else:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
