"""A member of a site that is above its limit of memory: the primaries of its replicas refuse what needs memory there,
by its name. It stays in sync, and goes on when it has memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pywan.testing.waiting import eventually
from support.memory_member import MemorySite

BUCKETS = 7
MIB = 1 << 20
REGIONS = [
    {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0}
]
LENGTH = 5000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MemorySite]:
    with MemorySite(tmp_path, regions=REGIONS, member_timeout_ms=5000) as site:
        yield site


def memory_of(member) -> dict:
    return member.ask("status")["memory"]


def start_both(site: MemorySite) -> tuple:
    """One member with much memory, and one with a small limit. Both have a replica of each bucket."""
    one, two = site.start("one"), site.start("two", maximum_memory=MemorySize.of(site))
    eventually(
        lambda: all(
            sum(counts.get(what, 0) for what in ("primary", "copies")) == BUCKETS
            for counts in site.counts("data").values()
        ),
        what="a replica of each bucket at both members",
    )
    return one, two


class MemorySize:
    """What a member without entries takes, and 48 MB for entries."""

    _mb = 0

    @classmethod
    def of(cls, site: MemorySite) -> int:
        if not cls._mb:
            used = memory_of(site.members["one"])["used"]
            cls._mb = int((used + 48 * MIB) / MIB / 0.95) + 1
        return cls._mb


def test_a_primary_refuses_for_a_replica_without_memory_which_stays_in_sync(site):
    one, two = start_both(site)
    before = site.counts("data")
    count, words = one.ask("fill", "data", "key", LENGTH, 100_000)
    assert "at its limit" in words
    told = [one.ask("fill", "data", f"key {n}", LENGTH, 100)[1] for n in range(30)]
    assert any("memory of member two, which has a replica," in words for words in told)
    again, words = two.ask("fill", "data", "more", LENGTH, 1000)
    assert again < 50 and "at its limit" in words
    status = memory_of(two)
    assert status["is_above_critical"] and not memory_of(one)["is_above_critical"]
    assert status["used"] <= status["maximum"]
    assert one.do("data", "get", "key 0") == two.do("data", "get", "key 0") == "v" * LENGTH
    one.do("data", "put", "key 1", "w" * LENGTH)
    assert two.do("data", "get", "key 1") == "w" * LENGTH
    assert site.counts("data") == before
    one.ask("destroy", "data", "key", 0, count // 2)

    def goes() -> bool:
        return one.ask("fill", "data", "again", LENGTH, count // 8)[0] == count // 8

    eventually(goes, what="memory at the replica")
    assert two.do("data", "get", "again 0") == "v" * LENGTH
    assert site.counts("data") == before


def test_a_new_replica_waits_until_its_member_has_memory(site):
    one = site.start("one")
    size = MemorySize.of(site)
    assert one.ask("fill", "data", "key", LENGTH, 20_000) == [20_000, ""]
    two = site.start("two", maximum_memory=size)
    eventually(lambda: memory_of(two)["is_above_critical"], what="a learner without memory")
    # Some buckets were whole before. The others have learners, and these make nobody wait.
    assert BUCKETS - site.counts("data")["two"].get("copies", 0) > 0
    assert one.ask("put_each", "data", "more", LENGTH, 500) < 500
    assert memory_of(two)["used"] <= memory_of(two)["maximum"] * 1.01
    one.do("data", "clear")
    eventually(
        lambda: site.counts("data")["two"].get("copies", 0) + site.counts("data")["two"].get("primary", 0) == BUCKETS,
        what="replicas of all buckets",
    )
    one.do("data", "put", "last", 1)
    assert two.do("data", "get", "last") == 1


@pytest.mark.long
def test_a_put_loop_of_new_keys_stays_within_its_limit_beside_a_member_that_reads(tmp_path):
    regions = [{"name": "data", "type": "REPLICATE"}]
    seconds, limit = 60, 512
    with MemorySite(tmp_path, regions=regions, member_timeout_ms=5000) as site:
        one = site.start("one", maximum_memory=limit)
        reader = site.start("reader", [{"name": "data", "type": "REPLICATE_PROXY"}])
        one.begin("fill_for", "data", "key", 1000, seconds)
        reader.begin("read_for", "data", "key", seconds)
        did, read = one.finish(seconds * 3), reader.finish(seconds * 3)
        assert did["refused"] > 0 and did["puts"] > did["entries"] > 100_000
        assert limit * MIB * 0.9 <= did["most"] <= limit * MIB * 1.01
        assert read["found"] > 100 and read["longest"] < 3
        one.do("data", "clear")
        eventually(lambda: not memory_of(one)["is_above_critical"], what="memory after a clear")
        assert one.ask("fill", "data", "again", 1000, 1000) == [1000, ""]
