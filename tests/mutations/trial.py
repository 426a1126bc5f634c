"""Owns the trial of a mutation: a copy of the tree in a temporary folder, the patch, the build, and the seeds or the
test that is to see it."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .children import Children
from .one_test import run_test
from .patches import ROOT, Mutation, apply_patch
from .seeds import CHECK, ERROR

SEED_LIMIT_S = 60  # A seed takes about 0.2 s. One that takes so long finds no end.
FAULTS_MAX = 20  # So many seeds of one mutation may end in a fault that is no check.
BUILT = ("pywan/_core/*.so", "pywan/_core/c_*.pxd")
OBJECTS = ("build/objects", "build/cython")

# What a failed check is called, by words of what it says.
CHECKS = {
    "it leaves early": "what leaves counts",
    "it leaves out of order": "the puts of a thread leave in order",
    "come out of order": "the events of a key come in order",
    "gets events with a gap": "the events of a key come in order",
    "which runs on another member": "a sender that runs elsewhere takes events",
    "the ledger of": "ledgers balance",
    "the queues of": "equal queues at rest",
    "lost parked events": "refused events are parked once",
    "counts a parked event": "refused events are parked once",
    "which dropped": "what was answered comes to other sites",
    "they differ": "other sites have what the site has",
    "and does not know decision": "a coordinator that starts hears first",
    "and no file was lost": "a timeline loses its end with the coordinator's file only",
    "without proof:": "proof before a set gets smaller",
    "in sync as": "every copy that a copy takes for in sync has what is answered",
    ", and has shown ": "reads at a copy go forward",
    "the history of": "history of a key",
    "and was acknowledged": "a new primary has all that was answered",
    "are both primary": "one primary under an epoch",
    "was acknowledged": "a new primary has all that was answered",
    " has begun": "answers in a timeline that is over",
    "and it leads": "answers of an earlier primary",
    " leads it under ": "answers of an earlier primary",
    "it does not count": "what is told counts",
    "is told again without a mark": "what is told again is marked",
    "and no change was dropped": "no answered change is missed",
    ", in sync, has ": "every in-sync replica has what is answered",
    "the copies of": "equal copies at rest",
    "holds entries of": "equal copies at rest",
    "and min-in-sync-replicas is": "min-in-sync-replicas",
    "a healthy site finds no rest": "rest after all is healed",
    "operations in a healthy site": "operations after all is healed",
    "begins anew, and": "proof of death before a new timeline",
    "goes back from timeline": "lives go forward",
    "acknowledges sequence": "messages between members",
    "an answer to question": "messages between members",
    "finds no end of its work": "members find an end of their work",
    "whose copies are well": "single calls go on beside parked ones",
    "and it is not taken out": "copies whose replication links stand still are taken out",
    "is not whole after": "snapshots are whole in time",
    "no put is answered for": "puts go on beside snapshots",
    "its only writer has put": "what a writer reads at the end",
    ", which is healthy": "nobody healthy is given up",
    ", and lacks ": "a standby that takes over has all that was told",
    ", and term ": "nothing is told that a later term does not know",
    "locators decide in term": "one locator for each term",
    "in a healthy site": "a healthy site has one coordinator and a standby",
    "after its limit": "parked calls end within their limit",
}


@dataclass
class Run:
    """What became of seeds."""

    seeds: int = 0  # How many were run.
    seen_at: int | None = None  # The last of them, if a check failed there.
    check: str = ""
    faults: list[str] = field(default_factory=list)  # Seeds that ended, and not by a check.


@dataclass
class Result:
    mutation: Mutation
    run: Run = field(default_factory=Run)
    failed_test: str = ""  # Which test failed, if the mutation has one that is to see it.
    fail_anyway: list[int] = field(default_factory=list)  # Seeds at which a check fails without the mutation, too.
    failure: str = ""  # Why the trial could not go on.
    seconds: float = 0.0  # How long the seeds took, or the test.

    @property
    def is_seen(self) -> bool:
        return not self.failure and (bool(self.failed_test) or self.run.seen_at is not None)

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        run, mutation = self.run, self.mutation
        if mutation.test:
            return self.failed_test or f"not seen by `{mutation.test}`"
        told = f"seed {run.seen_at}: {run.check}" if self.is_seen else f"not seen in {run.seeds} seeds"
        if mutation.kind:
            told = f"`{mutation.kind}`, {told}"
        if run.faults:
            told += f" ({len(run.faults)} ended in no check: {run.faults[0]})"
        if self.fail_anyway:
            told += f" (with nothing taken out, seeds fail too: {', '.join(map(str, self.fail_anyway))})"
        return told


class Whole:
    """A copy of the tree from which nothing is taken out. Any thread may call it."""

    def __init__(self, folder: Path, children: Children, with_objects: bool) -> None:
        self.folder, self.tree, self.children = folder, folder / "whole", children
        self._lock = threading.Lock()
        self._fails: dict[tuple[int, str], bool] = {}  # By seed and kind of world.
        copy_tree(self.tree, with_objects, children)

    def fails(self, seed: int, kind: str) -> bool:
        """Returns whether a check fails at a seed though nothing is taken out. Then it says nothing of a mutation."""
        with self._lock:
            if (seed, kind) not in self._fails:
                run = Run()
                run_seeds(self.tree, seed, seed, kind, run, self.children)
                self._fails[seed, kind] = run.seen_at is not None
            return self._fails[seed, kind]


def try_mutation(mutation: Mutation, whole: Whole, first: int, count: int) -> Result:
    """Takes the piece out of a copy of the tree, and looks whether a check fails that holds with the piece."""
    result, children = Result(mutation), whole.children
    tree = whole.folder / mutation.name
    try:
        shutil.copytree(whole.tree, tree, copy_function=copy_file(children))
        if mutation.test:
            _try_test(result, tree, children)
        else:
            _try_seeds(result, tree, whole, first, first + count - 1)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return result


def _try_test(result: Result, tree: Path, children: Children) -> None:
    """Runs the test of a mutation with the piece, and without it."""
    mutation = result.mutation
    before = run_test(mutation.test, tree, children)
    if before.failed or before.obstacle:
        result.failure = f"with nothing taken out: {before.failed or before.obstacle}"
        return
    result.failure = _take_out(mutation, tree, children)
    if not result.failure:
        result.failed_test, result.failure, result.seconds = run_test(mutation.test, tree, children)


def _try_seeds(result: Result, tree: Path, whole: Whole, first: int, last: int) -> None:
    """Runs seeds until a check fails that holds with the piece."""
    mutation, run, children = result.mutation, result.run, whole.children
    result.failure = _take_out(mutation, tree, children)
    began = time.monotonic()
    while first <= last and not result.failure:
        first = run_seeds(tree, first, last, mutation.kind, run, children)
        if run.seen_at is not None and whole.fails(run.seen_at, mutation.kind):
            result.fail_anyway.append(run.seen_at)
            run.seen_at = None
        elif run.seen_at is not None:
            break
        if len(run.faults) > FAULTS_MAX:
            result.failure = f"{len(run.faults)} of {run.seeds} seeds ended in no check: {run.faults[0]}"
    result.seconds = time.monotonic() - began


def _take_out(mutation: Mutation, tree: Path, children: Children) -> str:
    """Applies the patch, and builds what is to be built. Returns why that failed; empty: it did not."""
    if why := apply_patch(mutation, tree):
        return f"does not apply: {why}"
    return build(tree, children) if mutation.needs_build else ""


def copy_file(children: Children) -> Callable[[str, str], object]:
    """Returns what copies a file with its time, by which the build sees what is current, unless the command ends."""

    def copy(from_: str, to: str) -> object:
        children.check()
        return shutil.copy2(from_, to)

    return copy


def copy_tree(tree: Path, with_objects: bool, children: Children) -> None:
    """Copies what is in the work tree, and what was built of it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    files += [file for pattern in BUILT for file in ROOT.glob(pattern)]
    if with_objects:
        files += [file for folder in OBJECTS for file in (ROOT / folder).rglob("*") if file.is_file()]
    copy = copy_file(children)
    for file in files:
        if file.is_file():
            to = tree / file.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            copy(str(file), str(to))


def build(tree: Path, children: Children) -> str:
    """Builds the core as `make build` does. Returns why it failed; empty: it did not."""
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        child = children.start(command, tree, errors, subprocess.DEVNULL)
        try:
            status = child.wait()
        finally:
            children.end(child)
        children.check()
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if "rror" in line] or ["no reason was given"]
    return f"was not built: {lines[0]}" if status else ""


def run_seeds(tree: Path, first: int, last: int, kind: str, run: Run, children: Children) -> int:
    """Runs seeds in one process, until a check fails or the process ends. Returns the seed to go on with."""
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "tests.mutations.seeds", str(first), str(last), kind]
        child = children.start(command, tree, errors, subprocess.PIPE)
        seed, is_late, status = first, False, 0
        try:
            while line := _next_line(child):
                seed, what, words = json.loads(line)
                run.seeds += 1
                if what == CHECK:
                    run.seen_at, run.check = seed, name_of(words)
                elif what == ERROR:
                    run.faults.append(f"seed {seed}, {words}")
                seed += 1
            status = child.wait()
        except TimeoutError:
            is_late = True
        finally:
            children.end(child)
        children.check()
        if is_late:
            run.faults.append(f"seed {seed} took longer than {SEED_LIMIT_S} s")
        elif status:
            errors.seek(0)
            words = (errors.read().strip().splitlines() or [""])[-1]
            run.faults.append(f"seed {seed}, the process ended with status {status} {words}".strip())
        else:
            return seed
    run.seeds += 1
    return seed + 1


def _next_line(child: subprocess.Popen[bytes]) -> bytes:
    """Returns the next line that a child prints; empty: it prints no more. TimeoutError: it takes too long."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(SEED_LIMIT_S):
            raise TimeoutError
        return child.stdout.readline()


def name_of(words: str) -> str:
    """Returns the name of the check that says these words."""
    return next((name for part, name in CHECKS.items() if part in words), words)
