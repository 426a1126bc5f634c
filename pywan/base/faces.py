"""Owns how the objects that users hold show themselves: to `dir`, in a debugger, and in a notebook.

`dir` shows what the documents name, and nothing of how the objects are made.
"""

from __future__ import annotations

from collections.abc import Mapping


class Face:
    """The base of the classes whose objects users hold. Internal names begin with an underscore."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if not name.startswith("_") or name.endswith("__")]


class Described(Face):
    """A face that describes itself: in one line (`repr`), and as a small table in a notebook (`_repr_html_`).

    A derived class gives the words. They must not wait for anything, since a debugger may stop the program anywhere.
    They may raise an error, for example when the object is not completely made: then only the class is shown.
    """

    __slots__ = ()

    def _line(self) -> str:
        """Returns name, state and sizes in a few words."""
        raise NotImplementedError

    def _facts(self) -> dict[str, object]:
        """Returns the rows of the table: names and values."""
        raise NotImplementedError

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            return f"<{name} {self._line()}>"
        except Exception:
            return f"<{name}, not usable>"

    def _repr_html_(self) -> str:
        name = type(self).__name__
        try:
            return html_table(name, self._facts())
        except Exception:
            return html_table(name, {"state": "not usable"})


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Returns a small HTML table for a notebook: a title, and a row for each name and value. All text is escaped."""
    import html  # It loads the names of all characters, which only a notebook needs.

    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(shown(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{cells}</tbody></table>"


def shown(value: object) -> str:
    """Returns a value as a table shows it: numbers with commas, a list as its items, and nothing as "none"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {shown(part)}" for name, part in value.items()) or "none"
    return "none" if value is None or value == "" else str(value)


def counted(count: int, thing: str) -> str:
    """Returns a number with the name of what it counts: `1 entry`, `2 entries`, `1,234 events`."""
    if count == 1:
        return f"1 {thing}"
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count:,} {plural}"
