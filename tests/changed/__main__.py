"""Chooses what sees a change, says why, and runs it: `make test-changed`, with `BASE=rev` or `ARGS="file..."`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from .files import UnknownBase, changed_files
from .rules import BUDGET_S, ROOT, SECONDS, Choice, Tree, find_tests
from .run import run_choice

MEASURED = Path("build/test-seconds.json")  # `make test` writes it (tests/conftest.py).


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__, allow_abbrev=False)
    parser.add_argument("files", nargs="*", metavar="FILE", help="files that are changed (default: as git says)")
    parser.add_argument("--base", default="", help="the revision to compare with (default: where main was left)")
    parser.add_argument("--list", action="store_true", help="say what is chosen, and run nothing")
    parser.add_argument(
        "--take-seconds", action="store_true", help=f"take over what the last `make test` measured ({MEASURED})"
    )
    parser.add_argument(
        "--try-mutants",
        action="store_true",
        help="take pieces out of copies of the tree, and say whether the choice sees it; FILEs are names of mutants",
    )
    options = parser.parse_args()
    if options.take_seconds:
        return take_seconds()
    if options.try_mutants:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        sys.path.insert(0, str(ROOT / "tests"))
        from changed.mutants import try_all

        return try_all(options.files)
    try:
        files = [os.path.relpath(file, ROOT) for file in options.files] or changed_files(ROOT, options.base)
    except UnknownBase as error:
        parser.error(str(error))
    tree = Tree()
    choice = tree.choose(files)
    say(tree, choice, files)
    if options.list:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # So that nothing is left behind.
    failures, took_s = run_choice(choice, ROOT)
    for failure in failures:
        print(f"failed: {failure.what}")
    print(f"{'failed' if failures else 'passed'} in {took_s:.0f} s")
    return bool(failures)


def say(tree: Tree, choice: Choice, files: list[str]) -> None:
    print(f"{len(files)} changed file{'s' * (len(files) != 1)}{': ' * bool(files)}{', '.join(files[:20])}")
    for reason in choice.reasons:
        print(f"  {reason}")
    if choice.left_out:
        print(f"  no room in {BUDGET_S:.0f} s for: {', '.join(choice.left_out)}")
    if choice.unknown:
        print(f"  no rule covers: {', '.join(choice.unknown)}")
    print(f"about {tree.seconds_of(choice):.0f} s on two cores", flush=True)


def take_seconds() -> int:
    """Keeps what was measured where it differs much, so that a new measurement changes few lines."""
    kept: dict[str, float] = json.loads((ROOT / SECONDS).read_text())
    measured: dict[str, float] = json.loads((ROOT / MEASURED).read_text())
    for name, seconds in measured.items():
        before = kept.get(name)
        if before is None or abs(seconds - before) > max(2.0, 0.3 * before):
            kept[name] = round(seconds, 1)
    tests = find_tests(ROOT)
    there = {name for name in kept if not name.startswith("test_") or name in tests}
    (ROOT / SECONDS).write_text(json.dumps({name: kept[name] for name in sorted(there)}, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
