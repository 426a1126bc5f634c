"""Runs simulations: many seeds in turn, or one again."""
from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter

from . import WORLDS, Failure, run


def _one(job: tuple[str, int, int]) -> tuple[str, int, dict[str, int], str | None]:
    world, seed, steps = job
    logging.getLogger("pywan").setLevel(logging.CRITICAL + 1)       # What goes wrong on purpose is not worth a line each.
    if seed % 10 == 0:
        gc.collect()        # The worlds hold mapped memory that the collector does not see.
    try:
        return world, seed, dict(run(seed, steps, world).statistics), None
    except Failure as failure:
        return world, seed, {}, str(failure)
    except Exception:
        return world, seed, {}, f"{world} seed {seed}: {traceback.format_exc()}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run in each world (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--world", choices=[*WORLDS], help="only this world (default: all)")
    parser.add_argument("--steps", type=int, default=300, help="random steps of each (default 300)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work (default 1)")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    jobs = [(world, seed, options.steps) for seed in seeds for world in ([options.world] if options.world else WORLDS)]
    started, failed, steps = time.monotonic(), [], Counter[str]()
    with multiprocessing.Pool(options.jobs) if options.jobs > 1 else contextlib.nullcontext() as pool:
        for world, seed, counts, failure in pool.imap_unordered(_one, jobs, chunksize=20) if pool else map(_one, jobs):
            steps.update(counts)
            if failure is not None:
                failed.append(f"{world} {seed}")
                print(failure, file=sys.stderr, flush=True)
    print(f"{len(jobs)} simulations, {len(failed)} failed, {time.monotonic() - started:.1f} s; " + ", ".join(f"{n} {name}" for name, n in steps.most_common()))
    if failed:
        print("failed:", ", ".join(failed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
