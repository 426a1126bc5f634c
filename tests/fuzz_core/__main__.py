"""python -m fuzz_core [--seconds s] [--runs n] [--seed n] [--fuzzers "receiver rows"]: each fuzzer in processes of its
own, so that one that is killed is named with the seed that repeats it."""

from __future__ import annotations

import argparse
import gc
import logging
import math
import multiprocessing
import random
import sys
import time
import traceback
from typing import Any

from . import FUZZERS

# Runs of one process. A run makes regions with new names, and a process knows at most 65,535.
RUNS_OF_PROCESS = 8192


def work(name: str, seed: int, runs: int, ends: float, told: Any) -> None:
    """Runs `runs` seeds from `seed` on, or until the time `ends`; `told` always holds how many were done."""
    logging.disable()
    for done in range(runs):
        if time.monotonic() >= ends:
            return
        try:
            FUZZERS[name](random.Random(seed + done))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            sys.exit(1)
        told.value += 1
        if done % 256 == 255:
            gc.collect()


def fuzz(name: str, seed: int, runs: int, seconds: float) -> bool:
    """Whether nothing was found in `runs` runs, or if that is 0, in so many seconds."""
    started = time.monotonic()
    ends = math.inf if runs else started + seconds
    told = multiprocessing.Value("Q", 0, lock=False)
    while told.value < runs if runs else time.monotonic() < ends:
        share = min(RUNS_OF_PROCESS, runs - told.value) if runs else RUNS_OF_PROCESS
        worker = multiprocessing.get_context("fork").Process(
            target=work, args=(name, seed + told.value, share, ends, told)
        )
        worker.start()
        worker.join()
        if worker.exitcode:
            print(
                f"fuzz_core {name}: ended with {worker.exitcode} after {told.value} runs; "
                f"repeat with --fuzzers {name} --seed {seed + told.value} --runs 1",
                flush=True,
            )
            return False
    print(f"fuzz_core {name}: {told.value} runs from seed {seed} in {time.monotonic() - started:.0f} s", flush=True)
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz_core", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each fuzzer")
    parser.add_argument("--runs", type=int, default=0, help="of each fuzzer, instead of a time")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; 0: drawn")
    parser.add_argument("--fuzzers", default=" ".join(FUZZERS))
    options = parser.parse_args(arguments)
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 40)
    return 0 if all(fuzz(name, seed, options.runs, options.seconds) for name in options.fuzzers.split()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
