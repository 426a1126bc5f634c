"""What one member has removed from its queue leaves the queues of the other members that hold it, over real replication
links."""

from __future__ import annotations

import threading
import time

import pytest

from fuzz_core.repl_link import REMOVAL, SENDER, region_frame, removal_frame, removal_items
from pywan import GatewayEventFilter, _core, stats
from pywan.config.attributes import SenderAttributes
from pywan.errors import ConnectivityError, ProtocolError
from pywan.gateway.dispatched_by_others import DispatchedByOthers
from pywan.gateway.filters import SenderFilters
from pywan.gateway.sender_core import SenderCore
from pywan.testing.waiting import LIMIT_S, eventually
from support.fed_queues import balanced, first_of
from support.holders import Holders
from support.records import split_frames
from support.repl_pair import BUCKETS, TIMELINE, key_of

TELL_US = 10_000
PARKED = 4  # WAN_HOLE_PARKED


@pytest.fixture
def holders():
    pair = Holders()
    yield pair
    assert all(balanced(queue) for queue in pair.queues)
    pair.close()


def test_what_the_sending_member_removed_leaves_the_other_one_too(holders):
    holders.connect()
    holders.put_many(300)
    eventually(holders.is_even)
    assert holders.sizes() == [300, 300]
    holders.send(0, 50)
    eventually(lambda: holders.sizes() == [150, 150])
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0])
    counts = holders.queues[1].counts()
    assert (counts["removed_by_primary"], counts["distributed"]) == (300, 0)
    assert stats.ledger(counts)["removed_by_primary"] == 300


def test_a_member_that_only_follows_the_buckets_may_send_and_tell(holders):
    holders.lead(0, False)
    holders.lead(1)
    holders.connect()
    holders.put_many(300)
    eventually(holders.is_even)
    eventually(lambda: holders.send_some(1) or holders.sizes() == [0, 0])
    assert holders.queues[0].counts()["removed_by_primary"] == 300


def test_holes_a_clear_and_dropped_events_are_told_as_what_was_sent_is(holders):
    holders.connect()
    holders.put_many(30)
    eventually(holders.is_even)
    here = holders.queues[0]
    for sequence in range(1, 11):
        here.make_hole(holders.firsts[0], sequence)  # As a filter does it.
    eventually(lambda: holders.sizes() == [20, 20])
    assert here.clear() == 20
    eventually(lambda: holders.sizes() == [0, 0])


def test_nothing_is_told_before_it_is_replicated(holders):
    """A change that is lost with its primary gives its sequence to another one."""
    holders.open(1_000_000)
    holders.pump()
    holders.change_all(3)
    assert holders.queues[0].clear() == 3
    holders.now += TELL_US
    sent = holders.sender.session.data_to_send(holders.now)  # The changes leave; no answer has come.
    assert REMOVAL not in kinds(sent)
    holders.taking.receive_data(sent, holders.now)
    assert holders.sizes() == [0, 3]
    assert REMOVAL not in holders.pump()
    holders.now += TELL_US
    assert REMOVAL in holders.pump() and holders.sizes() == [0, 0]


def test_an_event_that_was_replaced_is_told_when_the_one_in_its_place_is_replicated():
    pair = Holders(conflate=True)
    try:
        pair.open(1_000_000)
        key, other = key_of(0, 0), key_of(0, 1)
        pair.change(key)
        pair.change(key)
        pair.pump()
        pair.send(0, 1, 0)  # The create. The update behind it counts, and is not sent.
        pair.now += TELL_US
        pair.pump()
        assert pair.sizes() == [1, 1]
        pair.change(key)
        pair.change(other)
        assert pair.queues[0].positions()[pair.firsts[0]][0] == 2  # The hole has left.
        pair.now += TELL_US
        first = pair.sender.session.data_to_send(pair.now)
        pair.taking.receive_data(first, pair.now)
        assert pair.removed(1) == 1
        pair.pump()
        pair.now += TELL_US
        assert REMOVAL in pair.pump() and pair.removed(1) == 2
        assert pair.sizes() == [2, 2]
    finally:
        pair.close()


def kinds(data):
    return [frame.type for frame in split_frames(data)]


def test_a_replication_link_tells_at_most_every_ten_milliseconds_and_is_not_due_without_news(holders):
    holders.open(1_000_000)
    holders.change_all(90)
    holders.pump()
    holders.now += 3 * TELL_US
    holders.pump()
    session = holders.sender.session
    idle = session.next_us(holders.now)
    assert idle >= holders.now + TELL_US  # The next sign of life.
    holders.send(0, 10)
    assert holders.pump() == [REMOVAL] and holders.sizes() == [60, 60]
    holders.send(0, 10)
    assert holders.pump() == [] and session.next_us(holders.now) == holders.now + TELL_US
    holders.now += TELL_US
    assert holders.pump() == [REMOVAL] and holders.sizes() == [30, 30]
    assert session.next_us(holders.now) == idle


def test_what_was_told_before_a_member_held_the_bucket_is_told_again_on_request(holders):
    holders.open(1_000_000)
    holders.change_all(30)
    holders.pump()
    holders.send(0, 4, 0)
    holders.there.changelog.set_role(
        0, _core.REPLICA_IN_SYNC, TIMELINE + 1, 0
    )  # It does not heed what is told of this timeline.
    holders.now += 3 * TELL_US
    assert REMOVAL in holders.pump()
    holders.now += 3 * TELL_US
    assert REMOVAL not in holders.pump()
    holders.here.changelog.announce_removals(0)
    assert REMOVAL in holders.pump()


def test_what_is_on_its_way_here_stays_until_it_is_acknowledged_or_its_connection_ends(holders):
    there = holders.queues[1]
    holders.lead(1)
    holders.connect()
    holders.put_many(30)
    eventually(holders.is_even)
    first = holders.firsts[1]
    eventually(lambda: len(there.peek(first, 5)) == 5)
    assert len(there.peek(first + 1, 5)) == 5
    holders.lead(1, False)
    holders.send(0)
    eventually(lambda: len(there) == 20)  # Bucket 2 alone has nothing on its way.
    assert [removed for removed, *_ in there.positions()[first : first + BUCKETS]] == [0, 0, 10]
    there.remove(first, 5)  # Acknowledged.
    there.rewind(first + 1)
    assert len(there) == 0
    counts = there.counts()
    assert (counts["distributed"], counts["removed_by_primary"]) == (5, 25)


def test_news_of_another_timeline_and_of_unknown_senders_and_buckets_is_ignored(holders):
    holders.connect()
    holders.put_many(30)
    eventually(holders.is_even)
    holders.cut()
    holders.open(1_000_000)
    holders.taking.receive_data(region_frame(1, holders.name), holders.now)
    for item in (
        {"timeline": TIMELINE + 1},
        {"sender": SENDER + 1},
        {"bucket": BUCKETS},
        {"bucket": 2**32 - 1},
        {"region": 5},
        {"region": 2**32 - 1},
    ):
        holders.taking.receive_data(removal_frame([{"sender": SENDER, "through": 10, **item}]), holders.now)
    assert holders.sizes() == [30, 30]
    holders.taking.receive_data(removal_frame([{"sender": SENDER, "through": 2**62}]), holders.now)
    assert holders.sizes() == [30, 20]
    holders.change_all(30, 30)  # What comes later was not settled.
    holders.pump()
    assert holders.sizes() == [60, 50]


def test_a_queue_that_is_younger_does_not_say_that_what_it_never_had_was_removed():
    """Not even a member that learned from it."""
    pair = Holders()
    try:
        pair.there.core.attach([])
        pair.connect()
        pair.put_many(300)
        eventually(pair.is_even)
        pair.there.core.attach(pair.queues[1:])
        pair.firsts[1] = first_of(pair.queues[1], pair.name)
        pair.lead(1)
        pair.put_many(300, 300)
        eventually(pair.is_even)
        assert pair.sizes() == [600, 300] and not pair.queues[1].led_events  # It lacks events.
        pair.end_lacking(1)
        pair.lead(0, False)
        pair.lead(1)
        eventually(lambda: pair.send_some(1) or len(pair.queues[1]) == 0)
        pair.cut()
        pair.connect()
        pair.put_many(3)
        eventually(pair.is_even)
        assert len(pair.queues[0]) == 603  # It sends them when it leads.
        pair.lead(1, False)
        pair.lead(0)
        eventually(lambda: pair.send_some(0) or pair.sizes() == [0, 0])
    finally:
        pair.close()


@pytest.mark.parametrize("most", [1, 1000, 1 << 20])
@pytest.mark.parametrize("count", [300, 3000])
def test_a_queue_that_is_younger_gets_what_the_other_one_has_and_sends_it(most, count):
    pair = Holders()
    try:
        pair.there.core.attach([])
        pair.connect()
        pair.put_many(count)
        eventually(pair.is_even)
        pair.send(0, 7)
        pair.there.core.attach(pair.queues[1:])
        pair.firsts[1] = first_of(pair.queues[1], pair.name)
        pair.put_many(300, count)
        eventually(pair.is_even)
        pair.lead(0, False)
        left = count - 7 * BUCKETS
        assert pair.sizes() == [left + 300, 300]
        pair.take_older(1, most)
        pair.take_older(1, most)  # What is known stays.
        pair.end_lacking(1)
        assert [record for *_, record in pair.queues[1].records(10_000)] == [
            record for *_, record in pair.queues[0].records(10_000)
        ]
        assert balanced(pair.queues[1])
        pair.lead(1)
        eventually(lambda: pair.send_some(1) or pair.sizes() == [0, 0])
        assert pair.queues[0].counts()["removed_by_primary"] == left + 300
        assert all(balanced(queue) for queue in pair.queues)
    finally:
        pair.close()


def test_a_queue_that_lacks_events_is_told_what_was_removed_when_it_lacks_none():
    pair = Holders()
    try:
        pair.there.core.attach([])
        pair.connect()
        pair.put_many(300)
        eventually(pair.is_even)
        pair.there.core.attach(pair.queues[1:])
        pair.firsts[1] = first_of(pair.queues[1], pair.name)
        pair.put_many(300, 300)
        eventually(pair.is_even)
        pair.take_older(1)
        assert pair.sizes() == [600, 600]
        pair.send(0, 1000)
        pair.cut()
        assert pair.sizes() == [0, 600]
        pair.end_lacking(1)
        pair.connect()  # It is told once more.
        eventually(lambda: pair.sizes() == [0, 0])
    finally:
        pair.close()


def test_a_queue_does_not_wait_for_events_that_no_queue_has():
    """The primary's member gets the sender last: what the primary changed before that is queued nowhere."""
    pair = Holders()
    try:
        pair.here.core.attach([])
        pair.connect()
        pair.put_many(300)
        eventually(pair.is_even)
        pair.here.core.attach(pair.queues[:1])
        pair.firsts[0] = first_of(pair.queues[0], pair.name)
        pair.end_lacking(0)
        pair.lead(0)
        pair.put_many(300, 300)
        eventually(pair.is_even)
        assert pair.sizes() == [300, 300]
        pair.send(0)
        eventually(lambda: pair.sizes() == [0, 0])
        assert pair.queues[1].counts()["removed_by_primary"] == 300
    finally:
        pair.close()


def test_a_learner_says_no_more_than_the_member_that_it_learned_from():
    pair = Holders(learns=True)
    try:
        pair.here.core.attach([])
        pair.put_many(300)
        pair.here.core.attach(pair.queues[:1])
        pair.put_many(300, 300)
        pair.learn()
        pair.connect()
        eventually(pair.has_learned)
        assert pair.sizes() == [300, 300]
        pair.cut()
        pair.there.set_roles(_core.REPLICA_IN_SYNC)
        assert pair.queues[1].lacking(pair.firsts[1], BUCKETS) == [100] * BUCKETS  # Others may have more.
        pair.end_lacking(1)
        pair.lead(1)
        pair.send(1, 300)
        session = pair.back.session
        session.connected()
        (frame,) = [frame for frame in split_frames(session.data_to_send(1_000_000)) if frame.type == REMOVAL]
        told = {(item["after"], item["through"]) for item in removal_items(frame.payload)}
        assert told == {(100, 200)}
    finally:
        pair.close()


@pytest.mark.parametrize(
    "items, count",
    [
        ([{"through": 0}], None),
        ([{"after": 5, "through": 5}], None),
        ([{"through": 2**63}], None),
        ([{}], 2),
        ([], 0),
        ([{"after": 5, "through": 9, "explained": 4}], None),
        ([{"through": 9, "explained": 10}], None),
        ([{"leads": 2}], None),
        ([{"through": 9, "exceptions": 1}], None),  # It is cut off.
        ([{"through": 9, "explained": 3, "exceptions": [(3, 1, 2)]}], None),
        ([{"through": 9, "exceptions": [(9, 2, 2)]}], None),
        ([{"through": 9, "exceptions": [(1, 0, 2)]}], None),
        ([{"through": 9, "exceptions": [(1, 3, 2), (3, 1, 2)]}], None),
        *[([{"through": 9, "exceptions": [(1, 1, reason)]}], None) for reason in (0, 7, 10)],
        ([{"through": 2**40, "exceptions": [(n, 1, 2) for n in range(1, 4099, 2)]}], None),  # Too many.
    ],
)
def test_a_frame_that_is_not_in_order_ends_the_replication_link(holders, items, count):
    holders.open(1_000_000)
    with pytest.raises(ProtocolError):
        holders.taking.receive_data(removal_frame(items, count), holders.now)


def test_what_was_removed_while_there_was_no_connection_is_announced_on_the_next_one(holders):
    holders.connect()
    holders.put_many(300)
    eventually(holders.is_even)
    holders.cut()
    holders.send(0)
    assert holders.sizes() == [0, 300]
    holders.connect()
    eventually(lambda: holders.sizes() == [0, 0])


def test_a_learner_that_is_told_of_events_before_they_come_drops_them_when_they_do():
    pair = Holders(learns=True)
    try:
        pair.put_many(300)
        pair.learn()
        pair.open(1_000_000)
        pair.taking.receive_data(region_frame(1, pair.name), pair.now)
        pair.taking.receive_data(removal_frame([{"sender": SENDER, "through": 60}]), pair.now)
        assert pair.sizes() == [300, 0]
        for _ in range(20):
            pair.pump()
            pair.now += 50_000
        assert pair.has_learned() and pair.sizes() == [300, 240] and pair.removed(1) == 60
        assert balanced(pair.queues[1])
    finally:
        pair.close()


def test_a_member_that_takes_over_begins_behind_what_it_was_told_and_marks_the_rest(holders):
    there = holders.queues[1]
    holders.connect()
    holders.put_many(300)
    eventually(holders.is_even)
    holders.send(0, 60)
    eventually(lambda: holders.sizes() == [120, 120])
    holders.cut()
    holders.send(0, 10)  # Nobody hears of these.
    holders.lead(1)
    sent = there.peek_with_positions(holders.firsts[1], 100)
    assert [sequence for sequence, _ in sent] == list(range(61, 101))


def test_queues_become_empty_together_under_changes_and_changing_leads(holders):
    holders.connect()
    done = threading.Event()

    def put():
        n = 0
        while not done.is_set() and n < 20_000:
            holders.put_many(10, n)
            n += 10

    writer = threading.Thread(target=put)
    writer.start()
    began = time.monotonic()
    who = 0
    while time.monotonic() - began < 1.0:
        for _ in range(5):
            holders.send_some(who, 40)
        holders.lead(who, False)
        who = 1 - who
        holders.lead(who)
    done.set()
    writer.join(LIMIT_S)
    assert not writer.is_alive()
    eventually(holders.is_even)
    eventually(lambda: holders.send_some(who) or holders.sizes() == [0, 0])


# Callbacks


class RecordingFilter(GatewayEventFilter):
    def __init__(self):
        self.keys, self.may_go = [], threading.Event()
        self.may_go.set()
        self.dispatched_by_others: DispatchedByOthers | None = None  # What calls it, and the filters that have it.
        self.filters: SenderFilters | None = None

    def after_acknowledgement(self, event):
        assert self.may_go.wait(LIMIT_S)
        self.keys.append(event.key)


@pytest.fixture
def received(holders):
    """A filter at the replica, as its sender has it."""
    received = RecordingFilter()
    stopping = threading.Event()
    attributes = SenderAttributes("ln", remote_distributed_system_id=2, gateway_event_filters=[received])
    dispatched_by_others = DispatchedByOthers(holders.queues[1], stopping)
    dispatched_by_others.configure(SenderFilters(attributes), tells=True)
    thread = dispatched_by_others.follow("the test", "elsewhere")
    received.dispatched_by_others, received.filters = dispatched_by_others, SenderFilters(attributes)
    yield received
    received.may_go.set()
    stopping.set()
    dispatched_by_others.end()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_each_holder_calls_after_acknowledgement_once_for_each_event(holders, received):
    holders.connect()
    holders.put_many(3000)
    eventually(holders.is_even)
    holders.send(0, 1000)
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == 3000)


def test_events_wait_in_the_queue_for_a_slow_callback_and_a_few_outside(holders, received):
    received.may_go.clear()
    holders.connect()
    holders.put_many(6000)
    eventually(holders.is_even)
    holders.send(0, 2000)
    eventually(lambda: len(holders.queues[1]) < 6000)
    eventually(lambda: holders.queues[1].streams()[-1][-1] == 2000)
    assert len(holders.queues[1]) >= 5000
    received.may_go.set()
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == 6000)


def test_what_waits_for_a_callback_that_nobody_wants_any_more_goes(holders, received):
    received.may_go.clear()
    holders.connect()
    holders.put_many(6000)
    eventually(holders.is_even)
    holders.send(0, 2000)
    eventually(lambda: holders.queues[1].streams()[-1][-1] == 2000)
    assert len(holders.queues[1]) >= 5000
    received.dispatched_by_others.configure(received.filters, tells=False)
    assert received.dispatched_by_others.follow("the test", "elsewhere") is None
    assert len(holders.queues[1]) == 0


class NoEnds:
    """A sender that reaches no receiver."""

    trouble_word = slow_word = link_word = "none"
    running_words = ("runs", "runs")
    each_end_is_trouble = False
    longest_retry_s = 1.0
    is_own_thread = False

    def begin(self, dispatchers):
        pass

    def unreachable_reason(self, index):
        return None

    def configure(self, attributes):
        pass

    def session_options(self, attributes):
        return {}

    def words(self, event_id):
        return None

    def open(self, index, stopping, on_opening):
        raise ConnectivityError("nobody is there")

    def close(self):
        pass


@pytest.fixture
def make_sender(holders, tmp_path):
    """Makes the sender of the replica's member, whose queue takes the place of the one there."""
    made = []

    def make(received, **attributes):
        attributes = SenderAttributes(
            "ln", remote_distributed_system_id=2, gateway_event_filters=[received], parallel=True, **attributes
        )
        core = SenderCore(
            attributes,
            make_ends=lambda core: NoEnds(),
            site=1,
            directory=str(tmp_path),
            clock=_core.Clock(),
            buckets=BUCKETS,
        )
        made.append(core)
        holders.there.core.attach([core.queue])
        holders.queues[1] = core.queue
        holders.firsts[1] = first_of(core.queue, holders.name)
        core.start()
        holders.connect()
        return core

    yield make
    for core in made:
        core.close()


def threads_of_dispatched_by_others():
    return [thread.name for thread in threading.enumerate() if thread.name == "sender-ln-elsewhere"]


def test_a_sender_has_its_filters_told_of_what_other_members_sent(holders, make_sender):
    received = RecordingFilter()
    core = make_sender(received)
    assert len(threads_of_dispatched_by_others()) == 1
    holders.put_many(300)
    eventually(holders.is_even)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == 300)
    core.stop()
    assert not threads_of_dispatched_by_others()
    holders.put_many(30)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0])  # A stopped sender calls nobody.
    core.start()
    holders.put_many(30)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == 330)
    assert core.statistics()["events_processed_by_pqrm"] == 360
    assert core.statistics()["unprocessed_events_removed_by_primary"] == 0


def test_with_acknowledge_once_only_the_member_that_sent_calls_after_acknowledgement(holders, make_sender):
    received = RecordingFilter()
    core = make_sender(received, acknowledge_once=True)
    assert not threads_of_dispatched_by_others()
    holders.put_many(300)
    eventually(holders.is_even)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0])
    assert received.keys == []
    core.alter(acknowledge_once=False)
    holders.put_many(30)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == 30)
    core.alter(acknowledge_once=True)
    holders.put_many(30)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0])
    assert len(received.keys) == 30


def test_a_filter_may_stop_its_own_sender_when_it_is_told_of_an_event(holders, make_sender):
    stopped = threading.Event()

    class Stops(RecordingFilter):
        def after_acknowledgement(self, event):
            core.stop()
            stopped.set()

    core = make_sender(Stops())
    holders.put_many(30)
    holders.send(0)
    assert stopped.wait(LIMIT_S)
    eventually(lambda: holders.sizes() == [0, 0])


def cut_off(holders, what):
    """Does something to the queue of the sending member while nobody can hear of it."""
    holders.cut()
    what(holders.queues[0])
    holders.connect()


@pytest.mark.parametrize("is_cut", [False, True])
def test_filters_are_told_of_what_was_acknowledged_alone_and_the_ledger_of_the_holder_balances(
    holders, make_sender, is_cut
):
    received = RecordingFilter()
    core = make_sender(received)
    holders.put_many(300)
    eventually(holders.is_even)
    first = holders.firsts[0]

    def leave(queue):
        for bucket in range(BUCKETS):
            for sequence in (2, 3, 7):
                queue.make_hole(first + bucket, sequence)
            sent = queue.peek_with_positions(first + bucket, 20)
            queue.remove(first + bucket, sent[-1][0])
        queue.clear()

    cut_off(holders, leave) if is_cut else leave(holders.queues[0])
    eventually(lambda: holders.sizes() == [0, 0] and len(received.keys) == BUCKETS * 20)
    entry = stats.ledger(core.queue.counts())
    assert entry["removed_by_primary"] == 300 and entry["balanced"]  # The sending member counts them by their reasons.


def test_what_a_member_told_before_it_died_another_one_tells_on(holders):
    """The replica knows the reasons too: it tells them to whoever holds the stream."""
    holders.connect()
    holders.put_many(30)
    eventually(holders.is_even)
    holders.queues[0].make_hole(holders.firsts[0], 2)
    holders.send(0)
    eventually(lambda: holders.sizes() == [0, 0])
    holders.cut()
    session = holders.back.session
    session.connected()
    (frame,) = [frame for frame in split_frames(session.data_to_send(1_000_000)) if frame.type == REMOVAL]
    told = {item["bucket"]: (item["explained"], item["exceptions"]) for item in removal_items(frame.payload)}
    assert told[0] == (0, [(2, 1, 2)]) and all(each == (0, []) for number, each in told.items() if number)


def test_a_reason_is_told_once_on_a_connection_and_all_of_them_on_the_next_one(holders):
    holders.open(1_000_000)
    for _ in range(10):
        holders.pump()
        holders.now += TELL_US
    holders.change_all(60)
    for _ in range(10):
        holders.pump()
        holders.now += TELL_US

    def told():
        holders.now += TELL_US
        data = holders.sender.session.data_to_send(holders.now)
        holders.taking.receive_data(data, holders.now)
        frames = [frame for frame in split_frames(data) if frame.type == REMOVAL]
        return [each for frame in frames for item in removal_items(frame.payload) for each in item["exceptions"]]

    holders.queues[0].make_hole(holders.firsts[0], 1)
    assert told() == [(1, 1, 2)]
    holders.queues[0].make_hole(holders.firsts[0], 2)
    assert told() == [(2, 1, 2)]
    holders.here.changelog.announce_removals(0)
    assert told() == [(1, 2, 2)]


def test_an_event_is_parked_at_a_holder_when_its_change_is_known_as_replicated_there(holders):
    """The event of an earlier primary may have the sequence of the event that was parked."""
    parked = _core.EventQueue("parked", remote_site=2)
    holders.queues[1].park_in(parked)
    holders.open(1_000_000)
    holders.pump()
    for key in (key_of(0, 0), key_of(0, 1), key_of(0, 2)):
        holders.change(key)
    data = holders.sender.session.data_to_send(holders.now)
    holders.taking.receive_data(data, holders.now)  # The answer, after which the primary counts them, is on its way.
    told = {"sender": SENDER, "after": 0, "explained": 0}
    reason = PARKED | _core.FAILED_OTHER << 8
    holders.taking.receive_data(
        removal_frame([{**told, "through": 1}, {**told, "through": 2, "exceptions": [(2, 1, reason)]}]), holders.now
    )
    later = removal_frame([{**told, "through": 3, "explained": 2}])  # The reasons were told before.
    holders.taking.receive_data(later, holders.now)
    assert (holders.sizes()[1], len(parked), holders.queues[1].parked_missed) == (2, 0, 0)
    holders.pump()
    holders.now += TELL_US
    holders.pump()
    holders.now += TELL_US
    holders.taking.data_to_send(holders.now)
    assert (holders.sizes()[1], len(parked), holders.queues[1].parked_missed) == (0, 1, 0)
