"""Owns gfsh's grammar: lines into words, words into a command and its options, and the errors when they do not fit."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pywan.config.options import Option as Option
from pywan.errors import ConfigurationError
from pywan.limitations import Limitation

FROM_ENVIRONMENT = "from environment"  # No option has that key.

GROUPS = ("group", "groups")  # Geode's options that choose members by their groups.


class GrammarError(ConfigurationError):
    """A line is no command, or its options do not fit the command. `topic`: what a person can ask `help` about."""

    def __init__(self, text: str, topic: str = "") -> None:
        super().__init__(text)
        self.topic = topic


@dataclass(frozen=True)
class Command:
    """One command: its words, its options, what it does. `handler(session, values)` gives a Result."""

    name: str
    help: str
    handler: Callable[[Any, dict[str, Any]], Any]
    options: tuple[Option, ...] = ()
    group: str = ""
    more: str = ""  # What the documents add.

    def option(self, name: str) -> Option | None:
        return next((option for option in self.options if option.name == name), None)

    def usage(self) -> str:
        parts = [self.name]
        for option in self.options:
            if not option.hidden:
                word = f"--{option.name}" + ("[=true|false]" if option.flag else "=value")
                parts.append(word if option.required else f"[{word}]")
        return " ".join(parts)


def goes_on(line: str, begun: bool = False) -> bool:
    r"""Whether a line ends in one `\`, so that its command goes on in the next line. `begun`: the line is not the
    first one of its command, so it is no comment."""
    line = line.strip()
    return line.endswith("\\") and not line.endswith("\\\\") and (begun or not _is_comment(line))


def _is_comment(line: str) -> bool:
    return line.startswith(("#", "//"))


def split_lines(text: str) -> list[tuple[int, str]]:
    r"""The commands of a script with their line numbers. A command with `\` at the end of its line goes on in the next
    line. `#` begins a comment at the start of a line. `;` outside quotes ends a command. GrammarError if the last
    command goes on and nothing follows."""
    commands: list[tuple[int, str]] = []
    pending, pending_at = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not pending and (not stripped or _is_comment(stripped)):
            continue
        pending_at = pending_at or number
        if goes_on(stripped, bool(pending)):
            pending += stripped[:-1] + " "
            continue
        commands += [(pending_at, part) for part in _split_commands(pending + stripped)]
        pending, pending_at = "", 0
    if pending:
        raise GrammarError(
            f"line {pending_at}: the command ends in \\, so it goes on, and nothing follows; write the rest, or leave"
            f" the \\ out: {pending.strip()[:60]}"
        )
    return commands


def _split_commands(line: str) -> list[str]:
    parts, current, quote = [], "", ""
    previous = " "
    for character in line:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and previous in " \t=":
            quote = character
        elif character == ";":
            parts.append(current)
            current, previous = "", " "
            continue
        current += character
        previous = character
    return [part.strip() for part in [*parts, current] if part.strip()]


def tokenize(line: str) -> list[str]:
    r"""The words of a line. Quotes group where a word or a value begins; inside a word they are themselves, so that
    `--value={"a":1}` needs none. `\'` and `\"` are quotes as well, as the shell would have passed them on."""
    line = line.replace("\\'", "'").replace('\\"', '"')
    words: list[str] = []
    position, length = 0, len(line)
    while position < length:
        if line[position].isspace():
            position += 1
            continue
        word, started_at = "", position
        while position < length and not line[position].isspace():
            character = line[position]
            starts_value = not word or (word.startswith("--") and word.endswith("=") and word.count("=") == 1)
            if character in "'\"" and starts_value:
                end = line.find(character, position + 1)
                if end < 0:
                    raise GrammarError(
                        f"the quote {character} at column {position + 1} is not closed:"
                        f" {line[started_at : started_at + 60]}"
                    )
                word += line[position + 1 : end]
                position = end + 1
                if position < length and not line[position].isspace():
                    word += line[position]
                    position += 1
                continue
            word += character
            position += 1
        words.append(word)
    return words


def parse(
    words: Sequence[str], commands: Iterable[Command], environment: Mapping[str, str] = os.environ
) -> tuple[Command, dict[str, Any]]:
    """The command and its options' values (texts; flags alone are "true"). GrammarError with the nearest that exists.

    An option that is not given has the value of its environment variable, if it has one. The values then hold
    `FROM_ENVIRONMENT`: the variables that were used, by the option's key.
    """
    table = {command.name: command for command in commands}
    names = list(words[: first_option(words)])
    command = next((table[" ".join(names[:n])] for n in range(len(names), 0, -1) if " ".join(names[:n]) in table), None)
    if command is None:
        raise _no_such_command(" ".join(names) or " ".join(words), table)
    rest = list(words[len(command.name.split()) :])
    values: dict[str, Any] = {}
    position = 0
    while position < len(rest):
        word = rest[position]
        position += 1
        if not word.startswith("--") or word == "--":
            if command.name == "help":
                values.setdefault("topic", []).append(word)
                continue
            raise GrammarError(f"{command.name}: {word!r} is no option; write --name=value", command.name)
        name, has_value, value = word[2:].partition("=")
        option = command.option(name)
        if option is None:
            raise _no_such_option(command, name)
        if not has_value:
            if (
                position < len(rest)
                and not rest[position].startswith("--")
                and not (option.flag and rest[position].lower() not in ("true", "false"))
            ):
                value = rest[position]
                position += 1
            elif option.flag:
                value = "true"
            else:
                raise GrammarError(f"{command.name}: --{name} needs a value: --{name}=value", command.name)
        if option.many:
            values.setdefault(option.key, []).append(value)
        elif option.key in values:
            raise GrammarError(f"{command.name}: --{name} is given twice", command.name)
        else:
            values[option.key] = value
    _add_environment(command, values, environment)
    for option in command.options:
        if option.required and values.get(option.key) in (None, ""):
            also = f", or the environment variable {option.variable}" if option.variable else ""
            raise GrammarError(f"{command.name}: --{option.name} is required ({option.help}){also}", command.name)
    return command, values


def _add_environment(command: Command, values: dict[str, Any], environment: Mapping[str, str]) -> None:
    used: dict[str, str] = {}
    for option in command.options:
        text = environment.get(option.variable, "").strip() if option.variable else ""
        if not text or option.key in values:
            continue
        if option.flag and text.lower() not in ("true", "false"):
            raise GrammarError(f"{command.name}: {option.variable}={text:.60} must be true or false", command.name)
        try:
            values[option.key] = shlex.split(text) if option.many else text
        except ValueError as error:
            raise GrammarError(f"{command.name}: {option.variable}: {error}", command.name) from None
        used[option.key] = option.variable
    if used:
        values[FROM_ENVIRONMENT] = used


def first_option(words: Sequence[str]) -> int:
    return next((i for i, word in enumerate(words) if word.startswith("--")), len(words))


def _no_such_option(command: Command, name: str) -> GrammarError:
    if name in GROUPS:
        remedy = "name members with --member" if command.option("member") is not None else "leave it out"
        return GrammarError(
            f"{command.name}: no option --{name}: {Limitation.GROUPS.refusal(instead=remedy)}", command.name
        )
    near = difflib.get_close_matches(name, [o.name for o in command.options if not o.hidden], 1)
    hint = f"; did you mean --{near[0]}?" if near else ""
    return GrammarError(f"{command.name}: no option --{name:.60}{hint}", command.name)


def _no_such_command(text: str, table: dict[str, Command]) -> GrammarError:
    begun = sorted(name for name in table if name.startswith(text + " "))
    if begun:
        return GrammarError(f"{text!r} is not a whole command; there are {', '.join(begun)}", text)
    near = difflib.get_close_matches(text, table, 3, 0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return GrammarError(f"there is no command {text[:60]!r}{hint}")


def complete(
    line: str, commands: Iterable[Command], values_of: Callable[[Command, Option, str], Iterable[str]] | None = None
) -> list[str]:
    """What could follow: whole lines that begin with `line`. `values_of` gives the values that an option could have,
    from the part of the value that is written."""
    commands = list(commands)
    command = max(
        (c for c in commands if line == c.name or line.startswith(c.name + " ")),
        key=lambda c: len(c.name),
        default=None,
    )
    head, _, last = line.rpartition(" ")
    if command is None or line == command.name:
        return sorted(c.name for c in commands if c.name.startswith(line))
    if command.name == "help":
        topic = line.removeprefix("help ")
        return sorted(f"help {c.name}" for c in commands if c.name.startswith(topic))
    if "=" in last:
        name, _, begun = last.partition("=")
        option = command.option(name.removeprefix("--"))
        if option is None or values_of is None:
            return []
        # The last of several values with commas between them.
        before, comma, _ = begun.rpartition(",")
        return [f"{head} {name}={before}{comma}{value}" for value in values_of(command, option, begun)]
    return [
        f"{head} --{o.name}" + ("" if o.flag else "=")
        for o in command.options
        if not o.hidden and f"--{o.name}".startswith(last) and (o.many or f"--{o.name}=" not in head)
    ]
