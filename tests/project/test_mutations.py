"""The patches that take pieces of the product out: each applies to the tree, and the command names them, and says which
check sees the loss."""

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

pytestmark = pytest.mark.lint

MUTATIONS = read_mutations()


# The command copies the tree and starts pytest for each patch, once with the piece and once without it.
RUNS_LIMIT_S = 10 * LIMIT_S


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.mutations", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUNS_LIMIT_S,
    )


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_every_patch_applies_to_the_tree_and_says_what_it_takes_out(mutation):
    assert apply_patch(mutation, ROOT, "--check") == ""
    assert mutation.about[0].isupper() and mutation.about.endswith(".")


def test_the_list_names_all_patches():
    told = run("--list").stdout.splitlines()
    assert [each.partition(":")[0] for each in told] == sorted(path.stem for path in FOLDER.glob("*.patch"))


def test_a_patch_that_does_not_apply_is_refused_by_its_name(tmp_path):
    patch = (FOLDER / "read-leases-end.patch").read_text().replace("if not missing", "if not there at all")
    (tmp_path / "of-yesterday.patch").write_text(patch)
    done = run("--folder", str(tmp_path))
    assert done.returncode == 2
    assert "mutation of-yesterday does not apply to this tree" in done.stderr and not done.stdout


@pytest.mark.nightly  # A whole run of a tool that seldom changes.
def test_a_loss_that_no_check_sees_is_told_and_fails(tmp_path):
    write(tmp_path, "nothing", "Nothing is taken out.", "+NOTHING = 0")
    done = tried(tmp_path, "--seeds", "2")
    assert done.returncode == 1
    assert "| `nothing` | `pywan` | Nothing is taken out. | not seen in 2 seeds |" in done.stdout


def write(folder: Path, name: str, head: str, line: str) -> None:
    """Writes a patch that adds a file with one line."""
    patch = f"{head}\n\n--- /dev/null\n+++ b/pywan/nothing.py\n@@ -0,0 +1 @@\n{line}\n"
    (folder / f"{name}.patch").write_text(patch)


def tried(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run("--folder", str(folder), "--results", str(folder / "results.json"), *options)


def table_of(told: str) -> dict[str, list[str]]:
    """Returns the rows of a table by the names of the mutations."""
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.nightly  # A whole run of a tool that seldom changes.
def test_a_test_that_a_patch_names_is_run_with_the_piece_and_without_it(tmp_path):
    the_rows = "tests/project/test_architecture.py -k every_name_in_the_table"
    write(tmp_path, "seen", f"A file has no row.\nTest: {the_rows}", "+SEEN = 0")
    write(tmp_path, "not-seen", "Nothing is taken out.\nTest: tests/base/test_clock.py -x", "+NOT_SEEN = 0")
    write(
        tmp_path, "no-test", "Nothing is taken out.\nTest: tests/base/test_clock.py -k nobody_has_written_it", "+NO = 0"
    )
    done = tried(tmp_path)
    rows = table_of(done.stdout)
    assert done.returncode == 1 and "3 mutations, 2 not seen: no-test, not-seen" in done.stdout
    assert rows["seen"][2].startswith("`test_architecture`: every name in the table")
    assert rows["not-seen"][2] == "not seen by `tests/base/test_clock.py -x`"
    assert rows["no-test"][2].startswith("with nothing taken out: ")
    assert float(rows["seen"][3]) > 0 and float(rows["not-seen"][3]) > 0
    assert table_of(tried(tmp_path, "--table").stdout) == rows
    write(tmp_path, "seen", f"A file has no row, and it is another one.\nTest: {the_rows}", "+SEEN = 0")
    assert table_of(tried(tmp_path, "--table", "seen").stdout)["seen"][2:] == ["not tried yet", ""]


def test_a_mutation_that_is_not_there_is_refused_by_its_name():
    done = run("read-leases-end", "all-of-it")
    assert done.returncode == 2 and "there is no mutation all-of-it" in done.stderr


def test_each_quick_mutation_has_its_day():
    quick = {each.name for each in MUTATIONS if not each.not_seen and (each.test or not each.needs_build)}
    days = [of_the_day(MUTATIONS, day) for day in range(1, 367)]
    assert {each.name for some in days for each in some} == quick
    assert all(len({each.name for each in some}) == OF_A_DAY for some in days)


def test_an_end_before_its_time_leaves_nothing_behind(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.mutations", "--seeds", "1000000", "read-leases-end"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: any(Path(tmp_path).glob("pywan-mutations-*/read-leases-end/pywan/errors.py")))
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert child.returncode == 130 and told == "ended: nothing is left behind\n"
    assert list(tmp_path.iterdir()) == []
