"""Runs simulations: many seeds in turn, or one again."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections import Counter
from typing import NamedTuple

from . import WORLDS, Failure


class Outcome(NamedTuple):
    world: str
    seed: int
    counts: dict[str, int]
    failure: str | None
    digest: str


def _one(job: tuple[str, int, int]) -> Outcome:
    world, seed, steps = job
    logging.getLogger("pywan").setLevel(logging.CRITICAL + 1)  # Errors on purpose are not worth a line each.
    if seed % 10 == 0:
        gc.collect()  # The worlds hold mapped memory that the collector does not see.
    made, failure = WORLDS[world](seed), None
    try:
        made.run(steps)
    except Failure as error:
        failure = str(error)
    except Exception:
        failure = f"{world} seed {seed}: {traceback.format_exc()}"
    return Outcome(world, seed, dict(made.statistics), failure, made.digest)


def _digests(arguments: list[str]) -> dict[tuple[str, int], str]:
    """Runs the same simulations in another process, in the opposite order: the simulations before must not matter
    either. Returns their digests.
    """
    command = [
        sys.executable,
        "-m",
        "tests.simulator",
        *(each for each in arguments if each != "--check-repeat"),
        "--digests",
        "--backwards",
    ]
    lines = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    return {
        (world, int(seed)): digest
        for marker, world, seed, digest in (line.split() for line in lines if line.startswith("digest "))
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run in each world (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--world", choices=[*WORLDS], help="only this world (default: all)")
    parser.add_argument("--steps", type=int, default=300, help="random steps of each (default 300)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work (default 1)")
    parser.add_argument(
        "--digests", action="store_true", help="say of each run a number that stands for all that happened in it"
    )
    parser.add_argument("--backwards", action="store_true", help="from the last seed to the first")
    parser.add_argument(
        "--check-repeat", action="store_true", help="run all again in another process: the same must happen there"
    )
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    jobs = [(world, seed, options.steps) for seed in seeds for world in ([options.world] if options.world else WORLDS)]
    if options.backwards:
        jobs.reverse()
    started, failed, steps, digests = time.monotonic(), [], Counter[str](), {}
    with multiprocessing.Pool(options.jobs) if options.jobs > 1 else contextlib.nullcontext() as pool:
        for each in pool.imap_unordered(_one, jobs, chunksize=20) if pool else map(_one, jobs):
            steps.update(each.counts)
            digests[each.world, each.seed] = each.digest
            if options.digests:
                print("digest", each.world, each.seed, each.digest)
            if each.failure is not None:
                failed.append(f"{each.world} {each.seed}")
                print(each.failure, file=sys.stderr, flush=True)
    print(
        f"{len(jobs)} simulations, {len(failed)} failed, {time.monotonic() - started:.1f} s; "
        + ", ".join(f"{n} {name}" for name, n in steps.most_common())
    )
    if failed:
        print("failed:", ", ".join(failed))
    if options.check_repeat:
        again = _digests(sys.argv[1:])
        other = [" ".join(map(str, each)) for each, digest in digests.items() if again.get(each) != digest]
        print(
            f"{len(digests) - len(other)} of {len(digests)} were the same in another process"
            + (", not the same: " + ", ".join(other) if other else "")
        )
        failed += other
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
