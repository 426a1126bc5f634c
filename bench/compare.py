"""Two trees side by side: what was before and what is now, measured in turn in one run.

    .venv/bin/python bench/compare.py BEFORE [NOW] [--only put stored ...] [--rounds 4] [--lives 3] [--realtime]

BEFORE and NOW (this tree, unless said) are directories with a built `pywan`. Each point has a process a tree, which
lives for some rounds: before, now, now, before, and so on. Then both are started anew, since where a process finds its
memory makes it faster or slower for all its life. The table has the medians, the median of the ratios of the rounds,
and their quartiles; nanoseconds an event are processor time, of one thread or of both processes. `--realtime` (root)
takes the cores from others while a round lasts: on a machine that is shared."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import Options

if TYPE_CHECKING:
    from two_sites import Child

HERE = Path(__file__).resolve().parent
Measure = Callable[[], dict[str, float]]  # One round: {what is measured: figure}; "M/s" is better when higher.


# In the process of a tree


@contextlib.contextmanager
def one_piece(name: str) -> Iterator[Measure]:
    import pieces

    with pieces.piece(name) as piece:

        def measure() -> dict[str, float]:
            took = []
            for _ in range(5):
                piece.prepare()
                started = time.thread_time()
                piece.run()
                took.append((time.thread_time() - started) / piece.events * 1e9)
            return {"ns": statistics.median(took)}

        yield measure


@contextlib.contextmanager
def end_to_end(options: Options, *, stores: bool, events: int, **attributes: Any) -> Iterator[Measure]:
    import numpy

    from bench_stored import random_order, shares
    from measure import Threads, numbered_keys, value_column
    from two_sites import two_sites

    events = options.size(events, events, 40_000)
    with two_sites(stores=stores) as sites:
        keys = random_order(sites, options.keys) if stores else numbered_keys(numpy.arange(options.keys))
        values = value_column(options.keys)
        sender = sites.sender("ln", **{"batch_size": 1000, "batch_time_interval": 5, **attributes})
        sites.use(sender)
        threads = Threads(*sites.pids)

        def measure() -> dict[str, float]:
            threads.look()
            rate = sites.send_all(sender, keys, values, events)
            did = threads.look()
            ns = {role: times[0] / events * 1e9 for role, times in shares(did).items()}
            return {
                "M/s": rate / 1e6,
                "ns": sum(times[0] for times in did.values()) / events * 1e9,
                **ns,
                "busiest thread": max(times[0] for times in did.values()) / events * 1e9,
            }

        yield measure
        assert sites.remote_keys() == options.keys and sender.ledger()["balanced"]


@contextlib.contextmanager
def latency(options: Options) -> Iterator[Measure]:
    from bench_latency import enqueue_to_acknowledged, percentiles
    from two_sites import two_sites

    with two_sites() as sites:
        sender = sites.sender("ln", batch_size=1000, batch_time_interval=1)
        sites.use(sender)
        enqueue_to_acknowledged(sites, sender, options.size(0.5, 0.5, 0.1))

        def measure() -> dict[str, float]:
            p50, p99 = percentiles(enqueue_to_acknowledged(sites, sender, options.size(2.0, 2.0, 0.1)))
            return {"p50 ms": p50, "p99 ms": p99}

        yield measure


PROGRAMS: dict[str, Callable[[Options], contextlib.AbstractContextManager[Measure]]] = {
    "stored": lambda options: end_to_end(options, stores=True, events=2_000_000),
    "end to end": lambda options: end_to_end(options, stores=False, events=3_000_000),
    "five dispatchers": lambda options: end_to_end(options, stores=False, events=2_000_000, dispatcher_threads=5),
    "lz4": lambda options: end_to_end(options, stores=False, events=2_000_000, compression="lz4"),
    "latency": latency,
}


def serve(point: str, options: Options) -> None:
    import pywan.testing

    # An earlier tree may bring up its processes in another way. The programs of this directory do it in ours.
    pywan.testing.__path__.insert(0, str(HERE.parent / "pywan" / "testing"))
    with PROGRAMS[point](options) if point in PROGRAMS else one_piece(point) as measure:
        print(Path(pywan.__file__).parent.parent, flush=True)
        for _ in sys.stdin:
            print(json.dumps(measure()), flush=True)


# In ours


def tree(directory: Path, point: str, *, smallest: bool, realtime: bool) -> Child:
    """The process of a tree. It answers each line with a line of JSON."""
    from two_sites import Child

    command = [sys.executable, HERE / "compare.py", "--serve", point, *(["--smallest"] if smallest else [])]
    prefix = ("chrt", "-r", "1") if realtime else ()
    # Its own children import what is in their directory first: there must be no `pywan`.
    process = Child(*command, prefix=prefix, cwd=HERE, environment={"PYTHONPATH": str(directory)})
    told = process.finish()
    assert told == str(directory), f"{directory} has no pywan that is imported from there"
    return process


def show(point: str, rounds: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    for figure in rounds[0][0]:
        pairs = [(before[figure], now[figure]) for before, now in rounds if figure in before and figure in now]
        ratios = [now / before for before, now in pairs if before]
        if not ratios:
            continue
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        before, now = (statistics.median(pair[n] for pair in pairs) for n in (0, 1))
        print(f"| {point} | {figure} | {before:.2f} | {now:.2f} | {median:.0%} | {low:.0%}-{high:.0%} |", flush=True)


def main() -> None:
    import pieces

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("now", type=Path, nargs="?", default=HERE.parent)
    parser.add_argument("--only", nargs="*", metavar="POINT", help=", ".join([*pieces.PIECES, *PROGRAMS]))
    parser.add_argument("--rounds", type=int, help="of each life")
    parser.add_argument("--lives", type=int, help="how often the processes are started anew")
    parser.add_argument("--smallest", action="store_true", help="one round: it shows that the program works")
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(namespace=Options(quick=False))
    if options.serve:
        serve(options.serve, options)
        return
    if options.before is None:
        parser.error("which tree was before?")
    lives, rounds_a_life = options.lives or options.size(3, 3, 1), options.rounds or options.size(4, 4, 1)
    print("| point | figure | before | now | now / before | quartiles |\n|---|---|---|---|---|---|", flush=True)
    for point in options.only or [*pieces.PIECES, *PROGRAMS]:
        rounds: list[tuple[dict[str, float], dict[str, float]]] = []
        for _life in range(lives):
            with contextlib.ExitStack() as stack:
                trees = []
                for directory in (options.before, options.now):
                    process = tree(directory.resolve(), point, smallest=options.smallest, realtime=options.realtime)
                    trees.append(stack.enter_context(process))
                for n in range(rounds_a_life + 1):
                    measured = {which: json.loads(trees[which].ask()) for which in ((0, 1) if n % 2 else (1, 0))}
                    if n:  # The first one warmed up.
                        rounds.append((measured[0], measured[1]))
        show(point, rounds)


if __name__ == "__main__":
    main()
