"""Events of other sites for regions that several members hold: what a receiver shares out, and what it acknowledges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pywan import _core
from pywan.errors import ProtocolError
from pywan.testing.waiting import LIMIT_S, eventually
from support.event_calls import FAR, NOW, event
from support.records import (
    BATCH,
    DESTROY,
    ERROR,
    FRAME_ACK,
    FUTURE_STAMP,
    REGION,
    REGION_NOT_FOUND,
    make_batch,
    make_stream,
    read_ack,
    split_frames,
)
from support.shared_site import Call, SharedSite

PARTITIONS = 5


class Sender:
    """What a sender says over one connection after the other to the receiver of one member, and what it hears."""

    def __init__(self, core: Any, regions: dict[str, Any] | None = None) -> None:
        self.regions = {"r": core} if regions is None else regions
        self.memory, self.counts = _core.SourceMemory(PARTITIONS), _core.ReceiverCounts()
        self.connect()

    def connect(self) -> None:
        self.session = _core.ReceiverSession(self.memory, self.counts, self.regions.get, None)
        self.session.driven_by(_core.monotonic_us)
        names = enumerate(self.regions, 1)
        self.session.receive_data(
            b"".join(_core.pack_frame(REGION, name.encode(), n, 0) for n, name in names), _core.monotonic_us()
        )
        self.batch = 0

    def send(self, *sections: Any, **more: Any) -> None:
        payload, count = make_batch(*sections, **more)
        self.session.receive_data(_core.pack_frame(BATCH, payload, self.batch, count), _core.monotonic_us())
        self.batch += 1

    def receive(self) -> list[Any]:
        """The frames that the receiver says, when all that it has handled counts."""
        frames = []
        while data := self.session.data_to_send(_core.monotonic_us()):
            frames += split_frames(data)
        return [frame for frame in frames if frame.type in (FRAME_ACK, ERROR)]

    def acknowledged(self) -> list[tuple[int, list[tuple[int, int, int]]]]:
        """(batch, failures) of each acknowledgement."""
        return [(frame.id, read_ack(frame.payload)[2]) for frame in self.receive()]


class Members:
    """The memory of the streams of a sending site, and the connections of its members. Each names the one stream."""

    def __init__(self, core: Any) -> None:
        self.core, self.streams = core, _core.StreamMemory()

    def connect(self, timeline: int = 1) -> Sender:
        sender = Sender(self.core)
        sender.memory = _core.SourceMemory(PARTITIONS, self.streams)
        sender.connect()
        self.name(sender, timeline)
        return sender

    @staticmethod
    def name(sender: Sender, timeline: int) -> None:
        sender.session.receive_data(make_stream(PARTITIONS, timeline=timeline), _core.monotonic_us())

    @property
    def last(self) -> tuple[int, int]:
        """The newest timeline of the stream, and its last sequence that counts."""
        return self.streams.last("r", 1)[0]


def events(first: int, count: int, **more: Any) -> list[bytes]:
    return [event(f"k{n}", b"value %d" % n, stamp=NOW + n, **more) for n in range(first, first + count)]


def spread(site: SharedSite) -> None:
    """Each member leads some of the buckets."""
    for bucket in range(site.buckets):
        site.lead(bucket, bucket % len(site.members))


@pytest.fixture
def site() -> Iterator[SharedSite]:
    with SharedSite(3) as site:
        spread(site)
        yield site


def contents(site: SharedSite, keys: Any) -> list[list[Any]]:
    return [[core.lookup(key) for key in keys] for core in site.cores]


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_batch_is_shared_out_by_bucket_and_acknowledged_once(site: SharedSite, who: int) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[who])
    for n in range(4):
        sender.send((0, 1 + 100 * n, 100 + 100 * n, 0, events(100 * n, 100)))
    assert sender.memory.last()[0] == 0
    assert sender.acknowledged() == [(3, [])]
    assert sender.memory.last()[0] == 400
    eventually(lambda: len({str(each) for each in contents(site, [f"k{n}" for n in range(400)])}) == 1)
    assert site.cores[0].lookup("k7")[:3] == (b"value 7", NOW + 7, 9)
    counts = sender.counts.counts()
    assert (counts["events_received"], counts["conflicts"], counts["update_requests"]) == (400, 0, 400)
    assert sum(core.applied for core in site.cores) == 400


def test_nothing_is_acknowledged_before_all_replicas_have_it(site: SharedSite) -> None:
    sender = Sender(site.cores[0])
    sender.send((0, 1, 100, 0, events(0, 100)))
    received = Call(sender.acknowledged)
    eventually(lambda: all(site.members[site.leaders[b]].changelog.log_end(b) for b in range(site.buckets)))
    assert not received.is_done and sender.memory.last()[0] == 0
    assert sender.counts.counts()["events_received"] == 0
    site.keep_carrying()
    assert received.result() == [(0, [])]


def test_events_are_taken_while_those_before_are_on_their_way(site: SharedSite) -> None:
    """A receiver that reads nothing while it waits would leave the other members without work, and they it."""
    sender = Sender(site.cores[0])
    sender.send((0, 1, 8200, 0, events(0, 8200)))
    before = sum(site.members[0].changelog.log_end(bucket) for bucket in range(site.buckets))
    sender.send((0, 8201, 8300, 0, events(8200, 100)))
    assert sum(site.members[0].changelog.log_end(bucket) for bucket in range(site.buckets)) > before
    assert sender.memory.last()[0] == 0
    site.keep_carrying()
    assert sender.acknowledged() == [(0, []), (1, [])]
    assert sender.memory.last()[0] == 8300


def test_events_of_a_bucket_keep_their_order(site: SharedSite) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[0])
    for n in range(20):
        sender.send((0, 1 + 30 * n, 30 + 30 * n, 0, [event(f"k{k}", b"%d" % n, stamp=NOW + n) for k in range(30)]))
    assert sender.acknowledged() == [(19, [])]
    assert sender.counts.counts()["conflicts"] == 0
    assert {core.lookup("k3")[0] for core in site.cores} == {b"19"}
    assert sum(core.applied for core in site.cores) == 600


def test_failures_come_back_with_their_reasons_in_the_order_of_the_events(site: SharedSite) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[0], {"r": site.cores[0], "missing": None})
    records = events(0, 40)
    for n in (3, 4, 20):
        records[n] = event(f"k{n}", stamp=FAR)
    records[30] = event("k30", region=2)
    # The receiver believes the stamp, and the primaries do not: their clocks are right.
    sender.session = _core.ReceiverSession(sender.memory, sender.counts, sender.regions.get, None, max_drift_ms=2**40)
    sender.session.receive_data(b"".join(_core.pack_frame(REGION, name, n, 0) for n, name in ((1, b"r"), (2, b"no"))))
    sender.send((0, 1, 40, 0, records), (1, 1, 1, 0, [event("k3", stamp=FAR)]))
    ((_, failures),) = sender.acknowledged()
    expected = [(0, FUTURE_STAMP, 4), (0, FUTURE_STAMP, 5), (0, FUTURE_STAMP, 21), (0, REGION_NOT_FOUND, 31)]
    elsewhere = [n for n in (3, 4, 20) if site.leaders[site.bucket_of(f"k{n}")] != 0]
    told = [each for each in failures if each[1] == FUTURE_STAMP]
    assert [each for each in told if each[0] == 0] == [each for each in expected if each[2] - 1 in elsewhere]
    assert (0, REGION_NOT_FOUND, 31) in failures and failures == sorted(failures, key=lambda each: (each[0], each[2]))
    assert sender.counts.counts()["exceptions_occurred"] == len(failures)
    assert sender.memory.failures == len(failures)


def test_what_fails_is_told_again_after_a_lost_acknowledgement(site: SharedSite) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[0])
    records = [*events(0, 10), event("k3", stamp=FAR)]
    sender.send((0, 1, 11, 0, records))
    assert sender.acknowledged() == [(0, [(0, FUTURE_STAMP, 11)])]
    sender.connect()
    sender.send((0, 1, 11, 0, records), duplicates=11)
    assert sender.acknowledged() == [(0, [(0, FUTURE_STAMP, 11)])]
    counts = sender.counts.counts()
    assert (counts["events_received"], counts["duplicates_skipped"]) == (11, 11)


def test_a_successor_repeats_what_its_predecessor_was_not_told_of(site: SharedSite) -> None:
    """An event is known only when it counts: the new connection must not acknowledge what the old one only sent."""
    old = Sender(site.cores[0])
    old.send((0, 1, 100, 0, events(0, 100)))
    waiting = Call(old.receive)
    eventually(lambda: all(site.members[site.leaders[b]].changelog.log_end(b) for b in range(site.buckets)))
    new = Sender(site.cores[0])
    new.memory, new.counts = old.memory, old.counts
    old.session.stop()
    assert waiting.result() == []
    new.connect()
    new.send((0, 1, 100, 0, events(0, 100)), duplicates=100)
    answer = Call(new.acknowledged)
    eventually(lambda: not answer.is_done)
    assert old.memory.last()[0] == 0
    site.keep_carrying()
    assert answer.result() == [(0, [])]
    assert sum(core.applied for core in site.cores) == 100
    counts = new.counts.counts()
    assert (counts["events_received"], counts["possible_duplicates"], counts["conflicts"]) == (100, 100, 0)


def test_a_primary_that_changes_while_events_wait_costs_none(site: SharedSite) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[0])
    stop = threading.Event()

    def move() -> None:
        turn = 0
        while not stop.wait(0.002):
            turn += 1
            for bucket in range(site.buckets):
                site.lead(bucket, (bucket + turn) % 3)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        at, deadline = 1, _core.monotonic_us() + int(LIMIT_S * 1e6)
        lost = 0
        while at <= 3000:
            assert _core.monotonic_us() < deadline
            try:
                sender.send((0, at, at + 99, at - 1, events(at - 1, 100)))
                assert sender.acknowledged()
                at += 100
            except ProtocolError:  # It lost its own part in a bucket: the sender sends again.
                lost += 1
                sender.connect()
                at = sender.memory.last()[0] + 1
    finally:
        stop.set()
        mover.join()
    assert len({str(each) for each in contents(site, [f"k{n}" for n in range(3000)])}) == 1
    assert all(site.cores[0].lookup(f"k{n}")[0] == b"value %d" % n for n in range(3000))


def test_without_a_primary_the_connection_ends_in_words_and_nothing_is_acknowledged() -> None:
    with SharedSite(2, timeout_s=0.3) as site:
        spread(site)
        for member in site.members:
            for bucket in range(site.buckets):
                member.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, 1, 99)
        sender = Sender(site.cores[0])
        sender.send((0, 1, 20, 0, events(0, 20)))
        with pytest.raises(ProtocolError, match=r"region 'r': bucket .* did not answer within"):
            sender.receive()
        assert sender.memory.last()[0] == 0 and sender.counts.counts()["events_received"] == 0


def test_replicas_that_stand_still_end_the_connection_after_the_limit_of_a_call() -> None:
    with SharedSite(2, timeout_s=0.3) as site:
        sender = Sender(site.cores[0])
        sender.send((0, 1, 20, 0, events(0, 20)))
        with pytest.raises(ProtocolError, match=r"the replicas of bucket . did not get its events within 0.3 s"):
            sender.receive()
        assert sender.memory.last()[0] == 0


def test_a_full_budget_takes_no_more_events_until_there_is_room() -> None:
    with SharedSite(2, budget_bytes=200_000) as site:
        sender = Sender(site.cores[0])
        sender.send((0, 1, 10, 0, [event(f"k{n}", bytes(30_000), stamp=NOW + n) for n in range(10)]))
        assert site.budgets[0].is_full
        more = Call(sender.send, (0, 11, 11, 10, [event("more")]))
        eventually(lambda: site.budgets[0].used()["changes"] > 200_000)
        assert not more.is_done
        site.keep_carrying()
        more.result()
        assert [each for each, _ in sender.acknowledged()][-1:] == [1]


def test_what_waits_for_other_members_counts_in_the_budget() -> None:
    with SharedSite(2, budget_bytes=50_000_000) as site:
        for bucket in range(site.buckets):
            site.lead(bucket, 1)
        site.keep_carrying()
        sender = Sender(site.cores[0])
        sender.send((0, 1, 10, 0, [event(f"k{n}", bytes(30_000), stamp=NOW + n) for n in range(10)]))
        assert site.budgets[0].used()["calls"] >= 300_000
        assert sender.acknowledged() == [(0, [])]
        assert site.budgets[0].used()["calls"] == 0


def test_more_bytes_than_go_together_are_shared_out_within_a_batch() -> None:
    with SharedSite(2) as site:
        spread(site)
        site.keep_carrying()
        sender = Sender(site.cores[0])
        big = [event(f"k{n}", bytes(3_000_000), stamp=NOW + n) for n in range(12)]
        sender.send((0, 1, 12, 0, big))
        assert 0 < sender.memory.last()[0] < 12
        assert sender.acknowledged() == [(0, [])]
        eventually(lambda: all(len(core.lookup(f"k{n}")[0]) == 3_000_000 for n in range(12) for core in site.cores))


def test_events_of_one_member_beside_those_of_several_are_acknowledged_together(site: SharedSite) -> None:
    alone = _core.RegionCore("alone", _core.Clock(), site=1, member=1)
    sender = Sender(None, {"r": site.cores[0], "alone": alone})
    sender.send((1, 1, 1, 0, [event("a", region=2)]))
    assert sender.acknowledged() == [(0, [])]
    sender.send((0, 1, 20, 0, events(0, 20)), (1, 2, 2, 0, [event("b", region=2)]))
    sender.send((1, 3, 3, 0, [event("c", region=2)]))
    assert alone.lookup("c") is not None
    waiting = Call(sender.acknowledged)
    eventually(lambda: all(site.members[site.leaders[b]].changelog.log_end(b) for b in range(site.buckets)))
    assert not waiting.is_done
    site.keep_carrying()
    assert waiting.result() == [(2, [])]
    assert sender.memory.last()[:2] == [20, 3]


def test_a_destroy_of_another_site_leaves_a_tombstone_everywhere(site: SharedSite) -> None:
    site.keep_carrying()
    sender = Sender(site.cores[0])
    sender.send((0, 1, 30, 0, events(0, 30)))
    sender.send((0, 31, 60, 0, [event(f"k{n}", b"", stamp=NOW + 100, operation=DESTROY) for n in range(30)]))
    sender.send((0, 61, 90, 0, events(0, 30)))
    assert sender.acknowledged() == [(2, [])]
    eventually(
        lambda: all(
            core.lookup(f"k{n}") is None or not core.lookup(f"k{n}")[3] for n in range(30) for core in site.cores
        )
    )
    assert sender.counts.counts()["conflicts"] == 30


def test_rounds_of_one_stream_by_two_members_count_each_for_itself(site: SharedSite) -> None:
    members = Members(site.cores[0])
    one, other = members.connect(), members.connect()
    one.send((PARTITIONS, 1, 100, 0, events(0, 100)))
    other.send((PARTITIONS, 1, 60, 0, events(0, 60)), duplicates=60)
    assert members.last == (1, 0)
    site.keep_carrying()
    assert other.acknowledged() == [(0, [])]
    assert members.last == (1, 60)
    other.send((PARTITIONS, 61, 90, 60, events(60, 30)))
    assert one.acknowledged() == [(0, [])]
    assert members.last == (1, 100)
    assert other.acknowledged() == [(1, [])]
    assert members.last == (1, 100)
    other.send((PARTITIONS, 91, 100, 90, events(90, 10)))
    assert other.acknowledged() == [(2, [])]
    assert sum(core.applied for core in site.cores) == 100
    assert other.counts.counts()["duplicates_skipped"] == 10


def test_a_round_that_ends_in_a_later_timeline_of_its_stream_notes_nothing_of_it(site: SharedSite) -> None:
    members = Members(site.cores[0])
    old, new = members.connect(timeline=1), members.connect(timeline=2)
    old.send((PARTITIONS, 1, 100, 0, [*events(0, 99), event("far", stamp=FAR)]))
    new.send((PARTITIONS, 1, 10, 0, events(200, 10)))
    site.keep_carrying()
    assert new.acknowledged() == [(0, [])]
    assert old.acknowledged() == [(0, [(PARTITIONS, FUTURE_STAMP, 100)])]
    assert members.last == (2, 10) and members.streams.failures == 0
    assert all(site.cores[0].lookup(f"k{n}") for n in range(99))


def test_a_stream_is_named_anew_when_what_is_under_way_has_ended(site: SharedSite) -> None:
    """An acknowledgement says partition and sequence of what failed. It cannot tell two timelines apart."""
    site.keep_carrying()
    members = Members(site.cores[0])
    sender = members.connect(timeline=1)
    records = [*events(0, 9), event("far", stamp=FAR)]
    sender.send((PARTITIONS, 1, 10, 0, records))
    assert members.last == (1, 0)
    members.name(sender, 2)
    assert members.last == (1, 10) and members.streams.failures == 1
    sender.send((PARTITIONS, 1, 10, 0, records))
    assert sender.acknowledged() == [(n, [(PARTITIONS, FUTURE_STAMP, 10)]) for n in range(2)]
    assert members.last == (2, 10) and members.streams.failures == 1


def test_a_timeline_that_begins_while_a_section_of_an_earlier_one_waits_stays_as_it_is() -> None:
    with SharedSite(2) as site:
        for bucket in range(site.buckets):
            site.lead(bucket, 1)
        members = Members(site.cores[0])
        old, new = members.connect(timeline=1), members.connect(timeline=2)
        big = [event(f"k{n}", bytes(3_000_000), stamp=NOW + n) for n in range(8)]
        waiting = Call(old.send, (PARTITIONS, 1, 9, 0, [*big, event("far", stamp=FAR)]))
        eventually(lambda: any(site.members[1].changelog.log_end(bucket) for bucket in range(site.buckets)))
        new.send((PARTITIONS, 1, 3, 0, events(100, 3)))
        assert members.last == (2, 0) and not waiting.is_done
        site.keep_carrying()
        waiting.result()
        assert new.acknowledged() == [(0, [])]
        assert old.acknowledged() == [(0, [(PARTITIONS, FUTURE_STAMP, 9)])]
        assert members.last == (2, 3) and members.streams.failures == 0
        assert all(len(site.cores[1].lookup(f"k{n}")[0]) == 3_000_000 for n in range(8))


@pytest.fixture
def waiting_run() -> Iterator[tuple[SharedSite, Members, Sender, Call]]:
    """A batch fills two rounds. Then comes a section of a stream, of one event that fails: it waits for the first of
    these rounds before the event is handled, and other connections may use the memory of the stream."""
    with SharedSite(2) as site:
        for bucket in range(site.buckets):
            site.lead(bucket, 1)
        members = Members(site.cores[0])
        sender = members.connect(timeline=1)
        big = [event(f"k{n}", bytes(3_000_000), stamp=NOW + n) for n in range(4)]
        failing = event("far", bytes(3_000_000), stamp=FAR)
        sending = Call(sender.send, (0, 1, 4, 0, big), (PARTITIONS, 1, 1, 0, [failing]))
        eventually(lambda: members.last == (1, 0))  # The section has begun.
        yield site, members, sender, sending


def test_what_fails_in_an_earlier_timeline_is_not_remembered_in_a_later_one(
    waiting_run: tuple[SharedSite, Members, Sender, Call],
) -> None:
    site, members, old, sending = waiting_run
    new = members.connect(timeline=2)
    new.send((PARTITIONS, 1, 3, 0, events(100, 3)))
    assert members.last == (2, 0) and not sending.is_done
    site.keep_carrying()
    sending.result()
    assert members.last == (2, 0) and members.streams.failures == 0
    assert old.acknowledged() == [(0, [(PARTITIONS, FUTURE_STAMP, 1)])]
    assert new.acknowledged() == [(0, [])]
    assert members.last == (2, 3) and members.streams.failures == 0


def test_what_another_member_brought_while_a_section_waited_is_known(
    waiting_run: tuple[SharedSite, Members, Sender, Call],
) -> None:
    site, members, one, sending = waiting_run
    other = members.connect(timeline=1)
    other.send((PARTITIONS, 1, 1, 0, [event("far", stamp=FAR)]))
    assert other.acknowledged() == [(0, [(PARTITIONS, FUTURE_STAMP, 1)])]
    assert members.last == (1, 1) and not sending.is_done
    site.keep_carrying()
    sending.result()
    assert one.acknowledged() == [(0, [(PARTITIONS, FUTURE_STAMP, 1)])]
    counts = one.counts.counts()
    assert (counts["duplicates_skipped"], counts["exceptions_occurred"]) == (1, 0)
    assert members.streams.failures == 1
