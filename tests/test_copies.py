"""A queue of which other members have copies: what they do not have yet is not sent, and its maker not answered."""

from __future__ import annotations

import threading

import pytest

from pywan.errors import ConnectivityError
from pywan.testing.waiting import LIMIT_S, eventually
from test_core_sessions import TwoSites


@pytest.fixture
def sites():
    two = TwoSites()
    two.queue.set_copied(True)
    two.region.attach([two.queue])
    return two


def put(sites, count):
    """From a thread: who puts is answered when all copies have it."""
    answered = []

    def work():
        for n in range(count):
            sites.region.put(f"k{n}", f"v{n}")
            answered.append(n)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, answered


def test_an_event_is_sent_and_its_maker_answered_only_when_all_copies_have_it(sites):
    thread, answered = put(sites, 2)
    eventually(lambda: len(sites.queue) == 1)
    sites.settle()
    assert sites.history.applied == [] and answered == [], "nobody has it but us"
    sites.queue.made_replicated(0, 1)
    eventually(lambda: answered == [0] and len(sites.queue) == 2)
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["k0"]
    sites.queue.made_replicated(0, 2)
    thread.join(LIMIT_S)
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["k0", "k1"] and len(sites.queue) == 0


def test_what_waited_counts_when_there_are_no_copies_any_more(sites):
    thread, answered = put(sites, 1)
    eventually(lambda: len(sites.queue) == 1)
    assert answered == []
    sites.queue.set_copied(False)
    thread.join(LIMIT_S)
    sites.settle()
    assert answered == [0] and len(sites.history.applied) == 1


def test_what_was_queued_before_there_were_copies_is_sent_without_them():
    two = TwoSites()
    two.put(("before", "1"))
    two.queue.set_copied(True)
    two.settle()
    assert [key for key, *_ in two.history.applied] == ["before"]


def test_what_counts_is_sent_again_after_a_broken_connection_and_the_rest_still_waits(sites):
    sites.queue.set_copied(False)
    sites.put(("a", "1"))
    sites.queue.set_copied(True)
    sites.sent()
    sites.reconnect()
    thread, _ = put(sites, 1)
    eventually(lambda: len(sites.queue) == 2)
    sites.settle()
    assert [key for key, *_ in sites.history.applied] == ["a"]
    sites.queue.made_replicated(0, 2)
    thread.join(LIMIT_S)


def test_copies_that_do_not_take_a_change_in_time_are_named(sites):
    thread, _ = put(sites, 1)
    eventually(lambda: len(sites.queue) == 1)
    with pytest.raises(
        ConnectivityError, match=r"queue 'ln': its copies at other members did not take the change within 0.2 s"
    ):
        sites.queue.wait_replicated(0.2)
    sites.queue.made_replicated(0, 1)
    thread.join(LIMIT_S)


def test_copies_cannot_have_more_than_there_is(sites):
    with pytest.raises(ValueError, match="copies have 1 of partition 0, which ends at 0"):
        sites.queue.made_replicated(0, 1)
