"""An asynchronous event queue of pywan beside one of Apache Geode 1.15.1, in turn in one run: one member each, a
replicated region, and a serial queue in memory with one dispatcher and batches of 1,000. 16-byte keys, 100-byte values.

The queue is paused and filled. Then it is resumed, and the clock runs until the listener has seen the last event. A
listener counts (pywan's gets Arrow columns, Geode's a list of events), or it reads the key and the deserialized value
of each event (pywan's in Python, Geode's in Java).

The first rounds of a system warm up, so that Geode's code is compiled: its rates still grow after 15 rounds. The tables
have the medians over the rounds, and the median of the ratios of the rounds with their quartiles. On a busy machine the
processor time of the member's process says more than the clock. Its ratio is also how many times better pywan is.

    .venv/bin/python bench/compare_async_queue.py [--rounds 21] [--warm-up 60] [--events 100000] [--json FILE]

Needed: a JDK 17 and Maven, about 3 GB of memory. `--first` (root): the measured processes get the cores before others
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
from pywan.testing.site_processes import SiteOfProcesses
from site_processes import HERE, GeodeSite, PywanProcess, build_geode

# What is measured: {what the listener does: (its name, its goal as a ratio of rates)}.
POINTS: dict[str, tuple[str, str]] = {
    "count": ("a listener that counts; pywan: of Arrow columns", "10 times"),
    "read": ("a listener that reads key and value of each event; pywan: in Python", "2 times"),
}


class PywanQueues(SiteOfProcesses):
    program = HERE / "queue_member.py"
    process_class = PywanProcess

    def __init__(self, folder: Path, *, goes_first: bool = False) -> None:
        super().__init__(folder, regions=[], goes_first=goes_first)


def drain(process: ChildProcess, kind: str) -> dict[str, float]:
    process.ask("fill", kind)
    return process.ask("drain", kind)


def measure(
    systems: list[str], *, events: int, rounds: int, warm_up: int, goes_first: bool
) -> list[dict[str, dict[str, Any]]]:
    """Rounds of both systems in turn. Each gives {point: {system: figures}}."""
    with contextlib.ExitStack() as stack:
        running: dict[str, ChildProcess] = {}
        for name in systems:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
            if name == "geode":
                running[name] = stack.enter_context(GeodeSite(folder, goes_first=goes_first)).start("a", "queues")
            else:
                running[name] = stack.enter_context(PywanQueues(folder, goes_first=goes_first)).start("a")
            running[name].ask("keys", events, 1)
            for kind in POINTS:
                running[name].ask("queue", kind)
            for number in range(warm_up):
                rates = {kind: drain(running[name], kind)["rate"] for kind in POINTS}
                if number in (0, warm_up - 1):
                    shown = ", ".join(f"{kind} {rate:,.0f}/s" for kind, rate in rates.items())
                    print(f"{name}: round {number + 1} of {warm_up} that warm up: {shown}", flush=True)
        measured = []
        for number in range(rounds):
            names = systems if number % 2 else systems[::-1]
            measured.append({kind: {name: drain(running[name], kind) for name in names} for kind in POINTS})
        return measured


def show(measured: list[dict[str, dict[str, Any]]], systems: list[str]) -> None:
    for figure, unit, is_rate in (
        ("rate", "events a second", True),
        ("processor_us", "us of processor an event", False),
    ):
        print("| work | " + " | ".join(f"{name}: {unit}" for name in systems), end="")
        print((" | ratio | quartiles |" if len(systems) > 1 else " |") + (" to reach |" if is_rate else ""))
        print("|---|" + "---|" * (len(systems) + (2 if len(systems) > 1 else 0) + is_rate))
        for kind, (point, goal) in POINTS.items():
            medians = [statistics.median(round_[kind][name][figure] for round_ in measured) for name in systems]
            row = [point, *(f"{median:,.0f}" if is_rate else f"{median:.2f}" for median in medians)]
            if len(systems) > 1:
                ratios = [round_[kind]["pywan"][figure] / round_[kind]["geode"][figure] for round_ in measured]
                if not is_rate:
                    ratios = [1 / ratio for ratio in ratios]  # Also how many times better.
                low, median, high = (
                    statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
                )
                row += [f"{median:.1f}", f"{low:.1f}-{high:.1f}"]
                if is_rate:
                    results.note(f"queue beside Geode: {kind}", ratios, more_is_better=True)
            print(f"| {' | '.join([*row, goal] if is_rate else row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--warm-up", type=int, help="rounds of each system before them")
    parser.add_argument("--events", type=int, help="of each round")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--only", choices=("pywan", "geode"))
    parser.add_argument("--json", type=Path, help="the file that gets all figures")
    options, _ = parser.parse_known_args(namespace=Options())
    systems = [options.only] if options.only else ["geode", "pywan"]
    if "geode" in systems:
        build_geode()
    began, load = time.monotonic(), os.getloadavg()[0]
    measured = measure(
        systems,
        events=options.events or options.size(100_000, 100_000, 20_000),
        rounds=options.rounds or options.size(21, 5, 1),
        warm_up=options.warm_up or options.size(60, 15, 1),
        goes_first=options.first,
    )
    print(
        f"{time.monotonic() - began:.0f} s, load {load:.0f} before it and {os.getloadavg()[0]:.0f} after it", flush=True
    )
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    show(measured, systems)


if __name__ == "__main__":
    main()
