"""The programs in docs/examples and the blocks of code in the guides print what they say they print."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.cli import grammar
from pywan.cli.commands import COMMANDS
from support.databases import Postgres, why_no_postgres
from support.tree import ROOT

SPARK = [pytest.mark.spark, pytest.mark.long]  # Each starts a Java machine of its own.
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=SPARK if path.stem.startswith("spark_") else [])
    for path in sorted((ROOT / "docs" / "examples").glob("*.py"))
]
GUIDES = (
    "README.md",
    "docs/python.md",
    "docs/async-event-queues.md",
    "docs/logging.md",
    *(f"docs/coming-from-{name}.md" for name in ("geode", "kafka", "redis")),
)


def blocks_of(page: str) -> list[Any]:
    """The blocks of Python of a page, each named by its page and line."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        pytest.param(block[1], id=f"{Path(page).stem}-line-{text.count(chr(10), 0, block.start()) + 2}")
        for block in found
    ]


def check(program: Path, command: list[str], **environment: str) -> None:
    done = subprocess.run(
        [*command, program.name],
        cwd=program.parent,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"# prints: (.*)", program.read_text())
    if command == [sys.executable]:
        assert said and done.stdout.splitlines() == said


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_prints_what_it_says(path, tmp_path):
    program = tmp_path / path.name
    program.write_text(path.read_text())
    check(program, [sys.executable])
    assert list(tmp_path.iterdir()) == [program], "it leaves files behind"


@pytest.mark.parametrize("block", [block for page in GUIDES for block in blocks_of(page)])
def test_a_block_of_a_guide_runs_alone_and_prints_what_it_says(block, tmp_path):
    program = tmp_path / "test_block.py"
    program.write_text(block)
    has_tests = "\ndef test_" in block
    check(program, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"] if has_tests else [sys.executable])


@pytest.mark.parametrize("page", GUIDES)
def test_each_guide_has_a_block_of_code(page):
    assert blocks_of(page)


def test_the_programs_of_the_page_of_postgresql_run_in_their_order(tmp_path):
    if missing := why_no_postgres():
        pytest.skip(missing)
    program = tmp_path / "program.py"
    with Postgres() as server:
        place = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "pywan", "PGDATABASE": "shop"}
        with contextlib.closing(server.connect()) as connection:
            connection.autocommit = True  # A database is not made in a transaction.
            connection.execute("CREATE DATABASE shop")
        for block in blocks_of("docs/postgresql.md"):
            program.write_text(block.values[0])
            check(program, [sys.executable], **place)


@functools.cache
def texts_of_the_source() -> list[tuple[Path, str]]:
    return list(find_texts())


def find_texts() -> Iterator[tuple[Path, str]]:
    """Each text that pywan may say, as one line with `...` where a name or number comes in; no comments, and no
    docstrings."""
    for file in ROOT.glob("pywan/**/*.py"):
        tree = ast.parse(file.read_text())
        parts = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
        parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield (
                    file,
                    "".join(
                        getattr(each, "value", "") if isinstance(each, ast.Constant) else "..." for each in node.values
                    ),
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield file, re.sub(r"%[-.0-9]*[sdrgfx]", "...", node.value)
    for pattern in ("pywan/_core/**/*.pyx", "pywan/_core/**/*.pxd", "csrc/*/*.[ch]"):
        for file in ROOT.glob(pattern):
            for texts in re.findall(r'(?:f?"(?:[^"\\\n]|\\.)*"(?: PRI\w+)?\s*)+', file.read_text()):
                whole = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', texts))
                yield file, re.sub(r"%[-.0-9]*(?:ll)?[sdrgfux]?|\{[^{}]*\}", "...", whole)


def pattern_of(quoted: str) -> re.Pattern[str]:
    """Finds what a page quotes, where `...` stands for any text."""
    return re.compile(".*".join(re.escape(piece.strip()) for piece in quoted.split("...")))


@pytest.mark.parametrize("page", ["logging", "troubleshooting"])
@pytest.mark.lint
def test_what_a_page_quotes_is_what_pywan_says(page):
    """A quotation with a blank in it is one text of the source, or a command."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    said = [text for _, text in texts_of_the_source()]
    said += [each.replace("_", " ") for each in said]  # The names of fields, as tables show them.
    commands = {each.name for each in COMMANDS}
    quoted = {each for each in re.findall(r"`([^`]*)`", re.sub(r"\s+", " ", text)) if " " in each}
    unknown = []
    for each in quoted:
        if each in commands:
            continue
        if any(each.startswith(f"{name} --") for name in commands):
            grammar.parse(grammar.tokenize(each.replace("...", "x")), COMMANDS)
        elif not each.startswith("pywan --"):
            unknown += [each] * (not any(pattern_of(each).search(text) for text in said))
    assert len(quoted) > 20 and not unknown


@pytest.mark.lint
def test_the_page_of_logging_names_each_logger_and_who_writes_its_lines():
    page = (ROOT / "docs" / "logging.md").read_text()
    loggers: dict[str, set[Path]] = {}
    for file in ROOT.glob("pywan/**/*.py"):
        for each in re.findall(r'getLogger\("(pywan\.\w+)"', file.read_text()):
            loggers.setdefault(each, set()).add(file)
    assert set(re.findall(r"^\| `(pywan\.\w+)` \| [^|]*\|$", page, re.MULTILINE)) == loggers.keys()
    lines = re.findall(r"^\| `(pywan\.\w+)` \| [A-Z]+ \| `([^`]*)` \|", page, re.MULTILINE)
    for logger, line in lines:
        assert any(file in loggers[logger] and pattern_of(line).search(text) for file, text in texts_of_the_source()), (
            logger,
            line,
        )
    assert len(lines) > 10


def check_shown(lines: list[str], shown: str) -> list[str]:
    """Returns what is left of `lines` behind the shown ones, which come in their order. `...` stands for any text."""
    for line in filter(None, map(str.strip, shown.splitlines())):
        words = (".*".join(map(re.escape, word.split("..."))) for word in line.split())
        pattern = re.compile(r"\s+".join(words))
        found = next((place for place, said in enumerate(lines) if pattern.fullmatch(said)), None)
        assert found is not None, f"no line {line!r} in:\n" + "\n".join(lines)
        lines = lines[found + 1 :]
    return lines


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["README.md", "docs/tls.md", "docs/several-members.md"])
def test_the_shell_lines_of_a_page_run_as_they_stand(page, tmp_path):
    """Two sites as real processes. Only the loopback network is another one, as every run of this test has its own.
    What the page shows behind its lines is what they print; tables are shown without frames."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    blocks = blocks[[kind for kind, _ in blocks].index("sh") :]  # A picture before them is no output.
    lines = "\n".join(block for kind, block in blocks if kind == "sh")
    assert "127.0.0." in lines
    lines = lines.replace("127.0.0.", f"127.{random.randrange(20, 220)}.{random.randrange(250)}.")
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    before = sorted(tmp_path.iterdir())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "160"}  # Wide enough for a status in one line.
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if done.returncode:  # End what the lines have started.
        for folder in sorted(tmp_path.glob("server_*")) + sorted(tmp_path.glob("locator_*")):
            command = [
                sys.executable,
                "-m",
                "pywan.cli.main",
                "stop",
                folder.name.split("_")[0],
                f"--name={folder.name}",
            ]
            subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sold" in done.stdout.splitlines()
    assert "Running and Connected" in done.stdout
    said = [re.sub("[\u2500-\u257f]", " ", line).strip() for line in done.stdout.splitlines()]
    for kind, block in blocks:
        if kind == "text":
            said = check_shown(said, block)
    assert sorted(tmp_path.iterdir()) == before, "it leaves files behind"
