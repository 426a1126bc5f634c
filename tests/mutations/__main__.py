"""Takes pieces of the product out, one at a time, and says which check of the simulated site, or which test, sees it:
`make mutants ARGS="--seeds 500 NAME..."`. The exit status is 1 if a loss is not seen, and 2 if a patch does not
apply."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from . import kept
from .children import Children
from .patches import FOLDER, ROOT, Mutation, apply_patch, read_mutations
from .trial import Result, Whole, try_mutation

OF_A_DAY = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try (default: all)")
    parser.add_argument("--list", action="store_true", help="say which mutations there are, and try none")
    parser.add_argument(
        "--table",
        action="store_true",
        help="print the table of what the last trial of each has told, and try none",
    )
    parser.add_argument(
        "--results", type=Path, default=kept.FILE, help="the file of what trials have told (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to try at most (default 500)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="mutations that are tried at the same time (default 1)")
    parser.add_argument(
        "--of-the-day",
        action="store_true",
        help=f"try {OF_A_DAY} that take no long build and that a check is known to see: others on each day of the year",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the patches are (default: %(default)s)")
    options = parser.parse_args()
    mutations = read_mutations(options.folder)
    if options.of_the_day:
        mutations = of_the_day(mutations, datetime.datetime.now(datetime.UTC).timetuple().tm_yday)
    unknown = sorted(set(options.names) - {each.name for each in mutations})
    if unknown:
        parser.error(f"there is no mutation {unknown[0]}: --list says which there are")
    mutations = [each for each in mutations if not options.names or each.name in options.names]
    if options.list:
        for each in mutations:
            print(f"{each.name}: {each.about}")
        return 0
    if options.table:
        print(kept.table(mutations, options.results))
        return 0
    refused = {each.name: why for each in mutations if (why := apply_patch(each, ROOT, "--check"))}
    for name, why in refused.items():
        print(
            f"mutation {name} does not apply to this tree: {why}\nmake {options.folder / name}.patch anew from the code"
            " as it is, or remove it",
            file=sys.stderr,
        )
    if refused:
        return 2
    return try_all(mutations, options.first, options.seeds, options.jobs, options.results)


def of_the_day(mutations: list[Mutation], day: int) -> list[Mutation]:
    """Those whose turn it is."""
    quick = [each for each in mutations if each.is_quick]
    return [quick[(day * OF_A_DAY + n) % len(quick)] for n in range(min(OF_A_DAY, len(quick)))]


def try_all(mutations: list[Mutation], first: int, count: int, jobs: int, file: Path) -> int:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    children, results, started = Children(), list[Result](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pywan-mutations-") as folder, ThreadPoolExecutor(jobs) as pool:
        try:
            whole = Whole(Path(folder).resolve(), children, any(each.needs_build for each in mutations))
            trials = [pool.submit(try_mutation, each, whole, first, count) for each in mutations]
            for trial in as_completed(trials):
                results.append(trial.result())
                kept.keep(results[-1:], file)  # What was tried counts, if the command is ended.
                print(
                    f"{time.monotonic() - started:6.1f} s  {results[-1].mutation.name}: {told(results[-1])}", flush=True
                )
        except BaseException as error:
            children.stop()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            print("ended: nothing is left behind", file=sys.stderr)
            return 130
    print(f"\n{kept.table(mutations, file)}")
    missed = sorted(each.mutation.name for each in results if not each.is_seen)
    print(f"\n{len(results)} mutations, {len(missed)} not seen{': ' if missed else ''}{', '.join(missed)}")
    return bool(missed)


def told(result: Result) -> str:
    return f"{'seen' if result.is_seen else 'NOT SEEN'} in {result.seconds:.1f} s: {result}"


if __name__ == "__main__":
    sys.exit(main())
