"""Owns the tables of the documents that are made from the code: `make tables` writes them between their marks.

<!-- table: attributes of gateway-sender -->
...
<!-- end -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pywan import _core
from pywan.cli.commands import COMMANDS
from pywan.cli.grammar import Command
from pywan.config.attributes import THINGS
from pywan.config.member_attributes import MemberAttributes, ServerOptions
from pywan.config.security_attributes import SecurityAttributes
from pywan.config.ssl_attributes import SslAttributes
from pywan.config.table import Row, table
from pywan.limitations import Limitation
from pywan.security import operations
from pywan.security.users import FIRST_ROLES
from pywan.stats import SENDER_GAUGES
from support import role_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
_MARKED = re.compile(r"<!-- table: (.*?) -->\n(.*?)<!-- end -->", re.DOTALL)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(list(heads))]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _attributes(kind: str) -> str:
    cls = THINGS[kind]
    alterable = {row.name for base in cls.__mro__ if base.__name__.endswith("Changes") for row in table(base)}
    return _table(
        ("attribute", "default", "allowed", "meaning"),
        (
            (
                f"`{row.geode_name}`{' (alter)' * (row.name in alterable)}",
                row.shown_default(),
                row.limits(),
                _meaning(row),
            )
            for row in table(cls)
        ),
    )


def _meaning(row: Row) -> str:
    names = []
    if row.option != row.geode_name:
        names.append(f"`--{row.option}` of a command")
    if row.geode_name.replace("-", "_") != row.name:
        names.append(f"`{row.name}` in Python")
    more = row.attribute.more
    return ". ".join([row.attribute.about, *([more] if more else []), *([", ".join(names)] if names else [])])


def _refused(kind: str) -> str:
    return _table(
        ("attribute", "why it has no effect"),
        ((f"`{name.replace('_', '-')}`", why) for name, why in THINGS[kind].refused.items()),
    )


def _commands(group: str) -> str:
    def about(command: Command) -> str:
        return ". ".join([command.help, *([command.more] if command.more else [])])

    shown = [command for command in COMMANDS if command.group == group]
    return _table(
        ("command", "options", "what it does"),
        ((f"`{command.name}`", _options(command), about(command)) for command in shown),
    )


def _options(command: Command) -> str:
    """The command's own options. The attributes of a thing are described in configuration.md, and only linked."""
    kind = next((kind for kind in THINGS if command.name == f"create {kind}"), None)
    of_kind = {row.option for row in table(THINGS[kind]) if not row.is_required} if kind is not None else set()
    shown = [option.name for option in command.options if not option.hidden]
    own = [f"`--{name}`" for name in shown if name not in {*of_kind, "member"}]
    return ", ".join(own) + (", and its [attributes](configuration.md)" if of_kind else "")


def _statistics(whose: str) -> str:
    """Several counters may be one statistic."""
    rows = _core.queue_counter_rows() if whose == "a sender" else _core.receiver_counter_rows()
    found: dict[str, list[str]] = {}
    for _, _, statistic, _, _, about in rows:
        if statistic:
            found.setdefault(statistic, []).append(about)
    for gauge in SENDER_GAUGES if whose == "a sender" else ():
        found[gauge.name] = [gauge.about]
    return _table(("name", "meaning"), ((f"`{name}`", "; ".join(abouts)) for name, abouts in found.items()))


def _counters(whose: str) -> str:
    rows = sorted(_core.queue_counter_rows())
    return _table(("number", "counter", "what it counts"), ((str(row[0]), f"`{row[1]}`", row[5]) for row in rows))


def _failures(whose: str) -> str:
    return _table(("reason", "meaning"), ((str(number), text) for number, text in _core.failure_rows()))


def _record(whose: str) -> str:
    """Two halves of one byte are one row."""
    rows, at, low = [], 0, ""
    for bits, name, about in _core.record_field_rows():
        told = f"`{name}`: {about}"
        if bits == 4 and not low:
            low = told
        elif bits == 4:
            rows.append((str(at), "1", f"low half: {low}; high half: {told}"))
            at, low = at + 1, ""
        else:
            rows.append((str(at), str(bits // 8), told))
            at += bits // 8
    rows.append((str(at), "", "key, value, callback argument, recipients (a byte a site), zeros up to a multiple of 8"))
    return _table(("offset", "bytes", "field"), rows)


def _ssl(whose: str, cls: type = SslAttributes) -> str:
    """The options of encryption or security, whose names in Python are shorter."""
    return _table(
        ("setting", "in Python", "default", "meaning"),
        (
            (
                f"`{row.option}`",
                f"`{row.name}`",
                row.shown_default(),
                ". ".join(filter(None, (row.attribute.about, row.attribute.more))),
            )
            for row in table(cls)
        ),
    )


def _member(whose: str) -> str:
    """The arguments of a cache. Those that `start server` has too come with the names of their options."""
    options = {row.name: f"`{row.option}`" for row in table(ServerOptions)}
    return _table(
        ("setting", "in Python", "default", "allowed", "meaning"),
        (
            (
                options.get(row.name, ""),
                f"`{row.name}`",
                row.shown_default(),
                row.limits(),
                ". ".join(filter(None, (row.attribute.about, row.attribute.more))),
            )
            for row in table(MemberAttributes)
        ),
    )


def _security(whose: str) -> str:
    return _ssl(whose, SecurityAttributes)


def _operations(whose: str) -> str:
    of = operations.MEMBER if whose == "a member" else operations.LOCATOR
    by_needs: dict[str, list[str]] = {}
    for op, needs in sorted(of.items()):
        by_needs.setdefault(str(needs), []).append(f"`{op}`")
    rows = ((f"`{needs}`", ", ".join(found)) for needs, found in sorted(by_needs.items()))
    return _table((f"permission, at {whose}", "operations"), rows)


def _roles(whose: str) -> str:
    rows = ((f"`{name}`", ", ".join(f"`{each}`" for each in has)) for name, has in FIRST_ROLES.items())
    return _table(("role", "permissions"), rows)


def _identities(whose: str) -> str:
    rows = (role_table.words(identity) for identity in role_table.IDENTITIES.values())
    return _table(("identity", "sees", "changes", "stops", "learns at most"), rows)


def _limitations(topic: str) -> str:
    def row(each: Limitation) -> tuple[str, str, str]:
        return (
            each.sentence(**each.shown),
            each.instead(**each.shown),
            f"[{each.page.partition('#')[0]}]({each.page})",
        )

    found = [row(each) for each in Limitation if each.topic == topic]
    return _table(("what is not there", "what to do instead", "more"), found)


MAKERS: dict[str, Callable[[str], str]] = {
    "attributes of": _attributes,
    "refused attributes of": _refused,
    "commands of": _commands,
    "statistics of": _statistics,
    "counters of": _counters,
    "reasons of": _failures,
    "fields of": _record,
    "settings of": _member,
    "ssl options": _ssl,
    "security options": _security,
    "operations of": _operations,
    "roles of": _roles,
    "identities and": _identities,
    "limitations of": _limitations,
}


def made(title: str) -> str:
    """The table of that title; KeyError if there is none."""
    for head, make in MAKERS.items():
        if title == head or title.startswith(head + " "):
            return make(title.removeprefix(head).strip())
    raise KeyError(f"no table is called {title!r}; there are {', '.join(MAKERS)}")


def tables_of(text: str) -> list[tuple[str, str]]:
    """(title, what stands there) of a page."""
    return [(found[1], found[2]) for found in _MARKED.finditer(text)]


def written(text: str) -> str:
    """A page with its tables as the code has them."""
    return _MARKED.sub(lambda found: f"<!-- table: {found[1]} -->\n{made(found[1])}<!-- end -->", text)


def main() -> int:
    for page in PAGES:
        before = page.read_text()
        after = written(before)
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)} was written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
