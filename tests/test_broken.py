"""A check of our own that fails breaks the queue that it is about, and nothing else: not the process, and not its other regions and senders."""
from __future__ import annotations

import itertools
import re
import time

import pytest
from records import make_record
from test_core_sessions import TwoSites

from pywan import _core
from pywan.errors import InternalError
from pywan.testing.waiting import eventually

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


def test_every_later_call_says_where_it_broke(queue):
    queue.append_record(make_record(b"k"))
    break_queue(queue)
    for call in (lambda: queue.peek(0, 1), lambda: queue.remove(0, 0), lambda: queue.punch(0, 1), lambda: queue.rewind(0),
                 lambda: queue.append_record(make_record(b"l"))):
        with pytest.raises(InternalError, match=WHERE):
            call()
    assert queue.counts()["events"] == 1        # What only looks still works.


@pytest.mark.parametrize("change", [
    lambda region: region.put("k", 2), lambda region: region.destroy("k"), lambda region: region.put_columns([b"k", b"l"], [b"2", b"3"])])
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
