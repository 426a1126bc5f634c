"""The demo as a person runs it: real processes, real Spark."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pywan.testing.waiting import LIMIT_S, eventually

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(240)]


def start_demo(directory: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "pywan.demo.main", "--dir", str(directory), *options],
        text=True,
        stdout=subprocess.PIPE,
        stderr=open(directory.parent / "progress.txt", "w"),
        start_new_session=True,
    )


def processes_in(directory: Path) -> list[str]:
    """The processes whose working directory or command names it: the demo's own, whatever it was they became."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory) in os.readlink(process / "cwd") or str(directory) in (process / "cmdline").read_text():
                found.append(process.name)
        except (OSError, UnicodeDecodeError):
            continue
    return found


def test_a_file_fed_through_a_chain_ends_with_equal_sites_and_balanced_ledgers(tmp_path):
    feed = tmp_path / "feed.csv.gz"
    with gzip.open(feed, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "what", "text"])
        writer.writerows([f"k{n % 1000}", "destroy" if n % 1000 < 10 else "update", f"text {n}"] for n in range(5_000))
    directory = tmp_path / "work"
    demo = start_demo(
        directory,
        "--json",
        "--input",
        str(feed),
        "--key",
        "path",
        "--operation",
        "what",
        "--topology",
        "chain",
        "--cut-seconds",
        "1",
        "--persistent",
    )
    out, _ = demo.communicate(timeout=200)
    progress = (tmp_path / "progress.txt").read_text()
    assert out, progress
    report = json.loads(out)
    assert report["problems"] == []
    assert demo.returncode == 0
    assert report["feed"] == {
        "source": "feed.csv.gz",
        "events": 5_000,
        "idle_destroys": 50,  # Five times ten keys that were never there.
        "changes": 4_950,
        "live_keys": 990,
    }
    assert [site["live_keys"] for site in report["sites"].values()] == [990] * 3
    assert [sender["balanced"] for sender in report["senders"]] == [True] * 4
    for what in (
        "link to LN is cut",
        "link to LN is restored",
        "receiver was stopped and started",
        "locator is killed",
        "locator was started again",
        "server is killed",
        "from its disk store",
    ):
        assert what in progress
    assert not directory.exists() and not processes_in(directory)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file_behind(tmp_path, number):
    directory = tmp_path / "work"
    demo = start_demo(directory, "--events", "1000000")
    progress = tmp_path / "progress.txt"
    try:
        eventually(lambda: "Spark generates" in progress.read_text(), what="the start of all processes")
        assert len(processes_in(directory)) > 6
    finally:
        demo.send_signal(number)
    demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 130
    assert progress.read_text().endswith("interrupted: ending all processes\n")
    eventually(lambda: not processes_in(directory), what="the end of all processes")
    assert not directory.exists()


@pytest.mark.parametrize(
    "options, problem",
    [
        (["--topology", "triangle"], "--topology=triangle: choose one of star"),
        (["--operation", "op"], "--operation names a column of --input"),
        (["--input", "/nowhere.csv"], "--input=/nowhere.csv: there is no such file"),
    ],
)
def test_options_that_cannot_be_used_are_refused_at_once(tmp_path, options, problem):
    demo = start_demo(tmp_path / "work", *options)
    demo.communicate(timeout=LIMIT_S)
    assert demo.returncode != 0
    assert problem in (tmp_path / "progress.txt").read_text()
