"""Owns what a user says of the table that a sink writes: its names, its columns, and how a connection to it is made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pywan.errors import ConfigurationError
from pywan.sinks.sql import DIALECTS, STYLES, Dialect, dialect_of, style_of

if TYPE_CHECKING:
    from pywan.events import AsyncEvent

PLACE = ("queue_id", "region", "life", "bucket")
MARK = (*PLACE, "refused")  # The key of a row. `refused` is 0 in the row of the mark itself.
MARK_TYPES = (
    ("queue_id", "VARCHAR(255) NOT NULL"),
    ("region", "VARCHAR(255) NOT NULL"),
    ("life", "VARCHAR(16) NOT NULL"),
    ("bucket", "BIGINT NOT NULL"),
    ("refused", "BIGINT NOT NULL"),  # The sequence of an event that the mark does not cover, although it is before it.
    ("sequence", "BIGINT NOT NULL"),
    ("changed_ms", "BIGINT NOT NULL"),  # Since 1970. It is for people, who may remove the rows of lives that are over.
)


class Table:
    """A table, and the table of marks beside it. The arguments are those of `DbApiSink`."""

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str | Sequence[str],
        *,
        key: str | Sequence[str],
        value: str,
        columns: Sequence[str] | Callable[[AsyncEvent], Mapping[str, Any] | Sequence[Any]] | None,
        mark_table: str | Sequence[str],
        create: bool | Mapping[str, str],
        dialect: str | None,
        paramstyle: str | None,
    ) -> None:
        if not callable(connect):
            raise ConfigurationError(
                f"connect has to be a function that returns a new connection, and is {connect!r:.80}"
            )
        for given, known, what in ((dialect, DIALECTS, "dialect"), (paramstyle, STYLES, "paramstyle")):
            if given is not None and given not in known:
                raise ConfigurationError(f"{what} {given!r}: known are {', '.join(known)}")
        self._connect, self._dialect, self._style = connect, dialect, paramstyle
        self.name, self.mark_table = table, mark_table
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        self.has_parts = not isinstance(key, str)
        self.value, self.columns = value, columns if columns is None or callable(columns) else tuple(columns)
        if not isinstance(create, bool) and not set(create) >= set(self.keys):
            raise ConfigurationError(
                f"create has the columns {', '.join(create)}, and not the key: {', '.join(self.keys)}"
            )
        self._create: bool | Mapping[str, str] = create
        # The columns of the table in their order, as far as they are known.
        self._order = () if isinstance(create, bool) else tuple(create)
        self._creation = threading.Lock()
        # Names are checked now, not when the first batch comes.
        plain = Dialect("standard", "qmark")
        for name in (*self.keys, value, *(self.columns if isinstance(self.columns, tuple) else ())):
            plain.column(name)
        plain.table(table), plain.table(mark_table)

    def open(self) -> tuple[Any, Dialect]:
        """Returns a new connection. The tables are there."""
        connection = self._connect()
        try:
            _check_transactions(connection)
            dialect = Dialect(self._dialect or dialect_of(connection), self._style or style_of(connection))
            with self._creation:
                if self._create is not False:
                    _make_table(connection, dialect, self.mark_table, MARK_TYPES, MARK)
                    if self._create is not True:
                        _make_table(connection, dialect, self.name, [*self._create.items()], self.keys)
                    self._create = False
        except BaseException:
            with contextlib.suppress(Exception):
                connection.close()
            raise
        return connection, dialect

    def key_of(self, event: AsyncEvent) -> tuple[Any, ...]:
        """Returns the values of the key's columns."""
        key = event.key
        if not self.has_parts:
            return (key,)
        if not isinstance(key, tuple) or len(key) != len(self.keys):
            raise TypeError(
                f"the key {key!r:.80} of {event.region} is no tuple of {len(self.keys)}: {', '.join(self.keys)}"
            )
        return key

    def row_of(self, event: AsyncEvent) -> dict[str, Any]:
        """Returns the other columns."""
        if self.columns is None:
            return {self.value: event.value}
        if callable(self.columns):
            row = self._named(self.columns(event), event)
            return {name: row[name] for name in row if name not in self.keys}
        value = event.value
        if not isinstance(value, Mapping):
            raise TypeError(
                f"the value of {event.key!r:.80} in {event.region} is no map, so it has no columns: {value!r:.80}"
            )
        return {name: value.get(name) for name in self.columns}

    def _named(self, row: Any, event: AsyncEvent) -> Mapping[str, Any]:
        """Returns what the function `columns` made of an event as a map from columns to values. TypeError: it cannot be
        one, and what can."""
        if isinstance(row, Mapping):
            unnamed = next((name for name in row if not isinstance(name, str)), None)
            if unnamed is None:
                return row
            found = f"a map with {unnamed!r:.80} in place of a column's name"
        elif isinstance(row, Sequence) and not isinstance(row, (str, bytes, bytearray, memoryview)):
            others = tuple(name for name in self._order if name not in self.keys)
            for names in (others, self._order):
                if self._order and len(row) == len(names):
                    return dict(zip(names, row, strict=True))
            found = f"{len(row)} values"
        else:
            found = f"{row!r:.80} ({type(row).__name__})"
        can = "return a map from columns to values"
        if self._order:
            can += f", or the values of all columns in the order of `create` ({', '.join(self._order)})"
            can += f", with or without those of the key ({', '.join(self.keys)})"
        else:
            can += "; a sequence of values is possible only if `create` names the columns and their order"
        raise TypeError(f"`columns` returned {found} for the event of {event.key!r:.80} in {event.region}: {can}")


def shown(table: str | Sequence[str]) -> str:
    """Returns the name of a table as people read it."""
    return table if isinstance(table, str) else ".".join(table)


def _check_transactions(connection: Any) -> None:
    """ConfigurationError if each statement would be a transaction of its own."""
    # In the module sqlite3 of Python 3.12 `autocommit` may be -1: then `isolation_level` says it, as before.
    commits_alone = getattr(connection, "autocommit", None) is True or (
        type(connection).__module__ == "sqlite3"
        and connection.isolation_level is None
        and getattr(connection, "autocommit", -1) == -1
    )
    if commits_alone:
        raise ConfigurationError(
            "connect returns a connection that commits each statement by itself: a batch is one transaction, so make it"
            " without autocommit"
        )


def _make_table(
    connection: Any,
    dialect: Dialect,
    table: str | Sequence[str],
    types: Sequence[tuple[str, str]],
    keys: Sequence[str],
) -> None:
    """Makes a table if it cannot be read."""
    cursor = connection.cursor()
    try:
        cursor.execute(f"SELECT 1 FROM {dialect.unparameterized(dialect.table(table))} WHERE 1 = 0")  # noqa: S608
        cursor.fetchall()
        connection.rollback()
    except Exception:
        connection.rollback()  # It raises if it is the connection that is gone.
        cursor = connection.cursor()
        cursor.execute(dialect.create(table, types, keys))
        connection.commit()
