"""What a member knows of the parked events of a sender that several members have: marks, comparisons, replays."""

from __future__ import annotations

import random

import pytest

from pywan import _core
from pywan.errors import ProtocolError

BUCKETS = 4
REGION = "parked index"
ALL = [(REGION, bytes([1] * BUCKETS))]
NONE = [(REGION, bytes(BUCKETS))]


def record(n: int, value: str = "value") -> bytes:
    encoded = _core.encode_object
    key, text, none = encoded(f"key {n}"), encoded(value), encoded(None)
    return _core.make_record(REGION, _core.UPDATE, key, text, none, ((n + 1) << 16, 1), 1, b"", (1, 1, n + 1))


class Member:
    def __init__(self) -> None:
        self.parked = _core.EventQueue("s (parked)", partitions=_core.PARK_PARTITIONS)
        self.queue = _core.EventQueue("s")
        self.queue.running = True
        self.index = _core.ParkedIndex(self.parked)

    def park(self, *numbers: int, reason: int = _core.FAILED_REGION_NOT_FOUND) -> None:
        for n in numbers:
            self.parked.append_record(record(n), reason)
        self.index.refresh()

    @property
    def keys(self) -> list[str]:
        return [key_of(each) for _, each in self.index.shown(ALL, 1000)]

    def marks(self) -> bytes:
        return self.index.marks(REGION, bytes([1] * BUCKETS))

    def acknowledge(self) -> None:
        """The remote site applies all that is queued."""
        taken = self.queue.peek_with_positions(0, 1000)
        if taken:
            self.queue.remove(0, taken[-1][0])

    def compare_with(self, leader: Member) -> None:
        """As a holder does it."""
        buckets = bytes([1] * BUCKETS)
        left, lacking, more = leader.index.compare(REGION, buckets, 0, 1, self.marks())
        self.index.leave(left)
        gone, wanted = self.index.lacking(more)
        leader.index.leave(gone)
        for to, source, marks in ((self, leader, wanted), (leader, self, lacking)):
            while marks:
                events, looked = source.index.copy(marks, 100)
                to.index.take(REGION, events)
                marks = marks[looked * _core.PARKED_MARK_BYTES :]


def key_of(record: bytes) -> str:
    return str(_core.decode_object(*_core.record_fields(record)["key"]))


def test_an_event_that_is_parked_twice_is_there_once():
    member = Member()
    member.park(1, 2)
    member.park(2, reason=_core.FAILED_OTHER)
    assert member.keys == ["key 1", "key 2"] and len(member.parked) == 2


def test_only_what_a_member_leads_is_counted_shown_dropped_and_replayed():
    member = Member()
    member.park(*range(20))
    of_bucket = {bucket: count for bucket, count, _ in member.index.sums(REGION, BUCKETS)}
    assert sum(of_bucket.values()) == 20
    led = [(REGION, bytes(bucket == 2 for bucket in range(BUCKETS)))]
    assert member.index.count(ALL) == 20 and member.index.count(NONE) == 0 and member.index.count([]) == 20
    assert member.index.count(led) == len(member.index.shown(led, 100)) == of_bucket[2]
    assert member.index.replay(member.queue, NONE) == 0 and member.index.drop(NONE) == b""
    assert member.index.replay(member.queue, led) == of_bucket[2] == len(member.queue)
    assert len(member.index.drop(ALL)) == (20 - of_bucket[2]) * _core.PARKED_MARK_BYTES
    assert len(member.parked) == of_bucket[2]  # Those that are queued again stay until they have left.


def test_events_are_shown_and_replayed_in_the_order_of_their_versions():
    member = Member()
    numbers = list(range(300))
    random.Random(5).shuffle(numbers)
    member.park(*numbers)
    assert member.keys == [f"key {n}" for n in range(300)]
    assert [key_of(each) for _, each in member.index.shown(ALL, 7)] == [f"key {n}" for n in range(7)]
    member.index.replay(member.queue, ALL)
    assert [key_of(each) for each in member.queue.peek(0, 1000)] == [f"key {n}" for n in range(300)]


def test_a_replayed_event_leaves_when_it_has_left_the_queue():
    member = Member()
    member.park(1, 2, 3)
    assert member.index.replay(member.queue, ALL) == 3
    assert member.keys == [] and len(member.parked) == 3
    assert member.index.finish(member.queue) == b""
    assert member.index.replayed == 3 and member.index.replay(member.queue, ALL) == 0
    member.acknowledge()
    assert len(member.index.finish(member.queue)) == 3 * _core.PARKED_MARK_BYTES
    assert len(member.parked) == member.index.replayed == 0
    member.park(2)  # It came twice, and was refused: it has left all the same.
    assert member.keys == [] and len(member.parked) == 0


def test_a_replayed_event_that_is_refused_again_stays_parked():
    member = Member()
    member.park(1, 2, 3)
    member.index.replay(member.queue, ALL)
    member.parked.append_record(record(2), _core.FAILED_OTHER)
    member.acknowledge()
    assert len(member.index.finish(member.queue)) == 2 * _core.PARKED_MARK_BYTES
    assert member.keys == ["key 2"] and len(member.parked) == 1
    assert member.index.shown(ALL, 1)[0][0] == _core.FAILED_OTHER


def test_a_withheld_event_stays_and_takes_its_masked_value_in_its_place():
    member = Member()
    member.park(1)
    member.park(2, reason=_core.FAILED_WITHHELD)
    member.index.replace(record(2, "masked"), _core.FAILED_OTHER)
    member.park(3, reason=_core.FAILED_WITHHELD)
    assert member.keys == ["key 1", "key 2", "key 3"]
    assert member.index.replay(member.queue, ALL, False, _core.FAILED_WITHHELD) == 2
    assert member.keys == ["key 3"]
    values = [_core.decode_object(*_core.record_fields(each)["value"]) for each in member.queue.peek(0, 9)]
    assert values == ["value", "masked"]


def test_two_members_have_the_same_after_a_comparison():
    for seed in range(20):
        rng = random.Random(seed)
        holder, leader = Member(), Member()
        here, there = ({n for n in range(200) if rng.random() < 0.5} for _ in range(2))
        holder.park(*here)
        leader.park(*there)
        gone = {n for n in here | there if rng.random() < 0.2}
        for n in gone:  # They have left, and one of the two knows that.
            member = rng.choice([holder, leader])
            mark = next((m for m in marks_of(member) if m[1] == n), None)
            if mark is None:
                gone = gone - {n}
            else:
                member.index.leave(mark[0])
        holder.compare_with(leader)
        assert holder.keys == leader.keys == [f"key {n}" for n in sorted((here | there) - gone)]
        assert holder.index.sums(REGION, BUCKETS) == leader.index.sums(REGION, BUCKETS)
        assert [reason for reason, _ in holder.index.shown(ALL, 1000)] == [
            _core.FAILED_REGION_NOT_FOUND for _ in holder.keys
        ]


def marks_of(member: Member) -> list[tuple[bytes, int]]:
    """Returns (mark, number of the event) of all that is parked."""
    found = []
    marks = member.marks()
    for at in range(0, len(marks), _core.PARKED_MARK_BYTES):
        mark = marks[at : at + _core.PARKED_MARK_BYTES]
        events, _ = member.index.copy(mark, 1)
        found.append((mark, int(key_of(events[8:]).split()[-1])))
    return found


def test_parts_of_the_marks_are_all_of_them():
    member = Member()
    member.park(*range(100))
    buckets = bytes([1] * BUCKETS)
    parts = [member.index.marks(REGION, buckets, part, 3) for part in range(3)]
    size = _core.PARKED_MARK_BYTES
    assert all(parts) and sum(map(len, parts)) == 100 * size
    each = {mark[at : at + size] for mark in parts for at in range(0, len(mark), size)}
    assert len(each) == 100


def test_what_others_take_out_of_the_queue_has_left():
    member, other = Member(), Member()
    member.park(1, 2)
    other.park(1, 2)
    assert member.parked.clear() == 2
    member.index.refresh()
    other.compare_with(member)
    assert member.keys == other.keys == []


@pytest.mark.parametrize("events", [b"x", b"\1" * 30, bytes(8) + b"\0" * 100])
def test_what_is_no_parked_event_is_refused(events):
    member = Member()
    with pytest.raises(ProtocolError):
        member.index.take(REGION, events)
    with pytest.raises(ProtocolError):
        member.index.leave(b"12345")
    with pytest.raises(ProtocolError):
        _core.of_region(events[:30], REGION)
    assert member.keys == []
