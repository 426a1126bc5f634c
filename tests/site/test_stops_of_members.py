"""A member that stops in order takes nothing with it: others take over first what only it has."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import pytest

import pywan
from pywan.errors import PywanError
from pywan.site.locator import Locator
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually

BUCKETS = 23
PARTITION = {"type": "PARTITION", "total_num_buckets": BUCKETS}


class Members:
    """The members of a site, in this process."""

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self.caches: dict[str, pywan.Cache] = {}

    def start(self, name: str, region: dict | None = None, **more) -> pywan.Region:
        """Starts a member that has the region "data"."""
        return self.begin(name, **more).create_region("data", **(region or PARTITION))

    def begin(self, name: str, **more) -> pywan.Cache:
        """Starts a member without regions."""
        cache = self.caches[name] = pywan.Cache(name, locators=str(self._locator.address), **more)
        return cache

    def close(self, *names: str) -> None:
        """Closes members, all at once. It returns when all have ended."""
        threads = [threading.Thread(target=self.caches[name].close) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def counts(self, name: str) -> dict[str, int]:
        sharing = self.caches[name]._core.sharing
        assert sharing is not None
        return sharing.describe("data")

    def wait_for_role(self, name: str, id: str) -> None:
        """Returns when the member has a whole replica of a sender's role."""
        sharing = self.caches[name]._core.sharing
        assert sharing is not None
        eventually(lambda: sharing.describe(f"__sender.{id}").get("copies"), what=f"role of {id} at {name}")

    def wait_for_replicas(self, name: str, buckets: int = BUCKETS) -> None:
        counts = {}

        def is_whole() -> bool:
            counts.update(self.counts(name))
            return counts.get("primary", 0) + counts.get("copies", 0) == buckets

        eventually(is_whole, what=f"replicas at {name}")


@pytest.fixture
def members() -> Iterator[Members]:
    with Locator("L", distributed_system_id=1, port=0) as locator:
        members = Members(locator)
        with contextlib.ExitStack() as closing:
            try:
                yield members
            finally:
                for cache in members.caches.values():
                    closing.callback(cache.close)


def test_the_leader_of_a_region_without_redundant_copies_leaves_all_entries_to_the_other_one(members):
    first = members.start("a")
    first.put_all({n: f"value {n}" for n in range(1000)})
    other = members.start("b")
    members.close("a")
    assert dict(other.items()) == {n: f"value {n}" for n in range(1000)}


@pytest.mark.parametrize(
    "region", [{"type": "REPLICATE"}, {**PARTITION, "redundant_copies": 1}], ids=["copied", "divided"]
)
def test_a_member_that_closes_while_the_other_still_learns_waits_for_it(members, region):
    first = members.start("a", region)
    first.put_all({n: n for n in range(10_000)})
    other = members.start("b", region)
    members.close("a")
    assert len(other) == 10_000 and all(other.get(n) == n for n in range(0, 10_000, 97))


@pytest.mark.parametrize("copies", [0, 1])
def test_members_that_are_restarted_one_after_the_other_lose_nothing_acknowledged(members, copies):
    region = {**PARTITION, "redundant_copies": copies, "recovery_delay": 0}
    for name in ("a", "b", "c"):
        members.start(name, region)
    writer = members.start("w", {**region, "type": "PARTITION_PROXY"})
    acknowledged: dict[str, int] = {}
    failed: list[PywanError] = []
    is_over = threading.Event()

    def write() -> None:
        n = 0
        while not is_over.is_set():
            n += 1
            try:
                writer.put(f"k{n % 2000}", n)
                acknowledged[f"k{n % 2000}"] = n
            except PywanError as error:
                failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for name in ("a", "b", "c"):
            before = len(acknowledged)
            eventually(lambda before=before: len(acknowledged) >= min(before + 100, 2000), what="writes")
            members.close(name)
            members.start(name, region)
    finally:
        is_over.set()
        writing.join(LIMIT_S)
    assert not failed
    assert dict(writer.items()) == acknowledged


def test_two_that_close_at_once_leave_everything_to_the_third(members):
    members.start("a").put_all({n: n for n in range(1000)})
    members.start("b")
    other = members.start("c")
    members.close("a", "b")
    assert len(other) == 1000


def test_the_last_two_that_close_at_once_both_end_and_the_last_one_says_what_is_lost(members, caplog):
    members.start("a").put_all({n: n for n in range(1000)})
    members.start("b")
    members.close("a", "b")
    messages = [record.getMessage() for record in caplog.records if record.name == "pywan.cache"]
    (said,) = [each for each in messages if "no other member can store" in each]  # Beside words of progress.
    assert "region data: 1,000 entries in" in said and "no other member can store" in said


def test_a_member_that_others_do_not_need_ends_at_once(members):
    members.start("a", {"type": "REPLICATE"})
    members.start("b", {"type": "REPLICATE_PROXY"})
    began = time.monotonic()
    members.close("b")
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
def test_a_member_ends_at_once_after_another_one_has_started_its_sender_anew(members, parallel):
    """The other member learns the role of the sender again, and takes it."""
    region = {**PARTITION, "redundant_copies": 1, "recovery_delay": 0, "gateway_sender_ids": ["ny"]}
    sender = {"remote_distributed_system_id": 2, "parallel": parallel}
    for name in ("a", "b"):
        cache = members.begin(name, handover_time=2 * LIMIT_S)
        cache.create_gateway_sender("ny", **sender)
        cache.create_region("data", **region)
    members.wait_for_role("b", "ny")
    cache.gateway_sender("ny").stop()
    cache.gateway_sender("ny").start()
    began = time.monotonic()
    members.close("a")
    assert time.monotonic() - began < SOON_S


def test_a_member_without_time_to_hand_over_says_what_is_lost(members, caplog, monkeypatch):
    monkeypatch.setattr("pywan.coordination.recovery.LEARNERS_AT_ONCE", 0)  # Nobody learns.
    members.start("a", handover_time=0).put_all({n: n for n in range(1000)})
    members.start("b")
    members.close("a")
    said = [record.getMessage() for record in caplog.records if record.name == "pywan.cache"]
    assert any("region data: 1,000 entries in 23 buckets" in line and "(handover-time)" in line for line in said)


def test_a_member_that_waits_says_for_what_and_a_second_close_ends_the_waiting(members, caplog, monkeypatch):
    monkeypatch.setattr("pywan.site.agent.PROGRESS_S", 0.05)
    monkeypatch.setattr("pywan.coordination.recovery.LEARNERS_AT_ONCE", 0)  # Nobody learns.
    caplog.set_level(logging.INFO, "pywan.cache")
    members.start("a").put_all({n: n for n in range(1000)})
    members.start("b")
    closing = threading.Thread(target=members.caches["a"].close)
    closing.start()
    eventually(lambda: "23 buckets of region data are still to be handed over" in caplog.text)
    assert closing.is_alive()
    members.caches["a"].close()
    closing.join(LIMIT_S)
    assert not closing.is_alive() and "it does not wait until others have taken over" in caplog.text


def test_primaries_are_spread_when_a_member_has_come(members):
    region = {**PARTITION, "redundant_copies": 1}
    first = members.start("a", region)
    first.put_all({n: n for n in range(1000)})
    members.start("b", region)
    members.wait_for_replicas("b")
    eventually(lambda: sorted(members.counts(name)["primary"] for name in "ab") == [BUCKETS // 2, BUCKETS // 2 + 1])
    assert len(first) == 1000


@pytest.mark.parametrize("handover_time", ["soon", -2, True, None])
def test_a_handover_time_that_is_none_is_refused_by_name(members, handover_time):
    with pytest.raises(pywan.ConfigurationError, match="handover_time"):
        members.start("a", handover_time=handover_time)
