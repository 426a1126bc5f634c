"""Owns the count of pronouns and of headless openings in comments and docstrings: `python tests/prose.py FOLDER...`."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRONOUNS = frozenset(
    [
        "it",
        "its",
        "that",
        "what",
        "which",
        "who",
        "whom",
        "this",
        "these",
        "those",
        "one",
        "ones",
        "them",
        "they",
        "their",
        "others",
        "other",
        "another",
        "somebody",
        "nobody",
        "anybody",
        "whoever",
        "whatever",
        "such",
        "each",
        "there",
        "here",
    ]
)
HEADLESS = frozenset(["of", "with", "without", "what", "who", "whoever", "whatever"])
SENTENCE_WORDS = 4  # Fewer words are a title or a piece of a table.
C_COMMENT = re.compile(r'/\*(.*?)\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# Cython's grammar is not Python's, so comments and docstrings of Cython are found by their marks.
CYTHON_PROSE = re.compile(
    r'"""(.*?)"""|((?:^[ \t]*#[^\n]*\n)+)|#([^\n]*)|"(?:\\.|[^"\\\n])*"', re.DOTALL | re.MULTILINE
)


@dataclass
class Count:
    """Words, pronouns and sentences of some prose, and the beginnings of its headless sentences."""

    words: int = 0
    pronouns: int = 0
    sentences: int = 0
    headless: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        for sentence in re.split(r"(?<=[.:;?!])\s+", " ".join(text.split())):
            words = [word.lower() for word in re.findall(r"[A-Za-z']+", sentence)]
            if len(words) < SENTENCE_WORDS:
                continue
            self.sentences += 1
            self.words += len(words)
            self.pronouns += sum(word in PRONOUNS for word in words)
            if words[0] in HEADLESS:
                self.headless.append(sentence[:70])

    @property
    def pronouns_a_hundred(self) -> float:
        return 100 * self.pronouns / max(self.words, 1)

    @property
    def headless_percent(self) -> float:
        return 100 * len(self.headless) / max(self.sentences, 1)


def prose_of(path: Path) -> Iterator[str]:
    """The comments and docstrings of a source. Comments on neighbouring lines are one text."""
    source = path.read_text()
    if path.suffix in (".c", ".h"):
        for comment in C_COMMENT.finditer(source):
            if comment.group(1) is not None:
                yield re.sub(r"\n\s*\*", " ", comment.group(1))
    elif path.suffix == ".py":
        yield from _prose_of_python(source)
    else:
        for piece in CYTHON_PROSE.finditer(source):
            docstring, block, trailing = piece.groups()
            if docstring is not None:
                yield docstring
            elif block is not None:
                yield " ".join(line.strip().lstrip("# ") for line in block.splitlines())
            elif trailing is not None:
                yield trailing


def _prose_of_python(source: str) -> Iterator[str]:
    block: list[str] = []
    is_statement_begin = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("#: "))
            continue
        if block and token.type != tokenize.NL:
            yield " ".join(block)
            block = []
        if token.type == tokenize.STRING and is_statement_begin and token.string.startswith(('"""', 'r"""')):
            yield token.string.lstrip("r").strip('"')
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            is_statement_begin = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    if block:
        yield " ".join(block)


def sources(folder: str) -> list[Path]:
    """The sources below a folder of the repository, or the one source that `folder` names."""
    place = ROOT / folder
    found = [place] if place.is_file() else sorted(place.rglob("*"))
    return [path for path in found if path.suffix in (".c", ".h", ".py", ".pyx", ".pxd")]


def count(paths: list[Path]) -> Count:
    """The prose of these sources."""
    counted = Count()
    for path in paths:
        for text in prose_of(path):
            counted.add(text)
    return counted


def _figures(found: Count) -> str:
    return f"{found.pronouns_a_hundred:5.1f} pronouns in 100 words, {found.headless_percent:4.1f}% headless"


def main(folders: list[str]) -> int:
    """Prints a line for each source and one for each folder, with the headless sentences."""
    for folder in folders:
        for path in sources(folder):
            one = count([path])
            print(f"{_figures(one)}  {path.relative_to(ROOT)}")
            print("".join(f"        {each}\n" for each in one.headless), end="")
        print(f"{_figures(count(sources(folder)))}  {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["csrc", "pywan"]))
