"""Both ends of a data connection over bytes in memory: what a broken, slow, lying or repeated connection does to data.
Nothing is lost that was queued, nothing applied twice, whatever is cut, repeated or damaged on the way."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time

import numpy
import pytest

from pywan import _core
from pywan.errors import ProtocolError, QueueFullError
from pywan.testing.waiting import LIMIT_S, eventually
from support.core_sites import TwoSites
from support.records import (
    BATCH,
    ERROR,
    FRAME,
    FRAME_ACK,
    FUTURE_STAMP,
    MAGIC,
    REGION,
    REGION_NOT_FOUND,
    REWIND,
    check_ledger,
    make_batch,
    make_record,
    read_ack,
    read_batch,
    split_frames,
)

MINUTE = 60_000


@pytest.fixture
def sites():
    return TwoSites()


# The usual way


def test_events_arrive_in_order_and_leave_the_queue_with_their_acknowledgement(sites):
    sites.put(*[(f"k{n % 3}", f"v{n}") for n in range(250)])
    data = sites.sent()
    assert len(sites.queue) == 250 and sites.dispatcher.in_flight == 3
    sites.dispatcher.receive_data(sites.deliver(data))
    assert [value for _, value, *_ in sites.history.applied] == [f"v{n}" for n in range(250)]
    assert len(sites.queue) == 0 and sites.dispatcher.in_flight == 0 and sites.queue.bytes == 0
    assert sites.memory.last() == [250]
    counts = sites.queue.counts()
    assert counts["distributed"] == 250 and counts["batches_distributed"] == 3 and counts["acknowledgements"] == 3
    check_ledger(counts)


def test_batches_leave_without_waiting_for_the_previous_acknowledgement(sites):
    sites.dispatcher.configure(1, -1)
    sites.put(*[("k", str(n)) for n in range(50)])
    sites.sent()
    assert sites.dispatcher.in_flight == 50


def test_one_late_acknowledgement_acknowledges_all_batches_before_it(sites):
    sites.dispatcher.configure(10, -1)
    sites.put(*[("k", str(n)) for n in range(50)])
    acks = split_frames(sites.deliver(sites.sent()))
    assert [ack.id for ack in acks] == [0, 1, 2, 3, 4]
    sites.dispatcher.receive_data(acks[-1].raw)
    assert len(sites.queue) == 0 and sites.dispatcher.in_flight == 0


def test_a_region_is_named_once_on_each_connection(sites):
    sites.put(("k", "1"))
    assert [f.type for f in split_frames(sites.sent())] == [REGION, BATCH]
    sites.put(("k", "2"))
    assert [f.type for f in split_frames(sites.sent())] == [BATCH]
    sites.reconnect()
    assert [f.type for f in split_frames(sites.sent())] == [REGION, BATCH]


def test_a_batch_waits_for_its_size_or_its_time_whichever_is_first(sites):
    sites.dispatcher.configure(10, 1000)
    sites.put(("k", "1"))
    assert sites.sent() == b""
    sites.now_us += 999_000
    assert sites.sent() == b""
    sites.now_us += 1000
    assert split_frames(sites.sent())[-1].count == 1
    sites.put(*[("k", str(n)) for n in range(10)])
    assert split_frames(sites.sent())[-1].count == 10


def test_flush_sends_what_is_there_at_once(sites):
    sites.dispatcher.configure(10, 1000)
    sites.put(("k", "1"))
    sites.dispatcher.flush(True)
    assert split_frames(sites.sent())[-1].count == 1


def test_a_paused_dispatcher_takes_acknowledgements_and_sends_nothing(sites):
    sites.put(("k", "1"))
    acks = sites.deliver(sites.sent())
    sites.dispatcher.pause(True)
    sites.put(("k", "2"))
    sites.dispatcher.receive_data(acks)
    assert sites.sent() == b"" and len(sites.queue) == 1
    sites.dispatcher.pause(False)
    sites.settle()
    assert sites.history.values("k") == ["1", "2"]


def test_a_dispatcher_that_is_to_leave_sends_no_more_and_goes_when_all_is_acknowledged(sites):
    ours, theirs = socket.socketpair()
    ended = []
    with ours, theirs:
        sites.put(("k", "1"))
        runner = threading.Thread(target=lambda: ended.append(sites.dispatcher.run(ours)))
        runner.start()
        eventually(lambda: sites.dispatcher.in_flight == 1)
        sites.dispatcher.leave(True)
        sites.put(("k", "2"))
        theirs.sendall(sites.deliver(theirs.recv(1 << 16)))
        runner.join(LIMIT_S)
        assert ended == ["done"]
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(1 << 16) == b"" and len(sites.queue) == 1
    sites.reconnect()
    sites.settle()
    assert sites.history.values("k") == ["1", "2"] and sites.queue.counts()["possible_duplicates"] == 0


def test_every_partition_has_its_own_sequence_and_place_in_a_batch():
    sites = TwoSites(partitions=5)
    sites.put(*[(f"k{n}", str(n)) for n in range(100)])
    batch = read_batch(split_frames(sites.sent())[-1].payload)
    assert sorted(section.partition for section in batch) == [0, 1, 2, 3, 4]
    for section in batch:
        assert [r.sequence for r in section.records] == list(range(1, section.count + 1))
        assert section.first == 1 and section.through == section.count and section.acknowledged == 0


def test_a_batch_is_closed_before_it_is_over_the_frame_limit_whatever_partition_comes_next():
    sites = TwoSites(partitions=2)
    keys = {_partition(key): key for key in map(str, range(20))}
    sites.put((keys[0], "x" * (7 << 20)), (keys[1], "y" * (59 << 20)))
    frames = []
    while data := sites.sent():  # The first one fills the window.
        frames += [f for f in split_frames(data) if f.type == BATCH]
        sites.dispatcher.receive_data(sites.deliver(data))
    assert [f.count for f in frames] == [1, 1]
    assert all(len(f.payload) <= 64 << 20 for f in frames)


def _partition(key, partitions=2):
    return (_core.key_hash(key) >> 32) * partitions >> 32


# Losing and repeating


def test_a_lost_acknowledgement_neither_loses_nor_repeats_an_update(sites):
    sites.put(("k", "v1"), ("k", "v2"))
    sites.deliver(sites.sent())  # The acknowledgement is lost with the connection.
    sites.reconnect()
    sites.put(("k", "v3"))
    sites.settle()
    assert sites.history.values("k") == ["v1", "v2", "v3"]
    assert sites.counts.counts()["duplicates_skipped"] == 2
    assert len(sites.queue) == 0


def test_what_is_sent_again_is_marked_as_possible_duplicate_and_what_is_new_is_not(sites):
    sites.put(("k", "v1"))
    sites.sent()
    sites.reconnect()
    sites.put(("k", "v2"))
    records = read_batch(split_frames(sites.sent())[-1].payload)[0].records
    assert [r.possible_duplicate for r in records] == [True, False]
    assert sites.queue.counts()["possible_duplicates"] == 1


@pytest.mark.parametrize("compress", [False, True])
def test_a_connection_cut_at_any_byte_loses_and_repeats_nothing(compress):
    sites = TwoSites(partitions=2)
    sites.dispatcher.configure(2, -1, compress=compress)
    expected = 0
    for cut in itertools.count():
        sites.put(*[(f"k{n}", f"{cut}-{n} {'long' * (40 if compress else 4)}") for n in range(3)])
        expected += 3
        data = sites.sent()
        acks = sites.deliver(data[:cut])
        sites.dispatcher.receive_data(acks[: cut % (len(acks) + 1)])  # The way back is cut somewhere too.
        sites.reconnect()
        check_ledger(sites.queue.counts())
        if cut >= len(data):
            break
    sites.settle()
    assert len(sites.history.applied) == expected
    assert len({(p, s) for *_, p, s in sites.history.applied}) == expected
    for n in range(3):
        assert [int(v.split("-")[0]) for v in sites.history.values(f"k{n}")] == list(range(expected // 3))


def test_bytes_may_arrive_one_by_one(sites):
    sites.put(*[(f"k{n}", "v") for n in range(5)])
    for byte in sites.sent():
        for answer in sites.deliver(bytes([byte])):
            sites.dispatcher.receive_data(bytes([answer]))
    assert len(sites.history.applied) == 5 and len(sites.queue) == 0


def test_batch_sizes_may_change_between_sending_and_sending_again(sites):
    sites.put(*[("k", str(n)) for n in range(60)])
    seen = 0
    for size in (7, 13, 1, 30, 4):
        sites.dispatcher.configure(size, -1)
        frames = split_frames(sites.sent())
        sites.deliver(b"".join(f.raw for f in frames[: len(frames) // 2 + 1]))
        assert len(sites.history.applied) >= seen
        seen = len(sites.history.applied)
        sites.reconnect()
    sites.settle()
    assert sites.history.values("k") == [str(n) for n in range(60)]


def test_a_receiver_that_forgot_everything_applies_only_what_was_not_acknowledged(sites):
    sites.dispatcher.configure(2, -1)
    sites.put(*[("k", str(n)) for n in range(6)])
    acks = split_frames(sites.deliver(sites.sent()))
    sites.dispatcher.receive_data(acks[0].raw)
    sites.memory = _core.SourceMemory(1)
    sites.history.applied.clear()
    sites.reconnect()
    sites.settle()
    assert sites.history.values("k") == ["2", "3", "4", "5"]
    assert sites.memory.last() == [6]


def test_a_gap_is_refused_with_the_sequence_that_is_expected(sites):
    sites.dispatcher.configure(1, -1)
    sites.put(("k", "1"), ("k", "2"), ("k", "3"))
    region, first, _second, _third = split_frames(sites.sent())
    sites.deliver(region.raw + first.raw)
    payload, count = make_batch((0, 3, 3, 0, [make_record(b"k", b"3", region=region.id)]))
    with pytest.raises(ProtocolError, match="gap before sequence 3"):
        sites.receiver.receive_data(_core.pack_frame(BATCH, payload, 1, count))
    answer, reason = split_frames(sites.receiver.data_to_send())
    assert reason.type == ERROR and answer.type == REWIND and struct.unpack("<IIQ", answer.payload) == (0, 0, 2)
    with pytest.raises(ProtocolError, match="expects partition 0 from sequence 2"):
        sites.dispatcher.receive_data(answer.raw)
    sites.reconnect()
    sites.settle()
    assert sites.history.values("k") == ["1", "2", "3"]


def test_a_gap_at_the_first_contact_is_refused_and_what_is_acknowledged_is_believed(sites):
    """A receiver that lost its memory, or never had one, goes on behind what was acknowledged; what is neither settled
    nor there is lost.
    """
    sites.dispatcher.configure(1, -1)
    sites.put(("k", "1"))
    region = split_frames(sites.sent())[0]
    behind = make_record(b"k", b"9", stamp=9, region=region.id)
    sites.connect_receiver(sites.remote.get)
    payload, count = make_batch((0, 9, 9, 3, [behind]))
    with pytest.raises(ProtocolError, match="gap before sequence 9"):
        sites.deliver(region.raw + _core.pack_frame(BATCH, payload, 0, count))
    answer = split_frames(sites.receiver.data_to_send())[0]
    assert answer.type == REWIND and struct.unpack("<IIQ", answer.payload) == (0, 0, 4)
    assert sites.counts.counts()["out_of_order_batches"] == 1 and sites.history.applied == []
    sites.connect_receiver(sites.remote.get)
    payload, count = make_batch((0, 9, 9, 8, [behind]))
    sites.deliver(region.raw + _core.pack_frame(BATCH, payload, 0, count))
    assert sites.history.values("k") == ["9"] and sites.memory.last() == [9]


def failing_batch(sites, first, count, *, times=1, acknowledged=0):
    """A batch of one section, or the same one several times, of events whose region is not there."""
    section = (0, first, first + count - 1, acknowledged, [make_record(b"k", region=9)] * count)
    return make_batch(*[section] * times)


def test_a_section_that_comes_twice_in_a_batch_ends_the_connection(sites):
    """Its failures would be told once more with each: an acknowledgement of any length for a batch of a few bytes."""
    payload, count = failing_batch(sites, 1, 10, times=2)
    with pytest.raises(ProtocolError, match="sections follow each other"):
        sites.receiver.receive_data(_core.pack_frame(BATCH, payload, 0, count))
    [reason] = split_frames(sites.receiver.data_to_send())
    assert reason.type == ERROR and sites.memory.failures == 10


def test_a_section_that_goes_back_on_its_connection_ends_it(sites):
    payload, count = failing_batch(sites, 1, 10)
    sites.deliver(_core.pack_frame(BATCH, payload, 0, count))
    payload, count = failing_batch(sites, 6, 10)
    with pytest.raises(ProtocolError, match=r"partition 0: a section 6\.\.15.*behind one through 10"):
        sites.receiver.receive_data(_core.pack_frame(BATCH, payload, 1, count))


def test_a_section_goes_on_behind_what_was_acknowledged_meanwhile(sites):
    """Events that became holes while nothing was on its way are in no section: they are settled."""
    for number, (first, acknowledged) in enumerate([(1, 0), (8, 7)]):
        payload, count = failing_batch(sites, first, 2, acknowledged=acknowledged)
        [ack] = split_frames(sites.deliver(_core.pack_frame(BATCH, payload, number, count)))
        assert [sequence for _, _, sequence in read_ack(ack.payload)[2]] == [first, first + 1]
    assert sites.memory.failures == 2


def test_an_acknowledgement_names_no_failed_event_that_its_batch_has_not(sites):
    """An event that failed before, and is a hole by now, need not be told again. The others are told, each once."""
    payload, count = failing_batch(sites, 1, 100)
    sites.deliver(_core.pack_frame(BATCH, payload, 0, count))
    sites.connect_receiver(sites.remote.get)
    payload, count = make_batch((0, 1, 100, 0, [(n, make_record(b"k", region=9)) for n in (3, 50, 100)]))
    [ack] = split_frames(sites.deliver(_core.pack_frame(BATCH, payload, 0, count)))
    assert read_ack(ack.payload)[2] == [(0, REGION_NOT_FOUND, 3), (0, REGION_NOT_FOUND, 50), (0, REGION_NOT_FOUND, 100)]


@pytest.mark.parametrize("sections", [0, 65_536, 2**32 - 1])
def test_a_batch_has_a_section_and_no_more_than_a_queue_has_partitions(sites, sections):
    payload, _ = make_batch(*[(0, 1, 1, 0, [])] * min(sections, 65_536))
    payload = struct.pack("<I", sections) + payload[4:]
    with pytest.raises(ProtocolError, match=f"batch of {sections} sections"):
        sites.receiver.receive_data(_core.pack_frame(BATCH, payload, 0, 0))


def test_a_packed_batch_is_believed_only_a_length_that_it_can_unpack_to(sites):
    """Memory for what it says is taken before it is unpacked."""
    packed = b"\x10x"
    head = FRAME.pack(MAGIC, BATCH, 1, 0, len(packed), 0, 64 << 20, 0, 0)
    with pytest.raises(ProtocolError, match="2 packed bytes cannot unpack to 67108864"):
        sites.receiver.receive_data(
            FRAME.pack(MAGIC, BATCH, 1, 0, len(packed), _core.crc32c(head + packed), 64 << 20, 0, 0)
            + packed
            + b"\0" * 6
        )


def test_a_region_name_longer_than_any_is_refused(sites):
    with pytest.raises(ProtocolError, match="name of 1025 bytes"):
        sites.deliver(_core.pack_frame(REGION, b"x" * 1025, 1))


def test_a_batch_that_is_missing_on_the_way_is_noticed(sites):
    sites.dispatcher.configure(1, -1)
    sites.put(("k", "1"), ("k", "2"))
    region, _, second = split_frames(sites.sent())
    with pytest.raises(ProtocolError, match="batch 1 where 0 should come"):
        sites.deliver(region.raw + second.raw)
    assert sites.history.applied == []


def test_an_old_connection_and_its_successor_apply_each_event_once(sites):
    sites.put(*[("k", str(n)) for n in range(10)])
    late = sites.sent()
    old = sites.receiver
    sites.reconnect()
    again = sites.sent()
    sites.deliver(again)
    old.receive_data(late)  # The network had kept this back.
    assert sites.history.values("k") == [str(n) for n in range(10)]


def test_an_acknowledgement_from_the_connection_before_is_not_believed(sites):
    sites.put(("k", "1"))
    late = sites.deliver(sites.sent())
    sites.reconnect()
    with pytest.raises(ProtocolError, match="not sent"):
        sites.dispatcher.receive_data(late)
    assert len(sites.queue) == 1


def test_what_an_old_connection_applied_and_is_not_on_the_disk_yet_is_not_acknowledged_on_its_successor(tmp_path):
    sites = TwoSites(history=False)
    region, waits, answers = sites.fast_region(), [], []

    def wait():
        """The old connection waits for the disk. Its successor comes, and does so too."""
        waits.append(region.log_state()["pending"])
        if len(waits) == 1:
            sites.reconnect()
            answers.append(sites.deliver(sites.sent()))
        else:
            region.commit_once()

    region.open_log(str(tmp_path), log_id=1, wait=wait)
    sites.put(("k", "v"))
    answers.append(sites.deliver(sites.sent()))
    assert waits == [1, 1] and region.log_state()["pending"] == 0
    assert [frame.type for frame in split_frames(answers[0])] == [FRAME_ACK]


def test_a_receiver_whose_own_queue_is_full_acknowledges_nothing_and_takes_it_later():
    sites = TwoSites(history=False)
    onward = _core.EventQueue("onward", remote_site=3, memory_limit=0)
    onward.running = True
    remote = sites.fast_region()
    remote.attach([onward])
    sites.dispatcher.configure(1, -1)
    big = "x" * (1 << 20)
    sites.put(*[(f"k{n}", big) for n in range(5)])
    data = sites.sent()
    with pytest.raises(QueueFullError):
        sites.receiver.receive_data(data)
    applied = sites.memory.last()[0]
    assert 0 < applied < 5 and len(remote) == applied == len(onward)
    with pytest.raises(ProtocolError, match="the receiver says: the queue's memory limit"):
        sites.dispatcher.receive_data(sites.receiver.data_to_send())
    assert len(sites.queue) == 5 - applied
    onward.clear()
    for _ in range(5):
        sites.reconnect()
        try:
            sites.settle()
            break
        except QueueFullError:
            onward.clear()
    assert len(remote) == 5 and len(sites.queue) == 0


# Failing events


def test_an_event_that_fails_is_parked_and_the_rest_goes_on(sites):
    sites.history.fails["bad"] = 4
    sites.put(("a", "1"), ("bad", "2"), ("b", "3"))
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["a", "b"]
    assert sites.failures == [(0, 2, 4)]
    counts = sites.queue.counts()
    assert counts["parked"] == 1 and counts["distributed"] == 2 and len(sites.queue) == 0 and len(sites.parked) == 1


def test_a_failure_is_told_again_after_a_lost_acknowledgement_and_parked_once(sites):
    sites.history.fails["bad"] = 4
    sites.put(("a", "1"), ("bad", "2"), ("b", "3"))
    sites.deliver(sites.sent())
    for _ in range(3):  # Lost three times, cut differently each time.
        sites.dispatcher.configure(1 + _, -1)
        sites.reconnect()
        acks = [read_ack(f.payload)[2] for f in split_frames(sites.deliver(sites.sent()))]
        assert [failure for failures in acks for failure in failures] == [(0, 4, 2)]
    sites.reconnect()
    sites.settle()
    assert len(sites.parked) == 1 and sites.queue.counts()["parked"] == 1
    assert [key for key, *_ in sites.history.applied] == ["a", "b"]


def test_the_work_of_parking_grows_with_the_failures_and_not_with_their_square():
    def seconds(count: int) -> float:
        sites = TwoSites(history=False)
        sites.dispatcher.configure(count, -1)
        sites.put(*((key, b"") for key in range(count)))
        answers = sites.deliver(sites.sent())
        began = time.thread_time()
        sites.dispatcher.receive_data(answers)
        taken = time.thread_time() - began
        assert len(sites.parked) == count
        return taken

    few, many = min(seconds(2_000) for _ in range(3)), min(seconds(32_000) for _ in range(3))
    assert many < few * 16 * 4, f"{few:.6f} s for 2,000 failures, {many:.6f} s for 32,000"


def test_failures_are_forgotten_once_the_sender_has_received_them(sites):
    sites.history.fails["bad"] = 4
    sites.put(("bad", "1"))
    sites.settle()
    sites.put(("a", "2"))
    assert read_ack(split_frames(sites.deliver(sites.sent()))[-1].payload)[2] == []


def test_a_region_that_is_not_there_parks_its_events_until_it_is(sites):
    core = sites.remote.pop(sites.name)
    sites.put(("k", "1"))
    sites.settle()
    assert sites.failures == [(0, 1, REGION_NOT_FOUND)]
    sites.remote[sites.name] = core
    assert sites.parked.replay_into(sites.queue) == 1
    sites.settle()
    assert sites.history.values("k") == ["1"]
    assert sites.queue.counts()["parked"] == 0


def test_a_stamp_of_the_far_future_is_held_back_and_one_of_the_near_future_is_not():
    sites = TwoSites(history=False)
    remote = sites.fast_region()
    now = int(time.time() * 1000)
    number = _region_number(sites)
    for key, ahead in ((b"near", MINUTE), (b"far", 60 * MINUTE)):
        sites.queue.append_record(make_record(key, b"v", stamp=now + ahead << 16, region=number))
    data = sites.sent()
    sites.dispatcher.receive_data(sites.deliver(data))
    assert b"near" in remote and b"far" not in remote
    assert sites.failures == [(0, 3, FUTURE_STAMP)]


def _region_number(sites):
    sites.put(("first", "x"))
    data = sites.sent()
    sites.dispatcher.receive_data(sites.deliver(data))
    return split_frames(data)[0].id


def test_the_clock_sees_the_stamps_that_arrive_even_where_the_first_event_of_the_batch_fails():
    sites = TwoSites(history=False)
    remote = sites.fast_region()
    clock = _core.Clock()
    remote = sites.remote[sites.name] = _core.RegionCore(sites.name, clock, site=2)
    number = _region_number(sites)
    ahead = int(time.time() * 1000) + MINUTE << 16
    sites.queue.append_record(make_record(b"lost", b"v", stamp=1, region=65000))
    sites.queue.append_record(make_record(b"near", b"v", stamp=ahead, region=number))
    batch = make_batch(
        (0, 2, 3, 1, [make_record(b"lost", b"v", region=65000), make_record(b"near", b"v", stamp=ahead, region=number)])
    )
    sites.receiver.receive_data(_core.pack_frame(BATCH, batch[0], 1, batch[1]))
    assert b"near" in remote
    assert clock.take() > ahead


def test_a_failure_that_is_named_twice_is_parked_once(sites):
    sites.put(("a", "1"), ("b", "2"))
    sites.sent()
    ack = struct.pack("<IIQ", 1000, 2, 1 << 20) + struct.pack("<IIQ", 0, 4, 1) * 2
    with contextlib.suppress(ProtocolError):
        sites.dispatcher.receive_data(_core.pack_frame(FRAME_ACK, ack, 0))
    check_ledger(sites.queue.counts())
    assert len(sites.parked) <= 1


def test_a_parked_queue_without_a_partition_for_each_reason_is_refused():
    queue = _core.EventQueue("order", remote_site=2)
    with pytest.raises(ValueError, match="queue 'parked': 7 partitions; one for parked events has 8"):
        _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=7))


def test_failures_that_come_in_another_order_than_what_was_sent_are_not_believed():
    """Between the two mentions of one there may be another partition's."""
    queue, parked = _core.EventQueue("order", remote_site=2, partitions=2), _core.EventQueue("parked", partitions=8)
    queue.running = True
    dispatcher = _core.DispatcherSession(queue, 0, parked)
    dispatcher.configure(100, -1)
    region = _core.RegionCore("order", _core.Clock(), site=1)
    region.attach([queue])
    while min(appended for _, _, appended in queue.positions()) == 0:
        region.put(len(region), b"v")
    for places, is_right in ((0, 1, 0), False), ((1, 0), False), ((0, 1), True):
        dispatcher.connected(1000, 1 << 20, 1)
        [*_, batch] = split_frames(dispatcher.data_to_send(2))
        sections = [section.partition for section in read_batch(batch.payload)]
        ack = struct.pack("<IIQ", 1000, len(places), 1 << 20) + b"".join(
            struct.pack("<IIQ", sections[place], 4, 1) for place in places
        )
        with contextlib.nullcontext() if is_right else pytest.raises(ProtocolError, match="not next in its batches"):
            dispatcher.receive_data(_core.pack_frame(FRAME_ACK, ack, 0))
        assert len(parked) == queue.counts()["parked"] == (2 if is_right else 0)
        dispatcher.disconnected()


@pytest.mark.parametrize(
    "failures", [[(0, 4, 0)], [(0, 4, 99)], [(9, 4, 1)], [(0, 4, 1), (0, 4, 99)], [(0, 4, 99), (0, 4, 1)]]
)
def test_a_failure_of_an_event_that_was_not_sent_changes_nothing(sites, failures):
    """The receiver has lost count: nothing of that acknowledgement is believed, and all is sent again."""
    sites.put(("a", "1"))
    sites.sent()
    ack = struct.pack("<IIQ", 1000, len(failures), 1 << 20) + b"".join(
        struct.pack("<IIQ", *failure) for failure in failures
    )
    with pytest.raises(ProtocolError, match="not next in its batches"):
        sites.dispatcher.receive_data(_core.pack_frame(FRAME_ACK, ack, 0))
    check_ledger(sites.queue.counts())
    assert len(sites.parked) == 0 and len(sites.queue) == 1
    sites.reconnect()
    sites.settle()
    assert sites.history.values("a") == ["1"] and len(sites.queue) == 0


# Filters and conflation


def test_a_filtered_event_leaves_the_queue_without_being_sent(sites):
    sites.dispatcher.set_filters(_core.EventFilters(before_transmit=[lambda event: event.value != "secret"]))
    sites.put(("a", "1"), ("b", "secret"), ("c", "3"))
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["a", "c"]
    counts = sites.queue.counts()
    assert counts["filtered_transmit"] == 1 and counts["distributed"] == 2 and len(sites.queue) == 0
    assert sites.memory.last() == [3]


def test_a_batch_of_nothing_but_filtered_events_has_them_all_acknowledged(sites):
    sites.dispatcher.set_filters(_core.EventFilters(before_transmit=[lambda event: False]))
    sites.put(("a", "1"), ("b", "2"))
    sites.settle()
    assert len(sites.queue) == 0 and sites.queue.positions() == [(2, 2, 2)] and sites.history.applied == []
    sites.dispatcher.set_filters(None)
    sites.put(("c", "3"))
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["c"]


def test_holes_survive_a_lost_acknowledgement(sites):
    sites.dispatcher.set_filters(_core.EventFilters(before_transmit=[lambda event: event.value != "secret"]))
    sites.put(("a", "1"), ("b", "secret"), ("c", "3"))
    sites.deliver(sites.sent())
    sites.dispatcher.configure(1, -1)
    sites.reconnect()
    sites.put(("d", "4"))
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["a", "c", "d"]


@pytest.mark.parametrize("verdict", [lambda event: numpy.array([1, 2]), lambda: True, lambda event: 1 / 0])
def test_a_filter_that_answers_nonsense_holds_nothing_up(sites, verdict):
    sites.dispatcher.set_filters(_core.EventFilters(before_transmit=[verdict]))
    sites.put(("a", "1"), ("b", "2"))
    sites.settle()  # All of it is sent; the lock is free.
    assert [key for key, *_ in sites.history.applied] == ["a", "b"]


def test_after_the_acknowledgement_the_callback_sees_what_was_applied_and_not_what_failed(sites):
    told = []
    sites.history.fails["bad"] = 4
    sites.dispatcher.set_filters(_core.EventFilters(after_acknowledgement=[lambda event: told.append(event.key)]))
    sites.put(("a", "1"), ("bad", "2"), ("b", "3"))
    data = sites.sent()
    assert told == []
    sites.dispatcher.receive_data(sites.deliver(data))
    assert told == ["a", "b"]


def test_batch_conflation_sends_the_newest_update_of_a_key_and_every_create_and_destroy(sites):
    sites.dispatcher.configure(100, -1, batch_conflation=True)
    sites.put(("k", "create"), ("k", "1"), ("other", "create"), ("k", "2"), ("k", "3"))
    sites.settle()
    assert sites.history.values("k") == ["create", "3"]
    counts = sites.queue.counts()
    assert counts["conflated_batch"] == 2 and counts["distributed"] == 3 and len(sites.queue) == 0


def test_batch_conflation_never_drops_the_later_version_for_one_that_was_replayed(sites):
    sites.dispatcher.configure(100, -1, batch_conflation=True)
    number = _region_number(sites)
    sites.queue.append_record(make_record(b"k", b"newer", stamp=20, region=number))
    sites.queue.append_record(make_record(b"k", b"older", stamp=10, region=number))
    batch = read_batch(split_frames(sites.sent())[-1].payload)
    assert b"newer" in [r.value for section in batch for r in section.records]


def test_a_conflating_queue_waits_quietly_once_it_is_empty():
    sites = TwoSites(conflate=True)
    sites.dispatcher.configure(10, 1000)
    sites.put(("k", "create"))
    sites.put(*[("k", str(n)) for n in range(500)])
    sites.now_us += 1_000_000
    sites.settle()
    assert len(sites.queue) == 0
    sites.put(("k", "last"))
    assert sites.sent() == b""  # One event: it waits for its batch as any other does.
    sites.now_us += 1_000_000
    sites.settle()
    assert sites.history.values("k")[-1] == "last"


def test_a_conflated_queue_ends_where_the_source_ends_after_any_losses():
    rng = random.Random(7)
    sites = TwoSites(conflate=True, partitions=3)
    for step in range(400):
        sites.put((f"k{rng.randrange(5)}", str(step)))
        if rng.random() < 0.1:
            data = sites.sent()
            acks = sites.deliver(data)
            if rng.random() < 0.5:
                sites.dispatcher.receive_data(acks)
            else:
                sites.reconnect()
            check_ledger(sites.queue.counts())
    sites.settle()
    for n in range(5):
        assert sites.history.values(f"k{n}")[-1] == sites.region.get(f"k{n}")
    assert sites.queue.counts()["conflated"] > 0


# Window and credit


def test_a_window_without_credit_lets_one_batch_out_at_a_time(sites):
    sites.reconnect(credit_events=0)
    sites.dispatcher.configure(5, -1)
    sites.put(*[("k", str(n)) for n in range(20)])
    data = sites.sent()
    assert sites.dispatcher.in_flight == 1
    frames = split_frames(data)
    assert frames[-1].count == 5
    acks = sites.deliver(data)
    no_credit = _core.pack_frame(FRAME_ACK, struct.pack("<IIQ", 0, 0, 0), split_frames(acks)[0].id)
    sites.dispatcher.receive_data(no_credit)
    assert len(sites.queue) == 15
    sites.sent()
    assert sites.dispatcher.in_flight == 1


def test_the_window_closes_by_events_and_by_bytes(sites):
    sites.dispatcher.configure(5, -1)
    sites.reconnect(credit_events=12)
    sites.put(*[("k", "x" * 1000) for n in range(50)])
    sites.sent()
    assert sites.dispatcher.in_flight == 3  # 5, 10, then 15 events are beyond 12.
    sites.reconnect(credit_bytes=6000)
    sites.sent()
    assert sites.dispatcher.in_flight == 2


def test_batches_on_their_way_are_many_and_bounded(sites):
    sites.dispatcher.configure(1, -1)
    sites.put(*[("k", "v") for n in range(17_000)])
    data = sites.sent()
    assert sites.dispatcher.in_flight == 16_384
    sites.dispatcher.receive_data(sites.deliver(data))
    sites.settle()
    assert [value for _, value, *_ in sites.history.applied] == ["v"] * 17_000


def test_the_window_grows_while_a_longer_link_carries_more_and_stays_within_the_credit(sites):
    """Each round trip of 100 ms answers all that was sent: the link is as wide as one likes."""
    sites.dispatcher.configure(100, -1)
    sites.reconnect(credit_bytes=16 << 20)
    sites.put(*[(f"k{n}", "x" * 1000) for n in range(40_000)])
    seen = []
    while data := sites.sent():
        flow = sites.dispatcher.flow(sites.now_us)
        seen.append(flow["window_bytes"])
        assert 0 < flow["bytes_in_flight"] <= flow["window_bytes"] + 120_000
        sites.now_us += 100_000
        sites.dispatcher.receive_data(sites.deliver(data), sites.now_us)
    # Doubles, batch by batch.
    assert all(before < now <= 2 * before + 240_000 for before, now in itertools.pairwise(seen[:4]))
    assert max(seen) == 16 << 20 and sites.dispatcher.flow(sites.now_us)["round_trip_us"] == 100_000
    assert len(sites.history.applied) == 40_000


def test_the_work_of_a_receiver_does_not_make_its_link_look_longer(sites):
    """An acknowledgement 2 s after its batch, of which the receiver worked 1.9: the link takes 0.1."""
    sites.region.put("k", b"v")
    sent = sites.dispatcher.data_to_send(5_000_000)
    (batch,) = [frame for frame in split_frames(sent) if frame.type == BATCH]
    acknowledged = struct.pack("<IIQ", 1000, 0, 16 << 20)
    sites.dispatcher.receive_data(_core.pack_frame(FRAME_ACK, acknowledged, batch.id, 1_900_000), 7_000_000)
    assert (
        sites.dispatcher.flow(sites.now_us)["round_trip_us"] == 2_000_000
        and sites.dispatcher.flow(sites.now_us)["link_us"] == 100_000
    )


def test_an_acknowledgement_tells_how_long_the_receiver_worked(sites):
    sites.put(("k", "1"))
    ticks = itertools.count(1, 300_000)
    sites.receiver.driven_by(lambda: next(ticks))
    [ack] = split_frames(sites.deliver(sites.sent()))
    assert 300_000 <= ack.count <= 900_000
    sites.dispatcher.receive_data(ack.raw)
    assert sites.dispatcher.times(sites.now_us)["receiver"] == ack.count


# Bytes that are not what they should be


def test_compression_changes_what_travels_and_nothing_else(sites):
    sites.dispatcher.configure(100, -1, compress=True)
    sites.put(*[(f"k{n}", "the same words again and again " * 20) for n in range(50)])
    data = sites.sent()
    assert len(data) < 50 * 200
    sites.dispatcher.receive_data(sites.deliver(data))
    assert len(sites.history.applied) == 50 and len(sites.queue) == 0
    sites.put(("random", bytes(random.Random(1).randbytes(3000)).hex()))
    sites.settle()
    assert len(sites.history.applied) == 51


@pytest.mark.parametrize("compress", [False, True])
def test_a_damaged_byte_anywhere_costs_the_connection_and_applies_nothing_wrong(compress):
    sites = TwoSites()
    sites.dispatcher.configure(4, -1, compress=compress)
    sites.put(*[(f"k{n}", f"value {n} " * 9) for n in range(8)])
    data = sites.sent()
    right = {(f"k{n}", f"value {n} " * 9) for n in range(8)}
    rng = random.Random(3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= rng.randrange(1, 256)
        sites.memory = _core.SourceMemory(1)
        sites.history.applied.clear()
        sites.connect_receiver(sites.remote.get)
        with contextlib.suppress(ProtocolError):
            sites.receiver.receive_data(bytes(damaged))
        assert {(key, value) for key, value, *_ in sites.history.applied} <= right
        assert [s for *_, s in sites.history.applied] == list(range(1, len(sites.history.applied) + 1))


def test_a_damaged_acknowledgement_removes_nothing_that_was_not_acknowledged(sites):
    sites.dispatcher.configure(2, -1)
    sites.history.fails["k1"] = 4
    rng = random.Random(4)
    for at in range(200):
        sites.put(("k0", "v"), ("k1", "v"), ("k2", "v"))
        acks = bytearray(sites.deliver(sites.sent()))
        acks[at % len(acks)] ^= rng.randrange(1, 256)
        with contextlib.suppress(ProtocolError):
            sites.dispatcher.receive_data(bytes(acks))
        check_ledger(sites.queue.counts())
        assert sites.queue.positions()[0][0] <= sites.memory.last()[0]
        sites.reconnect()
    sites.settle()
    assert len(sites.history.applied) == 400 and len(sites.parked) == 200


@pytest.mark.parametrize("seed", range(40))
def test_well_sealed_nonsense_never_breaks_a_session(seed):
    """Frames whose checksum is right and whose contents are not: the other side is hostile, or a later version."""
    rng = random.Random(seed)
    sites = TwoSites(partitions=2, history=False)
    remote = sites.fast_region()
    number = _region_number(sites)
    for _ in range(200):
        records = [
            make_record(
                rng.randbytes(rng.randrange(9)),
                rng.randbytes(rng.randrange(40)),
                operation=rng.randrange(3),
                region=number,
                stamp=rng.randrange(100),
            )
            for n in range(rng.randrange(4))
        ]
        made, count = make_batch((rng.randrange(2), 1, max(1, len(records)), 0, records))
        payload = bytearray(made)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(payload))
            payload[at : at + 4] = rng.choice([b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", rng.randbytes(4)])[
                : len(payload) - at
            ]
        flags = rng.choice([0, 0, 0, 1])
        frame = bytearray(
            _core.pack_frame(
                rng.choice([BATCH] * 6 + [REGION, FRAME_ACK, REWIND, ERROR]),
                payload,
                rng.choice([0, 1, rng.getrandbits(64)]),
                count,
            )
        )
        frame[5] = flags
        frame[12:16] = b"\0" * 4
        length = struct.unpack_from("<I", frame, 8)[0]
        frame[12:16] = struct.pack("<I", _core.crc32c(bytes(frame[: FRAME.size]) + bytes(payload[:length])))
        for session in (sites.receiver, sites.dispatcher):
            with contextlib.suppress(ProtocolError, QueueFullError):
                session.receive_data(bytes(frame))
        sites.reconnect()
    check_ledger(sites.queue.counts())
    assert len(remote) >= 0


@pytest.mark.parametrize("kind", range(1, 13))
@pytest.mark.parametrize("length", [0, 1, 8, 15])
def test_a_frame_too_short_for_its_kind_is_refused_or_ignored(sites, kind, length):
    for session in (sites.receiver, sites.dispatcher):
        with contextlib.suppress(ProtocolError):
            session.receive_data(_core.pack_frame(kind, b"x" * length))
    sites.reconnect()
    sites.put(("k", "v"))
    sites.settle()
    assert sites.history.values("k") == ["v"]


def test_a_rewind_that_is_cut_short_is_called_so(sites):
    with pytest.raises(ProtocolError, match="8 bytes"):
        sites.dispatcher.receive_data(_core.pack_frame(REWIND, b"x" * 8))


def test_another_protocol_is_named_by_its_first_bytes(sites):
    with pytest.raises(ProtocolError, match="GET "):
        sites.receiver.receive_data(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


# Regions that come and go


def test_a_region_that_is_replaced_during_a_batch_takes_what_comes_after(sites):
    """The region's record is looked up, then user's Python for another region destroys and makes it again."""
    first, second = (
        _core.RegionCore(sites.name, _core.Clock(), site=2),
        _core.RegionCore(sites.name, _core.Clock(), site=2),
    )
    other = f"{sites.name}-other"
    sites.remote.update({sites.name: first, other: _core.RegionCore(other, _core.Clock(), site=2)})
    beside = _core.RegionCore(other, _core.Clock(), site=1, stores=False)
    beside.attach([sites.queue])
    sites.put(("k", "1"))
    sites.settle()
    del first

    def find(name):
        if name == other:
            sites.remote.pop(sites.name).close()
            sites.remote[sites.name] = second
        return sites.remote.get(name)

    sites.reconnect()
    sites.connect_receiver(find)
    sites.put(("k", "2"))
    sites.settle()
    sites.put(("k", "3"))
    beside.put("x", "y")
    sites.put(*[(f"k{n}", "4") for n in range(10)])
    sites.settle()
    assert len(sites.queue) == 0
    assert second.get("k9") == "4" or sites.parked.counts()["events"] > 0


def test_a_closed_region_parks_its_events(sites):
    sites.put(("k", "1"))
    sites.settle()
    sites.history.core.close()
    sites.put(("k", "2"))
    sites.settle()
    assert sites.failures == [(0, 2, REGION_NOT_FOUND)]


def test_an_event_is_passed_on_to_sites_that_do_not_have_it_and_to_no_other():
    sites = TwoSites(history=False)
    remote = sites.fast_region()
    back = _core.EventQueue("back", remote_site=1)
    onward = _core.EventQueue("onward", remote_site=3)
    back.running = onward.running = True
    remote.attach([back, onward])
    sites.put(("k", "v"))
    sites.settle()
    assert len(back) == 0 and back.counts()["not_queued_loop"] == 1
    ((_, _, record),) = onward.records()
    fields = _core.record_fields(record)
    assert fields["origin_site"] == 1 and {2, 3} <= set(fields["recipients"])
    check_ledger(back.counts())
    check_ledger(onward.counts())


def test_a_receiver_without_a_sign_of_life_is_given_up_after_the_time_that_was_set(sites):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sites.dispatcher.configure(1, -1, receive_timeout_ms=100)
        sites.dispatcher.connected(1_000_000, 64 << 20, 0, 10_000)
        sites.put(("k", "1"))
        assert sites.dispatcher.run(ours).startswith("no progress by the receiver for 0.1 s, with 1 events")
