"""Runs the simulation of a site for many seeds: `make simulate-site ARGS="--seeds 1000 --jobs 2"`."""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from site_simulation.world import Broken, SiteWorld


def one(seed: int) -> tuple[dict[str, int], str]:
    logging.disable()  # What the product says of each fault is no news here.
    world, failure = SiteWorld(seed), ""
    try:
        world.run()
    except Broken as error:
        failure = str(error)
    except Exception:
        failure = f"seed {seed}: {traceback.format_exc()}"
    statistics = dict(world.statistics)
    del world
    gc.collect()  # Its tables and queues are memory of which the collector does not know.
    return statistics, failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site_simulation", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work (default 1)")
    options = parser.parse_args()
    started, failed, counts = time.monotonic(), 0, collections.Counter[str]()
    with multiprocessing.Pool(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for statistics, failure in pool.imap_unordered(one, seeds, chunksize=5):
            counts.update(statistics)
            if failure:
                failed += 1
                print(failure, file=sys.stderr, flush=True)
    told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    print(f"{options.seeds} simulations, {failed} failed, {time.monotonic() - started:.1f} s; {told}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
