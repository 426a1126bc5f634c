"""Owns the check of who waits for a lock of the core with the GIL held: nobody does. It reads the sources. A compiled
function that may sleep for a lock is called without the GIL, or between `gil_may_go` and `gil_back` (base/gil.pxd)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = {"wan_lock_take", "wan_lock_wait", "wan_wait_change"}  # Each of them may sleep.
OF_PYTHON = {".write", ".deliver"}  # Names that Python's objects have too: those of ssl, and of our members.
LETS_GO = "gil_may_go"  # A function that calls it waits without the GIL.

C_FUNCTION = re.compile(
    r"^(?!typedef|struct|enum|#)[\w ]+?[ *](\w+)\([^;{}]*\)\s*\{(?:([^\n]*)\}$|\n(.*?)^\})", re.DOTALL | re.MULTILINE
)
CY_FUNCTION = re.compile(r"\s*(?:cdef|cpdef|def)\b[^=\n]*?\b(\w+)\(")
CALL = re.compile(r"(\.?)\b(\w+)\(")


class Line(NamedTuple):
    place: str  # The file and the line.
    text: str


class Function(NamedTuple):
    name: str  # That of a method begins with a dot.
    is_nogil: bool
    with_gil: list[Line]
    without: list[Line]


def c_functions() -> dict[str, str]:
    """The bodies by name. Two static functions of one name count as one."""
    bodies: dict[str, str] = {}
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        for found in C_FUNCTION.finditer(path.read_text()):
            bodies[found[1]] = bodies.get(found[1], "") + (found[2] or found[3] or "")
    return bodies


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines without comments, texts of documentation and what a call goes on with in the next lines' places."""
    text = re.sub(r'"""(?:.|\n)*?"""', lambda found: '""' + "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        line = re.sub(r"\s*#.*", "", line)
        if line.strip():
            yield number, line


def cython_functions(path: Path) -> Iterator[Function]:
    lines = list(code_lines(path.read_text()))
    function: Function | None = None
    blocks: list[tuple[int, bool]] = []  # The indent of each `with nogil` or `with gil`, and whether it has the GIL.
    at = 0
    while at < len(lines):
        number, line = lines[at]
        begins = CY_FUNCTION.match(line)
        if begins:
            head = line
            while not head.endswith(":") and head.count("(") != head.count(")"):
                at += 1
                head += " " + lines[at][1].strip()
            if head.endswith(":"):
                name = "." * bool(indent_of(line)) + begins[1]
                function, blocks = Function(name, "nogil" in head[head.rindex(")") :], [], []), []
                yield function
                at += 1
                continue
            if head.startswith("    cdef ") and " = " not in head:  # What a class has, in an interface.
                at += 1
                continue
        blocks = [block for block in blocks if indent_of(line) > block[0]]
        if line.strip() in ("with nogil:", "with gil:"):
            blocks.append((indent_of(line), line.strip() == "with gil:"))
        elif function is not None and indent_of(line):
            has_gil = blocks[-1][1] if blocks else not function.is_nogil
            (function.with_gil if has_gil else function.without).append(
                Line(f"{path.relative_to(ROOT)}:{number}", line)
            )
        else:
            function = None
        at += 1


def called(lines: list[Line]) -> set[str]:
    return {dot + name for line in lines for dot, name in CALL.findall(line.text)}


def grown(waits: set[str], definitions: list[tuple[str, set[str]]]) -> set[str]:
    """`waits`, and all functions that call one of these."""
    while True:
        more = {name for name, calls in definitions if calls & waits} - waits
        if not more:
            return waits
        waits = waits | more


def functions() -> list[Function]:
    paths = [path for path in sorted((ROOT / "pywan/_core").rglob("*.p[yx][xd]")) if path.suffix in (".pyx", ".pxd")]
    return [each for path in paths if not path.name.startswith("c_") for each in cython_functions(path)]


def waiting() -> set[str]:
    """The compiled functions that may sleep for a lock with whatever their caller holds. Several classes may have
    methods of one name, and the check does not know whose is called: it counts if one of them may sleep, and all are
    compiled.
    """
    in_c = grown(SLEEPS, [(name, set(re.findall(r"\b(\w+)\(", body))) for name, body in c_functions().items()])
    others = {each.name for each in functions() if not goes_without(each) and each.name[0] == "."} | OF_PYTHON
    compiled = [
        (each.name, called(each.without)) for each in functions() if goes_without(each) and each.name not in others
    ]
    return grown({name for name in in_c if name.startswith("wan_")}, compiled)


def goes_without(function: Function) -> bool:
    """Whether it is compiled code that waits with what its caller holds."""
    return function.is_nogil and LETS_GO not in called(function.without)


def test_nobody_waits_for_a_lock_of_the_core_with_the_gil():
    waits = waiting()
    assert {"region_change", "wan_changelog_reserve", "queue_count", "wan_store_take"} <= waits, (
        "the check sees nothing"
    )
    found = [
        f"{line.place}: {name} may wait for a lock, and the GIL is held"
        for each in functions()
        for line in each.with_gil
        for name in called([line])
        if name in waits
    ]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    test_nobody_waits_for_a_lock_of_the_core_with_the_gil()
