"""Which member sends the events of a bucket that several members hold."""

from __future__ import annotations

import pytest

from pywan.coordination.tables import NO_DECISION, MemberProfile
from pywan.member.feeding import Feeding, running, sender_of
from pywan.member.sender_roles import role_name
from support.feeding import BUCKETS, A, B, C, Sender, bucket, profile


@pytest.mark.parametrize(
    ("decided", "primary", "runs", "sends"),
    [
        (bucket(A, A, B), B, {A, B}, B),  # The sender's primary has a replica.
        (bucket(A, A, B), C, {A, B, C}, A),  # It has none.
        (bucket(A, A, B), C, {B, C}, B),  # Nor does the sender run at the bucket's primary.
        (bucket(A, A, B), C, {C}, None),
        (bucket(A, A, B), None, set(), None),
        (bucket(None, A, B), B, {A, B}, B),  # A new primary of the bucket is awaited: what counts may leave.
    ],
)
def test_one_holder_sends_where_the_sender_runs(decided, primary, runs, sends):
    assert sender_of(decided, primary, runs) == sends


def test_a_parallel_sender_sends_at_each_primary_and_a_serial_one_at_its_own():
    primaries = {"serial": A}
    feeding = Feeding(primaries.get)
    parallel, serial = Sender("parallel", True), Sender("serial", False)
    feeding.fed("data", [parallel, serial])
    feeding.see_members([profile(A, "parallel", "serial"), profile(B, "parallel", "serial")])
    for me, of_parallel, of_serial in ((A, {0}, {0, 1}), (B, {1, 2}, {2}), (C, set(), set())):
        feeding.see(me, {"data": BUCKETS})
        assert (parallel.queue.led, serial.queue.led) == (of_parallel, of_serial)
    primaries["serial"] = B
    feeding.see(A, {"data": BUCKETS})
    assert serial.queue.led == set()


def test_a_serial_sender_takes_events_while_it_runs_anywhere():
    feeding = Feeding(lambda id: None)
    parallel, serial = Sender("parallel", True), Sender("serial", False)
    feeding.fed("data", [parallel, serial])
    moved = feeding.see_members([profile(A, "serial"), profile(B, "parallel", "serial")])
    assert moved == {"parallel", "serial"} and feeding.note_runs_on_others(moved, A) == [serial]
    assert serial.runs_on_others and not parallel.runs_on_others
    assert feeding.see_members([profile(A, "serial"), profile(B, "parallel", "serial")]) == set()
    moved = feeding.see_members([profile(A, "serial"), profile(B)])
    assert feeding.note_runs_on_others(moved, A) == [serial] and not serial.runs_on_others


def test_a_member_that_created_a_sender_and_does_not_run_it_is_not_among_those_where_it_runs():
    idle = MemberProfile(A, "127.0.0.1", 1, 1, "site", NO_DECISION, "1", ((role_name("ln"), 0), ("data", 1)))
    assert running([idle, profile(B, "ln")]) == {"ln": {B}}


def test_a_sender_is_told_at_once_which_buckets_of_all_regions_it_sends():
    feeding = Feeding({"serial": A}.get)
    serial = Sender("serial", False)
    for region in ("data", "more"):
        feeding.fed(region, [serial])
    feeding.see_members([profile(A, "serial"), profile(B, "serial")])
    feeding.see(A, {"data": {0: BUCKETS[0]}, "more": {1: BUCKETS[1]}})
    assert serial.queue.led == {0, 101} and serial.queue.calls == 1
