"""One event, one identity: for every filter and listener, at every site, and however often it is tried."""

from __future__ import annotations

import itertools

import pytest

from pywan import CacheListener, GatewayConflictResolver, GatewayEventFilter, _core
from pywan.base.draws import drawn_number
from pywan.events import EventSequenceID
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.clocks import run_ahead
from support.records import read_record

_names = itertools.count()


class Ids(GatewayEventFilter, CacheListener, GatewayConflictResolver):
    """Notes (operation, key, identity) wherever it is called."""

    def __init__(self):
        self.before, self.transmitted, self.acknowledged, self.received, self.judged = [], [], [], [], []

    def _note(self, seen, event):
        assert isinstance(event.event_id, EventSequenceID)
        seen.append((event.operation, event.key, event.event_id))
        return True

    def before_enqueue(self, event):
        return self._note(self.before, event)

    def before_transmit(self, event):
        return self._note(self.transmitted, event)

    def after_acknowledgement(self, event):
        self._note(self.acknowledged, event)

    def after_create(self, event):
        self._note(self.received, event)

    after_update = after_destroy = after_create

    def on_event(self, event, helper):
        self._note(self.judged, event)


def change_some(region):
    region["k"] = 1
    region["k"] = 2
    region.put_columns(["a", "b"], [b"1", b"2"])
    del region["k"]


@pytest.mark.parametrize("decides", [True, False])
def test_filters_and_listeners_of_two_sites_see_one_identity(network, decides):
    """With `before_enqueue` the change goes through the callbacks where it is made; without it does not."""
    ids, far = Ids(), Ids()
    ny, ln = network.add("ny ln")
    ln.receive()
    filter = ids if decides else type("Later", (Ids,), {"before_enqueue": GatewayEventFilter.before_enqueue})()
    ny.send_to(ln, parallel=False, dispatcher_threads=1, gateway_event_filters=[filter])
    ny.region(), ln.region()
    assert core_of(ny.data).has_callback_path == decides
    ln.data.add_listener(far)
    change_some(ny.data)
    network.settle()
    eventually(lambda: len(filter.acknowledged) == 5)
    assert [(operation, key) for operation, key, _ in far.received] == [
        ("create", "k"),
        ("update", "k"),
        ("create", "a"),
        ("create", "b"),
        ("destroy", "k"),
    ]
    assert far.received == filter.transmitted == filter.acknowledged
    assert filter.before == (far.received if decides else [])
    assert {each.member_id for *_, each in far.received} == {ny.cache.member_id} and len(
        {each for *_, each in far.received}
    ) == 5


def test_the_identity_goes_on_through_a_site_in_between_and_to_its_listener_and_resolver(network):
    ids, far = Ids(), Ids()
    ny, ln, tk = network.add("ny ln tk")
    ln.receive(), tk.receive()
    ny.send_to(ln, parallel=False, gateway_event_filters=[ids])
    ln.send_to(tk, parallel=False, gateway_event_filters=[middle := Ids()])
    for site in (ny, ln, tk):
        site.region()
    ln.data["k"] = 0  # The resolver is asked where another site changed the key before.
    ln.data.add_listener(middle)
    core_of(ln.data).set_resolver(middle)
    tk.data.add_listener(far)
    network.settle()
    del middle.before[:], middle.transmitted[:], far.received[:], ids.before[:]
    ny.data["k"] = 1
    network.settle()
    ((_, _, made),) = ids.before
    for seen in (middle.judged, middle.received, middle.before, middle.transmitted, far.received):
        assert [(key, each) for _, key, each in seen] == [("k", made)]


def test_a_local_listener_sees_the_identity_that_the_filter_saw(network):
    ids = Ids()
    ny, ln = network.add("ny ln")
    ny.send_to(ln, gateway_event_filters=[ids])
    ny.region()
    ny.data.add_listener(ids)
    change_some(ny.data)
    assert len(ids.received) == 5 and ids.received == ids.before
    assert [each for *_, each in ids.received] == [
        EventSequenceID(*_core.record_fields(record)["event_id"])
        for _, _, record in sorted(
            ny.sender(ln)._core.queue.records(), key=lambda r: _core.record_fields(r[2])["event_id"]
        )
    ]


def test_what_a_repair_of_the_clock_sends_again_is_what_its_filter_saw(network):
    ids = Ids()
    ny, ln = network.add("ny ln")
    ny.send_to(ln, parallel=False, gateway_event_filters=[ids])
    ny.region()
    run_ahead(ny.cache)
    ny.data["k"] = "ahead"
    del ids.before[:]
    ny.cache.repair_clock()
    assert [(operation, key) for operation, key, _ in ids.before] == [("update", "k")]
    *_, (_, _, record) = ny.sender(ln)._core.queue.records()
    assert _core.record_fields(record)["event_id"] == ids.before[0][2]


# Rows of a client's task


def stage(run_id, task, keys):
    """The rows of a task, whole at the member."""
    sender, made = _core.RowSender(), _core.RowStage(None, run_id=run_id, task=task)
    sender.put_columns(keys, [b"v"] * len(keys))
    sender.commit()
    made.connected(1)
    outcome = "goes on"
    while data := sender.data_to_send():
        outcome = made.receive_data(data)
    assert made.rows == len(keys), outcome
    return made


def ids_of_rows(run_id, task, keys, *, member, through_callbacks=False):
    """The identities with which the rows of a task are queued at a member."""
    queue = _core.EventQueue("ln", remote_site=2)
    queue.running = True
    region = _core.RegionCore(f"identity-{next(_names)}", _core.Clock(), site=1, member=member)
    if through_callbacks:

        def change(operation, key, value, argument, event_id=None):
            return region.change(operation, key, value, argument, (), origin_=(1, b"", event_id))

        region.attach([queue], change)
    else:
        region.attach([queue])
    assert stage(run_id, task, keys).apply(region)
    return {bytes(read_record(record).key): _core.record_fields(record)["event_id"] for _, _, record in queue.records()}


def test_the_rows_of_a_task_that_is_tried_again_have_the_same_identities():
    run, keys = bytes(range(16)), [b"a", b"b", b"c", b"d"]
    first = ids_of_rows(run, 3, keys, member=9)
    assert [first[key][2] for key in keys] == [1, 2, 3, 4] and {each[1] for each in first.values()} == {3}
    assert ids_of_rows(run, 3, keys, member=9) == first
    assert ids_of_rows(run, 3, keys, member=10) == first  # At another member,
    assert ids_of_rows(run, 3, keys, member=9, through_callbacks=True) == first  # and past filters.
    assert not set(ids_of_rows(run, 4, keys, member=9).values()) & set(first.values())
    assert not set(ids_of_rows(bytes(16), 3, keys, member=9).values()) & set(first.values())


def test_an_attempt_that_goes_on_where_another_stopped_keeps_the_identities_of_its_rows():
    """The queue has room for some of the rows at first."""
    queue = _core.EventQueue("ln", remote_site=2, memory_limit=0)
    queue.running = True
    queue.set_full_policy("refuse")
    region = _core.RegionCore(f"identity-{next(_names)}", _core.Clock(), site=1, member=9)
    region.attach([queue])
    keys = [b"%05d" % n + b"k" * 2000 for n in range(2000)]
    rows = stage(bytes(16), 5, keys)
    found = []
    while not rows.apply(region):
        assert rows.refusal is not None and len(queue)
        found += [_core.record_fields(record)["event_id"] for _, _, record in queue.records(10_000)]
        queue.clear()
    found += [_core.record_fields(record)["event_id"] for _, _, record in queue.records(10_000)]
    assert [each[2] for each in found] == list(range(1, 2001)) and len({each[:2] for each in found}) == 1


def test_a_drawn_number_uses_all_the_bits_that_were_asked_for():
    """Each bit is 0 in all of 200 draws once in 2**200 runs."""
    for bits in (1, 7, 8, 32, 63):
        ones = 0
        for _ in range(200):
            ones |= drawn_number(bits)
        assert ones == 2**bits - 1
