"""The order in which a serial sender with order-policy thread sends the events of regions that several members hold:
what one thread put one after the other leaves in that order, over all buckets, whichever holder sends."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pywan import _core
from pywan.testing.waiting import eventually
from support.fed_queues import lead
from support.moved_regions import region, serial, share
from support.records import BATCH, STREAM, read_batch, split_frames
from support.shared_site import Call
from support.streams import all_there, members

BUCKETS = 5


def by_thread(count=1, **options):
    return members(count, buckets=BUCKETS, serial=True, by_thread=True, **options)


def put_numbers(sender, count, first=0):
    """One thread puts numbers under many keys. It waits for each."""
    for n in range(first, first + count):
        sender.put(n, key=f"k{n * 7 % 31}")


def numbers(remote):
    return [int(value) for value in remote.applied]


def values(data):
    """The values in the batches of these bytes, as numbers."""
    batches = [frame for frame in split_frames(data) if frame.type == BATCH]
    return [
        int(record.value) for batch in batches for section in read_batch(batch.payload) for record in section.records
    ]


@pytest.mark.parametrize("dispatchers", [1, 3])
@pytest.mark.parametrize("compress", [False, True])
def test_what_one_thread_puts_into_several_buckets_leaves_in_its_order(dispatchers, compress):
    with by_thread(dispatchers=dispatchers, compress=compress) as (sender, remote, _):
        sender.lead()
        put_numbers(sender, 100)
        sender.settle()
        assert numbers(remote) == list(range(100)) and len(sender.queue) == 0


def test_a_batch_has_a_section_for_each_run_of_a_bucket_and_each_stream_is_named_once():
    with by_thread() as (sender, _, site):
        sender.lead()
        put_numbers(sender, 70)
        frames = split_frames(sender.sent())
        batches = [read_batch(frame.payload) for frame in frames if frame.type == BATCH]
        assert len(batches) == 10 and all(sum(section.count for section in batch) == 7 for batch in batches)
        assert any(len({section.partition for section in batch}) < len(batch) for batch in batches)
        assert [frame.type for frame in frames].count(STREAM) == BUCKETS
        sections = [section for batch in batches for section in batch]
        assert [site.bucket_of(f"k{int(record.value) * 7 % 31}") for each in sections for record in each.records] == [
            each.partition - sender.first for each in sections for _ in each.records
        ]


def test_one_dispatcher_sends_all_streams_and_the_others_send_what_one_member_has_alone():
    with by_thread(dispatchers=2) as (sender, _, _):
        alone = _core.RegionCore("alone by thread", _core.Clock(), site=1)
        alone.attach([sender.queue])
        sender.lead()
        other = _core.DispatcherSession(sender.queue, 1, sender.parked)
        other.configure(100, -1)
        other.connected(1_000_000, 1 << 20, 1)
        put_numbers(sender, 20)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: alone.put(f"own{n}", str(100 + n)), range(80)))
        eventually(lambda: len(sender.queue) == 100)
        # A thread has one of the two own partitions.
        of_first, of_second = values(sender.sent()), values(b"".join(iter(lambda: other.data_to_send(1), b"")))
        assert [n for n in of_first if n < 100] == list(range(20)) and all(n >= 100 for n in of_second)
        assert sorted(of_first + of_second) == [*range(20), *range(100, 180)]


def test_a_holder_that_goes_on_sending_does_so_in_the_same_order():
    with by_thread(2) as (old, new, remote, _):
        old.lead()
        put_numbers(old, 60)
        all_there((old, new), 60)
        for _ in range(4):  # Their answers are lost: the member dies.
            old.answer_to(old.session.data_to_send(1))
        sent = len(remote.applied)
        assert 0 < sent < 60 and numbers(remote) == list(range(sent))
        new.lead()
        put_numbers(new, 40, 60)
        all_there((new,), 100)
        new.settle()
        assert numbers(remote) == list(range(100)) and len(new.queue) == 0


@pytest.mark.parametrize("seed", range(4))
def test_threads_at_two_members_and_broken_connections_keep_the_order_of_each_thread(seed):
    chance = random.Random(seed)
    with by_thread(2) as (one, other, remote, _):

        def put(thread):
            for n in range(150):
                (one, other)[thread % 2].put(f"{thread}{n:03}", key=f"{thread} {n % 13}")

        def exchange():
            now_us = time.monotonic_ns() // 1000 - began_us
            answers = one.answer_to(one.sent(now_us))
            if chance.random() < 0.7:
                one.session.receive_data(answers, now_us)
            else:
                one.reconnect()

        began_us = time.monotonic_ns() // 1000
        one.lead()
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(put, thread) for thread in range(1, 5)]
            while not all(each.done() for each in done):
                exchange()
            for each in done:
                each.result()
        eventually(lambda: exchange() or len(one.queue) == 0)
        for thread in range(1, 5):
            own = [int(value[1:]) for value in remote.applied if value[0] == str(thread)]
            assert own == list(range(150))


def test_an_event_that_is_not_replicated_yet_holds_up_what_came_after_it():
    with by_thread(2) as (sender, _, _, site):
        site.stop_carrying()
        sender.lead()
        late, free = (next(k for k in map(str, range(99)) if site.bucket_of(k) == bucket) for bucket in (0, 1))
        site.members[0].changelog.set_replicas(1, [])  # What changes in bucket 1 counts at once.
        sender.put(1, key=free)
        call = Call(sender.put, 2, key=late)
        eventually(lambda: len(sender.queue) == 2)
        sender.put(3, key=free)
        assert values(sender.session.data_to_send(1)) == [1]
        assert sender.session.data_to_send(2) == b"" and not call.is_done
        site.members[0].changelog.set_replicas(0, [])
        call.result()
        assert sender.session.data_to_send(3) == b""  # It looks again after a while, and need not be woken for that.
        assert values(sender.session.data_to_send(10_000)) == [2, 3]


def test_what_was_queued_before_a_region_was_shared_leaves_in_the_order_of_its_threads():
    queue = serial(3, by_thread=True)
    core = region(queue)

    def put(thread):
        for n in range(100):
            core.put(f"{thread} {n % 9}", f"{thread}{n:03}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(1, 5)))
    share(core)
    lead(queue, region=core.name)
    for n in range(100, 120):
        core.put(f"9 {n % 9}", f"9{n}")
    session = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
    session.configure(100, -1)
    session.connected(1_000_000, 1 << 20, 1)
    sent = values(b"".join(iter(lambda: session.data_to_send(1), b"")))
    assert len(sent) == 420
    for thread, numbered in [*((thread, range(100)) for thread in range(1, 5)), (9, range(100, 120))]:
        assert [n % 1000 for n in sent if n // 1000 == thread] == list(numbered)
