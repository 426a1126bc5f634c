"""A disk store that is full: what makes room goes on, and what is written is never more than the store may take."""

from __future__ import annotations

import contextlib
import threading

import pytest

from pywan import _core
from pywan.errors import DiskError, QueueFullError
from pywan.stats import ledger
from pywan.testing.waiting import eventually
from support.full_store import MIB, Link, Queue, Store


def fill(store: Store, queue: Queue, region: _core.RegionCore, size: int = 10_000) -> int:
    """Until the queue takes no more. How many events it has."""
    count = 0
    while queue.commit_once():
        region.put(f"k{count}", b"v" * size)
        count += 1
    return count


@pytest.mark.parametrize("mebibytes", [2, 8])
def test_a_full_queue_of_which_every_event_fails_gets_parked_as_a_whole_and_comes_back(mebibytes):
    store = Store(mebibytes * MIB)
    queue, parked, region = (
        store.queue("ln"),
        store.queue("parked", partitions=8, log_may_use_reserve=True),
        _core.RegionCore("full", _core.Clock(), site=1, member=1),
    )
    region.attach([queue])
    count = fill(store, queue, region)
    assert count > 60 * mebibytes
    link = Link(queue, parked)
    for _ in range(300):
        link.run()
        store.commit()
        if len(parked) >= count - 1:
            break
    assert len(parked) == queue.counts()["parked"] >= count - 1  # The last of the queue may have found no room yet.
    remote = link.remote["full"] = _core.RegionCore("full", _core.Clock(), site=2)
    for _ in range(300):
        with contextlib.suppress(DiskError, QueueFullError):
            parked.replay_into(queue)
        link.run()
        store.commit()
        if len(parked) == 0:
            break
    assert len(remote) == count
    region.put("next", b"v")
    assert store.commit()
    region.attach([])


def rewritten(region: _core.RegionCore, keys: int, rounds: int, size: int = 10_000) -> _core.RegionCore:
    for n in range(keys * rounds):
        region.put(f"k{n % keys}", b"v" * size)
        assert region.commit_once()
    return region


def test_a_region_to_which_nothing_is_written_gives_up_its_history_when_others_need_the_room():
    store = Store(4 * MIB)
    idle = rewritten(store.region("idle"), keys=60, rounds=6)
    before = idle.log_state()["bytes"]
    queue, feeder = store.queue("ln"), _core.RegionCore("feeder", _core.Clock(), site=1, member=1)
    feeder.attach([queue])
    fill(store, queue, feeder)
    queue.peek(0, 1000)
    queue.remove(0, 30)  # Some of its segments go, and what is staged takes them.
    other = store.region("other")
    for n in range(40):
        other.put(f"k{n}", b"v" * 10_000)
    committer = threading.Thread(target=idle.commit_loop, daemon=True)
    committer.start()
    try:
        eventually(other.commit_once)
        assert idle.log_state()["bytes"] < before
        eventually(queue.commit_once)
        rewritten(other, keys=40, rounds=5)
        rewritten(idle, keys=60, rounds=5)
    finally:
        idle.stop_log()
        committer.join()
        feeder.attach([])


def test_queues_whose_logs_hold_little_but_one_old_event_each_are_shortened_in_a_full_store():
    """A partition stands still, and its event lies in the oldest segment, while those of the other come and go."""
    store = Store(4 * MIB)
    feeders = []
    for n in range(3):
        queue, feeder = (
            store.queue(f"ln{n}", partitions=2),
            _core.RegionCore(f"feeder{n}", _core.Clock(), site=1, member=1),
        )
        feeder.attach([queue])
        keys: dict[int, str] = {}
        for key in map(str, range(20)):
            before = [appended for _, _, appended in queue.positions()]
            if len(keys) < 2:
                feeder.put(key, b"v" * 50_000)
                after = [appended for _, _, appended in queue.positions()]
                keys[0 if after[0] > before[0] else 1] = key
        feeders.append((queue, feeder, keys))
    full = 0
    while full < 3:
        full = 0
        for queue, feeder, keys in feeders:
            if queue.commit_once():
                feeder.put(keys[1], b"v" * 50_000)
            else:
                full += 1
    for queue, _, _ in feeders:
        queue.peek(1, 1000)
        queue.remove(1, queue.positions()[1][1])
    for _ in range(5):
        store.commit()
    assert store.commit()
    assert store.budget.used < 2 * MIB
    rewritten(store.region("other"), keys=100, rounds=5)
    for queue, feeder, _ in feeders:
        assert len(queue) >= 1 and ledger(queue.counts())["balanced"]
        feeder.attach([])


def test_a_queue_that_found_room_for_half_of_a_commit_sends_it_and_goes_on():
    """The rest of the store belongs to a queue whose remote site is away."""
    store = Store(2 * MIB)
    away, queue = store.queue("away"), store.queue("ln")
    feeder, other = (_core.RegionCore(name, _core.Clock(), site=1, member=1) for name in ("away", "half"))
    feeder.attach([away])
    other.attach([queue])
    fill(store, away, feeder)
    away.peek(0, 20)
    away.remove(0, 20)
    assert away.commit_once()
    for n in range(22):  # The free room takes fewer.
        other.put(f"k{n}", b"v" * 10_000)
    assert not queue.commit_once() and queue.log_state()["failing"]
    sent = []
    for _ in range(10):
        sent.append(len(queue.peek(0, 100)))
        queue.remove(0, queue.positions()[0][1])
        assert ledger(queue.counts())["balanced"]
        store.commit()
    assert 0 < sent[0] < 22 == sum(sent) and len(queue) == 0
    assert len(away) > 80
    feeder.attach([])
    other.attach([])


def with_small_queues(store: Store, count: int) -> None:
    """Each holds one event, in a segment of its own."""
    for n in range(count):
        queue, feeder = store.queue(f"ln{n}"), _core.RegionCore(f"feeder{n}", _core.Clock(), site=1, member=1)
        feeder.attach([queue])
        feeder.put("k", b"v")
        assert queue.commit_once()
        feeder.attach([])


def full_of_versions(store: Store) -> _core.RegionCore:
    """A region that has of some of its keys an older version on the disk too, and that took newer ones, for which the
    store has no room.
    """
    region = rewritten(store.region("data"), keys=12, rounds=1, size=20_000)
    with_small_queues(store, 6)
    for n in range(8):
        region.put(f"k{n}", b"%d" % n * 20_000)
        assert region.commit_once()
    for n in range(12):
        region.put(f"k{n}", b"w" * 7_000)
    return region


def test_a_region_whose_changes_wait_for_room_keeps_of_their_keys_only_what_a_crash_would_need():
    region = full_of_versions(Store(1 * MIB))
    eventually(region.commit_once)
    assert region.log_state()["pending"] == 0


@pytest.mark.parametrize("calls", range(1, 200, 7))
def test_what_changes_that_wait_for_room_replace_is_there_after_a_crash(calls):
    """The power goes at a call to the disk, while older versions are given up."""
    store = Store(1 * MIB)
    region = full_of_versions(store)
    store.disk.off_in = calls
    for _ in range(5):
        region.commit_once()
    store.disk.crash()
    store.budget = _core.LogBudget(1 * MIB)
    found = store.region("data")
    for n in range(12):
        assert found.get(f"k{n}") in (b"%d" % n * 20_000 if n < 8 else b"v" * 20_000, b"w" * 7_000)


@pytest.mark.parametrize(("keys", "size", "others"), [(12, 20_000, 6), (5, 20_000, 7), (25, 10_000, 6)])
def test_a_region_that_is_less_than_a_quarter_of_a_small_store_never_refuses(keys, size, others):
    store = Store(1 * MIB)
    region = rewritten(store.region("data"), keys=keys, rounds=1, size=size)
    with_small_queues(store, others)
    rewritten(region, keys, 10, size)


def test_regions_that_hold_little_leave_a_small_store_to_a_queue():
    store = Store(1 * MIB)
    regions = [rewritten(store.region(f"r{n}"), keys=2, rounds=1) for n in range(7)]
    for n in range(60):
        for region in regions:
            region.put(f"k{n % 2}", b"v" * 3_000)
            store.commit()
    queue, feeder = store.queue("ln"), _core.RegionCore("feeder", _core.Clock(), site=1, member=1)
    feeder.attach([queue])
    for n in range(40):
        feeder.put(f"k{n}", b"v" * 3_000)
        store.commit()
        assert store.commit()
    feeder.attach([])


def test_a_region_that_never_found_room_for_its_first_change_takes_it_when_there_is_some():
    store = Store(1 * MIB)
    queue, feeder = store.queue("ln"), _core.RegionCore("feeder", _core.Clock(), site=1, member=1)
    feeder.attach([queue])
    fill(store, queue, feeder)
    region = store.region("data")
    region.put("k", b"v" * 10_000)
    assert not region.commit_once() and not region.commit_once()
    queue.peek(0, 1000)
    queue.remove(0, queue.positions()[0][1])
    assert store.commit() and store.commit()
    assert region.log_state()["pending"] == 0
    feeder.attach([])
