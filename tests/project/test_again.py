"""A test that fails gets one more run, alone. What passes then stops nobody and is named; anything else stops."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

import again

pytestmark = pytest.mark.nightly  # Whole runs of pytest, of a tool that seldom changes.

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert 1 == 2\n"
ONCE = """
import pathlib
def test_once():
    been = pathlib.Path(__file__).with_name("been")
    seen = been.exists()
    been.touch()
    assert seen, "it is the first time"
"""
ENDS_ONCE = """
import os, pathlib
def test_ends_once():
    been = pathlib.Path(__file__).with_name("been")
    if not been.exists():
        been.touch()
        os._exit(1)
"""
COLLECTED_ONCE = """
import pathlib
been = pathlib.Path(__file__).with_name("been")
if not been.exists():
    been.touch()
    raise ValueError("it is the first time")
def test_collected_once(): pass
"""
# The worker ends when all its tests have passed.
ENDS_WITHOUT_A_TEST = """
import os
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        os._exit(1)
"""


TODAY = f"{datetime.date.today()}"
WORKERS = ["-p", "xdist.plugin", "-n", "2"]


class Suite:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "build" / "unsteady"
        (folder / "pytest.ini").write_text("[pytest]\n")

    def run(self, *arguments: str, **modules: str) -> tuple[int, str]:
        """Returns the exit status and the output of a run of these modules."""
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)
        return self._call(str(self.file), "-q", "-p", "no:cacheprovider", *arguments)

    def say(self) -> str:
        return self._call("--say", str(self.file))[1]

    def unsteady(self) -> list[str]:
        """The tests that the last lines name."""
        return [each.name for each in again.read(self.say().partition("has this output:\n")[2].replace(again.MARK, ""))]

    def keep(self, file: Path) -> str:
        """The list after what is in a file was added to it."""
        self._call("--keep", str(file), str(self.folder / "list"))
        return (self.folder / "list").read_text()

    def _call(self, *arguments: str) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Plugins that nobody needs here take most of the time.
        done = subprocess.run(
            [sys.executable, again.__file__, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@pytest.fixture(params=["one process", "workers"])
def workers(request: pytest.FixtureRequest) -> list[str]:
    return WORKERS if request.param == "workers" else []


def test_a_run_in_which_all_pass_says_nothing(suite, workers):
    assert suite.run(*workers, test_a=GOOD)[0] == 0
    assert suite.say() == ""


def test_a_test_that_fails_once_stops_nobody_and_is_named_with_its_first_failure(suite, workers):
    assert suite.run(*workers, test_a=GOOD, test_b=ONCE)[0] == 0
    said = suite.say()
    assert "it is the first time" in said
    assert said.splitlines()[-1] == f"unsteady | test_b.py::test_once | {TODAY} | AssertionError: it is the first time"


def test_the_list_has_the_tests_of_all_runs(suite):
    suite.run(test_b=ONCE)
    (suite.folder / "been").unlink()
    suite.run("test_c.py", test_c=ONCE)
    assert suite.unsteady() == ["test_b.py::test_once", "test_c.py::test_once"]


def test_a_test_that_fails_twice_stops(suite, workers):
    status, output = suite.run(*workers, test_a=GOOD, test_b=ONCE, test_c=BAD)
    assert status == 1
    assert "test_c.py::test_bad runs once more" in output
    assert suite.unsteady() == ["test_b.py::test_once"]


def test_a_test_that_ends_its_worker_once_is_named(suite):
    assert suite.run(*WORKERS, test_a=GOOD, test_b=ENDS_ONCE)[0] == 0
    assert suite.unsteady() == ["test_b.py::test_ends_once"]


@pytest.mark.parametrize(
    "modules",
    [
        {"test_b": COLLECTED_ONCE},
        {"test_b": ONCE, "conftest": "def pytest_runtest_logreport(report): raise ValueError('a bug')"},
        {"test_b": ONCE, "conftest": "an error of syntax"},
    ],
    ids=["collection", "internal error", "conftest"],
)
def test_what_is_no_failure_of_a_test_stops_at_once(suite, workers, modules):
    status, output = suite.run(*workers, test_a=GOOD, **modules)
    assert status != 0
    assert "runs once more, alone" not in output
    assert suite.say() == ""


def test_a_worker_that_ends_without_a_test_stops_at_once(suite):
    status, output = suite.run(*WORKERS, test_a=GOOD, test_b=ONCE, conftest=ENDS_WITHOUT_A_TEST)
    assert status != 0
    assert "runs once more, alone" not in output


def test_no_test_runs_again_if_many_fail(suite):
    many = f"import pytest\n@pytest.mark.parametrize('n', range({again.AGAIN_MAX + 1}))\ndef test_many(n): assert 0\n"
    status, output = suite.run(test_b=many)
    assert status == 1
    assert "runs once more, alone" not in output


def test_no_tests_at_all_stop(suite):
    assert suite.run()[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_what_is_unsteady_is_kept_with_each_day_on_which_it_failed(suite):
    (suite.folder / "list").write_text(
        "# a comment\ntest_b.py::test_once | 2026-01-02 | KeyError: 1\nother | 2026-01-03 | x\n"
    )
    suite.run(test_b=ONCE)
    assert suite.keep(suite.file) == (
        f"# a comment\ntest_b.py::test_once | 2026-01-02 {TODAY} | AssertionError: it is the first time\n"
        "other | 2026-01-03 | x\n"
    )


def test_what_failed_three_times_is_there_too_often(suite):
    for times in (1, 2, 3):
        (suite.folder / "been").unlink(missing_ok=True)
        suite.file.unlink(missing_ok=True)
        suite.run(test_b=ONCE)
        (kept,) = again.read(suite.keep(suite.file))
        assert bool(again.too_often([kept])) == (times == 3)


def test_the_output_of_a_run_keeps_what_its_file_does(suite):
    suite.run(test_b=ONCE)
    output = suite.folder / "output"
    output.write_text(f"=== all: 3 s\n{suite.say()}")
    assert suite.keep(output) == f"test_b.py::test_once | {TODAY} | AssertionError: it is the first time\n"
