"""A bucket is a part of a region, and a partition of a parallel sender's queue: each key is in one, and what is done
with one touches no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from pywan import _core
from pywan.errors import IllegalStateError, InternalError
from pywan.region.region import core_of

counts = st.sampled_from([1, 2, 3, 7, 113, 512, 1000, 1024, 1025, 4096])
keys = st.lists(
    st.one_of(st.text(max_size=8), st.integers(), st.binary(max_size=20)),
    max_size=60,
    unique_by=lambda key: (type(key), key),
)
FIELDS = 32  # The bytes of an entry in a scan before its key.


def region_of(buckets: int, name: str = "buckets", **more: object) -> _core.RegionCore:
    return _core.RegionCore(name, _core.Clock(), site=1, buckets=buckets, **more)


def keys_in(run: bytes) -> list[tuple[int, bytes]]:
    """(form, bytes) of each key of a scan."""
    found, at = [], 0
    while at < len(run):
        length = int.from_bytes(run[at : at + 2], "little")
        found.append((run[at + 2], run[at + FIELDS : at + FIELDS + length]))
        at += FIELDS + length
    return found


def whole(region: _core.RegionCore) -> list[tuple[int, bytes]]:
    found, following = [], 0
    while following is not None:
        following, run = region.scan(following, 7)
        found += keys_in(run)
    return found


@settings(max_examples=60, deadline=None)
@given(counts, keys)
def test_each_key_is_in_the_one_bucket_that_its_hash_says(buckets, keys):
    region = region_of(buckets)
    for key in keys:
        region.put(key, str(key))
    assert region.bucket_count == buckets
    scanned = {number: keys_in(region.scan_bucket(number)) for number in {region.bucket_of(key) for key in keys}}
    assert sorted(key for run in scanned.values() for key in run) == sorted(whole(region))
    for number, run in scanned.items():
        assert region.bucket(number)["entries"] == len(run) == sum(region.bucket_of(key) == number for key in keys)
        assert region.bucket(number)["role"] == "primary"


@settings(max_examples=40, deadline=None)
@given(counts, keys, st.randoms(use_true_random=False))
def test_regions_with_the_same_entries_have_the_same_digest_of_each_bucket(buckets, keys, random):
    one, other = region_of(buckets), region_of(buckets, "other")
    changes = [(key, n + 1) for n, key in enumerate(keys)]
    for region in (one, other):
        for key, stamp in changes:
            region.change(1, key, "v", version=(stamp, 2), origin_=(2, b"", (1, 1, stamp)))
        random.shuffle(changes)
    numbers = {region.bucket_of(key) for region in (one, other) for key in keys}
    assert all(one.bucket_digest(number) == other.bucket_digest(number) for number in numbers)
    if keys:
        different = other.bucket_of(keys[0])
        other.put(keys[0], "another value")
        assert {number for number in numbers if one.bucket_digest(number) != other.bucket_digest(number)} == {different}


@settings(max_examples=40, deadline=None)
@given(counts, keys, keys)
def test_a_bucket_is_copied_and_dropped_and_no_other_one_changes(buckets, keys, destroyed):
    region, copy = region_of(buckets), region_of(buckets, "copy")
    for key in keys:
        region.put(key, "v")
    for key in destroyed:
        region.change(2, key, None, version=(1 << 60, 2), origin_=(2, b"", (1, 1, 1)))
    live = whole(region)
    for number in {region.bucket_of(key) for key in keys + destroyed}:
        before = region.bucket(number)
        region.copy_bucket(number, copy)
        assert copy.bucket_digest(number) == region.bucket_digest(number)
        assert copy.bucket(number)["tombstones"] == before["tombstones"]
        gone = keys_in(region.scan_bucket(number))
        assert region.drop_bucket(number) == before["entries"] + before["tombstones"]
        live = [key for key in live if key not in gone]
        assert sorted(whole(region)) == sorted(live)
    assert len(region) == region.tombstones == 0


def test_what_one_bucket_costs_is_its_own_size():
    region = region_of(4096)
    for number in range(2000):
        region.put(number, "v")
    assert sum(region.bucket(number)["entries"] for number in range(4096)) == 2000
    assert all(region.bucket(number)["shards"] == 1 for number in (0, 4095))
    assert region_of(113).bucket(112)["shards"] == 9


@pytest.mark.parametrize("buckets", [4097, 2**32 - 1])
def test_a_region_has_at_most_4096_buckets(buckets):
    with pytest.raises(Exception, match="4096"):
        region_of(buckets)


def test_a_bucket_that_is_not_there_and_a_log_that_would_not_know_are_refused(tmp_path):
    region = region_of(7)
    for call in (region.bucket, region.bucket_digest, region.scan_bucket, region.drop_bucket):
        with pytest.raises(InternalError, match="bucket 7 of 7"):
            call(7)
    persistent = region_of(7, "persistent")
    persistent.open_log(str(tmp_path), log_id=1)
    with pytest.raises(InternalError, match="log would not know"):
        persistent.drop_bucket(0)
    with pytest.raises(InternalError, match="log would not know"):
        region.copy_bucket(0, persistent)


# Senders: a partition of the queue of a parallel one is a bucket.


def partitions_of(sender) -> int:
    return sender._core.queue.partitions


@pytest.mark.parametrize("buckets", [1, 7, 4096])
def test_a_parallel_sender_has_a_partition_for_each_bucket_of_its_region(network, buckets):
    ny, ln = network.add("ny ln")
    ln.receive()
    sender = ny.send_to(ln, parallel=True)
    for site in (ny, ln):
        site.region(total_num_buckets=buckets)
    assert partitions_of(sender) == buckets
    sender.pause()
    for number in range(500):
        ny.data[number] = number
    queue = sender._core.queue
    waiting = {partition: len(queue.peek(partition, 500)) for partition in range(buckets)}
    expected = dict.fromkeys(range(buckets), 0)
    for number in range(500):
        expected[core_of(ny.data).bucket_of(number)] += 1
    assert waiting == expected
    for partition in range(buckets):
        queue.rewind(partition)
    sender.resume()
    network.settle()
    network.assert_equal()


def test_a_sender_that_is_made_after_its_region_has_its_buckets_too(network):
    ny, ln = network.add("ny ln")
    ln.receive()
    for site in (ny, ln):
        site.region(senders="late", total_num_buckets=9)
    sender = ny.send_to(ln, id="late", parallel=True)
    assert partitions_of(sender) == 9
    ny.data["k"] = "v"
    network.settle()
    assert ln.data["k"] == "v"


def test_a_serial_sender_takes_events_of_regions_with_any_buckets(network):
    ny, ln = network.add("ny ln")
    sender = ny.send_to(ln, parallel=False)
    before = sender._core
    ny.region("one", total_num_buckets=3)
    ny.region("other", total_num_buckets=1000)
    assert sender._core is before and partitions_of(sender) == sender.attributes.dispatcher_threads


def test_a_sender_that_holds_events_keeps_its_partitions_and_a_region_of_other_buckets_is_refused(network):
    ny, ln = network.add("ny ln")
    ny.send_to(ln, parallel=True)
    ny.region(total_num_buckets=5)
    ny.data["k"] = 1
    ny.cache.destroy_region("data")
    with pytest.raises(IllegalStateError, match=r"total_num_buckets 6; .* 5 partitions.* holds 1 events"):
        ny.region(total_num_buckets=6)
    assert ny.cache.regions() == {} and ny.sender(ln).queue_size == 1
    ny.region(total_num_buckets=5)
    assert len(ny.data) == 0
    ln.receive()
    ln.region(total_num_buckets=5)
    network.settle()
    assert ln.data["k"] == 1
    ny.cache.destroy_region("data")
    ny.region(total_num_buckets=6)
    assert partitions_of(ny.sender(ln)) == 6 and ny.sender(ln).is_running
    ny.data["k"] = 2
    network.settle()
    assert ln.data["k"] == 2


def test_a_persistent_sender_comes_back_with_its_buckets_and_its_events(tmp_path, network):
    ny, ln = network.add("ny ln")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    attributes = {"parallel": True, "enable_persistence": True}
    ny.send_to(ln, **attributes)
    ny.region(total_num_buckets=11)
    for number in range(100):
        ny.data[number] = number
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    sender = ny.send_to(ln, **attributes)
    assert partitions_of(sender) == 11 and sender.queue_size == 100
    with pytest.raises(IllegalStateError, match="holds 100 events"):
        ny.region()
    ny.region(total_num_buckets=11)
    ln.receive()
    ln.region()
    network.settle()
    assert sorted(ln.data) == list(range(100))
