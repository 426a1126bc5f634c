"""Owns the interactive shell: prompt, history, completion."""

from __future__ import annotations

import cmd
import contextlib
import os
from collections.abc import Iterator
from typing import TextIO

from pywan.base.files import given_path
from pywan.cli import grammar
from pywan.cli.completion import values_for
from pywan.cli.session import Session

HISTORY_VARIABLE = "PYWAN_HISTORY"
HISTORY_FILE = "~/.pywan_history"
HISTORY_LINES = 1000


class Shell(cmd.Cmd):
    """Reads lines until `exit` or the end of input. `ok` says whether every line worked."""

    intro = "pywan: gfsh's commands; `help` lists them, Tab completes, `exit` leaves."

    def __init__(self, session: Session, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.session = session
        self.ok = True
        self._begun = ""  # Lines of a command that goes on.
        if not self.stdin.isatty():
            self.use_rawinput = False
            self.intro = ""

    @property
    def prompt(self) -> str:  # type: ignore[override]  # It changes from line to line.
        if not self.stdin.isatty():
            return ""
        if self._begun:
            return "> "
        return f"pywan {self.session.locator}> " if self.session.connected else "pywan> "

    def onecmd(self, line: str) -> bool:
        is_over = line == "EOF"
        if is_over and self.stdin.isatty():
            print(file=self.stdout)
        if not is_over and grammar.goes_on(line, bool(self._begun)):
            self._begun += line + "\n"
            return False
        text, self._begun = self._begun + ("" if is_over else line), ""
        if is_over and not text:
            return True
        try:
            self.ok = self.session.run_line(text) and self.ok
        except KeyboardInterrupt:
            print("interrupted", file=self.stdout)
            self.ok = False
        return self.session.done or is_over

    def forget_begun(self) -> None:
        """Drops the lines of a command that goes on and has not ended."""
        self._begun = ""

    def emptyline(self) -> bool:
        return False

    def complete(self, text: str, state: int) -> str | None:  # type: ignore[override]  # What readline asks for.
        if state == 0:
            self.completion_matches = self._complete()
        matches = self.completion_matches or []
        return matches[state] if state < len(matches) else None

    def _complete(self) -> list[str]:
        try:
            import readline

            line, begin = readline.get_line_buffer().lstrip(), readline.get_begidx()
        except ImportError:
            return []
        shift = len(readline.get_line_buffer()) - len(line)
        # readline replaces only the last word, so it gets each whole line from the beginning of that word on.
        return [
            whole[max(0, begin - shift) :] + ("" if whole.endswith(("=", "/")) else " ")
            for whole in grammar.complete(line, self.session.commands, values_for(self.session.locator))
        ]


def run(session: Session, stdin: TextIO | None = None, stdout: TextIO | None = None) -> bool:
    """Runs the shell until it ends. Says whether every command worked."""
    shell = Shell(session, stdin, stdout)
    with _history(shell.stdin.isatty()):
        while True:
            try:
                shell.cmdloop()
                return shell.ok
            except KeyboardInterrupt:  # At the prompt: a fresh line.
                print(file=shell.stdout)
                shell.forget_begun()
                shell.intro = ""


@contextlib.contextmanager
def _history(wanted: bool) -> Iterator[None]:
    """Keeps the history of the shell in a file, for the owner alone. A shell works without it."""
    try:
        import readline
    except ImportError:
        wanted = False
    if not wanted:
        yield
        return
    path = given_path(os.environ.get(HISTORY_VARIABLE) or HISTORY_FILE)
    readline.set_completer_delims(" ")
    readline.set_history_length(HISTORY_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
            readline.write_history_file(path)
