"""Owns the table of layers and walks the imports: they point down only, lazy ones inside functions included."""
from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pywan"


class Layer(NamedTuple):
    number: int
    what: str
    modules: tuple[str, ...]        # Below pywan; a package stands for itself and all in it that no other layer names.
    never: tuple[str, ...] = ()     # Modules of the library (or of ours) that none of them imports.
    apart: bool = False             # They do not import each other.


LAYERS = (
    Layer(1, "the compiled core", ("_core",)),
    Layer(2, "errors, events, callbacks' base classes, configuration, addresses, statistics, serializers",
          ("errors", "events", "callbacks", "forks", "stats", "serializers", "java", "base", "config")),
    Layer(3, "regions, floors, disk stores, the repair of the clock", ("region", "gateway.floors", "disk"),
          never=("socket", "ssl", "selectors")),
    Layer(4, "protocol: messages and their sans-IO state machines", ("protocol",),
          never=("socket", "ssl", "selectors", "threading", "time")),
    Layer(5, "transport: sockets, TLS, server loops", ("transport",), never=("pywan.region",)),
    Layer(6, "what a member knows of its site", ("site.membership",), never=("pywan.region.region",)),
    Layer(7, "locator, gateways, row staging", ("site.locator", "gateway", "member.staging"), apart=True),
    Layer(8, "composition root, programs, clients", ("member", "cli", "demo", "client", "spark", "testing")),
)
PLACES = {name: layer for layer in LAYERS for name in layer.modules}
HOLDERS = ("site",)       # Packages all of whose modules are named above.


def place_of(module: str) -> str | None:
    """The name in the table that `pywan.x.y` comes under: the longest."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in PLACES), None)


def layer_of(module: str) -> Layer:
    """The layer of `pywan.x.y`; an assertion that names the remedy where it has none."""
    place = place_of(module)
    assert place is not None, f"{module} is in no layer: give it its place in {Path(__file__).name}"
    return PLACES[place]


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything a module imports while it runs; what only a type checker reads does not count."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield child.lineno, alias.name
            elif isinstance(child, ast.ImportFrom):
                home = child.module or ""
                if child.level:
                    base = package.split(".")[:len(package.split(".")) - child.level + 1]
                    home = ".".join([*base, home] if home else base)
                for alias in child.names:
                    whole = f"{home}.{alias.name}"
                    yield child.lineno, whole if whole in known or whole == f"{PACKAGE}._core" else home
            yield from walk(child)

    yield from walk(ast.parse(path.read_text(), str(path)))


KNOWN = modules()


HAVE_LAYERS = [m for m in KNOWN if m != PACKAGE and m.removeprefix(f"{PACKAGE}.") not in HOLDERS]


@pytest.mark.parametrize("module", HAVE_LAYERS)
def test_imports_point_down_only(module):
    own = layer_of(module)
    wrong = []
    for line, name in imports(module, KNOWN[module], KNOWN):
        place = f"{KNOWN[module].relative_to(ROOT)}:{line} imports {name}"
        if any(name == never or name.startswith(f"{never}.") for never in own.never):
            wrong.append(f"{place}: never in layer {own.number} ({own.what})")
        if not name.startswith(f"{PACKAGE}."):
            continue                # The package itself gives names away lazily: they are at the top, for users.
        other = layer_of(name)
        if other.number > own.number:
            wrong.append(f"{place}: layer {own.number} ({own.what}) may not use layer {other.number} ({other.what})")
        elif own.apart and other is own and place_of(name) != place_of(module):
            wrong.append(f"{place}: these do not use each other")
    assert not wrong, "\n".join(wrong)


def test_every_name_in_the_table_is_a_module_and_is_there_once():
    names = [name for layer in LAYERS for name in layer.modules]
    assert len(names) == len(set(names))
    assert {name for name in names if name != "_core" and f"{PACKAGE}.{name}" not in KNOWN} == set()


def test_the_c_parts_know_neither_python_nor_sockets():
    for path in sorted((ROOT / "csrc").rglob("wan_*.[ch]")):
        for unwanted in ("Python.h", "sys/socket.h", "netinet/", "syslog.h"):
            assert f"#include <{unwanted}" not in path.read_text(), f"{path.name} includes {unwanted}"


@pytest.mark.parametrize("module", ["pywan", "pywan.client", "pywan.spark", "pywan.member.cache"])
def test_an_import_brings_no_library_that_it_does_not_need(module):
    """Spark's workers and small programs import these; what a shell or a file parser needs stays away."""
    program = f"import {module}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"click", "rich", "defusedxml", "prompt_toolkit", "pyspark", "pandas"} & set(loaded)


def test_the_package_itself_imports_next_to_nothing():
    program = "import pywan, sys; print(*[name for name in sys.modules if name.startswith('pywan')])"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["pywan"]
