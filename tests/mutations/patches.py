"""Owns the patches: what each takes out, and whether it applies to the tree."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent
# Lines behind the first one of a patch begin so: why no check is known to see it; the kind of world that is to see it.
NOT_SEEN, KIND = "Not seen: ", "Kind: "


class Mutation(NamedTuple):
    name: str
    about: str  # What it takes out, in a sentence.
    not_seen: str  # Why no check is known to see it. Empty: one does.
    kind: str  # The kind of world that is to see it (site_simulation/kinds). Empty: each seed's own.
    is_compiled: bool  # The core has to be built anew.
    path: Path


def read_mutation(path: Path) -> Mutation:
    lines = path.read_text().splitlines()
    changed = [line for line in lines if line.startswith("+++ ")]
    head = lines[1 : lines.index("")]
    not_seen, kind = (_told(head, what) for what in (NOT_SEEN, KIND))
    is_compiled = any(re.match(r"\+\+\+ b/(csrc|pywan/_core)/", line) for line in changed)
    return Mutation(path.stem, lines[0], not_seen, kind, is_compiled, path)


def _told(head: list[str], what: str) -> str:
    return next((line.removeprefix(what) for line in head if line.startswith(what)), "")


def read_mutations(folder: Path = FOLDER) -> list[Mutation]:
    """Returns all mutations of a folder, by their names."""
    return [read_mutation(path) for path in sorted(folder.glob("*.patch"))]


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
