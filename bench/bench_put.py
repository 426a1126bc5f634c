"""What Python adds to a `put`: the piece `put` beside the same steps in C without Python (hash, clock, two locks,
table, queue), and what those take one by one.

16-byte keys, 100-byte values; one thread, whose processor time counts. `--quick` for a short run."""

from __future__ import annotations

import os

from measure import Rates, arguments, c_program, cpu_seconds, report
from pieces import piece
from two_sites import Child


def main() -> None:
    options = arguments(__doc__)
    bare = Child(c_program("put_without_python", whole_core=True))
    steps = ("hash, clock and locks", "the same and the table", "the same and the queue")
    try:
        with piece("put") as put:
            rounds: list[tuple[float, list[float]]] = []
            for _ in range(options.rounds + 1):
                put.prepare()
                rounds.append((cpu_seconds(put.run) / put.events * 1e9, [float(ns) for ns in bare.ask().split()]))
        del rounds[0]  # It warmed up.
        whole = Rates([in_c[-1] for _, in_c in rounds])
        report("put", Rates([ns for ns, _ in rounds]), whole, "its steps in C", "", "ns")
        for n, name in enumerate(steps):
            report(name, Rates([in_c[n] for _, in_c in rounds]), whole, "all steps in C", "", "ns")
    finally:
        bare.end()


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # One core: nothing here is parallel.
    main()
