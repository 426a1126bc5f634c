"""Owns how statements are written for a database: names, parameters, and what is an upsert there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pywan.errors import ConfigurationError

DIALECTS = ("sqlite", "postgresql", "mysql", "standard")
STYLES = ("qmark", "numeric", "named", "format", "pyformat")
# By the name of the module that a connection comes from.
_DIALECT_OF_MODULE = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def dialect_of(connection: Any) -> str:
    """Returns the dialect of a connection. "standard": its module is not known."""
    roots = (each.__module__.partition(".")[0] for each in type(connection).__mro__)
    return next((_DIALECT_OF_MODULE[root] for root in roots if root in _DIALECT_OF_MODULE), "standard")


def style_of(connection: Any) -> str:
    """Returns the paramstyle of the module that a connection comes from.

    Raises:
        ConfigurationError: The module says none.
    """
    for each in type(connection).__mro__:
        name = each.__module__
        while name:
            style = getattr(sys.modules.get(name), "paramstyle", None)
            if style in STYLES:
                return str(style)
            name = name.rpartition(".")[0]
    cls = type(connection)
    raise ConfigurationError(
        f"a connection of {cls.__module__}:{cls.__qualname__} does not say its paramstyle: give paramstyle="
        f" ({', '.join(STYLES)})"
    )


class Dialect:
    """How statements are written for one kind of database, called through a module of one paramstyle."""

    def __init__(self, name: str, style: str) -> None:
        for given, known, what in ((name, DIALECTS, "dialect"), (style, STYLES, "paramstyle")):
            if given not in known:
                raise ConfigurationError(f"{what} {given!r}: known are {', '.join(known)}")
        self.name, self.style = name, style

    # Names

    def column(self, name: str) -> str:
        """Returns a name as it stands in a statement, whatever characters it has."""
        if not name or "\0" in name:
            raise ConfigurationError(f"{name!r} is no name of a column or table")
        quote = "`" if self.name == "mysql" else '"'
        quoted = f"{quote}{name.replace(quote, quote * 2)}{quote}"
        return quoted.replace("%", "%%") if self.style in ("format", "pyformat") else quoted

    def table(self, name: str | Sequence[str]) -> str:
        """The same for a table. `schema.table` is a table of a schema, and so is a sequence of its parts."""
        return ".".join(map(self.column, name.split(".") if isinstance(name, str) else name))

    # Parameters

    def parameter(self, number: int) -> str:
        """Returns what stands for the parameter of that number, from 1, in a statement."""
        return {
            "qmark": "?",
            "numeric": f":{number}",
            "named": f":p{number}",
            "format": "%s",
            "pyformat": f"%(p{number})s",
        }[self.style]

    def values(self, given: Sequence[Any]) -> Any:
        """Returns the values of the parameters, as `execute` takes them."""
        if self.style in ("named", "pyformat"):
            return {f"p{number}": value for number, value in enumerate(given, 1)}
        return tuple(given)

    # Statements

    def _equal(self, names: Sequence[str], first: int, between: str) -> str:
        return between.join(f"{self.column(name)} = {self.parameter(n)}" for n, name in enumerate(names, first))

    def insert(self, table: str | Sequence[str], columns: Sequence[str]) -> str:
        """A row of these columns."""
        names = ", ".join(map(self.column, columns))
        values = ", ".join(map(self.parameter, range(1, len(columns) + 1)))
        return f"INSERT INTO {self.table(table)} ({names}) VALUES ({values})"  # noqa: S608 (the names are quoted)

    def update(self, table: str | Sequence[str], columns: Sequence[str], keys: Sequence[str]) -> str:
        """The parameters are those of `columns`, then those of `keys`."""
        changes, where = self._equal(columns, 1, ", "), self._equal(keys, len(columns) + 1, " AND ")
        return f"UPDATE {self.table(table)} SET {changes} WHERE {where}"  # noqa: S608

    def delete(self, table: str | Sequence[str], keys: Sequence[str]) -> str:
        """The row of a key."""
        return f"DELETE FROM {self.table(table)} WHERE {self._equal(keys, 1, ' AND ')}"  # noqa: S608

    def select(self, table: str | Sequence[str], columns: Sequence[str], keys: Sequence[str]) -> str:
        """Rows of a key, or of the beginning of one."""
        names = ", ".join(map(self.column, columns))
        return f"SELECT {names} FROM {self.table(table)} WHERE {self._equal(keys, 1, ' AND ')}"  # noqa: S608

    def upsert(self, table: str | Sequence[str], keys: Sequence[str], columns: Sequence[str]) -> str | None:
        """One statement that inserts a row, or changes it; its parameters are those of `keys`, then those of `columns`.
        None: the database has none that we know.
        """
        insert = self.insert(table, [*keys, *columns])
        names = [self.column(each) for each in columns]
        if self.name == "mysql":
            changes = [f"{each} = VALUES({each})" for each in names] or [
                f"{self.column(keys[0])} = {self.column(keys[0])}"
            ]
            return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        if self.name in ("sqlite", "postgresql"):
            conflict = f"{insert} ON CONFLICT ({', '.join(map(self.column, keys))}) DO"
            changes = [f"{each} = excluded.{each}" for each in names]
            return f"{conflict} UPDATE SET {', '.join(changes)}" if changes else f"{conflict} NOTHING"
        return None

    def create(self, table: str | Sequence[str], types: Sequence[tuple[str, str]], keys: Sequence[str]) -> str:
        """A new table with these columns, of these types."""
        columns = ", ".join(f"{self.column(name)} {kind}" for name, kind in types)
        text = f"CREATE TABLE {self.table(table)} ({columns}, PRIMARY KEY ({', '.join(map(self.column, keys))}))"
        return self.unparameterized(text)

    def unparameterized(self, text: str) -> str:
        """Returns a statement as it is executed without parameters: modules leave its percent signs as they are
        then."""
        return text.replace("%%", "%") if self.style in ("format", "pyformat") else text
