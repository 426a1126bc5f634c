"""Owns one process of a pywan site in benchmarks: a locator, a member with replicas of the region `data`, or an
accessor. It is asked through `pywan.testing.site_processes`. What is put lies ready before the clock starts."""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from typing import Any

import numpy

import pywan
from measure import VALUE_BYTES, numbered_keys, resident_bytes
from pywan.errors import PywanError
from pywan.testing.site_processes import SiteProcess, serve_site

ROWS = 10_000
TAKEN_MAX = 1_000_000
NUMBER_BYTES = 8  # A value of a writer begins with its number.


class Counted:
    """Threads that write until they are stopped, and what they have counted."""

    def __init__(self, threads: int) -> None:
        self.stop = threading.Event()
        self.done, self.longest, self.refused = [0] * threads, [0.0] * threads, [0] * threads
        self.taken: list[float] = []  # What calls took since the last look: of the first ones.
        self.threads: list[threading.Thread] = []

    def begin(self, *threads: threading.Thread) -> None:
        self.threads += threads
        for thread in threads:
            thread.start()

    def look(self) -> dict[str, Any]:
        """What was done so far, and how long calls took since the last look."""
        longest, self.longest = max(self.longest), [0.0] * len(self.longest)
        taken, self.taken = sorted(self.taken) or [0.0], []
        return {
            "done": sum(self.done),
            "median_ms": taken[len(taken) // 2] * 1e3,
            "p99_ms": taken[len(taken) * 99 // 100] * 1e3,
            "longest_ms": longest * 1e3,
            "refused": sum(self.refused),
        }

    def end(self) -> dict[str, Any]:
        """Returns when the threads have ended."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads), "a call does not return"
        return self.look()


class Writers(Counted):
    """Threads that put, each its own keys, at a rate for all together (0: as fast as they can). They keep what was
    acknowledged, and when."""

    def __init__(
        self, region: Any, bucket_of: Any, keys: list[bytes], threads: int, rate: float, buckets: set[int]
    ) -> None:
        super().__init__(threads)
        self.region, self.bucket_of = region, bucket_of
        self.acknowledged: dict[bytes, int] = {}
        self.times: list[float] = []  # When a put into `buckets` returned.
        self.buckets = buckets
        self.interval_s = threads / rate if rate else 0.0
        self.begin(
            *(threading.Thread(target=self.run, args=(n, keys[n::threads]), daemon=True) for n in range(threads))
        )

    def run(self, number: int, keys: list[bytes]) -> None:
        put, bucket_of, monotonic, rest = self.region.put, self.bucket_of, time.monotonic, b"v" * 92
        watched = {key for key in keys if bucket_of(key) in self.buckets} if self.buckets else set()
        count, due = 0, monotonic()
        while not self.stop.is_set():
            due += self.interval_s
            if self.interval_s and (ahead := due - monotonic()) > 0:
                time.sleep(ahead)
            key, count = keys[count % len(keys)], count + 1
            before = monotonic()
            try:
                put(key, count.to_bytes(NUMBER_BYTES, "big") + rest)
            except PywanError as error:
                if self.refused[number] == 0:
                    print(f"a put failed: {error!r}", file=sys.stderr, flush=True)
                self.refused[number] += 1
                continue
            now = monotonic()
            self.acknowledged[key] = count
            self.done[number] += 1
            self.longest[number] = max(self.longest[number], now - before)
            if len(self.taken) < TAKEN_MAX:
                self.taken.append(now - before)
            if key in watched:
                self.times.append(now)

    def end(self) -> dict[str, Any]:
        """Stops, and reads everything back: `lost` counts keys with an older value than one that was acknowledged."""
        looked = super().end()
        times = sorted(self.times)
        gaps = [(later - earlier, earlier) for earlier, later in itertools.pairwise(times)]
        gap, at = max(gaps, default=(0.0, 0.0))
        lost = sum(
            int.from_bytes((self.region.get(key) or b"")[:NUMBER_BYTES], "big") < count
            for key, count in self.acknowledged.items()
        )
        return {**looked, "lost": lost, "keys": len(self.acknowledged), "gap_ms": gap * 1e3, "gap_at": at}


class Echo(pywan.CacheListener):
    """Writes what it hears into another region, but for what such a listener wrote."""

    def __init__(self, to: Any) -> None:
        self.to, self.received = to, 0

    def after_create(self, event: pywan.EntryEvent) -> None:
        self.received += 1
        if event.new_value != b"heard":
            self.to.put(event.key + b" heard", b"heard")

    after_update = after_create


class ColumnWriters(Counted):
    """Threads that put columns, as fast as they can."""

    def __init__(self, region: Any, keys: Any, values: Any, threads: int) -> None:
        super().__init__(threads)
        self.region, self.keys, self.values = region, keys, values
        self.begin(*(threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(threads)))

    def run(self, number: int) -> None:
        at, rows = 0, min(ROWS, len(self.keys))
        while not self.stop.is_set():
            before = time.monotonic()
            try:
                self.region.put_columns(self.keys[at : at + rows], self.values[at : at + rows])
                self.done[number] += rows
            except PywanError as error:
                if self.refused[number] == 0:
                    print(f"columns failed: {error!r}", file=sys.stderr, flush=True)
                self.refused[number] += 1
            self.longest[number] = max(self.longest[number], time.monotonic() - before)
            at = at + rows if at + 2 * rows <= len(self.keys) else 0


class Member(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self.echoes: list[Echo] = []
        self.pairs: dict[str, list[Any]] = {}
        self.ready_keys = self.values = numpy.empty(0, dtype="S16")
        self.next_row = 0
        self.writers: Writers | ColumnWriters | None = None

    def join(self, *given: Any, **more: Any) -> None:
        super().join(*given, **more)
        self.region = self.cache.region("data")
        self.core = self.cache._core.regions.get("data")

    def receive(self) -> dict[str, Any]:
        """Starts a gateway receiver."""
        return {"port": self.cache.create_gateway_receiver(start_port=0, end_port=0).port}

    def led(self) -> list[int]:
        """The buckets that this member is primary of."""
        return [number for number, state in self.states().items() if state["role"] == "primary"]

    def states(self) -> dict[int, Any]:
        """What the member knows of each bucket that it has."""
        changelog = self.cache._core.sharing._regions["data"].changelog
        return changelog.states() if changelog is not None else {}

    def keys(self, count: int, seed: int) -> dict[str, Any]:
        """Keys in random order, and values. `own` keeps those that this member is primary of."""
        chance = numpy.random.default_rng(seed)
        self.ready_keys = numbered_keys(chance.permutation(count))
        data = chance.integers(1, 255, (count, VALUE_BYTES), dtype=numpy.uint8)
        self.values = data.view(f"S{VALUE_BYTES}").ravel()
        return {"keys": len(self.ready_keys)}

    def keys_of(self, number: int, count: int) -> dict[str, Any]:
        """As `keys`, in order, and no keys of another number."""
        self.ready_keys = numbered_keys(numpy.arange(count) + number * count)
        self.values = numpy.full(count, b"v" * VALUE_BYTES)
        return {"keys": count}

    def incarnation(self) -> str:
        return str(self.cache._core.sharing._me)

    def digests(self) -> list[tuple[int, int]]:
        """Of each bucket that this member has a replica of: its number, and a digest of all entries."""
        return [(number, self.core.bucket_digest(number)) for number in self.states()]

    def own(self) -> dict[str, Any]:
        led, bucket_of = set(self.led()), self.core.bucket_of
        is_own = numpy.fromiter((bucket_of(key) in led for key in self.ready_keys.tolist()), bool, len(self.ready_keys))
        self.ready_keys, self.values = self.ready_keys[is_own], self.values[is_own]
        return {"keys": len(self.ready_keys)}

    def fill(self) -> dict[str, Any]:
        for row in range(0, len(self.ready_keys), ROWS):
            self.region.put_columns(self.ready_keys[row : row + ROWS], self.values[row : row + ROWS])
        return {"size": len(self.region)}

    def assign(self) -> dict[str, Any]:
        """Makes every bucket."""
        for n in range(self.core.bucket_count * 20):
            self.region.put(b"assign %d" % n, b"")
        self.region.remove_all([b"assign %d" % n for n in range(self.core.bucket_count * 20)])
        return {"buckets": self.core.bucket_count}

    def state(self) -> dict[str, Any]:
        led = [each for each in self.states().values() if each["role"] == "primary"]
        return {
            "primaries": len(led),
            "led": self.led(),
            "fewest": min((sum(replica["waited"] for replica in each["copies"]) for each in led), default=-1),
            "learning": sum(not replica["waited"] for each in led for replica in each["copies"]),
            "entries": sum(self.core.bucket(number)["entries"] for number in self.states()),
            "resident": resident_bytes(),
        }

    def bulk(self, seconds: float, threads: int = 1) -> dict[str, Any]:
        """Columns of 10,000 rows, by one thread or by several."""
        rows = [0] * threads
        started = time.monotonic()
        end, last = started + seconds, len(self.ready_keys) - ROWS

        def run(number: int) -> None:
            at = self.next_row + number * (last // len(rows))
            while True:
                at = at + ROWS if at + ROWS <= last else 0
                self.region.put_columns(self.ready_keys[at : at + ROWS], self.values[at : at + ROWS])
                rows[number] += ROWS
                if time.monotonic() >= end:
                    self.next_row = at
                    return

        in_threads(run, len(rows))
        return figures(sum(rows), time.monotonic() - started)

    def put(self, threads: int, seconds: float) -> dict[str, Any]:
        """Single puts, each of which returns when the replica has it. The median is that of the first thread."""
        return self.timed(self.region.put, threads, seconds, self.values.tolist())

    def get(self, threads: int, seconds: float) -> dict[str, Any]:
        return self.timed(lambda key, _value: self.region.get(key), threads, seconds, self.values.tolist())

    def timed(self, operation: Any, threads: int, seconds: float, values: list[bytes]) -> dict[str, Any]:
        keys, taken, done, clock = self.ready_keys.tolist(), [], [0] * threads, time.perf_counter
        started = clock()
        end = started + seconds

        def run(number: int) -> None:
            n, count, before = len(keys) // threads * number, 0, clock()
            while not count or before < end:  # Each thread makes at least one, also where it waited long for a core.
                operation(keys[n], values[n])
                now = clock()
                if number == 0 and count < TAKEN_MAX:
                    taken.append(now - before)
                n, count, before = (n + 1) % len(keys), count + 1, now
            done[number] = count

        in_threads(run, threads)
        return figures(sum(done), clock() - started, statistics.median(taken))

    def create_pair(self, name: str, policy: str) -> dict[str, Any]:
        """Two regions like the first one. With an interest policy the listeners of each write into the other one."""
        here, there = (
            self.cache.create_region(
                f"{name}-{place}",
                type="PARTITION",
                redundant_copies=1,
                total_num_buckets=self.core.bucket_count,
                interest_policy=policy or "cache-content",
            )
            for place in ("here", "there")
        )
        self.pairs[name] = [here, there]
        if policy:
            for region, other in ((here, there), (there, here)):
                self.echoes.append(Echo(other))
                region.add_listener(self.echoes[-1])
        return {}

    def received(self) -> int:
        return sum(echo.received for echo in self.echoes)

    def waiting(self) -> int:
        """The bytes of changes of which listeners here are still to be told."""
        cores = [self.cache._core.regions.get(region.name) for pair in self.pairs.values() for region in pair]
        return sum(core.listening_state().get("bytes", 0) for core in cores)

    def put_pair(self, name: str, threads: int, seconds: float) -> dict[str, Any]:
        """Single puts into both regions in turn, each thread with keys of its own. All times are taken."""
        regions, clock = self.pairs[name], time.perf_counter
        taken: list[list[float]] = [[] for _ in range(threads)]
        started = clock()

        def run(number: int) -> None:
            n, before = 0, clock()
            while not n or before < started + seconds:
                regions[(number + n) % 2].put(b"%s %d %d" % (self.cache.name.encode(), number, n % 10_000), b"value")
                now = clock()
                taken[number].append(now - before)
                n, before = n + 1, now

        in_threads(run, threads)
        times = sorted(each for own in taken for each in own)
        return {
            "events": len(times),
            "rate": len(times) / (clock() - started),
            "median_us": times[len(times) // 2] * 1e6,
            "p999_us": times[len(times) * 999 // 1000] * 1e6,
        }

    def write(self, threads: int, rate: float, *buckets: int) -> dict[str, Any]:
        """Puts in the background until `written` is asked. Puts into `buckets` have their times kept."""
        self.writers = Writers(self.region, self.core.bucket_of, self.ready_keys.tolist(), threads, rate, set(buckets))
        return {}

    def write_columns(self, threads: int) -> dict[str, Any]:
        """Puts columns in the background."""
        self.writers = ColumnWriters(self.region, self.ready_keys, self.values, threads)
        return {}

    def look(self) -> dict[str, Any]:
        return self.writers.look()

    def written(self) -> dict[str, Any]:
        return self.writers.end()


def in_threads(run: Any, count: int) -> None:
    if count == 1:
        run(0)
        return
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def figures(events: int, seconds: float, median_s: float = 0.0) -> dict[str, Any]:
    return {"events": events, "rate": events / seconds, "median_us": median_s * 1e6}


if __name__ == "__main__":
    serve_site(Member())
