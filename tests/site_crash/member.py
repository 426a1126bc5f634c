"""Owns a process of the campaign: a locator, or a member with its regions and clients.

It is asked through `pywan.testing.processes`, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pywan
from pywan.errors import PywanError
from pywan.testing.site_processes import SiteProcess, serve_site
from pywan.testing.waiting import LIMIT_S

sys.path.insert(0, str(Path(__file__).parent.parent))

from site_crash.decisions import note_decisions

KEYS_FOR_S = 5.0


class Clients:
    """Threads that make operations on keys, and write each call and each return into a file, with one write each. So a
    kill -9 leaves what was called.

    Attributes:
        regions: The regions whose keys they use. More may be added.
    """

    def __init__(
        self,
        regions: list[Any],
        *,
        path: str,
        first: int,
        threads: int,
        keys: int,
        seed: int,
        pause_s: float = 0.0,
    ) -> None:
        self.regions, self._keys, self._pause_s = regions, keys, pause_s
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stop = threading.Event()
        self._failures: Counter[str] = Counter()
        self._done = [0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(n, first + n, random.Random(seed * 1000 + first + n)), daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, Any]:
        """Returns when the threads have ended. An operation waits no longer than its own limits."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        alive = sum(thread.is_alive() for thread in self._threads)
        os.close(self._file) if not alive else None
        return {"done": sum(self._done), "failures": dict(self._failures), "alive": alive}

    def _write(self, *what: Any) -> None:
        os.write(self._file, (json.dumps(what) + "\n").encode())

    def _run(self, thread: int, process: int, chance: random.Random) -> None:
        number = seen = 0
        while not self._stop.is_set():
            region, key, number = chance.choice(self.regions), self._key(chance), number + 1
            name, arguments = self._choose(chance, f"{process}.{number}", seen)
            self._write("call", process, number, region.name, key, name, arguments, time.monotonic())
            try:
                answer = self._operate(region, key, name, arguments)
            except PywanError as error:
                self._failures[f"{type(error).__name__}{', in doubt' if error.in_doubt else ''}"] += 1
                if error.in_doubt:  # The outcome is unknown: this caller is not heard of any more.
                    self._write("doubt", process, number, time.monotonic(), repr(error)[:300])
                    process += 1_000_000
                else:
                    self._write("fail", process, number, repr(error)[:300])
                self._stop.wait(0.01)
                continue
            self._write("done", process, number, answer, time.monotonic())
            self._done[thread] += 1
            if isinstance(answer, str):
                seen = answer
            if self._pause_s:
                self._stop.wait(chance.uniform(0, 2 * self._pause_s))

    def _key(self, chance: random.Random) -> str:
        """All clients use the same few keys, and other ones after some seconds: the history of a key stays short."""
        return f"key-{int(time.monotonic() / KEYS_FOR_S)}-{chance.randrange(self._keys)}"

    def _choose(self, chance: random.Random, value: str, seen: Any) -> tuple[str, list[Any]]:
        name = chance.choices(
            ["get", "put", "destroy", "put_if_absent", "replace", "replace_if", "remove"], [8, 6, 1, 2, 2, 3, 1]
        )[0]
        if name in ("put", "put_if_absent", "replace"):
            return name, [value]
        if name == "replace_if":
            return "replace", [seen, value]
        return name, [seen] if name == "remove" else []

    @staticmethod
    def _operate(region: Any, key: str, name: str, arguments: list[Any]) -> Any:
        if name == "destroy":
            missing = object()
            return region.pop(key, missing) is not missing
        return getattr(region, name)(key, *arguments)


class Ear(pywan.CacheListener):
    """A listener that notes what it is told.

    `writes_to`: a region that gets what the listener hears, but for what a listener wrote. `held`: it waits there until
    the event is set.
    """

    def __init__(self, writes_to: Any, held: threading.Event) -> None:
        self._writes_to, self._held = writes_to, held
        self.told: list[tuple[str, Any, Any, Any, Any, bool]] = []
        self.repeats: list[Any] = []  # The keys of changes that may have been told before.

    def _note(self, event: pywan.EntryEvent) -> None:
        self._held.wait()
        if event.possible_duplicate:
            self.repeats.append(event.key)
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
        if self._writes_to is not None and not event.key.endswith(" heard"):
            self._writes_to.put(f"{event.key} heard", event.new_value)

    after_create = after_update = after_destroy = _note


class Process(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self.ears: dict[str, Ear] = {}
        self.held = threading.Event()
        self.held.set()
        self.clients: Clients | None = None

    def locate(self, *given: Any, notes: str = "", **more: Any) -> int:
        """`notes`: the file for what is decided; empty: none is written."""
        if notes:
            note_decisions(Path(notes))
        return super().locate(*given, **more)

    def receive(self) -> None:
        """Starts a gateway receiver."""
        self.cache.create_gateway_receiver(start_port=0, end_port=0)

    def received(self) -> dict[str, int]:
        """Returns the statistics of the receiver, with the connections that it has now."""
        receiver = self.cache.gateway_receiver
        assert receiver is not None
        return {**receiver.stats, "connections": receiver.connection_count}

    def run(self, *regions: str, **more: Any) -> None:
        self.clients = Clients([self.cache.region(each) for each in regions], **more)

    def create(self, attributes: dict[str, Any]) -> None:
        """Creates one more region. The clients use it, too."""
        region = self.cache.create_region(**attributes)
        if self.clients is not None:
            self.clients.regions.append(region)

    def halt(self) -> dict[str, Any]:
        counts = self.clients.stop() if self.clients is not None else {}
        self.clients = None
        return dict(counts)

    def buckets(self, region: str) -> list[dict[str, Any]]:
        """What this member itself has of each bucket: its part in it, the stream, and the table."""
        core = self.cache._core.regions.get(region)
        changelog = self.cache._core.sharing._regions[region].changelog
        states = changelog.states() if changelog is not None else {}
        shown = ("role", "timeline", "epoch", "log_end", "high_watermark", "waiters")
        return [
            {
                **{name: states[number][name] for name in shown if number in states},
                **{name: core.bucket(number)[name] for name in ("entries", "tombstones")},
                "digest": core.bucket_digest(number),
            }
            for number in range(core.bucket_count)
        ]

    def fill(self, region: str, first: int, count: int, bytes: int) -> None:
        keys = [f"k{n:09}" for n in range(first, first + count)]
        self.cache.region(region).put_columns(keys, [key.ljust(bytes, "x") for key in keys])

    def fill_patiently(self, region: str, first: int, count: int, bytes: int) -> None:
        """As `fill`. Where listeners are too far behind it tries again."""
        while True:
            try:
                return self.fill(region, first, count, bytes)
            except pywan.PywanError as error:
                if "listeners are" not in str(error):
                    raise
                time.sleep(0.01)

    def listen(self, region: str, writes_to: str | None = None) -> None:
        self.ears[region] = Ear(self.cache.region(writes_to) if writes_to else None, self.held)
        self.cache.region(region).add_listener(self.ears[region])

    def hold(self, held: bool) -> None:
        self.held.clear() if held else self.held.set()

    def notified(self, region: str) -> list[Any]:
        return list(self.ears[region].told)

    def count_notified(self, region: str) -> int:
        return len(self.ears[region].told)

    def notified_keys(self, region: str) -> list[Any]:
        return [each[1] for each in self.ears[region].told]

    def repeats(self, region: str) -> list[Any]:
        return list(self.ears[region].repeats)

    def waiting(self, region: str) -> dict[str, int]:
        """What waits for the listeners of a region here."""
        return self.cache._core.regions.get(region).listening_state()

    def described(self, region: str) -> dict[str, Any]:
        """What `describe region` counts."""
        answer: Any = self.cache._core.management.handle({"op": "describe region", "name": region})
        stats: dict[str, Any] = answer["stats"]
        return stats

    def begin_put(self, region: str, key: str, value: Any) -> None:
        """A put in a thread of its own, for which nobody waits."""
        threading.Thread(target=self.cache.region(region).put, args=(key, value)).start()

    def storm(self, regions: list[str], threads: int, each: int) -> list[str]:
        """Puts keys of its own from each of many threads, into these regions in turn. Returns the errors."""
        errors: list[str] = []
        own = self.cache.name

        def put(thread: int) -> None:
            try:
                for n in range(each):
                    self.cache.region(regions[(thread + n) % len(regions)]).put(f"{own} {thread} {n}", n)
            except BaseException as error:
                errors.append(repr(error))

        all_of_them = [threading.Thread(target=put, args=(thread,)) for thread in range(threads)]
        for thread in all_of_them:
            thread.start()
        for thread in all_of_them:
            thread.join()
        return errors

    def end(self) -> None:
        if self.clients is not None:
            self.halt()
        super().end()


if __name__ == "__main__":
    serve_site(Process())
