"""Committers on a simulated disk: what has to hold when it is full, or when something changes while it writes."""

from __future__ import annotations

import ctypes
import random
import threading

import pytest

from pywan import _core
from pywan.config.attributes import RegionAttributes
from pywan.errors import DiskError, ProtocolError
from pywan.region.member_region import MemberRegion
from pywan.stats import ledger
from pywan.testing.waiting import LIMIT_S
from simulator.disk import Disk
from support.durable import budget_of

MIB = 1 << 20


@pytest.fixture
def disk():
    return Disk(random.Random(1))


def open_region(disk: Disk, limit: int) -> _core.RegionCore:
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.open_log("/region", log_id=7, synchronous=False, log_budget=budget_of(limit), environment=disk.environment)
    return region


class Queue(_core.EventQueue):
    """Its committer runs when somebody waits for the disk."""

    def wait_durable(self, timeout: float = 60.0) -> None:
        assert self.name != "ln" or ledger(self.counts())["balanced"]
        if not self.commit_once():
            raise DiskError("not in time")


def open_queue(disk: Disk, name: str = "ln", limit: int = 0, **options) -> Queue:
    queue = Queue(
        name,
        remote_site=2,
        log_directory=f"/{name}",
        log_id=7,
        synchronous=False,
        log_budget=budget_of(limit),
        environment=disk.environment,
        **options,
    )
    queue.running = True
    return queue


@pytest.mark.parametrize("live_keys", [10, 130])
def test_a_region_whose_log_may_not_be_large_goes_on_for_ever_with_the_same_keys(disk, live_keys):
    region = open_region(disk, MIB)
    for n in range(3000):
        region.change(1, f"k{n % live_keys}", "v" * 3000)
        if n % 20 == 0:
            assert region.commit_once(), (n, region.log_state())
    assert region.commit_once()
    found = {key: region.lookup(key) for key in region.scan_keys()}
    region.close()
    disk.crash()
    assert {key: open_region(disk, MIB).lookup(key) for key in found} == found


def test_a_disk_that_fails_half_the_time_does_not_fill_a_small_log_with_copies(disk):
    """Near its limit the log moves what lives before it writes; where that fails, it goes on with what is moved
    already.
    """
    region, most, failed = open_region(disk, MIB), 0, 0
    for n in range(200):
        region.change(1, f"k{n % 100}", "v" * 3000)
        assert region.commit_once()
    disk.error_rate = 0.5
    for n in range(3000):
        if region.log_state()["failing"] is None:
            region.change(1, f"k{n % 100}", "w" * 3000)
        failed += not region.commit_once()
        most = max(most, region.log_state()["bytes"])
    assert failed and most <= 2 * MIB, f"{most} bytes, {failed} commits failed"
    disk.heal()
    assert region.commit_once()
    assert region.log_state()["bytes"] <= MIB


def test_a_process_that_is_killed_again_and_again_does_not_fill_a_small_log_with_copies(disk):
    """Each time between the move of an entry and the manifest without its old segment."""
    region, replace, killed, rng = open_region(disk, MIB), disk._replace, 0, random.Random(2)
    for key in range(15):
        region.change(1, f"k{key}", "v" * 20_000)
        assert region.commit_once()

    def die_instead(*names: bytes) -> int:
        disk.is_off = disk.is_off or rng.random() < 0.5
        return replace(*names)

    disk._replace = die_instead
    while killed < 40:
        region.change(1, "other", "w" * 20_000)
        region.commit_once()
        if disk.is_off:
            killed += 1
            region.close()
            disk.crash(power=False)
            region = open_region(disk, MIB)
            assert region.log_state()["bytes"] <= MIB and len(list(region.scan_keys())) >= 15
    disk._replace = replace
    assert region.commit_once()


def test_a_region_that_is_closed_while_its_log_is_written_loses_nothing(disk):
    """The committer shortens the log behind the close, and has to know what in it is current."""

    def opened() -> MemberRegion:
        region = MemberRegion(
            "data",
            _core.Clock(),
            site=1,
            member=1,
            stores=True,
            forwards=True,
            buckets=0,
            attributes=RegionAttributes.make("data", type="REPLICATE_PERSISTENT"),
        )
        region.make_persistent(
            "/region",
            log_id=7,
            synchronous=False,
            flush_ms=1,
            log_budget=budget_of(64 * MIB),
            environment=disk.environment,
            start_writer=keep_writer,
        )
        return region

    def keep_writer(name, write):
        writers.append(threading.Thread(target=write, name=name, daemon=True))

    writes, goes_on, writers = threading.Event(), threading.Event(), []
    region = opened()
    for n in range(1200):
        region.put(f"k{n % 600}", b"v" * 3000)
        if n % 50 == 49:
            assert region.commit_once()
    assert region.log_state()["segments"] > 4
    disk.meanwhile = lambda: (writes.set(), goes_on.wait(LIMIT_S))
    region.put("before", "the close")
    writers[0].start()
    assert writes.wait(LIMIT_S)
    region.put("meanwhile", "staged")
    region.close()
    disk.meanwhile = None
    goes_on.set()
    writers[0].join()
    disk.raise_error()
    assert region.memory_bytes == 0
    found = opened()
    assert len(found) == 602 and found.face["k7"] == b"v" * 3000 and found.face["meanwhile"] == "staged"


def test_nothing_is_dropped_where_that_makes_no_room(disk):
    queue = open_queue(disk)
    queue.set_full_policy("drop-oldest")
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    disk.capacity = 10_000
    region.put("key", "value")
    assert not queue.commit_once()
    assert len(queue) == 1 and queue.counts()["dropped_oldest"] == 0
    disk.capacity = None
    assert queue.commit_once()


def test_a_version_on_the_disk_stays_there_until_the_newer_one_is(disk):
    """Shortening drops the segment of a version that was replaced while the disk was busy: the newer one has to be on
    it first.
    """
    tried = Disk(random.Random(1))
    drops_at = commits_until_a_segment_goes(open_region(tried, 4 * MIB))
    region = open_region(disk, 4 * MIB)

    def replace() -> None:
        disk.meanwhile = None
        region.change(1, "key", "second")

    assert commits_until_a_segment_goes(region, lambda: setattr(disk, "meanwhile", replace), drops_at) == drops_at
    disk.crash()
    assert open_region(disk, 4 * MIB).get("key") in ("first", "second")


def test_what_is_taken_out_while_the_log_is_shortened_does_not_come_back(disk):
    """Entries are moved out of the oldest segment as another thread takes them out."""
    region = open_region(disk, 0)
    keys = [b"%06d" % n for n in range(30_000)]
    region.put_columns(keys, [b"v" * 60] * len(keys))
    assert region.commit_once()
    begun, some_gone = threading.Event(), threading.Event()
    read = disk._read

    def read_oldest(handle, path, at, to, size):
        status = read(handle, path, at, to, size)
        begun.set()
        some_gone.wait(LIMIT_S)
        return status

    def take_out():
        begun.wait(LIMIT_S)
        for key in keys:
            region.local_destroy(key)
            some_gone.set()

    disk._read = read_oldest
    other = threading.Thread(target=take_out)
    other.start()
    while not begun.is_set():
        region.put("other", b"x" * 2_000_000)
        assert region.commit_once()
    other.join()
    assert region.commit_once()
    disk.crash()
    assert list(open_region(disk, 0).scan_keys()) == ["other"]


def test_what_was_taken_out_does_not_come_back_where_a_small_log_makes_way_for_what_replaces_it(disk):
    region, remove = open_region(disk, 4 * MIB), disk._remove
    region.put("key", "first")
    for number in range(20):  # More than the first segment takes.
        region.put(f"other {number}", "x" * 20_000)
        assert region.commit_once()
    region.local_destroy("key")
    assert region.commit_once()

    def power_off_when_the_first_segment_goes(path: bytes) -> int:
        status = remove(path)
        disk.is_off |= path.endswith(b"000000000001.seg")
        return status

    disk._remove = power_off_when_the_first_segment_goes
    while not disk.is_off:
        number += 1
        region.put("key", f"again {number}")
        if region.commit_once():
            region.local_destroy("key")
            region.put(f"other {number % 95}", "x" * 20_000)
            region.commit_once()
    disk.crash()
    assert open_region(disk, 4 * MIB).get("key") in (None, f"again {number}")


def commits_until_a_segment_goes(region: _core.RegionCore, before=lambda: None, number: int = 0) -> int:
    """Calls `before` before commit `number`."""
    region.change(1, "key", "first")
    assert region.commit_once()
    segments = region.log_state()["segments"]
    for n in range(500):
        if n == number:
            before()
        region.change(1, f"other {n % 5}", "x" * 20_000)
        assert region.commit_once()
        if region.log_state()["segments"] < segments:
            return n
        segments = region.log_state()["segments"]
    raise AssertionError("the log was never shortened")


def test_what_a_crash_left_both_queued_and_parked_is_in_the_ledger_when_it_is_replayed(disk):
    queue, parked = open_queue(disk), _core.EventQueue("parked", partitions=8)
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    region.put("key", "value")
    assert queue.commit_once()
    parked.append_record(queue.records()[0][2])  # It was parked; that the queue gave it up did not get onto the disk.
    region.attach([])
    del queue
    disk.crash()
    queue = open_queue(disk)
    assert parked.replay_into(queue) == 1
    counts = queue.counts()
    assert counts["parked"] == 0 and counts["received"] == 2 and len(queue) == 2
    assert ledger(counts)["balanced"]


def test_a_clock_that_went_back_over_a_restart_makes_no_event_that_loses_against_a_queued_one(disk):
    stamps = []
    for now_ms in (2_000_000_000_000, 1_000_000_000_000, 1_500_000_000_000):
        queue, clock = open_queue(disk), _core.Clock()
        clock.set_time(now_ms)
        region = _core.RegionCore("data", clock, site=1, member=1)  # Its entries are lost, and with them their stamps.
        region.attach([queue])
        region.put("key", now_ms)
        assert queue.commit_once()
        stamps += [_core.record_fields(record)["stamp"] for record in queue.peek(0, 10)]
        queue.remove(0, queue.positions()[0][1])
        assert queue.commit_once()
        region.attach([])
        del queue
        disk.crash()
    assert stamps == sorted(set(stamps)) and len(stamps) == 3


@pytest.mark.parametrize("disk_takes_it", [True, False])
def test_a_parked_event_leaves_its_queue_only_when_the_other_one_has_it_on_the_disk(disk, disk_takes_it):
    queue, parked = open_queue(disk), open_queue(disk, "parked")
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([parked])
    region.put("key", "value")
    assert parked.commit_once()
    disk.error_rate = 0.0 if disk_takes_it else 1.0
    if disk_takes_it:
        assert parked.replay_into(queue) == 1 and len(parked) == 0
    else:
        with pytest.raises(DiskError):
            parked.replay_into(queue)
        disk.error_rate = 0.0
        assert len(parked) == 1
    assert ledger(queue.counts())["balanced"]
    assert parked.commit_once()
    region.attach([])
    del queue, parked
    disk.crash()
    assert [len(open_queue(disk)), len(open_queue(disk, "parked"))] == ([1, 0] if disk_takes_it else [0, 1])


def test_events_are_parked_once_though_the_disk_took_the_first_copies_late(disk):
    queue, parked = _core.EventQueue("ln", remote_site=2, partitions=3), open_queue(disk, "parked", partitions=8)
    queue.running, region = True, _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    for n in range(30):
        region.put(f"k{n}", n)
    memory, told = _core.SourceMemory(3), []
    session = _core.DispatcherSession(
        queue, 0, parked, on_failure=lambda partition, sequence, *_: told.append((partition, sequence))
    )

    def send(batch_size: int) -> None:
        """Every event fails: the region is not there."""
        session.configure(batch_size, -1)
        session.connected(1000, MIB, 1)
        receiver = _core.ReceiverSession(memory, _core.ReceiverCounts(), {}.get, None)
        try:
            while data := session.data_to_send(1):
                receiver.receive_data(data)
                session.receive_data(receiver.data_to_send())
        finally:
            session.disconnected()

    disk.error_rate = 1.0
    with pytest.raises(ProtocolError, match="do not get onto the disk"):
        send(20)
    assert len(queue) == 30 and len(parked) == 20
    disk.error_rate = 0.0
    assert parked.commit_once()
    send(30)
    assert len(queue) == 0 and len(parked) == 30 and sorted(told) == sorted(set(told)) and len(told) == 30


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_was_recovered_stays_though_the_sync_before_had_failed(goes_on):
    """The process ends after a sync that failed: what it wrote may be in the system's memory, whole, and never get to
    the disk.
    """
    recovered = []
    for seed in range(40):
        disk = Disk(random.Random(seed))
        queue, region = open_queue(disk), _core.RegionCore("data", _core.Clock(), site=1, member=1)
        region.attach([queue])
        region.put("first", 1)
        assert queue.commit_once()
        region.put("second", 2)
        disk.meanwhile = lambda disk=disk: setattr(disk, "error_rate", 1.0)
        assert not queue.commit_once()
        disk.meanwhile, disk.error_rate = None, 0.0
        disk.crash(power=False)
        region.attach([])
        queue = open_queue(disk)
        found = len(queue)
        if goes_on:
            region.attach([queue])
            region.put("third", 3)
            assert queue.commit_once()
            region.attach([])
        recovered.append(found)
        disk.crash(power=True)
        assert len(open_queue(disk)) == found + goes_on, seed
    assert set(recovered) == {1, 2}


def test_the_ledger_balances_wherever_the_power_goes_while_a_full_log_makes_room():
    for calls in range(1, 40):
        disk = Disk(random.Random(calls))
        queue, region = open_queue(disk, limit=MIB), _core.RegionCore("data", _core.Clock(), site=1, member=1)
        region.attach([queue])
        for n in range(1000):
            region.change(1, f"k{n}", "v" * 30_000)
            if not queue.commit_once():
                break
        assert queue.log_state()["failing"] is not None
        removed = len(queue.peek(0, 1000))
        queue.remove(0, removed)
        disk.off_in = calls
        queue.commit_once()
        region.attach([])
        del queue
        disk.crash()
        queue = open_queue(disk, limit=MIB)
        assert ledger(queue.counts())["balanced"], calls
        assert queue.counts()["distributed"] == queue.positions()[0][0] <= removed


def test_what_half_of_a_commit_has_is_not_durable_where_the_other_half_replaces_it(disk):
    """An update that a newer one took out before either was written: if the newer one is lost, the older one is the
    key's last.
    """
    queue = Queue(
        "ln",
        remote_site=2,
        log_directory="/ln",
        log_id=7,
        synchronous=False,
        conflate=True,
        log_budget=_core.LogBudget(16 * MIB, 0),
        environment=disk.environment,
    )
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    region.put("key", b"first")
    assert queue.commit_once()
    for n in range(40):
        region.put(f"before {n}", b"v" * 10_000)
    region.put("key", b"older")
    for n in range(40):
        region.put(f"behind {n}", b"v" * 10_000)
    region.put("key", b"newer")
    assert queue.counts()["conflated"] == 1
    write = disk._write

    def fail_at_the_newer_one(handle, path, at, data, size):
        return (
            5 if b"newer" in bytes((ctypes.c_char * size).from_address(data)) else write(handle, path, at, data, size)
        )

    disk._write = fail_at_the_newer_one
    assert not queue.commit_once()
    older = 42  # Its sequence.
    (through,) = queue.log_state()["durable"]
    assert 1 < through < older  # The first blocks may go.
    queue.peek(0, 1000)
    assert queue.positions()[0][1] == through
    region.attach([])
    disk.crash(power=False)
    again = open_queue(disk)
    found = [
        fields["value"]
        for _, _, record in again.records(1000)
        for fields in (_core.record_fields(record),)
        if fields["key"][1] == b"key"
    ]
    assert len(found) == 2 and b"older" in found[1][1]
