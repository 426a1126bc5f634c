"""Runs a crash campaign against three sites of several members with gateways: so many rounds from a seed, or one world
of it again."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from .campaign import CampaignFailure, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan_crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how often something goes wrong (default 20)")
    parser.add_argument("--seed", type=int, help="of the random choices (default: a new one, which is told)")
    parser.add_argument("--world", type=int, default=0, help="begin with this world of the seed, as a failure names it")
    parser.add_argument("--tls", action="store_true", help="all connections are encrypted")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    print(f"seed {seed}, {options.rounds} rounds", flush=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    try:
        counts = run(seed, options.rounds, first_world=options.world, encrypts=options.tls, tell=tell)
    except CampaignFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"passed in {time.monotonic() - began:.1f} s")
    for what, count in sorted(counts.what.items()):
        print(f"{count:>10,} {what}")
    if counts.resumed_s:
        ordered = sorted(counts.resumed_s)
        p95 = ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]
        print(f"after a kill an event left the site again within {p95:.2f} s (p95), {ordered[-1]:.2f} s (longest)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
