"""The compiled core's own promises, one call at a time: formats, codecs, clock, queue limits, the put path and its
counts.
"""

from __future__ import annotations

import platform
import struct
import subprocess
import sys

import pytest

from pywan import _core
from pywan.errors import (
    ConfigurationError,
    DiskError,
    EventTooLargeError,
    ProtocolError,
    QueueFullError,
    SerializationError,
)
from support.records import (
    BYTES,
    CREATE,
    DESTROY,
    GIVEN,
    MAGIC,
    NONE,
    RECORD,
    RECORD_BYTES,
    TEXT,
    UPDATE,
    check_ledger,
    make_record,
    pack_head,
    padded,
    read_head,
    read_record,
    record_length,
)


def region_with(*queues, site=1, **options):
    region = _core.RegionCore("basics", _core.Clock(), site=site, member=77, **options)
    region.attach(queues)
    return region


def queue_to(site, *, running=True, **options):
    queue = _core.EventQueue(f"to {site}", remote_site=site, **options)
    queue.running = running
    return queue


def only_record(queue):
    ((_, _, record),) = queue.records()
    return record


# Formats


def test_the_checksum_is_crc32c_in_both_its_forms():
    assert _core.crc32c(b"123456789") == _core.crc32c_portable(b"123456789") == 0xE3069283
    assert _core.crc32c(b"") == 0
    assert _core.crc32c(b"6789", _core.crc32c(b"12345")) == 0xE3069283


def test_the_hash_that_decides_a_bucket_is_the_one_of_the_format():
    assert _core.key_hash("order-17") == 0xA96490A395F26221
    assert _core.key_hash(b"k") == 0x9FD45185E911ADC9


def test_a_put_lays_out_its_record_as_the_format_says():
    queue = queue_to(2)
    region = region_with(queue)
    region.put("key", "value", "why")
    record = only_record(queue)
    head = read_head(record)
    assert len(record) == record_length(record) == RECORD_BYTES + 16
    assert record[RECORD_BYTES : RECORD_BYTES + 12] == b"keyvaluewhy\x02"
    assert set(record[RECORD_BYTES + 12 :]) == {0}
    assert (
        head.pop("event_thread") > 0 and head.pop("event_sequence") > 0 and head.pop("stamp") == region.lookup("key")[1]
    )
    assert _core.region_name(head.pop("region")) == "basics"
    assert head == {
        "value_length": 5,
        "key_length": 3,
        "callback_length": 3,
        "recipients_count": 1,
        "flags": 0,
        "stamp_site": 1,
        "origin_site": 1,
        "event_member": 77,
        "operation": CREATE,
        "key_form": TEXT,
        "value_form": TEXT,
        "callback_form": TEXT,
    }


def test_the_fields_of_a_record_are_those_that_the_tests_know():
    assert {name: bits for bits, name, _ in _core.record_field_rows()} == RECORD
    assert [name for _, name, _ in _core.record_field_rows()] == list(RECORD)


def test_a_field_of_a_record_lies_where_the_table_says():
    """Each with its highest bit; the lengths and forms say what follows, so they are of a record that is whole."""
    fields = {name: 1 << bits - 1 for name, bits in RECORD.items()} | {
        "value_length": 2,
        "key_length": 1,
        "callback_length": 3,
        "recipients_count": 4,
        "flags": GIVEN,
        "operation": DESTROY,
        "key_form": TEXT,
        "value_form": BYTES,
        "callback_form": NONE,
    }
    found = _core.record_fields(padded(pack_head(fields) + b"kvvccc1234"))
    assert {name: found[name] for name in RECORD} == fields
    assert (found["key"], found["value"], found["callback"]) == ((TEXT, b"k"), (BYTES, b"vv"), (NONE, b"ccc"))
    assert found["recipients"] == b"1234"


def test_a_frame_is_checked_in_header_and_checksum():
    frame = _core.pack_frame(_core.FRAME_PING, b"payload", 5, 6)
    assert struct.unpack_from("<I", frame)[0] == MAGIC and len(frame) == 40
    assert _core.check_frame(frame) == (_core.FRAME_PING, 5, 6, b"payload")
    assert _core.check_frame_header(frame[:32]) == (_core.FRAME_PING, 8, 7)
    for at in (0, 4, 8, 12, 33):
        with pytest.raises(ProtocolError):
            _core.check_frame(frame[:at] + bytes([frame[at] ^ 0x55]) + frame[at + 1 :])
    with pytest.raises(ProtocolError, match="cut off"):
        _core.check_frame(frame[:36])
    with pytest.raises(ProtocolError):
        _core.check_frame(b"")


@pytest.mark.parametrize(
    "value", [b"", b"\0\xff", "", "text \u20ac \U0001f600", 0, -1, 2**63 - 1, -(2**63), 0.0, -1.5, float("inf"), None]
)
def test_a_value_comes_back_as_it_went_in(value):
    assert _core.decode_object(*_core.encode_object(value)) == value
    region = region_with()
    region.put("k", value)
    assert region.get("k", "missing") == value and type(region.get("k")) is type(value)


@pytest.mark.parametrize("value", [2**63, {"a": [1, (2, 3)]}, [None, True, b"x"], {1, 2}, True])
def test_a_value_of_any_other_type_comes_back_equal(value):
    assert _core.decode_object(*_core.encode_object(value)) == value


def test_a_key_of_another_form_is_another_key():
    region = region_with()
    for value, key in enumerate(("1", b"1", 1, 1.0)):
        region.put(key, value)
    assert len(region) == 4 and [region.get(k) for k in ("1", b"1", 1, 1.0)] == [0, 1, 2, 3]


# Limits


def test_what_is_too_large_or_cannot_be_written_changes_nothing():
    queue = queue_to(2)
    region = region_with(queue)
    with pytest.raises(EventTooLargeError, match="65536 bytes"):
        region.put(b"k" * 65536, b"")
    with pytest.raises(EventTooLargeError, match="over the limit"):
        region.put(b"k", bytes((60 << 20) + 1))
    with pytest.raises(EventTooLargeError, match="callback"):
        region.put(b"k", b"v", b"c" * 65536)
    with pytest.raises(SerializationError):
        region.put(None, b"v")
    with pytest.raises(SerializationError):
        region.put("k", "\ud800")
    assert len(region) == 0 and len(queue) == 0 and queue.counts()["received"] == 0
    region.put(b"k" * 65535, b"v", b"c" * 65535)
    assert len(region) == 1 and len(queue) == 1


def test_a_full_queue_refuses_the_put_and_the_region_keeps_what_it_had():
    queue = queue_to(2, memory_limit=0)
    region = region_with(queue)
    region.put("k", "old")
    with pytest.raises(QueueFullError, match="nothing was stored or sent"):
        for n in range(10):
            region.put("big", bytes(1 << 20))
            stored = n + 1
    region_before, events = region.lookup("big"), len(queue)
    with pytest.raises(QueueFullError):
        region.put("k", bytes(1 << 20))
    assert region.get("k") == "old" and region.lookup("big") == region_before
    assert len(queue) == events == stored + 1
    check_ledger(queue.counts())


def test_one_full_queue_of_two_leaves_both_and_the_region_unchanged():
    small, large = queue_to(2, memory_limit=0), queue_to(3, memory_limit=64 << 20)
    region = region_with(small, large)
    with pytest.raises(QueueFullError):
        for _ in range(10):
            region.put("k", bytes(1 << 20))
    assert len(small) == len(large) and small.positions() == large.positions()


def test_overflow_goes_to_the_directory_and_leaves_nothing_there(tmp_path):
    queue = queue_to(2, memory_limit=0, directory=tmp_path)
    region = region_with(queue)
    for n in range(20):
        region.put(n, bytes([n]) * (1 << 20))
    assert queue.counts()["overflow_files_made"] >= 2 and queue.counts()["overflow_bytes"] > 16 << 20
    assert list(tmp_path.iterdir()) == []  # Nameless: gone with the process, however it ends.
    for n in range(20):
        (record,) = queue.peek(0, 1)
        assert read_record(record).value == bytes([n]) * (1 << 20)
        queue.remove(0, n + 1)
    assert queue.counts()["overflow_bytes"] == 0


def test_an_overflow_directory_that_is_not_there_is_named(tmp_path):
    queue = queue_to(2, memory_limit=0, directory=tmp_path / "missing")
    with pytest.raises((DiskError, QueueFullError), match="missing"):
        for _ in range(10):
            queue.append_record(make_record(b"k", bytes(1 << 20)))


def test_a_damaged_record_is_not_appended():
    queue = queue_to(2)
    record = make_record(b"key", b"value")
    for name in (
        "value_length",
        "key_length",
        "callback_length",
        "flags",
        "recipients_count",
        "operation",
        "key_form",
        "value_form",
        "callback_form",
    ):
        with pytest.raises(ProtocolError):
            queue.append_record(pack_head(read_head(record) | {name: (1 << RECORD[name]) - 1}) + record[RECORD_BYTES:])
    with pytest.raises(ProtocolError, match="cut off"):
        queue.append_record(record[:20])
    assert len(queue) == 0


def test_a_queue_needs_partitions():
    with pytest.raises(ConfigurationError, match="1 to 65535"):
        _core.EventQueue("none", partitions=0)


# Clock


def test_the_clock_goes_up_whatever_the_wall_does():
    clock = _core.Clock()
    stamps = [clock.take(now) for now in (1000, 1000, 999, 1001, 5)]
    assert stamps == sorted(set(stamps)) and stamps[0] == 1000 << 16
    clock.see(1 << 60)
    assert clock.take() == (1 << 60) + 1


# The put path


def test_every_attached_running_sender_gets_the_event_and_its_recipients():
    two, three, stopped = queue_to(2), queue_to(3), queue_to(4, running=False)
    region = region_with(two, three, stopped)
    region.put("k", "v")
    for queue in (two, three):
        fields = _core.record_fields(only_record(queue))
        assert set(fields["recipients"]) == {2, 3} and fields["origin_site"] == 1
    assert len(stopped) == 0 and stopped.counts()["dropped_stopped"] == 1
    for queue in (two, three, stopped):
        check_ledger(queue.counts())


def test_an_event_does_not_go_where_it_was_or_will_be():
    two, three, four = queue_to(2), queue_to(3), queue_to(4)
    region = region_with(two, three, four)
    region.change(UPDATE, "k", "v", version=(1 << 40, 2), origin_=(2, b"\x01\x03", (1, 1, 1)))
    assert [len(q) for q in (two, three, four)] == [0, 0, 1]
    assert two.counts()["not_queued_loop"] == three.counts()["not_queued_loop"] == 1
    fields = _core.record_fields(only_record(four))
    assert fields["origin_site"] == 2 and fields["stamp_site"] == 2 and {1, 3, 4} <= set(fields["recipients"])


def test_the_operation_says_what_the_change_did():
    queue = queue_to(2)
    region = region_with(queue)
    region.put("k", "1")
    region.put("k", "2")
    region.destroy("k")
    region.put("k", "3")
    assert [read_record(r).operation for _, _, r in queue.records()] == [CREATE, UPDATE, DESTROY, CREATE]
    with pytest.raises(KeyError):
        region.destroy("not there")
    assert len(queue) == 4


def test_decisions_filter_or_replace_what_one_sender_gets():
    queues = [queue_to(2), queue_to(3), queue_to(4)]
    region = region_with(*queues)
    decisions = dict(zip(queues, (None, False, _core.encode_object("for four")), strict=True))
    region.change(UPDATE, "k", "v", decisions=decisions)
    two, three, four = queues
    assert read_record(only_record(two)).value == b"v" and read_record(only_record(four)).value == b"for four"
    assert len(three) == 0 and three.counts()["filtered_enqueue"] == 1
    assert region.get("k") == "v"
    for queue in queues:
        check_ledger(queue.counts())


def test_a_proxy_holds_nothing_and_forwards_everything():
    queue = queue_to(2)
    region = region_with(queue, stores=False)
    region.put("k", "v")
    assert len(region) == 0 and len(queue) == 1


def test_a_local_region_counts_and_does_not_queue():
    queue = queue_to(2)
    region = region_with(queue, forwards=False)
    region.put("k", "v")
    assert region.get("k") == "v" and len(queue) == 0 and queue.counts()["not_queued"] == 1
    check_ledger(queue.counts())


def test_a_key_stays_in_its_partition_and_its_order():
    queue = queue_to(2, partitions=7, dispatchers=3)
    region = region_with(queue)
    for n in range(500):
        region.put(f"k{n % 20}", n)
    places, last = {}, {}
    for partition, _, record in queue.records(1000):
        fields = read_record(record)
        assert places.setdefault(fields.key, partition) == partition
        assert last.get(fields.key, 0) < fields.stamp
        last[fields.key] = fields.stamp
    assert len(set(places.values())) > 3


def test_with_order_by_thread_all_events_of_a_thread_share_a_partition():
    queue = queue_to(2, partitions=7, by_thread=True)
    region = region_with(queue)
    for n in range(50):
        region.put(n, n)
    assert len({partition for partition, _, _ in queue.records(1000)}) == 1


def test_detaching_lets_events_pass_by():
    queue = queue_to(2)
    region = region_with(queue)
    region.attach([])
    region.put("k", "v")
    assert len(queue) == 0 and queue.counts()["received"] == 0


def test_local_changes_count_as_not_queued():
    queue = queue_to(2)
    region = region_with(queue)
    region.put("k", "v")
    region.invalidate("k")
    assert "k" in region and region.get("k") is None and len(queue) == 1
    region.local_destroy("k")
    assert "k" not in region and len(queue) == 1 and region.lookup("k") is None
    assert queue.counts()["not_queued"] == 2
    check_ledger(queue.counts())


def test_cleared_events_stay_in_the_ledger():
    queue = queue_to(2)
    region = region_with(queue)
    for n in range(10):
        region.put(n, n)
    queue.peek(0, 3)
    assert queue.clear() == 10 and len(queue) == 0 and queue.positions() == [(10, 10, 10)]
    check_ledger(queue.counts())
    region.put("k", "v")
    assert [sequence for _, sequence, _ in queue.records()] == [11]


def test_a_comparison_between_sites_sees_every_live_entry_once():
    region = region_with()
    for n in range(1000):
        region.put(f"k{n}", n)
    region.destroy("k0")
    scan_position, seen = 0, []
    while scan_position is not None:
        scan_position, run = region.scan(scan_position, 100)
        at = 0
        while at < len(run):
            length, key_form, value_form, value_length, _, stamp, site = struct.unpack_from("<HBBIQQB", run, at)
            key = run[at + 32 : at + 32 + length].decode()
            assert (key_form, value_form, value_length, site) == (1, 4, 8, 1) and stamp == region.lookup(key)[1]
            seen.append(key)
            at += 32 + length
    assert sorted(seen) == sorted(f"k{n}" for n in range(1, 1000))


def test_replaying_moves_parked_events_back_to_their_keys_partition():
    source, queue = _core.EventQueue("parked", partitions=8), queue_to(2, partitions=4)
    for n in range(20):
        source.append_record(make_record(f"k{n}".encode(), b"v", key_form=1, stamp=n), n % 8)
    assert source.replay_into(queue) == 20 and len(source) == 0
    for partition, _, record in queue.records():
        key = read_record(record).key.decode()
        assert partition == (_core.key_hash(key) >> 32) * 4 >> 32


# Room in several queues at once


@pytest.mark.parametrize("first", ["drop-oldest", "refuse"])
@pytest.mark.parametrize("partitions", [1, 7])
def test_a_put_that_one_queue_refuses_takes_nothing_from_one_that_drops_its_oldest(first, partitions):
    region = region_with(*(queue_to(site, memory_limit=3 << 20, partitions=partitions) for site in (2, 3)))
    dropper, refuser = region.queues if first == "drop-oldest" else reversed(region.queues)
    dropper.set_full_policy("drop-oldest")
    refuser.set_full_policy("refuse")
    stored = 0
    with pytest.raises(QueueFullError):
        while True:
            region.put(stored, bytes(1000))
            stored += 1
    before = dropper.records(10**6), dropper.counts()
    for key in range(stored, stored + 50):
        with pytest.raises(QueueFullError):
            region.put(key, bytes(1000))
        with pytest.raises(QueueFullError):
            region.put_columns([b"row"], [bytes(1000)])
    assert (dropper.records(10**6), dropper.counts()) == before
    assert len(dropper) == len(refuser) == len(region) == stored
    # Where the other one has room again, the newest comes in and the oldest make room for it.
    for partition in range(partitions):
        refuser.remove(partition, refuser.peek_with_positions(partition, 10**6)[-1][0])
    for key in range(stored, stored + 50):
        region.put(key, bytes(1000))
    counts = dropper.counts()
    assert len(region) == stored + 50 == len(dropper) + counts["dropped_oldest"] and counts["dropped_oldest"] > 0
    assert counts["memory_bytes"] <= 3 << 20
    kept = [_core.decode_object(*_core.record_fields(record)["key"]) for _, _, record in dropper.records(10**6)]
    assert set(range(stored, stored + 50)) <= set(kept)
    check_ledger(counts)


def test_a_change_that_loses_or_finds_nothing_drops_no_older_event():
    queue = queue_to(2, memory_limit=3 << 20)
    queue.set_full_policy("drop-oldest")
    region = region_with(queue)
    region.put("key", bytes(1000))
    length = queue.bytes
    while queue.bytes + length <= 2 << 20:  # The limit has room for one segment of records.
        region.put("key", bytes(1000))
    for n in range(100):
        assert region.change(UPDATE, "key", bytes(1000), version=(1, 3), origin_=(3, b"", (1, 1, n))) == "lost"
        assert region.change(DESTROY, "not there" + "!" * 1000) == "missing"
    assert queue.counts()["dropped_oldest"] == 0
    region.put("key", bytes(1000))
    assert queue.counts()["dropped_oldest"] > 0


def test_a_queue_that_drops_its_oldest_keeps_what_is_on_its_way_and_refuses_what_has_no_room_beside_it():
    queue = queue_to(2, memory_limit=3 << 20)
    queue.set_full_policy("drop-oldest")
    region = region_with(queue)
    for key in range(1500):
        region.put(key, bytes(1000))
    assert len(queue.peek(0, 10**6)) == 1500
    with pytest.raises(QueueFullError):
        for key in range(1500, 10000):
            region.put(key, bytes(1000))
    counts = queue.counts()
    assert counts["memory_bytes"] <= (3 << 20) + (2 << 20) and len(region) == len(queue) + counts["dropped_oldest"]
    assert queue.remove(0, 1500) == 1500
    for key in range(10000, 12000):
        region.put(key, bytes(1000))
    assert queue.counts()["memory_bytes"] <= 3 << 20


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is that of x86-64")
def test_no_thread_waits_for_a_lock_until_the_system_offers_barriers():
    """The process may use membarrier(2) when the core is loaded. To ask for it later takes up to 40 ms."""
    ask = "import ctypes; from pywan import _core; print(ctypes.CDLL(None, use_errno=True).syscall(324, 1 << 3, 0, 0))"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True, timeout=60).stdout == b"0\n"
