"""A member with many regions: what a further region costs, in work and in bytes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pywan
from pywan.coordination import encoding, plain
from pywan.coordination.messages import Tables
from pywan.coordination.tables import Kind, RegionAttributes
from pywan.testing.waiting import LIMIT_S, eventually
from support.coordinator_site import A, B, Site
from support.small_members import locator

ROOMS = [
    str(Path(pywan.__file__).parent / room) for room in ("member", "replication", "calls", "coordination", "config")
]
BUCKETS = 4
# A renewal of the lease takes some lines for each shared region. Renewals come by the time, a few in a second.
BY_TIME = ("take_lease", "set_lease", "_set_limits", "lease_renewed", "_search_in_turn")


class Work:
    """Counts the lines of the coordination and the replicas that the threads of this process run."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> Work:
        self._before = sys.gettrace()
        threading.settrace(self._entered)  # Threads of a member start later, and keep the function.
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        threading.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        is_counted = code.co_filename.startswith(tuple(ROOMS)) and code.co_name not in BY_TIME
        return self._ran if is_counted else None

    def _ran(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self.lines += event == "line"
        return self._ran


@pytest.fixture
def work() -> Iterator[Work]:
    with Work() as counted:
        yield counted


def create(number: int, *members: pywan.Cache) -> None:
    """All members have the region, with all its replicas, when the function returns."""
    regions = [
        each.create_region(f"r{number}", "PARTITION", total_num_buckets=BUCKETS, redundant_copies=len(members) - 1)
        for each in members
    ]
    for region in regions:
        region.put("key", number)
    if len(members) > 1:
        eventually(lambda: all(_is_whole(each, number) for each in members), LIMIT_S)


def _is_whole(member: pywan.Cache, number: int) -> bool:
    counts = member._core.sharing.describe(f"r{number}")
    return counts["primary"] == counts["copies"] == BUCKETS // 2


@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_sixtieth_region_costs_a_member_what_the_tenth_one_costs(work, names, tmp_path):
    with locator() as site:
        members = [pywan.Cache(each, locators=str(site.address), dir=tmp_path / each) for each in names]
        try:
            lines = []
            for number in range(60):
                before = work.lines
                create(number, *members)
                lines.append(work.lines - before)
        finally:
            for each in members:
                each.close()
    first, last = sum(lines[5:15]), sum(lines[50:60])
    assert last < 2 * first, lines


def test_the_news_of_a_region_name_no_bucket_of_another_one():
    site = Site(A, B)
    attributes = RegionAttributes(Kind.PARTITION, 113, 1)
    told = []
    for number in range(120):
        site.told = {}
        site.host(f"r{number:03}", attributes, A, B)
        news = [each for each in site.told[A] if isinstance(each, Tables)]
        named = {key.region for each in news for key, _ in each.buckets} | {n for each in news for n, _ in each.regions}
        assert named == {f"r{number:03}"}
        told.append(sum(len(plain.pack(encoding.plain_tables(each))) for each in news))
    # Profiles name all regions of a member: compressed, a few bytes for each of them.
    assert max(told[-10:]) - min(told[:10]) < 110 * 8 * len(news), told
