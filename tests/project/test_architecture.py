"""Owns the check of tests/layers.toml: every file has its row, and uses only files of that row and of the rows above
it.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pywan
from support.tree import ROOT

pytestmark = pytest.mark.lint

CODE = (".py", ".pyx", ".pxd", ".c", ".h")


class Row(NamedTuple):
    number: int
    files: tuple[str, ...]  # As the table names them.
    never: tuple[str, ...]  # Modules of the library, headers, or modules of ours that none of them uses.
    also: tuple[str, ...]  # Files of rows below that they use all the same.


def rows() -> list[Row]:
    found = tomllib.loads((ROOT / "tests" / "layers.toml").read_text())["row"]
    return [
        Row(number, tuple(row["files"]), tuple(row.get("never", ())), tuple(row.get("also", ())))
        for number, row in enumerate(found)
    ]


ROWS = rows()
PLACES = {name: row for row in ROWS for name in row.files}


@functools.cache
def place_of(file: str) -> str | None:
    """The name in the table that a file comes under ("csrc/base/wan_lock", "_core/queue/queue", "site/locator"):
    the longest.
    """
    found = [name for name in PLACES if fnmatch.fnmatchcase(file, name + "*" if name.endswith("/") else name)]
    return max(found, key=len, default=None)


def row_of(file: str) -> Row:
    """An assertion that names the remedy where a file is in no row."""
    place = place_of(file)
    assert place is not None, f"{file} is in no row of tests/layers.toml: give it its place there"
    return PLACES[place]


def file_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    return str(relative if relative.parts[0] == "csrc" else relative.relative_to("pywan"))


GIVEN = pywan._HOME  # The package gives names of modules below it.
FILES = sorted(path for folder in ("csrc", "pywan") for path in (ROOT / folder).rglob("*") if path.suffix in CODE)
KNOWN = {file_of(path) for path in FILES}


def file_of_module(module: str) -> str | None:
    """The file behind `pywan.x.y`; None: there is none, it is a name in one; or it is the package, which gives names to
    all.
    """
    if module == "pywan":
        return None
    name = "/".join(module.split(".")[1:])
    return next((file for file in (name, f"{name}/__init__".lstrip("/")) if file in KNOWN), None)


class Use(NamedTuple):
    line: int
    name: str  # As it is written: a module, a header.
    file: str | None  # A file of our own; None: it is not ours.


def python_uses(path: Path) -> Iterator[Use]:
    """All that a module imports while it runs; what only a type checker reads does not count."""
    package = ".".join(path.relative_to(ROOT).parent.parts)

    def walk(node: ast.AST) -> Iterator[Use]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Use(child.lineno, alias.name, file_of_module(alias.name) if is_ours(alias.name) else None)
            elif isinstance(child, ast.ImportFrom):
                home = child.module or ""
                if child.level:
                    base = package.split(".")[: len(package.split(".")) - child.level + 1]
                    home = ".".join([*base, home] if home else base)
                yield from uses_from(child.lineno, home, [alias.name for alias in child.names])
            yield from walk(child)

    yield from walk(ast.parse(path.read_text(), str(path)))


def is_ours(module: str) -> bool:
    return module == "pywan" or module.startswith("pywan.")


def uses_from(line: int, home: str, names: list[str]) -> Iterator[Use]:
    if not is_ours(home):
        yield Use(line, home, None)
        return
    for name in names:
        whole = GIVEN.get(name, f"{home}.{name}") if home == "pywan" else f"{home}.{name}"
        file = file_of_module(whole)
        yield Use(line, whole if file else home, file or file_of_module(home))


def import_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each import and each `cdef extern` of Cython as one line, with the number of its first one: what brackets
    continue is joined.
    """
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not begun and not re.match(r"\s*(from|import|cimport|cdef extern)\b", line):
            continue
        first = first if begun else number
        begun += line.partition("#")[0].strip().removesuffix("\\") + " "
        if begun.count("(") <= begun.count(")") and not line.rstrip().endswith("\\"):
            yield first, begun.strip()
            begun = ""


def cython_uses(path: Path) -> Iterator[Use]:
    text = path.read_text()
    for number, line in import_lines(text):
        if found := re.match(r"from ([\w.]+) c?import (.*)", line):
            names = re.findall(r"\w+|\*", re.sub(r"\bas \w+", "", found[2]))
            yield from uses_from(number, found[1], names)
        elif found := re.match(r"c?import (.*)", line):
            for module in re.findall(r"[\w.]+", re.sub(r"\bas \w+", "", found[1])):
                yield Use(number, module, file_of_module(module) if is_ours(module) else None)
        elif found := re.match(r'cdef extern from "<?([^">]+)>?"', line):
            yield from header_uses(number, found[1])
    for found in re.finditer(r'^\s*#\s*include\s*[<"]([^>"]+)', text, re.MULTILINE):  # In C that stands in Cython.
        yield from header_uses(text[: found.start()].count("\n") + 1, found[1])


def header_uses(line: int, header: str) -> Iterator[Use]:
    file = f"csrc/{header.rpartition('.')[0]}"
    yield Use(line, header, file if file in KNOWN else None)


def c_uses(path: Path) -> Iterator[Use]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := re.match(r'\s*#\s*include\s*[<"]([^>"]+)', line):
            yield from header_uses(number, found[1])


@functools.cache  # Each file is read once.
def uses(path: Path) -> tuple[Use, ...]:
    read = {".py": python_uses, ".pyx": cython_uses, ".pxd": cython_uses, ".c": c_uses, ".h": c_uses}[path.suffix]
    return tuple(read(path))


def is_never(name: str, never: str) -> bool:
    return name == never or name.startswith((f"{never}.", never if never.endswith("/") else f"{never}/"))


@pytest.mark.parametrize(
    "text, used",
    [
        ("from pywan._core.queue.queue cimport a, b", {"pywan._core.queue.queue"}),
        ("from pywan._core.region cimport put, changelog", {"pywan._core.region.put", "pywan._core.region.changelog"}),
        (
            "from pywan._core.region cimport (  # These.\n    put,\n    changelog as t)",
            {"pywan._core.region.put", "pywan._core.region.changelog"},
        ),
        (
            "cimport pywan._core.queue.queue, pywan._core.region.put as p",
            {"pywan._core.queue.queue", "pywan._core.region.put"},
        ),
        ("def f():\n    from pywan import Cache, \\\n        Locator", {"pywan.member.cache", "pywan.site.locator"}),
        ('cdef extern from * nogil:\n    """\n    #include "store/wan_queue.h"\n    """', {"store/wan_queue.h"}),
        ('cdef extern from "<store/wan_queue.h>" nogil:', {"store/wan_queue.h"}),
    ],
)
def test_every_way_of_using_something_in_cython_is_seen(tmp_path, text, used):
    (tmp_path / "unit.pyx").write_text(text)
    found = list(cython_uses(tmp_path / "unit.pyx"))
    assert {use.name for use in found} == used and all(use.file for use in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_uses_what_stands_above_it(path):
    own, wrong = row_of(file_of(path)), []
    for use in uses(path):
        place = f"{path.relative_to(ROOT)}:{use.line} uses {use.name}"
        wrong += [f"{place}: the table says never" for never in own.never if is_never(use.name, never)]
        if use.file is None or use.file in own.also:
            continue
        other = row_of(use.file)
        if other.number > own.number:
            wrong.append(f"{place}, which stands below it in tests/layers.toml")
    assert not wrong, "\n".join(wrong)


def test_every_name_in_the_table_is_a_file_and_is_there_once():
    names = [name for row in ROWS for name in row.files]
    assert len(ROWS) > 20 and len(names) == len(set(names))
    assert set(names) == {place_of(file) for file in KNOWN}


def test_the_rooms_of_the_core_and_of_c_stand_one_after_the_other():
    """So no two of them use each other."""
    rooms = [re.sub(r"(_core|csrc)/(\w+)/.*", r"\1/\2", name) for row in ROWS for name in row.files]
    rooms = [room for room in rooms if re.fullmatch(r"(_core|csrc)/\w+", room)]
    passed = [room for room, _ in itertools.groupby(rooms)]
    assert len(passed) == len(set(passed)) > 15, passed


def test_every_exception_in_the_table_is_needed():
    used: dict[int, set[str | None]] = {row.number: set() for row in ROWS}
    for path in FILES:
        used[row_of(file_of(path)).number].update(use.file for use in uses(path))
    for row in ROWS:
        assert set(row.also) <= used[row.number]


def test_the_declarations_of_c_stand_once():
    """In the c_*.pxd, one for each folder."""
    for path in FILES:
        if path.suffix in (".pyx", ".pxd") and not path.name.startswith("c_"):
            assert "cdef extern" not in path.read_text(), path.name


def test_the_core_includes_no_text_and_names_its_units_in_whole():
    for path in FILES:
        if path.suffix in (".pyx", ".pxd"):
            assert not re.search(r"^(include |from \.)", path.read_text(), re.MULTILINE), path.name


@pytest.mark.parametrize("module", ["pywan", "pywan.client", "pywan.spark", "pywan.member.cache"])
def test_an_import_brings_no_library_that_it_does_not_need(module):
    """Spark's workers and small programs import these; what a shell or a file parser needs stays away."""
    program = f"import {module}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    needless = {"click", "rich", "defusedxml", "prompt_toolkit", "pyspark", "pandas", "sqlite3", "html", "hashlib"}
    assert not (needless | {"asyncio"}) & set(loaded)


def test_the_package_itself_imports_next_to_nothing():
    program = "import pywan, sys; print(*[name for name in sys.modules if name.startswith('pywan')])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == ["pywan"]


def test_a_member_of_a_site_loads_no_coordinator(tmp_path):
    """The locator decides, and has the file of the decisions. A member only hears of them."""
    program = f"""
import sys, pywan
with pywan.Cache("m", locators=sys.argv[1], dir={str(tmp_path)!r}) as cache:
    cache.create_region("data", type="REPLICATE").put("k", "v")
    print(cache.create_region("more", type="PARTITION") is not None, *sys.modules)
"""
    with pywan.Locator("l", distributed_system_id=1, port=0) as locator:
        joined, *loaded = subprocess.run(
            [sys.executable, "-c", program, str(locator.address)], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
    assert joined == "True" and {"pywan.site.agent", "pywan.replication.region_replicas"} <= set(loaded)
    assert not {
        "sqlite3",
        "pywan.coordination.coordinator",
        "pywan.coordination.journal",
        "pywan.site.coordination_host",
        "pywan.site.locator",
    } & set(loaded)
