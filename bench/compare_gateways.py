"""Two sites of pywan beside two of Apache Geode 1.15.1, in turn in one run: each site with several members, a PARTITION
region with one redundant copy, and a parallel or a serial sender on every member (`gateway_sites.py`). One member of
the first site puts in bulk. Geode's `putAll` stands beside pywan's `put_all` (1,000 entries a call) and `put_columns`
(10,000 rows a call).

The clock runs from the first call until the other site has acknowledged all events: its members have them, and their
replicas too. For pywan it runs on until no member of the first site holds any of them for another one; how long that
takes Geode is printed. pywan's rounds have ten times as many events, so that they are not too short.

The first rounds warm up, so that Geode's code is compiled. The tables have the medians over the rounds, and the median
of the ratios of the rounds with their quartiles. On a busy machine the processor time of all processes says more than
the clock. Its ratio is also how many times better pywan is.

    .venv/bin/python bench/compare_gateways.py [--members 2] [--rounds 5] [--warm-up 3] [--json FILE]

Needed: a JDK 17 and Maven, about 6 GB of memory. `--first` (root): the measured processes get the cores before others
that use this machine. `--only pywan` or `--only geode` measures one system alone."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import time
from pathlib import Path

import results
from gateway_sites import KINDS, MEMBERS, GatewaySites, GeodeSites, PywanSites, Round, gateway_sites
from measure import Options, add_forms
from site_processes import build_geode

GOAL = "10 times"
# What is measured: {(kind of the sender, how it is put): its name}.
POINTS = {
    (kind, how): f"{kind} sender, `putAll` beside {words}"
    for kind in KINDS
    for how, words in (("all", "`put_all` of 1,000"), ("columns", "`put_columns` of 10,000"))
}
PYWAN_TIMES = 10  # pywan's rounds have so many times the events.
Measured = dict[tuple[str, str], dict[str, Round]]


def measure_round(running: dict[str, GatewaySites], names: list[str]) -> Measured:
    return {point: {name: running[name].measure(*point) for name in names} for point in POINTS}


def keep(path: Path | None, measured: list[Measured], loads: list[float]) -> None:
    if path is not None:
        rounds = [
            {name: {key: dataclasses.asdict(took) for key, took in each.items()} for name, each in named.items()}
            for named in ({POINTS[point]: each for point, each in round_.items()} for round_ in measured)
        ]
        path.write_text(json.dumps({"loads": loads, "rounds": rounds}, indent=1) + "\n")


def show(measured: list[Measured], members: dict[str, int]) -> None:
    """`members`: how many a site of each system has."""
    systems = [*members]
    for figure, unit, is_rate in (
        ("rate", "events a second", True),
        ("processor_us", "us of processor an event", False),
    ):
        print("| work | " + " | ".join(f"{name}, members a site {members[name]}: {unit}" for name in systems), end="")
        print((" | ratio | quartiles |" if len(systems) > 1 else " |") + (" to reach |" if is_rate else ""))
        print("|---|" + "---|" * (len(systems) + (2 if len(systems) > 1 else 0) + is_rate))
        for point, words in POINTS.items():
            # The stricter figure of pywan: no member holds an event any more.
            rounds = [
                {
                    name: each.emptied_rate if is_rate and name == "pywan" else getattr(each, figure)
                    for name, each in round_[point].items()
                }
                for round_ in measured
            ]
            medians = [statistics.median(each[name] for each in rounds) for name in systems]
            row = [words, *(f"{median:,.0f}" if is_rate else f"{median:.2f}" for median in medians)]
            if len(systems) > 1:
                ratios = [each["pywan"] / each["geode"] for each in rounds]
                if not is_rate:
                    ratios = [1 / ratio for ratio in ratios]  # Also how many times better.
                low, median, high = (
                    statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
                )
                row += [f"{median:.1f}", f"{low:.1f}-{high:.1f}"]
                if is_rate and len(set(members.values())) == 1:  # Else it is not the same work.
                    results.note(f"gateways beside Geode: {words}", ratios, more_is_better=True)
            print(f"| {' | '.join([*row, GOAL] if is_rate else row)} |")
    for name in systems:
        until_empty = [
            f"{words} {statistics.median(round_[point][name].emptied_rate for round_ in measured):,.0f}"
            for point, words in POINTS.items()
        ]
        print(f"{name}: events a second until no member holds any: {', '.join(until_empty)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--members", type=int, help="of each site, in both systems (Geode 2, pywan 1)")
    parser.add_argument("--events", type=int, help="of a round of Geode's")
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--warm-up", type=int, help="rounds before them")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--only", choices=("pywan", "geode"))
    parser.add_argument("--json", type=Path, help="the file that gets all figures, after each round")
    options, _ = parser.parse_known_args(namespace=Options())
    systems: dict[str, type[PywanSites | GeodeSites]] = {"geode": GeodeSites, "pywan": PywanSites}
    if options.only:
        systems = {options.only: systems[options.only]}
    if "geode" in systems:
        build_geode()
    events = options.events or options.size(100_000, 50_000, 10_000)
    rounds, warm_up = options.rounds or options.size(5, 3, 1), options.warm_up
    warm_up = options.size(3, 2, 0) if warm_up is None else warm_up
    measured: list[Measured] = []
    loads: list[float] = []
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(
                gateway_sites(
                    system,
                    options.members or MEMBERS[system.name],
                    events if name == "geode" or options.smallest else events * PYWAN_TIMES,
                    goes_first=options.first,
                )
            )
            for name, system in systems.items()
        }
        for number in range(warm_up + rounds):
            began = time.monotonic()
            taken = measure_round(running, [*running] if number % 2 else [*running][::-1])
            if number >= warm_up:
                measured.append(taken)
                loads.append(os.getloadavg()[0])
                keep(options.json, measured, loads)
            what = "" if number >= warm_up else ", which warms up"
            rates = "; ".join(
                f"{name} {' '.join(f'{each[name].rate / 1e3:,.1f}' for each in taken.values())} k/s" for name in running
            )
            seconds, load = time.monotonic() - began, os.getloadavg()[0]
            print(f"round {number + 1}{what}: {rates}; {seconds:.0f} s, load {load:.0f}", flush=True)
    show(measured, {name: sites.members for name, sites in running.items()})


if __name__ == "__main__":
    main()
