"""Owns the pieces that the microbenchmarks measure: each with what it needs before a round and the work that is timed.
Used by `test_pieces.py`, by pytest-benchmark, and by `compare.py`, which runs them in two trees in turn.

16-byte keys, 100-byte values; one thread."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lz4.block
import numpy

from measure import VALUE_BYTES, key_column, numbered_keys, value_column
from pywan import CacheListener, _core
from pywan.config.attributes import RegionAttributes
from pywan.region.member_region import MemberRegion

EVENTS = 20_000  # Of a round.
KEYS = 200_000  # Of a region that stores: more than the caches hold.
ROWS_A_CALL = 10_000
BATCH = 1_000
LINK_US = 1  # The simulated clock stands still: no time-out, no wait for a batch to fill.

_names = itertools.count()


class Piece:
    """`prepare` is not timed; `run` handles `events`. One object serves one round after another."""

    events = EVENTS

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def queue_and_region(*, stores: bool, **options: Any) -> tuple[_core.EventQueue, _core.RegionCore]:
    name = f"pieces{next(_names)}"
    queue = _core.EventQueue(name, **{"remote_site": 2, "memory_limit": 1 << 30, **options})
    queue.running = True
    region = _core.RegionCore(name, _core.Clock(), site=1, member=1, stores=stores)
    region.attach([queue])
    return queue, region


class EmptyCall(Piece):
    """The loop of `Put`, over an empty method of a compiled class."""

    def __init__(self) -> None:
        self.keys, self.value = key_column(EVENTS // 2).tolist(), b"v" * VALUE_BYTES
        self.put = _core._Nothing().put

    def run(self) -> None:
        put, value = self.put, self.value
        for _ in range(2):
            for key in self.keys:
                put(key, value)


class Put(EmptyCall):
    """Single puts into a region that stores, and its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.region = queue_and_region(stores=True)
        self.put = self.region.put

    def prepare(self) -> None:
        self.queue.clear()


class Quiet(CacheListener):
    """A listener that does nothing with what it hears."""

    def after_create(self, event: Any) -> None:
        pass

    after_update = after_destroy = after_create


class QuietLists(CacheListener):
    """The same for lists."""

    def after_events(self, events: Any) -> None:
        pass


def heard_region(name: str, site: int, listener: CacheListener) -> MemberRegion:
    """A region with a listener."""
    attributes = RegionAttributes.make(name, type="REPLICATE")
    options: dict[str, Any] = {"member": 1, "stores": True, "forwards": True, "buckets": 0, "attributes": attributes}
    return MemberRegion(name, _core.Clock(), site=site, listeners=[listener], **options)


class HeardPut(Put):
    """The same puts, into a region with a listener in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.region = heard_region(self.region.name, 1, Quiet())
        self.region.attach([self.queue])
        self.put = self.region.put


class Get(EmptyCall):
    """Single gets of keys that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.region = queue_and_region(stores=True)
        self.region.put_columns(self.keys, [self.value] * len(self.keys))
        self.queue.clear()

    def run(self) -> None:
        get = self.region.get
        for _ in range(2):
            for key in self.keys:
                get(key)


class BulkCalls(Piece):
    """The entries of `Put`, BATCH in a call of `call` ("put_all", "get_all" or "remove_all"), or by a loop of single
    calls. `is_dict`: the values are dicts of four fields."""

    def __init__(self, call: str, *, is_loop: bool = False, is_dict: bool = False) -> None:
        self.queue, core = queue_and_region(stores=True)
        self.region, self.call, self.is_loop = _core.RegionFace(core), call, is_loop
        keys = key_column(EVENTS).tolist()
        values: list[Any] = [b"v" * VALUE_BYTES] * EVENTS
        if is_dict:
            values = [{"id": n, "name": f"name {n}", "price": n * 1.5, "tags": ["a", "b"]} for n in range(EVENTS)]
        pairs = list(zip(keys, values, strict=True))
        self.calls = [dict(pairs[row : row + BATCH]) for row in range(0, EVENTS, BATCH)]

    def prepare(self) -> None:
        for entries in self.calls if self.call != "put_all" else ():
            self.region.put_all(entries)
        self.queue.clear()

    def run(self) -> None:
        put, get, destroy = self.region.put, self.region.get, self.region.destroy
        for entries in self.calls:
            if not self.is_loop:
                getattr(self.region, self.call)(entries)
            elif self.call == "put_all":
                for key, value in entries.items():
                    put(key, value)
            elif self.call == "get_all":
                assert {key: get(key) for key in entries}
            else:
                for key in entries:
                    destroy(key)


class ChangeIf(Put):
    """Single changes whose condition holds: the key has a value."""

    def __init__(self) -> None:
        super().__init__()
        self.region.put_columns(self.keys, [self.value] * len(self.keys))

    def run(self) -> None:
        change_if, value = self.region.change_if, self.value
        for _ in range(2):
            for key in self.keys:
                change_if("value", _core.UPDATE, key, value)


class WrittenPut(EmptyCall):
    """Single puts whose queue has a log: each is written when it returns, and synced later."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.queue, region = queue_and_region(
            stores=True, log_directory=self.directory.name, log_id=1, synchronous="written"
        )
        self.put = region.put
        self.committer = threading.Thread(target=self.queue.commit_loop)
        self.committer.start()

    def prepare(self) -> None:
        self.queue.clear()
        self.queue.wait_removed()

    def close(self) -> None:
        self.queue.stop_log()
        self.committer.join()
        self.directory.cleanup()


class Columns(Piece):
    """Rows into a queue that drains."""

    stores = False

    def __init__(self) -> None:
        self.queue, self.region = queue_and_region(stores=self.stores)
        self.keys, self.values = key_column(EVENTS), value_column(EVENTS)

    def prepare(self) -> None:
        self.queue.clear()

    def run(self) -> None:
        for row in range(0, EVENTS, ROWS_A_CALL):
            self.region.put_columns(self.keys[row : row + ROWS_A_CALL], self.values[row : row + ROWS_A_CALL])


class StoredColumns(Columns):
    """Rows into a region and a queue, their keys in another order than they were stored in."""

    stores = True

    def __init__(self) -> None:
        super().__init__()
        fill(self.region, self.queue)
        self.shuffled, self.at = numbered_keys(numpy.random.default_rng(7).permutation(KEYS)), 0

    def prepare(self) -> None:
        self.queue.clear()
        self.at = (self.at + EVENTS) % KEYS
        self.keys = self.shuffled[self.at : self.at + EVENTS]


def fill(region: _core.RegionCore, *queues: _core.EventQueue) -> None:
    """All keys in their order, and nothing of it left in the queues."""
    values = value_column(ROWS_A_CALL)
    for row in range(0, KEYS, ROWS_A_CALL):
        region.put_columns(numbered_keys(numpy.arange(row, row + ROWS_A_CALL)), values)
        for queue in queues:
            queue.clear()


class Conflate(Columns):
    """Rows into a queue that keeps the newest of each key: ten updates of each."""

    def __init__(self) -> None:
        self.queue, self.region = queue_and_region(stores=True, conflate=True)
        self.keys = numpy.tile(key_column(EVENTS // 10), 10)
        self.values = value_column(EVENTS)
        self.run()


class Encode(Piece):
    """Keys and values from Python objects to bytes: what a put does first."""

    def __init__(self) -> None:
        self.objects = [
            f"name {n}" if n % 4 else {"n": n, "price": n / 7, "tags": ["a", "b"]} for n in range(EVENTS // 2)
        ]

    def run(self) -> None:
        encode, encode_key = _core.encode_object, _core.encode_key_object
        for n, each in enumerate(self.objects):
            encode_key(n)
            encode(each)


class Sending(Columns):
    """A queue with a dispatcher, and a receiver of the other site that gets what it sends. The queue is full before
    each round."""

    def __init__(self, compress: bool = False) -> None:
        super().__init__()
        self.parked = _core.EventQueue("parked", partitions=8)
        self.dispatcher = _core.DispatcherSession(self.queue, 0, self.parked)
        self.dispatcher.configure(BATCH, -1, compress=compress)
        self.dispatcher.connected(1_000_000, 1 << 30, LINK_US)
        self.remote = self.remote_region()
        self.memory, self.counts = _core.SourceMemory(1), _core.ReceiverCounts()
        self.receiver = _core.ReceiverSession(
            self.memory, self.counts, lambda name: self.remote, lambda *change: 0, credit_bytes=1 << 30
        )
        self.data: list[bytes] = []
        self.shuffled, self.at = numbered_keys(numpy.random.default_rng(7).permutation(KEYS)), 0
        fill(self.remote)
        for _ in range(8):  # Until the window is as large as a round.
            Sending.prepare(self)

    def remote_region(self) -> _core.RegionCore:
        return _core.RegionCore(self.region.name, _core.Clock(), site=2)

    def prepare(self) -> None:
        """What the last round left is sent and acknowledged. Keys come in random order, and each event is later than
        what is stored."""
        while len(self.queue):
            self.send()
            self.apply()
            self.dispatcher.receive_data(self.receiver.data_to_send(), LINK_US)
        self.keys = self.shuffled[self.at : self.at + EVENTS]
        self.at = (self.at + EVENTS) % KEYS
        Columns.run(self)

    def send(self) -> None:
        self.data += iter(lambda: self.dispatcher.data_to_send(LINK_US), b"")

    def apply(self) -> None:
        for data in self.data:
            self.receiver.receive_data(data)
        self.data.clear()

    def close(self) -> None:
        Sending.prepare(self)
        counts = self.counts.counts()
        assert counts["exceptions_occurred"] == counts["duplicates_skipped"] == 0 and len(self.remote) == KEYS


class Peek(Columns):
    """The oldest events of a queue, copied out for Python."""

    def prepare(self) -> None:
        super().prepare()
        Columns.run(self)

    def run(self) -> None:
        assert len(self.queue.peek(0, EVENTS)) == EVENTS


class Batch(Sending):
    """Peeked, laid out, checksummed: bytes for the connection."""

    def run(self) -> None:
        self.send()
        assert self.dispatcher.in_flight == EVENTS // BATCH


class PackedBatch(Batch):
    """The same, and packed with lz4."""

    def __init__(self) -> None:
        super().__init__(compress=True)


class Packing(Peek):
    """The same batches packed as the core does it, and nothing else."""

    def prepare(self) -> None:
        super().prepare()
        self.batches = [b"".join(self.queue.peek(0, BATCH)) for _ in range(EVENTS // BATCH)]

    def run(self) -> None:
        for batch in self.batches:
            lz4.block.compress(batch, mode="fast", acceleration=2, store_size=False)


class Apply(Sending):
    """A connection's bytes into the tables of the other site."""

    def prepare(self) -> None:
        super().prepare()
        self.send()

    def run(self) -> None:
        self.apply()


class HeardApply(Apply):
    """The same, and a listener in Python of each event."""

    listener: type[CacheListener] = Quiet

    def remote_region(self) -> _core.RegionCore:
        return heard_region(self.region.name, 2, self.listener())


class HeardLists(HeardApply):
    """The same, for a listener of lists."""

    listener = QuietLists


class Acknowledge(Apply):
    """Acknowledgements of batches in flight: their events leave the queue."""

    def prepare(self) -> None:
        super().prepare()
        self.apply()
        self.answer = self.receiver.data_to_send()

    def run(self) -> None:
        self.dispatcher.receive_data(self.answer, LINK_US)
        assert len(self.queue) == 0


class Recover(Piece):
    """A persistent queue is opened."""

    events = 200_000

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.log = Path(self.directory.name) / "log"
        self.log.mkdir()
        self.queue: _core.EventQueue | None = None
        queue, region = queue_and_region(stores=False, **self.options())
        keys, values = key_column(ROWS_A_CALL), value_column(ROWS_A_CALL)
        for _ in range(self.events // ROWS_A_CALL):
            region.put_columns(keys, values)
            queue.commit_once()
        region.attach([])
        queue.stop_log()

    def options(self) -> dict[str, Any]:
        return {"directory": self.directory.name, "log_directory": str(self.log), "log_id": 1, "synchronous": False}

    def prepare(self) -> None:
        self.queue = None

    def run(self) -> None:
        self.queue = _core.EventQueue("recovered", remote_site=2, memory_limit=1 << 30, **self.options())

    def close(self) -> None:
        assert len(self.queue) == self.events
        self.queue = None
        self.directory.cleanup()


PIECES: dict[str, Callable[[], Piece]] = {
    "empty call": EmptyCall,
    "put": Put,
    "put, heard": HeardPut,
    "get": Get,
    **{
        f"{call}{', loop' * is_loop}{', dicts' * is_dict}": partial(BulkCalls, call, is_loop=is_loop, is_dict=is_dict)
        for call in ("put_all", "get_all", "remove_all")
        for is_loop in (False, True)
        for is_dict in (False, True)
    },
    "change if": ChangeIf,
    "written put": WrittenPut,
    "columns": Columns,
    "stored columns": StoredColumns,
    "conflate": Conflate,
    "encode": Encode,
    "peek": Peek,
    "batch": Batch,
    "batch, lz4": PackedBatch,
    "lz4 alone": Packing,
    "apply": Apply,
    "apply, heard": HeardApply,
    "apply, heard as lists": HeardLists,
    "acknowledge": Acknowledge,
    "recover": Recover,
}


@contextlib.contextmanager
def piece(name: str) -> Iterator[Piece]:
    made = PIECES[name]()
    try:
        yield made
    finally:
        made.close()
