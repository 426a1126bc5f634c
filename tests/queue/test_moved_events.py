"""A region of one member, with events in queues, becomes a region of several: the events get into the streams of its
buckets, in order, each once, whatever is on its way; and whoever learns the region gets them."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading

import pytest

from pywan import _core
from pywan.errors import ConnectivityError
from pywan.testing.waiting import eventually
from support.core_sites import TwoSites
from support.fed_queues import balanced, first_of, lead, peek, queue_to, queued
from support.moved_regions import BUCKETS, name_numbers, region, serial, share
from support.records import BATCH, check_ledger, read_batch, read_record, split_frames
from support.repl_pair import BUCKETS as REPL_LINK_BUCKETS, EPOCH, TIMELINE, Member, Pair, Route, key_of


def own(queue):
    """The values that are in own partitions."""
    return [read_record(record).value for number, _, record in queue.records(100_000) if number < queue.partitions]


@pytest.mark.parametrize("order", ["by key", "by bucket", "by thread"])
def test_what_is_queued_gets_into_the_streams_of_its_buckets_in_order(order):
    queue = queue_to(buckets=5) if order == "by bucket" else serial(2, by_thread=order == "by thread")
    core, other = region(queue), region(queue)
    for n in range(200):
        core.put(f"k{n % 20}", str(n))
        other.put("k", str(n))
    changelog = share(core)
    assert len(queue) == 400 and own(queue) == [b"%d" % n for n in range(200)]
    found = queued(queue, core.name)
    for bucket in range(BUCKETS):
        here = [(sequence, key.decode(), int(value)) for at, sequence, key, value in found if at == bucket]
        assert [sequence for sequence, _, _ in here] == list(range(1, len(here) + 1))
        for asked in {key for _, key, _ in here}:
            values = [value for _, key, value in here if key == asked]
            assert values == sorted(values) and len(values) == 10 and core.bucket_of(asked) == bucket
        state = changelog.state(bucket)
        assert state["log_end"] == state["high_watermark"] == len(here) and state["timeline"] == TIMELINE
    lead(queue, region=core.name)
    core.put("k1", "after")
    last = changelog.log_end(core.bucket_of("k1"))
    assert peek(queue, core.bucket_of("k1"), region=core.name) == list(range(1, last + 1))
    assert balanced(queue)


def test_a_queue_that_has_fewer_events_has_holes_and_all_go_on_in_the_numbering_of_the_bucket():
    more, fewer = queue_to(2, "more", 1), queue_to(3, "fewer", 1)
    core = region(more, fewer, buckets=1)
    for n in range(10):
        fewer.running = n < 4
        core.put(n, str(n))
    fewer.running = True
    changelog = share(core, 1)
    core.put("k", "after")
    assert changelog.log_end(0) == 11
    assert [sequence for _, sequence, *_ in queued(more, core.name)] == list(range(1, 12))
    assert [sequence for _, sequence, *_ in queued(fewer, core.name)] == [1, 2, 3, 4, 11]
    assert balanced(more) and balanced(fewer)


def test_a_queue_that_conflates_goes_on_conflating_and_one_that_overflowed_keeps_its_files(tmp_path):
    core = region(
        conflating := queue_to(2, "conflating", 1, conflate=True),
        overflowed := queue_to(3, "overflowed", 1, directory=tmp_path, memory_limit=0),
        buckets=1,
    )
    for n in range(600):
        core.put(n % 3, bytes(20_000) + b"%d" % n)
    assert overflowed.counts()["overflow_bytes"] > 5 << 20
    share(core, 1)
    assert len(conflating) == 6 and len(overflowed) == 600
    core.put(0, "after")
    assert len(conflating) == 6 and conflating.counts()["conflated"] == 595
    assert queued(conflating, core.name)[-1][3] == b"after"
    values = [value for *_, value in queued(overflowed, core.name)]
    assert values == [bytes(20_000) + b"%d" % n for n in range(600)] + [b"after"]
    first = first_of(lead(overflowed, region=core.name), core.name)
    while taken := overflowed.peek_with_positions(first, 100):
        overflowed.remove(first, taken[-1][0])
    assert overflowed.counts()["overflow_bytes"] == 0
    assert balanced(conflating) and balanced(overflowed)


def test_moved_events_hold_the_floor_of_the_sender_down_in_their_new_places():
    queue = queue_to()
    core, other = region(queue), region(queue)
    other.put("k", "v")
    for n in range(10):
        core.put(n, "v")
    stamp = _core.record_fields(queue.records()[1][2])["stamp"]
    assert queue.lowest_copied() == {}
    share(core)
    stamps = [
        _core.record_fields(record)["stamp"] for number, _, record in queue.records() if number >= queue.partitions
    ]
    assert queue.lowest_copied() == {1: min(stamps)} and stamp in stamps


class LaterShared(TwoSites):
    """The region of site 1 is this member's alone at first."""

    def __init__(self, buckets=BUCKETS):
        self.buckets = buckets
        super().__init__(history=False)
        self.region = _core.RegionCore(self.name, _core.Clock(), site=1, buckets=buckets)
        self.region.attach([self.queue])
        self.there = self.fast_region()
        self.memory = _core.SourceMemory(self.queue.partitions)
        self.reconnect()

    def share(self):
        self.changelog = share(self.region, self.buckets)

    def ledger(self):
        counts = self.queue.counts()
        check_ledger(counts)
        return counts

    def is_even(self):
        return all(self.there.get(key) == self.region.get(key) for key in (f"k{n}" for n in range(20)))


@pytest.fixture
def later():
    return LaterShared()


def put_some(sites, count=250, letter="v"):
    sites.put(*[(f"k{n % 20}", f"{letter}{n}") for n in range(count)])


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_is_on_its_way_leaves_again_as_a_possible_duplicate_and_counts_once(later, is_cut):
    put_some(later)
    data = later.sent()
    assert later.dispatcher.in_flight == 3
    answer = later.deliver(data)
    put_some(later, 30)
    later.share()
    assert own(later.queue) == [] and later.ledger()["events"] == 280
    if is_cut:
        later.reconnect()
    else:
        later.dispatcher.receive_data(answer)
    counts = later.ledger()
    assert later.dispatcher.in_flight == 0 and counts["events"] == 280 and counts["distributed"] == 0
    assert later.sent() == b""  # Nothing is sent again from here.
    lead(later.queue, region=later.name, in_order=True)
    later.settle()
    counts = later.ledger()
    assert counts["events"] == 0 and counts["distributed"] == counts["received"] == 280
    assert counts["possible_duplicates"] == 250 and later.is_even()


def test_events_that_a_filter_looks_at_while_the_region_is_shared_stay_where_they_are(later):
    """The filter runs without the queue's lock, between the peek and the laying out of the batch."""
    asked = []

    def filter_half(event):
        if not asked:
            later.share()
            put_some(later, 3000, "w")  # What lay where the events were would be written over.
        asked.append(event)
        return len(asked) % 2 == 1

    later.dispatcher.set_filters(_core.EventFilters(before_transmit=[filter_half]))
    put_some(later, 60)
    data = later.sent()
    assert len(asked) == 60 and later.ledger()["events"] == 3060
    assert sent_values(data) == [b"v%d" % n for n in range(0, 60, 2)]
    later.dispatcher.set_filters(None)
    later.dispatcher.receive_data(later.deliver(data))
    assert later.ledger()["events"] == 3060 and later.ledger()["filtered_transmit"] == 0
    lead(later.queue, region=later.name)
    later.settle()
    counts = later.ledger()
    assert counts["events"] == 0 and counts["distributed"] == 3060 and later.is_even()


def sent_values(data):
    """The values in the first batch."""
    batch = next(frame for frame in split_frames(data) if frame.type == BATCH)
    return [record.value for section in read_batch(batch.payload) for record in section.records]


@pytest.mark.parametrize("keeps", [True, False])
def test_events_that_a_filter_looks_at_while_their_bucket_begins_anew_stay_where_they_are(later, keeps):
    later.share()
    lead(later.queue, region=later.name)
    asked = []

    def begin_anew(event):
        if not asked:
            for bucket in range(BUCKETS):
                later.changelog.set_role(bucket, _core.REPLICA_LEARNER, TIMELINE, EPOCH + 1, 7)
                for role in (_core.REPLICA_TAKING_OVER, _core.REPLICA_PRIMARY):
                    later.changelog.set_role(bucket, role, TIMELINE + 1, EPOCH + 2)
            put_some(later, puts, "w")  # What lay where the events were would be written over.
        asked.append(event)
        return keeps

    puts = 3000 if keeps else 0
    later.dispatcher.set_filters(_core.EventFilters(before_transmit=[begin_anew]))
    put_some(later, 60)
    data = later.dispatcher.data_to_send(later.now_us)
    assert len(asked) == 60 and later.ledger()["forgotten"] == 60 and later.ledger()["events"] == puts
    assert sorted(sent_values(data)) == (sorted(b"v%d" % n for n in range(60)) if keeps else [])
    put_some(later, 10)
    assert later.ledger()["events"] == puts + 10 and later.queue.broken is None


def test_each_change_of_threads_that_go_on_is_queued_once_on_one_side_of_the_moment():
    queue = queue_to(buckets=5)
    core = region(queue)
    made, stop = [[], []], threading.Event()

    def work(who):
        for n in itertools.count():
            if stop.is_set():
                return
            while True:  # For a moment the buckets have no primary.
                with contextlib.suppress(ConnectivityError):
                    core.put(f"{who} {n % 50}", f"{who} {n}")
                    break
            made[who].append(b"%d %d" % (who, n))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(len(values) > 500 for values in made))
    changelog = share(core)
    before = [len(values) for values in made]
    eventually(lambda: all(len(values) > count + 500 for values, count in zip(made, before, strict=True)))
    stop.set()
    for thread in threads:
        thread.join()
    found = queued(queue, core.name)
    assert own(queue) == [] and balanced(queue)
    assert sorted(value for *_, value in found) == sorted(made[0] + made[1])
    for bucket in range(BUCKETS):
        sequences = [sequence for at, sequence, *_ in found if at == bucket]
        assert sequences == list(range(1, changelog.log_end(bucket) + 1))


# Whoever learns the region


class LaterPair(Pair):
    def __init__(self):
        self.queues = [queue_to(2, "ln", REPL_LINK_BUCKETS) for _ in range(2)]
        name = f"later {next(name_numbers)}"
        here = Member(name, is_shared=False)
        here.core.attach(self.queues[:1])
        for n in range(400):
            here.core.put(key_of(n % REPL_LINK_BUCKETS, n % 5), b"%d" % n)
        self.queues[0].peek(0, 30)  # They are on their way.
        here.core.share(here.changelog, Route(), True, True)
        super().__init__(learns=True, here=here)
        self.there.core.attach(self.queues[1:])
        self.news = []

    def has_learned(self):
        self.news += self.sender.news()
        return len(self.news) == REPL_LINK_BUCKETS and self.is_even()


def test_a_second_member_gets_what_was_queued_before_the_region_was_shared_and_sends_it():
    pair = LaterPair()
    try:
        here, there = pair.queues
        pair.learn()
        pair.connect()
        eventually(pair.has_learned)
        assert queued(there, pair.name) == queued(here, pair.name) and len(there) == len(here) == 400
        for bucket in range(REPL_LINK_BUCKETS):
            pair.there.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH)
            for role in (_core.REPLICA_TAKING_OVER, _core.REPLICA_PRIMARY):
                pair.there.changelog.set_role(bucket, role, TIMELINE, EPOCH + 1)
        lead(there, region=pair.name)
        assert sum(len(peek(there, bucket, region=pair.name)) for bucket in range(REPL_LINK_BUCKETS)) == 400
        assert balanced(here) and balanced(there)
    finally:
        pair.close()


# At random


@pytest.mark.parametrize("seed", range(20))
def test_no_event_is_lost_or_twice_in_a_queue_whatever_is_moved_when(seed):
    chance = random.Random(seed)
    kinds = [lambda: queue_to(buckets=chance.randrange(1, 5)), lambda: serial(chance.randrange(1, 4))]
    queue = chance.choice(kinds)()
    buckets = [chance.randrange(1, 6) for _ in range(3)]
    regions = [region(queue, buckets=count) for count in buckets]
    is_shared = [False] * 3
    put, acknowledged = 0, set()
    on_their_way = {}  # partition -> the values of the events that were peeked, with their sequences
    moved = set()  # Events that were moved while they were on their way: their acknowledgement counts nothing.
    for _ in range(400):
        what = chance.random()
        if what < 0.6:
            chance.choice(regions).put(f"k{chance.randrange(30)}", str(put))
            put += 1
        elif what < 0.75:
            number = chance.randrange(len(queue.positions()))
            taken = [(at, read_record(record).value) for at, record in queue.peek_with_positions(number, 5)]
            on_their_way.setdefault(number, []).extend(taken)
        elif what < 0.85 and on_their_way:
            number = chance.choice(list(on_their_way))
            events = on_their_way[number]
            count = chance.randrange(len(events) + 1)
            if count:
                gone = {value for _, value in events[:count]}
                still_there = gone - moved if number < queue.partitions else gone
                assert queue.remove(number, events[count - 1][0]) == len(still_there)
                acknowledged |= still_there
                on_their_way[number] = events[count:]
        elif what < 0.9:
            number = chance.randrange(len(queue.positions()))
            queue.rewind(number)
            on_their_way.pop(number, None)
        elif what < 0.93:
            which = chance.randrange(3)
            if not is_shared[which]:
                before = set(own(queue))
                share(regions[which], buckets[which])
                is_shared[which] = True
                left = before - set(own(queue))
                for number in range(queue.partitions):
                    moved |= {value for _, value in on_their_way.get(number, []) if value in left}
        elif any(is_shared):
            which = chance.choice([n for n in range(3) if is_shared[n]])
            lead(queue, [chance.randrange(buckets[which])], chance.random() < 0.7, region=regions[which].name)
        assert len(queue) == put - len(acknowledged) and balanced(queue)
    there = [read_record(record).value for _, _, record in queue.records(100_000)]
    assert len(there) == len(set(there))
    assert set(there) | acknowledged == {b"%d" % n for n in range(put)}
    assert any(is_shared)
