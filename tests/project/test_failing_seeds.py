"""What has failed by a seed holds now, each line of `failing_seeds.txt` again. And no test or seed is left unsteady for
long.
"""

from __future__ import annotations

import subprocess

import pytest

import again
import failing_seeds
from failing_seeds import CONFIGURATIONS, FUZZ, PROGRAMS, FailingSeed, command_of

LIMIT_S = 280  # Less than a test may take.


@pytest.mark.parametrize(
    "failed",
    [
        pytest.param(each, marks=[] if each.is_quick else [pytest.mark.long], id=each.name)
        for each in failing_seeds.read()
    ],
)
def test_what_has_failed_by_a_seed_holds_now(failed):
    command = command_of(failed.kind, failed.arguments.split())
    done = subprocess.run(
        command.words, cwd=command.folder, env=command.environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{failed}\n{done.stdout}{done.stderr}"


def test_a_seed_that_fails_is_noticed(tmp_path):
    """The commands are the right ones: each takes its arguments, and refuses others."""
    for kind in PROGRAMS:
        command = command_of(kind, ["--help"])
        done = subprocess.run(
            command.words, cwd=command.folder, env=command.environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and "--seed" in done.stdout, kind


def test_a_seed_is_added_once_and_read_as_it_was_added(tmp_path):
    file = tmp_path / "seeds.txt"
    file.write_text("# a comment\n")
    first = FailingSeed("crash", "--seed 7 --world 2 --rounds 5", "2026-11-29", "round 3: it | lost k")
    second = FailingSeed("simulator", "--world machines --seed 12", "2026-11-30", "seed 12: lost")
    failing_seeds.add([first, second, first], file)
    failing_seeds.add([first._replace(day="2026-12-01")], file)
    assert failing_seeds.read(file) == [first, second]
    assert not first.is_quick and second.is_quick


def test_a_kind_that_is_not_there_is_refused_by_its_name():
    assert command_of(FUZZ, ["FUZZERS=log"]).words[0] == "make"
    assert command_of(CONFIGURATIONS, ["7"]).more == {"CONFIGURATION_SEEDS": "7"}
    with pytest.raises(KeyError, match="no kind crush"):
        command_of("crush", [])


def test_no_test_and_no_seed_stays_unsteady():
    too_often = again.too_often(again.read(again.LIST.read_text()))
    assert not too_often, "mend each of these, or its test:\n" + "\n".join(map(str, too_often))
