"""The committer of a log, through both of its owners: callers that wait, rounds that fail, rounds of other threads, its
end.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pywan import _core
from pywan.errors import DiskError, IllegalStateError, PywanError
from pywan.testing.waiting import LIMIT_S, eventually
from simulator.disk import Disk
from support.records import read_record


class RegionOwner:
    """A persistent region."""

    def __init__(self, **options: Any) -> None:
        self.region = self.logged = _core.RegionCore("data", _core.Clock(), site=1, member=1)
        self.region.open_log("/log", log_id=7, **options)

    def keys(self) -> set[str]:
        return set(self.region.scan_keys())

    def end(self) -> None:
        self.region.close()


class QueueOwner:
    """A persistent queue, into which a region's changes go."""

    def __init__(self, **options: Any) -> None:
        self.logged = _core.EventQueue("ln", remote_site=2, log_directory="/log", log_id=7, **options)
        self.logged.running = True
        self.logged.set_full_policy("refuse")  # At once, as a region does whose disk fails.
        self.region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
        self.region.attach([self.logged])

    def keys(self) -> set[str]:
        events = self.logged.records(1 << 20)
        return {read_record(record, sequence, partition).key.decode() for partition, sequence, record in events}

    def end(self) -> None:
        self.region.attach([])


class Log:
    """The log of one of them on a simulated disk. Its committer's thread runs within `committing`."""

    def __init__(self, kind: type[RegionOwner | QueueOwner], synchronous: bool, callers: ThreadPoolExecutor) -> None:
        self.disk, self._kind, self._callers = Disk(random.Random(1)), kind, callers
        self._options = {"synchronous": synchronous, "flush_ms": 1, "environment": self.disk.environment}
        self._open()

    def _open(self) -> None:
        self.owner = self._kind(**self._options)
        self.logged = self.owner.logged

    def change(self, key: str) -> None:
        """Where the log is synchronous it is on the disk when this returns, else it is staged."""
        self.owner.region.change(0, key, "v")

    def begin(self, key: str) -> Future[None]:
        """A caller changes something, and has staged it when this returns."""
        before = self.pending
        caller = self._callers.submit(self.change, key)
        eventually(lambda: self.pending > before or caller.done())
        return caller

    @property
    def pending(self) -> int:
        """Changes that wait for the disk."""
        return self.logged.log_state()["pending"]

    @property
    def failing(self) -> str | None:
        return self.logged.log_state()["failing"]

    @property
    def rounds(self) -> int:
        return self.logged.log_state()["commits"]

    @contextlib.contextmanager
    def committing(self):
        thread = threading.Thread(target=self.logged.commit_loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.disk.heal()
            self.logged.stop_log()
            thread.join()
            self.disk.raise_error()

    def keys_after_power_cut(self) -> set[str]:
        self.owner.end()
        self.disk.crash()
        self._open()
        return self.owner.keys()


@pytest.fixture(params=[RegionOwner, QueueOwner])
def kind(request):
    return request.param


@pytest.fixture
def made(kind):
    logs = []
    with ThreadPoolExecutor(64) as callers:

        def make(synchronous: bool) -> Log:
            logs.append(Log(kind, synchronous, callers))
            return logs[-1]

        yield make
        for log in logs:
            log.owner.end()


@pytest.fixture
def waited_for(made):
    """Its callers wait for the disk."""
    return made(True)


@pytest.fixture
def log(made):
    """Nobody waits for it."""
    return made(False)


def test_a_round_that_fails_is_tried_again_and_nothing_is_taken_meanwhile(waited_for):
    log = waited_for
    with log.committing():
        log.change("first")
        log.disk.error_rate = 1.0
        second = log.begin("second")
        eventually(lambda: log.failing is not None)
        with pytest.raises(PywanError):
            log.change("refused")
        assert log.pending == 1 and not second.done()
        log.disk.heal()
        second.result()
        assert log.failing is None and log.pending == 0
        log.change("third")
    assert log.keys_after_power_cut() == {"first", "second", "third"}


def test_a_wait_for_a_disk_that_takes_nothing_ends_in_vain_and_what_is_staged_is_written_later(waited_for):
    log = waited_for
    with log.committing():
        log.disk.error_rate = 1.0
        with pytest.raises(DiskError, match="not on the disk yet"):
            log.change("late")
        assert log.pending == 1
        log.disk.heal()
        eventually(lambda: log.pending == 0)
    assert log.keys_after_power_cut() == {"late"}


def test_a_committer_that_is_told_to_stop_writes_what_is_staged_first(waited_for):
    log = waited_for
    callers = [log.begin(f"k{n}") for n in range(10)]
    assert log.pending == 10 and log.rounds == 0
    log.logged.stop_log()
    with pytest.raises(IllegalStateError, match="the log is closed"):
        log.change("refused")
    log.logged.commit_loop()
    for caller in callers:
        caller.result()
    assert log.pending == 0 and log.rounds == 1
    assert log.keys_after_power_cut() == {f"k{n}" for n in range(10)}


def test_a_committer_that_is_told_to_stop_gives_up_a_disk_that_takes_nothing(waited_for):
    log = waited_for
    log.disk.error_rate = 1.0
    caller = log.begin("lost")
    log.logged.stop_log()
    log.logged.commit_loop()
    with pytest.raises(DiskError, match="not on the disk yet"):
        caller.result()
    assert log.pending == 1 and log.failing is not None
    log.disk.heal()
    assert log.keys_after_power_cut() == set()


def test_rounds_of_several_threads_come_one_after_the_other(log):
    """Each thread commits what it changed, beside the committer's own thread."""
    inside, most, lock = 0, 0, threading.Lock()
    failed: list[str | None] = []

    def note_a_sync() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.0005)  # The disk takes its time, so that other threads come meanwhile.
        with lock:
            inside -= 1

    def change_and_commit(number: int) -> None:
        for n in range(30):
            log.change(f"{number}-{n}")
            if not log.logged.commit_once() or log.pending > len(threads):  # The others' newest may be staged.
                failed.append(log.failing)

    threads = [threading.Thread(target=change_and_commit, args=(number,)) for number in range(4)]
    log.disk.meanwhile = note_a_sync
    with log.committing():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed and log.pending == 0
    log.disk.meanwhile = None
    assert most == 1
    assert log.keys_after_power_cut() == {f"{number}-{n}" for number in range(4) for n in range(30)}


def test_what_is_staged_while_a_round_writes_is_in_the_next_one(log):
    writes, goes_on = threading.Event(), threading.Event()

    def hold_the_sync() -> None:
        writes.set()
        goes_on.wait(LIMIT_S)

    log.change("first")
    assert log.logged.commit_once()  # Its segments and its manifest are there.
    with log.committing():
        before = log.rounds
        log.disk.meanwhile = hold_the_sync
        log.change("second")
        assert writes.wait(LIMIT_S)
        log.disk.meanwhile = None
        for n in range(50):
            log.change(f"meanwhile-{n}")
        assert log.pending == 51
        goes_on.set()
        eventually(lambda: log.pending == 0)
        assert log.rounds - before == 2  # The one that was held, and one for all the others.


def test_the_first_change_wakes_a_committer_that_sleeps(waited_for):
    log, took = waited_for, []
    with log.committing():
        for n in range(40):
            began = time.monotonic()
            log.change(f"k{n}")
            took.append(time.monotonic() - began)
    # It looks by itself every 0.1 s, and each change comes just after it lay down. Some may be slow on a busy machine.
    assert sorted(took)[len(took) // 4] < 0.05, took
