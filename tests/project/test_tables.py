"""The tables of the documents are those of the code (`make tables` writes them)."""

from __future__ import annotations

import pytest

import tables

pytestmark = pytest.mark.lint

MARKED = [(page, title, text) for page in tables.PAGES for title, text in tables.tables_of(page.read_text())]


@pytest.mark.parametrize("page, title, text", MARKED, ids=[title for _, title, _ in MARKED])
def test_a_table_of_the_documents_says_what_the_code_has(page, title, text):
    assert text == tables.made(title), f"{page.name}: the table `{title}` is another one now: run `make tables`"


def test_each_kind_of_table_is_in_some_document():
    assert {head for head in tables.MAKERS if not any(title.startswith(head) for _, title, _ in MARKED)} == set()
    assert {f"attributes of {kind}" for kind in tables.THINGS} <= {title for _, title, _ in MARKED}
