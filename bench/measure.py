"""Owns how the benchmarks measure and speak: subject and reference in turn, medians over rounds, one line a result; and
how the bare references in C are built."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy

import results

KEY_BYTES, VALUE_BYTES = 16, 100
KEYS = 1_000_000
Size = TypeVar("Size")
HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "bench"
# Slowest to fastest round of a reference, which does the same work each time: beyond this the machine was busy.
NOISY = 1.6


class Options(argparse.Namespace):
    """What the command line says."""

    quick: bool
    smallest: bool

    def size(self, full: Size, quick: Size, smallest: Size) -> Size:
        """How large something is in the form that was asked for."""
        return smallest if self.smallest else quick if self.quick else full

    @property
    def keys(self) -> int:
        """Keys of a region."""
        return self.size(KEYS, KEYS, 20_000)


def add_forms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--smallest", action="store_true", help="one round of the smallest sizes: it shows that the program works"
    )


def arguments(description: str | None) -> Options:
    """The options that every benchmark takes; those that mean nothing to it are ignored."""
    parser = argparse.ArgumentParser(description=description)
    add_forms(parser)
    parser.add_argument("--rounds", type=int, help="rounds that count (one more warms up)")
    parser.add_argument("--long", action="store_true", help="also what takes minutes and gigabytes")
    parser.add_argument("--peers", action="store_true", help="also other systems, which have to be installed")
    options = parser.parse_args(namespace=Options())
    options.rounds = options.rounds or options.size(7, 3, 1)
    return options


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def cpu_seconds(call: Callable[[], object]) -> float:
    """Processor time of this thread: for work that one thread does alone, where others may want the machine too."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def processor_s(pid: int) -> float:
    """Processor time of a process, so far; of another one with the children that it forked."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    taken = (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir() if pid != os.getpid() else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # A thread or a child that ended.
            taken += sum(processor_s(int(child)) for child in (task / "children").read_text().split())
    return taken


def busiest_thread_s(pids: Iterable[int], before: dict[int, float] | None = None) -> tuple[float, dict[int, float]]:
    """(processor time since `before` of the thread that took most, what to give as `before` the next time)."""
    now = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            now[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return max(taken - (before or now).get(tid, 0.0) for tid, taken in now.items()), now


class Threads:
    """What the threads of some processes did since the last look: seconds of each on a core, ready but without a core,
    and asleep."""

    def __init__(self, *pids: int) -> None:
        self.pids, self.before = pids, {}
        self.look()

    def look(self) -> dict[tuple[int, int], tuple[float, float, float]]:
        """{(process, thread): (running, ready, asleep)}."""
        now: dict[tuple[int, int], tuple[float, float, float]] = {}
        for pid in self.pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                try:
                    running, ready, _ = map(int, (task / "schedstat").read_text().split())
                except (FileNotFoundError, ProcessLookupError):
                    continue  # The thread ended a moment ago.
                now[pid, int(task.name)] = (running / 1e9, ready / 1e9, time.perf_counter())
        did = {}
        for key, (running, ready, at) in now.items():
            if key in self.before:
                ran, waited, since = self.before[key]
                did[key] = (running - ran, ready - waited, max(0.0, at - since - (running - ran) - (ready - waited)))
        self.before = now
        return did


class Rates(float):
    """The median of several rounds, which also knows how far they lay apart."""

    spread: float
    rounds: list[float]

    def __new__(cls, rates: list[float]) -> Rates:
        median = super().__new__(cls, statistics.median(rates))
        median.spread = max(rates) / min(rates) if min(rates) > 0 else 1.0
        median.rounds = rates
        return median


def in_turn(
    rounds: int, subject: Callable[[], float], reference: Callable[[], float], *, warm_up: bool = True
) -> tuple[Rates, Rates]:
    """Medians of two rates (each call gives one), taken A B A B after a warm-up round."""
    if warm_up:
        subject(), reference()
    pairs = [(subject(), reference()) for _ in range(rounds)]
    return Rates([a for a, _ in pairs]), Rates([b for _, b in pairs])


def report(name: str, subject: float, reference: float, what: str, goal: str = "", unit: str = "M/s") -> None:
    """`name: subject M/s = 72% of reference M/s (what)`; `goal` says what is to be reached. A reference whose rounds
    lay far apart is marked: the ratio is worth little then."""
    one, other = getattr(subject, "rounds", [subject]), getattr(reference, "rounds", [reference])
    if len(one) == len(other):
        results.note(
            name,
            [a / b for a, b in zip(one, other, strict=True) if b],
            more_is_better=unit.endswith("/s"),
            shown=f"{subject} {unit}",
        )
    scale = 1e6 if unit == "M/s" else 1.0
    ratio = subject / reference if reference else 0.0
    shown = f"{ratio:.0%} of" if ratio < 10 else f"{ratio:.1f} times"
    spread = max(getattr(reference, "spread", 1.0), getattr(subject, "spread", 1.0))
    noise = f"; noisy: rounds {spread:.1f} times apart" if spread > NOISY else ""
    print(
        f"{name:<34} {subject / scale:8.2f} {unit} = {shown} {reference / scale:.2f} {unit} ({what})"
        f"{'; to reach: ' + goal if goal else ''}{noise}",
        flush=True,
    )


def resident_bytes(pid: int | None = None) -> int:
    with open(f"/proc/{pid or 'self'}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def numbered_keys(numbers: numpy.ndarray) -> numpy.ndarray:
    """`%016d` of each, made without a Python object per key."""
    digits = numpy.empty((len(numbers), KEY_BYTES), dtype=numpy.uint8)
    rest = numbers.astype(numpy.uint32)
    for place in range(KEY_BYTES - 1, -1, -1):
        rest, digits[:, place] = rest // 10, rest % 10 + ord("0")
    return digits.view(f"S{KEY_BYTES}").ravel()


def key_column(count: int) -> numpy.ndarray:
    return numpy.array([b"%016d" % n for n in range(count)], dtype=f"S{KEY_BYTES}")


def value_column(count: int) -> numpy.ndarray:
    return numpy.array([json_like(n) for n in range(count)], dtype=f"S{VALUE_BYTES}")


def json_like(n: int) -> bytes:
    """100 bytes as a price feed would send them: words that repeat, numbers that do not."""
    mixed = n * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFF
    prices = f'"bid":{mixed % 100000 / 100},"ask":{mixed % 99991 / 100}'
    text = f'{{"symbol":"S{n % 5000:05d}",{prices},"size":{mixed >> 40},"t":{mixed}}}'
    return text.encode()[:VALUE_BYTES].ljust(VALUE_BYTES)


def _build(name: str, output: str, *more: str, whole_core: bool = False) -> Path:
    """Compiles bench/c/`name`.c as the core is compiled, with one of its sources or with all."""
    BUILD.mkdir(parents=True, exist_ok=True)
    core = HERE.parent / "csrc"
    sources = sorted(core.glob("*/wan_*.c")) if whole_core else [core / "base/wan_crc32c.c"]
    subprocess.run(
        [
            *shlex.split(os.environ.get("CC", "cc")),
            "-O3",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-DNDEBUG",
            "-Wall",
            "-Wextra",
            f"-I{core}",
            f"-I{HERE / 'c'}",
            str(HERE / "c" / f"{name}.c"),
            *(["-Wno-unused-parameter"] if whole_core else []),
            *map(str, sources),
            "-pthread",
            "-o",
            str(BUILD / output),
            *more,
        ],
        check=True,
    )
    return BUILD / output


def c_library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(_build(name, f"{name}.so", "-shared", "-fPIC")))


def c_program(name: str, *, whole_core: bool = False) -> str:
    return str(_build(name, name, whole_core=whole_core))


def at(column: numpy.ndarray, row: int = 0) -> ctypes.c_void_p:
    """Where a row of a column lies, for C."""
    return ctypes.c_void_p(column.ctypes.data + row * column.itemsize)
