"""What encryption costs whole sites: stored random events from one site to another one (a member and a locator each,
all processes), and single puts on a site of two members, which return when the replica has them. Each beside the same
without encryption, in turn.

16-byte keys, 100-byte values. Events are put as columns of 10,000 rows. The clock runs from the first one until the
other site has acknowledged all of them. Processor time is that of all processes of both sites.

    .venv/bin/python bench/bench_tls_sites.py [--rounds 7] [--first]

`--quick` for a short run. `--first` (root): the measured processes get the cores before others that use this
machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway_sites import KINDS, PywanSites, gateway_sites
from measure import Options, Rates, add_forms, in_turn, report
from site_attack import is_settled
from site_processes import HERE, PywanSite, wait_until

sys.path.append(str(HERE.parent / "tests"))
from support.made_certificates import new_options

MEMBERS = ("a", "b")
KEYS = 10_000
PLAIN = "plain connections"


def events(stack: contextlib.ExitStack, options: Options, given: Mapping[str, Any], rounds: int) -> None:
    count = options.size(1_000_000, 500_000, 100_000)
    encrypted, plain = (
        stack.enter_context(gateway_sites(PywanSites, 1, count, goes_first=options.first, ssl=each))
        for each in (given, None)
    )
    for kind in KINDS:
        processor: dict[str, list[float]] = {}

        def rate(
            sites: PywanSites, name: str, kind: str = kind, processor: dict[str, list[float]] = processor
        ) -> float:
            taken = sites.measure(kind, "columns")
            processor.setdefault(name, []).append(taken.processor_us * 1e3)
            return taken.rate

        rates = in_turn(rounds, lambda rate=rate: rate(encrypted, "tls"), lambda rate=rate: rate(plain, "plain"))
        report(f"stored events, {kind}, encrypted", *rates, PLAIN, "70%")
        subject, reference = (Rates(processor[each][1:]) for each in ("tls", "plain"))  # The first round warmed up.
        report(f"stored events, {kind}, processor", subject, reference, PLAIN, "", "ns")


def site_of_two(stack: contextlib.ExitStack, options: Options, given: Mapping[str, Any] | None) -> PywanSite:
    """A site both of whose members have all buckets."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pywan-tls-")))
    site = stack.enter_context(PywanSite(folder, redundant_copies=1, goes_first=options.first, ssl=given))
    for each in MEMBERS:
        site.begin(each)
    for number, each in enumerate(MEMBERS):
        site.members[each].finish()
        site.members[each].ask("keys_of", number, KEYS)
    site.members["a"].ask("assign")
    wait_until(lambda: is_settled(site), 60, "every bucket has its replica")
    return site


def puts(stack: contextlib.ExitStack, options: Options, given: Mapping[str, Any], rounds: int) -> None:
    seconds = options.size(3.0, 1.0, 0.2)
    encrypted, plain = (site_of_two(stack, options, each) for each in (given, None))

    def put_us(site: PywanSite) -> float:
        return float(site.members["a"].ask("put", 1, seconds)["median_us"])

    rates = in_turn(rounds, lambda: put_us(encrypted), lambda: put_us(plain))
    report("put that a replica has, encrypted", *rates, PLAIN, "150% or less", "us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--rounds", type=int, help="rounds that count (one more warms up)")
    parser.add_argument("--first", action="store_true")
    options, _ = parser.parse_known_args(namespace=Options())
    rounds = options.rounds or options.size(7, 3, 1)
    with tempfile.TemporaryDirectory(prefix="pywan-certificates-") as folder:
        given = new_options(Path(folder))
        for measure in (puts, events):
            with contextlib.ExitStack() as stack:
                measure(stack, options, given, rounds)


if __name__ == "__main__":
    main()
