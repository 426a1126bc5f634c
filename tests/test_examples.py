"""The programs in docs/examples and the blocks of code in the guides print what they say they print."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databases import Postgres, why_no_postgres
from pywan.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark] if path.stem.startswith("spark_") else [])
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


def test_the_program_of_the_page_of_postgresql_fills_a_table(tmp_path):
    if missing := why_no_postgres():
        pytest.skip(missing)
    (block,) = blocks_of("docs/postgresql.md")
    program = tmp_path / "program.py"
    program.write_text(block.values[0])
    with Postgres() as server:
        check(
            program,
            [sys.executable],
            PGHOST="127.0.0.1",
            PGPORT=str(server.port),
            PGUSER="pywan",
            PGDATABASE="postgres",
        )


def test_what_the_page_of_troubles_quotes_is_what_pywan_says():
    """What stands in a quotation and has a blank in it, is a line of the product, a command, or an option."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    sources = [file for kind in ("pywan/**/*.py", "pywan/_core/*/*.pyx", "csrc/*/*.h") for file in ROOT.glob(kind)]
    said = " ".join(source.read_text() for source in sources)
    said = re.sub(r'"\s*\n?\s*f?"', "", said)  # A text that goes on in the next line of its source.
    said += said.replace("_", " ")  # The names of fields, as tables show them.
    commands = {each.name for each in COMMANDS}
    quoted = {text for text in re.findall(r"`([^`]*)`", re.sub(r"\s+", " ", page)) if " " in text}
    unknown = []
    for text in quoted:
        if text.startswith("pywan ") or any(text == each or text.startswith(f"{each} --") for each in commands):
            continue
        unknown += [text for piece in text.split("...") if piece.strip() and piece.strip(" :=") not in said]
    assert len(quoted) > 30 and not unknown


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["README.md", "docs/tls.md", "docs/several-members.md"])
def test_the_shell_lines_of_a_page_run_as_they_stand(page, tmp_path):
    """Two sites as real processes. Only the loopback network is another one, as every run of this test has its own."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks)
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
    assert sorted(tmp_path.iterdir()) == before, "it leaves files behind"
