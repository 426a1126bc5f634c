"""A call has one deadline: whatever it waits for, and however often, it ends by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fuzz_core import calls
from pywan import _core
from pywan.calls.table import KnownPrimary
from pywan.errors import BatchError, ConnectivityError
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from support.event_calls import event
from support.served import DONE, IN_DOUBT, NOT_PRIMARY, SECOND, Served
from support.shared_site import Call, SharedSite

TIMEOUT_S = 0.4
SLACK_S = 0.5  # A loaded machine.


def read_all(core: _core.RegionCore) -> list[Any]:
    return list(core.route.items())


# What waits at its primary until all replicas have it, and what does not count yet is not shown either.
CALLS: dict[str, Callable[[_core.RegionCore], Any]] = {
    "put": lambda core: core.put("k", 1),
    "get": lambda core: core.get("k"),
    "contains": lambda core: "k" in core,
    "destroy": lambda core: core.destroy("k"),
    "put if absent": lambda core: core.change_if("absent", _core.UPDATE, "other", 1),
    "compare": lambda core: core.change_if("equal", _core.UPDATE, "k", 1, "what it is not"),
    "put columns": lambda core: core.put_columns(np.arange(100), np.arange(100)),
    "put all": lambda core: core.route.put_all((n, n) for n in range(100)),
    "remove all": lambda core: core.route.remove_all(range(100)),
    "len": len,
    "keys": lambda core: list(core.scan_keys()),
    "items": read_all,
    "clear": lambda core: core.clear(),
}


def took_s(call: Callable[[], Any]) -> float:
    """Returns how long a call took that failed, as nobody answered."""
    began = time.monotonic()
    with pytest.raises((ConnectivityError, BatchError)) as raised:
        call()
    took = time.monotonic() - began
    assert "within" in str(raised.value) or "may not answer" in str(raised.value), raised.value
    return took


@pytest.fixture(scope="module")
def unresponsive() -> Iterator[SharedSite]:
    """Members of which one has every key, and whose replicas have stopped to acknowledge."""
    with SharedSite(members=3, timeout_s=TIMEOUT_S) as site:
        site.keep_carrying()
        core = site.cores[0]
        core.put("k", 0)
        core.put_columns(np.arange(100), np.arange(100))
        site.stop_carrying()
        site.carry()
        with pytest.raises(ConnectivityError):
            core.put("k", 0)
        with pytest.raises(BatchError):
            core.put_columns(np.arange(100), np.arange(100))  # Now no bucket counts, so reads wait too.
        yield site


@pytest.mark.parametrize("caller", [0, 1])
@pytest.mark.parametrize("what", CALLS)
def test_a_call_ends_in_time_when_the_replicas_are_unresponsive(
    unresponsive: SharedSite, what: str, caller: int
) -> None:
    took = took_s(lambda: CALLS[what](unresponsive.cores[caller]))
    assert TIMEOUT_S - 0.05 <= took <= TIMEOUT_S + SLACK_S


def test_a_bulk_call_of_several_parts_has_no_time_for_the_next_when_one_took_too_long(unresponsive: SharedSite) -> None:
    """Each part has 16 MiB."""
    value = bytes(8 << 20)
    took = took_s(lambda: unresponsive.cores[1].route.put_all((n, value) for n in range(7)))
    assert took <= TIMEOUT_S + 3 * SLACK_S  # 56 MiB are laid out, and one part travels.


def test_a_call_of_many_parts_tries_once_to_connect_to_a_member_that_does_not_answer() -> None:
    with SharedSite(members=3, timeout_s=2.5) as site, FaultProxy(("127.0.0.1", site.members[0].port.port)) as proxy:
        far = site.members[0].me
        proxy.hang()
        site.members[1].table.set_primaries(
            {bucket: KnownPrimary(far, *proxy.address, site.epochs[bucket] + 1) for bucket in range(site.buckets)}
        )
        took = took_s(lambda: len(site.cores[1]))
        assert took <= 2.5 + SLACK_S


def test_calls_that_callbacks_make_end_with_the_call_that_they_are_part_of() -> None:
    with SharedSite(timeout_s=TIMEOUT_S) as site:
        core = site.cores[0]

        def through(
            operation: int, key: Any, value: Any, argument: Any, *more: Any, call: Any = None, **named: Any
        ) -> Any:
            for _ in range(5):
                with pytest.raises(ConnectivityError):
                    core.get("other")
            origin = 1, b"", core.next_event_id(), False, 0, call
            return core.change(operation, key, value, argument, (), None, origin)

        with pytest.raises(ConnectivityError):
            core.put("other", 1)  # It does not count, so reads of it wait.
        core.set_callback_path(through)
        for caller in site.cores:
            assert took_s(lambda caller=caller: caller.put("k", 1)) <= TIMEOUT_S + SLACK_S


class Callbacks:
    """Notes until when and at which depth it may call others."""

    def __init__(self, core: _core.RegionCore) -> None:
        self._route = _core.CallRoute(core, timeout_s=3600)
        self.left_us, self.depth = 0, 0
        core.set_callback_path(self.change)

    def change(self, *change: Any, **named: Any) -> str:
        now_us = time.monotonic_ns() // 1000
        self.left_us, self.depth = self._route.deadline(now_us) - now_us, _core.call_depth()
        return "same"

    def apply_record(self, record: bytes, position: Any) -> int:
        self.change()
        return _core.APPLY_DONE


@pytest.mark.parametrize("kind", ["CHANGE", "ROWS", "EVENTS"])
def test_calls_that_callbacks_make_have_the_time_and_the_next_depth_of_the_call(served: Served, kind: str) -> None:
    asked = Callbacks(served.region)
    key = served.keys[0].encode()
    record = event(served.keys[0]) if kind == "EVENTS" else calls.record(key, b"v", key_form=1)
    served.session.receive_data(
        calls.call(getattr(calls, kind), record, id=1, epoch=1, count=kind != "CHANGE", within=1000), SECOND
    )
    assert list(served.answered(SECOND)) == [1]
    assert 0 < asked.left_us <= 8_000_000, "four fifths of 10 s"
    assert asked.depth == 1 and _core.call_depth() == 0
    asked.change()
    assert asked.left_us > 8_000_000, "the next call has its own"


def test_a_call_that_makes_others_has_one_deadline(unresponsive: SharedSite) -> None:
    core = unresponsive.cores[0]

    def several() -> None:
        with core.one_deadline():
            for _ in range(5):
                with pytest.raises(ConnectivityError):
                    core.get("k")
            core.get("k")

    assert took_s(several) <= TIMEOUT_S + SLACK_S
    assert took_s(lambda: core.get("k")) >= TIMEOUT_S - 0.05, "the next call has its own"


def test_a_limit_that_is_changed_holds_for_the_next_call(unresponsive: SharedSite) -> None:
    route = unresponsive.members[1].route
    route.set_limit(0.2)
    try:
        for what, call in CALLS.items():
            assert took_s(lambda call=call: call(unresponsive.cores[1])) <= 0.2 + SLACK_S, what
    finally:
        route.set_limit(TIMEOUT_S)


def test_an_answer_in_doubt_comes_before_its_caller_gives_up(served: Served) -> None:
    served.answered(SECOND)
    record = calls.record(served.keys[0].encode(), b"v", key_form=1)
    served.session.receive_data(calls.call(calls.CHANGE, record, id=1, epoch=1, within=10), SECOND)  # 100 ms.
    get = calls.call(calls.GET, served.keys[0].encode(), id=2, form=1, epoch=1, within=20)
    served.session.receive_data(get, SECOND)
    assert served.session.next_us() == SECOND + 80_000
    assert served.answered(SECOND + 80_000 - 1) == {}
    assert {id: status for id, (status, _) in served.answered(SECOND + 80_000).items()} == {1: IN_DOUBT}
    assert {id: status for id, (status, _) in served.answered(SECOND + 160_000).items()} == {2: NOT_PRIMARY}


def test_a_change_is_not_made_for_a_caller_that_does_not_wait_any_more(served: Served) -> None:
    most = 4096
    served.answered(SECOND)
    for _ in range(most):
        served.put(0, b"value")
    record = calls.record(served.keys[1].encode(), b"late", key_form=1)
    served.session.receive_data(calls.call(calls.CHANGE, record, id=9000, bucket=1, epoch=1, within=10))
    assert served.answered(SECOND) == {} and served.changelog.log_end(1) == 0
    served.acknowledge(0)
    assert served.answered(2 * SECOND)[9000][0] == NOT_PRIMARY
    assert served.changelog.log_end(1) == 0 and served.session.pending == 0


def test_a_call_that_may_have_lain_in_the_socket_for_too_long_is_not_made(served: Served) -> None:
    """The session reads nothing while it has no place. What it reads then may have come when that began."""
    served.answered(SECOND)
    for _ in range(4096):
        served.put(0, b"value")
    assert served.answered(SECOND) == {}
    served.acknowledge(0)
    assert len(served.answered(2 * SECOND)) == 4096
    for id, sequence in ((9000, 0), (9001, 1)):
        record = calls.record(served.keys[1].encode(), b"v", key_form=1, sequence=id)
        call = calls.call(calls.CHANGE, record, id=id, bucket=1, epoch=1, within=10)
        served.session.receive_data(call, 2 * SECOND)
        answers = served.answered(2 * SECOND)
        assert served.changelog.log_end(1) == sequence and (id in answers) == (sequence == 0)
        assert sequence or answers[id][0] == NOT_PRIMARY
    served.acknowledge(1)
    assert served.answered(2 * SECOND)[9001][0] == DONE


def test_a_call_that_is_held_is_not_done_when_its_caller_has_given_up(served: Served) -> None:
    served.answered(SECOND)
    served.becomes(0, _core.REPLICA_TAKING_OVER, 2)
    record = calls.record(served.keys[0].encode(), b"v", key_form=1)
    served.session.receive_data(calls.call(calls.CHANGE, record, id=1, epoch=2, within=10), SECOND)
    assert served.answered(SECOND) == {} and served.session.pending == 1
    served.becomes(0, _core.REPLICA_PRIMARY, 2)
    assert served.answered(SECOND + 90_000)[1][0] == NOT_PRIMARY and served.changelog.log_end(0) == 0


def test_rows_that_change_nothing_are_not_told_as_done_while_what_they_saw_is_not_replicated() -> None:
    with SharedSite(buckets=1, timeout_s=TIMEOUT_S) as site:
        site.keep_carrying()
        site.cores[0].put("k", 1)
        site.stop_carrying()
        site.carry()
        with pytest.raises(ConnectivityError):
            site.cores[0].destroy("k")  # It may be lost yet, and then the key is there.
        for core in site.cores:
            with pytest.raises(BatchError):
                core.route.remove_all(["k"])
        site.keep_carrying()
        assert [core.route.remove_all(["k"]) for core in site.cores] == [0, 0]


@pytest.mark.parametrize("what", ["put", "put columns", "put all", "remove all", "len", "keys", "items", "clear"])
def test_a_call_goes_on_over_the_new_routes_when_its_member_begins_anew(what: str, monkeypatch: Any) -> None:
    """The site has given the member up while it calls, and it goes on as another incarnation."""
    with SharedSite() as site:
        site.keep_carrying()
        core, member = site.cores[1], site.members[1]
        core.put_columns(np.arange(100), np.arange(100))
        core.put("k", 0)
        wanted = {"put": None, "put columns": 100, "put all": None, "remove all": 100, "len": 101, "clear": 101}
        waits, wait_newer = threading.Event(), member.table.wait_newer

        def wait(*given: Any) -> KnownPrimary:
            waits.set()
            return wait_newer(*given)

        monkeypatch.setattr(member.table, "wait_newer", wait)
        member.table.forget()
        call = Call(CALLS[what], core)
        assert waits.wait(LIMIT_S) and not call.is_done
        known = member.route.slots.caller
        site.begin_anew(1, 77)
        for bucket in range(site.buckets):
            site.members[0].changelog.forget(bucket, known)  # The site has forgotten the earlier incarnation.
            site.lead(bucket, 0)
        result = call.result()
        if what in wanted:
            assert result == wanted[what]
        else:
            assert len(result) == 101
        assert _core.member_of_caller(member.route.slots.caller) == 77
        entries = {"remove all": 1, "clear": 0}.get(what, 101)
        assert len(core) == entries


def test_rows_that_wait_for_their_replicas_go_on_when_their_member_begins_anew() -> None:
    with SharedSite() as site:
        core, member = site.cores[1], site.members[1]
        calls_ = [Call(core.put_columns, np.arange(100), np.arange(100)), Call(core.route.put_all, {"a": 1}.items())]
        eventually(lambda: sum(map(site.members[0].changelog.log_end, range(site.buckets))) == 101)
        member.table.forget()
        site.begin_anew(1, 77)
        site.keep_carrying()
        for bucket in range(site.buckets):
            site.lead(bucket, 0)
        assert [call.result() for call in calls_] == [100, None]
        assert sum(map(site.members[0].changelog.log_end, range(site.buckets))) == 101, "each row was made once"
