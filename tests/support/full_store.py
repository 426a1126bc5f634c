"""Owns a disk store of small size on a simulated disk, with logs that fill it."""

from __future__ import annotations

import random

from pywan import _core
from pywan.errors import DiskError, ProtocolError
from pywan.stats import ledger
from simulator.disk import Disk

MIB = 1 << 20


class Queue(_core.EventQueue):
    """Its committer runs when somebody waits for the disk, and the store's other committers then too."""

    store: Store

    def wait_durable(self, timeout: float = 60.0) -> None:
        for _ in range(3):
            if self.commit_once():
                return
            self.store.commit()
        raise DiskError("not in time")


class Store:
    """Logs that share a budget on a simulated disk, as those of a disk store do."""

    def __init__(self, size: int):
        self.disk, self.budget, self.logs = Disk(random.Random(1)), _core.LogBudget(size), []

    def queue(self, name: str, **options) -> Queue:
        queue = Queue(
            name,
            remote_site=2,
            log_directory=f"/{name}",
            log_id=7,
            synchronous=False,
            log_budget=self.budget,
            environment=self.disk.environment,
            **options,
        )
        queue.running, queue.store = True, self
        queue.set_full_policy("refuse")
        self.logs.append(queue)
        return queue

    def region(self, name: str) -> _core.RegionCore:
        region = _core.RegionCore(name, _core.Clock(), site=1, member=1)

        def wait() -> None:  # As a caller that waits, while the committer runs.
            if not region.commit_once():
                raise DiskError("not in time")

        region.open_log(
            f"/{name}",
            log_id=7,
            synchronous=False,
            log_budget=self.budget,
            environment=self.disk.environment,
            wait=wait,
        )
        self.logs.append(region)
        return region

    def commit(self) -> bool:
        done = [log.commit_once() for log in self.logs]
        assert self.budget.used <= self.budget.limit
        return all(done)


class Link:
    """A dispatcher and a receiver that has no region, until it has."""

    def __init__(self, queue: Queue, parked: Queue):
        self.queue, self.remote = queue, {}
        self.session = _core.DispatcherSession(queue, 0, parked)
        self.session.configure(1000, -1)
        self.memory, self.now_us = _core.SourceMemory(1), 1

    def run(self) -> None:
        """Until both are silent, or the connection breaks."""
        self.session.connected(1_000_000, 64 * MIB, self.now_us)
        receiver = _core.ReceiverSession(self.memory, _core.ReceiverCounts(), self.remote.get, None)
        try:
            while data := self.session.data_to_send(self.now_us):
                receiver.receive_data(data)
                self.session.receive_data(receiver.data_to_send(), self.now_us)
        except ProtocolError:
            pass
        self.session.disconnected()
        assert ledger(self.queue.counts())["balanced"]
