"""Owns both ends of a data connection over bytes in memory: two sites in the compiled core."""

from __future__ import annotations

import itertools

from pywan import _core
from support.records import check_ledger


class History:
    """A remote region that remembers every event that was applied, in order; user's Python is on its way."""

    def __init__(self, name):
        self.core = _core.RegionCore(name, _core.Clock(), site=2)
        self.core.set_callback_path(lambda *change: None)
        self.applied = []
        self.fails = {}  # key -> reason

    def apply(self, record, place):
        fields = _core.record_fields(record)
        key = fields["key"][1].decode()
        if key in self.fails:
            return self.fails[key]
        self.applied.append((key, fields["value"][1].decode(), *place[:2]))
        return 0

    def values(self, key):
        return [value for k, value, *_ in self.applied if k == key]


class TwoSites:
    """A queue with a dispatcher at site 1, a receiver at site 2, and one connection between them, byte by byte."""

    def __init__(self, *, partitions=1, conflate=False, name=None, history=True, directory=None):
        self.name = name or f"r{next(name_numbers)}"
        self.queue = _core.EventQueue(
            "ln", remote_site=2, partitions=partitions, dispatchers=1, conflate=conflate, directory=directory
        )
        self.queue.running = True
        self.region = _core.RegionCore(self.name, _core.Clock(), site=1, stores=True)
        self.region.attach([self.queue])
        self.parked = _core.EventQueue("parked", partitions=8)
        self.failures = []
        self.dispatcher = _core.DispatcherSession(
            self.queue, 0, self.parked, on_failure=lambda *what: self.failures.append(what[:3])
        )
        self.dispatcher.configure(100, -1)
        self.memory = _core.SourceMemory(partitions)
        self.counts = _core.ReceiverCounts()
        self.remote = {}
        if history:
            self.history = History(self.name)
            self.remote[self.name] = self.history.core
        self.now_us = 1
        self.connect()

    def connect(self, credit_events=1_000_000, credit_bytes=64 << 20):
        self.dispatcher.connected(credit_events, credit_bytes, self.now_us)
        self.credit_bytes = credit_bytes
        self.connect_receiver(self.remote.get)

    def connect_receiver(self, find_region):
        self.receiver = _core.ReceiverSession(
            self.memory,
            self.counts,
            find_region,
            lambda region, record, place: self.history.apply(record, place),
            credit_bytes=self.credit_bytes,
        )

    def reconnect(self, **credit):
        self.dispatcher.disconnected()
        self.connect(**credit)

    def put(self, *pairs):
        for key, value in pairs:
            self.region.put(key, value)

    def sent(self):
        """Everything the dispatcher has to say now."""
        return b"".join(iter(lambda: self.dispatcher.data_to_send(self.now_us), b""))

    def deliver(self, data):
        receiver = self.receiver  # A reconnection meanwhile makes another one, whose answers are not ours.
        receiver.receive_data(data)
        return receiver.data_to_send()

    def settle(self):
        """Moves bytes both ways until both are silent."""
        while data := self.sent():
            self.dispatcher.receive_data(self.deliver(data))
        check_ledger(self.queue.counts())

    def fast_region(self):
        """A remote region without user's Python: the compiled way in."""
        self.remote[self.name] = _core.RegionCore(self.name, _core.Clock(), site=2)
        return self.remote[self.name]


name_numbers = itertools.count()
