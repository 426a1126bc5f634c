"""Which queues an event enters: decided in one step, by verdicts that are known."""

from __future__ import annotations

import itertools

from pywan import GatewayEventFilter, _core
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.records import GIVEN, UPDATE, make_record, read_record
from support.sites import keep_doing

_names = itertools.count()
HERE = (1, b"", (7, 7, 7))


def queue_to(site, name=None, **options):
    queue = _core.EventQueue(name or f"to {site}", remote_site=site, **options)
    queue.running = True
    return queue


def region_with(*queues, name=None, asking=(), **options):
    region = _core.RegionCore(name or f"enqueue-{next(_names)}", _core.Clock(), site=1, member=9, **options)
    region.attach(queues, (lambda *change: "asked") if asking else None, asking)
    return region


# A queue whose sender has filters


def test_no_event_enters_that_the_filters_were_not_asked_about():
    asking, other = queue_to(2), queue_to(3)
    region = region_with(asking, other, asking=[asking])
    assert region.change(UPDATE, "k", "v", decisions={other: None}) == "callbacks"
    assert "k" not in region and len(asking) == len(other) == 0 and asking.counts()["received"] == 0
    assert region.unasked(HERE, {}) == [asking]
    assert region.change(UPDATE, "k", "v", decisions={asking: None}) == "created"
    assert len(asking) == len(other) == 1
    assert region.change(UPDATE, "k", "w", decisions={asking: False}) == "updated"
    assert len(asking) == 1 and len(other) == 2 and asking.counts()["filtered_enqueue"] == 1


def test_filters_are_asked_about_what_would_enter_alone():
    asking = queue_to(2)
    region = region_with(asking, asking=[asking])
    assert region.unasked((3, b"\x02", (7, 7, 7)), {}) == []  # It gets it from somebody else.
    assert region.unasked((2, b"", (7, 7, 7)), {}) == []  # It made it.
    assert region.unasked(HERE, {asking: None}) == []
    asking.running = False
    assert region.unasked(HERE, {}) == []
    assert region.change(UPDATE, "k", "v", decisions={}) == "created" and asking.counts()["dropped_stopped"] == 1
    asking.running = True  # As it starts: who was told that nobody has to be asked is told otherwise.
    assert region.change(UPDATE, "k", "v", decisions={}) == "callbacks"
    local = region_with(asking, asking=[asking], forwards=False)
    assert local.unasked(HERE, {}) == [] and local.change(UPDATE, "k", "v", decisions={}) == "created"
    assert asking.counts()["not_queued"] == 1


class Starts(GatewayEventFilter):
    """Lets another sender accept events, as one that is being started does, while the event is on its way to the
    queues.
    """

    def __init__(self):
        self.queue = None

    def before_enqueue(self, event):
        if self.queue is not None:
            self.queue.running = True
        return True


class Refuses(GatewayEventFilter):
    def __init__(self):
        self.asked = []

    def before_enqueue(self, event):
        self.asked.append((event.key, event.event_id))
        return False


def test_a_sender_that_starts_meanwhile_asks_its_filter_first(network):
    ny, ln, tk = network.add("ny ln tk")
    refuses, starts = Refuses(), Starts()
    late = ny.send_to(ln, gateway_event_filters=[refuses])
    ny.send_to(tk, gateway_event_filters=[starts])
    ny.region()
    late.stop()
    starts.queue = late._core.queue
    ny.data["k"] = 1
    assert [key for key, _ in refuses.asked] == ["k"]
    assert len(late._core.queue) == 0 and late._core.queue.counts()["filtered_enqueue"] == 1
    late._core.queue.running = False


def test_whatever_starts_and_stops_no_event_passes_a_filter_by(network):
    ny, ln = network.add("ny ln")
    refuses = Refuses()
    sender = ny.send_to(ln, gateway_event_filters=[refuses])
    ny.region()
    with keep_doing(lambda n: ny.data.put(n % 10, n)) as done:
        for _ in range(20):
            before = len(done)
            eventually(lambda before=before: len(done) > before)
            sender.stop()
            sender.start()
    counts = sender._core.queue.counts()
    assert len(sender._core.queue) == counts["queued"] == 0
    assert counts["filtered_enqueue"] + counts["dropped_stopped"] == counts["received"] == len(done)
    assert len(refuses.asked) >= counts["filtered_enqueue"]


# The event that a filter sees of a change


def test_a_filter_is_told_when_the_change_was_made_where_it_was_made(network):
    ny, ln = network.add("ny ln")
    seen = []

    class Notes(GatewayEventFilter):
        def before_enqueue(self, event):
            seen.append((event.key, event.creation_timestamp, event.possible_duplicate))
            return True

    ny.send_to(ln, gateway_event_filters=[Notes()])
    ny.region()
    core = core_of(ny.data)
    ny.data.put_columns(["given"], [b"v"], timestamps=[1_600_000_000_000])
    core.callbacks.apply_record(
        make_record(b"remote", b"v", stamp=1_500_000_000_000 << 16, stamp_site=3, origin_site=3, flags=GIVEN),
        (0, 1, True, None),
    )
    core.callbacks.apply_record(
        make_record(b"first", b"v", stamp=1_500_000_000_001 << 16, stamp_site=3, origin_site=3, flags=GIVEN),
        (0, 2, False, None),
    )
    assert seen == [
        ("given", 1_600_000_000_000, False),
        (b"remote", 1_500_000_000_000, True),
        (b"first", 1_500_000_000_001, False),
    ]
    queued = [_core.record_fields(record) for _, _, record in ny.sender(ln)._core.queue.records()]
    assert sorted(fields["stamp"] >> 16 for fields in queued) == [
        1_500_000_000_000,
        1_500_000_000_001,
        1_600_000_000_000,
    ]


# Where a replayed event goes


def test_replayed_events_of_a_key_follow_its_live_ones_whatever_other_members_do():
    """Two members in one process have a region of one name, with other numbers of buckets."""
    name = f"enqueue-{next(_names)}"
    ten = queue_to(2, partitions=7, by_bucket=True)
    region = region_with(ten, name=name, buckets=10)
    three = queue_to(2, partitions=7, by_bucket=True)
    region_with(three, name=name, buckets=3)
    keys = [f"k{n}" for n in range(40)]
    for key in keys:
        region.put(key, "v")
    live = {read_record(record).key: partition for partition, _, record in ten.records()}
    assert len(set(live.values())) > 3
    parked = _core.EventQueue("parked")
    for _, _, record in ten.records():
        parked.append_record(record)
    ten.clear()
    assert parked.replay_into(ten) == len(keys)
    assert {read_record(record).key: partition for partition, _, record in ten.records()} == live
