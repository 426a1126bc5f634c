"""A driver that knows nothing but bytes and time keeps a connection alive, and ends one that is not."""
from __future__ import annotations

import pytest

from pywan import _core
from pywan.errors import ProtocolError

SECOND = 1_000_000
REGION = "alive"
SILENCE_MS = 60_000


class Driver:
    """Moves bytes between two sessions, and the time from deadline to deadline."""

    def __init__(self):
        self.now_us = 1000 * SECOND
        self.queue = _core.EventQueue("alive", remote_site=2)
        self.queue.running = True
        self.region = _core.RegionCore(REGION, _core.Clock(), site=1)
        self.region.attach([self.queue])
        self.there = _core.RegionCore(REGION, _core.Clock(), site=2)
        self.dispatcher = _core.DispatcherSession(self.queue, 0, _core.EventQueue("parked", partitions=8))
        self.dispatcher.configure(100, 1000)
        self.receiver = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), lambda name: self.there, None)
        self.dispatcher.connected(1000, 1 << 20, self.now_us)
        self.receiver.connected(self.now_us, SILENCE_MS)
        self.sent = 0
        self.there_is_a_way, self.there_is_a_way_back = True, True

    def pump(self) -> None:
        while data := self.dispatcher.data_to_send(self.now_us):
            self.sent += 1
            if self.there_is_a_way:
                self.receiver.receive_data(data, self.now_us)
        answer = self.receiver.data_to_send(self.now_us)
        if answer and self.there_is_a_way_back:
            self.dispatcher.receive_data(answer, self.now_us)

    def run_until(self, end_us: int) -> None:
        """From deadline to deadline: a driver that looks more often than it is told to would keep anything alive."""
        while self.now_us < end_us:
            self.pump()
            self.now_us = min(end_us, max(self.now_us + 1, min(self.dispatcher.next_us(self.now_us), self.receiver.next_us())))


def test_an_idle_connection_lives_by_its_own_deadlines():
    driver = Driver()
    driver.run_until(driver.now_us + 600 * SECOND)
    assert driver.sent == 119           # A ping just behind every 5 s, and nothing else.


def test_a_batch_that_is_not_full_leaves_when_its_time_is_over():
    driver = Driver()
    driver.pump()
    driver.region.put("k", "v")
    driver.pump()
    assert "k" not in driver.there
    driver.run_until(driver.now_us + SECOND + 1)
    assert driver.there.get("k") == "v" and len(driver.queue) == 0


def test_a_receiver_that_says_nothing_is_given_up():
    driver = Driver()
    began = driver.now_us
    driver.there_is_a_way_back = False
    with pytest.raises(ProtocolError, match=r"no answer from the receiver for 30\.0 s"):
        driver.run_until(began + 600 * SECOND)
    assert driver.now_us == began + 30 * SECOND + 1 and driver.dispatcher.is_given_up


def test_a_receiver_that_does_not_work_on_what_was_sent_is_given_up():
    driver = Driver()
    driver.run_until(driver.now_us + 100 * SECOND)
    driver.region.put("k", "v")
    driver.dispatcher.flush(True)
    driver.there_is_a_way_back = False
    with pytest.raises(ProtocolError, match=r"no progress by the receiver for 30\.0 s, with 1 events on their way"):
        driver.run_until(driver.now_us + 600 * SECOND)


def test_a_sender_that_says_nothing_is_given_up():
    driver = Driver()
    driver.run_until(driver.now_us + 100 * SECOND)
    driver.there_is_a_way = False
    driver.dispatcher.configure(100, 1000, silence_ms=1_000_000)
    with pytest.raises(ProtocolError, match="silent for more than maximum-time-between-pings = 60000 ms"):
        driver.run_until(driver.now_us + 600 * SECOND)
