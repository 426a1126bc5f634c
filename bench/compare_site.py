"""A site of pywan beside one of Apache Geode 1.15.1, in turn in one run: two members with a PARTITION region of 113
buckets and one redundant copy, and an accessor; each a process, with a locator in another. Single puts return when the
replica has them.

Each member leads about half of the buckets, in both systems. So half of what `a` puts goes to another primary. How many
each member leads is printed.

Both are started anew for each life. The first rounds of a life warm up, so that Geode's code is compiled. The table has
the medians over all rounds, and the median of the ratios of the rounds with their quartiles.

    .venv/bin/python bench/compare_site.py [--lives 3] [--rounds 3] [--first] [--json FILE]

Needed: a JDK 17 and Maven, about 6 GB of memory. `--first` (root): the measured processes get the cores before others
that use this machine. `--only pywan` or `--only geode` measures one system alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from measure import Options, add_forms
from pywan.testing.processes import ChildProcess
from site_processes import GeodeSite, PywanSite, build_geode, wait_until

# What is measured: (who asks, words, its goal as a ratio of rates).
POINTS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "bulk of 10,000 rows, at a member": ("a", ("bulk",), "10 times"),
    "bulk of 10,000 rows, at an accessor": ("c", ("bulk",), "10 times"),
    "single puts, 1 thread": ("a", ("put", 1), "1.5 times"),
    "single puts, 64 threads": ("a", ("put", 64), "2 times"),
}
BUCKETS = 113
System = PywanSite | GeodeSite
WARM_UP = (("a", ("bulk",), 4.0), ("c", ("bulk",), 3.0), ("a", ("put", 64), 6.0), ("a", ("put", 1), 2.0))


def is_made(members: list[ChildProcess]) -> bool:
    """Whether every bucket has its replica. Geode says that before it answers `assign`, and does not count replicas."""
    leaders = [state for process in members if (state := process.ask("state"))["primaries"]]
    return sum(state["primaries"] for state in leaders) == BUCKETS and all(
        state.get("fewest", 1) == 1 and not state.get("learning") for state in leaders
    )


def is_even(members: list[ChildProcess]) -> bool:
    led = [process.ask("state")["primaries"] for process in members]
    return sum(led) == BUCKETS and max(led) - min(led) <= 1


def start(site: System, keys: int) -> dict[str, ChildProcess]:
    """The members a and b, and the accessor c. All buckets are made. Prints how many each member leads."""
    a = site.start("a")
    accessor: Any = site.accessor
    b, c = site.begin("b"), site.begin("c", accessor)
    for process in (b, c):
        process.finish()
    a.ask("assign")
    for process, seed in ((a, 1), (c, 2)):
        process.begin("keys", keys, seed)
    for process in (a, c):
        process.finish()
    wait_until(lambda: is_made([a, b]), 60, "every bucket has its replica")
    wait_until(lambda: is_even([a, b]), 60, "each member leads about half of the buckets")
    led = [process.ask("state")["primaries"] for process in (a, b)]
    print(f"{site.name}: the members are primary of {led[0]} and {led[1]} buckets", flush=True)
    return {"a": a, "b": b, "c": c}


def life(
    systems: dict[str, type[System]],
    rounds: int,
    seconds: float,
    *,
    keys: int,
    warm: float,
    goes_first: bool,
) -> list[dict[str, Any]]:
    """Rounds of both systems in turn. Each gives {point: {system: figures}}. `warm`: how much of the warming up is done
    before, 1 for all of it."""
    with contextlib.ExitStack() as stack:
        running: dict[str, dict[str, ChildProcess]] = {}
        for name, kind in systems.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
            site: Any = stack.enter_context(kind(folder, goes_first=goes_first))
            running[name] = start(site, keys)
        for name, processes in running.items():
            for who, words, warm_s in WARM_UP:
                processes[who].ask(*words, warm_s * warm if name == "geode" else warm_s * warm / 4)
        measured = []
        for number in range(rounds):
            names = [*running] if number % 2 else [*running][::-1]
            measured.append(
                {
                    point: {name: running[name][who].ask(*words, seconds) for name in names}
                    for point, (who, words, _) in POINTS.items()
                }
            )
        return measured


def show(measured: list[dict[str, Any]], systems: list[str]) -> None:
    print("| work | " + " | ".join(f"{name}: events a second" for name in systems), end="")
    print(" | ratio | quartiles | to reach |" if len(systems) > 1 else " |")
    print("|---|" + "---|" * (len(systems) + (3 if len(systems) > 1 else 0)))
    for point, (_, _, goal) in POINTS.items():
        rates = {name: statistics.median(round_[point][name]["rate"] for round_ in measured) for name in systems}
        row = [point, *(f"{rates[name]:,.0f}" for name in systems)]
        if len(systems) > 1:
            ratios = [round_[point]["pywan"]["rate"] / round_[point]["geode"]["rate"] for round_ in measured]
            low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
            row += [f"{median:.1f}", f"{low:.1f}-{high:.1f}", goal]
            results.note(f"beside Geode: {point}", ratios, more_is_better=True)
        print(f"| {' | '.join(row)} |")
    median_us = {
        name: statistics.median(round_["single puts, 1 thread"][name]["median_us"] for round_ in measured)
        for name in systems
    }
    print("median of a single put: " + ", ".join(f"{name} {us:.0f} us" for name, us in median_us.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--lives", type=int, help="how often the sites are started anew")
    parser.add_argument("--rounds", type=int, help="of each life")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--only", choices=("pywan", "geode"))
    parser.add_argument("--json", type=Path, help="the file that gets all figures")
    options, _ = parser.parse_known_args(namespace=Options())
    lives, rounds = options.lives or options.size(3, 1, 1), options.rounds or options.size(3, 2, 1)
    seconds = options.seconds or options.size(1.5, 1.5, 0.1)
    warm = options.size(1.0, 1.0, 0.05)
    systems: dict[str, type[System]] = {"geode": GeodeSite, "pywan": PywanSite}
    if options.only:
        systems = {options.only: systems[options.only]}
    if "geode" in systems:
        build_geode()
    measured: list[dict[str, Any]] = []
    for number in range(lives):
        began, load = time.monotonic(), os.getloadavg()[0]
        measured += life(systems, rounds, seconds, keys=options.keys, warm=warm, goes_first=options.first)
        print(f"life {number + 1}: {time.monotonic() - began:.0f} s, load {load:.0f} before it", flush=True)
        if options.json:
            options.json.write_text(json.dumps(measured, indent=1) + "\n")
    show(measured, [*systems])


if __name__ == "__main__":
    main()
