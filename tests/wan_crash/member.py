"""Owns a process of the campaign: a locator, or a member that writes, listens, sends and receives."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pywan
from pywan.errors import PywanError
from pywan.testing.site_processes import serve_site

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.wan_site import WanProcess

HOT_KEYS = 20


class Writer:
    """A thread that puts keys of its own one after the other, and now and then a key that all writers use. It notes in
    a file each key before it puts it (`? KEY`), and each number of its own that was acknowledged (`= NUMBER`). So a
    kill -9 leaves what was."""

    def __init__(self, region: Any, name: str, path: str, pause_s: float) -> None:
        self._region, self._name, self._pause_s = region, name, pause_s
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stop = threading.Event()
        self.failures: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._file)

    def _put(self, key: str, value: Any) -> None:
        os.write(self._file, f"? {key}\n".encode())
        self._region.put(key, value)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            number += 1
            try:
                self._put(f"{self._name} {number}", number)
                os.write(self._file, b"= %d\n" % number)
                if number % 10 == 0:
                    self._put(f"hot {number // 10 % HOT_KEYS}", f"{self._name} {number}")
            except PywanError as error:  # What was not acknowledged may be there, or not.
                self.failures[type(error).__name__] += 1


class Ear(pywan.CacheListener):
    """Notes which changes it is told twice, or after a newer one of the same thread to the same key, unmarked."""

    def __init__(self) -> None:
        self._told: set[tuple[Any, Any]] = set()
        self._newest: dict[tuple[Any, str], int] = {}
        self.twice: list[tuple[Any, Any]] = []
        self.turned: list[tuple[Any, Any]] = []
        self.first_told: list[tuple[str, int]] = []  # What writers put under keys of their own, by writer and number.

    def _note(self, event: pywan.EntryEvent) -> None:
        key, value = what = event.key, event.new_value
        if what in self._told:
            if not event.possible_duplicate:
                self.twice.append(what)
            return
        self._told.add(what)
        if key.startswith("hot "):
            writer, number = value.split()
            if int(number) < self._newest.get((key, writer), 0) and not event.possible_duplicate:
                self.turned.append(what)
            self._newest[key, writer] = max(int(number), self._newest.get((key, writer), 0))
        elif not key.startswith("mark ") and not event.possible_duplicate:
            self.first_told.append((key.split()[0], value))

    after_create = after_update = _note


class Process(WanProcess):
    def __init__(self) -> None:
        super().__init__()
        self._writer: Writer | None = None
        self._ear = Ear()

    def listen(self, region: str) -> None:
        self.cache.region(region).add_listener(self._ear)

    def twice(self) -> list[Any]:
        return [list(each) for each in self._ear.twice[:10]]

    def turned(self) -> list[Any]:
        return [list(each) for each in self._ear.turned[:10]]

    def first_told(self) -> list[Any]:
        return [list(each) for each in self._ear.first_told]

    def buckets_of(self, region: str, put: list[list[Any]]) -> list[int]:
        """Returns the bucket of each put, which is named by its writer and its number."""
        bucket_of = self.cache._core.regions.get(region).bucket_of
        return [bucket_of(f"{writer} {number}") for writer, number in put]

    def write(self, region: str, name: str, path: str, pause_s: float) -> None:
        self._writer = Writer(self.cache.region(region), name, path, pause_s)

    def halt(self) -> dict[str, int]:
        """Returns how many puts failed, by error."""
        if self._writer is None:
            return {}
        self._writer.stop()
        failures, self._writer = dict(self._writer.failures), None
        return failures

    def has(self, region: str, key: str) -> bool:
        return key in self.cache.region(region)

    def pending(self) -> int:
        """Returns how many events wait in the queues of this member, replicas included."""
        return sum(len(each._core.queue) for each in self.cache.gateway_senders().values())

    def balanced(self) -> bool:
        return all(each.ledger()["balanced"] for each in self.cache.gateway_senders().values())

    def parked(self) -> int:
        return sum(each.parked_count for each in self.cache.gateway_senders().values())


if __name__ == "__main__":
    serve_site(Process())
