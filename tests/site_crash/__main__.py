"""Runs a campaign against a site of several members: so many rounds from a seed, or one world of it again."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from .campaign import FAULTS, CampaignFailure, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site_crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="how many rounds, with one fault each (default 50)")
    parser.add_argument("--seed", type=int, help="of the random moments (default: a new one, which is told)")
    parser.add_argument("--world", type=int, default=0, help="begin with this world of the seed, as a failure names it")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas (default: %(default)s)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    print(f"seed {seed}, {options.rounds} rounds", flush=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    try:
        faults = tuple(options.faults.split(","))
        counts = run(seed, options.rounds, first_world=options.world, faults=faults, tell=tell)
    except CampaignFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(
        f"{counts.pop('rounds')} rounds passed in {time.monotonic() - began:.1f} s: "
        + ", ".join(f"{count} {name}" for name, count in counts.most_common())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
