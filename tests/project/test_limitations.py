"""What is not in this version is said in pywan/limitations.py only, and in docs/limitations.md, which is made of it."""

from __future__ import annotations

import re

import pytest

import tables
from pywan.limitations import Limitation

pytestmark = pytest.mark.lint

DOCS = tables.ROOT / "docs"
OWNER = tables.ROOT / "pywan" / "limitations.py"
SOURCES = [
    path
    for folder, endings in (("pywan", (".py", ".pyi", ".pyx", ".pxd")), ("csrc", (".c", ".h")))
    for path in sorted((tables.ROOT / folder).rglob("*"))
    if path.suffix in endings and path != OWNER
]
# Between two words there may be the end of a line, of a comment or of a string.
SAID = re.compile(r"""\bin["'#*/\sf]+this["'#*/\sf]+version\b""", re.IGNORECASE)


@pytest.mark.parametrize(
    "text", ["In this version", 'in"\n    " this version', 'in this"\n    f" version', "in\n# this version"]
)
def test_the_words_are_found_over_the_ends_of_lines(text):
    assert SAID.search(text)


def test_no_other_source_says_what_is_not_in_this_version():
    assert len(SOURCES) > 300
    for path in SOURCES:
        found = SAID.search(path.read_text())
        assert not found, f"{path.relative_to(tables.ROOT)}: {found[0]!r}: take the words from pywan/limitations.py"


def test_no_other_page_says_what_is_not_in_this_version():
    for path in tables.PAGES:
        if path.parent.name == "decisions" or path.name == "limitations.md":
            continue  # A decision says what was true when it was made.
        text = re.sub(r"<!-- table: .*?<!-- end -->|\| not in this version[ :]", "", path.read_text(), flags=re.DOTALL)
        found = SAID.search(text)
        assert not found, f"{path.name}: {found[0]!r}: name docs/limitations.md instead"


@pytest.mark.parametrize("each", Limitation)
def test_the_page_that_says_more_names_the_limitations(each):
    assert "limitations.md)" in (DOCS / each.page.partition("#")[0]).read_text()
    assert f"<!-- table: limitations of {each.topic} -->" in (DOCS / "limitations.md").read_text()


def test_what_a_conformance_list_leaves_out_is_a_limitation():
    names = {each.name.lower().replace("_", " ") for each in Limitation}
    rows = [
        (path.name, thing.lower())
        for path in sorted((DOCS / "conformance").glob("*.md"))
        for thing in re.findall(r"\| not in this version: ([^|]*) \|", path.read_text())
    ]
    assert len(rows) > 100
    for name, thing in rows:
        assert thing in names, f"{name} names {thing!r}, and pywan/limitations.py does not"
