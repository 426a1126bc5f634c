"""A RegionCore does what a dict with versions does: the later (stamp, site) wins, and of one version the later content.
Sites that have seen the same changes, in any order, hold the same."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pywan import _core
from support.records import CREATE, DESTROY, UPDATE

keys = st.one_of(st.integers(0, 6), st.sampled_from(["0", "1", b"0", b"1", 0.5]))
values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=20),
    st.binary(max_size=200),
    st.floats(allow_nan=False),
)
FOREVER = 1 << 60
INVALID = object()  # The value of an entry that was invalidated.


def content(value, live):
    """By what two changes of one version are ordered, from the documented forms: destroys last; form, length, bytes."""
    if not live:
        return 1, 0, 0, b""
    form, data = _core.encode_object(value) if value is not INVALID else (0, b"")
    return 0, form, len(data), data


class RegionMachine(RuleBasedStateMachine):
    """model: key -> (value or INVALID, stamp, site, live). Keys differ by form too: 0, "0" and b"0" are three."""

    @initialize()
    def open(self):
        self.region = _core.RegionCore("model", _core.Clock(), site=1)
        self.model = {}
        self.conflicts = 0

    def slot(self, key):
        return type(key), key

    @rule(key=keys, value=values)
    def put(self, key, value):
        before = self.model.get(self.slot(key))
        self.region.put(key, value)
        found, stamp, site, live = self.region.lookup(key)
        assert (found, site, live) == (value, 1, True)
        assert before is None or stamp > before[1]  # A local change is later than whatever it replaces.
        self.model[self.slot(key)] = (value, stamp, 1, True)

    @rule(key=keys)
    def destroy(self, key):
        before = self.model.get(self.slot(key))
        try:
            self.region.destroy(key)
        except KeyError:
            assert before is None or not before[3]
            return
        assert before is not None and before[3]
        _, stamp, site, live = self.region.lookup(key)
        assert stamp > before[1] and not live
        self.model[self.slot(key)] = (None, stamp, site, False)

    @rule(
        key=keys,
        value=values,
        operation=st.sampled_from([CREATE, UPDATE, DESTROY]),
        ahead=st.integers(-3, 3),
        site=st.integers(0, 3),
    )
    def remote_change(self, key, value, operation, ahead, site):
        before = self.model.get(self.slot(key))
        stamp = max(1, (before[1] if before else 1 << 40) + ahead)
        decided = self.region.decide(operation, key, (stamp, site), value=None if operation == DESTROY else value)
        outcome = self.region.change(
            operation,
            key,
            None if operation == DESTROY else value,
            version=(stamp, site),
            origin_=(site, b"", (9, 9, 9)),
        )
        if before and before[0] is INVALID and (stamp, site) == before[1:3] and operation != DESTROY:
            assert outcome == "same"  # Its value does not come back with the event that brought it.
            return
        if (
            before
            and (stamp, site) == before[1:3]
            and before[3] == (operation != DESTROY)
            and (operation == DESTROY or before[0] == value)
        ):
            assert outcome == "same"  # The very event that made the entry: nothing happens again.
            return
        assert decided == outcome
        if before and ((stamp, site), content(None if operation == DESTROY else value, operation != DESTROY)) < (
            before[1:3],
            content(before[0], before[3]),
        ):
            assert outcome == "lost"
            self.conflicts += 1
            return
        assert outcome == ("destroyed" if operation == DESTROY else "updated" if before and before[3] else "created")
        self.model[self.slot(key)] = (None if operation == DESTROY else value, stamp, site, operation != DESTROY)

    @rule(key=keys)
    def local_destroy(self, key):
        before = self.model.get(self.slot(key))
        try:
            self.region.local_destroy(key)
        except KeyError:
            assert before is None or not before[3]
            return
        assert self.model.pop(self.slot(key))[3]

    @rule(key=keys)
    def invalidate(self, key):
        before = self.model.get(self.slot(key))
        try:
            self.region.invalidate(key)
        except KeyError:
            assert before is None or not before[3]
            return
        self.model[self.slot(key)] = (INVALID, *before[1:])

    @rule(all_of_them=st.booleans())
    def expire(self, all_of_them):
        tombstones = [slot for slot, entry in self.model.items() if not entry[3]]
        dropped, left = self.region.expire_tombstones(FOREVER if all_of_them else 0)
        assert (dropped, left) == ((len(tombstones), 0) if all_of_them else (0, len(tombstones)))
        for slot in tombstones if all_of_them else ():
            del self.model[slot]

    @rule()
    def clear(self):
        live = [slot for slot, entry in self.model.items() if entry[3]]
        assert self.region.clear() == len(live)
        for slot in live:
            del self.model[slot]

    @invariant()
    def every_key_is_as_in_the_model(self):
        for (_, key), (value, stamp, site, live) in self.model.items():
            assert self.region.lookup(key) == (None if value is INVALID else value, stamp, site, live)
            assert (key in self.region) == live
        live = [slot for slot, entry in self.model.items() if entry[3]]
        assert len(self.region) == len(live)
        assert sorted(map(repr, self.region.scan_keys())) == sorted(repr(key) for _, key in live)
        assert self.region.tombstones == len(self.model) - len(live)
        assert self.region.conflicts == self.conflicts


class TestRegionModel(RegionMachine.TestCase):
    settings = settings(max_examples=80, stateful_step_count=40, deadline=None, print_blob=True)


changes = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([CREATE, UPDATE, DESTROY]), st.integers(1, 6), st.integers(1, 3)),
    min_size=1,
    max_size=20,
    unique_by=lambda change: change[2:] + change[:1],
)


@settings(max_examples=200, deadline=None)
@given(changes, st.data())
def test_sites_that_see_the_same_changes_in_any_order_hold_the_same(changes, data):
    """(key, operation, stamp, site), a version only once for each key: whatever the order, and whatever comes twice."""
    order = data.draw(st.permutations(changes + data.draw(st.lists(st.sampled_from(changes), max_size=5))))
    ends = []
    for sequence in (changes, order):
        region = _core.RegionCore("model", _core.Clock(), site=9)
        for key, operation, stamp, site in sequence:
            region.change(
                operation,
                key,
                None if operation == DESTROY else (stamp, site).__repr__(),
                version=(stamp, site),
                origin_=(site, b"", (1, 1, 1)),
            )
        ends.append({key: region.lookup(key) for key in range(4)})
    assert ends[0] == ends[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=40), st.data())
def test_two_sites_that_exchange_their_changes_in_any_order_between_keys_converge(steps, data):
    """Each site changes on its own; what each sent arrives in its order per key, mixed at will with what the other
    does.
    """
    regions, queues = [], []
    for site in (1, 2):
        region = _core.RegionCore("pair", _core.Clock(), site=site)
        queue = _core.EventQueue("to the other", remote_site=3 - site)
        queue.running = True
        region.attach([queue])
        regions.append(region)
        queues.append(queue)
    for which, key, destroy in steps:
        with contextlib.suppress(KeyError):
            regions[which].destroy(key) if destroy else regions[which].put(key, f"{which}-{len(queues[which])}")
        if data.draw(st.booleans()):
            _pass_on(queues[which], regions[1 - which], data.draw(st.integers(1, 3)))
    for which in (0, 1):
        _pass_on(queues[which], regions[1 - which], 1000)
    for key in range(4):
        mine, theirs = (region.lookup(key) for region in regions)
        assert mine == theirs


def _pass_on(queue, region, count):
    for record in queue.peek(0, count):
        fields = _core.record_fields(record)
        value = _core.decode_object(*fields["value"])
        region.change(
            fields["operation"],
            _core.decode_object(*fields["key"]),
            value,
            version=(fields["stamp"], fields["stamp_site"]),
            origin_=(fields["origin_site"], fields["recipients"], fields["event_id"]),
        )
