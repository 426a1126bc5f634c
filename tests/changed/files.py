"""Says which files differ from a base: in commits, in the work tree, and such as git does not know yet."""

from __future__ import annotations

import subprocess
from pathlib import Path


class UnknownBase(Exception):
    """The revision that was named is not there."""


def changed_files(root: Path, base: str) -> list[str]:
    """Returns the files that differ from a revision; empty: from where this branch left `main`."""
    since = base or where_main_was_left(root)
    try:
        differing = _git(root, "diff", "--name-only", "--no-renames", "-z", since, "--").split("\0")
    except subprocess.CalledProcessError as error:
        raise UnknownBase(error.stderr.strip()) from error
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({*differing, *untracked} - {""})


def where_main_was_left(root: Path) -> str:
    """Returns the merge base with main. A clone without a branch `main` has the one of its origin, or only HEAD."""
    for main in ("main", "origin/main"):
        try:
            return _git(root, "merge-base", "HEAD", main).strip()
        except subprocess.CalledProcessError:
            continue
    return "HEAD"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout
