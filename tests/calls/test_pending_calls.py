"""Serving by completion: a call whose change does not count yet holds no other call of its connection."""

from __future__ import annotations

import random

import pytest

from fuzz_core import calls
from pywan import _core
from support.served import BUCKETS, DONE, EPOCH, IN_DOUBT, NEVER, NOT_PRIMARY, SECOND, TIMELINE, Served


def test_a_read_of_another_bucket_is_answered_while_a_change_waits_for_its_replica(served: Served) -> None:
    put, get = served.put(0, b"value"), served.get(1)
    assert served.answered() == {get: (DONE, b"")}
    assert served.session.pending == 1
    served.acknowledge(0)
    assert served.answered() == {put: (DONE, b"")}
    assert served.session.pending == 0


def test_answers_leave_in_the_order_in_which_they_count(served: Served) -> None:
    puts = [served.put(bucket, b"value") for bucket in range(BUCKETS)]
    assert served.answered() == {}
    for bucket in (2, 0, 3, 1):
        served.acknowledge(bucket)
        assert served.answered() == {puts[bucket]: (DONE, b"")}


def test_a_read_waits_for_what_it_found_and_keeps_it(served: Served) -> None:
    served.put(0, b"first")
    served.put(0, b"second")
    get = served.get(0)
    served.put(0, b"third")
    served.acknowledge(0, 1)
    assert get not in served.answered()
    served.acknowledge(0, 2)
    assert served.answered()[get] == (DONE, b"second")
    assert served.session.pending == 1


def test_a_read_waits_while_another_member_may_be_primary(served: Served) -> None:
    served.put(0, b"value")
    served.acknowledge(0)
    served.answered()
    served.repl_link.set_read_lease(0)
    get = served.get(0)
    assert served.answered() == {} and served.session.pending == 1
    served.repl_link.set_read_lease(NEVER)
    assert served.answered() == {get: (DONE, b"value")}


def test_calls_of_a_bucket_that_is_lost_track_of_say_so(served: Served) -> None:
    put, get, other = served.put(0, b"value"), served.get(0), served.put(1, b"value")
    served.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 1)
    assert {id: status for id, (status, _) in served.answered().items()} == {put: IN_DOUBT, get: NOT_PRIMARY}
    served.acknowledge(1)
    assert served.answered() == {other: (DONE, b"")}


def test_a_call_waits_until_the_member_has_taken_over_and_holds_no_other(served: Served) -> None:
    served.becomes(0, _core.REPLICA_TAKING_OVER, EPOCH + 1)
    put, get, other = served.put(0, b"value", EPOCH + 1), served.get(0, EPOCH + 1), served.get(1)
    assert served.answered() == {other: (DONE, b"")}
    assert served.session.pending == 2 and served.changelog.log_end(0) == 0
    served.becomes(0, _core.REPLICA_PRIMARY, EPOCH + 1)
    assert served.answered() == {} and served.session.pending == 2  # Both wait for the replica now.
    served.acknowledge_under(0, EPOCH + 1)
    assert served.answered() == {put: (DONE, b""), get: (DONE, b"value")}
    assert served.session.pending == 0


def test_a_call_waits_for_an_epoch_that_the_member_does_not_know_yet(served: Served) -> None:
    served.becomes(0, _core.REPLICA_IN_SYNC, EPOCH + 1)
    get = served.get(0, EPOCH + 2)
    assert served.answered() == {} and served.session.pending == 1
    served.becomes(0, _core.REPLICA_TAKING_OVER, EPOCH + 2)
    assert served.answered() == {} and served.session.pending == 1
    served.becomes(0, _core.REPLICA_PRIMARY, EPOCH + 2)
    assert served.answered() == {get: (DONE, b"")}


def test_a_call_is_answered_not_primary_when_another_member_takes_over_or_it_takes_long(served: Served) -> None:
    served.becomes(0, _core.REPLICA_TAKING_OVER, EPOCH + 1)
    served.answered(SECOND)  # The time of what comes next.
    put = served.put(0, b"value", EPOCH + 1)
    assert served.answered(SECOND) == {}
    served.becomes(0, _core.REPLICA_IN_SYNC, EPOCH + 2)
    assert served.answered(SECOND)[put][0] == NOT_PRIMARY
    late = served.put(0, b"value", EPOCH + 3)
    assert served.answered(SECOND) == {}
    given_up_us = served.session.next_us()
    assert given_up_us == SECOND + SECOND // 4
    assert served.answered(given_up_us - 1) == {}
    assert served.answered(given_up_us)[late][0] == NOT_PRIMARY
    served.becomes(0, _core.REPLICA_PRIMARY, EPOCH + 3)
    assert served.answered(given_up_us) == {} and served.session.pending == 0
    assert served.changelog.log_end(0) == 0


def test_a_session_that_ends_while_calls_are_held_makes_none_of_them(served: Served) -> None:
    served.becomes(0, _core.REPLICA_TAKING_OVER, EPOCH + 1)
    served.put(0, b"value", EPOCH + 1)
    assert served.answered() == {} and served.session.pending == 1
    del served.session
    served.becomes(0, _core.REPLICA_PRIMARY, EPOCH + 1)
    assert served.changelog.log_end(0) == 0


def test_a_session_holds_no_more_pending_calls_than_it_may_and_loses_none(served: Served) -> None:
    most = 4096
    served.becomes(0, _core.REPLICA_TAKING_OVER, EPOCH + 1)
    puts = [served.put(0, b"value %d" % n, EPOCH + 1) for n in range(most + 10)]
    assert served.answered() == {} and served.session.pending == most
    served.becomes(0, _core.REPLICA_PRIMARY, EPOCH + 1)
    assert served.answered() == {} and served.changelog.log_end(0) == most
    served.acknowledge_under(0, EPOCH + 1)
    answered = served.answered()
    served.acknowledge_under(0, EPOCH + 1)
    answered |= served.answered()
    assert set(answered) == set(puts) and {status for status, _ in answered.values()} == {DONE}
    assert served.region.lookup(served.keys[0])[0] == b"value %d" % (most + 9)


def test_a_call_that_is_not_replicated_in_time_is_in_doubt_and_a_read_is_answered_not_primary(served: Served) -> None:
    put = served.put(0, b"value")
    assert served.answered(SECOND) == {}
    get = served.get(0)
    assert served.answered(8 * SECOND) == {}
    assert served.answered(8 * SECOND + 1)[put][0] == IN_DOUBT
    assert served.session.next_us() == 9 * SECOND
    assert served.answered(9 * SECOND)[get][0] == NOT_PRIMARY
    assert served.session.pending == 0
    served.acknowledge(0)  # Too late: nobody waits.
    assert served.answered() == {}


def test_a_session_takes_no_more_calls_than_may_be_pending_and_loses_none(served: Served) -> None:
    most = 4096
    puts = [served.put(0, b"value") for _ in range(most + 10)]
    get = served.get(1)
    assert served.answered() == {}
    assert served.session.pending == most
    served.acknowledge(0, 1)
    assert served.answered() == {puts[0]: (DONE, b"")}
    served.acknowledge(0)
    answered = served.answered()
    assert get in answered
    served.acknowledge(0)
    answered |= served.answered()
    assert set(answered) == {*puts[1:], get}


def test_a_session_that_ends_while_calls_wait_leaves_nothing_in_the_change_logs(served: Served) -> None:
    for bucket in range(BUCKETS):
        served.put(bucket, b"value")
        served.get(bucket)
    assert served.answered() == {} and served.session.pending == 2 * BUCKETS
    del served.session
    for bucket in range(BUCKETS):
        served.acknowledge(bucket)
        assert served.changelog.state(bucket)["high_watermark"] == 1


def test_a_first_attempt_that_comes_after_a_later_call_of_its_slot_is_refused(served: Served) -> None:
    key, held = served.keys[0].encode(), served.connect()
    attempts = [
        calls.call(calls.CHANGE, calls.record(key, value, key_form=1), epoch=EPOCH, caller=9, slot=4, number=number)
        for number, value in ((1, b"held"), (2, b"later"))
    ]
    served.session.receive_data(attempts[1])
    served.acknowledge(0)
    assert served.answered() == {1: (DONE, b"")}
    held.receive_data(attempts[0])
    [(_, status, words)] = calls.answers(held.data_to_send(0))
    assert status == IN_DOUBT and b"a later call of the same caller" in words
    held.receive_data(attempts[1])  # The same call again: it gets its first answer.
    assert calls.answers(held.data_to_send(0)) == [(1, DONE, b"")]
    assert served.changelog.log_end(0) == 1
    assert served.region.lookup(served.keys[0])[0] == b"later"


@pytest.mark.parametrize("seed", range(20))
def test_every_call_is_answered_once_when_what_it_saw_is_replicated(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    last, high_watermark = [0] * BUCKETS, [0] * BUCKETS
    waiting: dict[int, tuple[int, int, bytes]] = {}  # By id: the bucket, the sequence, the payload of the answer.
    value = [b""] * BUCKETS
    for _ in range(400):
        bucket = chance.randrange(BUCKETS)
        what = chance.random()
        if what < 0.4:
            value[bucket] = b"value %d" % served.next_id
            last[bucket] += 1
            waiting[served.put(bucket, value[bucket])] = bucket, last[bucket], b""
        elif what < 0.7:
            waiting[served.get(bucket)] = bucket, last[bucket], value[bucket]
        else:
            high_watermark[bucket] = chance.randint(high_watermark[bucket], last[bucket])
            served.acknowledge(bucket, high_watermark[bucket])
        expected = {id: (DONE, p) for id, (b, sequence, p) in waiting.items() if sequence <= high_watermark[b]}
        if chance.random() < 0.7:
            assert served.answered() == expected
            for id in expected:
                del waiting[id]
            assert served.session.pending == len(waiting)
    for bucket in range(BUCKETS):
        served.acknowledge(bucket)
    assert set(served.answered()) == set(waiting)
