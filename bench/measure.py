"""Owns how the benchmarks measure and speak: subject and reference in turn, medians over rounds, one line a result."""
from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

KEY_BYTES, VALUE_BYTES = 16, 100


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help="rounds that count (one more warms up)")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    return options


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_turn(rounds: int, subject: Callable[[], float], reference: Callable[[], float]) -> tuple[float, float]:
    """Medians of two rates (each call gives one), taken A B A B after a warm-up round."""
    subject(), reference()
    pairs = [(subject(), reference()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def report(name: str, subject: float, reference: float, what: str, goal: str = "", unit: str = "M/s") -> None:
    """`name: subject M/s = 72% of reference M/s (what)`; `goal` says what is to be reached."""
    scale = 1e6 if unit == "M/s" else 1.0
    ratio = subject / reference if reference else 0.0
    shown = f"{ratio:.0%} of" if ratio < 10 else f"{ratio:.1f} times"
    print(f"{name:<34} {subject / scale:8.2f} {unit} = {shown} {reference / scale:.2f} {unit} ({what}){'; to reach: ' + goal if goal else ''}", flush=True)
