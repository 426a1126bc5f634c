"""Threads on the compiled core, all at once and without the GIL: writers, a committer, dispatchers, a receiver, and
somebody who looks on. Also what `make tsan` runs under ThreadSanitizer; so the amounts are small."""

from __future__ import annotations

import functools
import itertools
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pywan import _core
from pywan.stats import ledger
from pywan.testing.waiting import LIMIT_S, eventually
from support.records import check_ledger
from support.shared_site import SharedSite

WRITERS, ROUNDS, KEYS = 3, 12, 300
ALTERED = 200


class Crew:
    """Threads that are waited for, with what they raised."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._running: list[Future] = []
        self.is_over = threading.Event()

    def start(self, work: Callable[..., Any], *arguments: Any) -> Future:
        self._running.append(self._pool.submit(work, *arguments))
        return self._running[-1]

    def watch(self, *looks: Callable[[], Any]) -> None:
        """Looks again and again until it is over."""

        def look() -> None:
            while not self.is_over.is_set():
                for each in looks:
                    each()

        self.start(look)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.is_over.set()
        try:
            if kind is None:
                for each in self._running:
                    each.result(LIMIT_S)
        finally:
            self._pool.shutdown(wait=kind is None)


def write(region: _core.RegionCore, writer: int) -> None:
    """Each writer its own keys, so that the last value of each is known; and some that all write."""
    keys = [b"%d-%d" % (writer, n) for n in range(KEYS)]
    for round_ in range(ROUNDS):
        region.put_columns(keys, [b"%d" % round_ * 20] * KEYS)
        for n in range(20):
            region.put(b"common-%d" % n, round_)
        region.put_columns(
            [b"common-%d" % n for n in range(20)],
            None,
            operations=["destroy" if n % 3 else "update" for n in range(20)],
        )


def check_written(region: _core.RegionCore) -> None:
    for writer in range(WRITERS):
        for n in range(KEYS):
            assert region.get(b"%d-%d" % (writer, n)) == b"%d" % (ROUNDS - 1) * 20


@pytest.mark.parametrize("conflate, log", [(True, False), (True, True), (False, True)])
def test_everything_arrives_while_all_work_at_once(tmp_path, conflate, log):
    clock = _core.Clock()
    persistent = {"log_directory": str(tmp_path), "log_id": 5, "synchronous": False, "flush_ms": 1} if log else {}
    queue = _core.EventQueue("ln", remote_site=2, partitions=4, dispatchers=2, conflate=conflate, **persistent)
    queue.running = True
    near, far = (
        _core.RegionCore(f"threads-{conflate}-{log}", each, site=site, member=site)
        for site, each in ((1, clock), (2, _core.Clock()))
    )
    near.attach([queue])
    parked, memory, counts = _core.EventQueue("parked", partitions=8), _core.SourceMemory(4), _core.ReceiverCounts()
    with Crew() as crew:
        if log:
            committer = crew.start(queue.commit_loop)
        ends, sessions = [], []
        for n in range(2):
            ours, theirs = socket.socketpair()
            dispatcher = _core.DispatcherSession(queue, n, parked)
            dispatcher.configure(100, 1, compress=n == 1, batch_conflation=n == 1)
            dispatcher.connected(1_000_000, 64 << 20)
            receiver = _core.ReceiverSession(memory, counts, {far.name: far}.get, None)
            ends += [ours, theirs]
            sessions.append(
                (
                    dispatcher,
                    crew.start(dispatcher.run, ours),
                    receiver,
                    crew.start(receiver.run, theirs, 0),
                )
            )
        crew.watch(
            queue.counts,
            queue.positions,
            queue.log_state,
            lambda: (len(queue), queue.bytes, queue.oldest_ms()),
            counts.counts,
            memory.last,
            lambda: [(each[0].flow(0), each[0].times(0), each[0].in_flight) for each in sessions],
            lambda: (len(near), far.tombstones, far.memory_bytes, near.conflicts, far.applied),
        )
        for done in [crew.start(write, near, writer) for writer in range(WRITERS)]:
            done.result(LIMIT_S)
        if log:
            queue.wait_durable()
        eventually(lambda: len(queue) == 0)
        for dispatcher, dispatching, receiver, receiving in sessions:
            dispatcher.stop()
            dispatching.result(LIMIT_S)
            receiver.stop()
            receiving.result(LIMIT_S)
        if log:
            queue.stop_log()
            committer.result(LIMIT_S)
    for end in ends:
        end.close()
    check_written(far)
    assert all(far.get(b"common-%d" % n) == near.get(b"common-%d" % n) for n in range(20))
    check_ledger(queue.counts())
    near.attach([])


def test_a_region_is_logged_by_all_threads_and_read_again(tmp_path):
    def opened() -> _core.RegionCore:
        region = _core.RegionCore("threads-stored", _core.Clock(), site=1, member=7)
        region.open_log(str(tmp_path), log_id=6, synchronous=False, flush_ms=1)
        return region

    region = opened()
    with Crew() as crew:
        crew.start(region.commit_loop)
        crew.watch(
            region.log_state,
            lambda: (len(region), region.tombstones, region.memory_bytes),
            lambda: sum(1 for _ in region.scan_keys()),
        )
        for done in [crew.start(write, region, writer) for writer in range(WRITERS)]:
            done.result(LIMIT_S)
        region.wait_durable()
        region.stop_log()
    check_written(region)
    found = {key: region.lookup(key) for key in region.scan_keys()}
    again = opened()
    assert {key: again.lookup(key) for key in again.scan_keys()} == found


def test_a_persistent_queue_keeps_what_threads_put_into_it(tmp_path):
    def opened() -> _core.EventQueue:
        queue = _core.EventQueue(
            "ln",
            remote_site=2,
            partitions=4,
            conflate=True,
            log_directory=str(tmp_path),
            log_id=5,
            synchronous=True,
            flush_ms=1,
        )
        queue.running = True
        return queue

    def drain(queue: _core.EventQueue, partition: int) -> int:
        taken = 0
        while not crew.is_over.is_set():
            taken += len(queue.peek(partition, 50))
            if taken % 3 == 0:
                queue.rewind(partition)
            else:
                queue.remove(partition, queue.positions()[partition][1])
        return taken

    queue = opened()
    region = _core.RegionCore("threads-queued", _core.Clock(), site=1, member=7)
    region.attach([queue])
    with Crew() as crew:
        crew.start(queue.commit_loop)
        crew.start(drain, queue, 0)
        crew.watch(queue.log_state, queue.counts, functools.partial(queue.records, 100), queue.oldest_ms)
        for done in [crew.start(write, region, writer) for writer in range(WRITERS)]:
            done.result(LIMIT_S)
        queue.wait_durable()
        crew.is_over.set()
        queue.stop_log()
    left = {each for each in queue.records(1_000_000) if each[0]}
    assert ledger(queue.counts())["balanced"]
    region.attach([])
    del queue
    again = opened()
    assert {each for each in again.records(1_000_000) if each[0]} == left
    assert ledger(again.counts())["balanced"]


def test_a_region_gets_and_loses_senders_while_its_members_change_it():
    queues = [_core.EventQueue("ln", remote_site=2, partitions=2) for _ in range(2)]
    others = [_core.EventQueue("tk", remote_site=3) for _ in range(2)]
    with SharedSite(2) as site, Crew() as crew:
        for queue in queues + others:
            queue.running = True
        site.keep_carrying()

        def alter(member: int) -> None:
            both = [queues[member], others[member]]
            for n in itertools.count():
                if n >= ALTERED and all(queue.counts()["received"] for queue in both):
                    return
                site.cores[member].attach(both if n % 2 else both[n // 2 % 2 :][:1])

        def put(writer: int) -> None:
            for n in itertools.count():
                if crew.is_over.is_set():
                    return
                site.cores[0].put(b"%d-%d" % (writer, n % KEYS), n)

        for writer in range(WRITERS):
            crew.start(put, writer)
        for done in [crew.start(alter, member) for member in range(2)]:
            done.result(LIMIT_S)
        crew.is_over.set()
    for member in range(2):
        site.cores[member].attach([])
        for queue in (queues[member], others[member]):
            assert ledger(queue.counts())["balanced"] and queue.counts()["received"] > 0


# `make tsan` runs this file as a program. ThreadSanitizer does not see what orders the threads when pytest loads the
# core.
if __name__ == "__main__":
    for each, arguments in [
        (test_everything_arrives_while_all_work_at_once, (True, False)),
        (test_everything_arrives_while_all_work_at_once, (True, True)),
        (test_everything_arrives_while_all_work_at_once, (False, True)),
        (test_a_region_is_logged_by_all_threads_and_read_again, ()),
        (test_a_persistent_queue_keeps_what_threads_put_into_it, ()),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            each(Path(folder), *arguments)
        print("held:", each.__name__, *arguments)
    test_a_region_gets_and_loses_senders_while_its_members_change_it()
    print("held: test_a_region_gets_and_loses_senders_while_its_members_change_it")
