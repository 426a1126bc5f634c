"""The programs in docs/examples and the blocks of code in the guides print what they say they print."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark] if path.stem.startswith("spark_") else [])
    for path in sorted((ROOT / "docs" / "examples").glob("*.py"))
]
GUIDES = (
    "README.md",
    "docs/python.md",
    "docs/async-event-queues.md",
    *(f"docs/coming-from-{name}.md" for name in ("geode", "kafka", "redis")),
)


def blocks_of(page: str) -> list[object]:
    """The blocks of Python of a page, each named by its page and line."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        pytest.param(block[1], id=f"{Path(page).stem}-line-{text.count(chr(10), 0, block.start()) + 2}")
        for block in found
    ]


def check(program: Path, command: list[str]) -> None:
    done = subprocess.run(
        [*command, program.name], cwd=program.parent, check=False, capture_output=True, text=True, timeout=100
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["README.md", "docs/tls.md"])
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
        for kind, name in (("server", "ln"), ("server", "ny"), ("locator", "ln"), ("locator", "ny")):
            command = [sys.executable, "-m", "pywan.cli.main", "stop", kind, f"--name={kind}_{name}"]
            subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sold" in done.stdout.splitlines()
    assert "Running and Connected" in done.stdout
    assert sorted(tmp_path.iterdir()) == before, "it leaves files behind"
