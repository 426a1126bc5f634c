"""The end of a member: what is queued is sent if it is given the time, and what is lost is said, by sender."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

import pywan
from pywan.errors import ConfigurationError, RegionNotFoundError
from pywan.stats import volatile_text
from pywan.testing.waiting import LIMIT_S, eventually
from support.sites import at_once

SLOW = {"batch_time_interval": 600_000, "batch_size": 10_000, "retry_interval_ms": 30, "dispatcher_threads": 1}


def warnings(caplog: Any) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "are lost" in record.getMessage()
    ]


@pytest.fixture
def far_from_full(network):
    """NY has a sender to LN whose batch is neither full nor due for ten minutes."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], **SLOW)
    return ny, ln


@pytest.fixture
def unreachable(network):
    """NY has a sender to LN, where nobody receives."""
    ny, ln = network.add("ny ln")
    ny.send_to("ln", **SLOW)
    ny.region(type="REPLICATE")
    return ny, ln


def put_some(site: Any, count: int = 20) -> None:
    site.data.put_all({f"k{n}": b"v" for n in range(count)})


def test_close_says_how_many_events_of_which_sender_are_lost(unreachable, caplog):
    ny, _ = unreachable
    put_some(ny)
    assert ny.cache.volatile_events() == {"ln": {"queued": 20}}
    ny.cache.close()
    assert len(warnings(caplog)) == 1 and "sender ln: 20 queued" in warnings(caplog)[0]


def test_close_is_silent_where_nothing_is_lost(two_sites, tmp_path, caplog):
    ny, _ln = two_sites
    put_some(ny)
    ny.network.settle()
    ny.cache.close()
    kept = ny.start_member(dir=tmp_path)
    ny.send_to("tk", enable_persistence=True)
    ny.region()
    put_some(ny)
    assert kept.volatile_events() == {}
    kept.close()
    assert warnings(caplog) == []


def test_events_that_are_parked_are_lost_too(network, caplog):
    ny, ln = network.add("ny ln")
    ln.receive()
    sender = ny.send_to("ln")
    ny.region()
    put_some(ny, 3)  # LN has no such region.
    eventually(lambda: sender.parked_count == 3, what="parking")
    ny.cache.close()
    assert "sender ln: 3 parked" in warnings(caplog)[0]


@pytest.mark.parametrize("given", ["cache", "close"])
@pytest.mark.parametrize("wait", [-1, 30, 30.0])
def test_close_waits_for_the_queue_to_empty(far_from_full, caplog, given, wait):
    ny, ln = far_from_full
    if given == "cache":
        ny.cache.close()
        ny.start_member(maximum_shutdown_wait_time=wait)
        assert ny.cache.maximum_shutdown_wait_time == wait
        ny.send_to("ln", **SLOW)
        ny.region(type="REPLICATE")
    put_some(ny)
    sender = ny.sender("ln")
    ny.cache.close(*[wait] if given == "close" else [])
    assert len(ln.data) == 20
    assert warnings(caplog) == [] and sender._core.queue.counts()["distributed"] == 20


def test_close_waits_no_longer_than_it_is_told(unreachable, caplog):
    ny, _ = unreachable
    put_some(ny)
    ny.cache.close(maximum_shutdown_wait_time=0.2)
    assert "sender ln: 20 queued" in warnings(caplog)[0]


@pytest.mark.parametrize("again", ["close", "request_shutdown"])
def test_a_second_call_ends_the_waiting(unreachable, caplog, again):
    ny, _ = unreachable
    put_some(ny)
    cache = ny.cache
    closing = threading.Thread(target=cache.close, args=(-1,))
    closing.start()
    eventually(lambda: cache.is_closed, what="the begin of the end")
    getattr(cache, again)()
    closing.join(LIMIT_S)
    assert not closing.is_alive() and "20 queued" in warnings(caplog)[0]


def test_a_stopped_or_paused_sender_is_not_waited_for(unreachable, caplog):
    ny, _ = unreachable
    put_some(ny)
    ny.send_to("tk", **SLOW)
    ny.data.alter(gateway_sender_ids=("ln", "tk"))
    put_some(ny, 2)
    ny.sender("ln").stop()
    ny.sender("tk").pause()
    ny.cache.close(-1)
    assert "gateway sender ln: 22 queued; gateway sender tk: 2 queued" in warnings(caplog)[0]


def test_while_it_waits_no_change_is_taken_and_the_member_answers(unreachable):
    ny, _ = unreachable
    put_some(ny)
    region, cache = ny.data, ny.cache

    def look() -> None:
        eventually(lambda: region.is_closed, what="closed regions")
        with pytest.raises(RegionNotFoundError):
            region.put("late", b"v")
        assert cache.status()["volatile_events"] == {"ln": {"queued": 20}}
        cache.close()

    at_once(lambda: cache.close(-1), look)
    assert len(cache.gateway_sender("ln")._core.queue) == 20


@pytest.mark.parametrize("wait", [-2, float("nan"), "soon", True, 2**31])
def test_a_wait_that_is_no_time_is_refused_by_name_and_nothing_is_closed(two_sites, wait):
    ny, _ln = two_sites
    with pytest.raises(ConfigurationError, match="maximum_shutdown_wait_time"):
        ny.cache.close(wait)
    with pytest.raises(ConfigurationError, match="maximum_shutdown_wait_time"):
        pywan.Cache("other", locators=str(ny.locator.address), maximum_shutdown_wait_time=wait)
    assert not ny.cache.is_closed
    put_some(ny)


def test_destroying_a_sender_says_what_it_drops(unreachable, caplog):
    ny, _ = unreachable
    put_some(ny, 5)
    sender = ny.sender("ln")
    ny.data.alter(gateway_sender_ids=())
    sender.destroy()
    assert any("destroyed with 5 queued and 0 parked" in record.getMessage() for record in caplog.records)


# --- the end of the interpreter ---

PROGRAM = """
import sys, pywan
cache = pywan.Cache("server", locators=sys.argv[1], maximum_shutdown_wait_time=float(sys.argv[2]))
cache.create_gateway_sender("ln", remote_distributed_system_id=2, batch_time_interval=600_000, batch_size=10_000)
cache.create_region("data", type="REPLICATE", gateway_sender_ids="ln").put_all({f"k{n}": b"v" for n in range(20)})
"""


def run_program(locators: str, wait: float) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, locators, str(wait)], capture_output=True, text=True, timeout=60
    )


def test_the_end_of_the_interpreter_says_what_is_lost(network):
    ny, _ln = network.add("ny ln")
    ny.cache.close()
    done = run_program(str(ny.locator.address), 0.2)
    assert done.returncode == 0 and "sender ln: 20 queued" in done.stderr, done.stderr


def test_the_end_of_the_interpreter_waits_for_the_queues(network):
    ny, ln = network.add("ny ln")
    ny.cache.close()
    ln.receive()
    ln.region(type="REPLICATE")
    done = run_program(str(ny.locator.address), -1)
    assert done.returncode == 0 and "lost" not in done.stderr, done.stderr
    assert len(ln.data) == 20


def test_counts_are_said_in_words():
    assert (
        volatile_text({"AsyncEventQueue_b": {"queued": 1200}, "a": {"queued": 1, "parked": 2}})
        == "async event queue b: 1,200 queued; gateway sender a: 1 queued and 2 parked"
    )
