"""Chooses what sees a change of some files, by the rules in rules.toml and by facts: names and imports of tests."""

from __future__ import annotations

import ast
import functools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = Path("tests/changed/rules.toml")
SECONDS = Path("tests/changed/seconds.json")

C_TESTS = "tests/c"  # What the C tests are called in the measured seconds.
BUDGET_S = 60.0  # How long the choice for one file may take on two cores.
WORKERS = 4  # So many tests run at once (Makefile), when they are measured and when they are chosen.
CORES = 2
START_S = 6.0  # pytest starts its workers and collects the tests.
UNMEASURED_S = 10.0  # A test file that was not measured yet is taken to last so long.
UNMEASURED_TEST_S = 2.0  # So is a single test.


@dataclass(frozen=True)
class Rule:
    room: str  # A folder, or a file, from the root of the tree; without a slash at its end.
    tests: tuple[str, ...] = ()  # Test files without `.py`; or single tests of one: "test_x::test_y".
    c_tests: bool = False
    worlds: tuple[tuple[str, int], ...] = ()  # "simulator/tombstones", and how many seeds of it.

    @property
    def is_file(self) -> bool:
        return (ROOT / self.room).is_file()

    def covers(self, file: str) -> bool:
        return file == self.room or file.startswith(f"{self.room}/")


@dataclass
class Choice:
    """What is to run, and why."""

    tests: dict[str, str] = field(default_factory=dict)  # The reason by the test file, or test, that it chose.
    c_tests: str = ""  # The reason to run the C tests. Empty: they do not run.
    worlds: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)  # A line for each rule or fact that chose something.
    left_out: list[str] = field(default_factory=list)  # Tests that a fact names, and for which the minute has no room.
    unknown: list[str] = field(default_factory=list)  # Files that no rule covers.

    def add(self, other: Choice) -> None:
        """Takes what another choice has, too."""
        for test, why in other.tests.items():
            self.tests.setdefault(test, why)
        self.c_tests = self.c_tests or other.c_tests
        for world, seeds in other.worlds.items():
            self.worlds[world] = max(seeds, self.worlds.get(world, 0))
        self.reasons += [each for each in other.reasons if each not in self.reasons]
        self.left_out += other.left_out
        self.unknown += other.unknown

    def test_arguments(self, files: Mapping[str, str]) -> list[str]:
        """Returns the tests as pytest takes them, without single tests of files that run whole. `files` has the file of
        each name."""
        return [
            files[name] + (f"::{single}" if single else "")
            for name, _, single in (test.partition("::") for test in sorted(self.tests))
            if not single or name not in self.tests
        ]


class Tree:
    """A tree with its rules, its measured seconds, and what its tests import."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.rules = read_rules(root / RULES)
        self.seconds: dict[str, float] = json.loads((root / SECONDS).read_text())
        self.tests = find_tests(root)

    @functools.cached_property
    def _imports(self) -> dict[str, set[str]]:
        """What tests and the modules that they share import, by their names. A test imports the `conftest.py` beside
        it, and what that imports."""
        folder = self.root / "tests"
        files = [*folder.glob("*.py"), *folder.glob("support/*.py"), *folder.glob("*/conftest.py")]
        found = {module_of(file.relative_to(folder)): imports_of(file) for file in files}
        for test, file in self.tests.items():
            beside = module_of(PurePath(file).relative_to("tests").with_name("conftest.py"))
            found[test] = imports_of(self.root / file) | ({beside} | found[beside] if beside in found else set())
        return found

    def choose(self, files: Iterable[str]) -> Choice:
        chosen = Choice()
        for file in files:
            chosen.add(self._choose_for(file))
        kept = [each for each in dict.fromkeys(chosen.left_out) if each not in chosen.tests]
        chosen.left_out = kept
        return chosen

    def seconds_of(self, choice: Choice) -> float:
        """Returns how long a choice takes on two cores, by what was measured: the tests with others beside them, the C
        tests and the seeds of worlds on a core of their own."""
        tests = sum(self._test_seconds(test) for test in choice.tests) / WORKERS
        beside = self.seconds.get(C_TESTS, UNMEASURED_S) if choice.c_tests else 0.0
        beside += sum(seeds * self.seconds.get(world, 1.0) for world, seeds in choice.worlds.items())
        return (START_S if tests else 0.0) + max(tests + beside / CORES, beside)

    def rules_for(self, file: str) -> list[Rule]:
        """Returns the rules of the folders that a file is in, the widest first."""
        return sorted((rule for rule in self.rules if rule.covers(file)), key=lambda rule: len(rule.room))

    def _test_seconds(self, test: str) -> float:
        return self.seconds.get(test, UNMEASURED_TEST_S if "::" in test else UNMEASURED_S)

    def _choose_for(self, file: str) -> Choice:
        path, chosen = PurePosixPath(file), Choice()
        if self.tests.get(path.stem) == file:
            chosen.tests[path.stem] = f"{file} is changed"
            chosen.reasons.append(f"{file}: itself")
            return chosen
        rules = self.rules_for(file)
        for rule in rules:
            chosen.add(choice_of_rule(rule))
        if path.parts[0] in ("pywan", "csrc"):
            named = [test for test in self.tests if test == f"test_{path.stem.removeprefix('wan_')}"]
            self._fill(chosen, named, f"{file}: by its name")
        self._fill(chosen, self._importing(path), f"{file}: imported by")
        if not rules and not chosen.tests and path.parts[0] != "tests":
            chosen.unknown.append(file)
        return chosen

    def _fill(self, chosen: Choice, tests: list[str], why: str) -> None:
        """Adds tests that a fact names while the minute has room for them, the shortest first."""
        added = []
        for test in sorted(tests, key=self._test_seconds):
            if test in chosen.tests:
                continue
            chosen.tests[test] = why
            if self.seconds_of(chosen) > BUDGET_S and len(chosen.tests) > 1:
                del chosen.tests[test]
                chosen.left_out.append(test)
            else:
                added.append(test)
        if added:
            chosen.reasons.append(f"{why} {', '.join(added)}" if "import" in why else f"{why}: {', '.join(added)}")

    def _importing(self, path: PurePosixPath) -> list[str]:
        """Returns the tests that import a module: one of the product directly, a helper of tests also by others."""
        if path.suffix != ".py":
            return []
        if path.parts[0] != "tests":
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            return [test for test in self.tests if module in self._imports[test]] if module != "pywan" else []
        wanted = {module_of(path.relative_to("tests"))}
        while True:
            more = {name for name, imports in self._imports.items() if imports & wanted} - wanted
            if not more:
                return [test for test in self.tests if test in wanted]
            wanted |= more


def find_tests(root: Path) -> dict[str, str]:
    """Returns the test files of a tree, from its root, by their names. No two have one name."""
    return {file.stem: str(file.relative_to(root)) for file in sorted((root / "tests").rglob("test_*.py"))}


def module_of(file: PurePath) -> str:
    """Returns the name under which tests import a file of their folder: that of a package stands for all of it."""
    is_one = file.parts[0] == "support" or file.name == "conftest.py"
    return ".".join(file.with_suffix("").parts) if is_one else file.parts[0].removesuffix(".py")


def choice_of_rule(rule: Rule) -> Choice:
    why = rule.room if rule.is_file else f"{rule.room}/"
    told = [*rule.tests, *(["the C tests"] if rule.c_tests else [])]
    told += [f"{seeds} seeds of {world}" for world, seeds in rule.worlds]
    return Choice(
        dict.fromkeys(rule.tests, why), why if rule.c_tests else "", dict(rule.worlds), [f"{why}: {', '.join(told)}"]
    )


def read_rules(file: Path) -> list[Rule]:
    return [
        Rule(room, tuple(told.get("tests", ())), told.get("c_tests", False), tuple(told.get("worlds", {}).items()))
        for room, told in tomllib.loads(file.read_text()).items()
    ]


def statements(part: ast.AST) -> Iterator[ast.AST]:
    """Returns the statements of a part of a program, with those that they contain. It looks into no expression."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(part, name, None)
        for each in inner if isinstance(inner, list) else []:  # An expression may have a body too.
            yield each
            yield from statements(each)


def imports_of(file: Path) -> set[str]:
    """Returns the modules that a file imports, with the packages that those are in if they are helpers of tests."""
    found: set[str] = set()
    for node in statements(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{name}" for name in names)]
        for name in names:
            found |= {name} if name.split(".")[0] == "pywan" else {name, name.split(".")[0]}
    return found
