"""One budget of memory a member: what is counted, who waits while it is full, and that nothing waits for ever."""

from __future__ import annotations

import contextlib
import random
import time

import pytest

import pywan
from fuzz_core import calls
from pywan import _core
from pywan.testing.waiting import eventually
from support.records import make_record
from support.served import (
    BUCKETS,
    DONE,
    EPOCH,
    FAILED,
    IN_DOUBT,
    NEVER,
    NOT_PRIMARY,
    REPL_LINK,
    SECOND,
    TIMELINE,
    Served,
)
from support.shared_site import Call, SharedSite

KB = 1 << 10
VALUE = b"v" * 8 * KB
SLACK = 3 * 4 * KB  # What a bucket or a connection may have charged beyond what it has.


class Budgeted(Served):
    """A primary whose member has a budget."""

    def __init__(self, limit: int) -> None:
        self.budget = _core.MemoryBudget(limit)
        super().__init__()

    def new_changelog(self) -> _core.Changelog:
        return _core.Changelog(BUCKETS, self.region.shards, 1, self.budget)

    def connect(self, depth: int = 0) -> _core.CallSession:
        session = _core.CallSession({"r": self.region}.get, depth, self.budget)
        session.receive_data(calls.call(calls.REGION, b"r"), 1)
        return session


def keys_of(site: SharedSite, who: int) -> list[str]:
    return [f"key{n}" for n in range(200) if site.leaders[site.bucket_of(f"key{n}")] == who]


def fill(site: SharedSite, who: int) -> list[Call]:
    """Callers of a member that put until its budget is full."""
    budget = site.budgets[who]
    assert budget is not None
    puts = []
    for key in keys_of(site, who):
        if budget.is_full:
            break
        before = sum(budget.used().values())
        puts.append(Call(site.cores[who].put, key, VALUE))
        eventually(lambda before=before: sum(budget.used().values()) > before)
    assert budget.is_full
    return puts


def test_a_put_waits_while_the_budget_is_full_and_goes_on_when_replicas_acknowledge():
    with SharedSite(budget_bytes=64 * KB) as site:
        puts = fill(site, 0)
        late = Call(site.cores[0].put, "late", VALUE)
        eventually(lambda: site.budgets[0].waits == 1)
        assert site.members[0].changelog.state(site.bucket_of("late"))["log_end"] == sum(
            site.bucket_of(key) == site.bucket_of("late") for key in keys_of(site, 0)[: len(puts)]
        )
        site.keep_carrying()
        for put in [*puts, late]:
            put.result()
        assert site.cores[0].get("late") == VALUE
        eventually(lambda: site.budgets[0].used()["changes"] <= site.buckets * SLACK)


@pytest.mark.parametrize("many", [False, True])
def test_a_change_that_waits_too_long_is_refused_and_says_why(many):
    with SharedSite(budget_bytes=64 * KB, timeout_s=0.5) as site:
        member = site.members[0]
        member.route._why_full = lambda: "maximum-backlog-memory is full, and member b is behind"
        puts = fill(site, 0)
        began = time.monotonic()
        error = pywan.BatchError if many else pywan.QueueFullError
        with pytest.raises(error, match=r"was not made within 0\.5 s: maximum-backlog-memory is full") as refused:
            if many:
                member.route.put_all([("late", b"value")])
            else:
                member.core.put("late", b"value")
        assert 0.4 < time.monotonic() - began < 5 and not refused.value.in_doubt
        site.keep_carrying()
        for put in puts:
            with contextlib.suppress(pywan.ConnectivityError):  # Their own time may be over.
                put.result()
        assert "late" not in site.cores[0]


def test_a_connection_takes_no_calls_while_the_budget_is_full_and_goes_on_afterwards():
    served = Budgeted(64 * KB)
    puts = [served.put(n % BUCKETS, VALUE) for n in range(20)]
    assert served.answered() == {}
    made = sum(served.changelog.log_end(bucket) for bucket in range(BUCKETS))
    assert served.budget.is_full and 3 <= made < 8
    assert served.session.next_us(1000) is not None, "it looks again by itself"
    found: dict[int, tuple[int, bytes]] = {}
    for _ in range(20):
        for bucket in range(BUCKETS):
            served.acknowledge(bucket)
        found.update(served.answered())
    assert found == dict.fromkeys(puts, (DONE, b""))
    assert served.budget.used()["calls"] <= SLACK and served.budget.waits > 0


def test_a_connection_looks_again_when_the_budget_gets_room_right_after_its_last_look():
    """The changes of others fill it. Nothing else wakes the connection then: none of its own calls waits."""
    served = Budgeted(64 * KB)
    for _ in range(20):
        served.put(0, VALUE)
    assert served.budget.is_full
    other, served.session = served.session, served.connect()
    late = served.put(1, VALUE)
    assert served.session.data_to_send(1000) == b"" and served.changelog.log_end(1) == 0
    served.acknowledge(0)  # It has looked, and does not sleep yet.
    assert not served.budget.is_full
    due_us = served.session.next_us(1000)
    assert due_us is not None and due_us <= 1000 + 2000
    served.answered(due_us)
    served.acknowledge(1)
    assert served.answered(due_us) == {late: (DONE, b"")} and other.pending


def test_calls_that_callbacks_make_are_taken_while_the_budget_is_full():
    """A listener that waits would keep what it is still to be told."""
    served = Budgeted(64 * KB)
    puts = [served.put(0, VALUE) for _ in range(20)]
    assert served.budget.is_full
    served.session = served.connect(depth=1)
    assert served.answered(1) == {}
    get = served.get(1)
    assert served.answered(2) == {get: (DONE, b"")}
    assert get not in puts


def test_the_budget_is_exceeded_by_one_change_of_each_connection_at_most():
    """Against a plain count of what change logs and connections have."""
    for seed in range(20):
        chance = random.Random(seed)
        limit = 128 * KB
        served = Budgeted(limit)
        sessions = [served.session, *(served.connect() for _ in range(4))]
        largest = 0
        for _ in range(300):
            served.session = chance.choice(sessions)
            if chance.random() < 0.8:
                length = chance.randrange(16 * KB)
                largest = max(largest, length)
                served.put(chance.randrange(BUCKETS), bytes(length))
            else:
                bucket = chance.randrange(BUCKETS)
                last = served.changelog.log_end(bucket)
                served.acknowledge(bucket, chance.randint(served.changelog.state(bucket)["high_watermark"], last))
                served.answered(1 + chance.randrange(1000))
            changes = sum(served.changelog.state(bucket)["bytes"] for bucket in range(BUCKETS))
            used = served.budget.used()
            assert changes <= used["changes"] <= changes + BUCKETS * SLACK, f"seed {seed}"
            passing = used["changes"] + used["calls"] + min(used["remembered"], limit // 2)
            assert passing <= limit + len(sessions) * (largest + 3 * SLACK), f"seed {seed}"
        assert served.budget.waits, "it was never full"


def test_two_members_whose_budgets_are_full_with_changes_of_each_other_both_go_on():
    with SharedSite(budget_bytes=64 * KB) as site:
        for bucket in range(0, site.buckets, 2):
            site.lead(bucket, 1)
        puts = [*fill(site, 0), *fill(site, 1)]
        for who in (0, 1):  # Each waits for itself, and for the other one, which takes no calls either.
            puts += [Call(site.cores[who].put, key, b"late") for key in keys_of(site, who)[-3:]]
            puts += [Call(site.cores[who].put, key, b"later") for key in keys_of(site, 1 - who)[-6:-3]]
        eventually(lambda: site.budgets[0].waits >= 3 and site.budgets[1].waits >= 3)
        site.keep_carrying()
        for put in puts:
            put.result()
        for who in (0, 1):
            assert {site.cores[1 - who].get(key) for key in keys_of(site, who)[-3:]} == {b"late"}


def test_a_replica_takes_what_its_primary_sends_however_full_its_budget_is():
    with SharedSite(budget_bytes=64 * KB) as site:
        for bucket in range(0, site.buckets, 2):
            site.lead(bucket, 1)
        own = fill(site, 1)
        others = fill(site, 0)
        lasts = [site.members[0].changelog.log_end(bucket) for bucket in range(1, site.buckets, 2)]
        for bucket, last in zip(range(1, site.buckets, 2), lasts, strict=True):
            entries = site.members[0].changelog.fetch(bucket, 0)
            if entries:
                site.cores[1].extend(bucket, TIMELINE, site.epochs[bucket], 1, entries)
            assert site.members[1].changelog.log_end(bucket) == last
        site.keep_carrying()
        for put in [*own, *others]:
            put.result()


def test_memory_comes_back_when_change_logs_and_connections_go():
    served = Budgeted(64 * KB)
    for _ in range(20):
        served.put(0, VALUE)
    assert served.budget.used()["calls"] and served.budget.used()["changes"]
    served.changelog.set_role(0, _core.REPLICA_ABSENT, TIMELINE, EPOCH + 1)
    found = served.answered(20_000_000)
    assert {status for status, _ in found.values()} <= {DONE, NOT_PRIMARY, FAILED, IN_DOUBT}
    for bucket in range(1, BUCKETS):
        served.changelog.set_role(bucket, _core.REPLICA_ABSENT, TIMELINE, EPOCH + 1)
    budget = served.budget
    del served
    assert sum(budget.used().values()) == 0


def test_a_remote_caller_that_outwaits_a_full_budget_is_told_why_before_it_gives_up():
    with SharedSite(budget_bytes=64 * KB, timeout_s=4.0) as site:
        site.members[0].route._why_full = lambda: "maximum-backlog-memory is full, and member b is behind"
        puts = fill(site, 0)
        key = keys_of(site, 0)[-1]
        late = [Call(site.cores[1].put, f"{key} {n}", VALUE) for n in range(3)]
        for call in late:
            with pytest.raises(pywan.QueueFullError, match=r"waited for 3\.\d+ s .*member b is behind.*nothing was"):
                call.result()
        for put in puts:
            with contextlib.suppress(pywan.ConnectivityError):
                put.result()


def test_a_connection_refuses_in_words_what_waited_too_long_for_memory():
    served = Budgeted(64 * KB)
    served.session.receive_data(b"", SECOND)
    puts = [served.put(0, VALUE * 4) for _ in range(12)]  # The changes alone fill it.
    served.answered(SECOND)
    assert served.budget.is_full
    found = served.answered(9 * SECOND + SECOND // 2)
    refused = [id for id, (status, _) in found.items() if status == FAILED]
    assert refused and all(b"QueueFullError" in found[id][1] for id in refused)
    assert set(found) == set(puts) and served.changelog.log_end(0) == len(puts) - len(refused)
    unread = served.put(0, VALUE)  # It may have come when the connection stopped reading.
    fresh = served.put(0, VALUE)
    assert served.answered(10 * SECOND)[unread][0] == FAILED
    assert fresh not in served.answered(11 * SECOND)


def test_an_earlier_failure_of_a_disk_is_no_reason_of_a_full_budget(tmp_path):
    queue = _core.EventQueue("to ln", remote_site=2, memory_limit=0, directory=tmp_path / "missing")
    queue.running = True
    with pytest.raises((pywan.DiskError, pywan.QueueFullError), match="missing"):
        for _ in range(10):
            queue.append_record(make_record(b"k", bytes(1 << 20)))
    served = Budgeted(64 * KB)
    served.session.receive_data(b"", SECOND)
    puts = [served.put(0, VALUE * 4) for _ in range(12)]
    served.answered(SECOND)
    refused = [words for status, words in served.answered(9 * SECOND + SECOND // 2).values() if status == FAILED]
    assert 0 < len(refused) < len(puts) and all(b"QueueFullError" in words for words in refused)
    with SharedSite(budget_bytes=64 * KB, timeout_s=0.5) as site:
        filling = fill(site, 0)
        with pytest.raises(pywan.PywanError) as error:
            site.cores[0].put("late", b"value")
        assert type(error.value) is pywan.QueueFullError
        site.keep_carrying()
        for put in filling:
            with contextlib.suppress(pywan.ConnectivityError):
                put.result()


def test_what_listeners_are_to_be_told_is_a_part_of_the_budget():
    served = Budgeted(64 * KB)
    served.changelog.keep_notifications()
    served.put(0, VALUE)
    assert served.budget.used()["notifications"] > len(VALUE)
    served.acknowledge(0)
    assert served.changelog.next_notification(1000) is not None
    assert served.changelog.next_notification(1) is None and served.budget.used()["notifications"] == 0
    served.put(0, VALUE)
    served.acknowledge(0)
    assert served.changelog.end_notifications() == 1 and served.budget.used()["notifications"] == 0


def test_a_listener_that_stands_still_in_a_full_member_loses_its_oldest_changes():
    served = Budgeted(64 * KB)
    served.changelog.set_notification_limit(1)
    served.changelog.keep_notifications()
    for _ in range(20):
        served.put(0, VALUE)
        served.acknowledge(0)
        served.answered(1)
    assert served.budget.is_full
    before = served.changelog.notifications_state()
    eventually(lambda: served.changelog.relieve() or not served.budget.is_full)
    after = served.changelog.notifications_state()
    assert before["dropped"] == 0 and 0 < after["dropped"] < 20 and after["bytes"] > 0


def test_calls_of_listeners_do_not_wait_for_memory():
    with SharedSite(budget_bytes=64 * KB) as site:
        puts = fill(site, 0)
        last = site.members[0].changelog.log_end(site.bucket_of("of a listener"))

        def tell() -> None:
            _core.call_for_listeners()
            site.cores[0].put("of a listener", b"value")

        told = Call(tell)
        eventually(lambda: site.members[0].changelog.log_end(site.bucket_of("of a listener")) > last)
        site.keep_carrying()
        for put in [*puts, told]:
            put.result()


# Learners


def test_a_connection_takes_no_change_while_a_learner_of_its_bucket_does_not_keep_up():
    served = Served()
    served.changelog.set_replicas(0, [(REPL_LINK, _core.REPLICA_LEARNING, 1, 0)])
    served.acknowledge(0)
    served.repl_link.answered(SECOND)
    puts = [served.put(0, VALUE) for _ in range(30)]
    other = served.put(1, VALUE)
    found = served.answered(SECOND)
    made = served.changelog.log_end(0)
    assert 16 <= made <= 17 and served.changelog.log_end(1) == 0 and len(found) == made, "128 KiB, and one more"
    assert SECOND < served.session.next_us(SECOND) <= SECOND + 1000, "it looks again soon"
    for n in range(30):  # The replication link has carried what came, and more comes.
        served.acknowledge(0)
        served.acknowledge(1)
        found.update(served.answered(SECOND + 2000 * (n + 1)))
    assert found == dict.fromkeys([*puts, other], (DONE, b""))


def test_a_learner_that_is_unresponsive_holds_nobody_back():
    served = Served()
    served.changelog.set_replicas(0, [(REPL_LINK, _core.REPLICA_LEARNING, 1, 0)])
    served.acknowledge(0)
    served.repl_link.answered(SECOND)
    for _ in range(30):
        served.put(0, VALUE)
    served.answered(SECOND + 1_000_001)
    assert served.changelog.log_end(0) == 30


def test_a_caller_waits_for_a_learner_a_second_at_most():
    with SharedSite() as site:
        member, key = site.members[0], "key"
        bucket = site.bucket_of(key)
        repl_link = member.repl_links[1]
        member.changelog.set_replicas(bucket, [(1, _core.REPLICA_LEARNING, 1, 0)])
        member.changelog.acknowledged(bucket, 1, TIMELINE, site.epochs[bucket], 0)
        repl_link.answered(NEVER - 2_000_000)
        for _ in range(17):
            member.core.put(key, VALUE)
        began = time.monotonic()
        member.core.put(key, VALUE)
        assert 0.9 < time.monotonic() - began < 5
        late = Call(member.core.put, key, VALUE)
        member.changelog.acknowledged(bucket, 1, TIMELINE, site.epochs[bucket], 18)
        late.result()
