"""Owns the program `pywan`: its own options; everything else is a command of the table, one or many."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import click

import pywan
from pywan.errors import PywanError

INTERRUPTED = 130  # The exit status after Ctrl-C, as shells have it.
_CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


@click.command(
    context_settings=_CONTEXT, epilog="`pywan help` lists the commands; without a command, an interactive shell."
)
@click.option(
    "-e",
    "lines",
    multiple=True,
    metavar="COMMAND",
    help="Run this command; may be given several times. Stops at the first that fails.",
)
@click.option(
    "--locator",
    metavar="HOST[PORT]",
    envvar="PYWAN_LOCATOR",
    help="The locator to ask, as `connect` would (or the environment variable PYWAN_LOCATOR).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each command.")
@click.version_option(pywan.__version__, prog_name="pywan")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def program(lines: tuple[str, ...], locator: str | None, as_json: bool, words: tuple[str, ...]) -> None:
    """Multi-site event distribution, in gfsh's grammar: start locator, start server, create gateway-sender, ..."""
    if words[:1] == ("demo",):
        from pywan.demo.main import main as demo  # Only the demo needs Spark.

        demo([*(["--json"] if as_json else []), *words[1:]])
        return
    if lines and words:
        raise click.UsageError(
            f"-e and a command ({' '.join(words)[:60]}) exclude each other; put the command into an -e of its own"
        )
    sys.exit(0 if _run(lines, locator, as_json, list(words)) else 1)


def _run(lines: Sequence[str], locator: str | None, as_json: bool, words: list[str]) -> bool:
    # Warnings that this process logs are shown as notes. A member in the foreground sets up a log of its own.
    logging.basicConfig(level=logging.WARNING, format="note: %(message)s", stream=sys.stderr)
    from pywan.cli import shell
    from pywan.cli.commands import COMMANDS
    from pywan.cli.output import Output
    from pywan.cli.session import Session

    if "--json" in words:
        words = [word for word in words if word != "--json"]
        as_json = True
    session = Session(COMMANDS, Output(as_json), locator)
    if lines:
        return all(session.done or session.run_line(line) for line in lines)
    if words:
        session.help_command = "pywan help"
        return session.run(words)
    return shell.run(session)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: exit status 0 only if everything worked."""
    try:
        program.main(args=list(arguments) if arguments is not None else None, prog_name="pywan", standalone_mode=False)
    except click.UsageError as error:
        click.echo(f"error: {error.format_message()}\nhelp:  pywan --help", err=True)
        sys.exit(2)
    except PywanError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
