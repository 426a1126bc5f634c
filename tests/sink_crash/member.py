"""Owns the process of the campaign's member: a persistent queue with a sink, and the writers of its region."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

from pywan.member.cache import Cache
from pywan.sinks.dbapi import DbApiSink
from pywan.testing.processes import serve, tell

KEYS = 12  # Of each writer.


class Writer(threading.Thread):
    """Puts its keys in turn, each with a number that grows, and destroys some. It notes in a file what it begins and
    what is done, each in one write, so that it is there whatever becomes of the process.
    """

    def __init__(self, region: Any, number: int, file: str, going: threading.Event) -> None:
        super().__init__(daemon=True)
        self._region, self._number, self._going = region, number, going
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).decode().splitlines()
        self._version = max((int(line.split()[2]) for line in lines), default=0)
        self._left = (
            KEYS  # All keys are put once more in each life. Until then the last one may have left some in doubt.
        )
        self.is_resting = threading.Event()

    @property
    def has_put_all(self) -> bool:
        return self._left <= 0

    def run(self) -> None:
        while True:
            if not self._going.is_set() and self.has_put_all:
                self.is_resting.set()
                self._going.wait()
            self._version += 1
            key = f"{self._number}/{self._version % KEYS}"
            self._do("put", key, lambda key=key: self._region.put(key, str(self._version)))
            self._left -= 1
            if self.has_put_all and self._version % 7 == 0:
                self._do("destroy", key, lambda key=key: self._region.pop(key))

    def _do(self, what: str, key: str, change: Callable[[], object]) -> None:
        os.write(self._file, f"begin {what} {self._version} {key}\n".encode())
        change()
        os.write(self._file, f"done {what} {self._version} {key}\n".encode())


class Member:
    """What the campaign asks."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.cache = Cache("server_ny", locators=spec["locators"], dir=spec["directory"])
        self.queue = self.cache.create_async_event_queue(
            "to-table", DbApiSink(lambda: connect(spec), "orders"), persistent=True, **spec["queue"]
        )
        self.region = self.cache.create_region("orders", type=spec["type"], async_event_queue_ids=["to-table"])
        self.going = threading.Event()
        self.going.set()
        self.writers = [
            Writer(self.region, number, f"{spec['directory']}/../writer-{number}", self.going) for number in range(3)
        ]
        for writer in self.writers:
            writer.start()

    def rest(self, timeout: float) -> dict[str, str]:
        """Lets the writers rest and the queue run empty. Returns what the region has."""
        self.going.clear()
        for writer in self.writers:
            assert writer.is_resting.wait(timeout), "a writer does not come to rest"
        assert self.queue.wait_until_flushed(timeout), f"the queue does not run empty: {self.queue.lag()}"
        self.queue.ledger()
        return dict(self.region.items())

    def go_on(self) -> None:
        for writer in self.writers:  # Not by the writer, which may not run before it is to rest again.
            writer.is_resting.clear()
        self.going.set()


def connect(spec: dict[str, Any]) -> Any:
    if spec["dsn"] is None:
        return sqlite3.connect(spec["file"], timeout=60)
    import psycopg

    return psycopg.connect(spec["dsn"])


if __name__ == "__main__":
    member = Member(json.loads(sys.argv[1]))
    tell("ready")
    serve(member)
    member.cache.close()
