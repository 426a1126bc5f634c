"""Runs a choice: pytest, and beside it, on what the cores have left, the C tests and the simulated worlds."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .rules import WORKERS, Choice, find_tests

STEP_LIMIT_S = 600  # A step that takes so long finds no end: a world, say, in which nobody gets on.
C_PROGRAMS = ("plain/tests", "plain/test_threads")


@dataclass
class Failure:
    """What failed, and how it runs again alone."""

    what: str
    again: list[str]


def c_build_command(root: Path) -> list[str]:
    return ["make", "-s", "-j2", "-C", "tests/c", *(f"../../build/c/{program}" for program in C_PROGRAMS)]


def c_test_command() -> list[str]:
    return ["make", "-s", "-C", "tests/c", "test"]


def test_command(tests: list[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-m", "not long", *options, *tests]


def world_command(world: str, seeds: int) -> list[str]:
    module, _, kind = world.partition("/")
    option = {"simulator": "--world", "site_simulation": "--kind"}[module]
    return [sys.executable, "-m", f"tests.{module}", "--seeds", str(seeds), *([option, kind] if kind else [])]


def run_choice(choice: Choice, root: Path, *, first_only: bool = False) -> tuple[list[Failure], float]:
    """Runs all that was chosen. Returns what failed, and how long it took without the build of the C tests. With
    `first_only` the first failure ends the run.
    """
    if choice.c_tests:
        subprocess.run(c_build_command(root), cwd=root, check=True, stdout=subprocess.DEVNULL)
    started, failures = time.monotonic(), list[Failure]()
    beside = [("the C tests", c_test_command())] if choice.c_tests else []
    beside += [(world, world_command(world, seeds)) for world, seeds in sorted(choice.worlds.items())]
    with tempfile.TemporaryDirectory(prefix="pywan-changed-") as folder:
        steps = [Step("tests", _pytest(choice, root, first_only), root, Path(folder))] if choice.tests else []
        try:
            while beside or steps:
                if beside and not any(step.name != "tests" for step in steps):
                    steps.append(Step(*beside.pop(0), root, Path(folder)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    steps[-1].process.wait(timeout=0.1)
                ended = [step for step in steps if step.has_ended()]
                steps = [step for step in steps if step not in ended]
                failures += [failure for step in ended if (failure := step.end())]
                if failures and first_only:
                    break
        finally:
            for step in steps:  # Also after Ctrl-C, which does not reach them.
                step.stop()
    return failures, time.monotonic() - started


def _pytest(choice: Choice, root: Path, first_only: bool) -> list[str]:
    return test_command(choice.test_arguments(find_tests(root)), "-n", str(WORKERS), *(["-x"] if first_only else []))


class Step:
    """A command that runs. Its output is kept, and shown when it has ended."""

    def __init__(self, name: str, command: list[str], root: Path, folder: Path) -> None:
        self.name, self._command, self._root = name, command, root
        self._output: IO[str] = (folder / name.replace("/", "-")).open("w+")
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=root, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def has_ended(self) -> bool:
        """Whether it has ended by itself, or was ended as its limit is over."""
        if self.process.poll() is None and time.monotonic() - self._started > STEP_LIMIT_S:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return self.process.poll() is not None

    def end(self) -> Failure | None:
        """Shows what the command said: the end if it succeeded, else all. Returns what failed."""
        self._output.seek(0)
        told = self._output.read()
        self._output.close()
        status = self.process.returncode
        print(f"--- {self.name}: {'failed' if status else 'passed'}, {time.monotonic() - self._started:.0f} s")
        print(told.rstrip() if status else (told.rstrip().splitlines() or [""])[-1], flush=True)
        return self._failure(told) if status else None

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()

    def _failure(self, told: str) -> Failure:
        if self.name != "tests":
            return Failure(f"{self.name}: {_first_words(told)}", self._command)
        test = next(iter(re.findall(r"^(?:FAILED|ERROR) (\S+)", told, re.MULTILINE)), "")
        return Failure(test or "pytest itself", test_command([test] if test else [], "-p", "no:xdist"))


def _first_words(told: str) -> str:
    """Returns the line that says which promise or seed failed."""
    lines = told.strip().splitlines()
    found = [line for line in lines if re.search(r"FAILED|failed at|^failed:|seed \d+", line)]
    return (found or lines or [""])[0][:200]
