"""Events of other sites as calls between members: what the primary of a bucket does for the receiver of another
member."""

from __future__ import annotations

from pywan import _core
from support.event_calls import FAR, NOW, became, event, send_events
from support.records import FUTURE_STAMP
from support.served import DONE, EPOCH, FAILED, IN_DOUBT, Served


def test_events_are_answered_when_they_count(served: Served) -> None:
    key = served.keys[0]
    call = send_events(served, 0, event(key, b"one"), event(key, b"two", stamp=NOW + 1))
    assert served.answered() == {} and served.session.pending == 1
    served.acknowledge(0)
    assert served.answered() == {call: (DONE, bytes(8))}
    assert served.region.lookup(key)[:3] == (b"two", NOW + 1, 9)
    assert served.region.applied == 2


def test_the_clock_of_the_primary_sees_the_stamps_of_events(served: Served) -> None:
    stamp = NOW + (100_000 << 16)
    send_events(served, 0, event(served.keys[0], stamp=stamp))
    served.put(1, b"later")
    assert served.region.lookup(served.keys[1])[1] > stamp


def test_a_repeat_waits_for_what_it_repeats(served: Served) -> None:
    """Otherwise a receiver would acknowledge what only a primary that is about to die has."""
    key = served.keys[0]
    first = send_events(served, 0, event(key))
    again = send_events(served, 0, event(key), marks=1)
    assert served.answered() == {}
    served.acknowledge(0)
    assert served.answered() == {first: (DONE, bytes(8)), again: (DONE, bytes(8))}
    assert served.region.applied == 1 and served.changelog.log_end(0) == 1


def test_an_older_event_is_a_conflict_and_fails_nothing(served: Served) -> None:
    key = served.keys[0]
    send_events(served, 0, event(key, stamp=NOW + 5))
    call = send_events(served, 0, event(key, b"old"))
    served.acknowledge(0)
    status, payload = served.answered()[call]
    assert (status, became(payload)) == (DONE, (1, []))
    assert served.region.conflicts == 1


def test_events_that_cannot_be_applied_fail_alone_and_say_why(served: Served) -> None:
    key = served.keys[0]
    call = send_events(served, 0, event(key, stamp=FAR), event(key), event(key, stamp=FAR))
    served.acknowledge(0)
    status, payload = served.answered()[call]
    assert (status, became(payload)) == (DONE, (0, [(0, FUTURE_STAMP), (2, FUTURE_STAMP)]))
    assert served.region.lookup(key)[1] == NOW


def test_events_whose_bucket_is_lost_track_of_are_in_doubt(served: Served) -> None:
    call = send_events(served, 0, event(served.keys[0]))
    served.changelog.set_role(0, _core.REPLICA_IN_SYNC, 1, EPOCH + 1)
    assert served.answered()[call][0] == IN_DOUBT


def test_a_key_of_another_bucket_changes_nothing(served: Served) -> None:
    call = send_events(served, 0, event(served.keys[1]))
    assert served.answered()[call][0] == FAILED
    assert served.region.lookup(served.keys[1]) is None


def test_the_replica_gets_the_event_with_its_site_its_identity_and_its_argument(served: Served) -> None:
    send_events(served, 0, event(served.keys[0], callback=b"argument", event=(5, 6, 7)))
    fields = _core.record_fields(served.changelog.fetch(0, 0)[16:])  # Behind the head of the entry.
    assert (fields["origin_site"], fields["event_id"], fields["callback"]) == (9, (5, 6, 7), (0, b"argument"))
