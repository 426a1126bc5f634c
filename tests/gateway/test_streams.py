"""The streams of a sender between sites: all members of a site send the changes of a bucket under the same sequences,
and a receiver applies each change once, whichever member brings it and over whichever connection."""

from __future__ import annotations

import itertools
import random

import pytest

from pywan import _core, stats
from pywan.errors import ProtocolError
from pywan.gateway.applied import AppliedMemory
from pywan.protocol import gateway
from pywan.testing.waiting import eventually
from support.records import (
    BATCH,
    ERROR,
    REGION,
    REWIND,
    STREAM,
    make_batch,
    make_record,
    make_stream,
    read_batch,
    read_stream,
    split_frames,
)
from support.shared_site import TIMELINE
from support.streams import OWN, Line, Remote, all_there, members
from support.tree import ROOT


def numbers(first, through):
    return [str(n) for n in range(first, through + 1)]


def key_in(bucket, buckets):
    return next(key for n in itertools.count() if _bucket(key := b"k%d" % n, buckets) == bucket)


def _bucket(key, buckets):
    return (_core.key_hash(key) >> 32) * buckets >> 32


# One member after the other, and both at once


@pytest.mark.parametrize("packed", [False, True])
def test_a_member_that_takes_over_repeats_nothing_that_another_one_brought(packed):
    remote = Remote()
    remote.member().name().send(1, 100, packed=packed)
    remote.member().name(partition=9).send(61, 150, partition=9, acknowledged=60, packed=packed)
    assert remote.applied == numbers(1, 150) and remote.last() == (1, 150)
    assert remote.counts.counts()["duplicates_skipped"] == 40


def test_two_members_that_send_one_stream_at_once_bring_each_event_once_and_in_order():
    remote = Remote()
    one, other = remote.member().name(), remote.member().name()
    one.send(1, 10)
    other.send(6, 20, acknowledged=5)
    one.send(11, 15)
    other.send(21, 25)
    one.send(16, 30)
    assert remote.applied == numbers(1, 30)


@pytest.mark.parametrize("seed", range(8))
def test_each_event_is_applied_once_whatever_members_send_through_and_what_connections_end(seed):
    chance = random.Random(seed)
    remote = Remote()
    acknowledged, lines, at = [0, 0], [remote.member().name(), remote.member().name()], [0, 0]
    holes = {n for n in range(1, 400) if chance.random() < 0.2}  # The same everywhere: these changes enter no queue.
    while min(at) < 300:
        n = chance.randrange(2)
        through = at[n] + chance.randrange(1, 30)
        lines[n].send(at[n] + 1, through, acknowledged=acknowledged[n], holes=holes, packed=chance.random() < 0.3)
        at[n] = through
        if chance.random() < 0.5:
            acknowledged[n] = at[n]
        if chance.random() < 0.1:  # The other member told how far it is.
            acknowledged[n] = at[n] = max(*acknowledged, at[n])
        if chance.random() < 0.3:
            lines[n], at[n] = lines[n].again().name(), acknowledged[n]
    assert remote.applied == [str(n) for n in range(1, max(at) + 1) if n not in holes]


def test_a_failure_is_told_again_to_another_member():
    remote = Remote()
    remote.failing = {"3", "7"}
    assert remote.member().name().send(1, 5) == [3]
    other = remote.member().name()
    assert other.send(1, 8) == [3, 7] and remote.streams.failures == 2
    assert remote.applied == ["1", "2", "4", "5", "6", "8"]
    other.send(9, 9, acknowledged=8)
    # It may die before the others hear of that: then one of these sends them again.
    assert remote.member().name().send(1, 9) == [3, 7]


def test_failures_that_the_sender_has_received_are_kept_in_a_number_that_is_bounded():
    remote, kept = Remote(), 4096
    remote.failing = set(numbers(1, 3 * kept))
    line = remote.member().name()
    for end in range(1024, 3 * kept + 1, 1024):
        line.send(end - 1023, end, acknowledged=end - 1024)
        assert remote.streams.failures <= 2 * kept + 1024
    assert remote.streams.failures >= kept
    assert remote.member().name().send(2 * kept + 1, 3 * kept) == list(range(2 * kept + 1, 3 * kept + 1))


def test_streams_of_several_buckets_count_on_their_own_beside_the_own_partitions():
    remote = Remote(buckets=3)
    line = remote.member()
    for bucket in range(3):
        line.name(OWN + bucket, bucket=bucket)
    keys = [key_in(bucket, 3) for bucket in range(3)]
    payload, count = make_batch(
        *[
            (OWN + n, 1, 2, 0, [make_record(key, b"%d" % n, stamp=m) for m in (1, 2)])
            for n, key in reversed(list(enumerate(keys)))
        ],
        (0, 1, 1, 0, [make_record(b"own", b"own")]),
    )
    line.session.receive_data(_core.pack_frame(BATCH, payload, 0, count))
    assert remote.applied == ["2", "2", "1", "1", "0", "0", "own"]
    assert remote.streams.last(remote.name, 3) == [(1, 2)] * 3 and line.memory.last() == [1, 0]


# Where a stream begins, holes and gaps


def test_a_stream_that_is_not_known_begins_behind_what_is_acknowledged():
    remote = Remote()
    remote.member().name().send(51, 60, acknowledged=50)
    assert remote.applied == numbers(51, 60)


def test_what_another_receiver_of_the_site_has_between_is_passed_over():
    remote = Remote()
    remote.member().name().send(1, 10)
    remote.member().name().send(91, 100, acknowledged=90)
    assert remote.applied == numbers(1, 10) + numbers(91, 100) and remote.last() == (1, 100)


@pytest.mark.parametrize("acknowledged", [0, 5, 89])
def test_a_gap_beyond_what_is_acknowledged_is_refused_with_the_sequence_that_is_expected(acknowledged):
    remote = Remote()
    remote.member().name().send(1, 10)
    line = remote.member().name()
    assert REWIND in line.refused(91, 100, acknowledged=acknowledged, match="a gap before sequence 91")
    assert remote.applied == numbers(1, 10)


def test_a_section_goes_on_where_its_own_connection_ended_whatever_another_member_brought():
    remote = Remote()
    line = remote.member().name()
    line.send(1, 10)
    remote.member().name().send(1, 100)
    line.refused(21, 30, match="a gap before sequence 21")
    line = line.again().name()
    line.send(11, 20, acknowledged=10)
    line.refused(15, 30, match="behind one through 20")
    assert remote.applied == numbers(1, 100)


def test_holes_of_one_member_that_another_one_has_as_events_are_not_applied_late():
    remote = Remote()
    remote.member().name().send(1, 5, holes={2, 5})  # Conflated: a later event of the key is in both queues.
    remote.member().name().send(1, 9)
    assert remote.applied == ["1", "3", "4", "6", "7", "8", "9"]


def test_an_own_partition_is_known_to_its_queue_alone():
    remote = Remote()
    remote.member().send(1, 3, partition=0)
    remote.member().send(1, 3, partition=0)
    assert remote.applied == numbers(1, 3) * 2


def test_a_member_that_repeats_is_not_answered_before_the_disk_has_what_another_one_brought(tmp_path):
    remote, waits = Remote(), []
    remote.core = _core.RegionCore(remote.name, _core.Clock(), site=2)

    def wait():
        """The first member waits for the disk. The second one repeats the event, and does so too."""
        waits.append(remote.core.log_state()["pending"])
        if len(waits) == 1:
            remote.member().name().send(1, 1)
        else:
            remote.core.commit_once()

    remote.core.open_log(str(tmp_path), log_id=1, wait=wait)
    remote.member().name().send(1, 1)
    assert waits == [1, 1] and remote.core.log_state()["pending"] == 0
    assert remote.counts.counts()["duplicates_skipped"] == 1


# Lives


def test_a_later_timeline_begins_with_sequence_1_again():
    remote = Remote()
    line = remote.member().name(timeline=1)
    line.send(1, 10)
    line.name(timeline=2)
    line.send(1, 3)
    line.send(4, 4)
    assert remote.applied == numbers(1, 10) + numbers(1, 4) and remote.last() == (2, 4)


def test_the_failures_of_an_earlier_timeline_are_not_told_of_a_later_one():
    remote = Remote()
    remote.failing = {"2"}
    line = remote.member().name(timeline=1)
    assert line.send(1, 3) == [2]
    remote.failing = set()
    assert line.name(timeline=2).send(1, 3) == [] and remote.streams.failures == 0


def test_what_comes_of_an_earlier_timeline_is_applied_and_forgotten():
    remote = Remote()
    remote.failing = {"2"}
    remote.member().name(timeline=7).send(1, 5)
    remote.applied.clear()
    late = remote.member().name(timeline=3)
    assert late.send(1, 3) == [2] and late.send(4, 6) == []
    assert late.again().name(timeline=3).send(2, 4, acknowledged=1) == [2]
    assert remote.applied == ["1", "3", "4", "5", "6", "3", "4"]
    assert remote.last() == (7, 5) and remote.streams.failures == 1
    late.refused(8, 9, match="a gap before sequence 8")


def test_a_name_alone_does_not_begin_a_timeline():
    remote = Remote()
    line = remote.member().name(timeline=1)
    line.send(1, 5)
    remote.member().name(timeline=1 << 63)
    line.send(6, 7)
    assert remote.last() == (1, 7)


# What is checked


@pytest.mark.parametrize(
    ("partition", "stream", "why"),
    [
        (1, {}, "partition 1 cannot be a stream of a sender with 2 partitions"),
        (65536, {}, "partition 65536 cannot be a stream"),
        (OWN, {"bucket": 1}, "bucket 1 of 1"),
        (OWN, {"buckets": 0}, "bucket 0 of 0"),
        (OWN, {"buckets": 4097}, "bucket 0 of 4097"),
        (OWN, {"timeline": 0}, "timeline 0 of bucket 0"),
        (OWN, {"region": 2}, "region number 2, which was not named"),
        (OWN + 1, {"timeline": 5}, "timeline 5 of its stream is named behind timeline 5"),
        (OWN + 1, {"timeline": 4}, "timeline 4 of its stream is named behind timeline 5"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_in_words(partition, stream, why):
    line = Remote().member().name(OWN + 1, timeline=5)
    with pytest.raises(ProtocolError, match=why):
        line.name(partition, **stream)
    answers = split_frames(line.session.data_to_send())
    assert [frame.type for frame in answers] == [ERROR] and why.encode() in answers[0].payload


def test_the_name_of_a_stream_has_the_bytes_that_the_documentation_shows():
    page = (ROOT / "docs" / "wire_format.md").read_text()
    (example,) = [block for block in page.split("```") if "STREAM, partition 1" in block]
    shown = bytes.fromhex("".join(line.split("   ")[0] for line in example.strip().splitlines()))
    assert shown == make_stream(1, region=1, bucket=2, buckets=7, timeline=5)


@pytest.mark.parametrize("length", [0, 8, 15, 17, 24])
def test_the_name_of_a_stream_has_one_length(length):
    line = Remote().member()
    with pytest.raises(ProtocolError, match=f"name of a stream of {length} bytes"):
        line.session.receive_data(_core.pack_frame(STREAM, bytes(length), OWN))


def test_the_highest_partition_can_be_a_stream():
    remote = Remote()
    remote.member().name(65535).send(1, 2, partition=65535)
    assert remote.applied == ["1", "2"]


@pytest.mark.parametrize("partition", [OWN + 1, OWN + 7, 65535, 65536, (1 << 32) - 1])
def test_a_section_of_a_partition_that_was_not_named_ends_the_connection(partition):
    line = Remote().member().name()
    line.refused(1, 1, partition=partition, match="for which no stream was named")


def test_a_stream_is_named_on_each_connection():
    line = Remote().member().name()
    line.send(1, 1)
    line.again().refused(2, 2, match="for which no stream was named")


def test_an_event_of_another_bucket_or_region_ends_the_connection():
    remote = Remote(buckets=3)
    line = remote.member().name(bucket=1)
    line.refused(1, 1, key=key_in(2, 3), match="event 2/1 is of another region or bucket")
    line = line.again().name(bucket=1)
    line.session.receive_data(_core.pack_frame(REGION, b"other", 3) + make_stream(OWN + 1, region=3))
    line.refused(1, 1, partition=OWN + 1, key=key_in(1, 3), match="of another region or bucket")
    assert remote.applied == []


# What senders send


def kinds(data):
    return [frame.type for frame in split_frames(data)]


@pytest.mark.parametrize("serial", [False, True])
def test_a_stream_is_named_before_its_first_section_on_each_connection(serial):
    with members(buckets=3, serial=serial) as (sender, _remote, site):
        sender.lead()
        sender.put("1", key="a")
        data = sender.sent()
        assert kinds(data) == [REGION, STREAM, BATCH]
        name = read_stream(split_frames(data)[1])
        bucket, (region, _, _) = site.bucket_of("a"), split_frames(data)
        assert (
            name == (sender.first + bucket, region.id, bucket, 3, TIMELINE) and sender.first >= sender.queue.partitions
        )
        sender.put("2", key="a")
        assert kinds(sender.sent()) == [BATCH]
        sender.reconnect()
        assert kinds(sender.sent()) == [REGION, STREAM, BATCH]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_a_new_sending_member_goes_on_where_the_last_one_was(serial, compress):
    with members(2, buckets=5, serial=serial, compress=compress) as (old, new, remote, site):
        values = [f"{n % 9} {n}" for n in range(100)]
        for value in values:
            old.put(value, key=value.split()[0])
        all_there((old, new), 100)
        old.lead()
        while data := old.sent():
            old.answer_to(data)  # The answers are lost: the member dies.
        assert len(old.queue) == 100
        new.lead()
        new.settle()
        assert len(new.queue) == 0 and remote.counts.counts()["duplicates_skipped"] == 100
        new.put("0 101", key="0")
        all_there([new], 1)
        new.settle()
        assert sorted(remote.applied) == sorted([*values, "0 101"])
        for bucket in range(5):
            own = [value for value in [*values, "0 101"] if site.bucket_of(value.split()[0]) == bucket]
            assert [value for value in remote.applied if value in own] == own


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("serial", [False, True])
def test_members_that_send_at_the_same_time_bring_each_event_once(serial, seed):
    chance = random.Random(seed)
    with members(2, buckets=2, serial=serial) as (one, other, remote, _):
        for sender in (one, other):
            sender.lead()
        puts = 0
        for _ in range(60):
            sender = chance.choice((one, other))
            what = chance.random()
            if what < 0.4:
                for _ in range(chance.randrange(1, 12)):
                    one.put(puts, key=f"k{puts % 5}")
                    puts += 1
            elif what < 0.9:
                answers = sender.answer_to(sender.sent())
                if chance.random() < 0.7:
                    sender.session.receive_data(answers, 1)
                else:
                    sender.reconnect()
            else:
                sender.reconnect()
        for sender in (one, other):
            sender.reconnect()
            eventually(lambda sender=sender: sender.settle() or len(sender.queue) == 0)
        assert sorted(map(int, remote.applied)) == list(range(puts))
        for key in range(5):
            own = [int(value) for value in remote.applied if int(value) % 5 == key]
            assert own == sorted(own)


def test_a_failure_that_was_told_to_a_member_that_died_is_told_to_the_next_one():
    with members(2) as (old, new, remote, _):
        remote.failing = {"2"}
        old.put(1, 2, 3)
        all_there((old, new), 3)
        old.lead().answer_to(old.sent())
        new.lead().settle()
        assert len(new.parked) == 1 and new.queue.counts()["parked"] == 1 and len(new.queue) == 0
        assert remote.applied == ["1", "3"]


def test_own_partitions_and_streams_go_in_one_batch():
    with members(buckets=2) as (sender, remote, _):
        alone = _core.RegionCore(f"alone {remote.name}", _core.Clock(), site=1, buckets=2)
        alone.attach([sender.queue])
        sender.lead()
        alone.put("a", "own")
        sender.put("shared")
        frames = split_frames(sender.sent())
        assert sorted(frame.type for frame in frames) == [REGION, REGION, BATCH, STREAM] and frames[-1].type == BATCH
        partitions = [section.partition for section in read_batch(frames[-1].payload)]
        assert len(partitions) == 2 and min(partitions) < sender.first <= max(partitions)


def test_holes_and_batches_of_nothing_but_filtered_events_keep_the_numbering():
    filters = _core.EventFilters(before_transmit=[lambda event: event.value != "x"])
    with members(filters=filters) as (sender, remote, _):
        sender.lead()
        sender.put("1", "x", "x", "2")
        sender.settle()
        sender.put(*["x"] * 20)
        sender.settle()
        sender.put("3")
        sender.settle()
        assert remote.applied == ["1", "2", "3"] and remote.last() == (TIMELINE, 25) and len(sender.queue) == 0


def begin_anew(sender, timeline, *, drops=True):
    """The bucket of a lone member begins another timeline."""
    if drops:
        sender.changelog.set_role(0, _core.REPLICA_ABSENT, timeline, 100 + timeline)
    sender.changelog.set_role(0, _core.REPLICA_TAKING_OVER, timeline, 101 + timeline)
    sender.changelog.set_role(0, _core.REPLICA_PRIMARY, timeline, 101 + timeline)


def test_a_bucket_that_begins_anew_is_named_again_and_its_events_are_new():
    with members() as (sender, remote, site):
        site.stop_carrying()
        sender.lead()
        sender.put(1, 2, 3)
        sender.settle()
        begin_anew(sender, TIMELINE + 1)
        sender.put(11, 12)
        data = sender.sent()
        assert kinds(data) == [STREAM, BATCH] and read_stream(split_frames(data)[0]).timeline == TIMELINE + 1
        sender.session.receive_data(sender.answer_to(data), 1)
        assert remote.applied == ["1", "2", "3", "11", "12"] and remote.last() == (TIMELINE + 1, 2)
        assert len(sender.queue) == 0


@pytest.mark.parametrize("failing", [False, True])
def test_an_acknowledgement_of_an_earlier_timeline_removes_and_parks_nothing(failing):
    told = []
    with members(filters=_core.EventFilters(after_acknowledgement=[told.append])) as (sender, remote, site):
        site.stop_carrying()
        sender.lead()
        if failing:
            remote.failing = {"2"}
        sender.put(1, 2, 3)
        late = sender.answer_to(sender.sent())
        begin_anew(sender, TIMELINE + 1)
        sender.put(11, 12, 13, 14)
        data = sender.sent()
        with pytest.raises(
            ProtocolError, match=f"began timeline {TIMELINE + 1} while events of timeline {TIMELINE} were on their way"
        ):
            sender.session.receive_data(late, 1)
        assert len(sender.queue) == 4 and len(sender.parked) == 0 and told == []
        assert stats.ledger(sender.queue.counts())["balanced"]
        sender.answer_to(data)
        sender.reconnect()
        sender.settle()
        assert [value for value in remote.applied if len(value) == 2] == ["11", "12", "13", "14"]
        assert len(sender.queue) == 0 and len(told) == 4


def test_events_that_stay_when_their_bucket_gets_a_later_timeline_are_sent_again_under_it():
    with members() as (sender, remote, site):
        site.stop_carrying()
        sender.lead()
        sender.put(1, 2, 3)
        late = sender.answer_to(sender.sent())
        begin_anew(sender, TIMELINE + 1, drops=False)
        assert len(sender.queue) == 3
        with pytest.raises(ProtocolError, match="were on their way"):
            sender.session.receive_data(late, 1)
        sender.reconnect()
        sender.settle()
        assert len(sender.queue) == 0 and remote.last() == (TIMELINE + 1, 3)


# How much is remembered


def test_a_sender_has_no_more_streams_than_a_site_can_have_buckets():
    remote = Remote()
    remote.member().name().send(1, 5)
    line = remote.member()
    names = [_core.pack_frame(REGION, b"wide%d" % n, 10 + n) for n in range(33)]
    line.session.receive_data(b"".join(names))
    for n in range(31):
        line.session.receive_data(make_stream(OWN + n, region=10 + n, buckets=4096))
    # One more takes the place of the region that no connection has named now.
    line.session.receive_data(make_stream(OWN + 31, region=10 + 31, buckets=4096))
    assert remote.streams.last(remote.name, 1) == [] and remote.streams.streams == 131072
    with pytest.raises(ProtocolError, match="131072 streams of this sender are connected"):
        line.session.receive_data(make_stream(OWN + 32, region=10 + 32, buckets=4096))
    before = _core.remembered_streams()
    del line
    remote.member().name().send(1, 1)
    assert _core.remembered_streams() == before - 4095


def hello(sender, numbering, site=1, dispatcher=0):
    return gateway.SenderHello(site, 2, "m1", sender, dispatcher, numbering, 0, OWN)


def test_the_queues_of_a_sender_share_its_streams_and_no_others_do():
    memory = AppliedMemory()
    with (
        memory.connected(hello("ln", 1)) as (one, _),
        memory.connected(hello("ln", 2)) as (other, _),
        memory.connected(hello("tk", 3)) as (another, _),
        memory.connected(hello("ln", 4, site=3)) as (elsewhere, _),
    ):
        assert one.streams is other.streams
        assert len({id(each.streams) for each in (one, another, elsewhere)}) == 3
    with memory.connected(hello("ln", 1)) as (again, _):
        assert again.streams is one.streams


def test_streams_of_senders_without_a_connection_make_room_for_others(monkeypatch):
    memory = AppliedMemory()
    remote = Remote()

    def streams_once(sender, numbering):
        with memory.connected(hello(sender, numbering)) as (source, _):
            Line(remote, source).name().send(1, 5)
            return source.streams

    with memory.connected(hello("connected", 1)) as (source, _):
        connected = Line(remote, source).name()
        connected.send(1, 5)
        gone = streams_once("gone", 2)
        monkeypatch.setattr(AppliedMemory, "STREAMS_LIMIT", _core.remembered_streams() - 1)
        streams_once("gone", 2)  # It comes back, so it is not the one to be forgotten.
        assert gone.last(remote.name, 1) == [(1, 5)]
        streams_once("other", 3)
        assert gone.last(remote.name, 1) == [] and source.streams.last(remote.name, 1) == [(1, 5)]
