"""A region whose store is full: what makes room goes on and passes the changes that wait for room, also what comes from
another site, and after it everything goes on without a restart.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading

import pytest

from pywan import _core
from pywan.errors import DiskError, QueueFullError
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from simulator.disk import Disk
from support.full_store import MIB, Link, Store

VALUE = b"v" * 50_000


def settled(data) -> bool:
    state = core_of(data).log_state()
    return state["failing"] is not None or state["pending"] == 0


def is_written(data) -> bool:
    state = core_of(data).log_state()
    return state["failing"] is None and state["pending"] == 0


def fill_store(data) -> int:
    """Until changes wait for room. How many entries there are."""
    count = 0
    while core_of(data).log_state()["failing"] is None:
        data[count] = VALUE
        count += 1
        eventually(lambda: settled(data))
    return count


@pytest.fixture
def full(network, tmp_path):
    """(site, region, a function that opens it again). The region does not wait for its disk."""
    ny = network.site("ny")

    def open_region():
        ny.cache.close()
        ny.start_member(dir=tmp_path)
        ny.cache.create_disk_store("small", directories=[(str(tmp_path), 8)])
        return ny.region(
            "stored", type="REPLICATE_PERSISTENT", disk_store_name="small", disk_synchronous=False, senders=[]
        )

    data = open_region()
    fill_store(data)
    return ny, data, open_region


def destroy(data):
    for key in list(data)[:30]:
        del data[key]


def local_destroy(data):
    for key in list(data)[:30]:
        data.local_destroy(key)


def shorten(data):
    for key in list(data)[:30]:
        data[key] = b"short"


WAYS = [
    destroy,
    local_destroy,
    shorten,
    lambda data: data.remove_all(list(data)),
    lambda data: data.clear(local=True),
    lambda data: data.clear(),
]
NAMES = ["destroy", "local_destroy", "shorter values", "remove_all", "clear local", "clear"]


@pytest.mark.parametrize("make_room", WAYS, ids=NAMES)
def test_what_makes_room_in_a_full_store_goes_and_puts_go_on(full, make_room):
    _, data, open_region = full
    make_room(data)
    eventually(lambda: is_written(data))
    for n in range(10):
        data[f"again {n}"] = VALUE
    eventually(lambda: is_written(data))
    before = dict(data)
    assert dict(open_region()) == before


def test_a_destroy_is_on_the_disk_when_it_returns_though_a_put_waits_for_room(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    ny.cache.create_disk_store("small", directories=[(str(tmp_path), 8)])
    data = ny.region("stored", type="REPLICATE_PERSISTENT", disk_store_name="small", senders=[])
    count = 0
    with pytest.raises(DiskError, match="in memory and will be written"):
        while True:
            data[count] = VALUE
            count += 1
    waits = core_of(data).log_state()["pending"]
    assert waits >= 1
    errors = []

    def destroy_some(first: int) -> None:
        try:
            for key in range(first, 20, 4):
                del data[key]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=destroy_some, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with pytest.raises(KeyError):
        del data["not there"]
    data[count + 1] = VALUE
    assert core_of(data).log_state()["pending"] == 0 and data[count] == VALUE
    assert len(data) == count + 2 - 20


def test_close_names_the_changes_that_found_no_room(full, caplog):
    ny, data, open_region = full
    waits, count = core_of(data).log_state()["pending"], len(data)
    with caplog.at_level(logging.ERROR, "pywan.region"):
        ny.cache.close()
    said = [record.getMessage() for record in caplog.records if "not on the disk and lost" in record.getMessage()]
    assert len(said) == 1 and f"{waits} change" in said[0] and f"of the keys {count - waits}" in said[0]
    assert len(open_region()) == count - waits


def test_close_writes_what_waited_if_there_is_room_by_then(full, caplog):
    ny, data, open_region = full
    for key in range(5):
        data.local_destroy(key)
    before = dict(data)
    ny.cache.close()
    assert "not on the disk" not in caplog.text
    assert dict(open_region()) == before


# On simulated disks.


def open_full(disk: Disk, budget: _core.LogBudget | None) -> _core.RegionCore:
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.open_log("/data", log_id=7, synchronous=False, log_budget=budget, environment=disk.environment)
    return region


def entries(region: _core.RegionCore) -> dict[str, bytes]:
    return {key: region.get(key) for key in region.scan_keys()}


def test_a_region_on_a_disk_without_a_byte_left_can_be_emptied():
    disk = Disk(random.Random(1))
    region = open_full(disk, None)
    disk.capacity = 60 * MIB
    count = 0
    while region.commit_once():
        region.put(count, b"v" * 500_000)
        count += 1
    disk.capacity = 1  # Other files took all the rest.
    assert count > 70 and not region.commit_once()
    for key in range(0, count, 2):
        region.change(2, key, None)
    assert region.log_state()["pending"] >= count // 2
    assert not region.commit_once() and region.log_state()["pending"] < 3
    kept = entries(region)
    for key in range(1, count, 4):
        region.change(2, key, None)
    for _ in range(20):
        region.commit_once()
    disk.crash()
    found = entries(open_full(disk, None))
    assert found.keys() <= kept.keys() and all(found.get(key) is None for key in range(1, count, 4))


def test_a_region_on_a_full_disk_goes_on_when_its_segments_have_made_room():
    disk = Disk(random.Random(1))
    region = open_full(disk, None)
    disk.capacity = 60 * MIB
    count = 0
    while region.commit_once():
        region.put(count, b"v" * 500_000)
        count += 1
    for key in range(0, count, 2):
        region.change(2, key, None)
    for _ in range(20):
        if region.commit_once():
            break
    for n in range(10):
        region.put(f"again {n}", b"v" * 500_000)
        assert region.commit_once()
    before = entries(region)
    disk.crash()
    assert entries(open_full(disk, None)) == before


def change_some(region, rng: random.Random, keys: int, note) -> None:
    """Makes up to three changes; while the store has no room, none that takes some."""
    failing = region.log_state()["failing"] is not None
    key = rng.randrange(keys)
    there = region.get(key)
    with contextlib.suppress(QueueFullError):
        for _ in range(rng.randrange(1, 4)):
            what = rng.random()
            if what < 0.6 and not failing:
                region.put(key, bytes([rng.randrange(256)]) * rng.randrange(1, 40_000))
            elif there is not None and what < 0.7:
                region.put(key, there[: len(there) // 2])
            elif there is not None and what < 0.8:
                region.local_destroy(key)
            elif there is not None:
                region.change(2, key, None)
            note(key)
            key = rng.randrange(keys)
            there = region.get(key)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(8, 30))])
def test_whatever_was_pending_in_a_full_store_the_newest_of_each_key_is_recovered(seed):
    """Keys are put, destroyed and removed here while the store has no room, with the power cut at any call."""
    rng = random.Random(seed)
    disk = Disk(random.Random(seed))
    region = open_full(disk, _core.LogBudget(MIB))
    keys = 40
    allowed: dict[int, set[bytes | None]] = {key: {None} for key in range(keys)}

    def note(key: int) -> None:
        allowed[key].add(region.get(key))

    if seed % 3 == 0:
        disk.off_in = rng.randrange(50, 2000)
    for _ in range(400):
        change_some(region, rng, keys, note)
        if not disk.is_off and region.commit_once():
            allowed = {key: {region.get(key)} for key in range(keys)}
        if disk.is_off:
            break
    if not disk.is_off:
        for key in range(keys):
            if region.get(key) is not None and rng.random() < 0.7:
                region.change(2, key, None)
        for _ in range(20):
            region.commit_once()
        assert region.commit_once() and region.log_state()["pending"] == 0
        allowed = {key: {region.get(key)} for key in range(keys)}
    disk.crash()
    disk.off_in = None
    found = open_full(disk, _core.LogBudget(MIB))
    assert all(found.get(key) in allowed[key] for key in range(keys))


# From another site.


def test_destroys_of_another_site_take_effect_behind_a_put_that_does_not_fit():
    """The batch is not acknowledged, and comes again; then the room that the destroys made takes the put."""
    here = Store(2 * MIB)
    queue, parked = here.queue("ln"), here.queue("parked", partitions=8, log_may_use_reserve=True)
    feeder = _core.RegionCore("full", _core.Clock(), site=1, member=1)
    feeder.attach([queue])
    there = Store(MIB)
    remote = there.region("full")
    remote_site = Link(queue, parked)
    remote_site.remote["full"] = remote
    count = 0
    with pytest.raises(QueueFullError):
        while True:
            feeder.put(f"k{count}", b"v" * 20_000)
            count += 1
            assert here.commit()
            remote_site.run()
    remote_site.session.disconnected()
    assert remote.log_state()["failing"] and len(remote) == count and len(queue) == 1
    feeder.put("more", b"v" * 20_000)
    feeder.put("k0", b"w" * 20_000)
    for n in range(count):
        feeder.change(2, f"k{n}", None)
    assert here.commit()
    with pytest.raises(QueueFullError):
        remote_site.run()
    remote_site.session.disconnected()
    assert len(remote) == 0 and len(queue) == count + 3
    for _ in range(10):
        if there.commit():
            break
    remote_site.run()
    assert entries(remote) == entries(feeder) == {"more": b"v" * 20_000} and len(queue) == 0
    assert there.commit()
    feeder.attach([])


# Queues.


def test_a_queue_on_a_disk_without_a_byte_left_loses_what_is_acknowledged_and_goes_on():
    disk = Disk(random.Random(1))
    queue = _core.EventQueue(
        "ln", remote_site=2, log_directory="/ln", log_id=7, synchronous=False, environment=disk.environment
    )
    queue.running = True
    queue.set_full_policy("refuse")
    feeder = _core.RegionCore("feeder", _core.Clock(), site=1, member=1)
    feeder.attach([queue])
    disk.capacity = 60 * MIB
    count = 0
    while queue.commit_once():
        feeder.put(f"k{count}", b"v" * 500_000)
        count += 1
    used = queue.log_state()["bytes"]
    queue.peek(0, 1000)
    queue.remove(0, count // 2)
    for _ in range(5):
        queue.commit_once()
    assert queue.commit_once() and queue.log_state()["bytes"] < used
    for n in range(20):
        feeder.put(f"again {n}", b"v" * 500_000)
        assert queue.commit_once()
    feeder.attach([])
