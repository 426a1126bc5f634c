"""Owns results: which lines of a program's output are results and what is wrong with them; those that are kept, and
whether a later run is slower than noise explains.

A result is a ratio to a reference that ran in turn with it, so that a busy or another machine changes both. Kept are
the median of the rounds and their quartiles. A later run is slower if even its better quartile is a tenth worse than
the worse quartile before: that neither a slow round nor one slow quarter of the rounds can do."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent.parent / ".benchmarks"  # Git ignores it.
FILE = "PYWAN_BENCH_RESULTS"  # The environment variable that names the file of this run; without it nothing is kept.
MARGIN = 1.10
# As `measure.report` prints it: a name, then `figure unit = figure of (or times) figure`. And a piece, as
# pytest-benchmark prints it.
_LINE = re.compile(r"\S.* = \S+ (of|times) \S+ |test_piece\[")
_NO_NUMBER = re.compile(r"\b(nan|inf)\b")


def rows(output: str) -> list[str]:
    """The lines that are results: those of `measure.report`, rows of tables without their heads, and pieces."""
    lines = output.splitlines()
    heads = {n - 1 for n, line in enumerate(lines) if line.startswith("|---")}
    return [line for n, line in enumerate(lines) if _LINE.match(line) or (line.startswith("| ") and n not in heads)]


def without_number(row: str) -> bool:
    """Whether a result is no number, or none."""
    _, _, measured = row.removeprefix("|").partition("|") if row.startswith("|") else row.partition("  ")
    return not re.search(r"\d", measured) or bool(_NO_NUMBER.search(measured))


def complaints(status: int, output: str, expected: int) -> list[str]:
    """What is wrong with the output of a program that prints `expected` results; [] if nothing is."""
    found = rows(output)
    wrong = [f"it has no number: {row}" for row in found if without_number(row)]
    if len(found) != expected:
        wrong.append(f"it printed {len(found)} results instead of {expected}")
    if status:
        wrong.append(f"it ended with status {status}")
    return wrong


def note(name: str, ratios: list[float], *, more_is_better: bool, shown: str = "") -> None:
    """Keeps one result: the ratios to the reference, a round each."""
    path = os.environ.get(FILE)
    if not path or len(ratios) < 3:
        return
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    with open(path, "a") as file:
        file.write(
            json.dumps(
                {
                    "name": name,
                    "median": median,
                    "low": low,
                    "high": high,
                    "rounds": len(ratios),
                    "more_is_better": more_is_better,
                    "shown": shown,
                }
            )
            + "\n"
        )


def new_file(kind: str) -> Path:
    """The file of a run that begins now. `kind`: runs of another one are not compared with it."""
    DIRECTORY.mkdir(exist_ok=True)
    return DIRECTORY / f"{kind}-{platform.machine()}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.jsonl"


def earlier(path: Path) -> Path | None:
    """The run of the same kind before this one."""
    kind = path.name.rsplit("-", 2)[0]
    before = sorted(each for each in path.parent.glob(f"{kind}-????????-??????.jsonl") if each.name < path.name)
    return before[-1] if before else None


def read(path: Path) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in map(json.loads, path.read_text().splitlines())}


def is_slower(before: dict[str, Any], now: dict[str, Any]) -> bool:
    if now["more_is_better"]:
        return now["high"] * MARGIN < before["low"]
    return now["low"] > before["high"] * MARGIN


def compare(path: Path, baseline: Path) -> list[str]:
    """Prints a table of both runs. Returns the names of what is slower."""
    before, now, slower = read(baseline), read(path), []
    print(f"== compared with {baseline.name}: ratios to their references, median (quartiles)")
    for name, result in now.items():
        if name not in before:
            continue
        verdict = ""
        if is_slower(before[name], result):
            slower.append(name)
            verdict = "  SLOWER"
        change = result["median"] / before[name]["median"] if before[name]["median"] else 0.0
        columns = [f"{each['median']:8.3f} ({each['low']:.3f}-{each['high']:.3f})" for each in (before[name], result)]
        print(f"{name:<34} {columns[0]:<28} {columns[1]:<28} {change:5.2f} times{verdict}")
    return slower
