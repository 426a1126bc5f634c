"""Owns the patches: what each takes out, and whether it applies to the tree."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from .one_test import C_TESTS

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent
# Lines behind the first one of a patch begin so: why no check is known to see it; the kind of world that is to see it;
# the test that is to see it, in place of the simulated site (one_test says what can stand there).
NOT_SEEN, KIND, TEST = "Not seen: ", "Kind: ", "Test: "


class Mutation(NamedTuple):
    name: str
    about: str  # What it takes out, in a sentence.
    not_seen: str  # Why no check is known to see it. Empty: one does.
    kind: str  # The kind of world that is to see it (site_simulation/kinds). Empty: each seed's own.
    test: str  # The test that is to see it. Empty: the simulated site is.
    room: str  # The folder of the first file that it changes.
    needs_build: bool  # The core has to be built anew.
    path: Path

    @property
    def is_quick(self) -> bool:
        """Whether its trial takes no long build, and ends as soon as one test or a few seeds have run."""
        return not self.not_seen and (bool(self.test) or not self.needs_build)


def read_mutation(path: Path) -> Mutation:
    lines = path.read_text().splitlines()
    changed = [match[1] for line in lines if (match := re.match(r"\+\+\+ b/(\S+)", line))]
    head = lines[1 : lines.index("")]
    not_seen, kind, test = (_told(head, what) for what in (NOT_SEEN, KIND, TEST))
    needs_build = not test.startswith(C_TESTS) and any(re.match("csrc/|pywan/_core/", each) for each in changed)
    room = str(Path(changed[0]).parent)
    return Mutation(path.stem, lines[0], not_seen, kind, test, room, needs_build, path)


def _told(head: list[str], what: str) -> str:
    return next((line.removeprefix(what) for line in head if line.startswith(what)), "")


def read_mutations(folder: Path = FOLDER) -> list[Mutation]:
    """Returns all mutations of a folder, by their names."""
    return [read_mutation(path) for path in sorted(folder.glob("*.patch"), key=lambda path: path.stem)]


def apply_patch(mutation: Mutation, tree: Path, *options: str) -> str:
    """Applies a patch to a tree. With `--check` it only asks whether that can be done. Returns git's reason why it
    cannot; empty: it can."""
    done = subprocess.run(
        ["git", "apply", *options, str(mutation.path.resolve())],
        cwd=tree,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)},
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"git apply ended with status {done.returncode}"
