"""Two sites with several members each beside two with one member, in turn: what a second replica of every bucket, and
of its queue, costs. Rate and processor time of all processes, for a parallel and for a serial sender
(`gateway_sites.py`).

One member of the first site puts columns of 10,000 rows. The clock runs until all replicas at the other site have the
events and no member of the first site holds any of them in a queue. All processes share the cores of this machine.

    .venv/bin/python bench/bench_gateways.py [--members 2] [--rounds 7] [--events 1000000]

With `--members 1` both are the same, so the ratios say how far rounds lie apart. `--first` (root): the measured
processes get the cores before others that use this machine."""

from __future__ import annotations

import argparse
import contextlib

from gateway_sites import KINDS, MEMBERS, GatewaySites, PywanSites, gateway_sites
from measure import Options, Rates, add_forms, in_turn, report

RATE_GOALS = {"parallel": "30%", "serial": "25%"}
PROCESSOR_GOALS = {"parallel": "300% or less", "serial": ""}


class Rounds:
    """The rates of two sites, and what processor time their rounds took."""

    def __init__(self, sites: GatewaySites, kind: str) -> None:
        self.sites, self.kind = sites, kind
        self.processor_ns: list[float] = []

    def rate(self) -> float:
        taken = self.sites.measure(self.kind, "columns")
        self.processor_ns.append(taken.processor_us * 1e3)
        return taken.emptied_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--members", type=int, default=MEMBERS["pywan"], help="of each of the sites that are measured")
    parser.add_argument("--rounds", type=int, help="rounds that count (one more warms up)")
    parser.add_argument("--events", type=int, help="of each round")
    parser.add_argument("--first", action="store_true")
    options, _ = parser.parse_known_args(namespace=Options())
    rounds = options.rounds or options.size(7, 3, 1)
    events = options.events or options.size(1_000_000, 500_000, 100_000)
    with contextlib.ExitStack() as stack:
        several, one = (
            stack.enter_context(gateway_sites(PywanSites, members, events, goes_first=options.first))
            for members in (options.members, 1)
        )
        for kind in KINDS:
            subject, reference = Rounds(several, kind), Rounds(one, kind)
            rates = in_turn(rounds, subject.rate, reference.rate)
            name = f"{kind}, {options.members} member{'s' * (options.members > 1)} a site"
            report(name, *rates, "one member a site", RATE_GOALS[kind])
            report(
                f"{name}, processor",
                Rates(subject.processor_ns[1:]),  # The first round warmed up.
                Rates(reference.processor_ns[1:]),
                "an event, all processes",
                PROCESSOR_GOALS[kind],
                "ns",
            )


if __name__ == "__main__":
    main()
