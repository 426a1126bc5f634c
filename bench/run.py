"""`make bench`: the pieces by pytest-benchmark, then every program; keeps what they measured and compares it with the
run before.

The results lie in `.benchmarks`, those of pytest-benchmark beside them, where Git ignores them. `--baseline` names
another run to compare with; the exit status is 1 if something is slower than noise explains (`results.py` says what
that is)."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import results

HERE = Path(__file__).resolve().parent


def pieces(quick: bool) -> list[str]:
    """How pytest-benchmark runs them. It shows the last saved run beside this one."""
    kind = "quick" if quick else "full"
    saved = sorted(results.DIRECTORY.glob(f"*/*_{kind}.json"))
    command = [
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
        f"--benchmark-storage=file://{results.DIRECTORY}",
        f"--benchmark-save={kind}",
        f"--piece-rounds={7 if quick else 25}",
    ]
    if saved:
        command.append(f"--benchmark-compare={saved[-1].name.partition('_')[0]}")
    return command


# These take minutes: the short form runs them only if they are named.
LONG = ("site", "site_scale")
# Beside bench_*.py, and whether they need other systems (`--peers`).
MORE = {"site_scale": ("site_scale.py", False), "site_peers": ("compare_site.py", True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="NAME",
        help="pieces, and programs without bench_ and .py, such as: pieces stored latency",
    )
    parser.add_argument("--baseline", type=Path, help="results to compare with, instead of the run before")
    options, rest = parser.parse_known_args()
    file = results.new_file("quick" if options.quick else "full")
    environment = {**os.environ, results.FILE: str(file)}
    file.touch()
    paths = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    paths.update((name, HERE / file) for name, (file, is_peer) in MORE.items() if not is_peer or "--peers" in rest)
    if options.quick and not options.only:
        paths = {name: path for name, path in paths.items() if name not in LONG}
    programs = {
        name: [sys.executable, str(path), *(["--quick"] if options.quick else []), *rest]
        for name, path in paths.items()
    }
    failed = []
    for name, command in {"pieces": pieces(options.quick), **programs}.items():
        if options.only and name not in options.only:
            continue
        print(f"== {name}", flush=True)
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(name)
    for name in failed:
        print(f"== {name} failed")
    baseline = options.baseline or results.earlier(file)
    slower = results.compare(file, baseline) if baseline else []
    for name in slower:
        print(f"== slower than before: {name}")
    return 1 if failed or slower else 0


if __name__ == "__main__":
    sys.exit(main())
