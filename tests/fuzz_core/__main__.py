"""python -m fuzz_core [--seconds s] [--runs n] [--seed n] [--fuzzers "receiver rows"]: each fuzzer in a process of its own, so that one
that is killed is named with the seed that repeats it."""
from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import random
import sys
import time
import traceback
from typing import Any

from . import FUZZERS


def work(name: str, seed: int, runs: int, seconds: float, told: Any) -> None:
    """Runs seeds from `seed` on; `told` always holds the seed in work and how many were done."""
    logging.disable()
    ends = time.monotonic() + seconds
    done = 0
    while (runs and done < runs) or (not runs and time.monotonic() < ends):
        told[0] = seed + done
        try:
            FUZZERS[name](random.Random(seed + done))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            sys.exit(1)
        done += 1
        told[1] = done
        if done % 256 == 0:
            gc.collect()


def fuzz(name: str, seed: int, runs: int, seconds: float) -> bool:
    """Whether nothing was found."""
    started = time.monotonic()
    told = multiprocessing.Array("Q", 2, lock=False)
    worker = multiprocessing.get_context("fork").Process(target=work, args=(name, seed, runs, seconds, told))
    worker.start()
    worker.join()
    if worker.exitcode:
        print(f"fuzz_core {name}: ended with {worker.exitcode} after {told[1]} runs; repeat with --fuzzers {name} --seed {told[0]} --runs 1", flush=True)
        return False
    print(f"fuzz_core {name}: {told[1]} runs from seed {seed} in {time.monotonic() - started:.0f} s", flush=True)
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz_core", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each fuzzer")
    parser.add_argument("--runs", type=int, default=0, help="of each fuzzer, instead of a time")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; 0: drawn")
    parser.add_argument("--fuzzers", default=" ".join(FUZZERS))
    options = parser.parse_args(arguments)
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 40)
    return 0 if all([fuzz(name, seed, options.runs, options.seconds) for name in options.fuzzers.split()]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
