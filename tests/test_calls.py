"""Calls between members: operations on keys whose primary is another member of the site."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable, Place
from pywan.coordination.tables import Incarnation
from pywan.errors import BatchError, ConnectivityError, IllegalStateError, QueueFullError, RegionNotFoundError
from pywan.testing.waiting import eventually
from pywan.transport.control import ControlServer

BUCKETS = 13


class Member:
    """What a member has of the calls: its regions, its port, its connections."""

    def __init__(self, name: str, *, timeout_s: float = 5.0, site: str = "one") -> None:
        self.me = Incarnation(name, abs(hash(name)) % 1000 + 1)
        self.regions: dict[str, _core.RegionCore] = {}
        self.tables: dict[str, BucketTable] = {}
        self.routes: dict[str, Route] = {}
        self.timeout_s = timeout_s
        self.calls = CallServer(self.me, site, self.regions.get)
        self.pool = CallPool(self.me, site)
        self.port = ControlServer(
            "127.0.0.1", 0, lambda request, peer: {}, name=name, other_protocols={b"PWK1": self.calls.serve}
        )
        self.port.start()

    def host(self, name: str, **attributes: Any) -> _core.RegionCore:
        region = _core.RegionCore(name, _core.Clock(), site=1, member=self.me.member_id, buckets=BUCKETS, **attributes)
        self.regions[name] = region
        self.tables[name] = BucketTable(name, BUCKETS)
        self.routes[name] = Route(region, self.tables[name], self.pool, self.me, timeout_s=self.timeout_s)
        return region

    @property
    def place(self) -> tuple[Incarnation, str, int]:
        return self.me, "127.0.0.1", self.port.port

    def close(self) -> None:
        self.pool.close()
        self.calls.stop()
        self.port.stop()


class Pair:
    """Two members with region "r". All buckets are at the first one, and the second one calls."""

    def __init__(self) -> None:
        self.far, self.near = Member("far"), Member("near")
        self.region = self.far.host("r")
        self.near.host("r")
        self.route = self.near.routes["r"]
        self.say_primary(self.far)

    def say_primary(self, member: Member, epoch: int = 1) -> None:
        self.near.tables["r"].set_places({number: Place(*member.place, epoch) for number in range(BUCKETS)})

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
    eventually(lambda: threading.active_count() <= before, 10)


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


def test_a_change_keeps_its_identity_and_callback_argument_at_the_primary(pair: Pair) -> None:
    seen: list[Any] = []

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any) -> str:
        seen.append((key.plain, value.plain, argument.plain, event_id))
        return pair.region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    pair.region.set_callback_route(by_callbacks)
    assert pair.route.change(_core.UPDATE, "k", [1, 2], "why", (77, 3, 12)) == "created"
    assert seen == [("k", [1, 2], "why", (77, 3, 12))]
    assert pair.get("k") == [1, 2]


def test_an_error_of_a_callback_comes_back_in_words(pair: Pair) -> None:
    def by_callbacks(*change: Any, **more: Any) -> str:
        raise QueueFullError("no room here")

    pair.region.set_callback_route(by_callbacks)
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
    pair.near.tables["later"].set_places({number: Place(*pair.far.place, 1) for number in range(BUCKETS)})
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
        thread.join(60)
    assert not failures
    assert len(pair.region) == 320
    assert pair.near.pool.connections == 1 and pair.far.calls.connections == 1
    assert pair.route.targets[0] is None or pair.route.targets[0][0].on_their_way == 0


def test_a_member_is_not_mistaken_for_its_next_life_or_another_site(pair: Pair) -> None:
    me, host, port = pair.far.place
    early = Member("early", timeout_s=0.3)
    stranger = Member("stranger", timeout_s=0.3, site="two")
    try:
        for member, place, words in (
            (early, (Incarnation("far", me.member_id + 1), host, port), "is meant: it has ended"),
            (stranger, (me, host, port), "belongs to the site 'two'"),
        ):
            member.host("r")
            member.tables["r"].set_places({number: Place(*place, 1) for number in range(BUCKETS)})
            with pytest.raises(ConnectivityError, match=words) as raised:
                member.routes["r"].read("k")
            assert not raised.value.in_doubt
    finally:
        early.close()
        stranger.close()


def spread(pair: Pair) -> None:
    """Every second bucket has its primary at the member that calls."""
    for member in (pair.near, pair.far):
        member.tables["r"].set_places(
            {number: Place(*(pair.far, pair.near)[number % 2].place, 2) for number in range(BUCKETS)}
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

    def by_callbacks(operation: int, key: Any, value: Any, argument: Any, *rest: Any, event_id: Any) -> str:
        if value.plain == 13:
            raise QueueFullError("no room for 13")
        seen.append((key.plain, value.plain))
        return pair.region.change(operation, key, value, argument, (), None, (1, b"", event_id))

    pair.region.set_callback_route(by_callbacks)
    pair.route.put_all((f"key{n}", n) for n in range(10))
    assert sorted(seen) == [(f"key{n}", n) for n in range(10)]
    with pytest.raises(BatchError, match="no room for 13"):
        pair.route.put_all([("k", 12), ("k", 13), ("k", 14)])
    assert pair.get("k") == 12
