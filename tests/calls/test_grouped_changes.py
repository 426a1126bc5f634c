"""Changes of one bucket that come in one call are made in groups, under one hold of the locks. What ends a group in the
middle leaves the changes before it made, and says what it would say of a single change."""

from __future__ import annotations

import random
import resource
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from fuzz_core import calls
from pywan import _core, stats
from pywan.testing.waiting import LIMIT_S, eventually
from support.event_calls import FAR, NOW, became, event, send_events
from support.fed_queues import lead, queue_to, queued
from support.records import DESTROY, FUTURE_STAMP, UPDATE
from support.served import DONE, EPOCH, FAILED, TIMELINE, Served
from support.shared_site import SharedSite

COUNT = 100
LONG = 5 << 20  # So many bytes of a value do not fit into a queue without memory.


class Answer(NamedTuple):
    status: int
    applied: int  # Rows that took effect.
    done: int  # Rows that were made or had no effect.
    words: bytes


class Caller(Served):
    """A primary with a replica of each bucket, and a caller of many rows of bucket 0."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [name for n in range(20_000) if self.region.bucket_of(name := f"key{n}") == 0]

    def rows(self, *rows: tuple[str, bytes], operation: int = UPDATE, flags: int = 0, **more: Any) -> Answer:
        """Sends rows in one call, and returns its answer."""
        records = [
            calls.record(key.encode(), value, operation=operation, key_form=1, sequence=n + 1)
            for n, (key, value) in enumerate(rows)
        ]
        self.next_id += 1
        self.session.receive_data(
            calls.call(
                calls.ROWS, b"".join(records), id=self.next_id, epoch=EPOCH, count=len(rows), flags=flags, **more
            )
        )
        self.acknowledge(0)
        data = self.session.data_to_send(0)
        fields = calls.ANSWER_HEAD.unpack_from(data)
        return Answer(fields[2], fields[-2], fields[-1], data[calls.ANSWER_HEAD.size :])

    def feed(self, policy: str | None = None, **options: Any) -> _core.EventQueue:
        queue = queue_to(buckets=1, **options)
        if policy:
            queue.set_full_policy(policy)
        self.region.attach([queue])
        return lead(queue)

    def values(self) -> dict[str, bytes]:
        return {name: found[0] for name in self.names[:COUNT] if (found := self.region.lookup(name)) is not None}


@pytest.fixture
def caller() -> Iterator[Caller]:
    yield Caller()


def numbered(caller: Caller, count: int = COUNT) -> list[tuple[str, bytes]]:
    return [(name, b"%d" % n) for n, name in enumerate(caller.names[:count])]


def test_rows_of_a_call_are_events_in_their_order_at_every_replica(caller: Caller) -> None:
    queue, rows = caller.feed(), numbered(caller)
    assert caller.rows(*rows) == (DONE, COUNT, COUNT, b"")
    assert caller.changelog.log_end(0) == COUNT and caller.values() == dict(rows)
    assert queued(queue) == [(0, n + 1, key.encode(), value) for n, (key, value) in enumerate(rows)]
    assert stats.ledger(queue.counts())["balanced"]


def test_rows_of_one_key_replace_each_other_and_destroys_of_nothing_have_no_event(caller: Caller) -> None:
    queue, key = caller.feed(), caller.names[0]
    assert caller.rows(*[(key, b"%d" % n) for n in range(40)]) == (DONE, 40, 40, b"")
    assert caller.region.lookup(key)[0] == b"39"
    assert caller.rows(*[(key, b"")] * 3, operation=DESTROY) == (DONE, 1, 3, b"")
    assert caller.changelog.log_end(0) == len(queue) == 41 and queue.counts()["received"] == 41


@pytest.mark.parametrize("at", [0, 1, 7, 15, 16, 17, 40])
def test_a_row_for_which_a_queue_has_no_room_is_refused_with_those_behind_it(caller: Caller, at: int) -> None:
    full, roomy = queue_to(2, "full", 1, memory_limit=0), queue_to(3, "roomy", 1, memory_limit=64 << 20)
    full.set_full_policy("refuse")
    caller.region.attach([roomy, full])
    rows = numbered(caller, 50)
    rows[at] = rows[at][0], bytes(LONG)
    answer = caller.rows(*rows)
    assert (answer.status, answer.applied, answer.done) == (FAILED, at, at) and b"QueueFullError" in answer.words
    assert caller.values() == dict(rows[:at]) and caller.changelog.log_end(0) == at
    assert queued(full) == queued(roomy) and len(full) == at
    assert all(stats.ledger(queue.counts())["balanced"] for queue in (full, roomy))
    rest = [(key, b"again") for key, _ in rows[at:]]
    assert caller.rows(*rest).applied == len(rest), "what was refused took no room"


def test_a_queue_that_drops_what_is_new_drops_single_rows_of_a_group(caller: Caller) -> None:
    queue = caller.feed("drop-newest", memory_limit=0)
    rows = [(key, bytes(LONG) if n % 17 == 3 else value) for n, (key, value) in enumerate(numbered(caller))]
    dropped = sum(len(value) == LONG for _, value in rows)
    assert caller.rows(*rows) == (DONE, COUNT, COUNT, b"")
    assert caller.values() == dict(rows) and caller.changelog.log_end(0) == COUNT
    assert queue.counts()["dropped_newest"] == dropped and len(queue) == COUNT - dropped
    assert [sequence for _, sequence, *_ in queued(queue)] == [n + 1 for n in range(COUNT) if n % 17 != 3]


def test_a_queue_that_drops_what_is_oldest_has_the_newest_rows(caller: Caller) -> None:
    queue = caller.feed("drop-oldest", memory_limit=0)
    caller.rows(*[(key, bytes(100_000)) for key in caller.names[:COUNT]])
    caller.rows(*numbered(caller))
    assert [value for *_, value in queued(queue)][-COUNT:] == [value for _, value in numbered(caller)]
    assert queue.counts()["dropped_oldest"] > 0 and stats.ledger(queue.counts())["balanced"]


def test_rows_longer_than_a_group_are_made_between_the_others(caller: Caller) -> None:
    queue = caller.feed()
    rows = [(key, bytes([n]) * (n * 7919 % 40_000)) for n, (key, _) in enumerate(numbered(caller))]
    assert caller.rows(*rows) == (DONE, COUNT, COUNT, b"")
    assert caller.values() == dict(rows)
    assert [(key.decode(), value) for *_, key, value in queued(queue)] == rows


@pytest.mark.parametrize("at", [0, 5, 20])
def test_a_row_for_which_there_is_no_memory_is_refused_with_those_behind_it(caller: Caller, at: int) -> None:
    queue = caller.feed()
    rows = numbered(caller, 30)
    records = [calls.record(key.encode(), value, key_form=1, sequence=n + 1) for n, (key, value) in enumerate(rows)]
    records[at] = calls.record(rows[at][0].encode(), bytes(60 << 20), key_form=1)
    call = calls.call(calls.ROWS, b"".join(records), id=9, epoch=EPOCH, count=len(rows))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (100 << 20), hard))  # The session alone takes 60 of these.
    try:
        caller.session.receive_data(call)
        caller.acknowledge(0)
        fields = calls.ANSWER_HEAD.unpack_from(caller.session.data_to_send(0))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (fields[2], fields[-2], fields[-1]) == (FAILED, at, at)
    assert caller.values() == dict(rows[:at]) and caller.changelog.log_end(0) == len(queue) == at
    assert caller.rows(*rows) == (DONE, 30, 30, b"")


def test_a_key_of_another_bucket_ends_the_call_and_the_rows_before_it_stay(caller: Caller) -> None:
    rows = numbered(caller, 30)
    rows[21] = caller.keys[1], b"elsewhere"
    answer = caller.rows(*rows)
    assert (answer.status, answer.applied, answer.done) == (FAILED, 21, 21)
    assert caller.values() == dict(rows[:21])


def test_a_repeat_makes_the_rows_that_were_not_made(caller: Caller) -> None:
    queue = caller.feed("refuse", memory_limit=0)
    rows = numbered(caller, 60)
    same = {"caller": 9, "slot": 1, "number": 5}
    # The first attempt ended at row 37. So much of the call is remembered.
    caller.rows(*[*rows[:37], (rows[37][0], bytes(LONG))], **same)
    answer = caller.rows(*rows, flags=calls.REPEAT, shard=EPOCH, **same)
    assert answer == (DONE, 60, 60, b"")
    assert caller.changelog.log_end(0) == len(queue) == 60 and caller.values() == dict(rows)


def test_listeners_receive_each_row_of_a_group_with_the_value_before_it(caller: Caller) -> None:
    caller.changelog.keep_notifications()
    key = caller.names[0]
    caller.rows(*[(key, b"%d" % n) for n in range(20)])
    received = []
    while (told := caller.changelog.next_notification(0)) is not None:
        received.append((told[1] and told[1][1], _core.record_fields(told[2])["value"][1]))
    assert received == [(b"%d" % (n - 1) if n else None, b"%d" % n) for n in range(20)]


def test_a_lone_member_has_the_rows_ready_at_once(caller: Caller) -> None:
    caller.changelog.set_replicas(0, [])
    queue = caller.feed()
    caller.rows(*numbered(caller))
    first = next(first for name, first, _ in queue.runs() if name == "r")
    assert [sequence for sequence, _ in queue.peek_with_positions(first, 1000)] == list(range(1, COUNT + 1))
    assert caller.changelog.state(0)["high_watermark"] == COUNT


def test_events_of_a_group_that_lose_or_are_there_fail_nothing_and_those_ahead_fail_alone(caller: Caller) -> None:
    queue = caller.feed()
    names = caller.names[:60]
    send_events(caller, 0, *[event(name, b"later", stamp=NOW + 9) for name in names[10:20]])
    ahead = [0, 5, 33, 34]
    call = send_events(caller, 0, *[event(name, stamp=FAR if n in ahead else NOW) for n, name in enumerate(names)])
    caller.acknowledge(0)
    status, payload = caller.answered()[call]
    assert (status, became(payload)) == (DONE, (10, [(n, FUTURE_STAMP) for n in ahead]))
    assert caller.region.conflicts == 10
    assert caller.region.applied == len(queue) == caller.changelog.log_end(0) == 10 + 60 - 10 - len(ahead)


def test_events_that_do_not_enter_are_counted_at_each_sender(caller: Caller) -> None:
    """They came from one of the remote sites."""
    back, on = queue_to(9, "back", 1), queue_to(3, "on", 1)
    caller.region.attach([back, on])
    send_events(caller, 0, *[event(name) for name in caller.names[:50]])
    assert (len(back), len(on)) == (0, 50)
    assert back.counts()["not_queued_loop"] == 50
    assert all(stats.ledger(queue.counts())["balanced"] for queue in (back, on))


def test_a_full_queue_refuses_events_which_then_go_again_as_a_whole(caller: Caller) -> None:
    caller.feed("refuse", memory_limit=0)
    names = caller.names[:30]
    events = [event(name, bytes(LONG) if n == 20 else b"v") for n, name in enumerate(names)]
    first = send_events(caller, 0, *events)
    assert caller.answered()[first][0] == FAILED
    assert caller.changelog.log_end(0) == 20
    again = send_events(caller, 0, *[event(name) for name in names])
    caller.acknowledge(0)
    assert caller.answered()[again] == (DONE, bytes(8)) and caller.changelog.log_end(0) == 30


def test_groups_beside_single_changes_of_the_same_keys_leave_equal_replicas_and_queues() -> None:
    with SharedSite(2, buckets=2) as site:
        site.keep_carrying()
        queues = [queue_to(buckets=2) for _ in site.members]
        for member, queue in zip(site.members, queues, strict=True):
            member.core.attach([queue])
        keys, rounds = [f"k{n}" for n in range(50)], 40
        done, errors = threading.Event(), []

        def change_singly(seed: int) -> None:
            chance = random.Random(seed)
            try:
                while not done.is_set():
                    site.members[chance.randrange(2)].core.put(chance.choice(keys), "single")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=change_singly, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(rounds):
                site.members[n % 2].route.put_all((key, n) for key in keys * 2)
        finally:
            done.set()
            for thread in threads:
                thread.join(LIMIT_S)
        assert not errors
        lasts = [site.members[0].changelog.log_end(bucket) for bucket in range(2)]
        eventually(lambda: [site.members[1].changelog.log_end(bucket) for bucket in range(2)] == lasts)
        assert [site.members[0].core.bucket_digest(b) for b in range(2)] == [
            site.members[1].core.bucket_digest(b) for b in range(2)
        ]
        assert queued(queues[0]) == queued(queues[1])
        assert len(queues[0]) == sum(lasts) >= 2 * rounds * len(keys)
        assert all(stats.ledger(queue.counts())["balanced"] for queue in queues)


def test_a_primary_that_moves_in_a_call_of_rows_says_how_far_it_came(caller: Caller) -> None:
    assert caller.rows(*numbered(caller)).status == DONE
    caller.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH + 1)
    answer = caller.rows(*numbered(caller))
    assert answer.done == 0 and caller.changelog.log_end(0) == COUNT
