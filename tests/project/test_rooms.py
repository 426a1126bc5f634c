"""Where the tests are: in rooms that docs/testing.md lists, each name once; and no test imports from another one."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from changed.rules import imports_of
from support.tree import ROOT, TESTS

pytestmark = pytest.mark.lint

FILES = sorted(TESTS.rglob("test_*.py"))


def test_each_test_is_in_a_room_that_the_page_lists_and_each_room_has_tests():
    section = (ROOT / "docs" / "testing.md").read_text().partition("\n## Where a test goes\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {str(file.parent.relative_to(TESTS)) for file in FILES} == set(listed)


def test_a_file_name_is_in_one_room():
    """pytest, the measured seconds and the choice of tests know a file by its name alone."""
    assert [name for name, count in Counter(file.name for file in FILES).items() if count > 1] == []


def test_nobody_imports_from_a_test_file_or_a_conftest():
    tests = {file.stem for file in FILES} | {"conftest"}
    wrong = {
        str(file.relative_to(TESTS)): sorted(found)
        for file in sorted(TESTS.rglob("*.py"))
        if (found := imports_of(file) & tests)
    }
    assert wrong == {}, "put what several tests share into tests/support, and fixtures of a room into its conftest.py"
