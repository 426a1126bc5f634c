"""A site of pywan beside one of Apache Geode 1.15.1, in turn in one run: two members with a PARTITION region of 113
buckets and one redundant copy, and an accessor; each a process, with a locator in another. Single puts return when the
copy has them.

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
from site_processes import GeodeSite, Process, PywanSite, Site, build_geode

KEYS = 1_000_000
# What is measured: (who asks, words, its goal as a ratio of rates).
POINTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "bulk of 10,000 rows, at a member": ("a", ("bulk",), "10 times"),
    "bulk of 10,000 rows, at an accessor": ("c", ("bulk",), "10 times"),
    "single puts, 1 thread": ("a", ("put", "1"), "1.5 times"),
    "single puts, 64 threads": ("a", ("put", "64"), "2 times"),
}
WARM_UP = (("a", ("bulk",), 4.0), ("c", ("bulk",), 3.0), ("a", ("put", "64"), 6.0), ("a", ("put", "1"), 2.0))


def start(site: Site) -> dict[str, Process]:
    """A locator, the members a and b, and the accessor c."""
    site.start("locator", "locator")
    starting = [site.begin("store", "a"), site.begin("store", "b"), site.begin("accessor", "c")]
    for process in starting:
        process.finish()
    a, b, c = starting
    a.ask("assign")
    for process, seed in ((a, 1), (c, 2)):
        process.begin("keys", KEYS, seed)
    for process in (a, c):
        process.finish()
    led = [process.ask("state")["primaries"] for process in (a, b)]
    assert sum(led) == 113 and min(led) >= 40, f"the members are primary of {led} buckets"
    return {"a": a, "b": b, "c": c}


def life(systems: dict[str, type[Site]], rounds: int, seconds: float, *, goes_first: bool) -> list[dict[str, Any]]:
    """Rounds of both systems in turn. Each gives {point: {system: figures}}."""
    with contextlib.ExitStack() as stack:
        running: dict[str, dict[str, Process]] = {}
        for name, kind in systems.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
            running[name] = start(stack.enter_context(kind(folder, goes_first=goes_first)))
        for name, processes in running.items():
            for who, words, warm_s in WARM_UP:
                processes[who].ask(*words, warm_s if name == "geode" else warm_s / 4)
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
    parser.add_argument("--lives", type=int, default=3, help="how often the sites are started anew")
    parser.add_argument("--rounds", type=int, default=3, help="of each life")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="one life, two rounds")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--only", choices=("pywan", "geode"))
    parser.add_argument("--json", type=Path, help="the file that gets all figures")
    options, _ = parser.parse_known_args()
    lives, rounds = (1, 2) if options.quick else (options.lives, options.rounds)
    systems: dict[str, type[Site]] = {"geode": GeodeSite, "pywan": PywanSite}
    if options.only:
        systems = {options.only: systems[options.only]}
    if "geode" in systems:
        build_geode()
    measured: list[dict[str, Any]] = []
    for number in range(lives):
        began, load = time.monotonic(), os.getloadavg()[0]
        measured += life(systems, rounds, options.seconds, goes_first=options.first)
        print(f"life {number + 1}: {time.monotonic() - began:.0f} s, load {load:.0f} before it", flush=True)
        if options.json:
            options.json.write_text(json.dumps(measured, indent=1) + "\n")
    show(measured, [*systems])


if __name__ == "__main__":
    main()
