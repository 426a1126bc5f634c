"""Each list of C tests is run: a file whose list is not in `main` passes whatever it says."""

from __future__ import annotations

import re

import pytest

from support.tree import TESTS

pytestmark = pytest.mark.lint

FOLDER = TESTS / "c"


def test_the_program_runs_every_list_of_c_tests():
    lists = [
        name
        for file in FOLDER.glob("*.c")
        for name in re.findall(r"^const test_case (\w+)\[\]", file.read_text(), re.M)
    ]
    run = re.search(r"\*all\[\] = \{(.*?)\}", (FOLDER / "test_primitives.c").read_text(), re.S)
    assert run is not None and sorted(re.findall(r"\w+", run[1])) == sorted(lists)
