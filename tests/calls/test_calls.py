"""Calls between members: operations on keys whose primary is another member of the site."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from fuzz_core import calls
from pywan import _core
from pywan.base.addresses import Address
from pywan.calls import server as calls_server
from pywan.calls.pool import CallPool
from pywan.calls.route import Aim, Route
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Incarnation
from pywan.errors import (
    BatchError,
    ConnectivityError,
    IllegalStateError,
    IncompatibleSystemError,
    PywanError,
    QueueFullError,
    RegionNotFoundError,
)
from pywan.protocol import between_members
from pywan.protocol.calls import decode_primary
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.processes import ChildProcess
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport.control import ControlServer
from pywan.transport.data import receive_exactly
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.own_openings import OwnOpenings
from support.shared_site import Call
from support.tree import TESTS

BUCKETS = 13
PLACES: dict[str, Address] = {}  # Where the members of a test are, by name.


class Member:
    """What a member has of the calls: its regions, its port, its connections."""

    def __init__(self, name: str, *, timeout_s: float = LIMIT_S, site: str = "one") -> None:
        self.me = Incarnation(name, abs(hash(name)) % 1000 + 1)
        self.regions: dict[str, _core.RegionCore] = {}
        self.tables: dict[str, BucketTable] = {}
        self.routes: dict[str, Route] = {}
        self.timeout_s = timeout_s
        self.openings = OwnOpenings()
        self.calls = CallServer(self.me, site, self.regions.get, OpeningQuestions(self.place_of))
        self.view: set[Incarnation] = set()
        self.pool = CallPool(self.me, site, self.openings)
        self.port = ControlServer(
            "127.0.0.1",
            0,
            lambda request, peer: self.openings.answer(request),
            name=name,
            other_protocols={b"PWK1": self.calls.serve},
        )
        self.port.start()
        PLACES[name] = Address("127.0.0.1", self.port.port)

    def place_of(self, member: Incarnation) -> Address:
        """Where another member is asked about its openings. One without a port is played by the test: see `opened`."""
        return PLACES.get(member.name, Address("127.0.0.1", self.port.port))

    def host(self, name: str, **attributes: Any) -> _core.RegionCore:
        region = _core.RegionCore(name, _core.Clock(), site=1, member=self.me.member_id, buckets=BUCKETS, **attributes)
        self.regions[name] = region
        self.tables[name] = BucketTable(name, BUCKETS)
        self.routes[name] = Route(region, self.tables[name], self.pool, timeout_s=self.timeout_s)
        return region

    def knows(self, *members: Incarnation) -> None:
        """They are in the member's view, and may call it."""
        self.view.update(members)
        self.calls.keep_only(self.view)

    @property
    def as_primary(self) -> tuple[Incarnation, str, int]:
        return self.me, "127.0.0.1", self.port.port

    def close(self) -> None:
        self.pool.close()
        self.calls.stop()
        self.port.stop()


class Pair:
    """Two members with region "r". All buckets are at the first one, and the second one calls."""

    def __init__(self) -> None:
        self.far, self.near = Member("far"), Member("near")
        self.far.knows(self.near.me)
        self.near.knows(self.far.me)
        self.region = self.far.host("r")
        self.near.host("r")
        self.route = self.near.routes["r"]
        self.say_primary(self.far)

    def say_primary(self, member: Member, epoch: int = 1) -> None:
        self.near.tables["r"].set_primaries(
            {number: KnownPrimary(*member.as_primary, epoch) for number in range(BUCKETS)}
        )

    def put(self, key: Any, value: Any, sequence: int = 1) -> Any:
        return self.route.change(_core.UPDATE, key, value, None, (self.near.me.member_id, 1, sequence))

    def get(self, key: Any) -> Any:
        _, form, data = self.route.read(key)
        return None if data is None else _core.decode_object(form, data)

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = threading.active_count()
    pair = Pair()
    yield pair
    pair.close()
    eventually(lambda: threading.active_count() <= before)


def test_a_change_is_made_at_the_primary_and_read_from_there(pair: Pair) -> None:
    for key in ("text", b"bytes", 7, 2.5, ("a", 1)):
        assert pair.put(key, {"of": key}) == "created"
        assert pair.region.get(key) == {"of": key}
        assert pair.get(key) == {"of": key}
    assert pair.put("text", None) == "updated"
    assert pair.route.read("text")[0]
    assert pair.route.read("nothing") == (False, 3, None)
    assert len(pair.near.regions["r"]) == 0


def test_a_conditional_change_returns_what_the_primary_had(pair: Pair) -> None:
    def change_if(kind: str, operation: int, key: Any, value: Any, expected: Any = None) -> tuple[str, bool]:
        condition = _core.Condition(kind, expected)
        outcome = pair.route.change(operation, key, value, None, (9, 1, 1), condition)
        return outcome, condition

    assert change_if("absent", _core.UPDATE, "k", "first")[0] == "created"
    assert change_if("absent", _core.UPDATE, "k", "second")[0] == "unmet"
    assert pair.get("k") == "first"
    assert change_if("equal", _core.UPDATE, "k", "second", "other")[0] == "unmet"
    assert change_if("equal", _core.UPDATE, "k", "second", "first")[0] == "updated"
    assert change_if("value", _core.UPDATE, "none", 1)[0] == "unmet"
    assert change_if("there", _core.DESTROY, "k", None)[0] == "destroyed"
    assert pair.route.change(_core.DESTROY, "k", None, None, (9, 1, 1)) == "missing"
    assert "k" not in pair.region


def test_a_call_of_a_member_that_ends_ends_at_once(pair: Pair) -> None:
    pair.near.tables["r"].set_primaries({n: KnownPrimary(None, "", 0, 2) for n in range(BUCKETS)})
    failed: list[PywanError] = []

    def put() -> None:
        try:
            pair.put("k", 1)
        except PywanError as error:
            failed.append(error)

    calling = threading.Thread(target=put)
    calling.start()
    pair.near.pool.close()
    calling.join(SOON_S)  # Its own limit is longer.
    assert not calling.is_alive()
    assert "member near#" in str(failed[0]) and " ends; nothing was changed" in str(failed[0])
    assert not failed[0].in_doubt


def test_a_call_that_waits_goes_on_when_its_member_begins_anew(pair: Pair) -> None:
    """Its member is given up by the site, and goes on as another incarnation."""
    pair.far.knows(Incarnation("near", 77))
    table, pool = pair.near.tables["r"], pair.near.pool
    pair.put("before", 1)
    line = pool.line(pair.far.me, ("127.0.0.1", pair.far.port.port), 0, time.monotonic() + LIMIT_S)
    table.set_primaries({n: KnownPrimary(None, "", 0, 2) for n in range(BUCKETS)})
    done: list[str] = []
    calling = threading.Thread(target=lambda: done.append(pair.put("k", 1)))
    calling.start()
    table.forget()
    pool.begin_anew(Incarnation("near", 77), "one")
    assert line.is_broken, "a connection says who opened it"
    assert table.primary(0).member is None
    pair.say_primary(pair.far, epoch=1)  # An epoch that the table knew before.
    calling.join(LIMIT_S)
    assert done == ["created"] and pair.get("k") == 1
    assert {each.member.member_id for each, _ in pair.far.calls._sessions.values()} == {77}


def test_a_change_keeps_its_identity_and_callback_argument_at_the_primary(pair: Pair) -> None:
    seen: list[Any] = []

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any) -> str:
        seen.append((key.plain, value.plain, argument.plain, event_id))
        return pair.region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    pair.region.set_callback_path(by_callbacks)
    assert pair.route.change(_core.UPDATE, "k", [1, 2], "why", (77, 3, 12)) == "created"
    assert seen == [("k", [1, 2], "why", (77, 3, 12))]
    assert pair.get("k") == [1, 2]


def test_an_error_of_a_callback_comes_back_in_words(pair: Pair) -> None:
    def by_callbacks(*change: Any, **more: Any) -> str:
        raise QueueFullError("no room here")

    pair.region.set_callback_path(by_callbacks)
    with pytest.raises(QueueFullError, match="no room here") as raised:
        pair.put("k", 1)
    assert not raised.value.in_doubt
    assert pair.get("k") is None


def test_whole_buckets_are_counted_scanned_and_cleared(pair: Pair) -> None:
    wanted = {f"key{n}": b"v" * n for n in range(500)}
    for n, (key, value) in enumerate(wanted.items()):
        pair.put(key, value, n + 1)
    pair.region.invalidate("key7")
    assert pair.route.count() == 500
    assert sorted(pair.route.scan_keys()) == sorted(wanted)
    assert dict(pair.route.items()) == {**wanted, "key7": None}
    assert pair.route.clear() == 500
    assert len(pair.region) == 0 and pair.route.count() == 0


def test_a_value_of_many_megabytes_travels_both_ways(pair: Pair) -> None:
    value = bytes(range(256)) * (24 << 12)
    assert pair.put("large", value) == "created"
    assert pair.get("large") == value


def test_a_region_that_is_not_there_yet_is_refused_in_words_and_found_when_it_is(pair: Pair) -> None:
    near = pair.near.host("later")
    pair.near.tables["later"].set_primaries(
        {number: KnownPrimary(*pair.far.as_primary, 1) for number in range(BUCKETS)}
    )
    route = pair.near.routes["later"]
    with pytest.raises(RegionNotFoundError, match="'later' is not at this member"):
        route.read("k")
    assert near.name == "later"
    far = pair.far.host("later")
    far.put("k", 1)
    assert route.read("k")[0]
    far.close()
    with pytest.raises(RegionNotFoundError):
        route.read("k")
    pair.far.host("later")
    assert route.read("k") == (False, 3, None)


def test_members_that_differ_about_the_number_of_buckets_refuse_each_other(pair: Pair) -> None:
    pair.far.regions["r"] = _core.RegionCore("r", _core.Clock(), site=1, buckets=7)
    refused = 0
    for n in range(50):
        try:
            pair.put(f"key{n}", n, n + 1)
        except IllegalStateError as error:
            assert "bucket" in str(error)
            refused += 1
    assert refused > 40


def test_many_threads_share_one_connection(pair: Pair) -> None:
    failures: list[str] = []

    def work(thread: int) -> None:
        for n in range(200):
            key = f"{thread}/{n % 10}"
            pair.route.change(_core.UPDATE, key, n, None, (5, thread, n + 1))
            if pair.get(key) != n:
                failures.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert len(pair.region) == 320
    assert pair.near.pool.connections == 1 and pair.far.calls.connections == 1
    assert pair.route.targets[0] is None or pair.route.targets[0][0].on_their_way == 0


def test_a_member_is_not_mistaken_for_its_next_life_or_another_site(pair: Pair) -> None:
    me, host, port = pair.far.as_primary
    early = Member("early", timeout_s=1.0)
    stranger = Member("stranger", timeout_s=1.0, site="two")
    try:
        for member, address, words in (
            (early, (Incarnation("far", me.member_id + 1), host, port), "is meant: it has ended"),
            (stranger, (me, host, port), "belongs to the site 'two'"),
        ):
            member.host("r")
            member.tables["r"].set_primaries({number: KnownPrimary(*address, 1) for number in range(BUCKETS)})

            def is_told(member: Member = member, words: str = words) -> bool:
                """One second may be too short for a first attempt."""
                with pytest.raises(ConnectivityError) as raised:
                    member.routes["r"].read("k")
                assert not raised.value.in_doubt
                return words in str(raised.value)

            eventually(is_told, what=words)
    finally:
        early.close()
        stranger.close()


def opened(to: Member, caller: Incarnation, line: int, depth: int = 0) -> socket.socket:
    """A connection for calls of another member, once it is accepted. IncompatibleSystemError if it is refused."""
    sock = socket.create_connection(("127.0.0.1", to.port.port), LIMIT_S)
    word = to.openings.begin(between_members.CALLS, caller, to.me)  # The called member's port answers for the caller.
    try:
        opening = between_members.Opening(caller, to.me, "one", word, depth=depth, line=line)
        sock.sendall(between_members.encode_opening(between_members.CALLS, opening))
        head = receive_exactly(sock, between_members.HEAD_BYTES)
        body = receive_exactly(sock, between_members.length_of_body(between_members.CALLS, head))
        between_members.check_answer(body, "the member")
        return sock
    except BaseException:
        sock.close()
        raise
    finally:
        to.openings.end(word)


def put_call(key: bytes, value: bytes, number: int) -> bytes:
    """The call `number` of slot 0 of a caller that incarnation 9 drew: it puts a value."""
    return put_call_of(9, key, value, number)


def put_call_of(member_id: int, key: bytes, value: bytes, number: int) -> bytes:
    bucket = ((_core.key_hash(key) >> 32) * BUCKETS) >> 32
    return calls.call(calls.REGION, b"r") + calls.call(
        calls.CHANGE, calls.record(key, value), bucket=bucket, caller=member_id << 32, slot=0, number=number
    )


def test_a_call_has_an_identity_of_the_member_that_opened_the_connection(pair: Pair) -> None:
    """A bucket remembers calls by it, and refuses those of callers that are gone. A member that goes on as another
    incarnation repeats calls of the earlier one."""
    caller, earlier, other = Incarnation("caller", 9), Incarnation("caller", 10), Incarnation("other", 11)
    pair.far.knows(earlier, other)
    pair.far.view.discard(earlier)
    pair.far.knows(caller)
    with opened(pair.far, caller, 1) as sock, opened(pair.far, other, 1) as others:

        def status_of(sock: socket.socket, member_id: int, value: bytes) -> int:
            sock.sendall(put_call_of(member_id, b"k", value, 1))
            head = receive_exactly(sock, calls.ANSWER_HEAD.size)
            _, _, status, _, _, length, *_ = calls.ANSWER_HEAD.unpack(head)
            assert (b"the identity of another member" in receive_exactly(sock, -(-length // 8) * 8)) == (status == 4)
            return status

        assert [status_of(sock, each, b"x") for each in (11, 12)] == [4, 4] and pair.get(b"k") is None
        assert status_of(sock, 9, b"nine") == 0 and pair.get(b"k") == b"nine"
        assert status_of(sock, 10, b"ten") == 0 and pair.get(b"k") == b"ten"
        assert [status_of(others, each, b"x") for each in (9, 10)] == [4, 4] and pair.get(b"k") == b"ten"
        assert status_of(others, 11, b"other") == 0


def test_a_later_connection_ends_those_before_it_of_the_same_depth_before_it_is_served(pair: Pair) -> None:
    caller = Incarnation("caller", 9)
    pair.far.knows(caller, Incarnation("caller", 10))
    with opened(pair.far, caller, 1) as first, opened(pair.far, caller, 2, depth=1) as deeper:
        first.sendall(put_call(b"k", b"first", 1)[:-8])  # The rest is held back on its way.
        with opened(pair.far, caller, 3) as third:
            assert pair.far.calls.connections == 2
            third.sendall(put_call(b"k", b"third", 2))
            eventually(lambda: pair.get(b"k") == b"third")
            with contextlib.suppress(OSError):
                first.sendall(put_call(b"k", b"first", 1)[-8:])
            with contextlib.suppress(OSError):
                assert first.recv(1) == b""
            assert pair.get(b"k") == b"third"
            with pytest.raises(IncompatibleSystemError, match="has opened a later connection already"):
                opened(pair.far, caller, 2)
            with opened(pair.far, Incarnation("caller", 10), 1):
                assert pair.far.calls.connections == 4  # With the one of `pair.near`.
        deeper.sendall(put_call(b"k", b"deeper", 3))
        eventually(lambda: pair.get(b"k") == b"deeper")


def test_a_connection_waits_for_a_call_that_an_earlier_one_of_its_caller_is_still_doing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, may_go_on, is_there = Incarnation("caller", 9), threading.Event(), threading.Event()

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any) -> str:
        is_there.set()
        assert may_go_on.wait(LIMIT_S)
        return pair.region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    pair.region.set_callback_path(by_callbacks)
    pair.far.knows(caller)
    with opened(pair.far, caller, 1) as first:
        first.sendall(put_call(b"k", b"first", 1))
        assert is_there.wait(LIMIT_S)
        with monkeypatch.context() as patched:
            patched.setattr(calls_server, "REPLACE_TIMEOUT_S", 0.05)
            with pytest.raises(IncompatibleSystemError, match="is still doing a call"):
                opened(pair.far, caller, 2)
        may_go_on.set()
        with opened(pair.far, caller, 3) as third:
            third.sendall(put_call(b"k", b"third", 2))
            eventually(lambda: pair.get(b"k") == b"third")


def test_a_member_outside_the_view_is_not_served_until_it_is_there(pair: Pair) -> None:
    caller = Incarnation("caller", 9)
    with pytest.raises(IncompatibleSystemError, match="is not among the members that member far"):
        opened(pair.far, caller, 1)
    pair.far.knows(caller)
    with opened(pair.far, caller, 2) as second:
        second.sendall(put_call(b"k", b"second", 1))
        eventually(lambda: pair.get(b"k") == b"second")
        pair.far.calls.keep_only([pair.near.me])
        eventually(lambda: pair.far.calls.connections == 1)
    with pytest.raises(IncompatibleSystemError, match="is not among the members"):
        opened(pair.far, caller, 3)
    pair.far.knows(caller)
    with opened(pair.far, caller, 4):
        assert pair.far.calls.connections == 2


def test_a_caller_that_the_tables_bring_meanwhile_is_served_at_its_first_attempt(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_members, "VIEW_WAIT_S", LIMIT_S)
    caller = Incarnation("caller", 9)
    opening = Call(opened, pair.far, caller, 1)
    eventually(lambda: any("far" in each.name and ":" in each.name for each in threading.enumerate()))
    assert not opening.is_done
    pair.far.knows(caller)
    opening.result().close()


def test_a_call_that_ends_in_an_attempt_says_why_the_attempt_before_failed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def line(member: Incarnation, address: Any, depth: int, deadline: float) -> _core.CallLine:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ConnectivityError("it refuses")
        eventually(lambda: time.monotonic() >= deadline)
        raise ConnectivityError("no time is left")

    monkeypatch.setattr(pair.near.pool, "line", line)
    route = Route(pair.near.regions["r"], pair.near.tables["r"], pair.near.pool, timeout_s=0.5)
    with pytest.raises(ConnectivityError, match="it refuses"):
        route.read("k")


def spread(pair: Pair) -> None:
    """Every second bucket has its primary at the member that calls."""
    for member in (pair.near, pair.far):
        member.tables["r"].set_primaries(
            {number: KnownPrimary(*(pair.far, pair.near)[number % 2].as_primary, 2) for number in range(BUCKETS)}
        )


def test_rows_are_divided_by_bucket_and_made_at_all_primaries(pair: Pair) -> None:
    spread(pair)
    near, count = pair.near.regions["r"], 20_000
    pair.route.put_all((f"key{n}", n) for n in range(count))
    assert pair.route.count() == len(near) + len(pair.region) == count
    assert 0 < len(near) < count
    assert all(near.bucket_of(key) % 2 == 1 for key in near.scan_keys())
    assert all(near.bucket_of(key) % 2 == 0 for key in pair.region.scan_keys())
    assert dict(pair.route.items()) == {f"key{n}": n for n in range(count)}
    assert pair.route.remove_all([f"key{n}" for n in range(0, count, 2)] + ["nobody"]) == count // 2
    assert pair.route.count() == count // 2
    keys, values = _core.Column([b"a", b"b", b"c"], "keys"), _core.Column([b"1", b"2", b"3"], "values")
    assert pair.route.put_columns(keys, values) == 3
    assert pair.route.put_columns(keys, None, ["destroy"] * 3) == 3


def test_rows_of_one_key_keep_their_order(pair: Pair) -> None:
    spread(pair)
    pair.route.put_all((f"key{n % 7}", n) for n in range(5_000))
    assert dict(pair.route.items()) == {f"key{n % 7}": n for n in range(4_993, 5_000)}


def test_rows_that_cannot_be_carried_are_named_and_the_others_made(pair: Pair) -> None:
    spread(pair)
    with pytest.raises(BatchError) as raised:
        pair.route.put_all([("a", 1), (None, 2), ("b", object()), ("c", 3)])
    assert [row for row, _ in raised.value.failures] == [1, 2]
    assert dict(pair.route.items()) == {"a": 1, "c": 3}
    keys = _core.Column([b"x", b"y"], "keys")
    with pytest.raises(BatchError, match=r"the region was destroyed|not at this member") as raised:
        pair.region.close()
        pair.route.put_columns(keys, keys)
    assert not raised.value.in_doubt
    assert len(raised.value.failures) == sum(pair.near.regions["r"].bucket_of(key) % 2 == 0 for key in (b"x", b"y"))


def test_rows_for_callbacks_meet_them_at_the_primary_in_order(pair: Pair) -> None:
    seen = []

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any) -> str:
        if value.plain == 13:
            raise QueueFullError("no room for 13")
        seen.append((key.plain, value.plain))
        return pair.region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    pair.region.set_callback_path(by_callbacks)
    pair.route.put_all((f"key{n}", n) for n in range(10))
    assert sorted(seen) == [(f"key{n}", n) for n in range(10)]
    with pytest.raises(BatchError, match="no room for 13"):
        pair.route.put_all([("k", 12), ("k", 13), ("k", 14)])
    assert pair.get("k") == 12


# Broken connections


class Link:
    """The near member reaches the far one through a proxy with faults."""

    def __init__(self, pair: Pair, *, timeout_s: float) -> None:
        self.pair, self.proxy = pair, FaultProxy(("127.0.0.1", pair.far.port.port)).start()
        near = pair.near
        self.table = BucketTable("r", BUCKETS)
        self.route = Route(near.regions["r"], self.table, near.pool, timeout_s=timeout_s)
        self.say(1)

    def say(self, epoch: int) -> None:
        primary = KnownPrimary(self.pair.far.me, *self.proxy.address, epoch)
        self.table.set_primaries(dict.fromkeys(range(BUCKETS), primary))

    def put(self, key: Any, value: Any, sequence: int = 1) -> Any:
        return self.route.change(_core.UPDATE, key, value, None, (8, 1, sequence))

    def hang_up(self) -> None:
        for aimed in self.route.targets:
            if aimed is not None:
                aimed[0].close()


@pytest.fixture
def link(pair: Pair) -> Iterator[Link]:
    link = Link(pair, timeout_s=LIMIT_S)
    yield link
    link.proxy.stop()


@pytest.mark.parametrize("direction", ["to_target", "to_client"])
def test_a_connection_cut_at_any_place_leaves_reads_unharmed_and_changes_in_doubt_at_worst(
    link: Link, direction: str
) -> None:
    made: list[tuple[int, int, int]] = []
    region = link.pair.region

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any) -> str:
        made.append(event_id)
        return region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    region.put("old", "value")
    region.set_callback_path(by_callbacks)
    doubtful = 0
    for n in range(0, 420, 6):
        link.hang_up()
        link.proxy.cut_after_bytes(direction, n)
        assert link.route.read("old")[2] == b"value"
        link.hang_up()
        link.proxy.cut_after_bytes(direction, n)
        try:
            assert link.put("key", n, n + 1) in ("created", "updated")
            assert made.count((8, 1, n + 1)) == 1
        except ConnectivityError as error:
            assert error.in_doubt
            assert made.count((8, 1, n + 1)) <= 1
            doubtful += 1
    assert doubtful > 0


def test_calls_over_a_line_that_hangs_end_in_time(link: Link) -> None:
    route = Route(link.pair.near.regions["r"], link.table, link.pair.near.pool, timeout_s=1.0)
    assert link.route.read("k") == (False, 3, None)
    link.proxy.hang()
    for call, in_doubt in ((lambda: route.read("k"), False), (lambda: put_by(route, "k", 1), True)):
        began = time.monotonic()
        with pytest.raises(ConnectivityError, match="did not answer within") as raised:
            call()
        assert 0.9 < time.monotonic() - began < SOON_S
        assert raised.value.in_doubt is in_doubt
    with pytest.raises(BatchError, match="did not answer within") as refused:
        route.put_all([("a", 1), ("b", 2)])
    assert refused.value.in_doubt
    with pytest.raises(ConnectivityError):
        route.count()
    link.proxy.restore()
    assert link.put("k", 2, 2) in ("created", "updated")
    assert link.route.read("k")[0]


def put_by(route: Route, key: Any, value: Any, sequence: int = 1) -> Any:
    return route.change(_core.UPDATE, key, value, None, (8, 2, sequence))


def test_damage_on_the_way_ends_the_connection_and_not_the_call(link: Link) -> None:
    link.put("k", "v")
    for direction in ("to_target", "to_client"):
        link.proxy.corrupt_next(direction)
        assert link.route.read("k")[0]
    assert link.proxy.statistics()["accepted"] == 3


def test_a_member_that_left_ends_the_calls_that_wait_for_it(link: Link) -> None:
    link.put("k", "before")
    link.proxy.hang()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            link.route.read("k")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: any(aimed and aimed[0].on_their_way for aimed in link.route.targets))
    link.pair.near.pool.keep_only(())
    other = Member("other")
    other.knows(link.pair.near.me)
    try:
        other.host("r").put("k", "after")
        link.table.set_primaries({number: KnownPrimary(*other.as_primary, 2) for number in range(BUCKETS)})
        thread.join(LIMIT_S)
        assert not thread.is_alive() and not failures
        assert link.route.read("k")[2] == b"after"
    finally:
        link.pair.near.pool.close()
        other.close()


def test_ctrl_c_ends_a_call_that_waits(link: Link) -> None:
    link.put("k", "v")
    line = next(aimed[0] for aimed in link.route.targets if aimed)
    link.proxy.hang()
    for call in (
        lambda: link.route.read("k"),
        lambda: link.route.count(),
        lambda: link.route.put_all([("a", 1)]),
        lambda: link.route.put_all((f"large{n}", bytes(1 << 20)) for n in range(120)),
    ):
        before = line.on_their_way  # The slots of calls that were interrupted wait for their answers.

        def interrupt(before: int = before) -> None:
            eventually(lambda: line.on_their_way > before, what="a call on its way")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            call()
        assert time.monotonic() - began < SOON_S
        thread.join(LIMIT_S)
    link.proxy.restore()
    assert link.route.read("k")[2] == b"v"
    eventually(lambda: link.route.read("k") and line.on_their_way == 0)


def test_a_member_that_has_left_is_not_called_again_and_its_connection_is_closed(pair: Pair) -> None:
    assert pair.put("k", 1) == "created"
    pool, place = pair.near.pool, pair.far.as_primary[1:]
    line = pool.line(pair.far.me, place, 0, time.monotonic() + LIMIT_S)
    pool.keep_only([pair.near.me])
    assert line.is_broken and pool.connections == 0
    with pytest.raises(ConnectivityError, match="member far has left the site"):
        pool.line(pair.far.me, place, 0, time.monotonic() + LIMIT_S)
    pool.prepare({pair.far.me: place})
    assert pool.connections == 0


def test_a_member_that_calls_connects_to_a_later_primary_before_it_calls_that(pair: Pair) -> None:
    third = Member("third")
    third.knows(pair.near.me)
    third.host("r").put("k", "of the third")
    try:
        place = {third.me: third.as_primary[1:]}
        pair.near.pool.prepare(place)  # It has called nobody, so it opens none.
        assert pair.get("k") is None
        pair.near.pool.prepare(place)
        eventually(lambda: third.calls.connections == 1 and pair.near.pool.connections == 2)
        pair.say_primary(third, 2)
        assert pair.get("k") == "of the third"
        assert third.calls.connections == 1 and pair.near.pool.connections == 2
    finally:
        third.close()


def test_a_pool_that_is_closed_leaves_nothing_and_refuses_calls(pair: Pair) -> None:
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        member = Member("third")
        pair.far.knows(member.me)
        member.host("r")
        member.tables["r"].set_primaries({number: KnownPrimary(*pair.far.as_primary, 1) for number in range(BUCKETS)})
        assert member.routes["r"].read("k")[0] is False
        member.pool.close()
        assert member.pool.connections == 0
        late = Route(member.regions["r"], member.tables["r"], member.pool, timeout_s=0.2)
        with pytest.raises(ConnectivityError, match=r"third#.* ends; nothing was changed"):
            late.read("k")
        member.close()
    eventually(lambda: pair.far.calls.connections == 0 and len(os.listdir("/proc/self/fd")) <= files)


def test_a_forked_child_is_refused(pair: Pair) -> None:
    pair.put("k", "v")
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pair.route.read("k")
        except BaseException as error:
            os.write(to_parent, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(from_child) as said:
        assert "IllegalStateError" in (words := said.read()) and "forked" in words
    os.waitpid(child, 0)
    assert pair.get("k") == "v"


# Members that do not keep to it


class Impostor:
    """Takes the place of a member: it accepts connections, and answers each call with `answer(call)`: bytes, or None to
    say nothing.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None]) -> None:
        self.me, self._answer = Incarnation("impostor", 66), answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def as_primary(self) -> tuple[Incarnation, str, int]:
        return self.me, "127.0.0.1", self.port

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, EOFError):
            stream = sock.makefile("rb")
            head = stream.read(between_members.HEAD_BYTES)
            stream.read(between_members.length_of_body(between_members.CALLS, head))
            sock.sendall(between_members.encode_answer(between_members.CALLS))
            while len(head := stream.read(calls.CALL.size)) == calls.CALL.size:
                names = ("kind", "flags", "form", "condition", "length", "crc", "id", "region", "reserved", "bucket")
                fields = dict(zip(names, calls.CALL.unpack(head)[1:], strict=False))
                fields["epoch"] = calls.CALL.unpack(head)[12]
                stream.read(fields["length"] + -fields["length"] % 8)
                if fields["kind"] != calls.REGION and (data := self._answer(fields)) is not None:
                    sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


def answer_to(call: dict[str, Any], status: int = 0, payload: bytes = b"", **more: int) -> bytes:
    fields = [
        calls.MAGIC, calls.ANSWER, status, more.get("outcome", 0), more.get("form", 3),
        more.get("length", len(payload)), 0, more.get("id", call["id"]), more.get("flags", 0), more.get("number", 0),
        more.get("done", 0),
    ]  # fmt: skip
    fields[6] = _core.crc32c(calls.ANSWER_HEAD.pack(*fields) + payload)
    return calls.ANSWER_HEAD.pack(*fields) + calls.padded(payload)


@pytest.fixture
def impostor(pair: Pair) -> Iterator[Callable[[Callable[[dict[str, Any]], bytes | None]], Impostor]]:
    made = []

    def make(answer: Callable[[dict[str, Any]], bytes | None]) -> Impostor:
        made.append(Impostor(answer))
        pair.near.tables["r"].set_primaries(
            {number: KnownPrimary(*made[-1].as_primary, 2) for number in range(BUCKETS)}
        )
        return made[-1]

    yield make
    pair.near.pool.close()
    for each in made:
        each.close()


def test_a_primary_that_moves_away_gets_no_change_lost_or_made_twice(pair: Pair, impostor: Any) -> None:
    impostor(lambda call: answer_to(call, 1, number=3))
    made: dict[Any, int] = collections.Counter()
    region = pair.region

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any) -> str:
        made[event_id] += 1
        return region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    region.set_callback_path(by_callbacks)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(10):
                assert pair.route.change(_core.UPDATE, f"{thread}/{n}", n, None, (8, thread, n + 1)) == "created"
            pair.route.put_all((f"{thread}/row{n}", n) for n in range(50))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: pair.near.pool.connections == 1)
    for bucket in range(BUCKETS):
        pair.near.tables["r"].set_primaries({bucket: KnownPrimary(*pair.far.as_primary, 3)})
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert len(region) == 8 * 60 and set(made.values()) == {1}


def test_a_change_that_its_primary_lost_track_of_goes_to_the_next_one_as_a_repeat(pair: Pair, impostor: Any) -> None:
    seen = []

    def answer(call: dict[str, Any]) -> bytes:
        seen.append((call["kind"], call["flags"] & 1))
        return answer_to(call, 3, bytes(16)) if len(seen) == 1 else answer_to(call, 0, outcome=1)

    impostor(answer)
    assert pair.put("k", 1) == "updated"
    assert seen == [(calls.CHANGE, 0), (calls.CHANGE, 1)]


def test_an_answer_that_nobody_can_read_ends_the_connection_and_the_call_in_time(pair: Pair, impostor: Any) -> None:
    wrong = [
        lambda call: answer_to(call, id=call["id"] + 1024),
        lambda call: answer_to(call, status=9),
        lambda call: answer_to(call, length=65 << 20),
        lambda call: b"GET / HTTP/1.1\r\n" * 10,
        lambda call: answer_to(call, id=0, status=2, payload=b"[ProtocolError] I do not like it"),
        lambda call: answer_to(call) * 2,
    ]
    at = [0]
    impostor(lambda call: wrong[at[0]](call))
    route = Route(pair.near.regions["r"], pair.near.tables["r"], pair.near.pool, timeout_s=0.3)
    for number in range(len(wrong)):
        at[0] = number
        try:
            route.read("k")
        except ConnectivityError as error:
            assert not error.in_doubt
        else:
            assert number == len(wrong) - 1  # The first one of two answers was right.
    at[0] = 4

    def is_told() -> bool:
        """The error has the words of the last attempt, which may have been cut off by the end of the time."""
        with pytest.raises(ConnectivityError) as failed:
            route.read("k")
        return "I do not like it" in str(failed.value)

    eventually(is_told)


def test_answers_drawn_at_random_harm_nobody(pair: Pair, impostor: Any) -> None:
    seed = random.randrange(1 << 32)
    source = random.Random(seed)

    def answer(call: dict[str, Any]) -> bytes:
        data = answer_to(
            call, source.choice((0, 0, 0, 1, 2, 3)), source.randbytes(source.choice((0, 8, 40))),
            outcome=source.choice((0, 1, 255)), form=source.choice((0, 1, 2, 3, 9, 255)), flags=source.randrange(256),
            number=source.getrandbits(64), done=source.choice((0, 1, 1 << 40)),
        )  # fmt: skip
        if source.random() < 0.1:
            at = source.randrange(len(data))
            data = data[:at] + source.randbytes(1) + data[at + 1 :]
        return data

    impostor(answer)
    route = Route(pair.near.regions["r"], pair.near.tables["r"], pair.near.pool, timeout_s=0.1)
    asked = (
        lambda: route.read("k"),
        lambda: put_by(route, "k", "v"),
        lambda: route.count(),
        lambda: next(route.scan_keys(), None),
        lambda: next(route.items(), None),
        lambda: route.put_all([("a", 1), ("b", 2)]),
        lambda: route.clear(),
    )
    for _ in range(60):
        with contextlib.suppress(PywanError):
            source.choice(asked)()
    assert pair.near.regions["r"].name == "r", seed


# Callbacks that call


def test_callbacks_of_two_members_that_call_each_other_end_at_the_limit_and_do_not_wait_in_a_circle(pair: Pair) -> None:
    far, near = pair.region, pair.near.regions["r"]
    pair.far.tables["r"].set_primaries({number: KnownPrimary(*pair.near.as_primary, 1) for number in range(BUCKETS)})
    words: list[str] = []
    depths: list[int] = []

    def goes_on(member: Member, region: _core.RegionCore) -> Callable[..., str]:
        def by_callbacks(
            operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any, call: Any
        ) -> str:
            depths.append(_core.call_depth())
            try:
                member.routes["r"].change(operation, key, value, argument, event_id)
            except PywanError as error:
                words.append(str(error))
            return region.change(operation, key, value, argument, (), None, (1, b"", event_id))

        return by_callbacks

    far.set_callback_path(goes_on(pair.far, far))
    near.set_callback_path(goes_on(pair.near, near))
    began = time.monotonic()
    assert pair.put("k", "v") == "updated"  # The innermost change was the first.
    assert time.monotonic() - began < SOON_S
    assert depths == [1, 2, 3, 4, 5]
    assert len(words) == 1 and "in a circle" in words[0]
    assert _core.call_depth() == 0


# A real process


@pytest.fixture
def process(pair: Pair) -> Iterator[ChildProcess]:
    script = TESTS / "support" / "calls_member.py"
    near = [*pair.near.me, pair.near.port.port]
    with ChildProcess("away", [sys.executable, script, "away", "99", "one", BUCKETS, *near]) as process:
        primary = KnownPrimary(Incarnation("away", 99), "127.0.0.1", process.finish(), 5)
        pair.near.tables["r"].set_primaries(dict.fromkeys(range(BUCKETS), primary))
        yield process
        process.kill()


def test_calls_to_a_process_work_and_end_when_it_is_killed(pair: Pair, process: ChildProcess) -> None:
    route = Route(pair.near.regions["r"], pair.near.tables["r"], pair.near.pool, timeout_s=5.0)
    pair.route.put_all((f"key{n}", n) for n in range(3_000))
    assert pair.route.count() == 3_000
    outcomes: list[Any] = []

    def work(thread: int) -> None:
        for n in range(1_000_000):
            try:
                put_by(route, f"{thread}/{n}", n, n + 1)
            except ConnectivityError as error:
                outcomes.append(error.in_doubt)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: pair.route.count() > 3_100)
    process.kill()
    began = time.monotonic()
    for thread in threads:
        thread.join(LIMIT_S)
    assert time.monotonic() - began < SOON_S
    assert len(outcomes) == 8


def test_a_process_that_stands_still_is_waited_for_within_the_limit(pair: Pair, process: ChildProcess) -> None:
    route = Route(pair.near.regions["r"], pair.near.tables["r"], pair.near.pool, timeout_s=0.5)
    put_by(pair.route, "k", 1)
    process.stop()
    try:
        # One thread after the other stops; until then they answer.
        threads = Path(f"/proc/{process.pid}/task")
        eventually(lambda: {file.read_text().rpartition(")")[2].split()[0] for file in threads.glob("*/stat")} == {"T"})
        with pytest.raises(ConnectivityError) as raised:
            put_by(route, "k", 2)
        assert raised.value.in_doubt
    finally:
        process.go_on()
    assert pair.route.read("k")[0]


# Buckets with change logs: a member is primary of some, and what it answers counts.


class Shared:
    """Three members that share region "r" without copies of it. Each bucket has one primary, which the test moves."""

    def __init__(self) -> None:
        self.members = [Member(name) for name in ("one", "two", "three")]
        for member in self.members:
            member.knows(*(each.me for each in self.members))
        self.changelogs = []
        self.epochs = dict.fromkeys(range(BUCKETS), 0)
        for member in self.members:
            region = member.host("r")
            changelog = _core.Changelog(BUCKETS, region.shards)
            changelog.set_lease(2**64 - 1)
            region.share(changelog, member.routes["r"])
            self.changelogs.append(changelog)
        for bucket in range(BUCKETS):
            self.lead(bucket, bucket % 3)

    def lead(self, bucket: int, number: int) -> None:
        """Makes a member primary of a bucket: the others hear of it first, and callers last."""
        self.epochs[bucket] += 1
        epoch = self.epochs[bucket]
        for changelog in self.changelogs:
            changelog.set_role(bucket, _core.REPLICA_IN_SYNC, 1, epoch)
        self.changelogs[number].set_role(bucket, _core.REPLICA_PRIMARY, 1, epoch)
        for member in self.members:
            member.tables["r"].set_primaries({bucket: KnownPrimary(*self.members[number].as_primary, epoch)})

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    shared.close()


def test_members_of_a_shared_region_find_the_primary_of_each_key(shared: Shared) -> None:
    regions = [member.regions["r"] for member in shared.members]
    for n in range(60):
        regions[n % 3].put(f"key{n}", n)
    for region in regions:
        assert [region.get(f"key{n}") for n in range(60)] == list(range(60))
    assert regions[0].change_if("equal", _core.UPDATE, "key1", "new", 1) == (True, True, None)
    assert regions[1].change_if("absent", _core.UPDATE, "key1", "other") == (False, True, "new")
    for n in range(60):
        regions[(n + 1) % 3].destroy(f"key{n}")
    with pytest.raises(KeyError):
        regions[2].destroy("key1")
    routes = [member.routes["r"] for member in shared.members]
    routes[0].put_all((f"row{n}", n) for n in range(900))
    assert {route.count() for route in routes} == {900}
    assert dict(routes[1].items()) == {f"row{n}": n for n in range(900)}
    assert routes[2].clear() == 900
    assert {route.count() for route in routes} == {0}


def test_an_answer_waits_until_the_change_is_replicated_and_the_next_primary_makes_what_was_lost(
    shared: Shared,
) -> None:
    key = next(f"key{n}" for n in range(100) if shared.members[0].regions["r"].bucket_of(f"key{n}") == 1)
    near, repl_link = shared.members[0].regions["r"], _core.ReplLinkState()
    shared.changelogs[1].add_repl_link(5, repl_link)
    shared.changelogs[1].set_replicas(1, [(5, _core.REPLICA_WAITED, 0, 0)])
    thread = threading.Thread(target=near.put, args=(key, "value"))
    thread.start()
    eventually(lambda: shared.changelogs[1].log_end(1) == 1)
    assert thread.is_alive()
    shared.lead(1, 2)  # Nobody has the change but the member that led.
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert shared.members[2].regions["r"].get(key) == "value"
    assert shared.changelogs[2].log_end(1) == 1


def test_a_member_that_the_coordinator_does_not_reach_is_told_of_a_primary_by_the_one_before(shared: Shared) -> None:
    near = shared.members[0]
    key = next(f"key{n}" for n in range(100) if near.regions["r"].bucket_of(f"key{n}") == 1)
    near.regions["r"].put(key, "before")
    for epoch in range(2, 5):  # The bucket moves to the third member, and back, and again. Nobody tells the caller.
        leader, other = (2, 1) if epoch % 2 == 0 else (1, 2)
        shared.changelogs[other].set_role(1, _core.REPLICA_IN_SYNC, 1, epoch)
        shared.changelogs[leader].set_role(1, _core.REPLICA_PRIMARY, 1, epoch)
        primary = KnownPrimary(*shared.members[leader].as_primary, epoch)
        for member in shared.members[1:]:
            member.tables["r"].set_primaries({1: primary})
        near.regions["r"].put(key, f"epoch {epoch}")
        assert shared.members[leader].regions["r"].get(key) == f"epoch {epoch}"
        near.routes["r"].put_all([(key, f"rows {epoch}")])
        assert near.routes["r"].read(key)[2] == b"rows %d" % epoch
    assert near.tables["r"].primary(1).epoch == 1  # The table has only what the coordinator decided.


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(40),
        b"\xc1",
        msgpack.packb(["m", 1, "h", 1]),
        msgpack.packb(["m", 1, "h", 0, 1]),
        msgpack.packb(["m", 2**32, "h", 1, 1]),
        msgpack.packb(["m", 1, "h", 1, -1]),
        msgpack.packb(["m", True, "h", 1, 1]),
        msgpack.packb(["../m", 1, "h", 1, 1]),
        msgpack.packb(["m", 1, "h h", 1, 1]),
        msgpack.packb({"m": 1}),
        msgpack.packb(["m", 1, "h" * 2000, 1, 1]),
    ],
)
def test_a_primary_that_cannot_be_is_not_believed(payload: bytes) -> None:
    assert decode_primary(payload) is None


@pytest.mark.parametrize(
    ("so_far_s", "wait_s"), [(0.0, 0.001), (0.002, 0.001), (0.02, 0.005), (0.08, 0.02), (9.0, 0.02)]
)
def test_a_call_looks_for_a_primary_that_is_about_to_begin_soon_at_first_and_then_less_often(so_far_s, wait_s):
    table = BucketTable("r", 1)
    table.set_primaries({0: KnownPrimary(Incarnation("b", 2), "127.0.0.1", 2, 7)})
    not_yet = ("not primary", 7, "it is not primary yet, or not any more", b"")
    assert Aim(table, 0, not_yet, so_far_s).wait_s == wait_s
    of_the_epoch_before = ("not primary", 6, "it is not primary yet, or not any more", b"")
    assert Aim(table, 0, of_the_epoch_before, so_far_s).wait_s == 0  # The table has a later primary already.


def test_buckets_that_move_under_many_callers_lose_no_call(shared: Shared) -> None:
    counted: dict[int, int] = collections.Counter()
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(thread: int) -> None:
        region = shared.members[thread % 3].regions["r"]
        try:
            while not stop.is_set():
                region.put(f"{thread}/{counted[thread] % 20}", counted[thread])
                counted[thread] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    source = random.Random(7)
    for _ in range(40):
        before = sum(counted.values())
        shared.lead(source.randrange(BUCKETS), source.randrange(3))
        eventually(lambda before=before: failures or sum(counted.values()) > before + 5)
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert all(
        not aimed or not aimed[0].on_their_way for member in shared.members for aimed in member.routes["r"].targets
    )
