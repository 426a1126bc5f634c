"""Regions that several members hold: what changes and reads wait for, and what is asked of the primary."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from fuzz_core import calls
from pywan import _core
from pywan.calls.route import Route
from pywan.calls.table import KnownPrimary
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner, MemberProfile
from pywan.errors import BatchError, ConnectivityError, IllegalStateError
from pywan.replication.member_replicas import MemberReplicas
from pywan.replication.region_replicas import Question, RegionReplicas, _Replica
from pywan.replication.replicas_session import STRANGER_RENEWALS
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.own_openings import OwnOpenings
from support.shared_site import TIMELINE, Call, Member, SharedSite

REPEATS = TIMELINE  # `since` of a repeat: no attempt was made before this timeline.


@pytest.fixture
def site() -> Iterator[SharedSite]:
    with SharedSite() as site:
        yield site


def versions(core: _core.RegionCore, keys: Any) -> list[Any]:
    return [core.lookup(key) for key in keys]


def waits_in_changelog(site: SharedSite, key: Any) -> bool:
    """Whether the primary of a key has a change that does not count yet."""
    bucket = site.bucket_of(key)
    state = site.members[site.leaders[bucket]].changelog.state(bucket)
    return bool(state["log_end"] > state["high_watermark"])


# What counts


def test_a_put_returns_when_the_replica_has_the_same_version(site: SharedSite) -> None:
    primary, replica = site.cores
    put = Call(primary.put, "k", {"some": "value"})
    eventually(lambda: waits_in_changelog(site, "k"))
    assert not put.is_done
    assert replica.lookup("k") is None
    site.carry()
    put.result()
    assert replica.lookup("k") == primary.lookup("k")
    assert replica.lookup("k")[0] == {"some": "value"}


def test_a_destroy_leaves_the_same_tombstone_at_the_replica(site: SharedSite) -> None:
    site.keep_carrying()
    primary, replica = site.cores
    primary.put("k", 1)
    primary.destroy("k")
    assert replica.lookup("k") == primary.lookup("k")
    assert replica.lookup("k")[3] is False
    with pytest.raises(KeyError):
        primary.destroy("k")


def test_a_read_waits_until_what_it_saw_is_replicated(site: SharedSite) -> None:
    site.carry()
    primary = site.cores[0]
    put = Call(primary.put, "k", "new")
    eventually(lambda: waits_in_changelog(site, "k"))
    reads = [
        Call(primary.get, "k"),
        Call(primary.__contains__, "k"),
        Call(primary.change_if, "absent", 2, "k", "other"),
    ]
    assert not any(read.is_done for read in reads)
    site.carry()
    put.result()
    assert [read.result() for read in reads] == ["new", True, (False, True, "new")]


def test_a_size_that_was_not_replicated_is_asked_again_of_the_next_primary(site: SharedSite) -> None:
    """The last bucket of all: no answer is laid out behind the one of this bucket."""
    site.carry()
    bucket = site.buckets - 1
    old, new = site.members
    key = next(b"k%d" % n for n in range(1000) if site.bucket_of(b"k%d" % n) == bucket)
    session = _core.CallSession({"r": old.core}.get)  # Its caller is gone, and nobody repeats the put.
    session.receive_data(calls.call(calls.REGION, b"r") + calls.call(calls.CHANGE, calls.record(key), bucket=bucket), 1)
    assert old.changelog.log_end(bucket) == 1 and new.changelog.log_end(bucket) == 0
    size = Call(len, old.core)
    eventually(lambda: old.changelog.state(bucket)["waiters"] == 1)
    old.changelog.set_role(bucket, _core.REPLICA_ABSENT, 1, 1)  # As a member does that was given up.
    old.core.drop_bucket(bucket)
    site.lead(bucket, 1)
    site.keep_carrying()
    assert size.result() == 0


def test_a_replica_that_is_taken_out_is_waited_for_no_longer(site: SharedSite) -> None:
    put = Call(site.cores[0].put, "k", 1)
    eventually(lambda: waits_in_changelog(site, "k"))
    site.members[0].changelog.set_replicas(site.bucket_of("k"), [])
    put.result()


def test_a_primary_reads_only_while_every_replica_gives_it_a_read_lease() -> None:
    with SharedSite(timeout_s=0.2) as site:
        site.carry()
        site.set_read_leases(0)
        with pytest.raises(ConnectivityError, match="region 'r': key 'k'") as raised:
            site.cores[0].get("k")
        assert not raised.value.in_doubt
    with SharedSite() as site:
        site.carry()
        site.set_read_leases(0)
        read = Call(site.cores[0].get, "k", "nothing")
        site.set_read_leases(2**64 - 1)
        assert read.result() == "nothing"


def test_a_change_that_a_replica_confirms_after_the_unclean_recovery_timeout_is_answered_when_the_coordinator_answers(
    site: SharedSite,
) -> None:
    changelog = site.members[0].changelog
    put = Call(site.cores[0].put, "k", 1)
    eventually(lambda: waits_in_changelog(site, "k"))
    changelog.set_primary_until(_core.monotonic_us() - 1)
    site.carry()
    assert waits_in_changelog(site, "k") and not put.is_done
    changelog.set_primary_until(_core.monotonic_us() + 60_000_000)
    put.result()
    assert not waits_in_changelog(site, "k")


def test_a_sole_replica_answers_until_the_coordinator_was_unreachable_for_too_long() -> None:
    with SharedSite(1, timeout_s=0.2) as site:
        core, changelog = site.cores[0], site.members[0].changelog
        core.put("k", 1)
        changelog.set_lease(_core.monotonic_us() - 1)
        assert core.get("k") == 1, "it is primary, and needs no lease"
        changelog.set_primary_until(_core.monotonic_us() - 1)
        with pytest.raises(ConnectivityError):
            core.get("k")
        with pytest.raises(ConnectivityError):
            core.put("k", 2)
        changelog.set_primary_until(_core.monotonic_us() + 60_000_000)
        assert core.get("k") == 1
        changelog.set_primary_until(None)
        core.put("k", 2)


def test_a_replica_answers_reads_where_the_region_lets_it() -> None:
    with SharedSite(reads_replicas=True) as site:
        primary, replica = site.cores
        put = Call(primary.put, "k", 1)
        eventually(lambda: waits_in_changelog(site, "k"))
        site.carry()
        put.result()
        site.members[0].calls.stop()  # The primary cannot be asked.
        assert replica.get("k") == 1
        assert "k" in replica
        assert replica.get("nothing") is None


def test_a_change_that_is_stable_with_too_few_replicas_is_in_doubt_for_its_caller_and_each_repeat() -> None:
    with SharedSite(min_isr=2) as site:
        site.keep_carrying()
        site.cores[0].put("k", "old")
        site.stop_carrying()
        site.carry()
        bucket = site.bucket_of("k")
        primary, other = site.members
        repeat = partial(other.route.change, _core.UPDATE, "k", "by identity", None, (9, 9, 1), identity=(9, 0, 1))
        made = [
            Call(primary.core.put, "k", 1),
            Call(other.core.put, "k", 2),
            Call(primary.core.change_if, "value", _core.UPDATE, "k", 3),
            Call(other.core.change_if, "value", _core.UPDATE, "k", 4),
            Call(repeat),
        ]
        before = primary.changelog.state(bucket)["high_watermark"]
        eventually(lambda: primary.changelog.log_end(bucket) == before + len(made))
        read = Call(primary.core.get, "k")
        primary.changelog.set_replicas(bucket, [])  # The replica was lost.
        for call in made:
            with pytest.raises(ConnectivityError, match=r"region 'r': key 'k': .* made with 1 of 2") as raised:
                call.result()
            assert raised.value.in_doubt
        assert read.result() in (1, 2, 3, 4, "by identity")
        with pytest.raises(ConnectivityError, match="made with 1 of 2 replicas"):
            repeat(since=REPEATS)
        with pytest.raises(ConnectivityError, match="min-in-sync-replicas asks for 2") as refused:
            other.core.put("k", 5)  # This one was not taken at all.
        assert not refused.value.in_doubt
        primary.changelog.set_replicas(bucket, [(1, _core.REPLICA_WAITED, 0, primary.changelog.log_end(bucket))])
        with pytest.raises(ConnectivityError, match="made with 1 of 2 replicas"):
            repeat(since=REPEATS)


@pytest.mark.parametrize("caller", [0, 1], ids=["the primary", "another member"])
@pytest.mark.parametrize("what", ["rows", "clear"])
def test_rows_and_clears_that_count_with_too_few_replicas_are_in_doubt(caller: int, what: str) -> None:
    with SharedSite(min_isr=2) as site:
        site.carry()
        changelog, core = site.members[0].changelog, site.cores[caller]
        made = Call(core.put_columns, np.arange(100), np.arange(100)) if what == "rows" else Call(core.clear)
        eventually(lambda: all(changelog.log_end(n) for n in range(site.buckets)))
        for bucket in range(site.buckets):
            changelog.set_replicas(bucket, [])
        words = "100 of 100 rows were refused, or may" if what == "rows" else "0 of 7 buckets were cleared, of 0"
        with pytest.raises((BatchError, ConnectivityError), match=f"{words}.*made with 1 of 2 replicas") as raised:
            made.result()
        assert raised.value.in_doubt


def test_a_new_primary_without_other_replicas_repeats_no_change_as_well_made() -> None:
    with SharedSite(min_isr=2) as site:
        site.carry()
        bucket = site.bucket_of("k")
        put = (_core.UPDATE, "k", 1, None, (9, 9, 1))
        made = Call(partial(site.members[1].route.change, *put, identity=(9, 0, 1)))
        eventually(lambda: waits_in_changelog(site, "k"))
        site.carry()
        assert made.result() == "created"
        site.lead(bucket, 1)
        site.members[1].changelog.set_replicas(bucket, [])
        with pytest.raises(ConnectivityError, match="made with 1 of 2 replicas"):
            site.members[0].route.change(*put, since=REPEATS, identity=(9, 0, 1))


# What is asked of the primary


def test_every_call_works_at_a_member_that_is_not_primary(site: SharedSite) -> None:
    site.keep_carrying()
    primary, other = site.cores
    other.put("k", "v")
    assert primary.get("k") == "v" == other.get("k")
    assert "k" in other and "nothing" not in other
    assert other.change_if("absent", _core.UPDATE, "k", "w") == (False, True, "v")
    assert other.change_if("equal", _core.UPDATE, "k", "w", "v")[0]
    assert primary.get("k") == "w"
    other.put_columns(np.arange(100), np.arange(100) * 2)
    assert len(other) == len(primary) == 101
    assert sorted(map(str, other.scan_keys())) == sorted(map(str, primary.scan_keys()))
    other.destroy("k")
    with pytest.raises(KeyError):
        other.destroy("k")
    assert other.clear() == 100
    assert len(primary) == len(other) == 0
    assert list(primary.scan_keys()) == []


def test_rows_reach_the_primaries_of_their_buckets_wherever_they_are(site: SharedSite) -> None:
    for bucket in range(0, site.buckets, 2):
        site.lead(bucket, 1)
    site.keep_carrying()
    keys = np.arange(2000)
    for n, core in enumerate(site.cores):
        assert core.put_columns(keys + 2000 * n, keys) == 2000
        assert core.put_columns(keys[:10] + 2000 * n, None, operations=["destroy"] * 10) == 10
    site.stop_carrying()
    site.carry()
    assert versions(site.cores[0], range(4000)) == versions(site.cores[1], range(4000))
    assert len(site.cores[0]) == 3980


def test_a_clear_takes_out_the_entries_at_the_replicas_too(site: SharedSite) -> None:
    site.keep_carrying()
    primary, replica = site.cores
    primary.put_columns(np.arange(50), np.arange(50))
    assert primary.clear() == 50
    site.stop_carrying()
    site.carry()
    assert versions(replica, range(50)) == versions(primary, range(50)) == [None] * 50


def send_clear(member: Any, bucket: int, *, number: int, repeats: bool = False) -> _core.CallSession:
    """Sends a member the clear of a bucket. Returns the session that serves it."""
    session = _core.CallSession({"r": member.core}.get)
    flags = calls.REPEAT if repeats else 0
    session.receive_data(calls.call(calls.REGION, b"r"), 1)
    session.receive_data(calls.call(calls.CLEAR, bucket=bucket, flags=flags, number=number), 1)
    return session


def cleared(session: _core.CallSession) -> list[tuple[int, int]]:
    """(status, how many entries were taken out) of each answer of a session so far."""
    data = session.data_to_send(1)
    return [(status, number) for status, number in calls.numbers(data)]


def test_a_clear_is_one_change_of_a_bucket_and_is_answered_when_it_is_replicated(site: SharedSite) -> None:
    site.keep_carrying()
    for number in range(30):
        site.cores[0].put(number, number)
    site.stop_carrying()
    site.carry()
    old, new = site.members
    bucket = site.bucket_of(0)
    before, entries = old.changelog.log_end(bucket), old.core.bucket(bucket)["entries"]
    session = send_clear(old, bucket, number=1)
    read = Call(old.core.get, 0, "nothing")
    eventually(lambda: old.changelog.state(bucket)["waiters"] == 1)  # What the read saw does not count yet.
    assert cleared(session) == []
    assert old.changelog.log_end(bucket) == before + 1
    assert new.core.bucket(bucket)["entries"] == entries > 0
    site.carry()
    assert cleared(session) == [(0, entries)]
    assert read.result() == "nothing"
    assert new.core.bucket(bucket)["entries"] == 0


def test_a_repeated_clear_leaves_what_was_put_in_between_and_gives_its_first_answer(site: SharedSite) -> None:
    site.keep_carrying()
    site.cores[0].put("k", "old")
    site.stop_carrying()
    site.carry()
    bucket = site.bucket_of("k")
    send_clear(site.members[0], bucket, number=1)  # The primary dies before it answers.
    site.lead(bucket, 1)
    site.keep_carrying()
    site.cores[1].put("k", "new")
    again = send_clear(site.members[1], bucket, number=1, repeats=True)
    assert cleared(again) == [(0, 1)]
    assert site.cores[1].get("k") == "new"
    assert cleared(send_clear(site.members[1], bucket, number=2)) == []
    eventually(lambda: len(site.cores[1]) == 0)


@pytest.mark.parametrize("caller", [0, 1, 2], ids=["the old primary", "the new primary", "another member"])
def test_a_clear_whose_primaries_are_deposed_is_made_once(caller: int) -> None:
    with SharedSite(3) as site:
        site.keep_carrying()
        assert site.cores[0].put_columns(np.arange(100), np.arange(100)) == 100
        site.stop_carrying()
        site.carry()
        before = [site.members[0].changelog.log_end(bucket) for bucket in range(site.buckets)]
        made = Call(site.cores[caller].clear)
        eventually(
            lambda: sum(map(site.members[0].changelog.log_end, range(site.buckets))) == sum(before) + site.buckets
        )
        for bucket in range(site.buckets):
            site.lead(bucket, 1)
        site.keep_carrying()
        assert made.result() == 100
        assert [site.members[1].changelog.log_end(bucket) for bucket in range(site.buckets)] == [n + 1 for n in before]
        assert len(site.cores[2]) == 0


def test_a_clear_that_is_not_replicated_is_in_doubt_and_says_what_was_cleared() -> None:
    with SharedSite(timeout_s=0.5) as site:
        site.keep_carrying()
        site.cores[0].put_columns(np.arange(50), np.arange(50))
        site.stop_carrying()
        site.carry()
        with pytest.raises(ConnectivityError, match=r"0 of 7 buckets were cleared, of 0 entries; 7 of the others may"):
            site.cores[1].clear()
        site.keep_carrying()
        eventually(lambda: site.cores[0].clear() == 0)


def test_a_clear_of_which_a_bucket_has_no_primary_says_what_was_cleared() -> None:
    with SharedSite(timeout_s=0.5) as site:
        site.keep_carrying()
        site.cores[0].put_columns(np.arange(50), np.arange(50))
        with_key = site.cores[0].bucket(3)["entries"]
        for member in site.members:
            member.changelog.set_role(3, _core.REPLICA_IN_SYNC, 1, 99)
        with pytest.raises(
            ConnectivityError, match=f"6 of 7 buckets were cleared, of {50 - with_key} entries; bucket 3"
        ) as raised:
            site.cores[1].clear()
        assert not raised.value.in_doubt


def receive(member: Member, count: int) -> list[Any]:
    """The next changes that the listeners of a member are told."""
    received = [member.changelog.next_notification(int(LIMIT_S * 1000)) for _ in range(count)]
    assert None not in received and member.changelog.next_notification(0) is None
    return received


def test_listeners_receive_a_change_when_it_is_replicated(site: SharedSite) -> None:
    primary, replica = site.members
    for member in site.members:
        member.changelog.keep_notifications()
    made = Call(site.cores[0].put, "k", 1)
    eventually(lambda: waits_in_changelog(site, "k"))
    assert primary.changelog.next_notification(0) is replica.changelog.next_notification(0) is None
    site.carry()
    made.result()
    assert len(receive(primary, 1)) == len(receive(replica, 1)) == 1


def test_in_a_partitioned_region_a_replica_keeps_what_the_primary_has_to_tell(site: SharedSite) -> None:
    primary, replica = site.members
    for member in site.members:
        member.changelog.keep_notifications(True)
    site.keep_carrying()
    for n in range(3):
        site.cores[0].put("k", f"value {n}")
    site.stop_carrying()
    site.carry()
    assert replica.changelog.next_notification(0) is None and replica.changelog.notifications_state()["bytes"] > 0
    olds = [primary.changelog.next_notification(0)[1] for _ in range(2)]
    assert olds[0] is None and olds[1][1] == b"value 0"
    site.carry()  # The second one is being told.
    site.lead(site.bucket_of("k"), 1)
    told = receive(replica, 2)
    assert [old[1] for _, old, _, _ in told] == [b"value 0", b"value 1"]
    assert [repeats for *_, repeats in told] == [True, True]


def test_a_primary_without_listeners_has_told_all_that_is_replicated(site: SharedSite) -> None:
    replica = site.members[1]
    replica.changelog.keep_notifications(True)
    site.keep_carrying()
    site.cores[0].put("k", 1)
    eventually(lambda: replica.changelog.notifications_state()["bytes"] == 0)


def test_listeners_receive_a_clear_as_the_destroys_of_its_entries_everywhere(site: SharedSite) -> None:
    site.keep_carrying()
    for member in site.members:
        member.changelog.keep_notifications()
    for number in range(20):
        site.cores[0].put(number, f"value {number}")
    for member in site.members:
        assert {operation for operation, *_ in receive(member, 20)} == {"create"}
    assert site.cores[1].clear() == 20
    for member in site.members:
        received = receive(member, 20)
        assert {operation for operation, *_ in received} == {"destroy"}
        assert {_core.record_fields(record)["key"][1] for _, _, record, _ in received} == {
            _core.encoded_key(number).data for number in range(20)
        }
        assert sorted(old[1] for _, old, _, _ in received) == sorted(b"value %d" % number for number in range(20))


# Doubt


def interrupted(site: SharedSite, caller: int, call: str, *arguments: Any) -> Any:
    """What a call of member `caller` returns whose primary, member 0, is deposed by member 1 before the change counts,
    and after member 1 has fetched it."""
    key = next(each for each in arguments if each == "k")
    site.stop_carrying()
    site.carry()
    bucket = site.bucket_of(key)
    before = site.members[0].changelog.log_end(bucket)
    made = Call(getattr(site.cores[caller], call), *arguments)
    eventually(lambda: waits_in_changelog(site, key))
    site.lead(bucket, 1)
    site.keep_carrying()
    result = made.result()
    assert site.members[1].changelog.log_end(bucket) == before + 1, "the change was made once"
    site.lead(bucket, 0)
    return result


@pytest.mark.parametrize("caller", [0, 1, 2], ids=["the old primary", "the new primary", "another member"])
def test_a_change_whose_primary_is_deposed_is_made_once_and_gets_its_first_answer(caller: int) -> None:
    with SharedSite(3) as site:
        assert interrupted(site, caller, "change_if", "absent", _core.UPDATE, "k", "a") == (True, False, None)
        assert interrupted(site, caller, "change_if", "value", _core.UPDATE, "k", "b") == (True, True, "a")
        assert interrupted(site, caller, "change_if", "equal", _core.UPDATE, "k", "c", "b")[0] is True
        assert interrupted(site, caller, "put", "k", "d") is None
        assert site.cores[caller].get("k") == "d"
        assert interrupted(site, caller, "destroy", "k") is None


@pytest.mark.parametrize("caller", [0, 1, 2], ids=["the old primary", "the new primary", "another member"])
def test_rows_whose_primaries_are_deposed_are_made_once_and_counted_once(caller: int) -> None:
    with SharedSite(3) as site:
        keys = np.arange(300)
        calls = [
            (lambda: site.cores[caller].put_columns(keys[::2], keys[::2]), 150),
            (lambda: site.cores[caller].put_columns(keys, None, operations=["destroy"] * 300), 150),
        ]
        for call, applied in calls:
            site.stop_carrying()
            site.carry()
            before = [member.changelog.log_end(bucket) for bucket in range(site.buckets) for member in site.members[:1]]
            made = Call(call)
            eventually(
                lambda before=before: (
                    sum(map(site.members[0].changelog.log_end, range(site.buckets))) == sum(before) + 150
                )
            )
            for bucket in range(site.buckets):
                site.lead(bucket, 1)
            site.keep_carrying()
            assert made.result() == applied
            assert sum(map(site.members[1].changelog.log_end, range(site.buckets))) == sum(before) + 150
            for bucket in range(site.buckets):
                site.lead(bucket, 0)
        assert len(site.cores[2]) == 0


def take_through_callbacks(site: SharedSite, seen: list[Any]) -> None:
    """Has every member's changes go through user code, which notes their keys."""
    for member in site.members:
        core = member.core

        def change(
            operation: int, key: Any, value: Any, argument: Any, timestamp_ms: int = 0, condition: Any = None,
            *, event_id: Any = None, call: Any = None, core: _core.RegionCore = core,
        ) -> str:  # fmt: skip
            seen.append(key)
            origin = 1, b"", event_id or core.next_event_id(), False, 0, call
            return core.change(operation, key, value, argument, (), None, origin, condition_=condition)

        core.set_callback_path(change)


@pytest.mark.parametrize("rows", [False, True], ids=["one change", "rows"])
def test_a_change_through_callbacks_whose_primary_is_deposed_is_made_once(rows: bool) -> None:
    with SharedSite(3, buckets=1) as site:
        seen: list[Any] = []
        take_through_callbacks(site, seen)
        caller = site.cores[2]
        call = Call(caller.put_columns, np.arange(5), np.arange(5)) if rows else Call(caller.put, "k", 1)
        eventually(lambda: waits_in_changelog(site, "k"))
        site.lead(0, 1)
        site.keep_carrying()
        assert call.result() == (5 if rows else None)
        assert site.members[1].changelog.log_end(0) == len(seen) == (5 if rows else 1)
        assert len(caller) == (5 if rows else 1)


@pytest.mark.parametrize("rows", [False, True], ids=["one change", "rows"])
def test_a_change_that_meets_another_primary_on_its_way_through_callbacks_goes_there(rows: bool) -> None:
    with SharedSite(3, buckets=1) as site:
        seen: list[Any] = []
        take_through_callbacks(site, seen)

        def deposed(operation: int, key: Any, *rest: Any, call: Any = None, **more: Any) -> str:
            site.lead(0, 1)
            return site.cores[0].change(operation, key, rest[0], None, (), None, (1, b"", (9, 9, 9), False, 0, call))

        site.cores[0].set_callback_path(deposed)
        site.keep_carrying()
        caller = site.cores[2]
        assert (caller.put_columns(np.arange(5), np.arange(5)) if rows else caller.put("k", 1)) == (5 if rows else None)
        assert site.members[1].changelog.log_end(0) == len(seen) == len(caller) == (5 if rows else 1)


Identity = tuple[int, int, int]  # Caller, slot, number.


def put_as(site: SharedSite, member: int, identity: Identity, value: Any, *, since: int = 0) -> Any:
    """An attempt of member `member` to put a value under "k", which is a call with this identity."""
    route = site.members[member].route
    return route.change(_core.UPDATE, "k", value, None, (9, 9, 1), since=since, identity=identity)


def test_a_repeat_gets_its_first_answer_however_many_changes_others_made_since() -> None:
    with SharedSite(2, buckets=1) as site:
        site.members[0].changelog.set_replicas(0, [])
        assert put_as(site, 1, (9, 3, 5), 1) == "created"
        for n in range(5000):
            site.cores[1].put("other", n)
        assert put_as(site, 1, (9, 3, 5), 2, since=REPEATS) == "created"
        assert site.cores[1].get("k") == 1


def test_a_call_before_the_newest_one_of_its_slot_is_in_doubt_and_changes_nothing() -> None:
    with SharedSite(2, buckets=1) as site:
        site.members[0].changelog.set_replicas(0, [])
        assert put_as(site, 1, (9, 3, 5), 1) == "created"
        for since in (0, REPEATS):
            with pytest.raises(ConnectivityError, match="a later call of the same caller") as raised:
                put_as(site, 1, (9, 3, 4), 2, since=since)
            assert raised.value.in_doubt
        assert site.cores[1].get("k") == 1
        assert put_as(site, 1, (9, 4, 4), 2) == put_as(site, 1, (9, 3, 6), 3) == "updated"


def test_a_bucket_remembers_one_call_of_each_slot_and_slots_are_as_many_as_calls_at_once() -> None:
    threads, puts = 8, 300_000
    with SharedSite(1, buckets=3) as site:
        core, slots = site.cores[0], site.members[0].route.slots

        def work(number: int) -> None:
            for n in range(puts // threads):
                core.put(number * 100 + n % 100, n)

        calls = [Call(work, number) for number in range(threads)]
        for call in calls:
            call.result()
        states = site.members[0].changelog.states().values()
        assert sum(state["log_end"] for state in states) == puts
        assert 0 < slots.count <= threads
        assert all(0 < state["answers"] <= slots.count for state in states)


def test_a_call_that_ended_in_doubt_gives_its_slot_back_and_the_next_one_has_a_higher_number() -> None:
    with SharedSite(timeout_s=0.2, buckets=1) as site:
        site.carry()
        for n in range(3):
            with pytest.raises(ConnectivityError):
                site.cores[0].put("k", n)
        site.keep_carrying()
        site.cores[0].put("k", "last")
        assert site.members[0].route.slots.count == 1
        assert site.members[0].changelog.state(0)["answers"] == 1
        assert site.members[0].changelog.log_end(0) == 4
        assert site.cores[1].get("k") == "last"


def begin_anew(site: SharedSite, bucket: int, epoch: int) -> None:
    """The bucket is lost. Its first member begins it anew, alone, in a timeline that begins under this epoch."""
    site.epochs[bucket] = epoch - 1
    changelog, core = site.members[0].changelog, site.cores[0]
    for role in (_core.REPLICA_ABSENT, _core.REPLICA_PRIMARY):
        changelog.set_role(bucket, role, epoch, epoch)
        core.drop_bucket(bucket) if role == _core.REPLICA_ABSENT else changelog.set_replicas(bucket, [])


def test_a_repeat_of_a_call_from_an_earlier_timeline_is_in_doubt_and_changes_nothing() -> None:
    with SharedSite(2, buckets=1) as site:
        site.members[0].changelog.set_replicas(0, [])
        begin_anew(site, 0, 7)
        with pytest.raises(ConnectivityError, match="began anew since the first attempt") as raised:
            put_as(site, 1, (9, 3, 5), 1, since=6)
        assert raised.value.in_doubt
        assert site.members[0].changelog.log_end(0) == 0
        assert put_as(site, 1, (9, 3, 6), 2, since=7) == "created"
        assert put_as(site, 1, (9, 3, 6), 3, since=6) == "created", "this timeline remembers the call: it made it"
        assert site.cores[1].get("k") == 2
        assert put_as(site, 1, (9, 3, 7), 4) == "updated", "a first attempt is made in any timeline"


@pytest.mark.parametrize("caller", [0, 1], ids=["the primary", "another member"])
@pytest.mark.parametrize("what", ["put", "put_if_absent", "rows", "clear"])
def test_a_change_whose_bucket_begins_anew_before_it_is_replicated_is_not_made_again(caller: int, what: str) -> None:
    with SharedSite(2, buckets=1) as site:
        site.carry()
        core, changelog = site.cores[caller], site.members[0].changelog
        before = changelog.log_end(0)
        make = {
            "put": partial(core.put, "k", 1),
            "put_if_absent": partial(core.change_if, "absent", _core.UPDATE, "k", 1),
            "rows": partial(core.put_columns, np.arange(5), np.arange(5)),
            "clear": core.clear,
        }[what]
        call = Call(make)
        eventually(lambda: changelog.log_end(0) > before)
        begin_anew(site, 0, 7)
        with pytest.raises((ConnectivityError, BatchError), match="began anew since the first attempt") as raised:
            call.result()
        assert raised.value.in_doubt
        assert changelog.log_end(0) == 0 and len(site.cores[0]) == 0


@pytest.mark.parametrize("leader", [0, 1], ids=["at the primary", "at the next primary"])
def test_a_caller_that_was_forgotten_is_refused_for_good(leader: int) -> None:
    with SharedSite(3, buckets=1) as site:
        site.keep_carrying()
        assert put_as(site, 2, (9, 3, 5), 1) == "created"
        assert put_as(site, 2, (8, 3, 5), 2) == "updated"
        before = site.members[0].changelog.log_end(0)
        assert site.members[0].changelog.callers(0) == {8, 9}
        assert site.members[0].changelog.forget(0, 9)
        eventually(lambda: site.members[1].changelog.log_end(0) == before + 1)
        assert not site.members[1].changelog.forget(0, 8), "a replica forgets nobody by itself"
        for member in site.members[:2]:
            assert member.changelog.callers(0) == {8} and member.changelog.state(0)["refused"] == 1
        site.lead(0, leader)
        for number in (5, 6):
            with pytest.raises(ConnectivityError, match="has given up the member") as raised:
                put_as(site, 2, (9, 3, number), 3, since=REPEATS)
            assert raised.value.in_doubt
        assert site.members[leader].changelog.log_end(0) == before + 1
        assert put_as(site, 2, (8, 3, 6), 4) == "updated"


@pytest.mark.parametrize("caller", [0, 1], ids=["the primary", "another member"])
def test_a_member_that_was_forgotten_and_lives_calls_as_another_caller(site: SharedSite, caller: int) -> None:
    site.keep_carrying()
    core, slots = site.cores[caller], site.members[caller].route.slots
    core.put("k", 1)
    known = slots.caller
    bucket = site.bucket_of("k")
    assert site.members[0].changelog.callers(bucket) == {known}
    assert site.members[0].changelog.forget(bucket, known)
    core.put("k", 2)
    assert core.get("k") == 2
    assert slots.caller != known and _core.member_of_caller(slots.caller) == _core.member_of_caller(known)
    assert site.members[0].changelog.callers(bucket) == {slots.caller}
    for member in site.members:
        assert member.changelog.forget(bucket, slots.caller) == (member.number == 0)
    assert core.put_columns(np.arange(50), np.arange(50)) == 50
    assert len(core) == 51


def test_a_member_that_begins_anew_uses_no_identity_of_a_call_twice(site: SharedSite, monkeypatch: Any) -> None:
    """A call is under way while its member becomes another incarnation. It is made as a call of that one, and later
    calls are not taken for it, nor for earlier ones."""
    site.keep_carrying()
    core, member, changelog = site.cores[1], site.members[1], site.members[0].changelog
    bucket = site.bucket_of("k")
    for n in range(20):
        core.put("k", n)
    known, waits, wait_newer = member.route.slots.caller, threading.Event(), member.table.wait_newer

    def wait(*given: Any) -> KnownPrimary:
        waits.set()
        return wait_newer(*given)

    monkeypatch.setattr(member.table, "wait_newer", wait)
    member.table.forget()
    call = Call(core.put, "k", 20)
    assert waits.wait(LIMIT_S)
    site.begin_anew(1, 77)
    assert changelog.forget(bucket, known)
    site.lead(bucket, 0)
    call.result()
    assert core.get("k") == 20
    for n in range(21, 31):
        core.put("k", n)
        assert core.get("k") == n
    assert _core.member_of_caller(member.route.slots.caller) == 77
    assert changelog.callers(bucket) == {member.route.slots.caller}


class NoReports:
    """A coordinator that nobody needs to tell anything."""

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...
    def unreachable(self, epochs: dict[BucketKey, Epoch], replica: Incarnation) -> None: ...
    def suspect(self, suspected: Incarnation) -> None: ...


def test_a_primary_forgets_the_callers_of_members_that_the_view_has_not_any_more() -> None:
    me, other = Incarnation("me", 1), Incarnation("other", 2)
    core = _core.RegionCore("r", _core.Clock(), site=1, member=1, buckets=1)
    changelog = _core.Changelog(1, core.shards)
    core.share(changelog, None)
    led = Bucket(Epoch(1, 1), timeline=1, version=1, primary=me, isr=(me,))
    replicas = MemberReplicas(
        NoReports(), OwnOpenings(), OpeningQuestions(lambda member: None), member_timeout_us=5_000_000
    )
    replicas.start(me, "one")
    try:
        replicas.share("r", core, changelog, content={0: led})
        replicas.take_view(tuple(MemberProfile(each, "127.0.0.1", 1, 1) for each in (me, other)))
        replicas.take("r", {0: led})
        eventually(lambda: changelog.state(0)["role"] == "primary")
        mine, others, strangers = 1 << 32 | 5, 2 << 32 | 5, 3 << 32 | 5
        session = _core.CallSession({"r": core}.get)
        session.receive_data(calls.call(calls.REGION, b"r"), 1)
        for caller in (mine, others, strangers):
            session.receive_data(calls.call(calls.CHANGE, calls.record(b"k"), caller=caller), 1)
        assert changelog.callers(0) == {mine, others, strangers}
        replicas.take_view((MemberProfile(me, "127.0.0.1", 1, 1),))
        eventually(lambda: changelog.callers(0) == {mine, strangers})
        for _ in range(STRANGER_RENEWALS):  # The stranger may be a member that came a moment ago.
            assert changelog.callers(0) == {mine, strangers}
            replicas.lease_renewed(5_000_000)
        eventually(lambda: changelog.callers(0) == {mine})
        assert changelog.state(0)["refused"] == 2 and changelog.log_end(0) == 5
    finally:
        replicas.stop()


def test_a_change_without_an_answer_of_the_replicas_ends_in_doubt() -> None:
    with SharedSite(timeout_s=0.2) as site:
        site.carry()
        with pytest.raises(ConnectivityError, match="key 'k'") as raised:
            site.cores[0].put("k", 1)
        assert raised.value.in_doubt
        site.carry()
        assert site.cores[0].get("k") == 1  # It counts now.


def test_a_change_to_a_bucket_that_nobody_leads_changes_nothing() -> None:
    with SharedSite(timeout_s=0.2) as site:
        bucket = site.bucket_of("k")
        for member in site.members:
            member.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, 1, 99)
        with pytest.raises(ConnectivityError) as raised:
            site.cores[1].put("k", 1)
        assert not raised.value.in_doubt
        assert versions(site.cores[0], ["k"]) == versions(site.cores[1], ["k"]) == [None]


def test_a_question_that_cannot_be_answered_holds_back_no_other_bucket(site: SharedSite) -> None:
    site.keep_carrying()
    site.cores[0].put_columns(np.arange(100), np.arange(100))
    site.stop_carrying()
    site.carry()
    replica, leader = site.members[1], site.members[0].me
    replicas = RegionReplicas("r", replica.core, replica.changelog, replica.me, QuietServices(), content={})
    questions = []
    for number in range(site.buckets):
        decided = Bucket(Epoch(1, 1), 1, primary=leader, isr=(leader, replica.me))
        replicas._replicas[number], replicas._decisions[number] = _Replica(1), decided
        last = replica.changelog.log_end(number)
        # What counts has left its change log.
        questions.append(Question(number, decided.epoch, 0 if number == 3 else last))
    answers = replicas.answer(leader, questions)
    assert [answer.bucket for answer in answers] == [number for number in range(site.buckets) if number != 3]


@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_replica_that_missed_the_begin_of_a_timeline_goes_on_with_its_entries(
    site: SharedSite, is_leaving: bool
) -> None:
    site.keep_carrying()
    site.cores[0].put_columns(np.arange(100), np.arange(100))
    site.stop_carrying()
    site.carry()
    replica, leader = site.members[1], site.members[0].me
    here = (replica.me,)
    replicas = RegionReplicas("r", replica.core, replica.changelog, replica.me, QuietServices(), content={})
    for number in range(site.buckets):
        replicas._replicas[number] = _Replica(1)
        replicas._decisions[number] = Bucket(Epoch(1, 1), 1, primary=leader, isr=(leader, *here))
        isr, leaving = ((leader,), here) if is_leaving else ((leader, *here), ())
        replicas.take(
            number, Bucket(Epoch(2, 2), Epoch(2, 1).word, inherits=1, primary=leader, isr=isr, leaving=leaving)
        )
        assert replica.changelog.state(number)["timeline"] == Epoch(2, 1).word
    # The member leads again if the leader ends now.
    assert sum(replica.core.bucket(number)["entries"] for number in range(site.buckets)) == 100


class QuietServices:
    """What replicas need of their member, when nobody hears them."""

    def prepare(self, other: Incarnation) -> None:
        """Opens no connection."""

    def deny(self, region: str, number: int, epoch: Epoch, primary: Incarnation) -> None:
        """Tells nobody."""


# The beginning, and what cannot be


def test_rows_that_are_put_while_the_region_comes_to_be_shared_are_all_stored() -> None:
    rows, in_changelogs = 200_000, []
    for attempt in range(5):
        with SharedSite() as site:
            core = _core.RegionCore("r", _core.Clock(), site=1, member=1, buckets=site.buckets)
            member, replica = site.members
            member.core, member.route = core, Route(core, member.table, member.pool)
            site.keep_carrying()
            put = Call(core.put_columns, np.arange(rows), np.arange(rows))
            eventually(lambda core=core, least=attempt * rows // 10: len(core) >= least)
            core.share(member.changelog, member.route)
            assert put.result() == rows
            assert len(core) == rows
            in_changelogs.append(sum(member.changelog.log_end(bucket) for bucket in range(site.buckets)))
            # A row that is in no change log is in a snapshot, and no snapshot was made here.
            assert sum(replica.core.bucket(n)["entries"] for n in range(site.buckets)) == in_changelogs[-1]
    assert any(0 < each < rows for each in in_changelogs), "the region was shared before or after all rows"


def test_a_region_whose_queues_cannot_follow_its_buckets_is_not_shared(tmp_path) -> None:
    core = _core.RegionCore("r", _core.Clock(), site=1, member=1, buckets=7)
    core.attach([_core.EventQueue("sender", remote_site=2, log_directory=tmp_path, log_id=7)])
    with pytest.raises(IllegalStateError, match="queue 'sender' is persistent"):
        core.share(_core.Changelog(7, core.shards), None)


def test_calls_that_would_make_members_differ_are_refused(site: SharedSite) -> None:
    for call in ("local_destroy", "invalidate"):
        with pytest.raises(IllegalStateError, match="several members"):
            getattr(site.cores[0], call)("k")


# Anything in any order


@pytest.mark.parametrize("seed", range(6))
def test_two_members_behave_as_one_dict_whoever_leads(seed: int) -> None:
    chance = random.Random(seed)
    model: dict[Any, Any] = {}
    with SharedSite(reads_replicas=seed % 2 == 1) as site:
        site.keep_carrying()
        for step in range(400):
            core, key, value = chance.choice(site.cores), chance.randrange(20), f"{step}" * chance.randrange(1, 40)
            what = chance.randrange(9)
            if what == 0:
                core.put(key, value)
                model[key] = value
            elif what == 1:
                assert core.get(key) == model.get(key), f"step {step}"
            elif what == 2:
                assert (key in core) == (key in model)
            elif what == 3 and key in model:
                core.destroy(key)
                del model[key]
            elif what == 4:
                assert core.change_if("absent", _core.UPDATE, key, value) == (
                    key not in model,
                    key in model,
                    model.get(key),
                )
                model.setdefault(key, value)
            elif what == 5:
                expected = chance.choice([model.get(key, "?"), "another"])
                done = core.change_if("equal", _core.UPDATE, key, value, expected)[0]
                assert done == (model.get(key) == expected)
                if done:
                    model[key] = value
            elif what == 6:
                keys = [chance.randrange(20) for _ in range(5)]
                assert core.put_columns(np.array(keys), [value.encode()] * 5) == 5
                model.update(dict.fromkeys(keys, value.encode()))
            elif what == 7:
                assert len(core) == len(model)
            elif what == 8 and not step % 5:
                site.lead(chance.randrange(site.buckets), chance.randrange(2))
        assert sorted(site.cores[0].scan_keys()) == sorted(model)
        site.stop_carrying()
        site.carry()
        assert versions(site.cores[0], range(20)) == versions(site.cores[1], range(20)), f"seed {seed}"
