"""Logs that are written and synced later (`disk-synchronous=written`): a kill keeps what was acknowledged; a power cut
keeps what was synced, and of the rest a beginning."""

from __future__ import annotations

import random
import threading

import pytest

from pywan import _core
from pywan.config.attributes import RegionAttributes, SenderAttributes
from pywan.errors import ConfigurationError, DiskError, QueueFullError
from pywan.testing.waiting import LIMIT_S, eventually
from simulator.disk import Disk

PARTITIONS = 3
SEEDS = pytest.mark.parametrize("seed", range(60))


class Queue(_core.EventQueue):
    """Its committer runs where the test says, or when a caller finds that the log needs more than a write."""

    def wait_written(self, timeout: float = 60.0) -> None:
        if not self.write_once() and not self.commit_once(False):
            raise DiskError("not in time")


class WrittenQueue:
    """On a simulated disk, with the region that fills it."""

    def __init__(self, disk: Disk, **options) -> None:
        self.disk, self.options, self.clock = disk, options, _core.Clock()
        self.acknowledged: list[tuple[int, ...]] = []  # Where the partitions ended, after each change.
        self.open()

    def open(self) -> None:
        self.queue = Queue(
            "ln",
            remote_site=2,
            partitions=PARTITIONS,
            log_directory="/ln",
            log_id=5,
            synchronous="written",
            log_budget=_core.LogBudget(8 << 20),
            environment=self.disk.environment,
            **self.options,
        )
        self.queue.running = True
        self.queue.set_full_policy("refuse", slow_disk_ms=0)
        self.region = _core.RegionCore("data", self.clock, site=1, member=1, stores=False)
        self.region.attach([self.queue])
        self.acknowledged = [self.ends()]
        self.synced = 0  # So many changes are certainly on the disk.

    def ends(self) -> tuple[int, ...]:
        return tuple(appended for _, _, appended in self.queue.positions())

    def put(self, key: str, value: str) -> None:
        self.region.put(key, value)
        self.acknowledged.append(self.ends())

    def commit(self, checkpoint: bool) -> None:
        if self.queue.commit_once(checkpoint):
            self.synced = len(self.acknowledged) - 1

    def send(self, rng: random.Random) -> None:
        partition = rng.randrange(PARTITIONS)
        self.queue.peek(partition, 20)
        self.queue.remove(partition, self.queue.positions()[partition][1])

    def crash(self, power: bool) -> None:
        """Crashes the process, and opens the queue again. It must be as it was after some change: after the last one if
        the process was killed, and after the last sync or later if the power failed.
        """
        before, synced, mount = self.acknowledged, self.synced, self.queue.mount
        removed = [position[0] for position in self.queue.positions()]
        self.region.attach([])
        self.disk.crash(power)
        self.disk.raise_error()
        self.open()
        found = self.ends()
        least = synced if power else len(before) - 1
        assert found in before[least:], (found, before[least:])
        for partition in range(PARTITIONS):
            settled = min(removed[partition], self.queue.positions()[partition][0])
            for last in range(max(1, found[partition] - 2), before[-1][partition] + 1):
                assert self.queue.is_past(mount, partition, last, settled) == (last <= found[partition]), (
                    partition,
                    last,
                )
        places = [(partition, sequence) for partition, sequence, _ in self.queue.records(1 << 20)]
        assert places == [
            (partition, sequence)
            for partition, (first, _, end) in enumerate(self.queue.positions())
            for sequence in range(first + 1, end + 1)
        ]


@SEEDS
def test_a_queue_comes_back_as_it_was_after_a_change(seed):
    rng = random.Random(seed)
    written = WrittenQueue(Disk(rng))
    for _life in range(8):
        for _n in range(rng.randrange(60)):
            written.put(f"k{rng.randrange(50)}", "v" * rng.choice((1, 100, 3000, 9000)))
            if rng.random() < 0.05:
                written.commit(rng.random() < 0.5)
            if rng.random() < 0.1:
                written.send(rng)
        written.crash(power=rng.random() < 0.7)


def region_on(disk: Disk, clock: _core.Clock) -> _core.RegionCore:
    def wait() -> None:
        if not region.write_once() and not region.commit_once():
            raise DiskError("not in time")

    region = _core.RegionCore("data", clock, site=1, member=1)
    region.open_log(
        "/region",
        log_id=7,
        synchronous="written",
        log_budget=_core.LogBudget(2 << 20),
        environment=disk.environment,
        wait=wait,
    )
    return region


@SEEDS
def test_a_region_comes_back_as_it_was_after_a_change(seed):
    rng = random.Random(seed)
    disk, clock = Disk(rng), _core.Clock()
    region, contents = region_on(disk, clock), {}
    for life in range(8):
        before, synced = [dict(contents)], 0
        for n in range(rng.randrange(80)):
            key, value = f"k{rng.randrange(30)}", "v" * rng.choice((1, 100, 3000, 20_000)) + str((life, n))
            if key in contents and rng.random() < 0.2:
                region.destroy(key)
                del contents[key]
            else:
                region.put(key, value)
                contents[key] = value
            before.append(dict(contents))
            if rng.random() < 0.05 and region.commit_once():
                synced = len(before) - 1
        power = rng.random() < 0.7
        region.close()
        disk.crash(power)
        disk.raise_error()
        region = region_on(disk, clock)
        contents = {key: region.get(key) for key in region.scan_keys()}
        assert contents in before[synced if power else -1 :], (life, power)


@SEEDS
def test_no_sync_that_fails_loses_what_a_later_one_is_said_to_have_written(seed):
    """The system takes pages for written whose sync failed: later syncs do not write them."""
    rng = random.Random(seed)
    disk = Disk(rng)
    written = WrittenQueue(disk)
    for n in range(100):
        disk.error_rate = rng.choice((0.0, 0.0, 0.3))
        try:
            written.put(f"k{n}", "v" * rng.choice((1, 1000, 7000)))
        except (DiskError, QueueFullError):
            if written.acknowledged[-1] != written.ends():
                written.acknowledged.append(written.ends())  # It is queued, and may be found.
        if rng.random() < 0.2:
            written.commit(rng.random() < 0.5)
    disk.heal()
    written.crash(power=True)


def started(queue: _core.EventQueue) -> threading.Thread:
    committer = threading.Thread(target=queue.commit_loop, daemon=True)
    committer.start()
    return committer


@pytest.fixture
def on_slow_disk():
    """A queue with its committer, on a disk whose syncs end when `may_sync` is set."""
    disk, may_sync = Disk(random.Random(1)), threading.Event()
    queue = _core.EventQueue(
        "ln",
        remote_site=2,
        log_directory="/ln",
        log_id=5,
        synchronous="written",
        flush_ms=1,
        environment=disk.environment,
    )
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    committer = started(queue)
    region.put("first", "v")  # Makes segments.
    queue.wait_durable()
    disk.meanwhile = lambda: may_sync.wait(LIMIT_S)
    yield queue, region, may_sync
    may_sync.set()
    queue.stop_log()
    committer.join()
    disk.raise_error()


def test_changes_are_done_while_the_disk_syncs(on_slow_disk):
    queue, region, may_sync = on_slow_disk
    for n in range(200):
        region.put(f"k{n}", "v")
        assert queue.log_state()["pending"] == 0 and queue.log_state()["durable"] == [n + 2]
    with pytest.raises(DiskError, match="the disk did not answer"):
        queue.wait_durable(timeout=0.05)
    may_sync.set()
    queue.wait_durable()
    region.wait_durable()


def test_threads_write_for_each_other(on_slow_disk):
    queue, region, may_sync = on_slow_disk
    may_sync.set()

    def put_many(thread: int) -> None:
        for n in range(300):
            region.put(f"k{thread} {n}", "v" * 200)

    threads = [threading.Thread(target=put_many, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.log_state()["pending"] == 0 and queue.positions()[0][2] == 1201
    queue.wait_durable()


def test_a_log_that_ended_is_not_written_by_callers(tmp_path):
    """Another process may have it by then."""
    queue = _core.EventQueue("ln", remote_site=2, log_directory=str(tmp_path), log_id=5, synchronous="written")
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    committer = started(queue)
    region.put("k", "v")
    eventually(queue.write_once)  # Nothing is staged: nothing to be done.
    commits = queue.log_state()["commits"]
    queue.stop_log()
    committer.join()
    assert not queue.write_once() and queue.log_state()["commits"] == commits


def test_a_regular_end_syncs_everything():
    disk = Disk(random.Random(1))
    written = WrittenQueue(disk)
    for n in range(50):
        written.put(f"k{n}", "v")
    written.queue.stop_log()
    written.queue.commit_loop()
    written.synced = 50
    written.crash(power=True)
    assert written.ends() == written.acknowledged[0] and len(written.queue) == 50


def test_what_is_written_is_synced_soon(tmp_path):
    queue = _core.EventQueue(
        "ln", remote_site=2, log_directory=str(tmp_path), log_id=5, synchronous="written", flush_ms=1
    )
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    committer = started(queue)
    region.put("k", "v")
    eventually(lambda: queue.log_state()["unsynced"] == 0)
    queue.stop_log()
    committer.join()


@pytest.mark.parametrize(
    "given, level",
    [("true", True), ("FALSE", False), (" Written ", "written"), (True, True), (False, False), ("written", "written")],
)
def test_the_level_is_read(given, level):
    sender = SenderAttributes.make(
        "ln", remote_distributed_system_id=2, enable_persistence=True, disk_synchronous=given
    )
    assert sender.disk_synchronous == level and type(sender.disk_synchronous) is type(level)
    assert RegionAttributes.make("data", type="REPLICATE_PERSISTENT", disk_synchronous=given).disk_synchronous == level


@pytest.mark.parametrize("given", ["yes", "", 1, None, "write"])
def test_another_level_is_refused(given):
    with pytest.raises(ConfigurationError, match="is not one of true, written, false"):
        SenderAttributes.make("ln", remote_distributed_system_id=2, disk_synchronous=given)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_member_whose_sender_and_region_are_written(network, tmp_path, parallel):
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("store", directories=[tmp_path])
    type_ = "PARTITION_PERSISTENT" if parallel else "REPLICATE_PERSISTENT"
    sender = ny.send_to(
        ln, parallel=parallel, enable_persistence=True, disk_store_name="store", disk_synchronous="written"
    )
    data = ny.region(type=type_, disk_store_name="store", disk_synchronous="written")
    there = ln.region(type=type_.replace("_PERSISTENT", ""))
    ln.receive()
    for n in range(200):
        data[n] = n
    data.update({n: -n for n in range(100)})
    network.settle()
    assert dict(there) == dict(data)
    assert sender.attributes.disk_synchronous == data.attributes.disk_synchronous == "written"
    data.wait_durable()
