"""Checks the rules: takes a piece out of a copy of the tree (a patch of tests/mutations), and says whether the choice
for the patched files sees it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutations.children import Children, environment_of
from mutations.patches import Mutation, apply_patch, read_mutations
from mutations.trial import build, copy_tree

from .rules import Tree
from .run import Failure, run_choice

TRIES = 3  # Failures that the whole tree has too are unsteady tests, and count as nothing. So many are looked at.


@dataclass
class Seen:
    mutation: Mutation
    files: list[str]
    by: str  # What failed. Empty: nothing did.
    seconds: float
    processor_s: float = 0.0  # Of all processes: on a busy machine it says more than the seconds do.

    def row(self) -> str:
        rooms = ", ".join(sorted({str(Path(file).parent) for file in self.files}))
        by = self.by or "**not seen**"
        cells = [
            f"`{self.mutation.name}`",
            rooms,
            self.mutation.about,
            by,
            f"{self.seconds:.0f}",
            f"{self.processor_s:.0f}",
        ]
        return f"| {' | '.join(cells)} |"


def try_all(names: list[str]) -> int:
    """Tries the mutations of these names; none: all that a test is known to see. Returns the exit status: 1 if one is
    not seen."""
    there = {each.name: each for each in read_mutations() if not each.not_seen}
    unknown = sorted(set(names) - set(there))
    if unknown:
        print(f"there is no mutant {unknown[0]}", file=sys.stderr)
        return 2
    chosen = [there[name] for name in names] or [each for each in there.values() if each.test]
    found = []
    with tempfile.TemporaryDirectory(prefix="pywan-changed-") as folder:
        whole, children = Path(folder).resolve() / "whole", Children()
        copy_tree(whole, any(each.needs_build for each in chosen), children)
        for each in chosen:
            found.append(try_mutant(each, whole, children))
            print(found[-1].row(), flush=True)
    print("\n| mutant | rooms | what is taken out | seen by | seconds | of a processor |\n|---|---|---|---|---|---|")
    print("\n".join(each.row() for each in found))
    missed = [each.mutation.name for each in found if not each.by]
    print(f"\n{len(found)} mutants, {len(missed)} not seen{': ' * bool(missed)}{', '.join(missed)}")
    return bool(missed)


def try_mutant(mutation: Mutation, whole: Path, children: Children) -> Seen:
    """Applies a patch to a copy of the whole tree, and runs there what is chosen for the files that it changes."""
    files = re.findall(r"^\+\+\+ b/(\S+)", mutation.path.read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory(dir=whole.parent) as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["cp", "-a", str(whole), str(tree)], check=True)
        why = apply_patch(mutation, tree) or (build(tree, children) if mutation.needs_build else "")
        if why:
            return Seen(mutation, files, f"(not tried: {why})", 0)
        spent, worked, choice = 0.0, 0.0, Tree(tree).choose(files)
        for _ in range(TRIES):
            before = processor_s()
            with of_tree(tree):
                failures, seconds = run_choice(choice, tree, first_only=True)
            spent, worked = spent + seconds, worked + processor_s() - before
            if not failures:
                break
            if fails_in(tree, failures[0]) and not fails_in(whole, failures[0]):
                return Seen(mutation, files, failures[0].what, spent, worked)
            choice.tests.pop(Path(failures[0].what.partition("::")[0]).stem, None)
    return Seen(mutation, files, "", spent, worked)


def processor_s() -> float:
    """Returns how long processes that have ended have worked."""
    times = os.times()
    return times.children_user + times.children_system


def fails_in(tree: Path, failure: Failure) -> bool:
    """Returns whether what failed fails alone in this tree."""
    with of_tree(tree):
        done = subprocess.run(failure.again, cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode != 0


@contextlib.contextmanager
def of_tree(tree: Path) -> Iterator[None]:
    """Child processes import what this tree has, not what is installed."""
    before = dict(os.environ)
    os.environ.update(environment_of(tree))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
