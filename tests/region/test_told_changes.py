"""Listeners hear each change in the order of the queue, from here and from other sites, one by one or as lists."""

from __future__ import annotations

import gc
import logging
import operator
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from pywan import CacheListener, GatewayConflictResolver, GatewayEventFilter, _core
from pywan.errors import IllegalStateError
from pywan.events import EntryEvent
from pywan.region.callback_path import CallbackPath
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually

ONE_DISPATCHER = {"type": "REPLICATE", "parallel": False, "dispatcher_threads": 1}


class Hearer(CacheListener):
    """Keeps the events. `act(event)` is called for each one."""

    def __init__(self, act: Any = None) -> None:
        self.events: list[EntryEvent] = []
        self._act = act

    def _hear(self, event: EntryEvent) -> None:
        self.events.append(event)
        if self._act is not None:
            self._act(event)

    after_create = after_update = after_destroy = _hear

    def seen(self) -> list[tuple[Any, ...]]:
        return [(each.operation, each.key, each.old_value, each.new_value) for each in self.events]


class ListHearer(CacheListener):
    """Keeps the lists of events. `act(events)` is called for each one."""

    def __init__(self, act: Any = None) -> None:
        self.lists: list[list[EntryEvent]] = []
        self._act = act

    def after_events(self, events: Any) -> None:
        self.lists.append(events)
        if self._act is not None:
            self._act(events)

    def after_create(self, event: EntryEvent) -> None:
        raise AssertionError("a listener with after_events gets lists only")

    def keys(self) -> list[Any]:
        return [each.key for events in self.lists for each in events]


@pytest.fixture
def sites(network):
    """NY, which sends to LN in order. What NY puts while its sender is paused travels as one batch."""
    ny, ln = network.mesh("ny ln", **ONE_DISPATCHER)
    return ny, ln


def send_together(network, ny, *puts) -> None:
    sender = ny.sender("ln")
    sender.pause()
    for key, value in puts:
        ny.data.put(key, value)
    sender.resume()
    network.settle()


# Here


def test_a_listener_hears_what_each_change_was_and_what_was_there_before(sites):
    ny, _ = sites
    ny.data.add_listener(hearer := Hearer())
    ny.data.put("k", {"a": [1]}, callback_argument="why")
    ny.data.put("k", 2**70)
    ny.data.put_if_absent("k", "not stored")
    ny.data.replace("k", 2**70, None)
    ny.data.invalidate("k")
    ny.data["k"] = b""
    del ny.data["k"]
    with pytest.raises(KeyError):
        del ny.data["k"]
    ny.data.put_columns(["k", "k", "j"], [b"1", b"2", b"3"], operations=["create", "destroy", "update"])
    assert hearer.seen() == [
        ("create", "k", None, {"a": [1]}),
        ("update", "k", {"a": [1]}, 2**70),
        ("update", "k", 2**70, None),
        ("update", "k", None, b""),
        ("destroy", "k", b"", None),
        ("create", "k", None, b"1"),
        ("destroy", "k", b"1", None),
        ("create", "j", None, b"3"),
    ]
    first, second = hearer.events[:2]
    assert (first.callback_argument, second.callback_argument) == ("why", None)
    assert first.region is ny.data and first.origin_site == 1
    assert not first.is_origin_remote and not first.possible_duplicate
    assert first.event_id.member_id == second.event_id.member_id
    assert first.event_id.sequence_id < second.event_id.sequence_id


def test_a_listener_reads_its_change_and_may_make_others_in_the_order_of_the_queue(sites):
    ny, _ = sites
    read = []

    def act(event: EntryEvent) -> None:
        read.append((event.key, ny.data.get(event.key)))
        if event.key < 3:
            ny.data.put(event.key + 1, b"next")

    ny.data.add_listener(Hearer(act))
    ny.data.add_listener(late := Hearer())
    ny.data.put(1, b"first")
    assert read == [(1, b"first"), (2, b"next"), (3, b"next")]
    assert sorted(each.key for each in late.events) == [1, 2, 3]


def test_threads_that_put_are_heard_one_at_a_time_in_the_order_of_versions(sites):
    ny, _ = sites
    running, most = [], []

    def act(event: EntryEvent) -> None:
        running.append(event.key)
        most.append(len(running))
        running.pop()

    ny.data.add_listener(hearer := Hearer(act))
    threads = [threading.Thread(target=lambda n=n: [ny.data.put("k", (n, i)) for i in range(200)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert set(most) == {1} and len(hearer.events) == 800
    assert [each.old_value for each in hearer.events[1:]] == [each.new_value for each in hearer.events[:-1]]
    assert ny.data["k"] == hearer.events[-1].new_value


def test_an_event_that_is_kept_stays_as_it_was_in_any_thread(sites):
    ny, _ = sites
    ny.data.add_listener(hearer := Hearer())
    value = {"list": [1, 2]}
    ny.data.put("k", value, callback_argument=[3])
    value["list"].append("changed later")
    ny.data.put("k", b"x" * 100_000)
    ny.data.destroy("k")
    ny.data.clear(local=True)
    gc.collect()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(hearer.seen()))
    thread.start()
    thread.join(LIMIT_S)
    assert found == [
        ("create", "k", None, {"list": [1, 2]}),
        ("update", "k", {"list": [1, 2]}, b"x" * 100_000),
        ("destroy", "k", b"x" * 100_000, None),
    ]
    assert hearer.events[0].callback_argument == [3]
    assert "create of 'k' in data" in repr(hearer.events[0])


def test_a_callback_that_begins_a_life_cycle_gets_an_error_and_other_threads_do_not(sites):
    ny, _ = sites
    errors: list[str] = []

    def act(event: EntryEvent) -> None:
        with pytest.raises(IllegalStateError) as error:
            ny.sender("ln").pause()
        errors.append(str(error.value))

    ny.data.add_listener(Hearer(act))
    ny.data.put("k", 1)
    assert len(errors) == 1 and "a callback of region 'data'" in errors[0]
    ny.sender("ln").pause()
    ny.sender("ln").resume()


def test_an_event_can_be_made_for_a_test_of_a_listener():
    event = EntryEvent("a region", "update", "k", 1, [2], "why", True, 7, (1, 2, 3), True)
    assert (event.region, event.operation, event.key, event.old_value) == ("a region", "update", "k", 1)
    assert (event.new_value, event.callback_argument, event.is_origin_remote) == ([2], "why", True)
    assert (event.origin_site, tuple(event.event_id), event.possible_duplicate) == (7, (1, 2, 3), True)
    with pytest.raises(TypeError):
        event.__init__("another", "create", "j")


# From another site


def test_a_listener_that_fails_in_a_batch_is_named_with_the_event_and_hears_the_rest(network, sites, caplog):
    ny, ln = sites

    def act(event: EntryEvent) -> None:
        if event.key == "k5":
            raise ValueError("a fault of this test")

    ln.data.add_listener(hearer := Hearer(act))
    ln.data.add_listener(second := Hearer())
    with caplog.at_level(logging.ERROR):
        send_together(network, ny, *((f"k{n}", n) for n in range(10)))
    assert [each.key for each in hearer.events] == [each.key for each in second.events] == [f"k{n}" for n in range(10)]
    (line,) = [each for each in caplog.records if "failed after a create of key 'k5'" in each.getMessage()]
    assert line.exc_info and "a fault of this test" in caplog.text
    assert dict(ln.data.items()) == {f"k{n}": n for n in range(10)}


def test_events_of_another_site_are_heard_in_the_order_of_its_queue_with_their_old_values(network, sites):
    ny, ln = sites
    ln.data.add_listener(hearer := Hearer())
    send_together(network, ny, *((n % 7, n) for n in range(500)))
    assert [(each.key, each.new_value) for each in hearer.events] == [(n % 7, n) for n in range(500)]
    assert [each.old_value for each in hearer.events[7:]] == list(range(493))
    assert all(each.is_origin_remote and each.origin_site == 1 for each in hearer.events)


def test_a_batch_for_two_regions_is_heard_by_the_one_with_a_listener(network, sites):
    ny, ln = sites
    for site in sites:
        site.region("other", type="REPLICATE")
    ln.data.add_listener(hearer := Hearer())
    ny.sender("ln").pause()
    for n in range(50):
        ny.data.put(n, n)
        ny.cache.region("other").put(n, n)
    ny.sender("ln").resume()
    network.settle()
    assert [each.key for each in hearer.events] == list(range(50))
    assert len(ln.cache.region("other")) == 50
    assert ln.data.applied == ln.cache.region("other").applied == 50


# As lists


def test_a_batch_of_another_site_is_heard_as_a_list(network, sites):
    ny, ln = sites
    ln.data.add_listener(hearer := ListHearer())
    send_together(network, ny, *((n, n) for n in range(100)))
    assert hearer.keys() == list(range(100))
    assert len(hearer.lists) < 100


def test_columns_are_heard_as_lists_and_a_put_as_a_list_of_one(sites):
    ny, _ = sites
    ny.data.add_listener(hearer := ListHearer())
    ny.data.put("first", 1)
    ny.data.put_columns([b"%d" % n for n in range(2500)], [b"v"] * 2500)
    assert [len(events) for events in hearer.lists] == [1, 1000, 1000, 500]
    assert hearer.keys() == ["first", *(b"%d" % n for n in range(2500))]


def test_a_change_that_a_listener_makes_in_the_middle_of_a_list_is_heard_after_it(network, sites):
    ny, ln = sites
    ln.data.add_listener(Hearer(lambda event: event.key == 3 and ln.data.put("made", 1)))
    ln.data.add_listener(hearer := ListHearer())
    send_together(network, ny, *((n, n) for n in range(10)))
    assert hearer.keys() == [0, 1, 2, 3, "made", 4, 5, 6, 7, 8, 9]


def test_a_change_that_a_listener_makes_in_its_list_comes_in_another_list(sites):
    ny, _ = sites
    ny.data.add_listener(
        hearer := ListHearer(lambda events: events[0].key != "made" and ny.data.put("made", len(events)))
    )
    ny.data.put_columns([b"a", b"b"], [b"1", b"2"])
    assert hearer.keys() == [b"a", b"b", "made"] and [len(events) for events in hearer.lists] == [2, 1]


def test_a_list_that_a_listener_fails_on_is_named_and_the_next_one_comes(sites, caplog):
    ny, _ = sites

    def act(events: list[EntryEvent]) -> None:
        if len(events) == 3:
            raise ValueError("a fault of this test")

    ny.data.add_listener(hearer := ListHearer(act))
    with caplog.at_level(logging.ERROR):
        ny.data.put_columns([b"a", b"b", b"c"], [b"1", b"2", b"3"])
        ny.data.put(b"d", 4)
    assert hearer.keys() == [b"a", b"b", b"c", b"d"]
    assert "for a list of 3 events, the first of them a create of key b'a'" in caplog.text


# The resolver


class Refuses(GatewayConflictResolver):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def on_event(self, event: Any, helper: Any) -> None:
        self.asked.append(event.key)
        helper.disallow_event()


def test_only_an_event_that_meets_a_conflict_reaches_the_resolver_and_python(network, sites, monkeypatch):
    ny, ln = sites
    core_of(ln.data).set_resolver(resolver := Refuses())
    ln.data.add_listener(hearer := Hearer())
    in_python = []
    apply_record = CallbackPath.apply_record
    monkeypatch.setattr(
        CallbackPath, "apply_record", lambda self, *event: in_python.append(1) or apply_record(self, *event)
    )
    ln.sender("ny").pause()
    ln.data.put("theirs", "of ln")
    send_together(WithoutSendersOf(network, ln), ny, ("ours", 1), ("theirs", "of ny"), ("ours", 2))
    assert resolver.asked == ["theirs"] and len(in_python) == 1
    assert ln.data["theirs"] == "of ln" and ln.data["ours"] == 2
    assert hearer.seen()[1:] == [("create", "ours", None, 1), ("update", "ours", 1, 2)]
    ln.sender("ny").resume()
    network.settle()


class WithoutSendersOf:
    """A network that settles although the senders of a site are paused."""

    def __init__(self, network: Any, site: Any) -> None:
        self._senders = [each for each in network.senders() if each not in site.cache.gateway_senders().values()]

    def settle(self) -> None:
        eventually(lambda: not any(len(each._core.queue) for each in self._senders))


def test_every_listener_gets_the_lists_in_the_order_of_the_changes(sites):
    """Also where a listener changes the region while the next listener has not heard yet."""
    ny, _ln = sites
    first = ListHearer(lambda events: events[0].key == "k1" and ny.data.put("k2", 2))
    second = ListHearer()
    ny.data.add_listener(first)
    ny.data.add_listener(second)
    ny.data.put("k1", 1)
    assert first.keys() == second.keys() == ["k1", "k2"]


def test_a_listener_that_ctrl_c_ends_leaves_no_event_untold(sites):
    def interrupt(event: EntryEvent) -> None:
        raise KeyboardInterrupt

    ny, _ln = sites
    lists = ListHearer()
    ny.data.add_listener(Hearer(interrupt))
    ny.data.add_listener(lists)
    with pytest.raises(KeyboardInterrupt):
        ny.data.put("k", 1)
    assert lists.keys() == ["k"]


@pytest.mark.parametrize("kind", [EntryEvent, _core.AsyncEvent, _core.GatewayQueueEvent])
def test_an_event_that_was_not_initialised_says_so(kind):
    event = kind.__new__(kind)
    for name in ("key", "operation", "origin_site", "callback_argument", "event_id"):
        with pytest.raises(TypeError, match="not initialised"):
            getattr(event, name)
    with pytest.raises(TypeError, match="not initialised"):
        repr(event)


def test_an_event_does_not_change_by_a_second_init_and_a_failed_one_leaves_it_empty():
    made = EntryEvent("r", "create", "k", None, 1)
    with pytest.raises(TypeError, match="does not change"):
        made.__init__("r", "create", "other")
    assert made.key == "k"
    empty = EntryEvent.__new__(EntryEvent)
    with pytest.raises(TypeError):
        empty.__init__("r", "create", "k", None, b"v" * 50, None, False, 0, None)
    with pytest.raises(TypeError, match="not initialised"):
        _ = empty.new_value
    queued = _core.GatewayQueueEvent("r", "create", "k", 1, None, creation_timestamp=0, origin_site=1)
    with pytest.raises(TypeError, match="does not change"):
        queued.__init__("r", "create", "other", 1, None, creation_timestamp=0, origin_site=1)
    assert queued.key == "k"


def test_a_callback_lock_that_this_thread_does_not_hold_is_not_released():
    lock = _core.CallbackLock("data")
    with pytest.raises(RuntimeError, match="does not hold"):
        lock.__exit__(None, None, None)
    with lock:
        failed: list[Exception] = []

        def release() -> None:
            try:
                lock.__exit__(None, None, None)
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=release)
        thread.start()
        thread.join(LIMIT_S)
        assert len(failed) == 1


class Filters(GatewayEventFilter):
    """Lets nothing into the queue, without a line of Python."""

    before_enqueue = staticmethod(operator.not_)


class Listens(CacheListener):
    """Hears without a line of Python."""

    after_create = staticmethod(operator.truth)


@pytest.mark.parametrize("has_filter", [True, False])
def test_ctrl_c_ends_columns_whose_callbacks_are_compiled_too(network, has_filter):
    ny, _ln = network.mesh("ny ln", **ONE_DISPATCHER)
    rows, turn = 1_000_000, 0
    if has_filter:
        ny.sender("ln").alter(gateway_event_filters=[Filters()])
    else:
        ny.data.add_listener(Listens())
    seen = threading.Event()

    def interrupt() -> None:
        eventually(lambda: len(ny.data) > 1000)
        seen.set()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        while True:  # A busy machine may end the first call before the thread runs.
            turn += 1
            ny.data.put_columns(np.arange(rows), np.full(rows, turn))
    thread.join(LIMIT_S)
    assert seen.is_set() and ny.data.get(rows - 1) in (None, turn - 1)
