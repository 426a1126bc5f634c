"""Owns what a command that members carry out is: its options, what it keeps, and how answers are shown to people. The
methods of member/management.py have one each; the command line is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pywan.config.attributes import THINGS
from pywan.config.table import naming, table

Method = TypeVar("Method", bound=Callable[..., Any])
Answer = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """One option. `field` is its name in the values (its own in snake_case if not given)."""

    name: str
    help: str = ""
    required: bool = False
    flag: bool = False  # May stand without a value, which means true.
    many: bool = False  # May be there several times: the value is a list.
    field: str = ""
    hidden: bool = False  # An older or second name.
    variable: str = ""  # The environment variable that gives the value where the command line does not.
    words: tuple[str, ...] = ()  # The values that it can have, for completion; (): they are not known beforehand.

    @property
    def key(self) -> str:
        return self.field or self.name.replace("-", "_")


@dataclass(frozen=True)
class Shown:
    """How the answers of members are shown: a table with a row for each answer, or for each item of a list in it."""

    columns: Mapping[str, str | Callable[[Answer], Any]] = field(default_factory=dict)  # {}: as many as the items have.
    items: str | Callable[[Answer], list[Answer]] = ""  # The list in an answer, or what makes it; "": the answer.
    none: str = ""  # What is said where there is no row.
    line: Callable[[Answer], str] | None = None  # In place of the table: a line for each answer.
    fault: Callable[[Answer], str] | None = None  # What makes an answer a failure; "": nothing.


@dataclass(frozen=True)
class MemberCommand:
    """What a method that answers a command says of it."""

    group: str
    help: str
    options: tuple[Option, ...] = ()
    more: str = ""  # What the documents add.
    keeps: str = ""  # put, alter or remove: what becomes of the thing in the cluster configuration.
    shown: Shown | None = None  # None: a row for each member, with the `status` of its answer.


def command(
    group: str,
    help: str,
    *options: Option | tuple[Option, ...],
    more: str = "",
    keeps: str = "",
    shown: Shown | None = None,
) -> Callable[[Method], Method]:
    """Makes a command of a method `on_VERB_THING`: `verb thing`. Its options are the method's parameters."""
    whole = tuple(option for each in options for option in (each if isinstance(each, tuple) else (each,)))

    def decorate(method: Method) -> Method:
        setattr(method, "command", MemberCommand(group, help, whole, more, keeps, shown))
        return method

    return decorate


def name_of(method: str) -> str:
    """What the method `on_list_parked_events` answers: `list parked-events`."""
    return method.removeprefix("on_").replace("_", " ", 1).replace("_", "-")


def commands_of(cls: type) -> dict[str, MemberCommand]:
    """Those of a class, by name, in the order in which they stand there."""
    return {name_of(name): method.command for name, method in vars(cls).items() if hasattr(method, "command")}


def attribute_options(kind: str, changes: type | None = None) -> tuple[Option, ...]:
    """The attributes of a kind of thing; with `changes`, its name and those that can be altered."""
    cls = THINGS[kind]
    named = [row for row in table(cls) if row.name == naming(cls)]
    options = []
    for row in table(cls) if changes is None else (*named, *table(changes)):
        words = row.attribute.words
        options.append(
            Option(row.option, row.help(), required=row.is_required, flag=row.is_flag, field=row.name, words=words)
        )
        options += [Option(alias, field=row.name, hidden=True) for alias in row.attribute.aliases]
    refused = [Option(name.replace("_", "-"), hidden=True) for name in cls.refused] if changes is None else []
    return (*options, *refused)
