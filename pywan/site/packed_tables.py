"""Owns the bytes of tables that were laid out a moment ago: members that lack the same decisions are sent the same."""

from __future__ import annotations

import threading
from collections import deque

from pywan.coordination import encoding, plain
from pywan.coordination.messages import Tables

KEPT = 8  # Members that hear of every decision lack the same few. What a new member gets may take some MB.


class PackedTables:
    """Any thread may use it. The coordinator's lock is not held here: the tables of a large site take a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Tables, bytes]] = deque(maxlen=KEPT)

    def packed(self, tables: Tables) -> bytes:
        """Returns the bytes of the tables. The same object is laid out once, as long as it is among the last ones."""
        with self._lock:  # Who wants the same waits for it.
            for each, packed in self._kept:
                if each is tables:
                    return packed
            packed = plain.pack(encoding.plain_tables(tables))
            self._kept.append((tables, packed))
            return packed
