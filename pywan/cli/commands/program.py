"""Owns the commands about the program itself: files of commands, help, completion, its end."""

from __future__ import annotations

from pathlib import Path

import pywan
from pywan.base.files import FileError, given_path, read_regular
from pywan.cli import grammar
from pywan.cli.commands.of_members import Values
from pywan.cli.grammar import Command
from pywan.cli.layout import wrapped
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.options import Option
from pywan.errors import ConfigurationError, NotFoundError

MAX_SCRIPT_BYTES = 1024 * 1024


_PRECEDENCE = (
    "An option that is not given has the value of the environment variable behind it. The command line, with --J, is"
    " stronger than the environment, and the environment is stronger than the files of properties."
)


def run_file(session: Session, values: Values) -> Result:
    """Runs the lines of a file. It stops at the first line that fails, unless it is told to go on."""
    path = given_path(values["file"])
    try:
        data, identity, *_ = read_regular(path, MAX_SCRIPT_BYTES, follow=False)
        text = data.decode()
    except FileError as error:
        raise ConfigurationError(f"run: {path} {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"run: {path} is no text in UTF-8: {error}") from None
    with session.script(identity, str(path)):
        return _run_lines(session, values, path, text)


def _run_lines(session: Session, values: Values, path: Path, text: str) -> Result:
    go_on = values.get("continue_on_error", "false").lower() == "true"
    quiet = values.get("quiet", "false").lower() == "true"
    done, failed = 0, []
    for number, line in grammar.split_lines(text):
        if not quiet:
            session.output.echo(f"{number}. {line}")
        if session.run_line(line):
            done += 1
        else:
            failed.append(f"{path}:{number}: `{line}` failed" + ("" if go_on else "; the rest was not run"))
            if not go_on:
                break
        if session.done:
            break
    return Result(data={"file": str(path), "done": done}, errors=failed)


def help_(session: Session, values: Values) -> Result:
    topic = " ".join(values.get("topic", ())).strip()
    command = next((c for c in session.commands if c.name == topic), None)
    width = session.output.width
    if command is not None:
        lines = [*wrapped(f"{command.name}: {command.help}", width), *wrapped(f"usage: {_usage(command)}", width, 7)]
        for o in command.options:
            if not o.hidden:
                lines += ["", *_about_option(o, width)]
        if any(o.variable for o in command.options):
            lines += ["", *wrapped(_PRECEDENCE, width)]
        return Result(data={"name": command.name, "usage": command.usage()}, lines=lines)
    found = [c for c in session.commands if c.name.startswith(topic)]
    if not found:
        raise NotFoundError(f"there is no command {topic!r}; `{session.help_command}` lists them")
    widest = max(len(c.name) for c in found)
    lines = []
    for group in dict.fromkeys(c.group for c in found):
        lines += ["", f"{group}:"]
        for c in found:
            if c.group == group:
                lines += wrapped_after(f"  {c.name:<{widest}}  ", c.help, width)
    return Result(data={"commands": [c.name for c in found]}, lines=lines[1:])


def _usage(command: Command) -> str:
    """The command with its required options. The help lists the others below."""
    parts = [f"--{o.name}=value" for o in command.options if o.required]
    others = any(not o.required and not o.hidden for o in command.options)
    return " ".join([command.name, *parts, *(["[--option=value ...]"] if others else [])])


def _about_option(option: Option, width: int) -> list[str]:
    """The lines about an option: `--name=value  (required)  PYWAN_NAME`, and its meaning below."""
    head = [f"--{option.name}" + ("" if option.flag else "=value"), "(required)" * option.required, option.variable]
    line = f"  {'  '.join(filter(None, head))}"
    lines = [line] if len(line) <= width else [f"  {'  '.join(filter(None, head[:-1]))}", f"  {option.variable}"]
    return [*lines, *wrapped_after("      ", option.help, width)]


def wrapped_after(begin: str, text: str, width: int) -> list[str]:
    """The lines of a text, the first behind `begin` and the others below its own beginning."""
    first, *others = wrapped(text, max(20, width - len(begin)))
    return [begin + first, *(" " * len(begin) + other for other in others)]


def version(session: Session, values: Values) -> Result:
    return Result(data={"version": pywan.__version__}, lines=[f"pywan {pywan.__version__}"])


def completion(session: Session, values: Values) -> Result:
    from pywan.cli.completion import bash_script, last_words

    if "line" in values:
        found = last_words(values["line"], session.commands)
        return Result(data={"words": found}, lines=found)
    text = bash_script()
    return Result(data={"script": text}, lines=text.splitlines())


def exit_(session: Session, values: Values) -> Result:
    return Result(exit=True)


COMMANDS = (
    Command(
        "run",
        "the commands of a file",
        run_file,
        (
            Option("file", "the file", required=True),
            Option("continue-on-error", "go on after a failure", flag=True),
            Option("quiet", "do not show the lines", flag=True),
        ),
    ),
    Command("help", "all commands, or one", help_),
    Command("version", "of pywan", version),
    Command(
        "completion",
        "what bash reads so that Tab completes commands, options and values",
        completion,
        (Option("line", "the beginning of a line: what its last word could become", hidden=True),),
    ),
    Command("exit", "leave the shell", exit_),
    Command("quit", "leave the shell", exit_),
)
