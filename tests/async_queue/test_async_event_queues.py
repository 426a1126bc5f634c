"""Asynchronous event queues on one member: what a listener hears, what becomes of what it fails on, and the ends of
queue, cache and process while it works.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan import forks
from pywan.errors import (
    AsyncEventQueueConfigurationError,
    DataLossError,
    GatewaySenderError,
    IllegalStateError,
    NotFoundError,
    PywanError,
)
from pywan.gateway import dispatchers
from pywan.stats import check_ledger
from pywan.testing.processes import python_environment
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually

both = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
FORMS = ("plain", "async")


class RecordingListener(pywan.AsyncEventListener):
    """Keeps what it hears. `answer(batch)` is what it returns, or raises; `hold` keeps it in its calls."""

    def __init__(self, answer: Any = lambda batch: True) -> None:
        self.answer = answer
        self.hold = threading.Event()
        self.hold.set()
        self.inside = threading.Event()
        self.called: list[float] = []
        self.events: list[tuple[Any, ...]] = []  # (operation, key, value, possible duplicate) of batches that it took.
        self.batches: list[int] = []  # The sizes of all batches, repeats too.
        self.repeated: list[tuple[Any, bool]] = []  # Of all batches: (key, possible duplicate).
        self.closed = 0
        self.lock = threading.Lock()

    def process_events(self, events: Any) -> bool:
        with self.lock:
            self.called.append(time.monotonic())
            self.batches.append(len(events))
            self.repeated += [(event.key, event.possible_duplicate) for event in events]
        self.inside.set()
        assert self.hold.wait(LIMIT_S)
        answer = self.answer(events)
        if answer:
            with self.lock:
                self.events += [(e.operation, e.key, e.value, e.possible_duplicate) for e in events]
        return answer

    def close(self) -> None:
        self.closed += 1

    @property
    def taken(self) -> list[Any]:
        return [event[1] for event in self.events]

    def of(self, key: Any) -> list[Any]:
        return [value for _, received, value, _ in self.events if received == key]


def awaitable(received: RecordingListener) -> Any:
    class Awaited:
        async def process_events(self, events: Any) -> bool:
            await asyncio.sleep(0)
            return received.process_events(events)

        async def close(self) -> None:
            received.close()

    return Awaited()


def formed(form: str, received: RecordingListener) -> Any:
    return received if form == "plain" else awaitable(received)


@pytest.fixture
def ny(network):
    """A site with one member. At its end the ledgers of its queues balance, too."""
    site = network.add("ny")[0]
    yield site
    for queue in site.cache.async_event_queues().values():
        check_ledger(queue._core.what, queue.ledger())


def feed(site: Any, listener: Any, *, type: str = "REPLICATE", id: str = "audit", **attributes: Any) -> tuple[Any, Any]:
    """A queue with that listener, and the region `data` that feeds it."""
    queue = site.cache.create_async_event_queue(id, listener, **attributes)
    return queue, site.cache.create_region("data", type=type, async_event_queue_ids=[id])


def kind(parallel: bool) -> dict[str, Any]:
    return {"parallel": parallel, "type": "PARTITION" if parallel else "REPLICATE"}


# What Geode's tests ask


@both
def test_C_181_a_thousand_wait_while_it_is_paused_and_the_listener_receives_each_once(ny, parallel):
    received = RecordingListener()
    queue, data = feed(ny, received, **kind(parallel))
    queue.pause()
    for n in range(1000):
        data[n] = n
    assert queue.queue_size == 1000 and received.events == []
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(1000)) and not any(event[3] for event in received.events)
    assert queue.is_primary and queue.stats["events_distributed"] == 1000


@both
def test_C_181_a_stop_and_a_start_keep_the_thousand(ny, parallel):
    """A named difference: in Geode a serial queue is empty then."""
    received = RecordingListener()
    queue, data = feed(ny, received, pause_event_processing=True, **kind(parallel))
    data.put_all({n: n for n in range(1000)})
    queue.stop()
    assert queue.status == "Not running" and queue.queue_size == (1000 if parallel else 0)
    data["while it is stopped"] = 1
    queue.start()
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(1000))
    assert queue.ledger()["dropped"]["sender not running"] == 1


@pytest.mark.parametrize("row", ["C-181", "C-187", "C-190", "C-193"])
def test_C_181_C_187_C_190_C_193_on_several_members_it_is_refused_by_name(ny, row):
    """A second member that would have the region: with queues, or as an accessor or proxy."""
    type = "REPLICATE" if row == "C-181" else "PARTITION"
    _queue, data = feed(ny, RecordingListener(), type=type)
    with pywan.Cache("second", locators=str(ny.locator.address)) as second:
        second.create_async_event_queue("audit", RecordingListener())
        proxy = "_PROXY" if row == "C-193" else ""
        with pytest.raises(PywanError, match="asynchronous event queues"):
            second.create_region("data", type=type + proxy, async_event_queue_ids=["audit"])
        shared = second.create_region("shared", type=type)
        ny.cache.create_region("shared", type=type)
        with pytest.raises(IllegalStateError, match=r"feed .*audit: .*asynchronous queue in this version"):
            shared.alter(async_event_queue_ids=["audit"])
    data["k"] = 1


@both
def test_C_182_with_conflation_a_thousand_of_fifteen_hundred_are_received(ny, parallel):
    received = RecordingListener()
    queue, data = feed(ny, received, enable_batch_conflation=True, pause_event_processing=True, **kind(parallel))
    for n in range(500):
        data[n] = "created"
    for value in ("updated", "updated again"):
        for n in range(500):
            data[n] = value
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert len(received.events) == 1000 and queue.ledger()["conflated"] == 500
    assert all(received.of(n) == ["created", "updated again"] for n in range(500))


@pytest.mark.parametrize("form", FORMS)
@both
def test_C_184_the_listener_fails_once_and_all_hundred_are_received(ny, parallel, form):
    failures = iter([ConnectionError("no database")])

    def fail_once(batch: Any) -> bool:
        for error in failures:
            raise error
        return True

    received = RecordingListener(fail_once)
    queue, data = feed(ny, formed(form, received), dispatcher_threads=1, **kind(parallel))
    for n in range(100):
        data[n] = n
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(100))
    assert queue.stats["possible_duplicates_sent"] == sum(event[3] for event in received.events) > 0


@pytest.mark.parametrize("persistent", [False, True])
def test_C_187_a_parallel_queue_receives_256_of_a_region_and_of_one_colocated_with_it(ny, tmp_path, persistent):
    """The queue of a child region only, too: its parent feeds none."""
    if persistent:
        ny.cache.close()
        ny.start_member(dir=tmp_path)
    received = RecordingListener()
    queue = ny.cache.create_async_event_queue("audit", received, parallel=True, persistent=persistent)
    parent = ny.cache.create_region("orders", type="PARTITION")
    child = ny.cache.create_region("lines", colocated_with="orders", async_event_queue_ids=["audit"])
    for n in range(256):
        parent[n] = child[n] = n
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(256))
    parent.alter(async_event_queue_ids=["audit"])
    parent.put_all({n: -n for n in range(1000)})
    assert queue.wait_until_flushed(LIMIT_S)
    assert len(received.events) == 1256


def test_C_188_a_parallel_queue_on_a_replicated_region_is_a_configuration_error(ny):
    ny.cache.create_async_event_queue("audit", RecordingListener(), parallel=True)
    with pytest.raises(AsyncEventQueueConfigurationError, match=r"async event queue 'audit' is parallel .*REPLICATE"):
        ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])
    assert ny.cache.regions() == {}
    data = ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["later"])
    with pytest.raises(AsyncEventQueueConfigurationError, match="'later' is parallel"):
        ny.cache.create_async_event_queue("later", RecordingListener(), parallel=True)
    with pytest.raises(AsyncEventQueueConfigurationError, match="thread does not go with parallel"):
        ny.cache.create_async_event_queue("third", RecordingListener(), parallel=True, order_policy="thread")
    with pytest.raises(AsyncEventQueueConfigurationError, match="dispatcher_threads: 0"):
        ny.cache.create_async_event_queue("third", RecordingListener(), dispatcher_threads=0)
    data["k"] = 1
    assert set(ny.cache.async_event_queues()) == {"audit"}


@both
def test_C_191_created_paused_it_receives_nothing_before_a_resume(ny, parallel):
    received = RecordingListener()
    queue, data = feed(ny, received, pause_event_processing=True, **kind(parallel))
    assert queue.is_running and queue.is_paused and queue.status == "Paused"
    for n in range(1000):
        data[n] = n
    assert queue.queue_size == 1000 and queue.lag()["cause"] == "paused" and received.batches == []
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(1000)) and queue.status == "Running"


@pytest.mark.parametrize("policy", ["key", "partition", "thread", None])
def test_C_194_every_order_policy_is_complete_and_in_order_of_each_key(ny, policy):
    received = RecordingListener()
    attributes = {} if policy is None else {"order_policy": policy}
    queue, data = feed(ny, received, type="PARTITION", dispatcher_threads=4, batch_size=10, **attributes)

    def change(own: int) -> None:
        for n in range(100):
            for key in range(own, 40, 4):
                data[key] = n

    threads = [threading.Thread(target=change, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.wait_until_flushed(LIMIT_S)
    assert len(received.events) == 4000 and all(received.of(key) == list(range(100)) for key in range(40))


def test_C_196_a_filter_that_closes_the_cache_during_a_bulk_call_ends_it_with_an_error(ny):
    class Closing(pywan.GatewayEventFilter):
        def before_enqueue(self, event: Any) -> bool:
            threading.Thread(target=ny.cache.close).start()  # As another thread of the program does it.
            eventually(lambda: data.is_closed)
            return True

    queue, data = feed(ny, RecordingListener(), gateway_event_filters=[Closing()])
    with pytest.raises(PywanError):
        data.put_all({n: n for n in range(100)})
    eventually(lambda: not queue.is_running)


def test_C_197_with_batches_by_time_only_a_batch_has_all_that_came_in_that_time(ny):
    received = RecordingListener()
    queue, data = feed(
        ny, received, batch_size=-1, batch_time_interval=500, dispatcher_threads=1, pause_event_processing=True
    )
    data.put_all({n: n for n in range(5000)})
    queue.resume()
    eventually(lambda: len(received.events) == 5000)
    assert received.batches == [5000]
    began = time.monotonic()
    data["alone"] = 1
    eventually(lambda: received.of("alone") == [1])
    assert received.called[-1] - began >= 0.4


def test_C_199_a_flush_is_true_when_drained_false_at_its_time_out_and_ends_with_a_stop(ny):
    received = RecordingListener()
    queue, data = feed(ny, received, batch_time_interval=600_000, dispatcher_threads=1)
    data["k"] = 1
    began = time.monotonic()
    assert queue.wait_until_flushed(LIMIT_S) and time.monotonic() - began < SOON_S
    received.hold.clear()
    data["k"] = 2
    assert queue.wait_until_flushed(0.05) is False
    received.hold.set()
    assert queue.wait_until_flushed(LIMIT_S)
    queue.pause()
    data["k"] = 3
    flushed: list[bool] = []
    waiting = threading.Thread(target=lambda: flushed.append(queue.wait_until_flushed(10 * LIMIT_S)))
    waiting.start()
    queue.stop()
    waiting.join(SOON_S)
    assert flushed == [False] and received.of("k") == [1, 2]


# What it hears


def test_an_event_says_what_happened_where_and_when(ny):
    received: list[Any] = []
    queue, data = feed(ny, lambda events: received.extend(events) or True, dispatcher_threads=1)
    before_ms = int(time.time() * 1000)
    data["k"] = {"price": 1.5}
    data.put("k", 2, callback_argument=("why", 3))
    del data["k"]
    assert queue.wait_until_flushed(LIMIT_S)
    assert [(e.region, e.operation, e.key, e.value) for e in received] == [
        ("data", "create", "k", {"price": 1.5}),
        ("data", "update", "k", 2),
        ("data", "destroy", "k", None),
    ]
    assert [e.callback_argument for e in received] == [None, ("why", 3), None]
    assert {e.origin_site for e in received} == {1} and not any(e.possible_duplicate for e in received)
    assert all(before_ms - 1000 <= e.creation_timestamp <= time.time() * 1000 + 1000 for e in received)
    assert len({e.event_id for e in received}) == 3 and received[0].event_id.member_id == ny.cache.member_id
    sequences = [e.sequence for e in received]
    assert sequences == list(range(sequences[0], sequences[0] + 3)) and len({e.partition for e in received}) == 1
    assert repr(received[0]) == "<create of 'k' in data>"


def test_bulk_changes_are_received_entry_by_entry(ny):
    received = RecordingListener()
    queue, data = feed(ny, received)
    data.put_all({n: n for n in range(300)})
    data.put_columns([b"%d" % n for n in range(300)], [b"v%d" % n for n in range(300)])
    data.remove_all(list(range(100)))
    assert queue.wait_until_flushed(LIMIT_S)
    assert Counter(event[0] for event in received.events) == {"create": 600, "destroy": 100}
    assert received.of(b"7") == [b"v7"] and received.of(7) == [7, None]


def test_a_region_feeds_a_sender_and_two_queues_and_each_gets_everything(network):
    ny, ln = network.add("ny ln")
    first, second, there = RecordingListener(), RecordingListener(), RecordingListener()
    sender = ny.send_to(ln)
    queues = [ny.cache.create_async_event_queue(id, each) for id, each in (("first", first), ("ln", second))]
    data = ny.region(type="REPLICATE", async_event_queue_ids=["first", "ln"])
    queues.append(ln.cache.create_async_event_queue("audit", there))
    ln.region(type="REPLICATE", async_event_queue_ids=["audit"])
    ln.receive()
    data.put_all({n: n for n in range(500)})
    for n in range(500):
        data[n] = -n
    network.settle()
    assert sender.stats["events_distributed"] == 1000
    for queue, received in zip(queues, (first, second, there), strict=True):
        assert queue.wait_until_flushed(LIMIT_S)
        assert all(received.of(n) == [n, -n] for n in range(1, 500)), queue
        assert queue.ledger()["distributed"] == 1000
    assert ny.cache.async_event_queue("ln").id == ny.cache.gateway_sender("ln").id == "ln"


def test_events_of_another_site_come_with_their_origin(network):
    """Loop control is for sites: a queue of the receiving site hears what another site made."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln"), ("ln", "ny")])
    received: list[Any] = []
    queue = ln.cache.create_async_event_queue("audit", lambda events: received.extend(events) or True)
    ln.data.alter(async_event_queue_ids=["audit"])
    ny.data["from ny"] = 1
    ln.data["from ln"] = 2
    network.settle()
    assert queue.wait_until_flushed(LIMIT_S)
    assert {event.key: event.origin_site for event in received} == {"from ny": 1, "from ln": 2}


def test_a_batch_is_a_sequence_and_stays_as_it_is_after_the_end_of_its_queue(ny):
    batches: list[Any] = []
    queue, data = feed(
        ny,
        lambda events: batches.append(events) or True,
        dispatcher_threads=1,
        batch_size=100,
        pause_event_processing=True,
    )
    data.put_all({n: f"value {n}" * 100 for n in range(10)})
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    (batch,) = batches
    part = batch[2:5]
    data.alter(async_event_queue_ids=[])
    queue.destroy()
    data.clear()
    assert len(batch) == 10 and [event.key for event in batch] == list(range(10))
    assert [event.value for event in part] == [f"value {n}" * 100 for n in (2, 3, 4)] and len(part) == 3
    assert part[-1].key == 4 and part[0:1][0].key == 2 and [event.key for event in batch[::3]] == [0, 3, 6, 9]
    assert list(batch[5:2]) == [] and batch.queue == part.queue == "audit"
    assert batch.marks() == {batch[9].partition: batch[9].sequence}
    assert part.marks() == {batch[4].partition: batch[4].sequence}
    with pytest.raises(IndexError):
        part[3]
    with pytest.raises(TypeError):
        type(batch)()


def test_events_of_a_region_that_is_attached_later_are_received_from_then_on(ny):
    received = RecordingListener()
    data = ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])
    data["before the queue"] = 1
    queue = ny.cache.create_async_event_queue("audit", received)
    other = ny.cache.create_region("other", type="REPLICATE")
    other["before it is attached"] = 1
    other.alter(async_event_queue_ids=["audit"])
    data["a"] = other["b"] = 1
    assert queue.wait_until_flushed(LIMIT_S)
    other.alter(async_event_queue_ids=[])
    other["after it"] = 1
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == ["a", "b"] and other.async_event_queue_ids == ()


@pytest.mark.parametrize("type", ["NORMAL", "LOCAL"])
def test_regions_that_feed_no_gateway_feed_no_queue_and_it_counts_them(ny, type):
    queue, data = feed(ny, RecordingListener(), type=type)
    data.put_all({n: n for n in range(100)})
    assert queue.stats["events_received"] == queue.stats["not_queued_event"] == 100 and queue.queue_size == 0


# What becomes of what the listener fails on


class Odd(Exception):
    def __str__(self) -> str:
        return "no database"


def _raise(error: BaseException) -> Any:
    raise error


FAILURES = {
    "false": (lambda batch: False, "it returned False"),
    "none": (lambda batch: None, "it returned None"),
    "zero": (lambda batch: 0, "it returned 0"),
    "exception": (lambda batch: _raise(Odd()), "Odd: no database"),
    "SystemExit": (lambda batch: _raise(SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (lambda batch: _raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "cancelled": (lambda batch: _raise(asyncio.CancelledError()), "CancelledError"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_batch_on_which_it_fails_comes_again_marked_after_a_growing_pause_and_one_line_of_log(
    ny, caplog, failure, form
):
    answer, words = FAILURES[failure]
    received = RecordingListener(answer)
    queue, data = feed(ny, formed(form, received), dispatcher_threads=1, batch_time_interval=0)
    data["k"] = 1
    eventually(lambda: len(received.called) >= 4)
    assert queue.status == "Running, listener fails" and words in queue.lag()["cause"]
    assert queue.lag()["cause"].startswith("listener fails: ")
    received.answer = lambda batch: True
    assert queue.wait_until_flushed(LIMIT_S)
    assert received.repeated[0] == ("k", False) and set(received.repeated[1:]) == {("k", True)}
    assert received.events == [("create", "k", 1, True)]
    pauses = [after - before for before, after in zip(received.called, received.called[1:], strict=False)]
    assert all(pause >= 0.05 * 2**n for n, pause in enumerate(pauses))
    said = [record for record in caplog.records if "listener fails" in record.getMessage()]
    assert len(said) == 1 and "async event queue audit" in said[0].getMessage() and words in said[0].getMessage()
    eventually(lambda: queue.status == "Running" and queue.lag()["cause"] == "none")


def test_others_go_on_while_one_dispatcher_has_a_batch_that_fails(ny):
    received = RecordingListener(lambda batch: all(event.key != "bad" for event in batch))
    queue, data = feed(ny, received, dispatcher_threads=4, batch_time_interval=0)
    data["bad"] = 1
    eventually(lambda: queue.status == "Running, listener fails")
    data.put_all({n: n for n in range(1000)})
    eventually(lambda: len(received.events) > 500)
    assert "bad" not in received.taken and queue.status == "Running, listener fails"
    received.answer = lambda batch: True
    assert queue.wait_until_flushed(LIMIT_S) and len(received.events) == 1001


@pytest.mark.parametrize("form", FORMS)
def test_after_so_many_tries_the_events_that_fail_alone_are_parked_and_a_replay_hands_them_over(ny, form, caplog):
    def refuse(batch: Any) -> bool:
        for event in batch:
            if event.key == "bad":
                raise ValueError(f"no column for {event.value}")
        return True

    received = RecordingListener(refuse)
    queue, data = feed(
        ny, formed(form, received), dispatcher_threads=1, park_after_tries=3, pause_event_processing=True
    )
    data.put_all({n: n for n in range(5)})
    data["bad"] = "b"
    data.put_all({n: n for n in range(5, 10)})
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert received.taken == list(range(10)) and received.batches == [11, 11, 11, *[1] * 11]
    ledger = queue.ledger()
    assert queue.parked_count == ledger["parked"] == 1 and ledger["distributed"] == 10
    (parked,) = queue.parked()
    assert (parked["region"], parked["key"], parked["value"]) == ("data", "bad", "b")
    assert parked["reason"] == "ValueError: no column for b"
    assert [r.getMessage() for r in caplog.records if "is parked" in r.getMessage() and "no column" in r.getMessage()]
    received.answer = lambda batch: True
    assert queue.replay_parked() == 1 and queue.wait_until_flushed(LIMIT_S)
    assert received.of("bad") == ["b"] and queue.parked_count == 0
    received.answer = refuse
    data["bad"] = "c"
    eventually(lambda: queue.parked_count == 1)
    assert queue.drop_parked() == 1 and queue.wait_until_flushed(LIMIT_S) and queue.lag()["cause"] == "none"


def test_the_number_of_tries_can_be_altered_while_it_fails_for_ever(ny):
    received = RecordingListener(lambda batch: False)
    queue, data = feed(ny, received, dispatcher_threads=1)
    data["k"] = 1
    eventually(lambda: len(received.called) >= 3)
    queue.alter(park_after_tries=2)
    eventually(lambda: queue.parked_count == 1)
    assert queue.wait_until_flushed(LIMIT_S) and "returned False" in queue.parked()[0]["reason"]
    with pytest.raises(AsyncEventQueueConfigurationError, match="parallel cannot be altered"):
        queue.alter(parallel=True)
    with pytest.raises(AsyncEventQueueConfigurationError, match="batch_size -1"):
        queue.alter(batch_size=-1)


def test_an_answer_that_is_a_coroutine_fails_with_the_remedy(ny, recwarn):
    async def answer() -> bool:
        return True

    queue, data = feed(ny, lambda events: answer(), dispatcher_threads=1)
    data["k"] = 1
    eventually(lambda: "async def" in queue.lag()["cause"])
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


def test_lag_tells_a_slow_listener_a_pause_and_a_stop(ny):
    received = RecordingListener()
    queue, data = feed(ny, received, dispatcher_threads=1)
    received.hold.clear()
    data.put_all({n: n for n in range(1000)})
    assert received.inside.wait(LIMIT_S)
    eventually(lambda: queue.lag()["cause"] == "listener slow")
    assert queue.lag()["events"] == 1000 and queue.lag()["seconds"] > 0
    received.hold.set()
    assert queue.wait_until_flushed(LIMIT_S)
    queue.pause()
    data["k"] = 1
    assert queue.lag()["cause"] == "paused"
    queue.stop()
    assert queue.lag()["cause"] == "stopped"


def test_a_start_with_clean_queues_forgets_what_failed(ny):
    received = RecordingListener(lambda batch: False)
    queue, data = feed(ny, received, dispatcher_threads=1)
    data["k"] = 1
    eventually(lambda: queue.status == "Running, listener fails")
    queue.stop()
    queue.start(clean_queues=True)
    assert queue.status == "Running" and queue.lag()["cause"] == "none"
    assert queue.ledger()["dropped_from_queue"]["cleared"] == 1


# Listeners that do odd things


@pytest.mark.parametrize("form", ["plain", "async", "async that blocks its loop"])
def test_a_listener_that_hangs_is_named_and_holds_neither_stop_nor_close(ny, caplog, monkeypatch, form):
    monkeypatch.setattr(dispatchers, "JOIN_TIMEOUT_S", 0.2)
    received, go_on = RecordingListener(), threading.Event()

    class Waits:
        async def process_events(self, events: Any) -> bool:
            received.inside.set()
            while not go_on.is_set():
                await asyncio.sleep(0.001)
            return True

        async def close(self) -> None:
            received.close()

    received.hold.clear()
    listener = Waits() if form == "async" else formed(form.split()[0], received)
    queue, data = feed(ny, listener, dispatcher_threads=1)
    data["k"] = 1
    assert received.inside.wait(LIMIT_S)
    with pytest.raises(GatewaySenderError, match="async event queue 'audit': async-queue-audit-0 did not end within"):
        queue.stop()
    with pytest.raises(GatewaySenderError, match="did not end yet; a filter or a listener may hang"):
        queue.start()
    began = time.monotonic()
    ny.cache.close()
    assert time.monotonic() - began < SOON_S and received.closed == 0
    assert "async event queue audit: 1 queued" in "".join(r.getMessage() for r in caplog.records)
    go_on.set()
    received.hold.set()
    eventually(lambda: received.closed == 1, what="the close of a listener whose last call has returned")


@pytest.mark.parametrize("form", FORMS)
def test_a_listener_that_hung_goes_on_where_it_was(ny, monkeypatch, form):
    monkeypatch.setattr(dispatchers, "JOIN_TIMEOUT_S", 0.2)
    received = RecordingListener()
    received.hold.clear()
    queue, data = feed(ny, formed(form, received), dispatcher_threads=1, batch_size=10)
    data.put_all({n: n for n in range(100)})
    assert received.inside.wait(LIMIT_S)
    with pytest.raises(GatewaySenderError, match="did not end within"):
        queue.stop()
    received.hold.set()
    eventually(lambda: not queue._core.dispatchers.late_threads())
    queue.start()
    assert queue.wait_until_flushed(LIMIT_S)
    assert set(received.taken) == set(range(100)) and received.closed == 0
    queue._core.stop()


@pytest.mark.parametrize("form", FORMS)
def test_a_listener_may_close_the_cache(ny, form):
    closed = threading.Event()

    def close(batch: Any) -> bool:
        ny.cache.close()
        closed.set()
        return True

    received = RecordingListener(close)
    queue, data = feed(ny, formed(form, received))
    data["k"] = 1
    assert closed.wait(LIMIT_S) and ny.cache.is_closed
    eventually(lambda: received.closed == 1)
    assert not queue.is_running


@pytest.mark.parametrize("form", FORMS)
def test_a_listener_may_stop_and_destroy_its_queue(ny, form):
    done = threading.Event()

    def destroy(batch: Any) -> bool:
        queue.stop()
        data.alter(async_event_queue_ids=[])
        queue.destroy()
        done.set()
        return True

    received = RecordingListener(destroy)
    queue, data = feed(ny, formed(form, received))
    data["k"] = 1
    assert done.wait(LIMIT_S)
    eventually(lambda: received.closed == 1)
    assert ny.cache.async_event_queues() == {}


@pytest.mark.parametrize("form", FORMS)
@both
def test_a_listener_may_change_the_region_that_it_listens_to(ny, parallel, form):
    """A cascade: each change comes behind those that wait, in order of its key, and it ends when the listener does."""

    def go_on(batch: Any) -> bool:
        for event in batch:
            if event.value:
                data[event.key] = event.value - 1
        return True

    received = RecordingListener(go_on)
    queue, data = feed(ny, formed(form, received), **kind(parallel))
    data.put_all({f"k{n}": 50 for n in range(20)})
    assert queue.wait_until_flushed(LIMIT_S)
    eventually(lambda: len(received.events) == 20 * 51)
    assert all(received.of(f"k{n}") == list(range(50, -1, -1)) for n in range(20))
    assert queue.ledger()["distributed"] == 20 * 51


@pytest.mark.parametrize("form", FORMS)
def test_a_child_that_comes_back_out_of_a_listener_ends_there(ny, form):
    """It would go on as the parent's dispatcher."""
    statuses: list[int] = []

    def fork(batch: Any) -> bool:
        pid = os.fork()
        if pid:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return True

    received = RecordingListener(fork)
    queue, data = feed(ny, formed(form, received), dispatcher_threads=1)
    data["k"] = 1
    assert queue.wait_until_flushed(LIMIT_S)
    assert statuses == [forks.STRAYED] and received.taken == ["k"]


@pytest.mark.parametrize("form", FORMS)
def test_its_listener_is_closed_once_and_receives_nothing_after(ny, form):
    received = RecordingListener()
    queue, data = feed(ny, formed(form, received))
    data["k"] = 1
    assert queue.wait_until_flushed(LIMIT_S)
    queue.stop()
    queue.start()
    assert received.closed == 0
    ny.cache.close()
    ny.cache.close()
    assert received.closed == 1 and received.taken == ["k"]


@pytest.mark.parametrize("form", FORMS)
def test_an_error_in_its_close_is_logged_and_holds_nobody(ny, caplog, form):
    class Fails(RecordingListener):
        def close(self) -> None:
            raise Odd

    feed(ny, formed(form, Fails()))[1]["k"] = 1
    ny.cache.close()
    assert "its listener failed as it was closed" in caplog.text


HANGS = """
import asyncio, sys, threading, time
import pywan
from pywan.gateway import dispatchers

dispatchers.JOIN_TIMEOUT_S = 0.5

def plain(events):
    print("inside", flush=True)
    time.sleep(1000)

async def awaits(events):
    print("inside", flush=True)
    await asyncio.sleep(1000)

async def blocks(events):
    plain(events)

with pywan.Cache("server", locators=sys.argv[1]) as cache:
    cache.create_async_event_queue("audit", {"plain": plain, "awaits": awaits, "blocks": blocks}[sys.argv[2]])
    cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])["k"] = 1
    threading.Event().wait()
"""


@pytest.mark.parametrize("how", ["plain", "awaits", "blocks"])
def test_ctrl_c_ends_a_process_whose_listener_hangs(ny, how):
    child = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(ny.locator.address), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    try:
        assert child.stdout.readline() == "inside\n"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode in {-signal.SIGINT, 130}, said
    assert "KeyboardInterrupt" in said and "did not end within" in said


# Filters, substitution, conflation


def test_filters_choose_and_are_told_what_the_listener_has_done_with(ny):
    class Filter(pywan.GatewayEventFilter):
        acknowledged: list[Any] = []  # noqa: RUF012

        def before_enqueue(self, event: Any) -> bool:
            return event.key % 2 == 0

        def before_transmit(self, event: Any) -> bool:
            return event.key % 4 == 0

        def after_acknowledgement(self, event: Any) -> None:
            self.acknowledged.append(event.key)

    received, filter = RecordingListener(), Filter()
    queue, data = feed(ny, received, gateway_event_filters=[filter])
    for n in range(400):
        data[n] = n
    assert queue.wait_until_flushed(LIMIT_S)
    assert sorted(received.taken) == list(range(0, 400, 4))
    assert sorted(filter.acknowledged) == sorted(received.taken)
    ledger = queue.ledger()
    assert ledger["filtered_before_enqueue"] == 200 and ledger["filtered_before_transmit"] == 100
    queue.alter(gateway_event_filters=())
    data[1] = 1
    assert queue.wait_until_flushed(LIMIT_S) and 1 in received.taken


def test_a_substitution_filter_says_what_the_listener_gets_and_what_it_fails_on_is_parked(ny):
    class Mask(pywan.GatewayEventSubstitutionFilter):
        fails = True

        def get_substitute_value(self, event: Any) -> Any:
            if event.key == "bad" and self.fails:
                raise Odd
            return {"masked": event.value}

    received, mask = RecordingListener(), Mask()
    queue, data = feed(ny, received, gateway_event_substitution_filter=mask)
    data["card"], data["bad"] = "1234", "5678"
    assert queue.wait_until_flushed(LIMIT_S)
    assert received.of("card") == [{"masked": "1234"}] and data["card"] == "1234" and received.of("bad") == []
    assert queue.parked_count == 1 and queue.ledger()["withheld"] == 1
    mask.fails = False
    assert queue.replay_parked() == 1 and queue.wait_until_flushed(LIMIT_S)
    assert received.of("bad") == [{"masked": "5678"}]


# Memory and disk


@both
def test_beyond_its_memory_it_overflows_and_loses_nothing(ny, parallel):
    received, value = RecordingListener(), os.urandom(10_000)
    queue, data = feed(ny, received, maximum_queue_memory=1, pause_event_processing=True, **kind(parallel))
    for n in range(1000):
        data[n % 400] = value + b"%d" % n
    assert queue.stats["entries_overflowed_bytes"] > 5 << 20 and queue.stats["queue_memory_bytes"] < 6 << 20
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert all(received.of(key) == [value + b"%d" % n for n in range(key, 1000, 400)] for key in range(400))
    assert queue.stats["entries_overflowed_bytes"] == 0


@both
def test_a_persistent_queue_and_its_parked_events_survive_a_restart_of_the_member(ny, tmp_path, parallel):
    attributes = {"persistent": True, "park_after_tries": 1, "dispatcher_threads": 2, **kind(parallel)}

    def begin(received: RecordingListener, **more: Any) -> tuple[Any, Any]:
        ny.cache.close()
        ny.start_member(dir=tmp_path)
        return feed(ny, received, **{**attributes, **more})

    queue, data = begin(RecordingListener(lambda batch: all(event.key != "bad" for event in batch)))
    data["bad"] = 1
    eventually(lambda: queue.parked_count == 1)
    queue.pause()
    data.put_all({n: n for n in range(1000)})
    received = RecordingListener()
    queue, data = begin(received, pause_event_processing=True)
    assert queue.queue_size == 1000 and queue.parked_count == 1 and queue.volatile_events() == {}
    assert "listener" in queue.parked()[0]["reason"]
    assert queue.replay_parked() == 1
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert set(received.taken) == {*range(1000), "bad"}
    data.alter(async_event_queue_ids=[])
    queue.destroy()
    queue, data = begin(received)
    assert queue.queue_size == 0 and queue.parked_count == 0


KILLED = """
import json, os, sys, threading
import pywan

folder, locators, attributes, first = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
heard = open(os.path.join(folder, "heard"), "a", buffering=1)
put = open(os.path.join(folder, "put"), "a", buffering=1)
lock = threading.Lock()

class Writes:
    def process_events(self, events):
        with lock:
            heard.write("".join(f"{e.key} {e.value} {int(e.possible_duplicate)}\\n" for e in events))
        return True

cache = pywan.Cache("server", locators=locators, dir=os.path.join(folder, "server"))
cache.create_async_event_queue("audit", Writes(), **{key: attributes[key] for key in attributes if key != "type"})
data = cache.create_region("data", type=attributes["type"], async_event_queue_ids=["audit"])
queue = cache.async_event_queue("audit")
if first < 0:
    assert queue.wait_until_flushed(60)
    print(json.dumps([queue.ledger()["balanced"], queue.stats["possible_duplicates_sent"]]), flush=True)
    cache.close()
    sys.exit()
print("ready", flush=True)

def change(own):
    n = first
    while True:
        for key in range(own, 12, 3):
            data[key] = n
        with lock:
            put.write("".join(f"{key} {n}\\n" for key in range(own, 12, 3)))
        n += 1

for own in range(3):
    threading.Thread(target=change, args=(own,)).start()
"""


@both
def test_kill_9_and_a_restart_lose_no_event_keep_the_order_of_keys_and_mark_repeats(ny, tmp_path, parallel):
    """Every change that was acknowledged is heard. One that was under way may be."""
    attributes = json.dumps({**kind(parallel), "persistent": True, "batch_size": 20, "dispatcher_threads": 2})
    (tmp_path / "server").mkdir()

    def run(first: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(ny.locator.address), attributes, str(first)],
            stdout=subprocess.PIPE,
            text=True,
            env=python_environment(),
        )

    ny.cache.close()
    lives = 3
    for life in range(lives):
        child = run(life * 1_000_000)
        try:
            assert child.stdout.readline() == "ready\n"
            lines = count_of(tmp_path / "heard")
            eventually(lambda lines=lines: count_of(tmp_path / "heard") > lines + 300)
        finally:
            child.kill()
            child.communicate()
    child = run(-1)
    balanced, _repeats = json.loads(child.communicate(timeout=LIMIT_S)[0])
    assert child.returncode == 0 and balanced
    received: dict[int, list[tuple[int, bool]]] = {}
    for line in (tmp_path / "heard").read_text().splitlines():
        key, n, repeated = map(int, line.split())
        received.setdefault(key, []).append((n, bool(repeated)))
    put: dict[int, list[int]] = {}
    for line in (tmp_path / "put").read_text().splitlines():
        key, n = map(int, line.split())
        put.setdefault(key, []).append(n)
    for key, numbers in put.items():
        seen: set[int] = set()
        last = -1
        for n, repeated in received[key]:
            assert repeated or n not in seen, f"{n} of key {key} came again unmarked"
            assert n > last or repeated, f"{n} of key {key} came behind {last}"
            last = n
            seen.add(n)
        assert not set(numbers) - seen


def count_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


# Ids, listeners and ends


def test_ids_are_unique_among_queues_and_apart_from_those_of_senders(ny):
    received = RecordingListener()
    queue = ny.cache.create_async_event_queue("ln", received)
    with pytest.raises(IllegalStateError, match="async event queue with id 'ln' is already defined"):
        ny.cache.create_async_event_queue("ln", RecordingListener())
    ny.cache.create_gateway_sender("ln", remote_distributed_system_id=2)
    with pytest.raises(PywanError, match="AsyncEventQueue_"):
        ny.cache.create_gateway_sender("AsyncEventQueue_x", remote_distributed_system_id=2)
    queue.stop()  # The sender of the id runs on.
    queue.start()
    assert ny.cache.async_event_queues() == {"ln": queue} and ny.cache.async_event_queue("ln") is queue
    with pytest.raises(NotFoundError, match="no async event queue 'tk'; it has ln"):
        ny.cache.async_event_queue("tk")
    assert queue.async_event_listener is received
    assert repr(queue) == "<AsyncEventQueue ln, Running, 0 queued, 0 parked>" and "listener" in queue._repr_html_()


def test_a_member_has_at_most_128_senders_and_queues_together(ny):
    for n in range(126):
        ny.cache.create_async_event_queue(f"q{n}", RecordingListener(), dispatcher_threads=1)
    for id in ("ln", "tk"):
        ny.cache.create_gateway_sender(id, remote_distributed_system_id=2, manual_start=True)
    with pytest.raises(IllegalStateError, match="128 senders and asynchronous event queues"):
        ny.cache.create_async_event_queue("one_more", RecordingListener())
    with pytest.raises(IllegalStateError, match="128 senders and asynchronous event queues"):
        ny.cache.create_gateway_sender("one_more", remote_distributed_system_id=2)
    ny.cache.async_event_queue("q0").destroy()
    ny.cache.create_async_event_queue("one_more", RecordingListener(), dispatcher_threads=1)


def test_a_queue_that_a_region_names_is_not_destroyed(ny):
    queue, data = feed(ny, RecordingListener())
    with pytest.raises(GatewaySenderError, match="async event queue 'audit' is attached to region data"):
        queue.destroy()
    data["k"] = 1
    assert queue.wait_until_flushed(LIMIT_S)
    data.alter(async_event_queue_ids=[])
    queue.destroy()
    for call in (queue.start, queue.pause, queue.resume, lambda: queue.alter(batch_size=1)):
        with pytest.raises(GatewaySenderError, match="async event queue 'audit' was destroyed"):
            call()


class Misspelt(pywan.AsyncEventListener):
    def process_event(self, events: Any) -> bool:
        return True


class Unmade(pywan.AsyncEventListener):
    def __init__(self) -> None:
        raise Odd


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        (None, "async_event_listener is required"),
        ("", "async_event_listener"),
        ("CLEAR", "async_event_listener"),
        ("no_colon", "write package.module:Class"),
        ("no.such.module:Class", "cannot be imported"),
        ("support.listeners:NoSuchClass", "has no class"),
        ("support.listeners:NoListener", "has no method process_events or process_arrow"),
        (object(), "has no method process_events or process_arrow"),
        (7, "has no method process_events or process_arrow"),
        (Misspelt, "has no method process_events or process_arrow"),
        (Unmade, "cannot be created: Odd: no database"),
        (["support.listeners:RecordingListener", "support.listeners:Failing"], "there can be one"),
    ],
)
def test_what_is_no_listener_is_refused_by_name(ny, listener, words):
    with pytest.raises(AsyncEventQueueConfigurationError, match=words):
        ny.cache.create_async_event_queue("audit", listener)
    assert ny.cache.async_event_queues() == {}
    with pytest.raises(AsyncEventQueueConfigurationError, match="is required"):
        ny.cache.create_async_event_queue("audit")


@pytest.mark.parametrize("how", ["class", "object", "function", "method", "callable", "async callable"])
def test_a_listener_is_a_class_an_object_or_anything_that_can_be_called(ny, how):
    received = RecordingListener()

    class Callable:
        def __call__(self, events: Any) -> bool:
            return received.process_events(events)

    class Awaitable:
        async def __call__(self, events: Any) -> bool:
            return received.process_events(events)

    class Made(RecordingListener):
        def process_events(self, events: Any) -> bool:
            return received.process_events(events)

    listeners = {
        "class": Made,
        "object": Made(),
        "function": lambda events: received.process_events(events),
        "method": received.process_events,
        "callable": Callable(),
        "async callable": Awaitable(),
    }
    queue, data = feed(ny, listeners[how])
    data["k"] = 1
    assert queue.wait_until_flushed(LIMIT_S) and received.taken == ["k"]


def test_words_about_it_call_it_by_its_kind(ny, caplog):
    """Not a gateway sender AsyncEventQueue_audit, and not a sender."""
    caplog.set_level("INFO")
    received = RecordingListener(lambda batch: False)
    queue, data = feed(ny, received, dispatcher_threads=1)
    data.put_all({n: n for n in range(3)})
    eventually(lambda: queue.status == "Running, listener fails")
    assert queue.volatile_events() == {"queued": 3}
    assert ny.cache.volatile_events() == {"AsyncEventQueue_audit": {"queued": 3}}
    status = ny.cache.status()
    assert status["async_event_queues"] == {"audit": "Running, listener fails"} and status["gateway_senders"] == {}
    assert "0 gateway senders, 1 async event queue" in repr(ny.cache)
    assert "async event queues" in ny.cache._repr_html_()
    with pytest.raises(DataLossError, match=r"^async event queue 'audit': 2 events are unaccounted for"):
        check_ledger(queue._core.what, {"balanced": False, "unexplained": 2})
    began = time.monotonic()
    ny.cache.close(0.3)
    assert time.monotonic() - began >= 0.3
    assert "waits for async event queue audit to empty its queue before it closes: 3 events" in caplog.text
    assert "no persistence: async event queue audit: 3 queued" in caplog.text
    assert "sender AsyncEventQueue" not in caplog.text and "sender audit" not in caplog.text


def test_the_end_of_a_member_waits_until_its_listener_has_everything(ny):
    received = RecordingListener()
    queue, data = feed(ny, received, batch_time_interval=600_000, dispatcher_threads=1)
    data.put_all({n: n for n in range(50)})
    ny.cache.close(-1)
    assert len(received.events) == 50 and queue.volatile_events() == {} and received.closed == 1
