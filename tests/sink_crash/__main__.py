"""Runs a crash campaign of a table behind a queue: so many rounds from a seed, or one world of it again."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # For `databases`.

from support.databases import why_no_postgres

from .campaign import ROUNDS_OF_A_WORLD, CampaignFailure, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sink_crash", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="how many rounds; in each one the member, the database or both are killed (default 20)",
    )
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, help="of the random moments (default: a new one, which is told)")
    parser.add_argument("--world", type=int, default=0, help="begin with this world of the seed, as a failure names it")
    options = parser.parse_args()
    missing = why_no_postgres() if options.database == "postgresql" else None
    if missing:
        print(missing, file=sys.stderr)
        return 1
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    print(f"seed {seed}, {options.rounds} rounds, {ROUNDS_OF_A_WORLD} in a world", flush=True)
    started = told = time.monotonic()

    def tell(text: str) -> None:
        nonlocal told
        if time.monotonic() - told > 5:
            told = time.monotonic()
            print(f"{told - started:7.1f} s  {text}", flush=True)

    try:
        counts = run(seed, options.rounds, database=options.database, first_world=options.world, tell=tell)
    except CampaignFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(
        f"{counts.pop('rounds')} rounds of kill -9 passed in {time.monotonic() - started:.1f} s: "
        + ", ".join(f"{count} {name}" for name, count in counts.most_common() if count)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
