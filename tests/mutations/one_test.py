"""Owns the run of one selection of tests in a copy of the tree, and which of them failed.

A selection is what a patch says behind `Test:`. It is what pytest takes (`tests/room/test_x.py -k words`), or the name
of a file of the C tests and words of the promise (`c/test_log words of the promise`).
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .children import Children

C_TESTS = "c/"
LIMIT_S = 600  # Tests that take so long are ended, and have seen nothing.
PYTEST_FAILED = re.compile(r"^FAILED (?:\S*/)?(?P<file>\w+)\.py::(?P<test>[^\[\s]+)", re.MULTILINE)
C_FAILED = re.compile(r"^FAILED: (?P<test>.+)$", re.MULTILINE)
C_COUNT = re.compile(r"^(\d+) tests, \d+ failed", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a selection. If both texts are empty, all of its tests passed."""

    failed: str  # The first test that failed, with its file.
    obstacle: str  # Why the tests did not run to their end.
    seconds: float


def run_test(test: str, tree: Path, children: Children) -> Outcome:
    """Runs a selection until a test of it fails."""
    return _run_c_test(test, tree, children) if test.startswith(C_TESTS) else _run_pytest(test, tree, children)


def _run_pytest(test: str, tree: Path, children: Children) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-rf"]
    status, said, seconds = _run([*command, f"--basetemp={tree / 'tmp'}", *shlex.split(test)], tree, children)
    if status == 1 and (found := PYTEST_FAILED.search(said)):
        name = found["test"].removeprefix("test_").replace("_", " ")
        return Outcome(f"`{found['file']}`: {name}", "", seconds)
    return Outcome("", _obstacle(test, status, said), seconds)


def _run_c_test(test: str, tree: Path, children: Children) -> Outcome:
    file, _, words = test.removeprefix(C_TESTS).partition(" ")
    build = tree / "build" / "c"
    program = str(build / "plain" / "tests")
    make = ["make", "-s", "-C", "tests/c", f"BUILD={build}", program]
    status, said, seconds = _run(make, tree, children)
    if status:
        return Outcome("", f"the C tests were not built: {_last_line(said)}", seconds)
    status, said, seconds = _run([program, words], tree, children)
    if status == 1 and (found := C_FAILED.search(said)):
        return Outcome(f"`c/{file}`: {found['test']}", "", seconds)
    count = C_COUNT.search(said)
    if count is not None and count[1] == "0":
        return Outcome("", f"no promise has the words {words!r}", seconds)
    return Outcome("", _obstacle(test, status, said), seconds)


def _run(command: list[str], tree: Path, children: Children) -> tuple[int | None, str, float]:
    """Returns the exit status of a command (None: it took too long), what it said, and how long it took."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = children.start(command, tree, said, said.fileno())
        status: int | None = None
        try:
            status = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            children.end(child)
        children.check()
        said.seek(0)
        return status, said.read(), time.monotonic() - began


def _obstacle(test: str, status: int | None, said: str) -> str:
    if status == 0:
        return ""
    if status is None:
        return f"{test} took longer than {LIMIT_S} s"
    return f"{test} ended in no check, with status {status}: {_last_line(said)}"


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["nothing was said"])[-1]
