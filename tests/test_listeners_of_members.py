"""Listeners in a site of several members: each member that has a copy of a replicated region is told of every change,
in the order of each key; of a partitioned region the primary of a key is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import eventually
from site_crash.world import Site

REGIONS = [
    {"name": "copied", "type": "REPLICATE"},
    {"name": "echo", "type": "REPLICATE"},
    {"name": "data", "type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1, "recovery_delay": 0},
]
COPIES = {"copied": 113, "echo": 113, "data": 7}  # A replicated region has 113 buckets.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=REGIONS, member_timeout_ms=2000) as site:
        yield site


def in_sync(site: Site, name: str, *regions: str) -> None:
    def whole(at: str) -> int:
        counts = site.counts(at)[name]
        return sum(counts.get(what, 0) for what in ("primary", "taking_over", "copies"))

    for at in regions or COPIES:
        eventually(lambda at=at: whole(at) == COPIES[at], what=f"copies of {at} at {name}")


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


def heard(member: MemberProcess, region: str = "copied") -> list[list]:
    return member.ask("heard", region)


def hears(member: MemberProcess, count: int, region: str = "copied") -> list[list]:
    eventually(lambda: len(heard(member, region)) >= count, what=f"{count} changes at {member.name}")
    told = heard(member, region)
    assert len(told) == count, told
    return told


def by_key(told: list[list]) -> dict[str, list]:
    found: dict[str, list] = {}
    for each in told:
        found.setdefault(each[1], []).append([each[0], *each[2:]])
    return found


@pytest.mark.whole
def test_every_member_with_a_copy_is_told_of_every_change_once_with_the_value_before(site, pair):
    one, two = pair
    for n in range(30):
        member = pair[n % 2]
        member.do("copied", "put", f"k{n % 10}", n)
    two.do("copied", "destroy", "k1")
    one.do("copied", "put_if_absent", "k1", "new")
    one.do("copied", "replace", "k2", "absent", "never")
    two.do("copied", "put", "k3", 3, {"why": "argued"})
    two.ask("fill", "copied", 0, 50, 20)
    expected = by_key(hears(two, 30 + 3 + 50))
    assert expected["k0"] == [
        ["create", None, 0, None, False],
        ["update", 0, 10, None, False],
        ["update", 10, 20, None, False],
    ]
    assert expected["k1"][3:] == [["destroy", 21, None, None, False], ["create", None, "new", None, False]]
    assert expected["k3"][3] == ["update", 23, 3, {"why": "argued"}, False]
    first = by_key(hears(one, 1 + 30 + 3 + 50))
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
        told = hears(member, 40)
        assert [each[3] for each in told] == list(range(40))
        assert [each[2] for each in told] == [None, *range(39)]


@pytest.mark.whole
def test_a_listener_that_waits_stops_no_writer_and_no_copy(site, pair):
    one, two = pair
    two.ask("hold", True)
    for n in range(200):
        one.do("copied", "put", f"k{n}", n)
    assert two.do("copied", "get", "k199") == 199
    assert heard(two) == []
    two.ask("hold", False)
    hears(two, 200)


@pytest.mark.whole
def test_listeners_that_write_to_a_shared_region_end_on_both_members(site, pair):
    for member in pair:
        member.ask("listen", "data", "echo")
        member.ask("listen", "echo")
    for n in range(40):
        pair[n % 2].do("data", "put", f"k{n}", n)
    for member in pair:
        told = hears(member, 40, "echo")
        assert {each[1]: each[3] for each in told} == {f"k{n} heard": n for n in range(40)}
    keys = Counter(each[1] for member in pair for each in heard(member, "data"))
    assert keys == {f"k{n}": 1 for n in range(40)}  # Of a partitioned region the primary alone is told.


@pytest.mark.whole
def test_a_listener_that_is_added_later_hears_from_then_on(site):
    one, two = site.start("one"), site.start("two")
    in_sync(site, "two")
    one.do("copied", "put", "k", 1)
    for member in (one, two):
        member.ask("listen", "copied")
    two.do("copied", "put", "k", 2)
    for member in (one, two):
        assert hears(member, 1) == [["update", "k", 1, 2, None, False]]


@pytest.mark.whole
def test_a_member_ends_though_a_listener_is_far_behind(site, pair):
    one, two = pair
    two.ask("hold", True)
    for n in range(50):
        one.do("copied", "put", f"k{n}", n)
    two.end()
    assert "were told of" in (site.folder / "two.log").read_text()
