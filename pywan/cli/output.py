"""Owns what a command answers and how it is shown: tables for people, one JSON object a line for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from pywan.base.names import printable, printable_json


@dataclass
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""


@dataclass
class Result:
    """A command's answer. `data` is for programs; `lines` and `tables` say the same to people. `errors` make it a failure."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exit: bool = False  # Ends the shell or the script.

    @property
    def ok(self) -> bool:
        return not self.errors


class Output:
    """Writes results to `out` and what went wrong to `err`."""

    def __init__(self, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self._out, self._err = out or sys.stdout, err or sys.stderr

    def show(self, command: str, result: Result) -> None:
        if self.as_json:
            body = {
                "command": command,
                "ok": result.ok,
                **({"errors": result.errors} if result.errors else {}),
                "data": result.data,
            }
            if result.notes:
                body["notes"] = result.notes
            print(printable_json(json.dumps(body, default=_jsonable, ensure_ascii=False)), file=self._out, flush=True)
            return
        for note in result.notes:
            self._print(f"note: {note}", self._err)
        for line in result.lines:
            self._print(line, self._out)
        if result.tables:
            self._show_tables(result.tables)
        for error in result.errors:
            self._print(f"error: {error}", self._err)
        self._out.flush()
        self._err.flush()

    def echo(self, text: str) -> None:
        """What a script is about to do."""
        if not self.as_json:
            self._print(text, self._out)
            self._out.flush()

    def note(self, text: str) -> None:
        """What a person is to know before the command ends; a program reads it in the result."""
        if not self.as_json:
            self._print(f"note: {text}", self._err)
            self._err.flush()

    def confirm(self, question: str) -> bool:
        """Whether a person at a terminal says yes. Without one: no."""
        if self.as_json or not sys.stdin.isatty() or not self._out.isatty():
            return False
        print(f"{printable(question)} (y/N) ", end="", file=self._out, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @staticmethod
    def _print(text: Any, to: TextIO) -> None:
        """What members, other sites and files said is shown, and not obeyed by the terminal."""
        print(printable(str(text), lines=True), file=to)

    def _show_tables(self, tables: list[Table]) -> None:
        from rich.console import Console  # Only a table needs it, and it takes its time to load.
        from rich.table import Table as RichTable
        from rich.text import Text

        console = Console(
            file=self._out, highlight=False, soft_wrap=not self._out.isatty(), width=None if self._out.isatty() else 200
        )
        for table in tables:
            shown = RichTable(title=table.title or None, title_justify="left")
            for number, column in enumerate(table.columns):
                numeric = bool(table.rows) and all(
                    isinstance(row[number], (int, float)) and not isinstance(row[number], bool) for row in table.rows
                )
                shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
            for row in table.rows:
                shown.add_row(*(Text(printable(_cell(value))) for value in row))
            console.print(shown)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, (bytes, dict)):
        return value_text(value)
    return str(value)


def value_text(value: Any) -> str:
    """A region's value in one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value)
    return json.dumps(value, default=_jsonable, ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"base64": base64.b64encode(value).decode()}
    return str(value)
