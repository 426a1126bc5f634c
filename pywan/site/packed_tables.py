"""Owns the bytes of recently encoded metadata: members that are missing the same records are sent the same bytes."""

from __future__ import annotations

import threading
from collections import deque

from pywan.coordination import encoding, plain
from pywan.coordination.messages import Tables

KEPT = 8  # Up-to-date members are missing the same few records. A new member's metadata may have some MB.


class PackedTables:
    """Any thread may use the object. Callers do not hold the coordinator's lock: the metadata of a large site take a
    second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Tables, bytes]] = deque(maxlen=KEPT)

    def packed(self, tables: Tables) -> bytes:
        """Returns the bytes of the metadata. An object among the last KEPT objects is encoded once."""
        with self._lock:  # A second caller with the same object waits for the first.
            for each, packed in self._kept:
                if each is tables:
                    return packed
            packed = plain.pack(encoding.plain_tables(tables))
            self._kept.append((tables, packed))
            return packed
