"""The patches that take pieces of the protocol of a site out: each applies to the tree, and the command names them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mutations.__main__ import OF_A_DAY, of_the_day
from mutations.patches import FOLDER, ROOT, apply_patch, read_mutations
from pywan.testing.waiting import LIMIT_S, eventually

MUTATIONS = read_mutations()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.mutations", *options], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_every_patch_applies_to_the_tree_and_says_what_it_takes_out(mutation):
    assert apply_patch(mutation, ROOT, "--check") == ""
    assert mutation.about[0].isupper() and mutation.about.endswith(".")


def test_the_list_names_all_patches():
    told = run("--list").stdout.splitlines()
    assert [each.partition(":")[0] for each in told] == sorted(path.stem for path in FOLDER.glob("*.patch"))


def test_a_patch_that_does_not_apply_is_refused_by_its_name(tmp_path):
    patch = (FOLDER / "promises.patch").read_text().replace("if not missing", "if not there at all")
    (tmp_path / "of-yesterday.patch").write_text(patch)
    done = run("--folder", str(tmp_path))
    assert done.returncode == 2
    assert "mutation of-yesterday does not apply to this tree" in done.stderr and not done.stdout


def test_a_loss_that_no_check_sees_is_told_and_fails(tmp_path):
    patch = "Nothing is taken out.\n\n--- /dev/null\n+++ b/pywan/nothing.py\n@@ -0,0 +1 @@\n+NOTHING = 0\n"
    (tmp_path / "nothing.patch").write_text(patch)
    done = run("--folder", str(tmp_path), "--seeds", "2")
    assert done.returncode == 1
    assert "| `nothing` | Nothing is taken out. | not seen in 2 seeds |" in done.stdout


def test_a_mutation_that_is_not_there_is_refused_by_its_name():
    done = run("promises", "all-of-it")
    assert done.returncode == 2 and "there is no mutation all-of-it" in done.stderr


def test_each_quick_mutation_has_its_day():
    quick = {each.name for each in MUTATIONS if not each.is_compiled and not each.not_seen}
    days = [of_the_day(MUTATIONS, day) for day in range(1, 367)]
    assert {each.name for some in days for each in some} == quick
    assert all(len({each.name for each in some}) == OF_A_DAY for some in days)


def test_an_end_before_its_time_leaves_nothing_behind(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.mutations", "--seeds", "1000000", "promises"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: any(Path(tmp_path).glob("pywan-mutations-*/promises/pywan/errors.py")))
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert child.returncode == 130 and told == "ended: nothing is left behind\n"
    assert list(tmp_path.iterdir()) == []
