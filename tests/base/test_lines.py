"""Lines of a log that others cause: about what fails again and again."""

from __future__ import annotations

import logging
import socket

import pytest

from pywan.base.lines import LINES_AT_ONCE, LINES_PERIOD_S, ONCE_PERIOD_S, PLACES_MAX, Lines
from pywan.errors import ConnectivityError
from pywan.transport.data import receive_exactly

log = logging.getLogger("pywan.test")


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def lines(now, caplog):
    caplog.set_level(logging.INFO, "pywan.test")
    return Lines(log, clock=lambda: now[0])


LINK = "the replication link to member b"


def test_what_fails_again_and_again_has_a_line_at_once_and_one_a_minute(lines, now, caplog):
    for _ in range(1200):  # Ten minutes, twice a second.
        lines.failed(LINK, "nobody listens at 127.0.0.1[1]")
        now[0] += 0.5
    told = [record.message for record in caplog.records]
    assert told[0] == "the replication link to member b: nobody listens at 127.0.0.1[1]"
    assert told[1] == "the replication link to member b has failed for 60 s, 121 times: nobody listens at 127.0.0.1[1]"
    assert len(told) == 600 / ONCE_PERIOD_S


def test_the_end_of_an_outage_has_one_line_and_the_next_one_begins_at_once(lines, now, caplog):
    lines.works(LINK)
    assert not caplog.records
    lines.failed(LINK, "first")
    lines.failed(LINK, "second")
    now[0] += 3
    lines.works(LINK)
    lines.works(LINK)
    lines.failed(LINK, "third")
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


def test_a_place_and_a_reason_have_one_line_a_minute_and_many_places_are_not_all_remembered(lines, now, caplog):
    for _ in range(int(ONCE_PERIOD_S)):
        for why in ("one", "other"):
            lines.warning("%s", why, once=("10.0.0.1", why))
        now[0] += 1
    assert caplog.messages == ["one", "other"]
    lines.warning("again", once=("10.0.0.1", "one"))
    assert caplog.messages[2:] == ["again"]
    caplog.clear()
    for number in range(10_000):
        lines.warning("%d", number, once=(f"place {number}", "one"))
    assert 0 < len(caplog.records) < PLACES_MAX and len(lines._told) == PLACES_MAX
    caplog.clear()
    now[0] += ONCE_PERIOD_S
    lines.warning("later", once=("place 9999", "one"))
    left_out = f"{10_000 - PLACES_MAX + 1} lines like the next were left out"
    assert caplog.messages == [left_out, "later"] and len(lines._told) == PLACES_MAX


def test_a_line_comes_at_once_again_when_its_trouble_has_ended(lines, caplog):
    assert not lines.ended()
    for what in ("log a", "log b"):
        for _ in range(2):
            lines.error("%s is full", what, once=(what, "full"))
    assert lines.ended("log a") and not lines.ended("log a")
    for what in ("log a", "log b"):
        lines.error("%s is full", what, once=(what, "full"))
    assert caplog.messages == ["log a is full", "log b is full", "log a is full"]


def test_who_has_no_clock_gives_the_time(lines, caplog):
    for now_us in (0, int(ONCE_PERIOD_S * 1e6) - 1, int(ONCE_PERIOD_S * 1e6)):
        lines.info("%d", now_us, once=("rival",), now_us=now_us)
    assert caplog.messages == ["0", str(int(ONCE_PERIOD_S * 1e6))]


def test_lines_of_one_kind_are_few_in_a_period_and_the_next_one_says_how_many_were_left_out(lines, now, caplog):
    for _ in range(LINES_AT_ONCE + 3):
        lines.warning("a stranger came")
    lines.warning("a member came", once=("member",))  # It has a limit of its own.
    assert caplog.messages == ["a stranger came"] * LINES_AT_ONCE + ["a member came"]
    caplog.clear()
    now[0] += LINES_PERIOD_S + 1
    lines.warning("a stranger came")
    assert caplog.messages == ["3 lines like the next were left out", "a stranger came"]
