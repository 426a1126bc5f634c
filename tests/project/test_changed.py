"""Which tests see a change: the rules are complete, name what is there, and keep to their minute."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from changed.files import UnknownBase, changed_files
from changed.rules import BUDGET_S, ROOT, RULES, SECONDS, Rule, Tree, read_rules
from changed.run import run_choice
from simulator import WORLDS
from site_simulation.kinds import KINDS

pytestmark = pytest.mark.lint

TREE = Tree()
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines() or [
    str(path.relative_to(ROOT)) for folder in ("csrc", "pywan", "docs") for path in (ROOT / folder).rglob("*.*")
]
SOURCES = [file for file in LISTED if file.startswith(("csrc/", "pywan/"))]


def chosen_for(*files: str) -> set[str]:
    return set(TREE.choose(files).tests)


def test_every_folder_of_the_source_has_a_rule_of_its_own():
    folders = {str(Path(file).parent) for file in SOURCES}
    assert folders - {rule.room for rule in TREE.rules} == set(), f"say in {RULES} what sees a change there"


@pytest.mark.parametrize("rule", TREE.rules, ids=lambda rule: rule.room)
def test_a_rule_names_rooms_tests_and_worlds_that_are_there(rule):
    assert (ROOT / rule.room).exists()
    for test in rule.tests:
        name, _, single = test.partition("::")
        assert name in TREE.tests
        assert not single or f"def {single.partition('[')[0]}(" in (ROOT / TREE.tests[name]).read_text()
    for world, seeds in rule.worlds:
        module, _, kind = world.partition("/")
        assert seeds > 0 and kind in {"simulator": ["", *WORLDS], "site_simulation": ["", *KINDS]}[module]


def test_the_choice_for_one_file_takes_a_minute_at_most():
    over = {}
    for file in LISTED:
        choice = TREE.choose([file])
        alone = len(choice.tests) == 1 and not choice.worlds and not choice.c_tests  # A test may take longer by itself.
        if TREE.seconds_of(choice) > BUDGET_S and not alone:
            over[file] = TREE.seconds_of(choice)
    assert over == {}


def test_seconds_are_of_what_is_there_and_each_world_of_a_rule_has_some():
    measured = set(json.loads((ROOT / SECONDS).read_text()))
    assert {name for name in measured if name.startswith("test_")} <= set(TREE.tests)
    assert {"tests/c", *(world for rule in TREE.rules for world, _ in rule.worlds)} <= measured


def test_a_changed_test_runs_itself_and_nothing_else():
    assert chosen_for("tests/replication/test_repl_link.py") == {"test_repl_link"}


def test_a_changed_document_runs_the_tests_of_the_documents():
    assert "test_documents" in chosen_for("docs/operations.md") & chosen_for("README.md") & chosen_for(
        "docs/decisions/x.md"
    )


def test_a_changed_module_runs_what_its_folder_and_the_folders_around_it_say_and_the_test_of_its_name():
    rules = {rule.room: rule for rule in TREE.rules}
    chosen = chosen_for("pywan/cli/commands/no_such_file.py")
    assert chosen == {*rules["pywan"].tests, *rules["pywan/cli"].tests, *rules["pywan/cli/commands"].tests}
    assert "test_membership" in chosen_for("pywan/anywhere/membership.py")


def test_a_changed_helper_runs_the_tests_that_import_it_also_by_other_helpers():
    assert chosen_for("tests/support/linearizability.py") >= {"test_linearizability"}
    assert "test_order_of_threads" in {
        *TREE.choose(["tests/support/shared_site.py"]).tests,
        *TREE.choose(["tests/support/shared_site.py"]).left_out,
    }


def test_a_change_of_c_runs_the_c_tests():
    assert TREE.choose(["csrc/store/wan_queue.c"]).c_tests and TREE.choose(["tests/c/test_queue.c"]).c_tests
    assert not TREE.choose(["pywan/gateway/lag.py"]).c_tests


def test_several_files_run_what_each_of_them_needs():
    both = ("docs/tls.md", "pywan/gateway/lag.py")
    assert chosen_for(*both) == chosen_for(both[0]) | chosen_for(both[1])


def test_a_file_that_no_rule_covers_is_named():
    assert TREE.choose(["somewhere/else.txt"]).unknown == ["somewhere/else.txt"]


def test_tests_that_import_a_module_come_only_while_the_minute_has_room():
    choice = TREE.choose(["tests/support/records.py"])
    assert choice.tests and choice.left_out and TREE.seconds_of(choice) <= BUDGET_S


@pytest.fixture
def clone(tmp_path):
    """A repository whose branch left main one commit ago."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q", "-b", "main")
    for name in ("kept", "edited", "removed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-qm", "first")
    git("switch", "-qc", "work")
    (tmp_path / "committed").write_text("new")
    git("add", ".")
    git("commit", "-qm", "second")
    return tmp_path


def test_changed_files_are_those_committed_since_main_edited_removed_and_new(clone):
    (clone / "edited").write_text("otherwise")
    (clone / "removed").unlink()
    (clone / "new file").write_text("untracked")
    assert changed_files(clone, "") == ["committed", "edited", "new file", "removed"]
    assert changed_files(clone, "HEAD") == ["edited", "new file", "removed"]


def test_a_base_that_is_not_there_is_refused_by_its_name(clone):
    with pytest.raises(UnknownBase, match="no-such-branch"):
        changed_files(clone, "no-such-branch")


@pytest.mark.nightly  # A whole run of a tool that seldom changes.
def test_a_choice_that_fails_names_the_test_and_how_it_runs_again(tmp_path, capfd):
    (tmp_path / "tests/changed").mkdir(parents=True)
    (tmp_path / "tests/changed/rules.toml").write_text('[src]\ntests = ["test_a", "test_b"]\n')
    (tmp_path / "tests/changed/seconds.json").write_text("{}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    (tmp_path / "tests/test_a.py").write_text("def test_holds():\n    assert True\n")
    (tmp_path / "tests/test_b.py").write_text("def test_is_broken():\n    assert False\n")
    tree = Tree(tmp_path)
    assert tree.rules == read_rules(tmp_path / "tests/changed/rules.toml") == [Rule("src", ("test_a", "test_b"))]
    failures, _ = run_choice(tree.choose(["src/x.py"]), tmp_path)
    assert [failure.what for failure in failures] == ["tests/test_b.py::test_is_broken"]
    assert failures[0].again[-1] == "tests/test_b.py::test_is_broken"
    assert run_choice(tree.choose(["tests/test_a.py"]), tmp_path)[0] == []
    capfd.readouterr()
