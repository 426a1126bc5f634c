"""A site of several members, in processes of their own: they share regions, and a member that dies takes nothing with
it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pywan
from pywan.base.addresses import Address
from pywan.calls.route import call_timeout_s
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.processes import ProcessFailed
from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import eventually
from pywan.transport.control import ControlClient
from site_crash.world import Site

BUCKETS = 7
REGIONS = [
    {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0},
    {"name": "copied", "type": "REPLICATE"},
]
ACCESSORS = [
    {
        "name": "data",
        "type": "PARTITION_PROXY",
        "total_num_buckets": BUCKETS,
        "redundant_copies": 1,
        "recovery_delay": 0,
    },
    {"name": "copied", "type": "REPLICATE_PROXY"},
]


def leads(site: Site, name: str, region: str = "data") -> int:
    return site.members[name].ask("sharing", region).get("primary", 0)


def replicas(site: Site, name: str, region: str = "data") -> int:
    """Returns how many buckets a member has whole replicas of. It leads some of them."""
    counts = site.members[name].ask("sharing", region)
    return sum(counts.get(what, 0) for what in ("primary", "taking_over", "copies"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=REGIONS, member_timeout_ms=2000) as site:
        yield site


@pytest.fixture
def pair(site: Site) -> tuple[MemberProcess, MemberProcess]:
    """Two members: what the first one had alone is copied to the second."""
    one = site.start("one")
    for n in range(20):
        one.do("data", "put", f"early {n}", n)
        one.do("copied", "put", f"early {n}", n)
    two = site.start("two")
    eventually(lambda: replicas(site, "two") == BUCKETS, what="replicas at the second member")
    eventually(lambda: replicas(site, "two", "copied") == 113, what="replicas of the replicated region")
    return one, two


@pytest.mark.whole
@pytest.mark.parametrize("region", ["data", "copied"])
def test_every_member_reads_and_writes_every_key(site, pair, region):
    accessor = site.start("accessor", ACCESSORS)
    members = [*pair, accessor]
    for n, member in enumerate(members):
        assert [member.do(region, "get", f"early {key}") for key in range(20)] == list(range(20))
        member.do(region, "put", f"put by {n}", [n])
        assert member.do(region, "put_if_absent", f"put by {n}", "late") == [n]
        assert member.do(region, "replace", f"put by {n}", [n], "new") is True
        assert member.do(region, "replace", f"put by {n}", [n], "newer") is False
        assert member.do(region, "remove", f"put by {n}", "other") is False
        member.ask("fill", region, 1000 * n, 300, 50)
    for member in members:
        assert [member.do(region, "get", f"put by {n}") for n in range(3)] == ["new"] * 3
        assert member.do(region, "__len__") == 20 + 3 + 900
        assert member.do(region, "__contains__", "k000001007") and not member.do(region, "__contains__", "k000009999")
    for n, member in enumerate(members):
        assert member.do(region, "pop", f"put by {n}") == "new"
        member.do(region, "destroy", f"early {n}")
        with pytest.raises(ProcessFailed, match="KeyError"):
            member.do(region, "destroy", f"early {n}")
    contents = [member.ask("content", region) for member in members]
    assert contents[0] == contents[1] == contents[2] and len(contents[0]) == 17 + 900
    assert accessor.do(region, "clear") == 917
    eventually(lambda: [member.do(region, "__len__") for member in members] == [0, 0, 0])


def test_a_call_outlives_an_unresponsive_primary_however_long_the_member_timeout_is(site, monkeypatch):
    """Calls end earlier than members are given up, but for the site's `member-timeout`."""
    monkeypatch.setattr("pywan.calls.route.CALL_TIMEOUT_S", 0.5)
    one, _ = site.start("one"), site.start("two")
    eventually(lambda: replicas(site, "one") == replicas(site, "two") == BUCKETS, what="replicas at both members")
    eventually(lambda: leads(site, "one") > 0 and leads(site, "two") > 0, what="primaries at both members")
    with pywan.Cache("caller", locators=f"127.0.0.1[{site.port}]") as caller:
        data = caller.create_region(**ACCESSORS[0])
        for n in range(20):
            data[f"k{n}"] = n
        one.stop()
        for n in range(20):
            data[f"k{n}"] = -n  # The first one of a bucket that the silent member leads waits until it is given up.
        assert [data[f"k{n}"] for n in range(20)] == [-n for n in range(20)]
    one.go_on()


@pytest.mark.parametrize(("member_timeout_us", "limit_s"), [(100_000, 10), (5_000_000, 10), (20_000_000, 40)])
def test_a_call_is_tried_for_two_member_timeouts_at_least(member_timeout_us, limit_s):
    assert call_timeout_s(member_timeout_us) == limit_s


@pytest.mark.whole
def test_a_killed_primary_is_replaced_and_nothing_acknowledged_is_lost(site, pair):
    one, two = pair
    for n in range(200):
        two.do("data", "put", f"k{n}", n)
    one.kill()
    two.do("data", "put", "after", 1)  # It waits no longer than the takeover takes, and is never in doubt.
    assert [two.do("data", "get", f"k{n}") for n in range(200)] == list(range(200))
    eventually(lambda: leads(site, "two") == BUCKETS)
    site.start("one")
    eventually(lambda: replicas(site, "one") == BUCKETS, what="replicas at the member that came back")
    two.kill()
    assert site.members["one"].do("data", "get", "after") == 1


@pytest.mark.whole
def test_a_replica_that_comes_over_a_slow_replication_link_while_puts_go_on_has_all_that_was_acknowledged(site):
    one = site.start("one")
    acknowledged: dict[str, int] = {}
    in_doubt: dict[str, int] = {}  # The last one of all: the member was killed meanwhile.

    def put() -> None:
        with contextlib.suppress(ProcessFailed, AssertionError, OSError):
            for n in itertools.count():
                in_doubt.clear()
                in_doubt[f"k{n % 50}"] = n
                one.do("data", "put", f"k{n % 50}", n)
                acknowledged[f"k{n % 50}"] = n

    writer = threading.Thread(target=put)
    writer.start()
    # Calls and replication links to the second member go through the proxy, and take 0.3 s each way.
    with FaultProxy("127.0.0.1[1]", "127.0.1.77") as proxy:
        proxy.target = Address("127.0.0.1", proxy.port)
        proxy.set_latency_ms(300)
        eventually(lambda: len(acknowledged) == 50)
        two = site.start("two", port=proxy.port, hostname_for_clients=proxy.listen_host)
        eventually(lambda: replicas(site, "two") == BUCKETS, what="replicas at the second member")
        one.kill()
        proxy.cut()  # What was on its way is lost too.
        proxy.restore()
        writer.join()
        found = {key: two.do("data", "get", key) for key in acknowledged}
        made = {key: n for key, n in in_doubt.items() if found[key] == n}  # It may have been made.
        assert found == {**acknowledged, **made}


@pytest.mark.whole
def test_a_member_that_ends_hands_over_first(site, pair):
    one, two = pair
    one.end()
    # The new primary answers when the promise that it gave to the one before is over.
    eventually(lambda: leads(site, "two") == BUCKETS, 2, "the member that stays leads")
    assert two.do("data", "get", "early 7") == 7 and two.do("copied", "get", "early 7") == 7


@pytest.mark.whole
def test_a_primary_that_slept_acknowledges_nothing_when_it_wakes_up(site, pair):
    one, two = pair
    one.stop()
    two.do("data", "put", "k", "from two")
    one.go_on()
    assert one.do("data", "get", "k") == "from two"
    one.do("data", "put", "k", "from one")
    assert two.do("data", "get", "k") == "from one"


@pytest.mark.whole
def test_members_go_on_without_a_locator(site, pair):
    one, two = pair
    site.kill_locator()
    for n in range(50):
        two.do("data", "put", f"k{n}", n)
    assert [one.do("data", "get", f"k{n}") for n in range(50)] == list(range(50))
    site.restart_locator()
    site.start("three")
    assert site.members["three"].do("data", "get", "k7") == 7


@pytest.mark.whole
def test_a_region_with_other_attributes_is_refused_by_name(site):
    site.start("one")
    with pytest.raises(ProcessFailed, match="redundant-copies is 2 here and 1 at the other members"):
        site.start("two", [{**REGIONS[0], "redundant_copies": 2}])


@pytest.mark.whole
def test_a_change_is_refused_while_too_few_replicas_are_in_sync(tmp_path):
    careful = [{**REGIONS[0], "min_in_sync_replicas": 2}]

    def is_refused(member: MemberProcess) -> bool:
        try:
            member.do("data", "put", "k", "refused")
        except ProcessFailed as error:
            if "the change was made with 1 of 2 replicas that min-in-sync-replicas asks for" in str(error):
                return False  # It waited when the replica was lost.
            assert "1 in-sync replicas, and min-in-sync-replicas asks for 2; nothing was changed" in str(error)
            return True
        return False

    with Site(tmp_path, regions=careful, member_timeout_ms=2000) as site:
        one = site.start("one")
        assert is_refused(one)
        assert one.do("data", "get", "k") is None
        two = site.start("two")
        eventually(lambda: replicas(site, "two") == BUCKETS, what="replicas at the second member")
        two.do("data", "put", "k", 1)
        with pytest.raises(ProcessFailed, match="min-in-sync-replicas"):
            site.start("accessor", [{**ACCESSORS[0], "min_in_sync_replicas": 1}])
        two.kill()
        eventually(lambda: is_refused(one), what="a refusal")
        before = one.do("data", "get", "k")
        with pytest.raises(ProcessFailed, match=r"3 of 3 rows were refused"):
            one.do("data", "put_all", {f"row {n}": n for n in range(3)})
        assert one.do("data", "get", "k") == before and one.do("data", "__len__") == 1
        three = site.start("three")
        eventually(lambda: replicas(site, "three") == BUCKETS, what="replicas at the third member")
        three.do("data", "put", "k", 3)
        assert one.do("data", "get", "k") == 3


@pytest.mark.whole
def test_members_whose_budgets_are_full_with_changes_of_each_other_go_on_when_a_replica_does(tmp_path: Path) -> None:
    """The second member stops for a while. What waits for it fills the budget of the first one, whose callers wait."""
    regions = [
        {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0}
    ]
    value = "v" * (64 << 10)
    with Site(tmp_path, regions=regions, member_timeout_ms=20_000) as site:
        one, two = (site.start(name, maximum_backlog_memory=1) for name in ("one", "two"))
        eventually(lambda: replicas(site, "one") == replicas(site, "two") == BUCKETS, what="replicas at both members")
        eventually(lambda: 0 < leads(site, "one") < BUCKETS, what="primaries at both members")
        asked = one.ask("status")
        with ControlClient(Address(asked["host"], asked["port"]), 10.0) as client:
            two.stop()
            one.begin("do", "data", "put_all", {f"key {n}": value for n in range(200)})
            eventually(lambda: client.call("status member")["backlog"]["waits"], what="a full budget")
            two.go_on()
        two.do("data", "put_all", {f"other {n}": value for n in range(200)})
        one.finish()

        def at_rest() -> bool:
            used = [member.ask("status")["backlog"] for member in (one, two)]
            return all(each["changes"] + each["calls"] + each["notifications"] <= 3 * 4096 * BUCKETS for each in used)

        eventually(at_rest, what="nothing that waits")
        for member in (one, two):
            assert all(member.do("data", "get", f"{name} {n}") == value for name in ("key", "other") for n in (0, 199))
