"""A replication link between two members: replicas get what their primaries have, in order, over connections that
break, and while changes go on. Two regions in one process are the two members.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from fuzz_core import calls
from fuzz_core.repl_link import (
    ANSWER,
    CHANGES,
    ENTRY,
    IDENTITY,
    ITEM,
    PIECE,
    SECTION,
    SNAPSHOT,
    answer,
    answered,
    bucket_of,
    changes,
    clear_entry,
    entry,
    piece,
    region_frame,
    section,
)
from pywan import _core
from pywan.errors import ConnectivityError, ProtocolError, QueueFullError
from pywan.testing.waiting import LIMIT_S, eventually
from support.records import PING, PONG, split_frames
from support.repl_pair import (
    BUCKETS,
    EPOCH,
    REPL_LINK,
    SECOND,
    TIMELINE,
    TRANSFER,
    Member,
    Pair,
    call_change,
    key_of,
    name_numbers,
    types,
)

READ_LEASE_US = 300_000


def destroy(core: _core.RegionCore, key: bytes) -> None:
    with contextlib.suppress(KeyError):
        core.destroy(key)


def clear(core: _core.RegionCore, bucket: int, number: int) -> None:
    """Clears a bucket by a call of this number, whose answer nobody waits for."""
    session = _core.CallSession({core.name: core}.get)
    session.receive_data(calls.call(calls.REGION, core.name.encode()), 1)
    session.receive_data(calls.call(calls.CLEAR, bucket=bucket, number=number), 1)
    session.data_to_send(1)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def learning() -> Iterator[Pair]:
    made = Pair(learns=True)
    yield made
    made.close()


def test_what_listeners_were_told_travels_to_the_replicas_when_nothing_else_does(pair):
    for member in (pair.here, pair.there):
        member.changelog.keep_notifications(True)
    pair.connect()
    for n in range(20):
        pair.here.core.put(b"k%d" % n, b"v")
    eventually(pair.is_even)
    kept = pair.there.changelog.notifications_state()["bytes"]
    assert kept == pair.here.changelog.notifications_state()["bytes"] > 0
    while pair.here.changelog.next_notification(0) is not None:
        pass
    eventually(
        lambda: pair.there.changelog.notifications_state()["bytes"] == 0, what="the replica has heard that all was told"
    )
    assert pair.there.changelog.next_notification(0) is None


def test_a_primary_whose_member_tells_all_its_replicas_says_how_far_it_is(pair):
    pair.here.changelog.keep_notifications(says=True)
    pair.there.changelog.keep_notifications(by_primary=True)
    pair.connect()
    for n in range(20):
        pair.here.core.put(b"k%d" % n, b"v")
    eventually(pair.is_even)
    assert pair.there.changelog.notifications_state()["bytes"] == pair.here.changelog.notifications_state()["bytes"] > 0
    while pair.here.changelog.next_notification(0) is not None:
        pass
    eventually(
        lambda: pair.there.changelog.notifications_state()["bytes"] == 0, what="the replica has heard that all was told"
    )


def test_a_replica_that_is_full_of_changes_for_listeners_still_receives_what_was_told(pair):
    for member in (pair.here, pair.there):
        member.changelog.keep_notifications(True)
    key, value = key_of(0), bytes(1 << 20)

    def put_all() -> None:
        left = 70
        while left:
            with contextlib.suppress(QueueFullError):
                pair.here.core.put(key, value)
                left -= 1

    pair.open(SECOND)
    made = threading.Thread(target=put_all)
    made.start()

    def carry() -> None:
        pair.now += 60_000  # A replica that said "later" is asked again.
        pair.pump()

    def carried_until(happened: Callable[[], bool]) -> bool:
        carry()
        return happened()

    eventually(
        lambda: carried_until(lambda: pair.there.changelog.notifications_state()["bytes"] > 64 << 20),
        what="a full replica",
    )
    while made.is_alive():
        while pair.here.changelog.next_notification(0) is not None:
            pass
        carry()
    made.join()
    while pair.here.changelog.next_notification(0) is not None:
        pass
    eventually(lambda: carried_until(lambda: pair.there.changelog.notifications_state()["bytes"] == 0))


def test_a_put_returns_when_the_replica_has_it(pair):
    pair.connect()
    for n in range(200):
        key = b"k%d" % n
        pair.here.core.put(key, b"v%d" % n)
        bucket = bucket_of(key)
        assert pair.there.changelog.log_end(bucket) == pair.here.changelog.log_end(bucket)
    pair.assert_same()


def test_changes_of_many_threads_are_the_same_in_the_same_order_at_the_replica(pair):
    pair.connect()
    core = pair.here.core

    def work(seed: int) -> None:
        source = random.Random(seed)
        for n in range(300):
            key = b"k%d" % source.randrange(40)
            if source.random() < 0.2:
                destroy(core, key)
            else:
                core.put(key, b"%d of %d" % (n, seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(pair.is_even, what="the replicas are even")
    pair.assert_same()
    assert all(state["bytes"] == 0 for state in pair.there.changelog.states().values())  # What counts was dropped.


def test_what_waits_leaves_in_one_frame_for_all_buckets(pair):
    pair.open(SECOND)
    pair.pump()  # The replicas agree with the epoch.
    puts = [threading.Thread(target=pair.here.core.put, args=(key_of(b, n), b"v")) for b in range(3) for n in range(2)]
    for put in puts:
        put.start()
    eventually(lambda: sum(pair.here.changelog.log_end(bucket) for bucket in range(BUCKETS)) == 6)
    assert pair.pump() == [CHANGES]
    for put in puts:
        put.join(LIMIT_S)
        assert not put.is_alive()


def test_no_frame_is_longer_than_its_bound_and_no_bucket_starves(pair):
    pair.connect()
    eventually(lambda: all(s["copies"][0]["confirmed"] for s in pair.here.changelog.states().values()))
    pair.cut()
    pair.open(_core.monotonic_us())
    writers = [
        threading.Thread(target=pair.here.core.put, args=(key_of(bucket, n), bytes(20_000)))
        for bucket in range(BUCKETS)
        for n in range(12)
    ]
    for writer in writers:
        writer.start()
    eventually(lambda: sum(pair.here.changelog.log_end(bucket) for bucket in range(BUCKETS)) == 36)
    pair.sender.session.connected()
    pair.pump()
    for writer in writers:
        writer.join(LIMIT_S)
    pair.assert_same()


@pytest.mark.parametrize("flags", [1, 11, 0], ids=["remembered", "too large", "asked for by nobody"])
def test_a_replica_knows_that_it_has_no_answer_to_a_call_whose_found_value_was_left_out(pair, flags):
    key = key_of(0)
    there = pair.there
    frame = region_frame(1, pair.name) + changes([section([entry(key, b"v", flags=flags)], 1)], 1)
    pair.receiver.open_session().receive_data(frame, SECOND)
    there.set_roles(_core.REPLICA_PRIMARY, EPOCH + 1)
    session = _core.CallSession({pair.name: there.core}.get)
    record = calls.record(key, b"w", sequence=77)
    repeat = calls.call(calls.CHANGE, record, flags=calls.REPEAT, caller=7, slot=0, number=1)
    session.receive_data(calls.call(calls.REGION, pair.name.encode()) + repeat, SECOND)
    ((_, status, _),) = calls.answers(session.data_to_send(SECOND))
    assert status == (3 if flags == 11 else 0)
    assert there.changelog.log_end(0) == (1 if flags else 2)


def test_a_large_value_goes_alone(pair):
    pair.connect()
    key = key_of(1)
    pair.here.core.put(key, bytes(3_000_000))
    pair.here.core.put(key_of(0), b"small")
    eventually(pair.is_even)
    pair.assert_same()


def test_after_a_cut_connection_everything_that_was_not_acknowledged_is_sent_again(pair):
    source, seed = random.Random(), random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    source.seed(seed)
    core = pair.here.core
    pair.connect()
    stop = threading.Event()
    done = [0]

    def work() -> None:
        while not stop.is_set():
            core.put(b"k%d" % (done[0] % 50), b"%d" % done[0])
            done[0] += 1

    writers = [threading.Thread(target=work) for _ in range(3)]
    for writer in writers:
        writer.start()
    for _ in range(8):
        here = done[0]
        eventually(lambda here=here: done[0] > here + source.randrange(200))
        pair.cut()
        pair.connect()
    stop.set()
    for writer in writers:
        writer.join(LIMIT_S)
        assert not writer.is_alive()
    eventually(pair.is_even)
    pair.assert_same()
    assert pair.sender.news() == []


def test_a_frame_that_leaves_a_gap_ends_the_connection_and_is_not_acknowledged(pair):
    session = pair.receiver.open_session()
    gap = changes([section([entry(key_of(0))], 3)], 1)
    with pytest.raises(ProtocolError, match="a gap in bucket 0: sequence 3 comes where 0 was the last one"):
        session.receive_data(region_frame(1, pair.name) + gap, SECOND)
    assert pair.there.changelog.log_end(0) == 0


@pytest.mark.parametrize("member, kind", [(8, 2), (9, 0), (0, 0)], ids=["another", "the leader", "not known"])
def test_a_section_is_taken_from_the_member_that_leads_the_bucket(pair, member, kind):
    for bucket in range(BUCKETS):
        pair.there.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH, 0, 9)
    session = _core.ReplReceiver(pair.find, 5000, member).open_session()
    key = key_of(1)
    session.receive_data(region_frame(1, pair.name) + changes([section([entry(key, b"v")], 1, bucket=1)], 1), SECOND)
    (frame,) = split_frames(session.data_to_send(SECOND))
    assert [item[-1] for item in answered(frame.payload)] == [kind]
    assert (pair.there.changelog.log_end(1) == 1) == (kind == 0)


def test_a_key_of_another_bucket_ends_the_connection(pair):
    session = pair.receiver.open_session()
    with pytest.raises(ProtocolError, match="comes with bucket 0, and belongs to another one"):
        session.receive_data(region_frame(1, pair.name) + changes([section([entry(key_of(1))], 1)], 1), SECOND)


def test_what_stands_before_a_key_of_another_bucket_is_followed(pair):
    session = pair.receiver.open_session()
    wrong = section([*(entry(key_of(0, n), b"v") for n in range(20)), entry(key_of(1)), entry(key_of(0, 20))], 1)
    with pytest.raises(ProtocolError, match="comes with bucket 0, and belongs to another one"):
        session.receive_data(region_frame(1, pair.name) + changes([wrong], 1), SECOND)
    assert pair.there.changelog.log_end(0) == 20
    assert pair.there.core.bucket(0)["entries"] == 20


def test_a_section_is_followed_whatever_is_here_already_and_whatever_lies_between_its_changes(pair):
    first = [entry(key_of(0, n % 7), b"%d" % n, number=n) for n in range(1, 21)]
    between = [entry(key_of(0), bytes(20_000)), clear_entry()]  # Both end what goes together.
    last = [entry(key_of(0, n % 3), b"%d" % n) for n in range(40)]
    pair.open(SECOND)
    taking = pair.taking
    taking.receive_data(region_frame(1, pair.name) + changes([section(first, 1)], 1), SECOND)
    taking.receive_data(changes([section([*first[10:], *between, *last], 11)], 2), SECOND)
    frames = split_frames(taking.data_to_send(SECOND))
    assert [answered(frame.payload)[0][-2:] for frame in frames] == [(20, 0), (62, 0)]
    assert pair.there.changelog.log_end(0) == 62
    other = Member(f"lane{next(name_numbers)}")  # It gets them one by one.
    other.set_roles(_core.REPLICA_IN_SYNC)
    assert other.core.extend(0, TIMELINE, EPOCH, 1, b"".join([*first, *between, *last])) == 62
    assert pair.there.core.bucket_digest(0) == other.core.bucket_digest(0)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (changes([section([entry(b"k")], 1, count=2)], 1), "an entry of a bucket is not whole"),
        (changes([section([entry(b"k")], 1, size=8)], 1), "an entry of a bucket is not whole"),
        (changes([section([entry(b"k")], 1, size=1 << 30)], 1), "section 0 of a replication link has 1073741824 bytes"),
        (changes([section([], 0)], 1), "begins with sequence 0"),
        (
            changes([section([], 1, high_watermark=6, notified=7)], 1),
            "says that listeners were notified through sequence 7, and the high watermark 6 is lower",
        ),
        (changes([section([], 1)], 1, count=70_000), "says that it has 70000 parts"),
        (changes([], 1), "says that it has 0 parts"),
        (changes([section([], 1) + bytes(8)], 1), "8 bytes behind its sections"),
        (changes([section([clear_entry()[:-8]], 1)], 1), "is not whole"),
        (
            changes([section([clear_entry()[:14] + b"\x05" + clear_entry()[15:]], 1)], 1),
            "has 40 bytes and the flags 5",
        ),
        (_core.pack_frame(SNAPSHOT, piece([clear_entry()], 0), 1), "is of kind 2 and has the flags 1"),
        (_core.pack_frame(SNAPSHOT, piece([], 0, part=4), 1), "is of part 4"),
        (_core.pack_frame(SNAPSHOT, piece([], 0, part=3, count=1), 1), "a queued event of a snapshot is cut off"),
        (_core.pack_frame(SNAPSHOT, piece([], 0, part=2, count=1), 1), "a remembered call of a snapshot is cut off"),
        (_core.pack_frame(SNAPSHOT, piece([], 0, transfer=0), 1), "of transfer 0"),
        (_core.pack_frame(SNAPSHOT, piece([], 0, part=1, count=3), 1), "3 shrunk tombstones of a snapshot in 0 bytes"),
        (_core.pack_frame(PING, bytes(8), 1), "a ping of a replication link has 8 bytes"),
        (region_frame(70_000, "r"), "region number 70000"),
        (region_frame(1, ""), "a name of 0 bytes"),
        (answer([(1, 0, 1, 5, 0, 0)], 1), f"frame of type {ANSWER}"),
    ],
)
def test_wrong_bytes_end_the_connection_with_what_is_wrong(pair, frame, words):
    session = pair.receiver.open_session()
    with pytest.raises(ProtocolError, match=words):
        session.receive_data(frame, SECOND)


@pytest.mark.parametrize("outcome", [3, 5, 255])
def test_what_a_new_primary_fetches_is_checked_as_a_replication_link_is(pair, outcome):
    pair.there.changelog.keep_notifications()
    wrong = entry(key_of(0), b"v", outcome=outcome)
    with pytest.raises(ProtocolError, match="or is damaged"):
        pair.there.core.extend(0, TIMELINE, EPOCH, 1, entry(key_of(0), b"v", outcome=0) + wrong)
    pair.there.changelog.told(0, TIMELINE, EPOCH, 2, 0)
    assert pair.there.changelog.log_end(0) == 1
    assert (
        pair.there.changelog.next_notification(0)[0] == "create" and pair.there.changelog.next_notification(0) is None
    )


def test_listeners_are_told_of_changes_though_their_primary_said_early_that_it_told_them(pair):
    pair.there.changelog.keep_notifications(by_primary=True)
    session = pair.receiver.open_session()
    session.receive_data(region_frame(1, pair.name), SECOND)
    lying = section([entry(key_of(0), b"1", outcome=0)], 1, high_watermark=1 << 40, notified=0)
    session.receive_data(changes([lying], 1), SECOND)
    pair.there.changelog.set_role(0, _core.REPLICA_TAKING_OVER, TIMELINE, EPOCH + 1)
    pair.there.changelog.set_role(0, _core.REPLICA_PRIMARY, TIMELINE, EPOCH + 1)
    assert pair.there.changelog.next_notification(0)[0] == "create"
    pair.there.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 2)
    more = {"epoch": EPOCH + 2, "high_watermark": 1 << 40, "notified": 1 << 40}
    session.receive_data(changes([section([entry(key_of(0), b"2")], 2, **more)], 2), SECOND)
    late = section([entry(key_of(0), b"3")], 3, epoch=EPOCH + 2, high_watermark=3, notified=2)
    session.receive_data(changes([late], 3), SECOND)
    assert (
        pair.there.changelog.next_notification(0) is None
    )  # The first one was told, and the primary has told the second.
    pair.there.changelog.set_role(0, _core.REPLICA_TAKING_OVER, TIMELINE, EPOCH + 3)
    pair.there.changelog.set_role(0, _core.REPLICA_PRIMARY, TIMELINE, EPOCH + 3)
    assert pair.there.changelog.next_notification(0)[0] == "update"


def test_an_answer_out_of_order_or_beyond_what_there_is_ends_the_connection(pair):
    pair.open(SECOND)
    pair.sender.session.data_to_send(SECOND)
    with pytest.raises(ProtocolError, match="an answer to question 2, where 1 to 1 are open"):
        pair.sender.session.receive_data(answer([(1, 0, TIMELINE, EPOCH, 0, 0)], 2), SECOND)
    pair.sender.session.connected()
    pair.sender.session.data_to_send(SECOND)
    with pytest.raises(ProtocolError, match="acknowledges sequence 1 of bucket 0, where 0 is the last one"):
        pair.sender.session.receive_data(answer([(1, 0, TIMELINE, EPOCH, 1, 0)], 1), SECOND)


# Promises


def test_a_read_lease_runs_from_when_the_question_was_sent(pair):
    pair.open(SECOND)
    data = pair.sender.session.data_to_send(SECOND)
    pair.taking.receive_data(data, SECOND + 70_000)
    assert pair.receiver.read_lease.left_us(SECOND + 70_000) == READ_LEASE_US * 11 // 10  # Clocks drift.
    pair.sender.session.receive_data(pair.taking.data_to_send(SECOND + 70_000), SECOND + 100_000)
    assert pair.sender.read_lease_until_us == SECOND + READ_LEASE_US


def test_at_rest_a_ping_renews_the_read_lease_every_100_ms(pair):
    pair.open(SECOND)
    pair.pump()
    for n in range(1, 5):
        due = pair.sender.session.next_us(pair.now)
        assert due == SECOND + n * 100_000
        pair.now = due
        assert pair.pump() == [PING]
        assert pair.sender.read_lease_until_us == due + READ_LEASE_US


def test_a_read_that_waits_for_a_read_lease_has_the_replication_link_ask_at_once(pair):
    pair.open(SECOND)
    pair.pump()
    pair.now += 1000
    assert pair.pump() == []  # The next ping is not due yet.
    assert not pair.here.changelog.may_read(0)  # By the clock of the machine, that promise is over.
    pair.now += 1000
    assert pair.pump() == [PING]


def test_a_read_has_a_read_lease_again_when_the_connection_is_back(pair):
    pair.connect()
    eventually(lambda: pair.here.changelog.may_read(0), what="a promise")
    pair.cut()
    eventually(lambda: not pair.here.changelog.may_read(0), what="the end of the promise")
    pair.connect()
    eventually(lambda: pair.here.changelog.may_read(0), what="a promise of the new connection")


def test_an_unresponsive_member_is_given_up_after_its_time_and_told_as_slow(pair):
    pair.open(SECOND)
    pair.sender.session.data_to_send(SECOND)
    pair.sender.configure(2000)  # The connection that is open has the new time.
    assert pair.sender.session.next_us(SECOND) == 3 * SECOND + 1
    with pytest.raises(ProtocolError, match=r"gave no answer for 2\.0 s"):
        pair.sender.session.data_to_send(3 * SECOND + 1)
    assert pair.sender.news() == [("slow", SECOND)]


def test_a_replication_link_asks_more_often_than_its_member_may_be_silent(pair):
    pair.sender.configure(200)
    pair.open(SECOND)
    pair.pump()
    assert pair.sender.session.next_us(SECOND) <= SECOND + 50_000


def test_a_sender_that_says_nothing_is_given_up(pair):
    session = pair.receiver.open_session()
    pair.receiver.configure(2000)
    session.receive_data(_core.pack_frame(PING, b"", 1), SECOND)
    session.data_to_send(SECOND)
    assert session.next_us(SECOND) == 3 * SECOND + 1
    with pytest.raises(ProtocolError, match=r"said nothing, or took nothing, for 2\.0 s"):
        session.data_to_send(3 * SECOND + 1)


# Epochs


def test_a_replica_that_knows_a_later_epoch_refuses_and_the_bucket_gets_nothing_more(pair):
    pair.there.changelog.set_role(1, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 1)
    pair.open(SECOND)
    pair.pump()
    assert pair.sender.news() == [("refused", pair.name, 1, EPOCH + 1)]
    assert not pair.here.changelog.may_read(1)

    def fail_to_put() -> None:
        with pytest.raises(ConnectivityError, match="no other member is there"):
            pair.here.core.put(key_of(1), b"v")

    put = threading.Thread(target=fail_to_put)
    put.start()
    eventually(lambda: pair.here.changelog.log_end(1) == 1)
    assert CHANGES not in pair.pump()
    pair.here.set_roles(_core.REPLICA_IN_SYNC, EPOCH + 1)  # It is primary no more.
    put.join(LIMIT_S)
    assert pair.there.changelog.log_end(1) == 0


def test_a_denied_bucket_is_refused_before_any_later_read_lease(pair):
    pair.open(SECOND)
    pair.pump()
    assert pair.here.changelog.state(2)["copies"][0]["confirmed"]
    pair.there.changelog.set_role(2, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 3)
    pair.receiver.deny(pair.name, 2, EPOCH + 3)
    pair.now += 100_000
    ping = pair.sender.session.data_to_send(pair.now)
    pair.taking.receive_data(ping, pair.now)
    frames = split_frames(pair.taking.data_to_send(pair.now))
    assert [(frame.type, frame.id) for frame in frames] == [(ANSWER, 0), (PONG, 2)]
    assert answered(frames[0].payload) == [(1, 2, TIMELINE, EPOCH + 3, 0, 1)]
    pair.sender.session.receive_data(answer([(1, 2, TIMELINE, EPOCH + 3, 0, 1)], 0), pair.now)
    assert not pair.here.changelog.state(2)["copies"][0]["confirmed"]
    assert pair.sender.news() == [("refused", pair.name, 2, EPOCH + 3)]


def test_a_denial_leaves_at_once_over_a_socket(pair):
    pair.connect()
    eventually(lambda: pair.here.changelog.state(0)["copies"][0]["confirmed"])
    pair.there.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 1)
    pair.receiver.deny(pair.name, 0, EPOCH + 1)
    assert select.select([pair.sender.news_file], [], [], 10)[0]
    assert pair.sender.news() == [("refused", pair.name, 0, EPOCH + 1)]


def test_a_member_that_does_not_know_the_region_or_the_epoch_yet_is_asked_again_after_50_ms(pair):
    pair.is_there = False
    pair.there.set_roles(_core.REPLICA_IN_SYNC, EPOCH - 1)
    pair.open(SECOND)
    assert pair.pump().count(CHANGES) == 1
    pair.is_there = True
    pair.now = pair.sender.session.next_us(pair.now)
    assert pair.now == SECOND + 50_000
    assert pair.pump() == [CHANGES]
    assert not any(state["copies"][0]["confirmed"] for state in pair.here.changelog.states().values())
    pair.there.set_roles(_core.REPLICA_IN_SYNC, EPOCH)
    pair.now = pair.sender.session.next_us(pair.now)
    assert pair.now == SECOND + 100_000
    assert pair.pump() == [CHANGES]
    assert all(state["copies"][0]["confirmed"] for state in pair.here.changelog.states().values())
    assert pair.sender.news() == []


def test_a_bucket_that_takes_over_is_completed_before_it_accepts_changes(pair):
    pair.connect()
    pair.here.core.put(key_of(0), b"v")
    pair.cut()
    pair.there.set_roles(_core.REPLICA_IN_SYNC, EPOCH + 1)
    pair.here.set_roles(_core.REPLICA_TAKING_OVER, EPOCH + 1)
    pair.set_replicas(_core.REPLICA_WAITED)
    pair.connect()
    eventually(lambda: pair.here.changelog.state(0)["copies"][0]["acked"] == pair.here.changelog.log_end(0))


def test_the_high_watermark_is_told_when_the_replication_link_is_idle(pair):
    pair.open(SECOND)
    pair.pump()
    put = threading.Thread(target=pair.here.core.put, args=(key_of(0), b"v"))
    put.start()
    eventually(lambda: pair.here.changelog.log_end(0) == 1)
    pair.pump()
    put.join(LIMIT_S)
    assert pair.there.changelog.state(0)["high_watermark"] == 0
    pair.now = pair.sender.session.next_us(pair.now)
    assert pair.now <= SECOND + 2000
    assert pair.pump() == [CHANGES]
    assert pair.there.changelog.state(0)["high_watermark"] == 1
    assert pair.there.core.get(key_of(0)) == b"v"


# Snapshots


def fill(core: _core.RegionCore, count: int = 3000) -> None:
    for n in range(count):
        core.put(b"k%d" % n, b"value %d" % n)
    for n in range(0, count, 7):
        destroy(core, b"k%d" % n)


def test_a_learner_gets_all_of_a_bucket_tombstones_too(learning):
    fill(learning.here.core)
    learning.learn()
    learning.connect()
    news = []
    eventually(lambda: len(news.extend(learning.sender.news()) or news) == BUCKETS)
    assert sorted(news) == [("learned", learning.name, bucket, TRANSFER) for bucket in range(BUCKETS)]
    assert sorted(learning.receiver.news()) == [("image", learning.name, bucket, TRANSFER) for bucket in range(BUCKETS)]
    learning.assert_same()
    assert learning.there.core.tombstones == learning.here.core.tombstones
    assert [learning.there.changelog.log_end(b) for b in range(BUCKETS)] == [
        learning.here.changelog.log_end(b) for b in range(BUCKETS)
    ]


def remembered(changelog: _core.Changelog, bucket: int) -> tuple[object, ...]:
    state = changelog.state(bucket)
    return state["answers"], state["refused"], changelog.callers(bucket)


def test_a_replica_remembers_the_calls_that_its_primary_remembers(learning):
    here, there = learning.here.changelog, learning.there.changelog
    fill(learning.here.core)
    for caller in range(1, 40):  # Callers that were forgotten before there was a replica.
        assert all(here.forget(bucket, caller) for bucket in range(BUCKETS))
    learning.learn()
    learning.connect()
    news = []
    eventually(lambda: len(news.extend(learning.sender.news()) or news) == BUCKETS)
    for bucket in range(BUCKETS):
        [caller] = here.callers(bucket)
        assert remembered(there, bucket) == remembered(here, bucket) == (1, 39, {caller})
        assert here.forget(bucket, caller)
    eventually(lambda: [there.log_end(b) for b in range(BUCKETS)] == [here.log_end(b) for b in range(BUCKETS)])
    for bucket in range(BUCKETS):
        assert remembered(there, bucket) == remembered(here, bucket) == (0, 40, set())


def test_shrunk_tombstones_are_a_part_of_the_snapshot(learning):
    fill(learning.here.core)
    learning.here.core.keep_tombstones(0, 0, 20_000)  # They shrink beyond so many bytes.
    learning.learn()
    learning.connect()
    news = []
    eventually(lambda: len(news.extend(learning.receiver.news()) or news) == BUCKETS)
    there, here = learning.there.core.tombstone_state, learning.here.core.tombstone_state
    assert there["shrunk_tombstones"] == here["shrunk_tombstones"] > 0


def test_a_snapshot_is_right_while_puts_go_on(learning):
    core = learning.here.core
    fill(core)
    stop = threading.Event()

    def work(seed: int) -> None:
        source = random.Random(seed)
        while not stop.is_set():
            key = b"k%d" % source.randrange(4000)
            if source.random() < 0.3:
                destroy(core, key)
            else:
                core.put(key, bytes(source.randrange(300)))

    writers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    learning.learn()
    learning.connect()
    news = []
    eventually(lambda: len(news.extend(learning.sender.news()) or news) == BUCKETS)
    for bucket in range(BUCKETS):  # From now on changes wait for it.
        learning.there.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH)
        acked = learning.here.changelog.state(bucket)["copies"][0]["acked"]
        learning.here.changelog.set_replicas(bucket, [(REPL_LINK, _core.REPLICA_WAITED, 0, acked)])
    stop.set()
    for writer in writers:
        writer.join(LIMIT_S)
        assert not writer.is_alive()
    eventually(learning.is_even)
    learning.assert_same()


def test_a_learner_is_told_as_such_when_it_has_all_that_is_replicated_and_is_waited_for_from_then_on(learning):
    """Its answers take ten rounds, and each round has a put of each bucket."""
    core, changelog = learning.here.core, learning.here.changelog
    fill(core)
    session = _core.CallSession({core.name: core}.get)  # It serves puts that nobody waits for.
    session.receive_data(calls.call(calls.REGION, core.name.encode()), 1)
    learning.learn()
    learning.open(SECOND)
    on_way, told = [b""] * 10, {}
    for turn in range(1000):
        for bucket in range(BUCKETS if len(told) < BUCKETS else 0):
            record = calls.record(key_of(bucket, turn % 5), b"%d" % turn, sequence=turn)
            session.receive_data(calls.call(calls.CHANGE, record, bucket=bucket, epoch=EPOCH, number=turn + 1), 1)
        learning.taking.receive_data(learning.sender.session.data_to_send(learning.now), learning.now)
        on_way.append(learning.taking.data_to_send(learning.now))
        learning.sender.session.receive_data(on_way.pop(0), learning.now)
        learning.now += 200
        for what, _, bucket, _ in learning.sender.news():
            assert what == "learned" and bucket not in told
            state = changelog.state(bucket)
            (replica,) = state["copies"]
            assert replica["acked"] >= state["high_watermark"] and replica["waited"]
            told[bucket] = state["log_end"]
        if len(told) == BUCKETS and learning.is_even():
            break
    assert learning.is_even() and len(told) == BUCKETS
    learning.assert_same()


def test_a_learner_that_is_waited_for_stays_so_until_the_coordinator_was_told_of_it(learning):
    fill(learning.here.core)
    learning.learn()
    learning.open(SECOND)
    learning.pump()
    assert len(learning.sender.news()) == BUCKETS
    learning.set_replicas(_core.REPLICA_LEARNING, TRANSFER)  # A decision about something else.
    assert all(state["copies"][0]["waited"] for state in learning.here.changelog.states().values())
    learning.learn(TRANSFER + 1)  # It begins anew.
    assert not any(state["copies"][0]["waited"] for state in learning.here.changelog.states().values())


def test_a_replica_that_has_yet_to_be_told_that_it_learns_again_answers_nothing_about_its_snapshot(learning):
    """It drops everything when it hears that. Its primary would take it for whole."""
    fill(learning.here.core)
    learning.learn()
    learning.open(SECOND)
    learning.pump()
    assert len(learning.sender.news()) == BUCKETS
    learning.there.set_roles(_core.REPLICA_IN_SYNC)  # It hears first that it is an in-sync replica.
    assert learning.here.changelog.forget(0, 77)  # A change while its primary has not heard that.
    learning.pump()
    assert learning.here.changelog.log_end(0) == learning.there.changelog.log_end(0)
    learning.set_replicas(_core.REPLICA_LEARNING, TRANSFER + 1)  # It was taken out since, and is to learn again.
    learning.now += SECOND
    learning.pump()
    assert learning.sender.news() == []
    learning.learn(TRANSFER + 1)
    learning.now += SECOND
    learning.pump()
    assert len(learning.sender.news()) == BUCKETS
    learning.assert_same()


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_learner_gets_a_clear_that_comes_between_the_pieces_of_its_snapshot(learning, pieces):
    core = learning.here.core
    fill(core)
    bucket = 1
    learning.learn()
    learning.open(SECOND)
    while types(data := learning.sender.session.data_to_send(SECOND)).count(SNAPSHOT) == 0:
        learning.taking.receive_data(data, SECOND)
        learning.sender.session.receive_data(learning.taking.data_to_send(SECOND), SECOND)
    learning.taking.receive_data(data, SECOND)  # The first piece of a snapshot.
    for _ in range(pieces):
        learning.sender.session.receive_data(learning.taking.data_to_send(SECOND), SECOND)
        learning.taking.receive_data(learning.sender.session.data_to_send(SECOND), SECOND)
    clear(core, bucket, 1)
    core.put(key_of(bucket, 5), b"after the clear")
    learning.pump()
    learning.assert_same()
    assert learning.there.core.bucket(bucket)["entries"] == 1


def test_a_snapshot_begins_again_on_a_new_connection_and_for_a_new_transfer(learning):
    fill(learning.here.core)
    learning.learn()
    learning.open(SECOND)
    data = learning.sender.session.data_to_send(SECOND)
    while SNAPSHOT not in types(data):
        learning.taking.receive_data(data, SECOND)
        learning.sender.session.receive_data(learning.taking.data_to_send(SECOND), SECOND)
        data = learning.sender.session.data_to_send(SECOND)
    learning.taking.receive_data(data, SECOND)  # The connection ends before this is answered.
    learning.open(2 * SECOND)
    assert SNAPSHOT in learning.pump()
    assert len(learning.sender.news()) == BUCKETS
    learning.assert_same()

    learning.learn(TRANSFER + 1)
    learning.there.set_roles(_core.REPLICA_LEARNER, transfer=TRANSFER)  # The tables have not come there yet.
    learning.pump()
    assert learning.sender.news() == []
    learning.there.set_roles(_core.REPLICA_LEARNER, transfer=TRANSFER + 1)
    learning.now = learning.sender.session.next_us(learning.now)
    learning.pump()
    assert sorted(learning.sender.news()) == [
        ("learned", learning.name, bucket, TRANSFER + 1) for bucket in range(BUCKETS)
    ]
    learning.assert_same()


def test_a_learner_refuses_a_snapshot_that_is_not_where_its_stream_is(learning):
    learning.there.set_roles(_core.REPLICA_LEARNER, transfer=TRANSFER)
    session = learning.receiver.open_session()
    first = changes([section([entry(key_of(0))], 5, transfer=TRANSFER)], 1)
    session.receive_data(region_frame(1, learning.name) + first, SECOND)
    assert learning.there.changelog.log_end(0) == 5
    with pytest.raises(ProtocolError, match="a snapshot of bucket 0 at sequence 9 comes where the stream is at 5"):
        session.receive_data(_core.pack_frame(SNAPSHOT, piece([], 9), 2), SECOND)


def test_a_region_that_is_removed_from_the_replication_link_is_not_used_any_more(pair):
    pair.open(SECOND)
    pair.pump()
    pair.sender.remove_region(pair.name)
    pair.now = pair.sender.session.next_us(pair.now)
    assert pair.pump() == [PING]
    with pytest.raises(ValueError, match=f"number 1 is that of '{pair.name}', and cannot name 'other'"):
        pair.sender.add_region(1, "other", pair.here.core)


# A campaign against a plain model


def test_whatever_happens_the_replicas_get_what_the_primary_has():
    seed = int(os.environ.get("REPL_LINK_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 40)
    for run in range(int(os.environ.get("REPL_LINK_RUNS", 30))):
        print(f"REPL_LINK_SEED={seed + run} REPL_LINK_RUNS=1")
        campaign(random.Random(seed + run))


def campaign(source: random.Random) -> None:
    """Changes, moved bytes, cut connections, new transfers and passing time in any order. No thread waits for anything:
    a learner with its whole snapshot holds back what counts, and nobody waits for that.
    """
    pair = Pair(learns=True)
    model: dict[bytes, bytes] = {}
    transfer = TRANSFER
    pair.learn(transfer)
    pair.open(SECOND)
    pending = b""  # Bytes on their way to the replica.
    back = b""
    for number in range(1, source.randrange(20, 150)):
        step = source.random()
        if step < 0.03:
            bucket = source.randrange(BUCKETS)
            clear(pair.here.core, bucket, number)
            model = {key: value for key, value in model.items() if bucket_of(key) != bucket}
        elif step < 0.4:
            key = b"k%d" % source.randrange(30)
            model[key] = bytes(source.choice((0, 5, 100, 70_000)))
            is_destroy = source.random() < 0.3
            call_change(pair.here.core, key, b"" if is_destroy else model[key], 2 if is_destroy else 1, number)
            if is_destroy:
                del model[key]
        elif step < 0.6:
            pending += pair.sender.session.data_to_send(pair.now)
        elif step < 0.75 and pending:
            part = source.randrange(1, len(pending) + 1)
            pair.taking.receive_data(pending[:part], pair.now)
            pending = pending[part:]
            back += pair.taking.data_to_send(pair.now)
        elif step < 0.88 and back:
            pair.sender.session.receive_data(back, pair.now)
            back = b""
        elif step < 0.93:
            pair.now += source.choice((100, 5000, 60_000))
        elif step < 0.97:
            pending = back = b""
            pair.open(pair.now)
        else:
            transfer += 1
            pair.learn(transfer)
    pair.open(pair.now)
    for _ in range(10):
        pair.pump()
        pair.now = pair.sender.session.next_us(pair.now)
    for bucket in range(BUCKETS):
        assert pair.here.changelog.log_end(bucket) == pair.there.changelog.log_end(bucket)
        assert pair.here.changelog.state(bucket)["high_watermark"] == pair.here.changelog.log_end(bucket)
    pair.assert_same()
    assert sum(pair.there.core.bucket(bucket)["entries"] for bucket in range(BUCKETS)) == len(model)
    learned = {(what, bucket) for what, _, bucket, number in pair.sender.news() if number == transfer}
    assert learned == {("learned", bucket) for bucket in range(BUCKETS)}
    pair.sender.remove_region(pair.name)


def test_the_layouts_are_those_of_the_documents():
    assert (SECTION.size, PIECE.size, ITEM.size, ENTRY.size, IDENTITY.size) == (64, 56, 40, 16, 16)


def test_a_snapshot_has_a_third_of_the_replication_link_however_much_is_written():
    """So it is whole after three times the time that the replication link takes for its bytes. The replication link is
    200 ms long, and the writers have at any moment as much as callers may before a learner holds them back."""
    pair = Pair(learns=True)
    value, ahead = b"v" * 1000, 128
    for n in range(40_000):
        pair.here.core.put(b"early %d" % n, value)
    late = [next(key for n in range(100) if bucket_of(key := b"late %d" % n) == bucket) for bucket in range(BUCKETS)]
    pair.learn()
    pair.open(SECOND)
    window, snapshot_bytes, trips = 4 << 20, 40_000 * 1_000, 0

    def write() -> bool:
        """Writes as much as callers may. Returns whether a bucket learns."""
        learns = False
        for bucket, key in enumerate(late):
            state = pair.here.changelog.state(bucket)
            replica = state["copies"][0]
            learns = learns or not replica["waited"]
            for _ in range(0 if replica["waited"] else max(0, ahead - (state["log_end"] - replica["sent"]))):
                pair.here.core.put(key, value)
        return learns

    while write():
        sent = b""
        while data := pair.sender.session.data_to_send(pair.now):
            sent += data
            write()
        pair.now += 200_000
        trips += 1
        pair.taking.receive_data(sent, pair.now)
        pair.sender.session.receive_data(pair.taking.data_to_send(pair.now), pair.now)
        assert trips < 100, "the snapshot does not become whole"
    assert trips <= 3 * snapshot_bytes / window + 14, "the window grows for some round trips at first"


def test_small_puts_do_not_hasten_a_snapshot_of_which_enough_is_on_its_way(learning):
    """A snapshot is owed a third of what leaves. So little is owed for a small put that no piece leaves for it
    alone."""
    for n in range(4_000):
        learning.here.core.put(b"early %d" % n, b"v" * 1000)
    learning.learn()
    learning.open(SECOND)
    session, taking = learning.sender.session, learning.taking
    for n in range(5):
        call_change(learning.here.core, b"late", b"v", 1, n + 1)
        while sent := session.data_to_send(learning.now):
            taking.receive_data(sent, learning.now)
        learning.now += 20_000
        session.receive_data(taking.data_to_send(learning.now), learning.now)
    kinds = []
    while sent := session.data_to_send(learning.now):
        kinds += types(sent)
    assert kinds.count(SNAPSHOT) >= 2, "the snapshot is under way"
    for n in range(20):
        call_change(learning.here.core, b"late", b"v", 1, n + 6)
        assert types(session.data_to_send(learning.now)) == [CHANGES]
