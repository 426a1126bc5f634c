"""Owns how tests speak of a persistent queue: its folder, a commit at a chosen moment, a crash that leaves what was
written.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

from pywan import _core
from pywan.stats import ledger
from support.records import CREATE, DESTROY, Fields, read_record


def budget_of(size: int) -> _core.LogBudget | None:
    """A disk store of so many bytes as a log sees it that is alone in it, or opened first; 0: without a limit."""
    return _core.LogBudget(size) if size else None


class DurableQueue:
    """A queue with one region `data`. Nothing reaches the disk before `commit`, unless a committer runs
    (`background`).
    """

    def __init__(
        self,
        folder: Path,
        *,
        background: bool = False,
        stores: bool = True,
        full_policy: str = "block",
        store_bytes: int = 0,
        **options: Any,
    ) -> None:
        self.folder, self.background, self.stores, self.full_policy, self.store_bytes = (
            folder,
            background,
            stores,
            full_policy,
            store_bytes,
        )
        self.options = {
            "remote_site": 2,
            "partitions": 1,
            "memory_limit": 256 << 20,
            "log_id": 5,
            "synchronous": False,
            "flush_ms": 1,
            **options,
        }
        self.clock = _core.Clock()
        self._committer: threading.Thread | None = None
        self.open()

    def open(self) -> None:
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        self.queue = _core.EventQueue(
            "ln",
            directory=str(self.folder),
            log_directory=str(self.folder / "log"),
            log_budget=budget_of(self.store_bytes),
            **self.options,
        )
        self.queue.running = True
        self.queue.set_full_policy(self.full_policy)
        self.region = _core.RegionCore("data", self.clock, site=1, member=7, stores=self.stores)
        self.region.attach([self.queue])
        if self.background:
            # A failed test leaves it behind.
            self._committer = threading.Thread(target=self.queue.commit_loop, daemon=True)
            self._committer.start()

    def commit(self) -> None:
        """All that was enqueued is on the disk, and a checkpoint of what was removed."""
        if self._committer is not None:
            self.queue.wait_durable()
        else:
            self.queue.commit_once()

    def close(self) -> None:
        self.queue.stop_log()
        if self._committer is not None:
            self._committer.join()
            self._committer = None
        else:
            self.queue.commit_loop()
        self.let_go()

    def let_go(self) -> None:
        self.region.attach([])
        del self.queue, self.region

    def reopen(self) -> None:
        self.close()
        self.open()

    def crash(self) -> None:
        """As kill -9 at this moment: what was written is there, what was only staged is not."""
        kept = self.folder / "after-the-crash"
        before = None
        while before != self._written():  # A running committer must not come between one file and the next.
            shutil.rmtree(kept, ignore_errors=True)
            before = self._written()
            with contextlib.suppress(shutil.Error):
                shutil.copytree(self.folder / "log", kept)
        if self._committer is not None:
            self.queue.stop_log()
            self._committer.join()
            self._committer = None
        self.let_go()
        shutil.rmtree(self.folder / "log")
        kept.rename(self.folder / "log")
        self.open()

    def _written(self) -> tuple[Any, ...]:
        """Changes with every block and every manifest that is written."""
        manifest = self.folder / "log" / "MANIFEST"
        return self.queue.log_state()["commits"], manifest.exists() and (
            manifest.stat().st_ino,
            manifest.stat().st_mtime_ns,
        )

    # The content of the queue

    def events(self) -> list[Fields]:
        return [
            read_record(record, sequence, partition) for partition, sequence, record in self.queue.records(1_000_000)
        ]

    def sequences(self) -> list[int]:
        return [event.sequence for event in self.events()]

    def latest(self) -> dict[str, bytes | None]:
        """Where each queued key ends at a receiver that takes all of it."""
        found: dict[str, bytes | None] = {}
        for event in self.events():
            found[event.key.decode()] = None if event.operation == DESTROY else event.value
        return found

    def send(self, count: int, partition: int = 0) -> list[Fields]:
        """As a dispatcher: takes the next events, and has them acknowledged."""
        taken = [
            read_record(record, sequence, partition)
            for sequence, record in self.queue.peek_with_positions(partition, count)
        ]
        self.queue.remove(partition, self.queue.positions()[partition][1])
        return taken

    def peek(self, count: int = 1000, partition: int = 0) -> list[Fields]:
        return [
            read_record(record, sequence, partition)
            for sequence, record in self.queue.peek_with_positions(partition, count)
        ]

    def check_ledger(self) -> None:
        entry = ledger(self.queue.counts())
        assert entry["balanced"], entry

    @property
    def disk_bytes(self) -> int:
        found = 0
        for file in (self.folder / "log").glob("*.seg"):
            with contextlib.suppress(FileNotFoundError):  # The log is shortened meanwhile.
                found += file.stat().st_blocks * 512
        return found


assert CREATE == 0
