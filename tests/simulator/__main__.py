"""Runs simulations: many seeds in turn, or one again."""
from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .world import Failure, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--steps", type=int, default=300, help="random steps of each (default 300)")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    started, failed, steps = time.monotonic(), [], Counter[str]()
    for seed in seeds:
        try:
            steps.update(run(seed, options.steps).statistics)
        except Failure as failure:
            failed.append(seed)
            print(failure, file=sys.stderr)
    print(f"{len(seeds)} simulations, {len(failed)} failed, {time.monotonic() - started:.1f} s; " + ", ".join(f"{n} {name}" for name, n in steps.most_common()))
    if failed:
        print("failed seeds:", *failed)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
