"""`make bench`: the pieces by pytest-benchmark, then every program; keeps what they measured and compares it with the
run before. With `--smallest`, it runs the smallest form of each and checks that each still works.

The results lie in `.benchmarks`, those of pytest-benchmark beside them, where Git ignores them. `--baseline` names
another run to compare with; the exit status is 1 if something is slower than noise explains (`results.py` says what
that is). The smallest forms are not kept."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import results

HERE = Path(__file__).resolve().parent
SMALLEST_TIMEOUT_S = 240
AT_A_TIME = 2  # Smallest forms that run side by side: they wait as much as they work.


@dataclass(frozen=True)
class Program:
    file: str
    rows: int  # Results that the smallest form prints.
    # "long": it takes minutes, and the short form runs it only if it is named. "peers": it needs other systems.
    # "by hand": it needs to be told what to compare.
    when: Literal["always", "long", "peers", "by hand"] = "always"
    smallest: tuple[str, ...] = ("--smallest",)  # The arguments of the smallest form.


# Every program of this directory. The smallest forms run in the order of the table, so what takes longest comes first.
PROGRAMS = {
    "spark": Program("bench_spark.py", 6),
    "site": Program("bench_site.py", 26, "long", ("--smallest", "--before", str(HERE.parent))),
    "compare": Program(
        "compare.py", 15, "by hand", (str(HERE.parent), "--smallest", "--only", "put", "latency", "stored", "lz4")
    ),
    "pieces": Program("test_pieces.py", 31),
    "async_queue": Program("bench_async_queue.py", 3),
    "calls": Program("bench_calls.py", 4),
    "coordination": Program("bench_coordination.py", 7, "long"),
    "core": Program("bench_core.py", 5),
    "distance": Program("bench_distance.py", 1),
    "durable": Program("bench_durable.py", 3),
    "end_to_end": Program("bench_end_to_end.py", 5),
    "filters": Program("bench_filters.py", 5),
    "gateways": Program("bench_gateways.py", 4),
    "lane": Program("bench_repl_link.py", 5),
    "latency": Program("bench_latency.py", 2),
    "memory": Program("bench_memory.py", 5),
    "put": Program("bench_put.py", 4),
    "stored": Program("bench_stored.py", 2),
    "table": Program("bench_table.py", 3),
    "tls": Program("bench_tls.py", 2),
    "tls_sites": Program("bench_tls_sites.py", 5),
    "unreachable": Program("bench_unreachable.py", 4),
    "site_attack": Program("site_attack.py", 1, "long"),
    "regions": Program("bench_regions.py", 8, "long"),
    "site_churn": Program("site_churn.py", 1, "long"),
    "site_scale": Program("site_scale.py", 17, "long"),
    "site_peers": Program("compare_site.py", 4, "peers", ("--smallest", "--only", "pywan")),
    "gateway_peers": Program("compare_gateways.py", 8, "peers", ("--smallest", "--only", "pywan")),
    "async_queue_peers": Program("compare_async_queue.py", 4, "peers", ("--smallest", "--only", "pywan")),
    "peers": Program("bench_peers.py", 0),  # Its smallest form only says that other systems are needed.
}
# The other files of this directory, which the programs use.
PARTS = {
    "attacks.py",
    "conftest.py",
    "gateway_member.py",
    "gateway_sites.py",
    "measure.py",
    "pieces.py",
    "queue_member.py",
    "regions_member.py",
    "results.py",
    "run.py",
    "site_member.py",
    "site_processes.py",
    "two_sites.py",
}


def pieces(rounds: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "test_pieces.py"),
        f"--rootdir={HERE}",
        "-c",
        os.devnull,
        "--benchmark-timer=time.thread_time",
        "--benchmark-columns=median,iqr,min,rounds",
        "--benchmark-sort=fullname",
        f"--piece-rounds={rounds}",
    ]


def kept_pieces(quick: bool) -> list[str]:
    """How pytest-benchmark runs them. It shows the last saved run beside this one."""
    kind = "quick" if quick else "full"
    saved = sorted(results.DIRECTORY.glob(f"*/*_{kind}.json"))
    command = [
        *pieces(7 if quick else 25),
        f"--benchmark-storage=file://{results.DIRECTORY}",
        f"--benchmark-save={kind}",
    ]
    if saved:
        command.append(f"--benchmark-compare={saved[-1].name.partition('_')[0]}")
    return command


def run_smallest(names: list[str]) -> int:
    """The smallest form of each. Prints what they print, and what is wrong."""

    def run(name: str) -> list[str]:
        program, began = PROGRAMS[name], time.monotonic()
        command = pieces(1) if name == "pieces" else [sys.executable, str(HERE / program.file), *program.smallest]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SMALLEST_TIMEOUT_S
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, output = -1, (error.stdout or b"").decode(errors="replace")
        print(f"== {name}, {time.monotonic() - began:.0f} s\n{output}", end="", flush=True)
        return [f"{name}: {wrong}" for wrong in results.complaints(status, output, program.rows)]

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        wrong = [each for found in pool.map(run, names) for each in found]
    for each in wrong:
        print(f"== {each}")
    return 1 if wrong else 0


def run_and_keep(names: list[str], *, quick: bool, baseline: Path | None, rest: list[str]) -> int:
    file = results.new_file("quick" if quick else "full")
    environment = {**os.environ, results.FILE: str(file)}
    file.touch()
    failed = []
    for name in names:
        program = [sys.executable, str(HERE / PROGRAMS[name].file), *(["--quick"] if quick else []), *rest]
        print(f"== {name}", flush=True)
        command = kept_pieces(quick) if name == "pieces" else program
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(name)
    for name in failed:
        print(f"== {name} failed")
    baseline = baseline or results.earlier(file)
    slower = results.compare(file, baseline) if baseline else []
    for name in slower:
        print(f"== slower than before: {name}")
    return 1 if failed or slower else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--smallest", action="store_true", help="one round of the smallest sizes of every program")
    parser.add_argument("--only", nargs="*", choices=[*PROGRAMS], metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--baseline", type=Path, help="results to compare with, instead of the run before")
    options, rest = parser.parse_known_args()
    if options.smallest:
        return run_smallest(options.only or [*PROGRAMS])
    whens = {"always"} | ({"peers"} if "--peers" in rest else set())
    if options.only or not options.quick:
        whens.add("long")
    found = {name for name, program in PROGRAMS.items() if program.when in whens}
    names = ["pieces", *sorted(found - {"pieces"})]  # They are short.
    names = [name for name in names if not options.only or name in options.only]
    return run_and_keep(names, quick=options.quick, baseline=options.baseline, rest=rest)


if __name__ == "__main__":
    sys.exit(main())
