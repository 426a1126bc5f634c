"""The declarations of C for Cython: what each form of C becomes, what is refused, and that the compiler agrees."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from support.tree import ROOT

pytestmark = pytest.mark.lint

COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))

_spec = importlib.util.spec_from_file_location("declare_c", ROOT / "packaging" / "declare_c.py")
assert _spec and _spec.loader
declare_c = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(declare_c)


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """Gives the declarations of headers, by folder: of base/wan_a.h, and of others as `store__b`: store/wan_b.h."""

    def of(text="", **others):
        headers = {"base/wan_a.h": text} | {name.replace("__", "/wan_") + ".h": other for name, other in others.items()}
        for name, content in headers.items():
            path = tmp_path / "csrc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#pragma once\n#include <stdint.h>\n{content}\n")
        return declare_c.made(COMPILER)

    monkeypatch.chdir(tmp_path)
    return of


@pytest.mark.parametrize(
    ("c", "cython"),
    [
        ("int wan_f(void);", ["int wan_f()"]),
        ("static inline int wan_f(int a)\n{\n    if (a) { return 1; }\n    return 0;\n}", ["int wan_f(int a)"]),
        ("void wan_f(const char *text, ...);", ["void wan_f(const char *text, ...)"]),
        ("const uint8_t *wan_f(const uint8_t *restrict from);", ["const uint8_t *wan_f(const uint8_t *from_)"]),
        (
            "void wan_f(uint64_t lowest[256], const char *names[]);",
            ["void wan_f(uint64_t lowest[256], const char **names)"],
        ),
        ("_Bool wan_f(_Bool a);", ["bint wan_f(bint a)"]),
        (
            "void wan_f(void (*tell)(void *owner, int a), void *owner);",
            ["void wan_f(void (*tell)(void *owner, int a) noexcept nogil, void *owner)"],
        ),
        ("extern _Atomic uint32_t wan_count;", ["uint32_t wan_count"]),
        ("static const uint64_t wan_two[2] = {1, 2};", ["const uint64_t wan_two[2]"]),
        ("enum { WAN_A = 1, WAN_B, };", ["enum: WAN_A, WAN_B"]),
        ("typedef enum { WAN_A, WAN_B } wan_e;", ["ctypedef enum wan_e:", "    WAN_A, WAN_B"]),
        ("typedef uint64_t wan_ref;\nwan_ref wan_f(void);", ["ctypedef uint64_t wan_ref", "wan_ref wan_f()"]),
        (
            "typedef struct {\n    uint8_t *at, *end;\n    _Alignas(64) _Atomic uint64_t low;\n    uint8_t half : 4;\n}"
            " wan_s;",
            ["ctypedef struct wan_s:", "    uint8_t *at", "    uint8_t *end", "    uint64_t low", "    uint8_t half"],
        ),
        (
            "typedef struct wan_s wan_s;\nstruct wan_s {\n    wan_s *next;\n    uint64_t from;\n};",
            ["ctypedef struct wan_s", "ctypedef struct wan_s:", "    wan_s *next", '    uint64_t from_ "from"'],
        ),
        ("typedef struct wan_s wan_s;\nwan_s *wan_f(void);", ["ctypedef struct wan_s:", "    pass", "wan_s *wan_f()"]),
        (
            "typedef struct {\n    int kind;\n    union {\n        int a;\n        int b;\n    };\n} wan_s;",
            ["ctypedef struct wan_s:", "    int kind", "    int a", "    int b"],
        ),
        ("#define WAN_A 7", ["enum: WAN_A"]),
        ("#define WAN_A (1ull << 40)\n#define WAN_B (WAN_A - 1)", ["const uint64_t WAN_A", "const uint64_t WAN_B"]),
        ("#define WAN_A (((uint64_t)1 << 48) - 1)", ["const uint64_t WAN_A"]),
        ("#define WAN_A ((int64_t)1 << 40)", ["const int64_t WAN_A"]),
        ('#define WAN_A "words; { and brackets"', ["const char *WAN_A"]),
        ("#define WAN_A(x) (x)\n#define OTHER 7\nint wan_f(void);", ["int wan_f()"]),
        (
            "#define WAN_ROWS(X) X(ONE) X(TWO)\n#define WAN_X(name) WAN_##name,\nenum { WAN_ROWS(WAN_X) };",
            ["enum: WAN_ONE, WAN_TWO"],
        ),
    ],
)
def test_a_form_of_c_becomes_its_declaration(declared, c, cython):
    head, _, body = declared(c)["base"].partition('cdef extern from "base/wan_a.h" nogil:\n')
    assert "libc.stdint cimport" in head
    assert [line.removeprefix("    ") for line in body.splitlines()] == cython


def test_what_has_a_type_that_cython_does_not_know_is_left_out(declared):
    text = declared(
        "#include <pthread.h>\ntypedef struct {\n    pthread_t thread;\n    int a;\n} wan_s;\n"
        "void wan_wait(pthread_t thread);\nint wan_f(void);"
    )["base"]
    assert text.endswith("    ctypedef struct wan_s:\n        int a\n    int wan_f()\n")


def test_a_folder_uses_the_declarations_of_those_whose_types_it_names(declared):
    made = declared(
        "typedef struct {\n    int a;\n} wan_s;",
        store__b='#include "base/wan_a.h"\nvoid wan_f(wan_s *s);',
        record__c="int wan_g(void);",
    )
    assert "from pywan._core.c_base cimport *\n" in made["store"]
    assert "pywan._core" not in made["record"] + made["base"].partition("\n")[2]


def test_an_inner_header_is_not_declared(declared):
    made = declared("int wan_f(void);", base__a_inner="int wan_inner(void);")
    assert "wan_f" in made["base"] and "wan_inner" not in made["base"]


@pytest.mark.parametrize(
    ("c", "words"),
    [
        ("typedef struct {\n    struct {\n        int a;\n    } inner;\n} wan_s;", "no name of its own"),
        ("typedef union {\n    int a;\n    int b;\n} wan_u;", "no name of its own"),
        ("extern void (*wan_calls[3])(int a);", "neither a name"),
        ("extern int (*wan_row)[4];", "neither a name"),
        ("#define WAN_A 0.5", "`WAN_A` is no whole number"),
        ("#define WAN_A 5000000000", "`WAN_A` is larger than 32 bits: its number must end in ull"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_words_of_its_header(declared, c, words):
    with pytest.raises(SystemExit, match=r"csrc/base/wan_a\.h: ") as refused:
        declared(c)
    assert words in str(refused.value)


def test_headers_that_the_compiler_does_not_read_are_refused_with_its_words(declared):
    with pytest.raises(SystemExit, match=r"headers of csrc cannot be read:[^$]*wan_missing\.h"):
        declared('#include "base/wan_missing.h"')


def test_a_file_that_no_folder_makes_any_more_is_removed(declared, tmp_path):
    core = tmp_path / "pywan" / "_core"
    core.mkdir(parents=True)
    declared("int wan_f(void);", store__b="int wan_g(void);")
    declare_c.declare(COMPILER)
    (core / "c_names.pxd").write_text("# Owns what a person wrote.\n")
    (tmp_path / "csrc" / "store" / "wan_b.h").unlink()
    declare_c.declare(COMPILER)
    assert {path.name for path in core.iterdir()} == {"c_base.pxd", "c_names.pxd"}


def test_a_file_is_written_only_if_it_says_something_else(declared, tmp_path):
    declared("int wan_f(void);")
    (tmp_path / "pywan" / "_core").mkdir(parents=True)
    declare_c.declare(COMPILER)
    path = tmp_path / "pywan" / "_core" / "c_base.pxd"
    os.utime(path, (1, 1))
    declare_c.declare(COMPILER)
    assert path.stat().st_mtime == 1
    declared("long wan_f(void);")
    declare_c.declare(COMPILER)
    assert path.stat().st_mtime > 1 and "long wan_f()" in path.read_text()


# What follows is about the headers of this tree.

BLOCK = re.compile(r'cdef extern from "(.*)" nogil:\n((?:    .*\n?)*)')


@pytest.fixture(scope="module")
def made():
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        return declare_c.made(COMPILER)
    finally:
        os.chdir(before)


def test_every_header_that_units_may_use_is_declared(made):
    declared = {header for text in made.values() for header, _ in BLOCK.findall(text)}
    own = {str(path.relative_to(ROOT / "csrc")) for path in ROOT.glob("csrc/*/wan_*.h")}
    assert len(declared) > 40 and declared == {name for name in own if not name.endswith("_inner.h")}


def test_every_file_of_declarations_that_a_unit_uses_is_made_or_written_by_hand(made):
    used = set()
    for path in ROOT.glob("pywan/_core/*/*.p[xy][xd]"):
        used |= set(re.findall(r"pywan\._core\.c_(\w+) cimport", path.read_text()))
    by_hand = {path for path in ROOT.glob("pywan/_core/c_*.pxd") if not path.read_text().startswith("# Made by ")}
    assert used == {*made, *(path.stem.removeprefix("c_") for path in by_hand)}


def test_the_compiler_agrees_with_every_declaration(made):
    """Each declaration becomes a check of the compiler: what the C says has this type."""
    includes, checks = [], []
    for text in made.values():
        for header, body in BLOCK.findall(text):
            includes.append(f'#include "{header}"')
            struct = ""
            for line in body.splitlines():
                if not line.startswith("        "):
                    struct = found[1] if (found := re.match(r"    ctypedef struct (\w+):$", line)) else ""
                    checks += _of_a_line(line.strip())
                elif struct and line.strip() != "pass":
                    checks.append(_of_a_field(struct, line.strip()))
    assert len(checks) > 1_000
    program = "\n".join([*includes, *checks])
    command = [*COMPILER, "-std=c11", "-D_GNU_SOURCE", "-Icsrc", "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, cwd=ROOT, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Fields of some bits. They have no type to ask for.
NARROW = set(re.findall(r"\b(\w+) : \d+\b|HALF\((\w+)", "".join(path.read_text() for path in ROOT.glob("csrc/*/*.h"))))
NARROW = {name for names in NARROW for name in names}


def _in_c(text):
    text = re.sub(r"\bbint\b", "_Bool", text.replace(" noexcept nogil", ""))
    return re.sub(r"\b(from|global|in|is|not|or|and)_\b", r"\1", text).replace("()", "(void)")


def _asked(expression, type_):
    types = [type_]
    if "(" not in expression and "**" in type_:
        types.append(type_.replace("**", "*const *"))  # Cython needs to know nothing of it.
    matches = "".join(f"{one}: 1, " for one in types)
    return f"_Static_assert(_Generic(({expression}), {matches}default: 0), {_quoted(f'{expression} is {type_}')});"


def _quoted(text):
    return '"' + text.replace('"', "'") + '"'


def _of_a_field(struct, field):
    field, _, real = field.partition(' "')
    field = _in_c(field)
    place = f"(({struct} *)0)->"
    if pointer := re.fullmatch(r"(.*?\(\*+)(\w+)(\)\(.*)", field):
        return _asked(place + pointer[2], pointer[1] + pointer[3])
    type_, name, array = re.fullmatch(r"(.*?)(\w+)((?:\[.*\])*)", field).groups()
    name = real.rstrip('"') or name
    if array.count("["):
        dimensions = array.partition("]")
        return _asked(place + name, f"{type_}(*){dimensions[2]}" if dimensions[2] else f"{type_}*")
    if name in NARROW:
        return f"_Static_assert(sizeof({place}{name} + 0) > 0, {_quoted(name)});"
    return _asked(place + name, type_)


def _of_a_line(line):
    if macros := re.fullmatch(r"enum: (.*)", line):
        return [f"_Static_assert(sizeof({name}) == 4, {_quoted(name)});" for name in macros[1].split(", ")]
    if value := re.fullmatch(r"const (u?int\d+_t) (WAN_\w+)", line):
        return [
            f"_Static_assert(sizeof({value[2]}) == sizeof({value[1]}) "
            f"&& (0 * {value[2]} - 1 > 0) == (({value[1]})-1 > 0), {_quoted(value[2])});"
        ]
    if (function := re.fullmatch(r"(.*?)(\w+)\((.*)\)", _in_c(line))) and not line.startswith("ctypedef"):
        return [_asked(f"&{function[2]}", f"{function[1]}(*)({function[3]})")]
    return []
