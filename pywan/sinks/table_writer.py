"""Owns the transaction of a batch: marks and rows, on the connection of one thread."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pywan.errors import IllegalStateError
from pywan.sinks.marks import Attempts, Mark, Place
from pywan.sinks.sql import Dialect
from pywan.sinks.table import MARK, PLACE, Table, shown

if TYPE_CHECKING:
    from pywan.events import AsyncEvent

_STATEMENTS_MAX = 1000  # So many different sets of columns have their statements remembered.


class TableWriter:
    """The connection of one thread, and what that thread knows of the marks."""

    def __init__(self, table: Table, attempts: Attempts) -> None:
        self._table, self._attempts = table, attempts
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
                self._connection, self._dialect = self._table.open()
                self._has_failed = False
                self._statements.clear()
            self._transact(placed)
        except BaseException:
            self._abandon()
            if len(placed) == 1:
                place, sequence, _ = placed[0]
                self._attempts.fail(place, sequence)
            raise
        self._has_failed = False

    def _transact(self, placed: list[tuple[Place, int, AsyncEvent]]) -> None:
        attempts, cursor = self._attempts, self._connection.cursor()
        to_do: list[AsyncEvent] = []
        done: dict[Place, list[int]] = {}
        for place, sequence, event in placed:
            mark = self._marks.get(place)
            if mark is None:
                mark = self._marks[place] = self._read(cursor, place)
            if mark.has(sequence):
                attempts.check(
                    place, mark, sequence, event.possible_duplicate, f"table {shown(self._table.mark_table)}"
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
        statement = self._statement("mark", lambda: d.select(self._table.mark_table, ("refused", "sequence"), PLACE))
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
        d, table, now_ms = self._dialect, self._table.mark_table, time.time_ns() // 1_000_000
        insert = self._statement("new mark", lambda: d.insert(table, (*MARK, "sequence", "changed_ms")))
        if old.sequence == 0:
            cursor.execute(insert, d.values((*_key_of(place), 0, new.sequence, now_ms)))
        elif new.sequence != old.sequence:
            update = self._statement("move", lambda: d.update(table, ("sequence", "changed_ms"), (*MARK, "sequence")))
            cursor.execute(update, d.values((new.sequence, now_ms, *_key_of(place), 0, old.sequence)))
            self._check_alone(cursor, place, old)
        for sequence in sorted(old.refused - new.refused):
            delete = self._statement("not refused", lambda: d.delete(table, MARK))
            cursor.execute(delete, d.values((*_key_of(place), sequence)))
            self._check_alone(cursor, place, old)
        for sequence in sorted(new.refused - old.refused):
            cursor.execute(insert, d.values((*_key_of(place), sequence, sequence, now_ms)))

    def _check_alone(self, cursor: Any, place: Place, old: Mark) -> None:
        if cursor.rowcount != 1:
            raise IllegalStateError(
                f"table {shown(self._table.mark_table)} does not have the mark {old} of partition {place.partition} of"
                f" queue {place.queue} any more: another member has applied events of it (rows changed:"
                f" {cursor.rowcount})"
            )

    # Rows

    def _write(self, cursor: Any, events: Iterable[AsyncEvent]) -> None:
        """Applies the events in their order. Neighbours that need the same statement go to the database together."""
        d, table = self._dialect, self._table

        def change_of(event: AsyncEvent) -> tuple[tuple[str, ...] | None, tuple[Any, ...]]:
            if event.operation == "destroy":
                return None, table.key_of(event)
            row = table.row_of(event)
            return tuple(row), (*table.key_of(event), *row.values())

        for names, changes in itertools.groupby(map(change_of, events), key=lambda change: change[0]):
            rows = [values for _, values in changes]
            if names is None:
                statement = self._statement("delete", lambda: d.delete(table.name, table.keys))
            else:
                statement = self._statement(names, lambda: d.upsert(table.name, table.keys, names))  # noqa: B023
            if statement is None:
                assert names is not None
                for values in rows:
                    self._update_or_insert(cursor, names, values)
            elif len(rows) == 1:
                cursor.execute(statement, d.values(rows[0]))
            else:
                cursor.executemany(statement, [d.values(values) for values in rows])

    def _update_or_insert(self, cursor: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        d, table, keys = self._dialect, self._table.name, self._table.keys
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
    """The values of the columns of `PLACE`. A life has 64 bits, which no integer of SQL takes."""
    return place.queue, place.region, f"{place.life:016x}", place.partition
