"""Owns how tables become lines of text that fit a width: no line is longer, and no word is cut that fits on a line.

A table that is too wide gets short names, then loses its frame, then wraps its cells at words. If that would make a row
higher than `MAX_ROW_LINES`, or a word still does not fit, each row becomes a sheet: a line for each column, behind the
name of the column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, chop_cells

from pywan.base.names import printable

MAX_ROW_LINES = 3
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")
NAME_INDENT = 2  # Of a sheet's lines.
NAME_GAP = 2  # Between a name and its value in a sheet, and between columns without a frame.
LEAST_VALUE = 20  # A sheet's values have at least as many columns; else they stand below their names.


@dataclass
class Table:
    """Rows of cells below names. `short`: other names of columns, for a table that does not fit with its own."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    short: dict[str, str] = field(default_factory=dict)


@dataclass
class Sheet:
    """One thing: a name and a value on each line. A value may be text with several lines."""

    title: str
    pairs: Sequence[tuple[str, Any]]


def cell_text(value: Any) -> str:
    """A cell as people read it: nothing for None, words for truth, items of lists and maps with commas between them."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {cell_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(item) for item in value)
    return str(value)


def layout(shown: Table | Sheet, width: int) -> list[str]:
    """The lines of a table or a sheet. None of them is wider than `width`."""
    title = wrapped(printable(shown.title), width) if shown.title else []
    if isinstance(shown, Sheet):
        return [*title, *_sheet([(name, value) for name, value in shown.pairs], width)]
    cells = [[printable(cell_text(value)) for value in row] for row in shown.rows]
    right = [_is_numeric([row[n] for row in shown.rows]) for n in range(len(shown.columns))]
    natural = [max(map(cell_len, column)) for column in zip(shown.columns, *cells, strict=True)]
    if sum(natural) + 3 * len(natural) + 1 <= width:
        return [*title, *_framed(shown.columns, cells, natural, right)]
    short = [shown.short.get(name, name) for name in shown.columns]
    for lines_of_cell in range(1, MAX_ROW_LINES + 1):
        widths = _widths(short, cells, lines_of_cell)
        if sum(widths) + 3 * len(widths) + 1 <= width:
            return [*title, *_framed(short, cells, widths, right)]
        if sum(widths) + NAME_GAP * (len(widths) - 1) <= width:
            return [*title, *_bare(short, cells, widths, right)]
    lines = title
    for row in cells:
        lines += [""] * bool(lines) + _sheet(list(zip(shown.columns, row, strict=True)), width)
    return lines


def _is_numeric(column: Sequence[Any]) -> bool:
    """Whether a column has numbers, also as text, and else only empty cells: they stand to the right."""
    filled = [value for value in column if value not in (None, "")]
    return bool(filled) and not any(isinstance(value, bool) or not _NUMBER.fullmatch(str(value)) for value in filled)


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """The lines of a text, broken at spaces. Lines after the first are indented. A word that is wider than a line is
    broken too."""
    lines: list[str] = []
    for part in text.split("\n"):
        line, room = "", width
        for word in part.split():
            if line and cell_len(line) + 1 + cell_len(word) <= room:
                line += " " + word
                continue
            if line:
                lines.append(line)
            room = width - indent * bool(lines)
            *whole, line = _broken(word, max(1, room))
            lines += whole
        lines.append(line)
    return [lines[0], *(" " * indent + line for line in lines[1:])]


def _broken(word: str, width: int) -> list[str]:
    """The pieces of a word that fit a line. A piece ends behind its last `/` or `,`, or else where the line ends."""
    pieces = []
    while cell_len(word) > width:
        piece = chop_cells(word, width)[0]
        at = max(piece.rfind("/"), piece.rfind(",")) + 1
        pieces.append(piece[: at or None])
        word = word[len(pieces[-1]) :]
    return [*pieces, word]


def _widths(names: Sequence[str], cells: list[list[str]], lines: int) -> list[int]:
    """The least width of each column: its cells have at most so many lines then, and its name at most
    `MAX_ROW_LINES`."""
    columns = [[row[n] for row in cells] for n in range(len(names))]
    return [
        max(_least_width([name], MAX_ROW_LINES), _least_width(column, lines))
        for name, column in zip(names, columns, strict=True)
    ]


def _least_width(texts: list[str], lines: int) -> int:
    """The least width at which every text has at most so many lines and no word is cut."""
    least = max((cell_len(word) for text in texts for word in text.split()), default=0)
    most = max(map(cell_len, texts), default=0)
    while least < most:
        middle = (least + most) // 2
        if all(cell_len(text) <= middle or len(wrapped(text, middle)) <= lines for text in texts):
            most = middle
        else:
            least = middle + 1
    return least


def _row(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[list[str]]:
    """The lines of a row; each is the padded texts of its columns."""
    columns = [wrapped(text, width) for text, width in zip(texts, widths, strict=True)]
    return [
        [
            _padded(column[n] if n < len(column) else "", width, is_right)
            for column, width, is_right in zip(columns, widths, right, strict=True)
        ]
        for n in range(max(map(len, columns)))
    ]


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


def _framed(names: Sequence[str], cells: list[list[str]], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    def line(left: str, between: str, end: str, stroke: str) -> str:
        return left + between.join(stroke * (width + 2) for width in widths) + end

    head = [f"┃ {' ┃ '.join(each)} ┃" for each in _row(names, widths, right)]
    body = [f"│ {' │ '.join(each)} │" for row in cells for each in _row(row, widths, right)]
    return [line("┏", "┳", "┓", "━"), *head, line("┡", "╇", "┩", "━"), *body, line("└", "┴", "┘", "─")]


def _bare(names: Sequence[str], cells: list[list[str]], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    gap = " " * NAME_GAP
    head = [gap.join(each).rstrip() for each in _row(names, widths, right)]
    body = [gap.join(each).rstrip() for row in cells for each in _row(row, widths, right)]
    return [*head, gap.join("─" * width for width in widths), *body]


def _sheet(pairs: Sequence[tuple[str, Any]], width: int) -> list[str]:
    name_width = max((cell_len(name) for name, _ in pairs), default=0)
    before = NAME_INDENT + name_width + NAME_GAP
    lines = []
    for name, value in pairs:
        text = printable(value if isinstance(value, str) else cell_text(value), lines=True)
        if width - before >= LEAST_VALUE:
            first, *others = wrapped(text, width - before)
            lines.append(f"{' ' * NAME_INDENT}{_padded(name, name_width, False)}{' ' * NAME_GAP}{first}".rstrip())
            lines += [" " * before + other for other in others]
        else:
            lines.append(" " * NAME_INDENT + name)
            lines += [" " * (2 * NAME_INDENT) + line for line in wrapped(text, max(1, width - 2 * NAME_INDENT))]
    return lines
