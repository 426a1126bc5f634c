"""When a benchmark says that something has become slower: never for what noise explains, always for what it does
not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import results


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
