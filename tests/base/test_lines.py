"""Lines of a log that others cause: about what fails again and again."""

from __future__ import annotations

import logging
import socket

import pytest

from pywan.base.lines import OUTAGE_PERIOD_S, PLACES_MAX, OncePerMinute, Outage
from pywan.errors import ConnectivityError
from pywan.transport.data import receive_exactly

log = logging.getLogger("pywan.test")


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def outage(now, caplog):
    caplog.set_level(logging.INFO, "pywan.test")
    return Outage(log, "the replication link to member b", clock=lambda: now[0])


def test_what_fails_again_and_again_has_a_line_at_once_and_one_a_minute(outage, now, caplog):
    for _ in range(1200):  # Ten minutes, twice a second.
        outage.failed("nobody listens at 127.0.0.1[1]")
        now[0] += 0.5
    lines = [record.message for record in caplog.records]
    assert lines[0] == "the replication link to member b: nobody listens at 127.0.0.1[1]"
    assert lines[1] == "the replication link to member b has failed for 60 s, 121 times: nobody listens at 127.0.0.1[1]"
    assert len(lines) == 600 / OUTAGE_PERIOD_S


def test_the_end_of_an_outage_has_one_line_and_the_next_one_begins_at_once(outage, now, caplog):
    outage.over()
    assert not caplog.records
    outage.failed("first")
    outage.failed("second")
    now[0] += 3
    outage.over()
    outage.over()
    outage.failed("third")
    assert [record.message for record in caplog.records] == [
        "the replication link to member b: first",
        "the replication link to member b works again after 3.0 s, in which it failed 2 times",
        "the replication link to member b: third",
    ]


def test_an_error_of_a_connection_names_the_other_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, server.accept()[0] as far:
            far.sendall(b"ab")
            near.settimeout(0.05)
            with pytest.raises(ConnectivityError, match=rf"127.0.0.1\[{port}\] within 0.1 s: 2 of 8 bytes came"):
                receive_exactly(near, 8)
            far.close()
            with pytest.raises(ConnectivityError, match=rf"127.0.0.1\[{port}\] closed the connection"):
                receive_exactly(near, 8)


def test_a_place_and_a_reason_have_one_line_a_minute_and_many_places_are_not_all_remembered():
    lines, minute_us = OncePerMinute(), int(OUTAGE_PERIOD_S * 1e6)
    due = [lines.is_due("10.0.0.1", why, at_us) for at_us in range(0, minute_us, 1_000_000) for why in ("one", "other")]
    assert due == [True, True] + [False] * (len(due) - 2)
    assert lines.is_due("10.0.0.1", "one", minute_us)
    written = sum(lines.is_due(f"place {number}", "one", minute_us) for number in range(10_000))
    assert written < PLACES_MAX and len(lines._told_us) == PLACES_MAX
    assert lines.is_due("place 9999", "one", 2 * minute_us)
