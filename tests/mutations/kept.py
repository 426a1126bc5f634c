"""Owns the results of trials between runs of the command, in a file, and the table that is made of them."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .patches import ROOT, Mutation
from .trial import Result

FILE = ROOT / "build" / "mutants.json"
NOT_TRIED = "not tried yet"


def keep(results: Iterable[Result], file: Path) -> None:
    """Adds results to those that the file has. One of the same mutation takes the place of the earlier one."""
    kept = _read(file)
    for each in results:
        told = {"seen": str(each), "seconds": round(each.seconds, 1), "patch": _checksum(each.mutation)}
        kept[each.mutation.name] = told
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as fresh:
        json.dump(kept, fresh, indent=1, sort_keys=True)
    os.replace(fresh.name, file)


def table(mutations: Iterable[Mutation], file: Path) -> str:
    """Returns the table of these mutations in Markdown. A result from before the patch was changed counts as none."""
    kept = _read(file)
    lines = ["| mutation | room | what is taken out | seen by | seconds |", "|---|---|---|---|---|"]
    for each in mutations:
        told = kept.get(each.name, {})
        is_current = told.get("patch") == _checksum(each)
        seen, seconds = (told["seen"], told["seconds"]) if is_current else (NOT_TRIED, "")
        lines.append(f"| `{each.name}` | `{each.room}` | {each.about} | {seen.replace('|', '/')} | {seconds} |")
    return "\n".join(lines)


def _read(file: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        kept = {}
    return kept


def _checksum(mutation: Mutation) -> int:
    return zlib.crc32(mutation.path.read_bytes())
