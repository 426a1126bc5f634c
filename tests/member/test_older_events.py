"""A queue that is fed later than those of other members asks them for what it lacks."""

from __future__ import annotations

import pytest

from pywan import _core
from pywan.coordination.tables import Bucket, Incarnation
from pywan.errors import ConfigurationError, ConnectivityError, ProtocolError
from pywan.member.feeding import Feeding
from pywan.member.older_events import PIECE_BYTES, Lack, NotNow, OlderEvents, answer, begins_later, fields_of
from support.feeding import BUCKETS, Sender, profile
from support.records import make_record

A, B, C = (Incarnation(name, number) for number, name in enumerate("abc", 1))
TIMELINE = 7


class Site:
    """What members with queues answer to each other. `deaf`: those that do not answer."""

    def __init__(self, **queues: FakeQueue) -> None:
        self.queues = {each: queues[each.name] for each in (A, B, C) if each.name in queues}
        self.deaf: set[Incarnation] = set()
        self.unknown: set[Incarnation] = set()  # Not known as holders to other members.
        self.asked: list[Incarnation] = []

    def ask(self, member, wanted, begin):
        self.asked.append(member)
        if member in self.deaf:
            raise ConnectivityError("it does not answer")
        request, queue_of = fields_of(wanted, begin), {"ln": self.queues[member]}.get
        reply = answer(request, queue_of)
        try:
            begins_later(request, queue_of, self.queues.keys() - {member} - self.unknown)
        except NotNow:
            return {"again": True}
        return reply

    def older(self, me):
        return OlderEvents("data", "ln", self.queues[me], self.ask)


class FakeQueue:
    """A queue whose one stream holds the events `held`. An event is its sequence in one byte."""

    def __init__(self, held=(), *, lacks: int | None = 0, removed=0, timeline=TIMELINE, run=8, size=1, begun=0):
        self.held, self.lacks, self.removed, self.timeline, self.run = set(held), lacks, removed, timeline, run
        self.size, self.is_on_its_way, self.ended, self.begun = size, False, [], begun

    def run_of(self, region):
        return self.run if region == "data" else None

    def runs(self):
        return [("data", self.run, 1)]

    def lacking(self, first, count):
        return [self.lacks]

    def older_events(self, partition, timeline, after, through, most):
        assert partition == self.run
        if timeline != self.timeline:
            return None
        found = sorted(each for each in self.held if after < each <= through)[:3]
        reached = through if len(found) < 3 else found[-1]
        return self.removed, self.lacks, reached, b"".join(bytes([each]) * self.size for each in found)

    def take_older(self, partition, timeline, removed, events):
        assert timeline == self.timeline
        if self.is_on_its_way:
            return False
        self.removed = min(self.removed, removed)
        self.held |= set(events[:: self.size])
        return True

    def end_lacking(self, partition, timeline, through):
        self.ended.append((partition, timeline, through))
        self.lacks = 0

    def run_events(self, first, count):
        return [len(self.held)] * count

    def lack_events_behind(self, partition, timeline, after):
        assert (partition, timeline) == (self.run, self.timeline)
        is_later = not self.lacks and after < self.begun
        if is_later:
            self.lacks = self.begun
        return is_later


def lack(through: int | None, *isr, leaving=()):
    return Lack(0, Bucket(primary=isr[0], isr=isr, leaving=leaving, timeline=TIMELINE), through)


def test_a_queue_gets_what_all_other_holders_have_and_nothing_that_came_later():
    site = Site(a=FakeQueue(range(1, 12)), b=FakeQueue(lacks=10, removed=10), c=FakeQueue({4, 9}, removed=3))
    older, lacks = site.older(B), lack(10, A, B, leaving=(C,))
    assert not older.has_asked(B, lacks)
    assert older.round(B, [lacks]) == ""
    assert older.has_asked(B, lacks)
    assert site.queues[B].held == set(range(1, 11)) and site.queues[B].removed == 0
    older.end([lacks])
    assert site.queues[B].ended == [(8, TIMELINE, 10)]
    before = len(site.asked)
    older.round(B, [lacks])
    assert len(site.asked) == before  # Nobody is asked again.
    assert older.ask_removed_through(B)
    assert sorted(site.asked[before:]) == [A, C]


def test_a_queue_that_began_behind_the_events_of_another_one_gets_them_when_that_one_lacks_nothing():
    """The sender was taken from a region while B had events that A had sent, and then the region got it again."""
    site = Site(a=FakeQueue({7}, begun=6), b=FakeQueue({2, 3, 7}, lacks=6, removed=1))
    older, lacks = site.older(B), lack(6, A, B)
    older.round(B, [lacks])
    older.end([lacks])
    site.unknown = {B}  # A does not know yet that B has the bucket.
    assert not older.ask_removed_through(B) and site.queues[A].lacks == 0
    site.unknown = set()
    assert older.ask_removed_through(B) and site.queues[A].lacks == 6
    asking = site.older(A)
    asking.round(A, [lack(6, A, B)])
    assert asking.has_asked(A, lack(6, A, B)) and {2, 3} <= site.queues[A].held
    before = len(site.asked)
    assert older.ask_removed_through(B) and len(site.asked) == before  # It is done.


def test_a_queue_without_events_asks_no_queue_that_began_later():
    site = Site(a=FakeQueue(begun=6), b=FakeQueue(lacks=6, removed=1))
    older = site.older(B)
    older.round(B, [lack(6, A, B)])
    older.end([lack(6, A, B)])
    assert older.ask_removed_through(B) and site.queues[A].lacks == 0


def test_a_member_alone_lacks_nothing():
    site = Site(b=FakeQueue(lacks=10))
    assert site.older(B).has_asked(B, lack(10, B))
    assert not site.older(B).has_asked(B, lack(None, B))  # It is being attached.


def test_a_member_that_does_not_answer_is_waited_for_as_long_as_it_holds_the_bucket():
    site = Site(a=FakeQueue({1}), b=FakeQueue(lacks=5), c=FakeQueue({2}))
    site.deaf = {A}
    older = site.older(B)
    assert older.round(B, [lack(5, A, B, C)]) == "member a: it does not answer"
    assert not older.has_asked(B, lack(5, A, B, C)) and site.queues[B].held == {2}
    assert older.has_asked(B, lack(5, B, C))
    site.deaf = set()
    assert older.round(B, [lack(5, A, B, C)]) == "" and older.has_asked(B, lack(5, A, B, C))


def test_a_member_without_the_queue_has_nothing_and_one_in_another_timeline_is_asked_again():
    site = Site(a=FakeQueue(run=None), b=FakeQueue(lacks=5), c=FakeQueue({1}, timeline=TIMELINE - 1))
    older, lacks = site.older(B), lack(5, A, B, C)
    assert older.round(B, [lacks]) == "" and older.has_asked(B, lack(5, A, B)) and not older.has_asked(B, lacks)
    site.queues[C].timeline = TIMELINE
    older.round(B, [lacks])
    assert older.has_asked(B, lacks) and site.queues[B].held == {1}


def test_what_is_on_its_way_from_here_is_waited_for():
    site = Site(a=FakeQueue({1}), b=FakeQueue(lacks=5))
    older, lacks = site.older(B), lack(5, A, B)
    site.queues[B].is_on_its_way = True
    assert older.round(B, [lacks]) == "" and not older.has_asked(B, lacks)
    site.queues[B].is_on_its_way = False
    older.round(B, [lacks])
    assert older.has_asked(B, lacks)


@pytest.mark.parametrize(("of_b", "of_c"), [(5, 9), (9, 5), (5, 5)])
def test_of_two_queues_that_lack_events_one_waits_until_the_other_one_has_all(of_b, of_c):
    site = Site(a=FakeQueue({1, 2}), b=FakeQueue(lacks=of_b), c=FakeQueue(lacks=of_c))
    first, then = (B, C) if of_b <= of_c else (C, B)
    waits, goes = site.older(then), site.older(first)
    lack_then, lack_first = (lack({B: of_b, C: of_c}[each], A, B, C) for each in (then, first))
    site.deaf = {A}
    waits.round(then, [lack_then])
    site.deaf = set()
    waits.round(then, [lack_then])
    assert not waits.has_asked(then, lack_then)
    goes.round(first, [lack_first])
    assert goes.has_asked(first, lack_first)
    goes.end([lack_first])
    waits.round(then, [lack_then])
    assert waits.has_asked(then, lack_then)
    assert site.queues[B].held == site.queues[C].held == {1, 2}


def test_a_queue_gets_what_another_one_that_lacks_events_has_of_a_member_that_died():
    site = Site(a=FakeQueue({1, 2}), b=FakeQueue(lacks=5), c=FakeQueue({1}, lacks=9))
    site.deaf = {A}
    older = site.older(B)
    older.round(B, [lack(5, A, B, C)])
    assert not older.has_asked(B, lack(5, B, C))  # It is not the last question yet: `a` may still be there.
    site.queues[C].held.add(2)  # An answer of `a` that was on its way.
    older.round(B, [lack(5, B, C)])
    assert older.has_asked(B, lack(5, B, C)) and site.queues[B].held == {1, 2}


def test_a_queue_that_is_being_attached_is_waited_for():
    site = Site(a=FakeQueue(lacks=None), b=FakeQueue(lacks=5))
    older, lacks = site.older(B), lack(5, A, B)
    older.round(B, [lacks])
    assert not older.has_asked(B, lacks)
    site.queues[A].lacks = 20
    older.round(B, [lacks])
    assert older.has_asked(B, lacks)


def test_a_queue_that_was_attached_again_asks_again():
    site = Site(a=FakeQueue({1}), b=FakeQueue(lacks=5))
    older = site.older(B)
    older.round(B, [lack(5, A, B)])
    assert older.has_asked(B, lack(5, A, B)) and not older.has_asked(B, lack(6, A, B))


def test_a_long_event_goes_in_pieces():
    site = Site(a=FakeQueue({3}, size=PIECE_BYTES + 1), b=FakeQueue(lacks=5, size=PIECE_BYTES + 1))
    older, lacks = site.older(B), lack(5, A, B)
    assert older.round(B, [lacks]) == "" and older.has_asked(B, lacks)
    assert site.queues[B].held == {3} and len(site.asked) == 2


@pytest.mark.parametrize(
    "reply",
    [
        {"removed": 0},
        {"removed": -1, "lacks": 0, "reached": 5, "length": 0, "events": b""},
        {"removed": 0, "lacks": 0, "reached": 0, "length": 0, "events": b""},
        {"removed": 0, "lacks": 0, "reached": 5, "length": 1, "events": b""},
        {"removed": 0, "lacks": 0, "reached": 5, "length": 1, "events": "x"},
        {"removed": 0, "lacks": 0, "reached": 5, "length": 1, "events": b"xx"},
        {"removed": 0, "lacks": 0, "reached": 6, "length": 1, "events": b"x"},
        {"removed": 0, "lacks": 0, "reached": 5, "length": 1 << 30, "events": b"x"},
    ],
)
def test_what_is_no_answer_is_said_and_nothing_is_taken(reply):
    site = Site(a=FakeQueue({1}), b=FakeQueue(lacks=5))
    older = OlderEvents("data", "ln", site.queues[B], lambda *_: reply)
    assert older.round(B, [lack(5, A, B)]).startswith("member a: ")
    assert site.queues[B].held == set()


@pytest.mark.parametrize(
    "fields",
    [
        {"region": 1},
        {"sender": None},
        {"bucket": -1},
        {"bucket": 1},
        {"life": 2**64},
        {"after": "x"},
        {"begin": -1},
    ],
)
def test_what_is_no_question_is_refused(fields):
    asked = {"region": "data", "sender": "ln", "bucket": 0, "life": 1, "after": 0, "through": 1, "begin": 0, **fields}
    with pytest.raises((ProtocolError, ConfigurationError)):
        answer(asked, {"ln": FakeQueue()}.get)


def test_a_member_is_told_which_of_its_queues_lack_events_of_buckets_that_it_knows():
    said = []
    feeding = Feeding({}.get, lambda region, sender: said.append((region, sender.id)))
    sender = Sender("ln", True)
    feeding.fed("data", [sender])
    feeding.see_members([profile(A, "ln")])
    feeding.see(A, {"data": BUCKETS})
    assert not said
    sender.queue.lacks = {1: 5, 3: 6}
    feeding.see(A, {"data": BUCKETS})
    assert said == [("data", "ln")]
    assert feeding.lacking("data", "ln", sender.queue, BUCKETS) == [Lack(1, BUCKETS[1], 5)]
    assert feeding.lacking("data", "ln", object(), BUCKETS) == []  # The sender has another queue.
    feeding.forget("data")
    assert feeding.lacking("data", "ln", sender.queue, BUCKETS) == []


# The calls of a queue


def test_events_that_are_none_are_refused_and_those_before_them_are_there():
    queue = _core.EventQueue("ln", remote_site=2)
    first = queue.add_run("data older", 1)
    assert queue.lacking(first, 1) == [0]
    assert not queue.take_older(first, 0, 0, (1).to_bytes(8, "little") + make_record(b"k"))  # It lacks nothing.
    assert queue.older_events(first, 0, 0, 5, 100) is None  # Nothing feeds it.
    assert len(queue) == 0


def test_a_question_about_one_region_is_not_answered_with_the_events_of_another():
    queue = _core.EventQueue("ln", remote_site=2)
    queue.running = True
    regions = [_core.RegionCore(name, _core.Clock(), site=1, buckets=2) for name in ("of the question", "of others")]
    for region in regions:
        region.share(_core.Changelog(2, region.shards), None)
        region.attach([queue])
    asked = {"sender": "ln", "bucket": 1, "life": 0, "after": 0, "through": 5, "begin": 0}
    assert answer({**asked, "region": "of the question"}, {"ln": queue}.get) != {}
    with pytest.raises(ProtocolError, match="there is no bucket 2: the region has 2"):
        answer({**asked, "region": "of the question", "bucket": 2}, {"ln": queue}.get)


def test_a_question_about_a_region_that_is_none_takes_no_number_of_a_region():
    queue = _core.EventQueue("ln", remote_site=2)
    asked = {"sender": "ln", "bucket": 0, "life": 0, "after": 0, "through": 5, "begin": 0}
    for number in range(70_000):
        assert answer({**asked, "region": f"invented {number}"}, {"ln": queue}.get) == {}
    assert _core.RegionCore("a region that comes later", _core.Clock(), site=1) is not None
