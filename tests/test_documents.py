"""Numbers in the documents are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    path.read_text()
    for pattern in ("pywan/**/*.py", "pywan/_core/*.pyx", "pywan/_core/*.pxd", "csrc/*/*.h")
    for path in sorted(ROOT.glob(pattern))
]


def rows_of_limits() -> Iterator[tuple[str, str, str]]:
    """(limit, value, name) of the table of limits."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[2].startswith("`"):
            yield cells[0], cells[1], cells[2]


def values_of(name: str) -> set[float]:
    """What constants of that name are, wherever they are defined as a number."""
    name = name.rpartition(".")[2]
    found = set()
    for source in SOURCES:
        for expression in re.findall(
            (
                rf"^\s*(?:#define\s+{name}\s+|{name}(?:: \w+)? = )([0-9][0-9_.]*u?(?: ?(?:\*|<<) "
                r"?[0-9][0-9_]*u?)*|\([0-9][0-9u <]*\))"
            ),
            source,
            re.MULTILINE,
        ):
            found.add(eval(re.sub(r"(?<=[0-9])u\b", "", expression)))
    return found


def written(name: str, value: float) -> set[str]:
    """The ways in which a document may write it."""
    ways = {f"{value:,.0f}"} if value == int(value) else set()
    for unit, scale in (("_US", 1e6), ("_MS", 1e3), ("_S", 1)):
        if name.endswith(unit):
            ways = {f"{value / scale:,g} s", f"{value / scale * 1000:,g} ms"}
    for unit, scale in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if value % scale == 0 and not name.endswith(("_US", "_MS", "_S")):
            ways.add(f"{int(value) // scale} {unit}")
    return ways


@pytest.mark.parametrize(
    "limit, value, names", list(rows_of_limits()), ids=lambda text: re.sub(r"[^a-z ]", "", text.lower())[:40]
)
def test_the_table_of_limits_says_what_the_code_has(limit, value, names):
    for name in re.findall(r"`([A-Za-z.]*[A-Z]{3}[A-Z_]*)`", names):
        values = values_of(name)
        assert values, f"the documents name {name} under {limit!r}, and the code has no such constant"
        ways = set().union(*(written(name, each) for each in values))
        assert any(re.search(rf"(?<![\d,]){re.escape(way)}(?!\d|,\d)", value) for way in ways), (
            f"{limit}: the documents say {value}, and {name} is {' or '.join(sorted(ways))}"
        )


def test_the_wait_for_room_at_commit_is_told_alike_everywhere():
    from pywan.member.staging import FULL_WAIT_S

    text = (ROOT / "docs" / "architecture.md").read_text()
    assert f"the rest waits, up to {FULL_WAIT_S:.0f} s" in text


@pytest.mark.parametrize(
    "page",
    [path for pattern in ("README.md", "docs/*.md", "docs/decisions/*.md") for path in sorted(ROOT.glob(pattern))],
    ids=lambda path: path.name,
)
def test_a_link_between_documents_leads_somewhere(page):
    for target, _, place in re.findall(r"\]\((?!https?:)([^)#\s]*)(#([^)\s]*))?\)", page.read_text()):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if place:
            headings = {
                re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in found.read_text().splitlines()
                if line.startswith("#")
            }
            assert place in headings, f"{page.name} links to {target}#{place}, and there is no such heading"
