"""Owns what a command answers and how it is shown: tables for people, one JSON object a line for programs."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from pywan.base.amounts import duration_text, moment_text, size_text
from pywan.base.names import printable, printable_json
from pywan.cli.layout import Sheet, Table, cell_text, layout

PLAIN_WIDTH = 200  # The columns of a line that goes into a file or a pipe.


@dataclass
class Result:
    """A command's answer. `data` is for programs. `lines` and `tables` say the same to people. `errors` make it a
    failure, and `hint` then says where a person finds help."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    tables: list[Table | Sheet] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hint: str = ""
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
            if result.hint:
                body["hint"] = result.hint
            print(printable_json(json.dumps(body, default=_jsonable, ensure_ascii=False)), file=self._out, flush=True)
            return
        for note in result.notes:
            self._print(f"note: {note}", self._err)
        for line in result.lines:
            self._print(line, self._out)
        self._show_tables(result.tables)
        for error in dict.fromkeys(result.errors):
            self._print(f"error: {error}", self._err)
        if result.hint:
            self._print(f"help:  {result.hint}", self._err)
        self._out.flush()
        self._err.flush()

    def echo(self, text: str) -> None:
        """Says what a script is about to do."""
        if not self.as_json:
            self._print(text, self._out)
            self._out.flush()

    def note(self, text: str) -> None:
        """Says something to a person before the command ends. A program reads it in the result."""
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
        """Prints text in which the terminal obeys nothing, whatever members, other sites and files wrote."""
        print(printable(str(text), lines=True), file=to)

    @property
    def width(self) -> int:
        """How many columns a line may have: those of the terminal. In a file or a pipe: what COLUMNS says, or
        `PLAIN_WIDTH`."""
        if self._out.isatty():
            with contextlib.suppress(OSError, ValueError):
                return os.get_terminal_size(self._out.fileno()).columns or PLAIN_WIDTH
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) else PLAIN_WIDTH

    def _show_tables(self, tables: list[Table | Sheet]) -> None:
        for number, each in enumerate(tables):
            if number:
                print(file=self._out)
            for line in layout(each, self.width):
                print(line, file=self._out)


def readable(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Names and values of a member as people read them: durations, sizes and points in time in words, and each item of
    a list on a line of its own."""
    return [_readable(name, value) for name, value in pairs]


def _readable(name: str, value: Any) -> tuple[str, Any]:
    shown = name.replace("_", " ")
    if value in (None, "", [], {}) or (name in _STAMPS and not value):
        return shown, "none"
    if isinstance(value, (list, tuple)) and any(isinstance(item, dict) or " " in str(item) for item in value):
        return shown, "\n".join(cell_text(item) for item in value)
    if isinstance(value, dict):
        return shown, "\n".join(f"{key}: {cell_text(item)}" for key, item in value.items())
    if name in _STAMPS:
        return shown, _moment(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shown, value
    if name in _WITHOUT_LIMIT:
        return shown, _WITHOUT_LIMIT[name] if value == -1 else duration_text(value)
    for unit, seconds in (("_seconds", 1), ("_ms", 1000)):
        if name.endswith(unit):
            return shown.removesuffix(unit.replace("_", " ")), duration_text(value / seconds)
    return shown, size_text(value) if name.endswith("_bytes") else value


_WITHOUT_LIMIT = {  # Times that may be -1, and what that means.
    "maximum_shutdown_wait_time": "until the queues are empty",
    "handover_time": "until other members have taken over",
}
_STAMPS = frozenset({"forgotten_through", "let_go_through"})


def _moment(value: Any) -> Any:
    """A stamp, or the text of a point in time, as local time. A stamp has milliseconds in its upper 48 bits."""
    if isinstance(value, int):
        return moment_text(value >> 16)
    with contextlib.suppress(ValueError, TypeError):
        return moment_text(datetime.datetime.fromisoformat(value).timestamp() * 1000)
    return value


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
