"""Owns a process of the campaign: a locator, or a member with its regions and clients.

It is asked through `pywan.testing.processes`, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from typing import Any

import pywan
from pywan.errors import PywanError
from pywan.testing.site_processes import SiteProcess, serve_site
from pywan.testing.waiting import LIMIT_S


class Clients:
    """Threads that make operations on keys, and write each call and each return into a file, with one write each. So a
    kill -9 leaves what was called."""

    def __init__(self, region: Any, *, path: str, first: int, threads: int, keys: int, seed: int) -> None:
        self._region, self._keys = region, keys
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stop = threading.Event()
        self.done = 0
        self.failed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(first + n, random.Random(seed * 1000 + first + n)), daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, int]:
        """Returns when the threads have ended. An operation waits no longer than its own limits."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        alive = sum(thread.is_alive() for thread in self._threads)
        os.close(self._file) if not alive else None
        return {"done": self.done, "failed": self.failed, "alive": alive}

    def _write(self, *what: Any) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())

    def _run(self, process: int, chance: random.Random) -> None:
        number = seen = 0
        while not self._stop.is_set():
            key, number = f"key-{chance.randrange(self._keys)}", number + 1
            name, arguments = self._choose(chance, f"{process}.{number}", seen)
            self._write("call", process, number, key, name, arguments, time.monotonic())
            try:
                answer = self._operate(key, name, arguments)
            except PywanError as error:
                self._write("fail", process, number, repr(error)[:300])
                self.failed += 1
                if not error.in_doubt and name == "get":
                    continue
                process += 1_000_000  # The outcome is unknown: this caller is not heard of any more.
                self._stop.wait(0.01)
                continue
            self._write("done", process, number, answer, time.monotonic())
            self.done += 1
            if isinstance(answer, str):
                seen = answer

    def _choose(self, chance: random.Random, value: str, seen: Any) -> tuple[str, list[Any]]:
        name = chance.choices(
            ["get", "put", "destroy", "put_if_absent", "replace", "replace_if", "remove"], [8, 6, 1, 2, 2, 3, 1]
        )[0]
        if name in ("put", "put_if_absent", "replace"):
            return name, [value]
        if name == "replace_if":
            return "replace", [seen, value]
        return name, [seen] if name == "remove" else []

    def _operate(self, key: str, name: str, arguments: list[Any]) -> Any:
        if name == "destroy":
            missing = object()
            return self._region.pop(key, missing) is not missing
        return getattr(self._region, name)(key, *arguments)


class Ear(pywan.CacheListener):
    """A listener that notes what it is told.

    `writes_to`: a region that gets what the listener hears. `held`: it waits there until the event is set.
    """

    def __init__(self, writes_to: Any, held: threading.Event) -> None:
        self._writes_to, self._held = writes_to, held
        self.told: list[tuple[str, Any, Any, Any, Any, bool]] = []

    def _note(self, event: pywan.EntryEvent) -> None:
        self._held.wait()
        self.told.append(
            (
                event.operation,
                event.key,
                event.old_value,
                event.new_value,
                event.callback_argument,
                event.is_origin_remote,
            )
        )
        if self._writes_to is not None:
            self._writes_to.put(f"{event.key} heard", event.new_value)

    after_create = after_update = after_destroy = _note


class Process(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self.ears: dict[str, Ear] = {}
        self.held = threading.Event()
        self.held.set()
        self.clients: Clients | None = None

    def run(self, region: str, **more: Any) -> None:
        self.clients = Clients(self.cache.region(region), **more)

    def halt(self) -> dict[str, Any]:
        counts = self.clients.stop() if self.clients is not None else {}
        self.clients = None
        return dict(counts)

    def fill(self, region: str, first: int, count: int, bytes: int) -> None:
        keys = [f"k{n:09}" for n in range(first, first + count)]
        self.cache.region(region).put_columns(keys, [key.ljust(bytes, "x") for key in keys])

    def listen(self, region: str, writes_to: str | None = None) -> None:
        self.ears[region] = Ear(self.cache.region(writes_to) if writes_to else None, self.held)
        self.cache.region(region).add_listener(self.ears[region])

    def hold(self, held: bool) -> None:
        self.held.clear() if held else self.held.set()

    def heard(self, region: str) -> list[Any]:
        return list(self.ears[region].told)

    def end(self) -> None:
        if self.clients is not None:
            self.halt()
        super().end()


if __name__ == "__main__":
    serve_site(Process())
