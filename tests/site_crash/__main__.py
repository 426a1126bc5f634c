"""Runs a campaign against a site of several members: so many rounds from a seed, or one world of it again."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from .campaign import CampaignFailure, run, table
from .faults import ALL, FAULTS
from .layouts import LAYOUTS
from .locators import run_locators
from .rolling import RollingWorld, comparison


def roll(seed: int, rounds: int, layout: str, goes_first: bool, tell: Callable[[str], None]) -> int:
    with tempfile.TemporaryDirectory(prefix="pywan-site-") as folder:
        world = RollingWorld(seed, Path(folder), layout=layout, goes_first=goes_first, tell=tell)
        try:
            world.run(rounds)
        except AssertionError as failure:
            print(failure, file=sys.stderr)
            return 1
    print(
        f"{table(world.counts)}\n\nhow long a call took, {layout}, while members were restarted and not\n"
        f"{comparison(world)}"
    )
    return 0


def kill_locators(seed: int, rounds: int, world: int, tell: Callable[[str], None]) -> int:
    try:
        counts, times = run_locators(seed, rounds, first_world=world, tell=tell)
    except CampaignFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"{table(counts)}\n\nhow long after the kill a member that was started again was served\n{times}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site_crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="how many rounds, with one fault each (default 50)")
    parser.add_argument("--seed", type=int, help="of the random moments (default: a new one, which is told)")
    parser.add_argument("--world", type=int, default=0, help="begin with this world of the seed, as a failure names it")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas (default: %(default)s)")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="which regions sites have (default: %(default)s)")
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder of a world that failed, in a temporary one"
    )
    parser.add_argument("--rolling", type=int, default=0, help="instead: so many rolling restarts, and what calls take")
    parser.add_argument("--first", action="store_true", help="rolling: the site gets the cores before others (root)")
    parser.add_argument("--tls", action="store_true", help="all connections are encrypted")
    parser.add_argument("--locators", type=int, default=0, help="instead: so many rounds that kill one of two locators")
    options = parser.parse_args()
    faults, layouts = tuple(options.faults.split(",")), tuple(options.layouts.split(","))
    for each in {*faults} - {*ALL} | {*layouts} - {*LAYOUTS}:
        parser.error(f"there is no {each}: the faults are {', '.join(ALL)}; the layouts {', '.join(LAYOUTS)}")
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    rounds = options.rolling or options.locators or options.rounds
    print(f"seed {seed}, {rounds} {'rolling restarts' if options.rolling else 'rounds'}", flush=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    if options.rolling:
        return roll(seed, rounds, "copies-1" if len(layouts) > 1 else layouts[0], options.first, tell)
    if options.locators:
        return kill_locators(seed, options.locators, options.world, tell)
    try:
        counts = run(
            seed,
            options.rounds,
            first_world=options.world,
            faults=faults,
            layouts=layouts,
            keep=options.keep,
            encrypts=options.tls,
            tell=tell,
        )
    except CampaignFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"passed in {time.monotonic() - began:.1f} s\n{table(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
