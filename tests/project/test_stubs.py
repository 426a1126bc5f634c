"""The stub of the compiled module says what the module has: names, signatures, properties, first sentences of
docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import pywan
from pywan import _core

pytestmark = pytest.mark.lint

STUB = ast.parse((Path(pywan.__file__).parent / "_core" / "__init__.pyi").read_text())
SPECIAL = {"__init__", "__new__", "__len__", "__contains__", "__iter__", "__getitem__"}


def _members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


STUBBED = _members(STUB.body)
CLASSES = {name: node for name, node in STUBBED.items() if isinstance(node, ast.ClassDef)}
CALLABLES = [
    (name, node, getattr(_core, name, None)) for name, node in STUBBED.items() if isinstance(node, ast.FunctionDef)
] + [
    (f"{cls}.{name}", member, inspect.getattr_static(getattr(_core, cls), name, None))
    for cls, node in CLASSES.items()
    for name, member in _members(node.body).items()
    if isinstance(member, ast.FunctionDef) and name not in SPECIAL and not member.decorator_list
]


def _with_bases(name: str) -> list[str]:
    return [
        name,
        *(
            found
            for base in CLASSES[name].bases
            if isinstance(base, ast.Name) and base.id in CLASSES
            for found in _with_bases(base.id)
        ),
    ]


def _is_cython_helper(name: str) -> bool:
    return name.startswith(("__", "_pyx"))


def test_the_stub_names_what_the_module_has():
    actual = {name for name in vars(_core) if not _is_cython_helper(name)}
    own = {
        name
        for name in actual
        if (getattr(getattr(_core, name), "__module__", None) or _core.__name__).startswith(_core.__name__)
    }
    assert set(STUBBED) == {name for name in own if not inspect.ismodule(getattr(_core, name))}


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_of_a_class_names_what_the_class_has(name):
    """Its own and inherited ones; the classes between, a unit each, are nobody's outside the core."""
    stubbed = {
        member for cls in _with_bases(name) for member in _members(CLASSES[cls].body) if not member.startswith("__")
    }
    actual = {
        member
        for cls in getattr(_core, name).__mro__
        if _core.__name__ in cls.__module__
        for member in vars(cls)
        if not member.startswith("_")
    }
    assert stubbed == actual


@pytest.mark.parametrize(("name", "node", "actual"), CALLABLES, ids=[name for name, _, _ in CALLABLES])
def test_the_stub_of_a_function_takes_what_the_function_takes(name, node, actual):
    try:
        parameters = inspect.signature(actual).parameters.values()
    except (TypeError, ValueError):
        pytest.skip("this build tells no signature")
    a = node.args
    stubbed = [(p.arg, "positional") for p in [*a.posonlyargs, *a.args]] + [(p.arg, "keyword") for p in a.kwonlyargs]
    if a.kwarg is not None:
        stubbed.append((a.kwarg.arg, "positional"))
    taken = [(p.name, "keyword" if p.kind is p.KEYWORD_ONLY else "positional") for p in parameters]
    assert stubbed == taken
    in_order = [p.arg for p in [*a.posonlyargs, *a.args]]
    defaults = dict(zip(in_order[len(in_order) - len(a.defaults) :], a.defaults, strict=True))
    defaults |= {p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None}
    assert set(defaults) == {p.name for p in parameters if p.default is not p.empty}
    for parameter in parameters:
        default = defaults.get(parameter.name)
        if isinstance(default, ast.Constant) and default.value is not ...:
            assert default.value == parameter.default, parameter.name


@pytest.mark.parametrize("name", CLASSES)
def test_properties_are_stubbed_as_properties(name):
    for member, node in _members(CLASSES[name].body).items():
        actual = inspect.getattr_static(getattr(_core, name), member, None)
        is_property = isinstance(node, ast.AnnAssign) or bool(getattr(node, "decorator_list", None))
        if member not in SPECIAL:
            assert is_property == inspect.isdatadescriptor(actual), member


def _plain(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    if lines and re.match(r"[\w.]+\(.*\)$", lines[0]):  # The signature that Cython writes first.
        lines = lines[1:]
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("name", "node", "actual"),
    [*CALLABLES, *((name, node, getattr(_core, name)) for name, node in CLASSES.items())],
    ids=[name for name, _, _ in CALLABLES] + list(CLASSES),
)
def test_a_docstring_in_the_stub_is_the_first_sentence_of_the_real_one(name, node, actual):
    stubbed, real = _plain(ast.get_docstring(node)), _plain(actual.__doc__)
    assert bool(stubbed) == bool(real)
    assert real == stubbed or real.startswith(stubbed + " ")
