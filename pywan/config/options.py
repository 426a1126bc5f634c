"""Owns what a command that members carry out consists of: its options, what it stores, and how answers are shown to
people.

Methods of member/management.py are such commands. The command line is made from them.
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
    """One option. `field` is its name in the values: by default its own name in snake_case."""

    name: str
    help: str = ""
    required: bool = False
    flag: bool = False  # It may be given without a value, which means true.
    many: bool = False  # It may be given several times. Its value is a list.
    field: str = ""
    hidden: bool = False  # It is an older or second name of another option.
    variable: str = ""  # The environment variable that gives the value if the command line does not.
    words: tuple[str, ...] = ()  # The values that it can have, for completion. (): they are not known beforehand.

    @property
    def key(self) -> str:
        return self.field or self.name.replace("-", "_")


@dataclass(frozen=True)
class Shown:
    """How the answers of members are shown: in a table, with a row for each answer, or for each item of a
    list in it."""

    # {}: the columns are those of the items.
    columns: Mapping[str, str | Callable[[Answer], Any]] = field(default_factory=dict)
    # The list in an answer, or a function that returns it. "": the answer itself.
    items: str | Callable[[Answer], list[Answer]] = ""
    none: str = ""  # The text if there is no row.
    line: Callable[[Answer], str] | None = None  # If given, there is no table, but this line for each answer.
    fault: Callable[[Answer], str] | None = None  # Returns why an answer counts as a failure. "": it does not.


@dataclass(frozen=True)
class MemberCommand:
    """What a method that carries out a command tells about it."""

    group: str
    help: str
    options: tuple[Option, ...] = ()
    more: str = ""  # Text that only the documents show.
    keeps: str = ""  # "put", "alter" or "remove": what happens to the thing in the cluster configuration.
    shown: Shown | None = None  # None: there is a row for each member, with the `status` of its answer.


def command(
    group: str,
    help: str,
    *options: Option | tuple[Option, ...],
    more: str = "",
    keeps: str = "",
    shown: Shown | None = None,
) -> Callable[[Method], Method]:
    """Makes a method `on_VERB_THING` the command `verb thing`. The options are the method's parameters."""
    whole = tuple(option for each in options for option in (each if isinstance(each, tuple) else (each,)))

    def decorate(method: Method) -> Method:
        setattr(method, "command", MemberCommand(group, help, whole, more, keeps, shown))
        return method

    return decorate


# Verbs of two words. The others have one.
_LONG_VERBS = ("load_balance",)


def name_of(method: str) -> str:
    """Returns the command that a method carries out: `list parked-events` for `on_list_parked_events`."""
    words = method.removeprefix("on_")
    verb = next((each for each in _LONG_VERBS if words.startswith(f"{each}_")), words.partition("_")[0])
    return f"{verb} {words[len(verb) + 1 :]}".rstrip().replace("_", "-")


def commands_of(cls: type) -> dict[str, MemberCommand]:
    """Returns the commands of a class by name, in the order in which they are defined, and behind
    them those of its bases."""
    return {
        name_of(name): method.command
        for each in cls.__mro__
        for name, method in vars(each).items()
        if hasattr(method, "command")
    }


def attribute_options(kind: str, changes: type | None = None) -> tuple[Option, ...]:
    """Returns an option for each attribute of a kind of thing. With `changes`: its name, and the attributes that can be
    altered."""
    cls = THINGS[kind]
    named = [row for row in table(cls) if row.name == naming(cls)]
    options = []
    for row in table(cls) if changes is None else (*named, *table(changes)):
        if row.attribute.is_local:  # A member refuses it with the remedy.
            options.append(Option(row.option, field=row.name, hidden=True))
            continue
        words = row.attribute.words
        options.append(
            Option(row.option, row.help(), required=row.is_required, flag=row.is_flag, field=row.name, words=words)
        )
        options += [Option(alias, field=row.name, hidden=True) for alias in row.attribute.aliases]
    refused = [Option(name.replace("_", "-"), hidden=True) for name in cls.refused] if changes is None else []
    return (*options, *refused)
