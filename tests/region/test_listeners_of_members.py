"""Listeners in a site of several members: each member that has a replica of a replicated region is told of every
change, in the order of each key; of a partitioned region the member that leads a key's bucket is told, and by interest
policy each one that has a replica. A listener that stands still holds up nobody for long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import eventually
from site_crash.world import Site

REGIONS = [
    {"name": "copied", "type": "REPLICATE"},
    {"name": "echo", "type": "REPLICATE"},
    *(
        {"name": name, "type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1, "recovery_delay": 0}
        for name in ("data", "other")
    ),
]
EVERY = {**REGIONS[2], "name": "every", "interest_policy": "all"}
LED = {**EVERY, "interest_policy": "cache-content"}
REPLICAS = {"copied": 113, "echo": 113, "data": 7, "other": 7}  # A replicated region has 113 buckets.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=REGIONS, member_timeout_ms=2000) as site:
        yield site


def in_sync(site: Site, name: str, *regions: str) -> None:
    def whole(at: str) -> int:
        counts = site.counts(at)[name]
        return sum(counts.get(what, 0) for what in ("primary", "taking_over", "copies"))

    for at in regions or REPLICAS:
        eventually(lambda at=at: whole(at) == REPLICAS.get(at, 7), what=f"replicas of {at} at {name}")


@pytest.fixture
def pair(site: Site) -> tuple[MemberProcess, MemberProcess]:
    """Two members that both listen. The first one listened while it was alone."""
    one = site.start("one")
    one.ask("listen", "copied")
    one.do("copied", "put", "early", 0)
    two = site.start("two")
    in_sync(site, "two")
    two.ask("listen", "copied")
    return one, two


def received(member: MemberProcess, region: str = "copied") -> list[list]:
    return member.ask("notified", region)


def receives(member: MemberProcess, count: int, region: str = "copied") -> list[list]:
    eventually(lambda: len(received(member, region)) >= count, what=f"{count} changes at {member.name}")
    told = received(member, region)
    assert len(told) == count, told
    return told


def by_key(told: list[list]) -> dict[str, list]:
    found: dict[str, list] = {}
    for each in told:
        found.setdefault(each[1], []).append([each[0], *each[2:]])
    return found


@pytest.mark.whole
def test_every_member_with_a_replica_is_told_of_every_change_once_with_the_value_before(site, pair):
    one, two = pair
    for n in range(30):
        member = pair[n % 2]
        member.do("copied", "put", f"k{n % 10}", n)
    two.do("copied", "destroy", "k1")
    one.do("copied", "put_if_absent", "k1", "new")
    one.do("copied", "replace", "k2", "absent", "never")
    two.do("copied", "put", "k3", 3, {"why": "argued"})
    two.ask("fill", "copied", 0, 50, 20)
    expected = by_key(receives(two, 30 + 3 + 50))
    assert expected["k0"] == [
        ["create", None, 0, None, False],
        ["update", 0, 10, None, False],
        ["update", 10, 20, None, False],
    ]
    assert expected["k1"][3:] == [["destroy", 21, None, None, False], ["create", None, "new", None, False]]
    assert expected["k3"][3] == ["update", 23, 3, {"why": "argued"}, False]
    first = by_key(receives(one, 1 + 30 + 3 + 50))
    assert first.pop("early") == [["create", None, 0, None, False]]
    assert first == expected


@pytest.mark.whole
def test_a_primary_that_dies_leaves_each_change_told_once_and_in_order(site, pair):
    one, two = pair
    three = site.start("three")
    in_sync(site, "three", "copied")
    three.ask("listen", "copied")
    for n in range(20):
        three.do("copied", "put", "k", n)
    one.kill()
    for n in range(20, 40):
        two.do("copied", "put", "k", n)
    for member in (two, three):
        told = receives(member, 40)
        assert [each[3] for each in told] == list(range(40))
        assert [each[2] for each in told] == [None, *range(39)]


@pytest.mark.whole
def test_a_listener_that_waits_stops_no_writer_and_no_replica(site, pair):
    one, two = pair
    two.ask("hold", True)
    for n in range(200):
        one.do("copied", "put", f"k{n}", n)
    assert two.do("copied", "get", "k199") == 199
    assert received(two) == []
    two.ask("hold", False)
    receives(two, 200)


@pytest.mark.whole
def test_listeners_that_write_to_a_shared_region_end_on_both_members(site, pair):
    for member in pair:
        member.ask("listen", "data", "echo")
        member.ask("listen", "echo")
    for n in range(40):
        pair[n % 2].do("data", "put", f"k{n}", n)
    for member in pair:
        told = receives(member, 40, "echo")
        assert {each[1]: each[3] for each in told} == {f"k{n} heard": n for n in range(40)}
    keys = Counter(each[1] for member in pair for each in received(member, "data"))
    assert keys == {f"k{n}": 1 for n in range(40)}  # Of a partitioned region the primary alone is told.


@pytest.mark.whole
def test_a_listener_that_is_added_later_receives_changes_from_then_on(site):
    one, two = site.start("one"), site.start("two")
    in_sync(site, "two")
    one.do("copied", "put", "k", 1)
    for member in (one, two):
        member.ask("listen", "copied")
    two.do("copied", "put", "k", 2)
    for member in (one, two):
        assert receives(member, 1) == [["update", "k", 1, 2, None, False]]


@pytest.mark.whole
def test_a_member_ends_though_a_listener_is_far_behind(site, pair):
    one, two = pair
    two.ask("hold", True)
    for n in range(50):
        one.do("copied", "put", f"k{n}", n)
    two.end()
    assert "were told of" in (site.folder / "two.log").read_text()


@pytest.mark.whole
def test_a_member_that_takes_over_tells_what_the_primary_had_yet_to_tell_and_marks_it(site, pair):
    one, two = pair
    eventually(lambda: site.counts("data")["one"]["primary"] > 0 < site.counts("data")["two"]["primary"])
    in_sync(site, "one", "data")
    for member in pair:
        member.ask("listen", "data")
    two.do("data", "put", "before", 0)
    eventually(lambda: one.ask("count_notified", "data") + two.ask("count_notified", "data") == 1)
    one.ask("hold", True)
    for n in range(100):
        two.do("data", "put", f"k{n}", n)
    own = {each[1] for each in received(two, "data")}
    eventually(lambda: two.ask("count_notified", "data") >= 20, what="changes of the buckets that member two leads")
    assert received(one, "data") in ([], [["create", "before", None, 0, None, False]])
    one.kill()
    eventually(lambda: {each[1] for each in received(two, "data")} >= {f"k{n}" for n in range(100)})
    told = [each[1] for each in received(two, "data")]
    assert len(told) == len({*told}), "the new primary tells each change once"
    repeats = {*two.ask("repeats", "data")}
    assert repeats and not repeats & own


@pytest.mark.whole
@pytest.mark.parametrize(("policy", "each_told"), [("cache-content", 1), ("all", 2)])
def test_listeners_that_write_into_each_others_region_wait_for_nobody(site, policy, each_told):
    regions = [{**attributes, "interest_policy": policy} for attributes in REGIONS[2:]]
    pair = [site.start(name, regions) for name in ("one", "two")]
    for region, other in (("data", "other"), ("other", "data")):
        eventually(lambda at=region: site.counts(at)["one"]["primary"] > 0 < site.counts(at)["two"]["primary"])
        in_sync(site, "one", region)
        in_sync(site, "two", region)
        for member in pair:
            member.ask("listen", region, other)
    threads, each = 32, 20
    with ThreadPoolExecutor(2) as members:
        storms = [members.submit(member.ask, "storm", ["data", "other"], threads, each) for member in pair]
        assert [storm.result(60) for storm in storms] == [[], []]
    keys = {f"{name} {thread} {n}" for name in ("one", "two") for thread in range(threads) for n in range(each)}
    expected = dict.fromkeys(keys, each_told) | dict.fromkeys((f"{key} heard" for key in keys), each_told * each_told)

    def told() -> Counter[str]:
        return Counter(key for at in ("data", "other") for member in pair for key in member.ask("notified_keys", at))

    eventually(lambda: told().total() >= sum(expected.values()), what="every change told")
    assert told() == expected


@pytest.mark.whole
def test_a_listener_that_stands_still_holds_up_its_site_for_the_member_timeout_and_goes_on_with_what_is_kept(
    site, pair
):
    one, two = pair
    two.ask("hold", True)
    blocks, rows = 90, 10  # Of 100,000 bytes each: 90 MB.
    for n in range(blocks):
        one.ask("fill_patiently", "copied", n * rows, rows, 100_000)
    eventually(lambda: two.ask("waiting", "copied")["dropped"] > 0, what="changes that are dropped")
    one.do("copied", "put", "newest", 1)
    assert two.do("copied", "get", "newest") == 1
    eventually(lambda: "newest" in one.ask("notified_keys", "copied"), what="the other member's listener")
    assert two.ask("count_notified", "copied") == 0
    shown = two.ask("waiting", "copied")
    assert 0 < shown["bytes"] <= 65 << 20 and shown["standing_us"] > 2_000_000
    two.ask("hold", False)
    eventually(lambda: two.ask("waiting", "copied")["bytes"] == 0, what="all that is kept told")
    made = one.ask("count_notified", "copied") - 1  # The first one was before member two came.
    assert two.ask("count_notified", "copied") == made - two.ask("waiting", "copied")["dropped"] >= blocks * rows // 2
    assert "newest" in two.ask("notified_keys", "copied")

    def log() -> str:
        return (site.folder / "two.log").read_text()

    eventually(lambda: "region copied: the listener" in log(), what="a line of the log")
    lines = re.findall(r"region copied: the listener .*Ear.* stood still .* for (\d)\.\d s: (\d+) changes", log())
    assert sum(int(dropped) for _, dropped in lines) == two.ask("waiting", "copied")["dropped"]
    assert all(int(seconds) >= 2 for seconds, _ in lines)
    assert len(lines) < 20


@pytest.mark.whole
def test_a_region_becomes_shared_though_its_listener_stands_still_in_the_thread_of_a_change(site):
    one = site.start("one")
    one.ask("listen", "copied")
    one.ask("hold", True)
    one.ask("begin_put", "copied", "k", 0)  # The listener stands still in this thread, under the callback lock.
    eventually(lambda: one.do("copied", "get", "k") == 0)
    two = site.start("two")
    in_sync(site, "two", "copied")
    for n in range(1, 21):
        (one, two)[n % 2].do("copied", "put", "k", n)
    assert received(one) == []
    one.ask("hold", False)
    assert [each[3] for each in receives(one, 21)] == list(range(21))


# Interest policy


def pair_of(site: Site, first: dict, second: dict) -> tuple[MemberProcess, MemberProcess]:
    """Two members with region "every", each of which leads some of its buckets, and their listeners."""
    one, two = site.start("one", [first]), site.start("two", [second])
    eventually(lambda: site.counts("every")["one"]["primary"] > 0 < site.counts("every")["two"]["primary"])
    in_sync(site, "one", "every")
    in_sync(site, "two", "every")
    for member in (one, two):
        member.ask("listen", "every")
    return one, two


def log_of(site: Site, name: str) -> str:
    return (site.folder / f"{name}.log").read_text()


@pytest.mark.whole
def test_with_interest_policy_all_each_member_with_a_replica_is_told_of_every_change_once(site):
    one, two = pair_of(site, EVERY, EVERY)
    for n in range(60):
        (one, two)[n % 2].do("every", "put", f"k{n % 20}", n)
    two.do("every", "destroy", "k1")
    told = by_key(receives(one, 61, "every"))
    assert told == by_key(receives(two, 61, "every"))
    assert [each[2] for each in told["k0"]] == [0, 20, 40]
    assert told["k1"][-1][:2] == ["destroy", 41]
    assert one.ask("repeats", "every") == two.ask("repeats", "every") == []
    assert one.ask("described", "every")["listeners_unheard_buckets"] == 0


@pytest.mark.whole
def test_with_interest_policy_all_a_takeover_leaves_each_change_told_once(site):
    one, two = pair_of(site, EVERY, EVERY)
    one.ask("hold", True)
    for n in range(100):
        two.do("every", "put", f"k{n}", n)
    receives(two, 100, "every")
    one.kill()
    two.do("every", "put", "k0", "after")
    assert [each[3] for each in receives(two, 101, "every") if each[1] == "k0"] == [0, "after"]
    assert two.ask("repeats", "every") == []


@pytest.mark.whole
def test_policies_may_differ_and_what_a_member_with_all_had_yet_to_tell_is_told_by_the_one_that_takes_over(site):
    one, two = pair_of(site, EVERY, LED)
    for n in range(100):
        two.do("every", "put", f"k{n}", n)
    receives(one, 100, "every")
    led = {*two.ask("notified_keys", "every")}
    assert 0 < len(led) < 100
    one.ask("hold", True)
    for n in range(100):
        two.do("every", "put", f"k{n}", "again")
    eventually(lambda: two.ask("count_notified", "every") == 2 * len(led))
    one.kill()
    eventually(lambda: two.ask("count_notified", "every") >= 100 + len(led), what="what member one had yet to tell")
    assert {*two.ask("notified_keys", "every")} == {f"k{n}" for n in range(100)}
    assert two.ask("count_notified", "every") == 100 + len(led)
    assert {*two.ask("repeats", "every")} == {f"k{n}" for n in range(100)} - led


@pytest.mark.whole
def test_a_member_that_would_miss_buckets_is_refused_and_one_that_begins_to_says_so(site):
    pair_of(site, EVERY, EVERY)
    with pytest.raises(AssertionError) as refused:
        site.start("three", [EVERY])
    for word in ("region 'every'", "interest_policy 'all'", "3 members", "redundant_copies 2", "REPLICATE"):
        assert word in str(refused.value)
    three = site.start("third", [LED])
    said = "region every: its interest policy is all, and its listeners here are not told of"
    for name in ("one", "two"):
        eventually(lambda name=name: said in log_of(site, name), what=f"a line in the log of {name}")

    def unnotified() -> list[int]:
        return [site.members[at].ask("described", "every")["listeners_unheard_buckets"] for at in ("one", "two")]

    def replicas_at_others() -> int:
        return sum(site.counts("every")["third"].get(what, 0) for what in ("primary", "copies"))

    eventually(
        lambda: sum(unnotified()) == replicas_at_others() > 0, what="buckets of which one of both has no replica"
    )
    three.end()
    eventually(lambda: unnotified() == [0, 0], what="replicas of all buckets")
    for name in ("one", "two"):
        assert log_of(site, name).count(said) == 1


@pytest.mark.whole
def test_a_member_with_interest_policy_all_that_comes_late_or_ends_says_nothing_of_missing_buckets(site):
    one = site.start("one", [EVERY])
    one.ask("fill", "every", 0, 1000, 1000)
    two = site.start("two", [EVERY])
    in_sync(site, "two", "every")
    two.end()
    eventually(lambda: site.counts("every")["one"]["primary"] == 7)
    site.start("two", [EVERY])
    in_sync(site, "two", "every")
    for name in ("one", "two"):
        assert "are not told of" not in log_of(site, name)
