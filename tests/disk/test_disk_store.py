"""The size of a disk store holds for all logs in it together, over restarts, and what left makes room for the
others.
"""

import contextlib
import threading
import time

import pytest

from pywan import _core
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk.store import StoreCore
from pywan.errors import BatchError, DiskError, QueueFullError
from pywan.testing.waiting import LIMIT_S, eventually

MB = 1 << 20
ROW = b"x" * 10_000


def bytes_of(folder):
    found = 0
    for file in folder.rglob("*.seg"):
        with contextlib.suppress(FileNotFoundError):  # A log that is shortened meanwhile.
            found += file.stat().st_size
    return found


class SharedQueues:
    """Queues whose logs lie in one directory with one budget."""

    def __init__(self, folder, megabytes):
        self.folder = folder
        self.store = StoreCore(DiskStoreAttributes.make("s", directories=[(str(folder), megabytes)]), folder)
        self.queues = {}

    def open(self, name, **more):
        place = self.store.log_place(f"queue-{name}", {"kind": "queue", "sender": name})
        queue = _core.EventQueue(
            name,
            partitions=1,
            directory=place.folder,
            log_directory=place.folder,
            log_id=5,
            log_budget=place.budget,
            log_known=place.known,
            synchronous=False,
            **more,
        )
        queue.running = True
        region = _core.RegionCore(f"of-{name}", _core.Clock(), site=1, member=7, stores=False)
        region.attach([queue])
        self.queues[name] = queue, region
        return queue

    def fill(self, name):
        """Until its log takes no more. How many events are on the disk."""
        queue, region = self.queues[name]
        while queue.commit_once():
            self.check()
            for _ in range(20):
                region.put("k", ROW)
        return queue.log_state()["durable"][0]

    def send(self, name, count):
        queue, _ = self.queues[name]
        taken = queue.peek(0, count)
        queue.remove(0, queue.positions()[0][1])
        return len(taken)

    def close(self, name):
        _queue, region = self.queues.pop(name)
        region.attach([])

    @property
    def budget(self):
        return self.store.log_place("queue-a", {"kind": "queue", "sender": "a"}).budget

    def check(self):
        used = bytes_of(self.folder)
        assert used == self.budget.used <= self.budget.limit


def test_logs_of_one_directory_share_its_size(tmp_path):
    shared = SharedQueues(tmp_path, 8)
    shared.open("a"), shared.open("b")
    assert shared.fill("a") > 400 and bytes_of(tmp_path) > 6 * MB
    assert shared.fill("b") < 100
    _queue, region = shared.queues["b"]
    with pytest.raises(
        QueueFullError,
        match=(
            r"the logs of the disk store have reached their limit of 8388608 bytes, of which .*queue-b has .* "
            r"larger size"
        ),
    ):
        region.put("k", ROW)
    shared.send("a", 350)
    assert shared.queues["a"][0].commit_once() and shared.queues["a"][0].commit_once()
    assert bytes_of(tmp_path) < 5 * MB
    assert shared.fill("b") > 150
    shared.check()


def test_what_logs_hold_is_known_again_after_they_or_the_store_were_closed_and_after_one_is_destroyed(tmp_path):
    shared = SharedQueues(tmp_path, 8)
    shared.open("a"), shared.open("b")
    shared.fill("a")
    used = shared.budget.used
    shared.close("a")
    assert shared.budget.used == used  # Its files are still there.
    shared.open("a")
    shared.check()
    shared.close("a"), shared.close("b")
    shared.store.close()
    again = SharedQueues(tmp_path, 8)
    assert again.budget.used == used == bytes_of(tmp_path)
    again.open("b")
    again.store.forget("queue-a")
    again.check()
    assert again.fill("b") > 400
    again.close("b")
    again.store.close()
    smaller = SharedQueues(tmp_path, 2)
    smaller.open("b")
    queue, region = smaller.queues["b"]
    with pytest.raises(QueueFullError):  # Beyond the limit already: nothing new, until enough has left.
        for _ in range(200):
            region.put("k", ROW)
            queue.commit_once()
    while smaller.send("b", 100):
        pass
    assert queue.commit_once() and queue.commit_once()
    assert smaller.budget.used <= 2 * MB and smaller.fill("b") > 20
    smaller.check()


def test_failed_events_find_room_in_a_full_store(tmp_path):
    shared = SharedQueues(tmp_path, 8)
    shared.open("a")
    parked = shared.open("parked", log_may_use_reserve=True)
    shared.fill("a")
    _, region = shared.queues["parked"]
    region.put("failed", ROW)
    assert parked.commit_once()
    shared.check()


def test_a_members_senders_and_regions_share_a_store_and_the_member_works_on_when_it_is_full(network, tmp_path):
    """LN refuses what it has no region for: these events are parked though the store is full of others."""
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("small", directories=[(str(tmp_path), 8)])
    ln.receive()
    sender = ny.send_to(
        ln,
        parallel=False,
        dispatcher_threads=1,
        batch_size=1,
        enable_persistence=True,
        disk_store_name="small",
        full_policy="refuse",
    )
    stored = ny.region(
        "stored", type="REPLICATE_PERSISTENT", disk_store_name="small", disk_synchronous=False, senders=[]
    )
    ny.region(type="REPLICATE", senders=["ln"])
    ln.region(type="REPLICATE")
    ny.data["first"] = 1  # The queue's log has its first segment, and the parked events' log none.
    network.settle()
    ln.cache.destroy_region("data")
    with pytest.raises((QueueFullError, DiskError), match="limit of 8388608 bytes"):
        for n in range(2000):
            stored[n] = ROW
            assert bytes_of(tmp_path) <= 8 * MB
    ny.data["refused over there"] = 1
    eventually(lambda: sender.parked_count == 1)
    ln.region(type="REPLICATE")
    assert sender.replay_parked() == 1
    network.settle()
    assert ln.data["refused over there"] == 1
    ny.cache.destroy_region("stored")
    for n in range(200):
        ny.data[n] = ROW
    network.settle()
    assert len(ln.data) == 201  # All but the first.


@pytest.mark.parametrize("kind", ["queue", "region"])
def test_who_waits_for_a_disk_that_takes_nothing_is_told_soon_and_loses_nothing(network, tmp_path, kind):
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("small", directories=[(str(tmp_path), 2)])
    if kind == "queue":
        ny.send_to(
            ln,
            parallel=False,
            dispatcher_threads=1,
            enable_persistence=True,
            disk_store_name="small",
            full_policy="refuse",
        )
        ny.region(type="REPLICATE", senders=["ln"])
    else:
        ny.region(type="REPLICATE_PERSISTENT", disk_store_name="small", senders=[])
    stored = 0
    with pytest.raises(DiskError, match="not on the disk yet: the logs of the disk store have reached their limit"):
        while stored < 1000:
            ny.data[stored] = ROW
            stored += 1
    assert len(ny.data) == stored + 1  # It is stored, and on the disk when that takes it.
    with pytest.raises(QueueFullError):
        ny.data["another"] = ROW
    assert len(ny.data) == stored + 1
    if kind == "queue":
        ln.region(type="REPLICATE"), ln.receive()
        network.settle()
        assert len(ln.data) == stored + 1


@pytest.fixture
def full_store(network, tmp_path):
    """Changes at NY wait for LN, and their queue's log may take 2 MB. `make(policy)` gives the sender. Its log is full,
    but for less than a row.
    """
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("small", directories=[(str(tmp_path), 2)])

    def make(policy):
        sender = ny.send_to(
            ln,
            parallel=False,
            dispatcher_threads=1,
            enable_persistence=True,
            disk_store_name="small",
            full_policy=policy,
        )
        ny.region(type="REPLICATE", senders=["ln"])
        return sender

    return ny, ln, make


def test_who_is_told_that_the_newest_are_dropped_does_not_wait_for_the_disk(network, full_store):
    """A put that nothing was queued of has nothing to wait for; also not for what others queued."""
    ny, ln, make = full_store
    sender = make("drop-newest")
    stored = 0
    with pytest.raises(DiskError, match="not on the disk yet"):  # That one is in the queue.
        while stored < 1000:
            ny.data[stored] = ROW
            stored += 1
    queued = stored + 1
    began = time.monotonic()
    for n in range(100):
        ny.data[f"dropped {n}"] = ROW
    ny.data.put_columns([b"%d" % n for n in range(100)], [ROW] * 100)
    assert time.monotonic() - began < 60.0  # Each would wait for five seconds.
    assert sender.ledger()["dropped"]["queue full, newest"] == 200 and len(ny.data) == queued + 200
    ln.region(type="REPLICATE"), ln.receive()
    network.settle()
    assert len(ln.data) == queued


def test_columns_that_met_a_full_log_say_which_rows_are_refused_and_which_not_on_the_disk(network, full_store):
    ny, ln, make = full_store
    make("refuse")
    with pytest.raises(QueueFullError) as raised:
        while True:
            first = len(ny.data)
            ny.data.put_columns([b"%d" % (first + n) for n in range(100)], [ROW] * 100)
    stored = len(ny.data) - first
    assert f"put_columns from row {stored} of 100 on (the rows before were stored) refused" in str(raised.value)
    ln.region(type="REPLICATE"), ln.receive()
    network.settle()
    assert len(ln.data) == len(ny.data)


def test_columns_whose_rows_wait_for_the_disk_say_so_beside_what_was_refused(network, full_store):
    ny, _, make = full_store
    make("refuse")
    with pytest.raises(DiskError, match="not on the disk yet"):
        while True:
            ny.data[len(ny.data)] = ROW
    ny.cache.gateway_sender("ln").stop()
    with pytest.raises(
        BatchError, match="1 of 2 rows were refused, the others were stored; first: row 0: the key is over the limit"
    ) as raised:
        ny.data.put_columns([b"x" * 65_536, b"key"], [b"1", b"2"])  # Queued for nobody, and not waited for.
    assert raised.value.failures == [(0, "the key is over the limit of 65535 bytes")] and ny.data[b"key"] == b"2"


def test_an_enqueue_blocks_for_as_long_as_its_policy_says_when_the_log_is_full(network, full_store):
    """Not for the ten seconds that a slow disk is waited for."""
    ny, _, make = full_store
    make("block")
    with pytest.raises(DiskError):
        while True:
            ny.data[len(ny.data)] = ROW
    for put in (lambda: ny.data.put("one", ROW), lambda: ny.data.put_columns([b"row"], [ROW])):
        began = time.monotonic()
        with pytest.raises(QueueFullError, match="have reached their limit"):
            put()
        assert 1.0 <= time.monotonic() - began < 5.0


def test_many_rows_are_waited_for_as_long_as_they_get_on(tmp_path):
    """A disk that takes now and then what is staged: no row waits for long, and all together for longer than an enqueue
    may.
    """
    queue = _core.EventQueue(
        "slow",
        partitions=1,
        directory=str(tmp_path),
        log_directory=str(tmp_path),
        log_id=5,
        log_budget=_core.LogBudget(2 * MB, 0),
    )
    queue.set_full_policy("block", 100, slow_disk_ms=2000)
    queue.running = True
    region = _core.RegionCore("rows", _core.Clock(), site=1, member=7, stores=False)
    region.attach([queue])
    stop = threading.Event()

    def take_slowly():
        while not stop.wait(0.4):
            queue.commit_once()

    committer = threading.Thread(target=take_slowly)
    committer.start()
    try:
        began = time.monotonic()
        assert region.put_columns([b"%d" % n for n in range(150)], [ROW] * 150) == 150
        assert time.monotonic() - began > 2.0
    finally:
        stop.set()
        committer.join()
        region.attach([])


@pytest.mark.parametrize("kind", ["queue", "region"])
def test_what_waits_for_room_when_its_log_is_closed_is_written_when_there_is_some(tmp_path, kind):
    """Nobody waits for it any more: what was put without waiting for the disk would be lost by a regular end."""
    shared = SharedQueues(tmp_path, 8)
    filled, closed = shared.open("a"), shared.open("b")
    shared.fill("a")
    if kind == "queue":
        shared.queues["b"][1].put("k", ROW)
        shared.fill("b")
    else:
        place = shared.store.log_place("region-r", {"kind": "region", "region": "r"})
        closed = _core.RegionCore("r", _core.Clock(), site=1, member=7)
        closed.open_log(place.folder, log_id=6, synchronous=False, log_budget=place.budget, log_known=place.known)
        while closed.commit_once():
            closed.put(len(closed), ROW)
    assert closed.log_state()["failing"] and closed.log_state()["pending"]
    committer = threading.Thread(target=closed.commit_loop)
    committer.start()
    closed.stop_log()
    committer.join(0.5)
    shared.send("a", 350)
    assert filled.commit_once() and filled.commit_once()
    committer.join(LIMIT_S)
    state = closed.log_state()
    assert not committer.is_alive() and state["pending"] == 0 and not state["failing"]


def test_a_log_whose_disk_stays_full_is_closed_all_the_same(tmp_path):
    shared = SharedQueues(tmp_path, 8)
    shared.open("a"), shared.open("b")
    shared.fill("a")
    queue, region = shared.queues["b"]
    region.put("k", ROW)
    committer = threading.Thread(target=queue.commit_loop)
    committer.start()
    queue.stop_log()
    committer.join(LIMIT_S)
    assert not committer.is_alive() and "reached their limit" in queue.log_state()["failing"]
