"""The documents are right: numbers are those of the code; links, tests and commands that they name are there."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pywan import _core
from pywan.cli import grammar
from pywan.cli.commands import COMMANDS
from pywan.config import attributes, cache_xml
from pywan.stats import ledger
from pywan.testing import TwoSites, eventually, two_sites
from support.tree import ROOT

pytestmark = pytest.mark.lint

SOURCES = [
    re.sub(r"\s*\\\n\s*", " ", path.read_text())  # A definition may go on in the next line.
    for pattern in ("pywan/**/*.py", "pywan/_core/**/*.pyx", "pywan/_core/**/*.pxd", "csrc/*/*.h")
    for path in sorted(ROOT.glob(pattern))
]


def rows_of_limits() -> Iterator[tuple[str, str, str]]:
    """(limit, value, name) of the table of limits."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[2].startswith("`"):
            yield cells[0], cells[1], cells[2]


def values_of(name: str) -> set[float]:
    """The values of all constants with that name that are defined as a number."""
    name = name.rpartition(".")[2]
    found = set()
    for source in SOURCES:
        for expression in re.findall(
            rf"^\s*(?:#define\s+{name}\s+|{name}(?:: \w+)? = )"
            r"([0-9][0-9_.]*u?(?: ?(?:\*|<<) ?[0-9][0-9_]*u?)*|\([0-9][0-9u <]*\))",
            source,
            re.MULTILINE,
        ):
            found.add(eval(re.sub(r"(?<=[0-9])u\b", "", expression)))
    return found


def written(name: str, value: float) -> set[str]:
    """The ways in which a document may write it."""
    ways = {f"{value:,.0f}"} if value == int(value) else set()
    for unit, scale in (("_US", 1e6), ("_MS", 1e3), ("_S", 1)):
        if name.endswith(unit):
            ways = {f"{value / scale:,g} s", f"{value / scale * 1000:,g} ms"}
    for unit, scale in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if value % scale == 0 and not name.endswith(("_US", "_MS", "_S")):
            ways.add(f"{int(value) // scale} {unit}")
    return ways


@pytest.mark.parametrize(
    "limit, value, names", list(rows_of_limits()), ids=lambda text: re.sub(r"[^a-z ]", "", text.lower())[:40]
)
def test_the_table_of_limits_says_what_the_code_has(limit, value, names):
    for name in re.findall(r"`([A-Za-z.]*[A-Z]{3}[A-Z_]*)`", names):
        values = values_of(name)
        assert values, f"the documents name {name} under {limit!r}, and the code has no such constant"
        ways = set().union(*(written(name, each) for each in values))
        assert any(re.search(rf"(?<![\d,]){re.escape(way)}(?!\d|,\d)", value) for way in ways), (
            f"{limit}: the documents say {value}, and {name} is {' or '.join(sorted(ways))}"
        )


@pytest.mark.parametrize(
    "page",
    [path for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md") for path in sorted(ROOT.glob(pattern))],
    ids=lambda path: path.name,
)
def test_a_link_between_documents_leads_somewhere(page):
    for target, _, place in re.findall(r"\]\((?!https?:)([^)#\s]*)(#([^)\s]*))?\)", page.read_text()):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if place:
            headings = {
                re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in found.read_text().splitlines()
                if line.startswith("#")
            }
            assert place in headings, f"{page.name} links to {target}#{place}, and there is no such heading"


# Numbers in sentences: (page, the words around the number, the constant). A number may stand before or behind words.
SAID = [
    ("architecture.md", "the rest waits, up to {} without a row that goes in", "FULL_WAIT_S"),
    ("architecture.md", "no progress for {} with something in flight", "RECEIVE_TIMEOUT_US"),
    ("architecture.md", "retry after {}, then twice as long", "FIRST_RETRY_S"),
    ("architecture.md", "dispatcher not back after {}", "JOIN_TIMEOUT_S"),
    ("architecture.md", "lease {}", "MEMBER_TIMEOUT_US"),
    ("architecture.md", "the replica promises for {} to adopt", "WAN_READ_LEASE_US"),
    ("architecture.md", "sends the call again, for {} in all", "CALL_TIMEOUT_S"),
    ("architecture.md", "up to {} may be on their way", "WINDOW_BYTES"),
    ("architecture.md", "carries `high_watermark` to the replicas, within {} if", "TELL_US"),
    ("architecture.md", "If that takes more than {}, the replica asks", "REPLICA_WAIT_MS"),
    ("architecture.md", "only if the new primary is not ready within {}", "HANDOVER_US"),
    ("architecture.md", "no connection for {}, or no answer", "UNREACHABLE_US"),
    ("architecture.md", "listeners of a shared region {} behind", "WAN_NOTIFICATIONS_BYTES_MAX"),
    ("architecture.md", "fills `maximum-backlog-memory` ({} MB)", "BACKLOG_MEMORY_MB"),
    ("cli.md", "After {} it sends SIGTERM", "STOP_TIMEOUT_S"),
    ("cli.md", "after {} more SIGKILL", "SIGNAL_TIMEOUT_S"),
    ("cli.md", "a regular file of at most {}", "MAX_SCRIPT_BYTES"),
    ("coming-from-geode.md", "{} without progress of the receiver", "RECEIVE_TIMEOUT_US"),
    ("coming-from-geode.md", "{} at first, then up to `retry-interval-ms`", "FIRST_RETRY_S"),
    ("coming-from-geode.md", "off its list after {} without word", "MEMBER_TIMEOUT_US"),
    ("coming-from-kafka.md", "`total-num-buckets` is {} unless", "RegionAttributes.total_num_buckets"),
    ("configuration.md", "pause before that is {} at first", "FIRST_RETRY_S"),
    ("configuration.md", "`socket-read-timeout` | 0 ms | 1 or more; 0: {}", "RECEIVE_TIMEOUT_US"),
    ("discovery.md", "length of the payload, at most {}", "MAX_PAYLOAD_BYTES"),
    ("discovery.md", "a frame not whole after {}", "FRAME_TIMEOUT_S"),
    ("discovery.md", "{} without a request", "IDLE_TIMEOUT_S"),
    ("operations.md", "{} is Geode's default", "SenderAttributes.batch_size"),
    ("operations.md", "more than {} ahead of the receiver's clock", "DRIFT_MS"),
    ("operations.md", "more than {} ahead of the time that has passed", "WAN_CLOCK_TRUST_MS"),
    ("operations.md", "receiver every {} a **floor**", "HOUSEKEEPING_S"),
    ("security.md", "has {} from accept on", "OPENING_TIMEOUT_S"),
    ("security.md", "{} connections of a port may be half open", "MAX_OPENINGS"),
    ("security.md", "has {} from its first byte", "FRAME_TIMEOUT_S"),
    ("wire_format.md", "the other side waits {} for it", "OPENING_TIMEOUT_S"),
    ("wire_format.md", "`value_length`: length of the value, at most {}", "WAN_VALUE_BYTES_MAX"),
]


def default_of(name: str) -> float:
    kind, _, attribute = name.partition(".")
    return float(getattr(getattr(attributes, kind), attribute))


@pytest.mark.parametrize("page, words, name", SAID, ids=lambda text: re.sub(r"[^a-zA-Z_. ]", "", text)[:40].strip())
def test_a_number_in_a_sentence_is_that_of_the_code(page, words, name):
    text = " ".join((ROOT / "docs" / page).read_text().split())
    values = {default_of(name)} if "." in name else values_of(name)
    assert values, f"the code has no {name}"
    ways = sorted(set().union(*(written(name, value) for value in values)))
    assert any(words.format(way) in text for way in ways), f"{page} does not say {words.format(ways[0])!r} ({name})"


def test_the_ledger_of_the_page_is_that_of_the_code():
    """Its table has the entries of the ledger, and its two sums are those that the code balances."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("\n## The ledger\n")[2].partition("\n## ")[0]
    counters = {field for _, field, *_ in _core.queue_counter_rows()}
    fields = sorted(counters | {"conflated", "forgotten", "removed_by_primary", "events"})
    entry = ledger({field: 3 ** (n % 23) + n for n, field in enumerate(fields)})
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(entry.keys() - {"balanced"})

    values = {name: sum(value.values()) if isinstance(value, dict) else value for name, value in entry.items()}
    sums = re.findall(r"^ {4}(\w+) += (\w+(?:\s+\+ \w+)*)$", text, re.MULTILINE)
    assert [whole for whole, _ in sums] == ["received", "queued"]
    rests = [values[whole] - sum(values[part] for part in re.findall(r"\w+", parts)) for whole, parts in sums]
    assert sum(map(abs, rests)) == entry["unexplained"] > 0


def test_defaults_of_calls_are_those_of_the_code():
    text = (ROOT / "docs" / "python.md").read_text()
    for name, call in (("settle", TwoSites.settle), ("eventually", eventually), ("two_sites", two_sites)):
        said = re.search(rf"`(?:sites\.)?{name}\((.*?)\)`", text)
        assert said, f"python.md does not show the arguments of {name}"
        found = inspect.signature(call).parameters
        for argument, value in re.findall(r"(\w+)=([^,)]+)", said[1]):
            assert repr(found[argument].default) == value, f"{name}({argument}={value})"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_tests_that_a_page_names_are_there(page):
    for file, name in re.findall(r"(tests/(?:\w+/)?test_\w+\.py)(?:::(\w+))?", page.read_text()):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
        assert f"def {name}(" in (ROOT / file).read_text() if name else True, f"{page.name} names {file}::{name}"


STATUSES = ("shown", "later: several members", "not in this version: ", "no test yet")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "conformance").glob("*.md")), ids=lambda path: path.name)
def test_each_row_of_a_conformance_list_has_its_status_and_what_is_shown_its_test(page):
    rows = re.findall(r"^\| ((?:C-)?\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", page.read_text(), re.MULTILINE)
    assert len(rows) > 30 and len({row for row, *_ in rows}) == len(rows)
    for row, _words, status, test in rows:
        assert status.startswith(STATUSES), f"{page.name} {row}: {status}"
        assert "::test_" in test or not status.startswith("shown"), f"{page.name} {row} names no test"


@functools.cache
def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    parts = ast.parse((ROOT / file).read_text()).body
    return {each.name: each for each in parts if isinstance(each, ast.FunctionDef)}


def is_left_to_the_night(file: str, name: str) -> bool:
    """Whether only `make nightly` runs a test. One whose mark is that of some arguments runs with the others."""
    test = functions_of(file)[name]
    return "pytest.mark.nightly" in map(ast.unparse, test.decorator_list)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "conformance").glob("*.md")), ids=lambda path: path.name)
def test_each_row_of_a_conformance_list_rests_on_a_test_that_ci_runs(page):
    """That runs what `make lint`, `make test` and `make test-long` do."""
    steps = re.findall(r"^step .* (make (?:lint|test|test-long))$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert steps == ["make lint", "make test", "make test-long"]
    for row in re.findall(r"^\| .*`tests/.*\|$", page.read_text(), re.MULTILINE):
        tests = re.findall(r"(tests/(?:\w+/)?test_\w+\.py)::(\w+)", row)
        assert not all(is_left_to_the_night(*each) for each in tests), f"only `make nightly` shows {row}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_block_of_code_can_be_read(page):
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if kind == "python":
            compile(block, page.name, "exec")
        elif kind == "xml":
            classes = r"<(gateway-event-filter|gateway-conflict-resolver|cache-listener|async-event-queue)\b.*?</\1>"
            cache_xml.parse_bytes(re.sub(classes, "", block, flags=re.DOTALL).encode())  # They cannot be imported here.
        elif kind == "sh":
            read = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
            assert read.returncode == 0, read.stderr


def shell_lines(page: Path) -> Iterator[str]:
    """The lines of a page that run the program, put together where they go on."""
    text = page.read_text().replace("\\\n", " ")
    code = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    code += "\n".join(re.findall(r"^ {4}.*$", text, re.MULTILINE))
    yield from re.findall(r"^\s*(?:\w+=\S+ )?(?:pywan|gfsh) ([-\w].*)$", code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_line_of_the_shell_fits_the_grammar(page):
    for line in shell_lines(page):
        words = shlex.split(line, comments=True)
        if words[0] in ("demo", "-e") or words[0].startswith("--locator="):
            commands = [words[place + 1] for place, word in enumerate(words) if word == "-e"]
            commands = commands or [shlex.join(words[1:])] * (words[0] != "demo")
        else:
            commands = [shlex.join(words)]
        for command in commands:
            grammar.parse(grammar.tokenize(command), COMMANDS)


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text()
    navigation = settings.partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT}
    assert len(named) == len(set(named))
    # docs/site_hooks.py adds these, and gives docs/README.md the name that is here.
    assert set(named) == pages - {"README.md"} | {"index.md", "documents.md", "contributing.md", "changelog.md"}


def test_the_list_of_decisions_has_each_with_its_title():
    listed = re.findall(
        r"^\| \[(\d+)\]\((decisions/[^)]+)\) \| (.+) \|$", (ROOT / "docs" / "README.md").read_text(), re.M
    )
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [(f"# {number} {title}", page) for number, page, title in listed] == [
        (page.read_text().partition("\n")[0], f"decisions/{page.name}") for page in pages
    ]


# Words of names that need no row in the glossary: plain English, and terms of programming, Kafka or Raft.
PLAIN_WORDS = {
    *(
        "actions",
        "aim",
        "attributes",
        "encoding",
        "id",
        "key",
        "kind",
        "messages",
        "peer",
        "pool",
        "server",
    ),
    *("for", "last", "leave", "may", "reasons", "refused", "reports", "services", "store", "tell"),
    *("head", "host", "join", "most", "name", "news", "of", "plain", "range", "text"),
    *("admission", "choice", "named", "outbox", "status", "step", "telling"),
    *("changed", "extended", "given", "hosted", "needed", "remembered", "request", "still", "up"),
    *("answer", "asked", "caller", "candidates", "clocks", "coordination", "decision", "holders", "holding", "journal"),
    *("known", "lead", "learner", "leaver", "liveness", "load", "lost", "mark", "move", "placement", "profile"),
    *("promise", "proofs", "question", "reach", "route", "run", "since", "succession", "table", "takeover"),
    *("unclean", "wrong"),
}


def glossary() -> set[str]:
    """The words of the glossary, each as it stands there and without the s of a plural."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    words = " ".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)).split()
    return {form for word in words for form in (word, word.removesuffix("s"))}


def words_of_names(folder: str) -> dict[str, str]:
    """The words of the names of modules and classes, each with a name that has it."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "pywan" / folder).glob("*.py")):
        classes = [each.name for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ClassDef)]
        for name in [folder, *classes, *([] if path.stem == "__init__" else [path.stem])]:
            found.update((word.lower(), name) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))
    return found


@pytest.mark.parametrize("folder", ["coordination", "replication", "calls"])
def test_the_glossary_has_the_words_of_the_names(folder):
    known = glossary() | PLAIN_WORDS
    missing = {
        word: name
        for word, name in words_of_names(folder).items()
        if not {word, word.removesuffix("s"), re.sub("ies$", "y", word), re.sub("ves$", "fe", word)} & known
    }
    assert not missing, f"docs/glossary.md does not say what these words of names mean: {missing}"


def test_a_plain_word_is_in_a_name_and_not_in_the_glossary():
    used = set().union(*(words_of_names(folder) for folder in ("coordination", "replication", "calls")))
    assert used >= PLAIN_WORDS and not PLAIN_WORDS & glossary()
