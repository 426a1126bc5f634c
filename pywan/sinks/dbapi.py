"""Owns the sink that keeps a table of a database equal to a region, and applies every event exactly once."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pywan.errors import ConfigurationError, IllegalStateError
from pywan.sinks.marks import Attempts, Mark, Place
from pywan.sinks.sql import DIALECTS, STYLES, Dialect, dialect_of, style_of
from pywan.sinks.threads import PerThread

if TYPE_CHECKING:
    from pywan.events import AsyncEvent

_PLACE = ("queue_id", "region", "life", "bucket")
_MARK = (*_PLACE, "refused")  # The key of a row. `refused` is 0 in the row of the mark itself.
_MARK_TYPES = (
    ("queue_id", "VARCHAR(255) NOT NULL"),
    ("region", "VARCHAR(255) NOT NULL"),
    ("life", "VARCHAR(16) NOT NULL"),
    ("bucket", "BIGINT NOT NULL"),
    ("refused", "BIGINT NOT NULL"),  # The sequence of an event that the mark does not cover, although it is before it.
    ("sequence", "BIGINT NOT NULL"),
    ("changed_ms", "BIGINT NOT NULL"),  # Since 1970. It is for people, who may remove the rows of lives that are over.
)
_STATEMENTS_MAX = 1000  # So many different sets of columns have their statements remembered.


class DbApiSink:
    """Writes the events of a queue to a table: an upsert for each create and update, a delete for each destroy.

    A batch is one transaction. The transaction also moves the marks of the batch in `mark_table`: how far each
    partition of the queue is applied. It moves a mark only from where the sink has read it. So an event that comes
    again is skipped, and the late commit of a member that is not in charge of the queue any more fails. Thus each event
    is applied exactly once, in the order of the queue, if the queue is persistent, or as long as its member lives.

    Each dispatcher's thread has a connection of its own. If the database goes away, the batch fails, and comes again
    until the database is back.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str | Sequence[str],
        *,
        key: str | Sequence[str] = "key",
        value: str = "value",
        columns: Sequence[str] | Callable[[AsyncEvent], Mapping[str, Any]] | None = None,
        mark_table: str | Sequence[str] = "pywan_marks",
        create: bool | Mapping[str, str] = True,
        dialect: str | None = None,
        paramstyle: str | None = None,
    ) -> None:
        """Makes the sink. It connects when the first batch comes.

        Args:
            connect: Returns a new connection of a DB-API module. It must not commit each statement by itself.
            table: The table. `schema.table`, or a sequence of both, is one of a schema.
            key: The column of the key, or the columns of a key that is a tuple. The table needs a unique index of them.
            value: The column of the value, if there are no `columns`.
            columns: What the row of an event has besides its key. Names: these items of a value that is a map, and NULL
                for those that it lacks. A function of the event: the map that it returns.
            mark_table: The table of marks.
            create: Whether to make the table of marks, if it is missing. A map from columns to SQL types: make `table`
                as well. The types go into the statement as they are.
            dialect: "sqlite", "postgresql", "mysql" or "standard", which has no upsert: there an UPDATE and, if it
                finds no row, an INSERT does it. None: what the module of the connection says.
            paramstyle: The paramstyle of the module. None: what the module says.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        if not callable(connect):
            raise ConfigurationError(
                f"connect has to be a function that returns a new connection, and is {connect!r:.80}"
            )
        for given, known, what in ((dialect, DIALECTS, "dialect"), (paramstyle, STYLES, "paramstyle")):
            if given is not None and given not in known:
                raise ConfigurationError(f"{what} {given!r}: known are {', '.join(known)}")
        self._connect, self._dialect, self._style = connect, dialect, paramstyle
        self.table, self.mark_table = table, mark_table
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        self.has_parts = not isinstance(key, str)
        self.value, self.columns = value, columns if columns is None or callable(columns) else tuple(columns)
        if not isinstance(create, bool) and not set(create) >= set(self.keys):
            raise ConfigurationError(
                f"create has the columns {', '.join(create)}, and not the key: {', '.join(self.keys)}"
            )
        self._create: bool | Mapping[str, str] = create
        self._creation = threading.Lock()
        self.attempts = Attempts()
        self._workers = PerThread(lambda: _Worker(self))
        # Names are checked now, not when the first batch comes.
        plain = Dialect("standard", "qmark")
        for name in (*self.keys, value, *(self.columns if isinstance(self.columns, tuple) else ())):
            plain.column(name)
        plain.table(table), plain.table(mark_table)

    def process_events(self, events: Sequence[AsyncEvent]) -> bool:
        """Applies a batch that a queue hands over. It raises what the database says, and then nothing was changed."""
        self._workers.get().apply(events)
        return True

    def close(self) -> None:
        """Closes the connections."""
        self._workers.close()

    # For the workers

    def open(self) -> tuple[Any, Dialect]:
        """Returns a new connection. The tables are there."""
        connection = self._connect()
        try:
            _check_transactions(connection)
            dialect = Dialect(self._dialect or dialect_of(connection), self._style or style_of(connection))
            with self._creation:
                if self._create is not False:
                    _make_table(connection, dialect, self.mark_table, _MARK_TYPES, _MARK)
                    if self._create is not True:
                        _make_table(connection, dialect, self.table, [*self._create.items()], self.keys)
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
            row = self.columns(event)
            return {name: row[name] for name in row if name not in self.keys}
        value = event.value
        if not isinstance(value, Mapping):
            raise TypeError(
                f"the value of {event.key!r:.80} in {event.region} is no map, so it has no columns: {value!r:.80}"
            )
        return {name: value.get(name) for name in self.columns}

    def __repr__(self) -> str:
        return f"<{type(self).__module__}:{type(self).__qualname__} of table {_shown(self.table)}>"


class _Worker:
    """The connection of one thread, and what that thread knows of the marks."""

    def __init__(self, sink: DbApiSink) -> None:
        self._sink = sink
        self._connection: Any = None
        self._dialect = Dialect("standard", "qmark")
        self._has_failed = False  # In its last call, on this connection.
        self._marks: dict[Place, Mark] = {}  # As this thread wrote them last, or read them.
        self._statements: dict[Any, str | None] = {}

    def apply(self, events: Sequence[AsyncEvent]) -> None:
        """Applies what is not applied yet, in one transaction. If it raises, nothing was changed, unless the connection
        broke while it committed: then the marks say what became of it.
        """
        placed = _placed(events)
        try:
            if self._connection is None:
                self._connection, self._dialect = self._sink.open()
                self._has_failed = False
                self._statements.clear()
            self._transact(placed)
        except BaseException:
            self._abandon()
            if len(placed) == 1:
                place, sequence, _ = placed[0]
                self._sink.attempts.fail(place, sequence)
            raise
        self._has_failed = False

    def _transact(self, placed: list[tuple[Place, int, AsyncEvent]]) -> None:
        attempts, cursor = self._sink.attempts, self._connection.cursor()
        to_do: list[AsyncEvent] = []
        done: dict[Place, list[int]] = {}
        for place, sequence, event in placed:
            mark = self._marks.get(place)
            if mark is None:
                mark = self._marks[place] = self._read(cursor, place)
            if mark.has(sequence):
                attempts.check(
                    place, mark, sequence, event.possible_duplicate, f"table {_shown(self._sink.mark_table)}"
                )
            else:
                to_do.append(event)
                done.setdefault(place, []).append(sequence)
        moved = {place: self._marks[place].beyond(each, attempts.left_out(place)) for place, each in done.items()}
        for place in sorted(moved):  # In one order, so that two transactions do not wait for each other.
            attempts.begin(place, done[place][-1])
            self._move(cursor, place, self._marks[place], moved[place])
        self._write(cursor, to_do)
        cursor.close()
        self._connection.commit()
        for place, mark in moved.items():
            self._marks[place] = mark
            attempts.settle(place, mark)

    # Marks

    def _read(self, cursor: Any, place: Place) -> Mark:
        d = self._dialect
        statement = self._statement("mark", lambda: d.select(self._sink.mark_table, ("refused", "sequence"), _PLACE))
        cursor.execute(statement, d.values(_key_of(place)))
        rows = [(int(refused), int(sequence)) for refused, sequence in cursor.fetchall()]
        return Mark(
            next((sequence for refused, sequence in rows if not refused), 0),
            [refused for refused, _ in rows if refused],
        )

    def _move(self, cursor: Any, place: Place, old: Mark, new: Mark) -> None:
        """Replaces a mark, which must be as it was read. It comes before all else that a transaction changes, so
        another member's transaction with the same events waits here, and then fails.
        """
        d, table, now_ms = self._dialect, self._sink.mark_table, time.time_ns() // 1_000_000
        insert = self._statement("new mark", lambda: d.insert(table, (*_MARK, "sequence", "changed_ms")))
        if old.sequence == 0:
            cursor.execute(insert, d.values((*_key_of(place), 0, new.sequence, now_ms)))
        elif new.sequence != old.sequence:
            update = self._statement("move", lambda: d.update(table, ("sequence", "changed_ms"), (*_MARK, "sequence")))
            cursor.execute(update, d.values((new.sequence, now_ms, *_key_of(place), 0, old.sequence)))
            self._check_alone(cursor, place, old)
        for sequence in sorted(old.refused - new.refused):
            delete = self._statement("not refused", lambda: d.delete(table, _MARK))
            cursor.execute(delete, d.values((*_key_of(place), sequence)))
            self._check_alone(cursor, place, old)
        for sequence in sorted(new.refused - old.refused):
            cursor.execute(insert, d.values((*_key_of(place), sequence, sequence, now_ms)))

    def _check_alone(self, cursor: Any, place: Place, old: Mark) -> None:
        if cursor.rowcount != 1:
            raise IllegalStateError(
                f"table {_shown(self._sink.mark_table)} does not have the mark {old} of partition {place.partition} of"
                f" queue {place.queue} any more: another member has applied events of it (rows changed:"
                f" {cursor.rowcount})"
            )

    # Rows

    def _write(self, cursor: Any, events: Iterable[AsyncEvent]) -> None:
        """Applies the events in their order. Neighbours that need the same statement go to the database together."""
        d, sink = self._dialect, self._sink

        def change_of(event: AsyncEvent) -> tuple[tuple[str, ...] | None, tuple[Any, ...]]:
            if event.operation == "destroy":
                return None, sink.key_of(event)
            row = sink.row_of(event)
            return tuple(row), (*sink.key_of(event), *row.values())

        for names, changes in itertools.groupby(map(change_of, events), key=lambda change: change[0]):
            rows = [values for _, values in changes]
            if names is None:
                statement = self._statement("delete", lambda: d.delete(sink.table, sink.keys))
            else:
                statement = self._statement(names, lambda: d.upsert(sink.table, sink.keys, names))  # noqa: B023
            if statement is None:
                assert names is not None
                for values in rows:
                    self._update_or_insert(cursor, names, values)
            elif len(rows) == 1:
                cursor.execute(statement, d.values(rows[0]))
            else:
                cursor.executemany(statement, [d.values(values) for values in rows])

    def _update_or_insert(self, cursor: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        d, table, keys = self._dialect, self._sink.table, self._sink.keys
        key, rest = values[: len(keys)], values[len(keys) :]
        # A row that has nothing but its key is changed to itself, to see whether it is there.
        update = self._statement(("update", names), lambda: d.update(table, names or keys, keys))
        cursor.execute(update, d.values((*(rest if names else key), *key)))
        if cursor.rowcount == 0:
            insert = self._statement(("insert", names), lambda: d.insert(table, [*keys, *names]))
            cursor.execute(insert, d.values(values))

    def _statement(self, what: Any, write: Callable[[], str | None]) -> str | None:
        if what not in self._statements:
            if len(self._statements) >= _STATEMENTS_MAX:
                self._statements.clear()
            self._statements[what] = write()
        return self._statements[what]

    # After a failure, and at the end

    def _abandon(self) -> None:
        """Takes back the transaction. The connection stays, if that worked and it did not fail the time before."""
        self._marks.clear()
        if self._connection is None:
            return
        try:
            self._connection.rollback()
            is_of_use = not self._has_failed
        except Exception:
            is_of_use = False
        self._has_failed = True
        if not is_of_use:
            self.close()

    def close(self) -> None:
        """Closes the connection. If its module lets only the thread do that which made it, it ends with its last
        use."""
        connection, self._connection = self._connection, None
        self._marks.clear()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def _placed(events: Sequence[AsyncEvent]) -> list[tuple[Place, int, AsyncEvent]]:
    """Returns each event with its place in its queue."""
    queue: object = getattr(events, "queue", None)
    life: object = getattr(events, "numbering", None)
    if not isinstance(queue, str) or not isinstance(life, int):
        raise TypeError(f"a sink takes the batches of a queue as they are, and no {type(events).__name__}")
    return [(Place(queue, event.region or "", life, event.partition), event.sequence, event) for event in events]


def _key_of(place: Place) -> tuple[str, str, str, int]:
    """The values of the columns of `_PLACE`. A life has 64 bits, which no integer of SQL takes."""
    return place.queue, place.region, f"{place.life:016x}", place.partition


def _shown(table: str | Sequence[str]) -> str:
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
