"""A driver that knows nothing but bytes and time keeps a connection alive, and ends one that is not."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket

import pytest

from pywan import _core
from pywan.errors import ProtocolError
from pywan.member import staging
from pywan.testing.waiting import LIMIT_S
from support.records import (
    BATCH,
    BYE,
    ERROR,
    FRAME_ACK,
    PING,
    PONG,
    REGION as REGION_FRAME,
    make_batch,
    make_record,
    split_frames,
)

SECOND = 1_000_000
REGION = "alive"
RECEIVE_TIMEOUT_MS = 60_000
PROGRESS = _core.FRAME_PROGRESS
_names = itertools.count()


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
        self.receiver = _core.ReceiverSession(
            _core.SourceMemory(1), _core.ReceiverCounts(), lambda name: self.there, None
        )
        self.dispatcher.connected(1000, 1 << 20, self.now_us)
        self.receiver.connected(self.now_us, RECEIVE_TIMEOUT_MS)
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
            self.now_us = min(
                end_us,
                max(self.now_us + 1, min(self.dispatcher.next_us(self.now_us), self.receiver.next_us(self.now_us))),
            )


def test_an_idle_connection_lives_by_its_own_deadlines():
    driver = Driver()
    driver.run_until(driver.now_us + 600 * SECOND)
    assert driver.sent == 119  # A ping just behind every 5 s, and nothing else.


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
    driver.dispatcher.configure(100, 1000, receive_timeout_ms=1_000_000)
    with pytest.raises(ProtocolError, match="silent for more than maximum-time-between-pings = 60000 ms"):
        driver.run_until(driver.now_us + 600 * SECOND)


# The receiver


def region_of_callbacks(apply):
    """A receiver's session with a region whose events go through `apply`, user's Python."""
    region = _core.RegionCore(f"alive{next(_names)}", _core.Clock(), site=2)
    region.set_callback_path(lambda *change: None)
    session = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), {region.name: region}.get, apply)
    session.connected(1000 * SECOND, RECEIVE_TIMEOUT_MS)
    return region, session


def batch_for(region, events):
    payload, count = make_batch((0, 1, events, 0, [make_record(b"k", region=1)] * events))
    return _core.pack_frame(REGION_FRAME, region.name.encode(), 1) + _core.pack_frame(BATCH, payload, 0, count)


def types(data):
    return [frame.type for frame in split_frames(data)]


def test_a_contested_sender_is_given_up_after_its_own_deadline():
    driver = Driver()
    assert driver.receiver.next_us(driver.now_us) == driver.now_us + RECEIVE_TIMEOUT_MS * 1000 + 1
    driver.receiver.contest()
    due = driver.receiver.next_us(driver.now_us)
    assert due == driver.now_us + 8 * SECOND + 1
    assert driver.receiver.data_to_send(due - 1) == b""
    with pytest.raises(ProtocolError, match="opened elsewhere"):
        driver.receiver.data_to_send(due)
    assert driver.receiver.next_us(due) is None


def test_a_sender_whose_bytes_make_no_sense_is_told_why():
    driver = Driver()
    driver.receiver.receive_data(_core.pack_frame(PING, b""), driver.now_us)
    with pytest.raises(ProtocolError, match="not a frame of this protocol"):
        driver.receiver.receive_data(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", driver.now_us)
    assert driver.receiver.next_us(driver.now_us) == driver.now_us
    pong, error = split_frames(driver.receiver.data_to_send(driver.now_us))
    assert pong.type == PONG and error.type == ERROR and b"not a frame of this protocol" in error.payload
    with pytest.raises(ProtocolError, match="the receiver says: not a frame"):
        driver.dispatcher.receive_data(error.raw, driver.now_us)
    assert driver.dispatcher.is_refused


def test_a_sender_that_says_goodbye_is_the_last_of_its_connection():
    driver = Driver()
    assert driver.receiver.receive_data(_core.pack_frame(PING, b""), driver.now_us)
    assert not driver.receiver.receive_data(_core.pack_frame(BYE, b""), driver.now_us)


def test_a_sender_that_takes_no_answer_is_given_up_by_what_the_driver_could_not_send():
    driver = Driver()
    began = driver.now_us
    driver.receiver.receive_data(_core.pack_frame(PING, b""), began)
    unsent = len(driver.receiver.data_to_send(began))
    due = driver.receiver.next_us(began)
    assert due == began + 30 * SECOND + 1
    driver.receiver.receive_data(_core.pack_frame(PING, b""), began + SECOND)
    assert driver.receiver.data_to_send(due - 1, unsent) == b""
    with pytest.raises(ProtocolError, match=r"took nothing of what it is told for 30\.0 s"):
        driver.receiver.data_to_send(due, unsent)


def test_what_has_left_is_waited_for_no_more():
    driver = Driver()
    for _ in range(5):
        driver.receiver.receive_data(_core.pack_frame(PING, b""), driver.now_us)
        assert types(driver.receiver.data_to_send(driver.now_us)) == [PONG]
        driver.now_us += 20 * SECOND
        assert driver.receiver.data_to_send(driver.now_us) == b""


def test_a_long_batch_tells_its_progress_by_the_drivers_clock():
    """A callback takes a second, of 60 events: the dispatcher, which gives up after 30 s, hears of it in time."""
    driver = Driver()

    def apply(core, record, place):
        driver.now_us += SECOND
        return _core.APPLY_DONE

    told = []
    region, session = region_of_callbacks(apply)

    def send(data):
        told.append(data)
        driver.dispatcher.receive_data(data, driver.now_us)

    session.driven_by(lambda: driver.now_us, send)
    driver.there = region
    driver.receiver = session
    driver.region = _core.RegionCore(region.name, _core.Clock(), site=1)
    driver.region.attach([driver.queue])
    for n in range(60):
        driver.region.put(n, "v")
    driver.dispatcher.flush(True)
    began = driver.now_us
    driver.pump()
    assert driver.now_us == began + 60 * SECOND
    frames = split_frames(b"".join(told))
    assert [frame.type for frame in frames] == [PROGRESS] * 60 and [frame.id for frame in frames] == list(range(1, 61))
    driver.pump()
    assert len(driver.queue) == 0 and driver.dispatcher.next_us(driver.now_us) > driver.now_us


def test_progress_waits_in_front_of_the_acknowledgement_where_nothing_leaves_meanwhile():
    clock = itertools.count(1000 * SECOND, SECOND)
    region, session = region_of_callbacks(lambda *event: _core.APPLY_DONE)
    session.driven_by(lambda: next(clock))
    session.receive_data(batch_for(region, 5), 1000 * SECOND)
    assert types(session.data_to_send()) == [PROGRESS] * 5 + [FRAME_ACK]


def test_parts_of_a_frame_that_come_slowly_are_progress():
    region, session = region_of_callbacks(lambda *event: _core.APPLY_DONE)
    data = batch_for(region, 1)
    received = []
    for n, at in enumerate(range(0, len(data), 16)):
        session.receive_data(data[at : at + 16], 1000 * SECOND + n * SECOND)
        received += types(session.data_to_send(1000 * SECOND + n * SECOND))
    assert received[-1] == FRAME_ACK and set(received[:-1]) == {PROGRESS} and len(received) > 5


# The dispatcher


def test_a_filter_that_takes_long_does_not_look_like_a_dead_sender():
    """Over 200 s of filtering the receiver, which bears 60 s of silence, hears pings by the driver's clock."""
    driver = Driver()

    def takes_long(event):
        driver.now_us += 10 * SECOND
        assert driver.receiver.data_to_send(driver.now_us) is not None  # By its deadlines, it is content.
        return True

    driver.dispatcher.set_filters(_core.EventFilters(before_transmit=[takes_long]))
    sent = []

    def send(data):
        sent.extend(types(data))
        driver.receiver.receive_data(data, driver.now_us)

    driver.dispatcher.driven_by(lambda: driver.now_us, send)
    for n in range(20):
        driver.region.put(n, "v")
    driver.dispatcher.flush(True)
    driver.pump()
    assert len(driver.there) == 20 and sent == [PING] * 19


# A client's rows


class Task:
    """A client's rows and the member's stage, by bytes and time."""

    def __init__(self, receive_timeout_ms=staging.RECEIVE_TIMEOUT_MS, budget=None):
        self.now_us = 1000 * SECOND
        self.sender, self.stage = _core.RowSender(timeout_s=60.0), _core.RowStage(None, budget)
        self.stage.connected(self.now_us, receive_timeout_ms)
        self.region = _core.RegionCore(f"alive{next(_names)}", _core.Clock(), site=1, stores=True)

    def pump(self):
        """Whether the member waits for more."""
        goes_on = True
        while data := self.sender.data_to_send(self.now_us):
            goes_on = self.stage.receive_data(data, self.now_us)
        return goes_on

    def answer(self, data):
        return self.sender.receive_data(data, self.now_us)


def test_a_stage_that_only_the_garbage_collector_finds_gives_its_share_of_the_budget_back():
    budget = _core.StageBudget(1 << 30)
    stage, sender = _core.RowStage(None, budget), _core.RowSender()
    stage.connected(SECOND)
    sender.put_pairs((n, n) for n in range(1000))
    sender.flush()
    stage.receive_data(sender.data_to_send(SECOND), SECOND)
    # A cycle, in which the collector meets the stage first: it is the oldest.
    stage.driven_by(lambda stage=stage: SECOND)
    del stage
    assert budget.used > 0
    gc.collect()
    assert budget.used == 0


def test_a_task_that_computes_for_most_of_a_day_between_two_rows_commits():
    """Nobody drives its side meanwhile."""
    task = Task()
    task.sender.put_pairs([("a", 1)])
    task.sender.flush()
    assert task.pump()
    task.now_us += 23 * 3600 * SECOND
    assert task.stage.data_to_send(task.now_us) == b"" and task.stage.next_us(task.now_us) > task.now_us
    task.sender.put_pairs([("b", 2)])
    task.sender.commit()
    assert not task.pump()
    assert task.stage.apply(task.region) and (task.region.get("a"), task.region.get("b")) == (1, 2)


def test_a_client_that_is_driven_pings_and_one_that_is_silent_for_its_limit_is_told_and_given_up():
    task = Task(receive_timeout_ms=100_000)
    pings = 0
    for _ in range(20):
        task.now_us = min(task.sender.next_us(task.now_us), task.stage.next_us(task.now_us))
        data = task.sender.data_to_send(task.now_us)
        pings += types(data).count(PING)
        assert task.stage.receive_data(data, task.now_us) and task.stage.data_to_send(task.now_us) == b""
    assert pings == 20
    task.now_us = task.stage.next_us(task.now_us)
    with pytest.raises(ProtocolError, match="the client was silent for more than 100000 ms"):
        task.stage.data_to_send(task.now_us)
    [error] = split_frames(task.stage.data_to_send(task.now_us))
    assert not task.answer(error.raw) and b"was silent" in task.sender.answer


def test_rows_that_make_no_sense_are_refused_in_words():
    task = Task()
    with pytest.raises(ProtocolError, match="batch of 0 sections"):
        task.stage.receive_data(_core.pack_frame(BATCH, bytes(8)), task.now_us)
    assert types(task.stage.data_to_send(task.now_us)) == [ERROR]


def test_a_member_that_takes_nothing_is_given_up_by_what_the_driver_could_not_send():
    task = Task()
    task.sender.put_pairs([("a", bytes(1000))])
    task.sender.flush()
    unsent = len(task.sender.data_to_send(task.now_us))
    for _ in range(5):  # It takes a little now and then.
        task.now_us += 50 * SECOND
        unsent -= 100
        assert task.sender.data_to_send(task.now_us, unsent) == b""
    due = task.sender.next_us(task.now_us)
    assert due == task.now_us + 60 * SECOND + 1
    with pytest.raises(ProtocolError, match=r"the member took nothing for 60\.0 s"):
        task.sender.data_to_send(due, unsent)


def test_a_member_that_works_on_a_task_is_waited_for_and_one_that_hangs_is_not():
    task = Task()
    task.sender.put_pairs((n, n) for n in range(100))
    task.sender.commit()
    assert not task.pump()
    for steps in range(1, 10):
        task.now_us += 50 * SECOND
        task.stage.tell_progress(steps)
        task.stage.tell_progress(steps)  # No progress: it is not told again.
        data = task.stage.data_to_send(task.now_us)
        assert types(data) == [PROGRESS] and task.answer(data)
        assert task.sender.data_to_send(task.now_us) == b""
    due = task.sender.next_us(task.now_us)
    assert due == task.now_us + 60 * SECOND + 1
    with pytest.raises(ProtocolError, match=r"no answer, and no progress by the member for 60\.0 s"):
        task.sender.data_to_send(due)


def test_the_members_answer_ends_a_task():
    task = Task()
    task.sender.put_columns(["a", "b"], ["1", "2"])
    task.sender.commit()
    assert not task.pump() and task.stage.apply(task.region)
    answer = _core.pack_frame(_core.FRAME_COMMITTED, b"done")
    assert task.answer(answer[:20])  # A part of it.
    assert not task.answer(answer[20:])
    assert task.sender.answer == answer[:36] and task.sender.next_us(task.now_us) is None


# Another driver


class Loop:
    """Drives a session in an event loop, over a socket: bytes as they come, deadlines as they are due."""

    def __init__(self, session, sock):
        self.session, self.sock = session, sock
        self.loop, self.woken = asyncio.get_running_loop(), asyncio.Event()
        session.driven_by(self.now_us)
        sock.setblocking(False)

    def now_us(self):
        return int(self.loop.time() * SECOND)

    async def run(self):
        """Until the other end closes, or the session ends. ProtocolError: why it was given up."""
        goes_on, reading = True, self.loop.create_task(self.loop.sock_recv(self.sock, 1 << 16))
        waking = self.loop.create_task(self.woken.wait())
        try:
            while goes_on:
                while data := self.session.data_to_send(self.now_us()):
                    await self.loop.sock_sendall(self.sock, data)
                due = self.session.next_us(self.now_us())
                wait_s = None if due is None else max(0, due - self.now_us()) / SECOND
                await asyncio.wait((reading, waking), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if waking.done():
                    self.woken.clear()
                    waking = self.loop.create_task(self.woken.wait())
                if reading.done():
                    data = reading.result()
                    goes_on = bool(data) and self.session.receive_data(data, self.now_us())
                    reading = self.loop.create_task(self.loop.sock_recv(self.sock, 1 << 16))
            while data := self.session.data_to_send(self.now_us()):
                await self.loop.sock_sendall(self.sock, data)
        finally:
            reading.cancel()
            waking.cancel()


def test_two_sites_exchange_events_over_an_event_loop():
    async def exchange():
        driver = Driver()
        driver.receiver.connected(0, RECEIVE_TIMEOUT_MS)
        driver.dispatcher.connected(1000, 1 << 20, 0)
        driver.dispatcher.configure(100, 5)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sending, receiving = Loop(driver.dispatcher, ours), Loop(driver.receiver, theirs)
            ends = [asyncio.ensure_future(each.run()) for each in (sending, receiving)]
            for n in range(1000):
                driver.region.put(n, n)
                if n % 100 == 0:
                    sending.woken.set()
                    await asyncio.sleep(0)
            sending.woken.set()
            async with asyncio.timeout(30):
                while len(driver.queue):
                    await asyncio.sleep(0.001)
            assert len(driver.there) == 1000 and driver.there.get(999) == 999
            ours.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(*ends)

    asyncio.run(exchange())


def test_a_client_commits_rows_over_an_event_loop_to_a_stage_over_the_other_one():
    async def commit():
        task = Task()
        task.stage.connected(0, RECEIVE_TIMEOUT_MS)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sending, staging_ = Loop(task.sender, ours), Loop(task.stage, theirs)
            task.sender.put_pairs((n, n) for n in range(50_000))
            task.sender.commit()
            client = asyncio.ensure_future(sending.run())
            await staging_.run()
            assert task.stage.apply(task.region) and len(task.region) == 50_000
            await sending.loop.sock_sendall(theirs, _core.pack_frame(_core.FRAME_COMMITTED, b"done"))
            await client
        assert task.sender.answer is not None

    asyncio.run(asyncio.wait_for(commit(), LIMIT_S))
