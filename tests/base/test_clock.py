"""A member does not follow a clock of its own that jumps ahead: its events arrive, and it says what is wrong."""

from __future__ import annotations

import logging
import time

import pytest

import pywan.member.cache
from pywan import _core
from pywan.testing.waiting import eventually
from support.clocks import HOUR, Machine
from support.records import BATCH, GIVEN, REGION, make_batch, make_record

LN = 2


@pytest.fixture
def machine():
    found = Machine(_core.Clock())
    assert found.stamp_ahead() == 0
    return found


def test_a_clock_that_jumps_ahead_is_not_followed_and_is_when_it_is_back(machine):
    machine.jump(HOUR)
    assert machine.stamp_ahead() == 0 and machine.clock.held_ms == HOUR
    machine.run(7000)
    assert machine.stamp_ahead() == 0 and machine.clock.held_ms == HOUR
    machine.jump(-HOUR)
    assert machine.stamp_ahead() == 0 and machine.clock.held_ms == 0
    machine.jump(HOUR)
    assert machine.stamp_ahead() == 0


@pytest.mark.parametrize("step", [-60_000, -100, 100, 60_000])
def test_small_steps_are_followed(machine, step):
    machine.run(1000)
    machine.jump(step)
    assert machine.clock.held_ms == 0 and (machine.clock.take() >> 16) - machine.true_ms == max(step, -1000)


def test_many_small_steps_one_way_are_a_jump(machine):
    for _ in range(120):
        machine.run(10_000)
        machine.jump(1000)
    assert machine.stamp_ahead() == 0 and machine.clock.held_ms == 120_000


def test_a_clock_that_goes_back_may_come_forward_again(machine):
    machine.jump(-HOUR)
    machine.clock.take()
    machine.run(HOUR // 2)
    machine.jump(HOUR)
    assert machine.clock.held_ms == 0 and machine.stamp_ahead() == 0


def test_a_jump_that_another_site_agrees_with_is_followed(machine):
    machine.jump(HOUR)
    assert machine.stamp_ahead() == 0
    for disagreeing in (-HOUR, HOUR, -61_000, 61_000):
        machine.clock.receive(machine.true_ms + HOUR + disagreeing << 16)
        assert machine.clock.held_ms == HOUR
    machine.clock.receive(machine.true_ms + HOUR - 30_000 << 16)
    assert machine.clock.held_ms == 0 and machine.stamp_ahead() == HOUR


def receive(machine, *ahead_ms, flags=0):
    """Which events of those with stamps so far ahead of the true time are applied."""
    region = _core.RegionCore("data", machine.clock, site=LN, member=2)
    session = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), {"data": region}.get, None)
    records = [make_record(b"%d" % n, stamp=machine.true_ms + ms << 16, flags=flags) for n, ms in enumerate(ahead_ms)]
    payload, count = make_batch((0, 1, len(records), 0, records))
    session.receive_data(_core.pack_frame(REGION, b"data", 1))
    session.receive_data(_core.pack_frame(BATCH, payload, 0, count))
    return [n for n in range(len(ahead_ms)) if b"%d" % n in region]


def test_a_receiver_whose_clock_was_corrected_takes_the_events_of_the_others(machine):
    machine.jump(HOUR)
    assert receive(machine, -HOUR, HOUR) == [0, 1]
    assert machine.stamp_ahead() == HOUR


def test_a_receiver_whose_clock_jumped_takes_no_stamps_of_callers_for_the_time(machine):
    machine.jump(HOUR)
    assert receive(machine, 0, HOUR, flags=GIVEN) == [0]
    assert machine.stamp_ahead() == 0 and machine.clock.held_ms == HOUR


def test_events_of_a_member_whose_clock_jumps_arrive_and_it_says_so(network, monkeypatch, caplog):
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 0.02)
    ny, ln = network.mesh("ny ln")
    machine = Machine(ny.cache._core.state.clock, time.time_ns() // 1_000_000)
    ny.data.put("before", 1)
    eventually(lambda: "before" in ln.data, what="the event")
    machine.jump(HOUR)
    sender = ny.sender(ln)
    with caplog.at_level(logging.ERROR, "pywan.cache"):
        ny.data.put("while", 1)
        eventually(lambda: "while" in ln.data, what="an event of the time of the jump")
        eventually(lambda: any("it jumped ahead" in r.getMessage() for r in caplog.records), what="the log line")
    assert sender.lag()["cause"].startswith("clock: it jumped ahead")
    machine.jump(-HOUR)
    ny.data.put("after", 1)
    eventually(lambda: "after" in ln.data, what="an event of the time after")
    assert sender.parked_count == 0
    eventually(lambda: sender.lag()["cause"] == "none", what="a right clock")
    ln.data.put("after", 2)
    eventually(lambda: ny.data.get("after") == 2, what="a newer change of the other site")


def test_stamps_that_run_ahead_of_the_clock_are_named(network, monkeypatch, caplog):
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 0.02)
    ny, ln = network.mesh("ny ln")
    with caplog.at_level(logging.ERROR, "pywan.cache"):
        # As from a log that a clock before wrote.
        ny.cache._core.state.clock.see(time.time_ns() // 1_000_000 + HOUR << 16)
        eventually(
            lambda: any("stamps are 35" in r.getMessage() or "stamps are 36" in r.getMessage() for r in caplog.records),
            what="the log line",
        )
    assert ny.sender(ln).lag()["cause"].startswith("clock: stamps are 3")
