"""When a benchmark says that something has become slower: never for what noise explains, always for what it does
not. Which files of bench/ run in their smallest form in CI: all. And what that form finds wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.tree import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import gateway_sites
import results
import run as bench

BENCH = Path(bench.__file__).parent


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    def run(before, now, *, more_is_better=False):
        paths = []
        for n, ratios in enumerate((before, now)):
            path = tmp_path / f"quick-x-2026010{n + 1}-000000.jsonl"
            path.unlink(missing_ok=True)
            monkeypatch.setenv(results.FILE, str(path))
            results.note("put", ratios, more_is_better=more_is_better)
            paths.append(path)
        assert results.earlier(paths[1]) == paths[0]
        return results.compare(paths[1], paths[0])

    return run


def test_rounds_that_overlap_with_those_before_are_noise(two_runs):
    assert two_runs([1.0, 1.1, 1.2, 1.6, 1.7], [1.4, 1.5, 1.6, 1.7, 1.9]) == []


def test_one_slow_quarter_of_the_rounds_is_noise(two_runs):
    assert two_runs([1.0] * 8, [1.0] * 6 + [9.0] * 2) == []


def test_a_few_percent_are_noise_even_where_the_rounds_agree(two_runs):
    assert two_runs([1.0] * 8, [1.05] * 8) == []


def test_what_got_slower_in_nearly_all_rounds_is_told(two_runs):
    assert two_runs([1.0, 1.02, 1.05, 1.1], [1.3, 1.32, 1.35, 1.4]) == ["put"]


def test_a_rate_is_slower_when_it_falls(two_runs):
    assert two_runs([0.80, 0.82, 0.81], [0.60, 0.61, 0.62], more_is_better=True) == ["put"]
    assert two_runs([0.60, 0.61, 0.62], [0.80, 0.82, 0.81], more_is_better=True) == []


def test_a_run_is_compared_with_the_last_one_of_its_kind(tmp_path):
    for name in (
        "quick-x-20260101-000000",
        "quick-x-20260102-000000",
        "full-x-20260103-000000",
        "quick-x-20260104-000000",
    ):
        (tmp_path / f"{name}.jsonl").touch()
    assert results.earlier(tmp_path / "quick-x-20260104-000000.jsonl").name == "quick-x-20260102-000000.jsonl"
    assert results.earlier(tmp_path / "quick-x-20260101-000000.jsonl") is None


def test_every_program_of_bench_has_a_smallest_form():
    programs = {program.file for program in bench.PROGRAMS.values()}
    assert not programs & bench.PARTS
    assert {path.name for path in BENCH.glob("*.py")} == programs | bench.PARTS


def _named_by_another(path: Path, others: list[Path]) -> bool:
    word = re.compile(rf"\b{re.escape(path.stem)}\b")
    return any(word.search(other.read_text()) for other in others if other != path)


def test_every_other_file_of_bench_is_used_by_a_program():
    python = sorted(BENCH.glob("*.py"))
    modules = [BENCH / name for name in bench.PARTS - {"run.py", "conftest.py"}]  # `make` and pytest start those.
    files = [*modules, *sorted((BENCH / "c").iterdir()), *sorted((BENCH / "peers").iterdir())]
    users = [path for path in python if path.name != "run.py"] + sorted((BENCH / "c").glob("*.[ch]"))
    assert [str(path.relative_to(BENCH)) for path in files if not _named_by_another(path, users)] == []


OUTPUT = """put, one at a time                     8.61 M/s = 22% of 39.21 M/s (an empty call); to reach: 70%
  put         278 ns an event
| point | measured | ratio |
|---|---|---|
| columns | 809.4 k/s | |
test_piece[put]        18.3 (1.0)
"""


def test_results_are_what_report_and_tables_and_pieces_print():
    lines = OUTPUT.splitlines()
    assert results.rows(OUTPUT) == [lines[0], lines[4], lines[5]]
    assert results.complaints(0, OUTPUT, 3) == []


@pytest.mark.parametrize(
    ("status", "output", "wrong"),
    [
        (1, OUTPUT, "it ended with status 1"),
        (0, OUTPUT.replace("| columns | 809.4 k/s | |\n", ""), "it printed 2 results instead of 3"),
        (0, OUTPUT.replace("809.4 k/s", "nan k/s"), "it has no number: | columns | nan k/s | |"),
        (0, OUTPUT.replace("809.4 k/s", ""), "it has no number: | columns |  | |"),
        (0, OUTPUT.replace("22% of 39.21", "inf% of 0.00"), "it has no number: put, one at a time"),
    ],
)
def test_a_program_that_rots_is_told(status, output, wrong):
    (told,) = results.complaints(status, output, 3)
    assert told.startswith(wrong)


class Replicas:
    """A member that has replicas, as `gateway_sites` asks it."""

    def __init__(self):
        self.digests = {number: number * 7 for number in range(gateway_sites.BUCKETS)}

    def ask(self, what, kind):
        assert (what, kind) == ("digests", "serial")
        return [*self.digests.items()]


def test_a_round_of_gateways_counts_only_if_all_replicas_of_both_sites_are_equal():
    sites = gateway_sites.PywanSites(members=2, events=10)
    sites.sites = [[Replicas(), Replicas()], [Replicas(), Replicas()]]
    sites.check("serial", 1)
    digest = sites.sites[1][1].digests.pop(5)
    with pytest.raises(AssertionError, match=r"the buckets \[5\] of region serial do not have 4 replicas"):
        sites.check("serial", 1)
    sites.sites[1][1].digests[5] = digest + 1
    with pytest.raises(AssertionError, match=r"replicas of the buckets \[5\] of region serial differ"):
        sites.check("serial", 1)
