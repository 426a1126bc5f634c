"""Owns the sink that keeps a table of a database equal to a region, and applies every event exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pywan.sinks.marks import Attempts
from pywan.sinks.table import Table, shown
from pywan.sinks.table_writer import TableWriter
from pywan.sinks.threads import PerThread

if TYPE_CHECKING:
    from pywan.events import AsyncEvent


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
        columns: Sequence[str] | Callable[[AsyncEvent], Mapping[str, Any] | Sequence[Any]] | None = None,
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
                for those that it lacks. A function of the event: it returns a map from columns to values; or, if
                `create` names the columns, a sequence of their values in that order, with or without those of the key.
            mark_table: The table of marks.
            create: Whether to make the table of marks, if it is missing. A map from columns to SQL types: make `table`
                as well. The types go into the statement as they are.
            dialect: "sqlite", "postgresql", "mysql" or "standard", which has no upsert: there an UPDATE and, if it
                finds no row, an INSERT does it. None: what the module of the connection says.
            paramstyle: The paramstyle of the module. None: what the module says.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        self._table = Table(
            connect,
            table,
            key=key,
            value=value,
            columns=columns,
            mark_table=mark_table,
            create=create,
            dialect=dialect,
            paramstyle=paramstyle,
        )
        attempts = Attempts()
        self._writers = PerThread(lambda: TableWriter(self._table, attempts))

    def process_events(self, events: Sequence[AsyncEvent]) -> bool:
        """Applies a batch that a queue hands over. It raises what the database says, and then nothing was changed."""
        self._writers.get().apply(events)
        return True

    def close(self) -> None:
        """Closes the connections."""
        self._writers.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}:{type(self).__qualname__} of table {shown(self._table.name)}>"
