"""A check of our own that fails breaks the queue that it is about, and nothing else: not the process, and not its other
regions and senders.
"""

from __future__ import annotations

import itertools
import re
import threading
import time

import pytest

from pywan import _core
from pywan.errors import InternalError
from pywan.testing.waiting import eventually
from support.core_sites import TwoSites
from support.records import make_record

pytestmark = pytest.mark.skipif(_core.checks_stop_the_process, reason="a debug build stops at the first failed check")

WHERE = r"internal check failed at .*wan_queue\.c:\d+: through <= partition->peeked"
_names = itertools.count()


def break_queue(queue):
    """Removes what was never peeked."""
    with pytest.raises(InternalError, match=WHERE):
        queue.remove(0, 1_000_000)


@pytest.fixture
def queue():
    made = _core.EventQueue("ln", remote_site=2)
    made.running = True
    return made


def region_of(*queues):
    made = _core.RegionCore(f"broken-{next(_names)}", _core.Clock(), site=1)
    made.attach(list(queues))
    return made


def test_the_failed_check_changes_nothing_and_tells_where_it_is(queue, capfd):
    queue.append_record(make_record(b"k"))
    assert queue.broken is None
    break_queue(queue)
    assert len(queue) == 1 and queue.positions()[0][0] == 0
    assert re.match(WHERE, queue.broken)
    assert re.search(f"pywan: {WHERE}\n", capfd.readouterr().err)


# Calls that only look at a queue, and calls that put it away with its log. They work on a broken queue too.
LOOK = {"recovery", "log_state", "counts", "positions", "oldest_ms", "records", "lowest_copied", "runs", "streams"}
PUT_AWAY = {"commit_loop", "commit_once", "stop_log", "wait_written", "wake", "write_once"}
# The same of calls with arguments.
LOOK_AT = {"run_of": ("r",), "keep_acknowledged": (False,), "take_acknowledged": (1,), "wait_records": (1,)}
LOOK_AT["limit_memory"] = (_core.MemoryLimit("m", 1 << 40, 1 << 40, 1 << 39),)
LOOK_AT["set_runners"] = ((),)
LOOK_AT["park_in"] = (_core.EventQueue("parked"),)
# Who tells a queue what it sends from now on goes on with other queues.
TOLD = {"lead"}
# All the others, by the arguments of a call that a whole queue takes.
REFUSED = {
    "add_run": lambda queue: ("r", 1),
    "run_events": lambda queue: (0, 1),
    "lacking": lambda queue: (0, 1),
    "older_events": lambda queue: (0, 0, 0, 1, 1),
    "take_older": lambda queue: (0, 0, 0, b""),
    "end_lacking": lambda queue: (0, 0, 0),
    "lack_events_behind": lambda queue: (0, 0, 0),
    "append_record": lambda queue: (make_record(b"l"),),
    "clear": lambda queue: (),
    "is_past": lambda queue: (1, 0, 1),
    "peek": lambda queue: (0, 1),
    "peek_with_positions": lambda queue: (0, 1),
    "make_hole": lambda queue: (0, 1),
    "remove": lambda queue: (0, 0),
    "renew": lambda queue: (1, 2),
    "replay_into": lambda queue: (_core.EventQueue("other"),),
    "rewind": lambda queue: (0,),
    "set_full_policy": lambda queue: ("refuse",),
    "wait_durable": lambda queue: (),
    "wait_removed": lambda queue: (),
}


def state(queue):
    return queue.counts(), queue.positions(), queue.records()


@pytest.mark.parametrize("log", [False, True])
def test_every_call_but_those_that_look_or_put_it_away_says_where_it_broke(log, tmp_path):
    queue = _core.EventQueue("ln", remote_site=2, **(dict(log_directory=tmp_path, log_id=7) if log else {}))
    for key in (b"k", b"l", b"m"):
        queue.append_record(make_record(key))
    queue.commit_once()
    queue.peek(0, 1)
    assert queue.oldest_ms() is not None
    break_queue(queue)
    before, oldest = state(queue), queue.oldest_ms()
    calls = {name for name in dir(queue) if not name.startswith("_") and callable(getattr(queue, name))}
    assert calls == LOOK | LOOK_AT.keys() | TOLD | PUT_AWAY | REFUSED.keys()
    for name, arguments in sorted(REFUSED.items()):
        with pytest.raises(InternalError, match=WHERE):
            getattr(queue, name)(*arguments(queue))
        assert state(queue) == before, name
    other = _core.EventQueue("other")
    other.append_record(make_record(b"k"))
    with pytest.raises(InternalError, match=WHERE):
        other.replay_into(queue)
    assert len(other) == 1 and other.positions() == [(0, 0, 1)]
    queue.stop_log()
    for name in sorted(LOOK | PUT_AWAY):
        getattr(queue, name)()
    for name, arguments in LOOK_AT.items():
        getattr(queue, name)(*arguments)
    assert state(queue) == before and queue.oldest_ms() == oldest


def test_what_was_staged_when_its_queue_broke_gets_to_the_disk(tmp_path):
    queue = _core.EventQueue("ln", remote_site=2, log_directory=tmp_path, log_id=7)
    queue.running = True
    region = region_of(queue)
    writer = threading.Thread(target=lambda: region.put("k", 1))
    writer.start()
    eventually(lambda: queue.log_state()["pending"] == 1)
    break_queue(queue)
    assert queue.commit_once()
    writer.join()  # Its event is where it was promised to be: no error.
    assert queue.log_state()["pending"] == 0


def test_a_broken_sender_neither_drops_its_events_nor_starts_without_them(network):
    ny, ln = network.add("ny ln")
    ny.cache.close()
    ny.start_member(handover_time=0)  # What is parked in a broken queue can be handed over to nobody.
    network.connect([("ny", "ln")])
    sender = ny.sender(ln)
    sender._core.parked.queue.append_record(make_record(b"k"))
    break_queue(sender._core.parked.queue)
    with pytest.raises(InternalError, match=WHERE):
        sender.drop_parked()
    with pytest.raises(InternalError, match=WHERE):
        sender.replay_parked()
    assert sender.parked_count == 1
    sender.pause()
    ny.data.put("k", 1)
    sender.stop()
    break_queue(sender._core.queue)
    with pytest.raises(InternalError, match=WHERE):
        sender.start(clean_queues=True)
    assert not sender.is_running and len(sender._core.queue) == 1 and sender.ledger()["balanced"]
    ny.data.put("l", 1)  # It is stopped: the region goes on.
    assert ny.data["l"] == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda region: region.put("k", 2),
        lambda region: region.destroy("k"),
        lambda region: region.put_columns([b"k", b"l"], [b"2", b"3"]),
    ],
)
def test_a_change_that_would_enter_a_broken_queue_is_not_made(queue, change):
    region = region_of(queue)
    region.put("k", 1)
    break_queue(queue)
    with pytest.raises(InternalError, match=WHERE):
        change(region)
    assert region.get("k") == 1 and len(region) == 1 and len(queue) == 1


def test_a_queue_beside_the_broken_one_is_not_left_locked(queue):
    other = _core.EventQueue("tk", remote_site=3)
    other.running = True
    both, one = region_of(other, queue), region_of(other)
    break_queue(queue)
    for _ in range(3):
        with pytest.raises(InternalError, match=WHERE):
            both.put("k", 1)
    one.put("k", 1)
    assert len(other) == 1 and len(other.peek(0, 10)) == 1


def test_a_session_of_a_broken_queue_gives_its_connection_up():
    sites = TwoSites(history=False)
    sites.fast_region()
    sites.put(("k", b"1"))
    break_queue(sites.queue)
    with pytest.raises(InternalError, match=WHERE):
        sites.dispatcher.data_to_send(1)
    with pytest.raises(InternalError, match=WHERE):
        sites.dispatcher.receive_data(b"x" * 32)
    sites.dispatcher.disconnected()


def test_a_member_lives_on_with_its_other_senders_and_closes_in_time(network):
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln"), ("ny", "tk")])
    fine = ny.region("fine", senders=["tk"], colocated_with="data")
    tk.region("fine")
    ny.data.put("k", 1)
    network.settle()
    broken = ny.sender(ln)
    break_queue(broken._core.queue)
    with pytest.raises(InternalError, match=WHERE):
        ny.data.put("l", 1)
    fine.put("k", 2)
    eventually(lambda: tk.cache.region("fine").get("k") == 2)
    assert "l" not in ny.data and "l" not in tk.data
    assert re.match(f"broken: {WHERE}", broken.lag()["cause"])
    began = time.monotonic()
    ny.cache.close()
    assert time.monotonic() - began < 10


def test_an_event_for_a_broken_queue_of_the_receiving_member_stays_at_its_sender(network):
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln"), ("ln", "tk")])
    break_queue(ln.sender(tk)._core.queue)
    ny.data.put("k", 1)
    eventually(lambda: "internal check failed" in ny.sender(ln).lag()["cause"])
    assert "k" not in ln.data and ny.sender(ln).queue_size == 1 and ny.sender(ln).parked_count == 0


def test_a_repair_of_the_clock_takes_nothing_out_of_a_broken_queue():
    clock = _core.Clock()
    queue, parked = _core.EventQueue("ln", remote_site=2), _core.EventQueue("ln (parked)", remote_site=2)
    parked.append_record(make_record(b"k", stamp=(int(time.time()) + 3600) * 1000 << 16))
    repair = _core.ClockRepair(clock, [], site=1)
    repair.begin()
    assert repair.count_events(parked) == 1
    repair.give_stamps()
    break_queue(parked)
    with pytest.raises(InternalError, match=WHERE):
        repair.restamp_events(parked, queue, [])
    assert len(parked) == 1 and len(queue) == 0 and parked.counts()["restamped"] == 0
