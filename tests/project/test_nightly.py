"""A night goes on over what fails, keeps the seeds that failed, stays within its time, and leaves no process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import again
import failing_seeds
import nightly
from failing_seeds import Command
from nightly import (
    COUNTED,
    PAGE,
    PARTS,
    Failure,
    Night,
    Outcome,
    Part,
    Said,
    Seeds,
    Share,
    Trial,
    add_row,
    configurations,
    fuzz_core,
    fuzz_primitives,
    fuzz_python,
    long_tests,
    mutants,
    of_a_seed,
    report,
    simulator,
    site_simulation,
)
from pywan.testing.waiting import LIMIT_S, eventually

FOLDER = Path(nightly.__file__).parent
FAILS = "import sys; sys.exit('lost k')"
REPEATED = ("crash", "--seed 7")


def program(code: str) -> Command:
    return Command([sys.executable, "-c", code], FOLDER, {})


def part(name: str, code: str, minutes: float = 1.0) -> Part:
    """One trial, which runs this code. Its failure is a seed of the crash campaign."""

    def trials(seeds: Seeds, share: Share) -> Iterator[Trial]:
        yield Trial(program(code), of_a_seed(REPEATED[0], REPEATED[1].split(), 5).outcome_of)

    return Part(name, minutes, "rounds", trials)


def night_of(folder: Path, *parts: Part, minutes: float = 1.0) -> Night:
    night = Night(minutes, 7_000, folder / "logs")
    night.run(list(parts))
    return night


def test_a_part_that_fails_stops_no_other_and_fails_the_night(tmp_path):
    night = night_of(tmp_path, part("bad", FAILS), part("good", ""))
    done = [(total.part.name, total.count, total.failures) for total in night.totals]
    assert done == [("bad", 5, [Failure("lost k", REPEATED)]), ("good", 5, [])]
    assert report(night, tmp_path / "seeds") == 1
    assert (tmp_path / "logs" / "bad-1.errors").read_text() == "lost k\n"


def test_a_night_without_a_failure_ends_well(tmp_path):
    assert report(night_of(tmp_path, part("good", "")), tmp_path / "seeds") == 0


def test_seeds_that_failed_are_kept_with_what_repeats_them(tmp_path):
    report(night_of(tmp_path, part("bad", FAILS)), tmp_path / "seeds")
    (kept,) = failing_seeds.read(tmp_path / "seeds")
    assert (kept.kind, kept.arguments, kept.failure) == (*REPEATED, "lost k")


def test_failures_are_noted_as_unsteady_if_that_is_asked_for(tmp_path):
    assert report(night_of(tmp_path, part("bad", FAILS)), tmp_path / "seeds", tmp_path / "unsteady") == 0
    assert [(name, words) for name, _, words in again.noted(tmp_path / "unsteady")] == [(" ".join(REPEATED), "lost k")]
    assert not (tmp_path / "seeds").exists()


def test_a_trial_without_an_end_fails_and_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, "NO_END_S", 0.5)
    night = night_of(tmp_path, part("hangs", "import time; time.sleep(600)"), minutes=0.01)
    (failure,) = night.failures
    assert failure.words.startswith("it has no end within") and failure.seed == REPEATED


def test_what_a_trial_has_said_counts_when_it_is_ended_at_its_time(tmp_path):
    said = [
        "   1.0 s  local-fence: seen in 0.3 s: seed 1: history of a key",
        "   2.0 s  late-calls: seen in 0.4 s: `test_calls`: a late call",
        "   3.0 s  leaving: NOT SEEN in 9.0 s: not seen in 500 seeds",
    ]

    def trials(seeds: Seeds, share: Share) -> Iterator[Trial]:
        slow = program(f"import time; print(*{said!r}, sep='\\n', flush=True); time.sleep(600)")
        yield Trial(slow, next(mutants(seeds, share)).outcome_of, enough_s=3.0)

    night = night_of(tmp_path, Part("mutants", 1.0, "mutants", trials))
    assert night.counted("mutants") == 3
    assert [each.words for each in night.failures] == ["mutant leaving: NOT SEEN in 9.0 s: not seen in 500 seeds"]


def test_each_part_gets_its_share_of_what_is_left_and_trials_follow_until_it_is_over(tmp_path):
    shares = {}

    def trials_of(name: str) -> Callable[[Seeds, Share], Iterator[Trial]]:
        def trials(seeds: Seeds, share: Share) -> Iterator[Trial]:
            shares[name] = share.left_s
            while True:
                yield Trial(program(""), lambda said: Outcome(1, []))

        return trials

    parts = [Part(name, minutes, "seeds", trials_of(name)) for name, minutes in (("a", 1), ("b", 2))]
    night = night_of(tmp_path, *parts, minutes=0.1)
    assert 1.5 < shares["a"] < 2.0 < shares["b"] < 6.0
    assert night.counted("seeds") == sum(total.trials for total in night.totals) > 2


def test_a_part_tries_something_though_its_time_is_over(tmp_path):
    night = night_of(tmp_path, part("a", ""), part("b", ""), minutes=0.0)
    assert [total.count for total in night.totals] == [5, 5]


NIGHT = """
import sys
from pathlib import Path
import nightly
from failing_seeds import Command
from nightly import Outcome, Part, Trial
code, folder = sys.argv.pop(), Path(sys.argv.pop())
def trials(seeds, share):
    yield Trial(Command([sys.executable, "-c", ""], folder, {}), lambda said: Outcome(3, []))
    yield Trial(Command([sys.executable, "-c", code], folder, {}), lambda said: Outcome(4, []))
sys.exit(nightly.main((Part("whole", 1, "rounds", trials),), folder / "logs", folder / "seeds"))
"""
# A child, and one of its own that heeds no signal and is in another session.
CHILDREN = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_night_tells_its_totals_and_leaves_no_process(tmp_path, number):
    log = tmp_path / "logs" / "whole-2.log"
    child = subprocess.Popen(
        [sys.executable, "-c", NIGHT, str(tmp_path), CHILDREN],
        cwd=FOLDER,
        env={**os.environ, "NIGHT": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: log.exists() and "begun" in log.read_text(), what="a child of the child")
        assert len(processes_of(tmp_path)) == 3
        child.send_signal(number)
        told, _ = child.communicate(timeout=LIMIT_S)
        assert processes_of(tmp_path) == set()
    finally:
        for each in processes_of(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    assert child.returncode == 130
    assert re.search(r"^whole +3 rounds +\d+ +0$", told, re.MULTILINE)


def processes_of(folder: Path) -> set[int]:
    """Those that have the test's folder in their environment."""
    found = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"NIGHT={folder}\0".encode() in environment.read_bytes():
                found.add(int(environment.parent.name))
    return found


# What programs say


def outcome(trials: Callable[[Seeds, Share], Iterator[Trial]], said: Said) -> Outcome:
    return next(trials(Seeds(1), Share(60.0))).outcome_of(said)


@pytest.mark.parametrize(
    ("trials", "said", "expected"),
    [
        (
            simulator,
            Said(
                1,
                "300 simulations, 2 failed, 9.1 s; 7 pump\nfailed: network 12, machines 123\n",
                "seed 123, step 4: lost\nbefore that:\n  put\nseed 12, step 8: twice\nbefore that:\n",
            ),
            Outcome(
                300,
                [
                    Failure("seed 12, step 8: twice", ("simulator", "--world network --seed 12")),
                    Failure("seed 123, step 4: lost", ("simulator", "--world machines --seed 123")),
                ],
            ),
        ),
        (
            site_simulation,
            Said(1, "100 simulations, 1 failed, 9.1 s\n", "seed 12 at 1.500 s: lost\nbefore that:\n  put\n"),
            Outcome(100, [Failure("seed 12 at 1.500 s: lost", ("site_simulation", "--first 12 --seeds 1"))]),
        ),
        (
            configurations,
            Said(
                1,
                "FAILED tests/config/test_configuration_model.py::test_after[12] - AssertionError: data\n"
                "1 failed, 9 passed\n",
                "",
            ),
            Outcome(10, [Failure("AssertionError: data", ("configuration_model", "12"))]),
        ),
        (
            mutants,
            Said(
                1,
                "  14.5 s  local-fence: seen in 2.0 s: seed 1: history of a key\n"
                "  20.1 s  late-calls: seen in 4.0 s: `test_calls`: a late call\n"
                " 167.4 s  controller-epochs: NOT SEEN in 99.0 s: not seen in 500 seeds\n\n"
                "| `local-fence` | Lost. | seed 1: history of a key |\n\n3 mutations, 1 not seen: controller-epochs\n",
                "",
            ),
            Outcome(3, [Failure("mutant controller-epochs: NOT SEEN in 99.0 s: not seen in 500 seeds")]),
        ),
        (
            fuzz_primitives,
            Said(
                2,
                "fuzz_log: seed 5\nfuzz_log: 64 runs\nfuzz_table: 1 runs\n",
                "==1==ERROR: AddressSanitizer: heap\n\nfuzz_form failed; repeat with FUZZ_SEED=7 FUZZ_RUNS=1\n",
            ),
            Outcome(
                65,
                [Failure("==1==ERROR: AddressSanitizer: heap", ("fuzz", "FUZZERS=form FUZZ_SEED=7 FUZZ_RUNS=1"))],
            ),
        ),
        (
            fuzz_core,
            Said(0, "fuzz_core repl_link: 12 runs from seed 3 in 2 s\n", ""),
            Outcome(12, [], "without sanitizers: no time"),
        ),
        (
            fuzz_python("fuzz_control"),
            Said(
                1,
                "control messages: seed 9\n",
                'run 4 of seed 9: X\nrepeat with: make fuzz-python ARGS="--seed 9 --runs 5"',
            ),
            Outcome(0, [Failure("run 4 of seed 9: X", ("fuzz_control", "--seed 9 --runs 5"))]),
        ),
        (
            long_tests,
            Said(
                1,
                "SKIPPED [3] tests/conftest.py:99: there is no time\nFAILED tests/test_a.py::test_b[1 2] - assert 0\n"
                "1 failed, 4 passed, 3 skipped in 1 s\n",
                "make: *** Error 1\n",
            ),
            Outcome(4, [Failure("tests/test_a.py::test_b[1 2]: assert 0")], "3 left out: no time"),
        ),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_what_a_program_says_is_counted_and_its_failures_are_found(trials, said, expected):
    assert outcome(trials, said) == expected


@pytest.mark.parametrize("each", PARTS, ids=lambda each: each.name)
def test_a_program_that_ends_without_a_word_has_failed(each):
    assert outcome(each.trials, Said(-9, "", "")).failures == [
        Failure("it ended with status -9", *([given] if (given := seed_of(each)) else []))
    ]
    assert not outcome(each.trials, Said(0, "", "")).failures


def seed_of(each: Part) -> tuple[str, str] | None:
    """Campaigns have a seed for each trial, so it is known."""
    return outcome(each.trials, Said(-9, "", "")).failures[0].seed if each.counts == "rounds" else None


# What is written


def test_a_row_is_added_at_the_end_of_the_table_of_the_page(tmp_path):
    row = night_of(tmp_path, part("good", "")).row()
    before, after = PAGE.read_text(), add_row(PAGE.read_text(), row)
    assert after.replace(f"{row}\n", "") == before
    heads = before[: before.index(nightly.HEAD)].count("\n")
    rows = after.splitlines()[heads:]
    assert row in rows[: rows.index("") if "" in rows else len(rows)][-1]
    assert len(row.split("|")) == len(nightly.HEAD.split("|")) == len(COUNTED) + 6
