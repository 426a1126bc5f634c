"""What a member looks at when it hears news of the cluster metadata. The coordinator and the replicas are played."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pywan import _core
from pywan.calls.pool import CallPool
from pywan.config.attributes import RegionAttributes
from pywan.coordination.agent_session import SiteTables
from pywan.coordination.messages import Tables
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Incarnation,
    MemberProfile,
)
from pywan.member.hosting import site_attributes
from pywan.member.sharing import SharedRegions
from pywan.transport.own_openings import OwnOpenings

ME, B, C = (Incarnation(name, number) for number, name in enumerate("abc", 1))
REGIONS = ("r0", "r1", "r2")
BUCKETS = 3


class Replicas:
    """Notes the buckets that the member looks at."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, int]] = []
        self.fails_at = ""  # A look at this region fails.
        self.share = self.start = self.take_view = self.lease_renewed = lambda *_, **__: None

    def take(self, name: str, buckets: Mapping[int, Bucket | None]) -> None:
        if name == self.fails_at:
            self.fails_at = ""
            raise MemoryError("the test takes the memory away")
        self.looks += [(name, number) for number in buckets]

    def take_looks(self) -> list[tuple[str, int]]:
        looks, self.looks = sorted(self.looks), []
        return looks


class Pool(CallPool):
    def prepare(self, addresses: Any) -> None:
        """Nobody listens at the addresses."""


class Sharing(SharedRegions):
    def _make_replicas(self) -> Any:
        return Replicas()

    def _make_calls(self, site_identity: str) -> Any:
        return SimpleNamespace(keep_only=lambda members: None)

    def _make_pool(self, site_identity: str) -> CallPool:
        return Pool(self._me, site_identity, OwnOpenings())


class Region(_core.RegionCore):
    def __init__(self, name: str, clock: Any, *, attributes: Any, **more: Any) -> None:
        self.attributes = attributes


def bucket(*isr: Incarnation, epoch: int = 1) -> Bucket:
    return Bucket(Epoch(1, epoch), timeline=1, version=1, primary=isr[0], isr=isr)


def profile(member: Incarnation, *regions: str, host: str = "h") -> MemberProfile:
    return MemberProfile(member, host, 1, 1, hosting=tuple((each, 1) for each in regions))


class Member:
    """A member with shared regions. B is primary of bucket 1 of each region, and C of bucket 2."""

    def __init__(self) -> None:
        self.tables = SiteTables()
        agent = SimpleNamespace(
            me=ME,
            tables=self.tables,
            site_identity="site",
            member_timeout_us=5_000_000,
            lease_until_us=1 << 60,
            received_us=1 << 50,
            wants_to_leave=False,
            status=lambda: {"problem": "", "joined": True, "coordinator": "l"},
        )
        self.sharing = Sharing(agent, lambda name: None)
        self.replicas: Replicas = self.sharing._replicas
        self.number = 0
        self.profiles = [profile(each, *REGIONS) for each in (ME, B)]
        made = {
            each: RegionAttributes.make(each, type="PARTITION", redundant_copies=1, total_num_buckets=BUCKETS)
            for each in REGIONS
        }
        shared = [(each, site_attributes(attributes)) for each, attributes in made.items()]
        buckets = {
            BucketKey(each, number): bucket(*isr)
            for each in REGIONS
            for number, isr in enumerate(((ME, B), (B, ME), (C, ME)))
        }
        self.told(self.profiles, regions=shared, buckets=buckets)
        self.regions = {}
        for name, attributes in made.items():
            self.regions[name] = Region(name, _core.Clock(), site=1, buckets=BUCKETS, attributes=attributes)
            self.sharing.hosted(self.regions[name])
        self.replicas.take_looks()

    def told(
        self,
        members: list[MemberProfile] | None = None,
        *,
        regions: Any = (),
        buckets: Mapping[BucketKey, Bucket] | None = None,
        is_whole: bool = False,
    ) -> list[tuple[str, int]]:
        """The coordinator sends news. Returns the looks of the member."""
        self.number += 1
        tables = Tables(
            0 if is_whole or self.number == 1 else self.number - 1,
            DecisionId(1, self.number),
            "l",
            "site",
            0,
            None if members is None else tuple(members),
            tuple(regions),
            tuple((buckets or {}).items()),
            (),
            None,
        )
        news = self.tables.take(tables)
        assert news is not None
        return self.looks_of(news)

    def looks_of(self, news: Tables) -> list[tuple[str, int]]:
        self.news = news
        self.sharing.take(news)
        return self.replicas.take_looks()

    def primary(self, region: str, number: int) -> tuple[Incarnation | None, str]:
        known = self.sharing._regions[region].table.primary(number)
        return known.member, known.host


@pytest.fixture
def member() -> Member:
    return Member()


def all_of(*numbers: int) -> list[tuple[str, int]]:
    return [(each, number) for each in REGIONS for number in numbers]


def test_a_member_looks_at_the_buckets_with_new_records_alone(member):
    assert member.told(buckets={BucketKey("r1", 2): bucket(B, ME, epoch=2)}) == [("r1", 2)]
    assert member.primary("r1", 2) == (B, "h")


def test_a_region_that_another_member_has_too_brings_no_look_at_a_bucket(member):
    assert member.told([profile(ME, *REGIONS, "new"), profile(B, *REGIONS)]) == []
    assert member.told([profile(ME, *REGIONS, "new"), profile(B, *REGIONS[:1], "new")]) == []


def test_a_member_that_joins_or_moves_is_known_in_all_regions(member):
    assert member.primary("r0", 2) == (None, "")  # The record has come before the profile.
    assert member.told([*member.profiles, profile(C, host="c")]) == all_of(2)
    assert [member.primary(each, 2) for each in REGIONS] == [(C, "c")] * 3
    assert member.told([*member.profiles, profile(C, host="elsewhere")]) == all_of(2)
    assert [member.primary(each, 2) for each in REGIONS] == [(C, "elsewhere")] * 3
    assert member.told([member.profiles[0], profile(C, host="elsewhere")]) == all_of(0, 1)
    assert [member.primary(each, 1) for each in REGIONS] == [(None, "")] * 3


def test_a_region_created_between_the_news_and_its_effect_knows_its_members(member):
    """The tables have the profile of C already when the region comes, and the member hears of it a moment later."""
    made = member.regions["r0"].attributes
    member.sharing.unhosted = lambda made: None
    del member.sharing._regions["r0"]
    member.number += 1
    news = member.tables.take(
        Tables(
            member.number - 1,
            DecisionId(1, member.number),
            "l",
            "site",
            0,
            (*member.profiles, profile(C, host="c")),
            (),
            (),
            (),
            None,
        )
    )
    member.sharing.hosted(Region("r0", _core.Clock(), site=1, buckets=BUCKETS, attributes=made))
    member.looks_of(news)
    assert member.primary("r0", 2) == (C, "c")


def test_a_look_that_has_failed_is_done_again_as_a_whole(member):
    """The agent hands the same news over again. The regions behind the one that failed have not seen them."""
    member.replicas.fails_at = "r1"
    with pytest.raises(MemoryError):
        member.told([*member.profiles, profile(C, host="c")])
    member.looks_of(member.news)
    assert [member.primary(each, 2) for each in REGIONS] == [(C, "c")] * 3


def test_the_metadata_of_another_coordinator_are_looked_at_as_a_whole(member):
    regions, buckets = list(member.tables.regions.items()), dict(member.tables.buckets)
    assert member.told(member.profiles, regions=regions, buckets=buckets, is_whole=True) == all_of(0, 1, 2)
