"""Runs the simulation of a site for many seeds: `make simulate-site ARGS="--seeds 1000 --jobs 2"`."""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from site_simulation.broken import Broken
from site_simulation.kinds import ENOUGH_SEEDS, KINDS, make_world, what_did_not_happen


def one(kind: str, seed: int) -> tuple[str, dict[str, int], str]:
    """Runs a seed. Returns the kind of its world, what that counted, and what failed; empty: nothing did."""
    logging.disable(logging.WARNING)  # What the product says of each fault is no news here.
    log = logging.getLogger("pywan")
    log.propagate, log.handlers = False, [logging.NullHandler()]
    world, failure = make_world(seed, kind), ""
    try:
        world.run()
    except Broken as error:
        failure = str(error)
    except Exception:
        failure = f"seed {seed}: {traceback.format_exc()}"
    kind, statistics = world.kind, dict(world.statistics)
    del world
    gc.collect()  # Its tables and queues are memory of which the collector does not know.
    return kind, statistics, failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site_simulation", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work (default 1)")
    parser.add_argument("--kind", choices=KINDS, default="", help="worlds of this kind only (default: by the seed)")
    options = parser.parse_args()
    started, failed = time.monotonic(), 0
    ran, counts = (
        collections.Counter[str](),
        collections.defaultdict[str, collections.Counter[str]](collections.Counter),
    )
    with multiprocessing.Pool(options.jobs) as pool:
        numbers = range(options.first, options.first + options.seeds)
        for kind, statistics, failure in pool.imap_unordered(
            functools.partial(one, options.kind), numbers, chunksize=5
        ):
            ran[kind] += 1
            counts[kind].update(statistics)
            if failure:
                failed += 1
                print(failure, file=sys.stderr, flush=True)
    print(f"{options.seeds} simulations, {failed} failed, {time.monotonic() - started:.1f} s")
    for kind, seeds in sorted(ran.items()):
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts[kind].items()))
        print(f"{kind}, {seeds} of them: {told}")
        missing = what_did_not_happen(kind, counts[kind]) if seeds >= ENOUGH_SEEDS else []
        if missing:
            failed += 1
            print(f"worlds of the kind {kind} show nothing: there are no {', no '.join(missing)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
