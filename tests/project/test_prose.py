"""Comments and docstrings of the folders that hold the replication protocol say in nouns what happens."""

import re

import pytest

import prose
from support.tree import ROOT

pytestmark = pytest.mark.lint

ROOMS = [
    "csrc/replication",
    "csrc/session",
    "pywan/_core/calls",
    "pywan/_core/gateway",
    "pywan/_core/region",
    "pywan/_core/replication",
    "pywan/calls",
    "pywan/coordination",
    "pywan/member",
    "pywan/region",
    "pywan/replication",
    "pywan/site",
]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
(PRONOUNS_MAX, HEADLESS_MAX) = map(
    float,
    re.search(r"at most (\d+) pronouns in a\s+hundred words\b.*?under ([\d.]+)%", CONTRIBUTING, re.DOTALL).groups(),
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_in_nouns_what_happens(room):
    found = prose.count(prose.sources(room))
    assert found.words > 500
    assert found.pronouns_a_hundred <= PRONOUNS_MAX, f"python tests/prose.py {room}"
    assert found.headless_percent < HEADLESS_MAX, "\n".join(found.headless)


@pytest.mark.parametrize(
    "name, source",
    [
        ("a.py", '"""It waits for that lock."""\nx = "it is no prose at all"\n# Of these there are\n# two here.\n'),
        ("a.pyx", '"""It waits for that lock."""\nx = "it is no prose at all"\n# Of these there are\n# two here.\n'),
        (
            "a.c",
            '/* It waits for that lock. */\nchar *x = "it is no prose";\n/* Of these there are\n * two here. */\n',
        ),
    ],
)
def test_pronouns_and_headless_sentences_are_counted_in_comments_and_docstrings(tmp_path, name, source):
    path = tmp_path / name
    path.write_text(source)
    found = prose.count([path])
    assert (found.words, found.pronouns, found.sentences) == (11, 5, 2)
    assert found.headless == ["Of these there are two here."]
