"""How old what a member's own replica of a replicated region answers may be, when its links are cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import pywan
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import eventually
from support.shared_site import Call, SharedSite
from support.small_members import locator

FRESH_S = 0.5
SLACK_S = 0.3  # A loaded machine.
HOST = "127.0.1.78"


def test_a_replica_asks_the_primary_when_that_was_silent_for_half_a_second() -> None:
    with SharedSite(reads_replicas=True) as site:
        primary, replica = site.cores
        site.keep_carrying()
        primary.put("k", "old")
        site.stop_carrying()
        assert replica.get("k") == "old"
        site.members[0].changelog.set_replicas(site.bucket_of("k"), [])  # It is taken out, and does not hear of that.
        received_at = time.monotonic()
        primary.put("k", "new")
        while replica.get("k") == "old":
            assert time.monotonic() < received_at + FRESH_S + SLACK_S
            time.sleep(0.001)
        assert replica.get("k") == "new"


def test_a_replica_answers_alone_only_under_an_epoch_under_which_its_primary_has_answered() -> None:
    with SharedSite(3, reads_replicas=True) as site:
        bucket = site.bucket_of("k")
        site.keep_carrying()
        site.cores[0].put("k", 1)
        site.stop_carrying()
        site.lead(bucket, 1)
        site.members[1].calls.stop()  # The new primary cannot be asked.
        site.members[2].route.set_limit(0.2)
        with pytest.raises(pywan.ConnectivityError):
            site.cores[2].get("k")
        site.carry()
        assert site.cores[2].get("k") == 1


def test_a_member_that_is_cut_off_answers_nothing_old_for_longer_than_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do not reach it, and it hears nothing of the coordinator. Its calls still go out."""
    with (
        locator(dir=tmp_path) as site,
        pywan.Cache("one", locators=str(site.address)) as one,
        pywan.Cache("two", locators=str(site.address), hostname_for_clients=HOST) as two,
        FaultProxy(("127.0.0.1", two.status()["port"]), HOST, two.status()["port"]) as to_two,
    ):
        ours, theirs = (cache.create_region("copied", "REPLICATE") for cache in (one, two))
        sharing = two._core.sharing
        assert sharing is not None
        eventually(lambda: sum(sharing.describe("copied").get(what, 0) for what in ("primary", "copies")) == 113)
        key = next(n for n in range(1000) if is_led_by(one, ours, n))
        theirs.put(key, "old")  # This opens its connection for calls, which goes on. The others could not ask it back.
        eventually(lambda: ours.get(key) == theirs.get(key) == "old")
        monkeypatch.setattr(sharing, "take", lambda tables: [])
        monkeypatch.setattr(sharing, "take_lease", lambda *times: None)
        to_two.cut()
        put = Call(ours.put, key, "new")
        done_at, oldest_s = None, 0.0
        while done_at is None or time.monotonic() < done_at + 2:
            if put.is_done and done_at is None:
                put.result()
                done_at = time.monotonic()
            asked_at = time.monotonic()
            if theirs.get(key) == "old" and done_at is not None:
                oldest_s = max(oldest_s, asked_at - done_at)
            time.sleep(0.002)
        assert oldest_s <= FRESH_S + SLACK_S
        to_two.restore()


def is_led_by(cache: pywan.Cache, region: pywan.Region, key: object) -> bool:
    from pywan.region.region import core_of

    sharing = cache._core.sharing
    assert sharing is not None
    return core_of(region).bucket_of(key) in sharing.led("copied")
