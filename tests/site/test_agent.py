"""A member's agent: it joins, keeps its lease, repeats what it asks, and hears every decision in order."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from pywan.base.clocks import boot_us
from pywan.coordination.tables import Kind, RegionAttributes
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport.control import ControlServer, dispatch
from support.small_members import ATTRIBUTES, OtherProcess, SmallMember, locator, small_members

LONG_MS = 60_000  # A lease that ends after the test.


def held_by(member: SmallMember, *others) -> bool:
    """Whether every bucket has a primary, and just these replicas."""
    wanted = {member.agent.me, *others}
    buckets = [bucket for key, bucket in member.buckets.items() if key.number >= 0]
    return bool(buckets) and all(
        bucket.primary in wanted and set(bucket.holders) <= wanted and not bucket.leaving for bucket in buckets
    )


def test_a_member_is_told_of_another_one_and_of_its_buckets():
    with locator() as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host() and b.host()
        a.see_all()
        eventually(lambda: b.buckets == a.buckets)
        assert set(b.agent.tables.members) == {a.agent.me, b.agent.me}
        assert a.agent.tables.regions == {"data": replace(ATTRIBUTES, shared=True)}


def test_changes_come_in_the_order_of_the_decisions():
    with locator() as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host() and b.host()
        for name in ("one", "two", "three"):
            a.host(name)
            a.agent.destroy_region(name)
        eventually(lambda: set(b.agent.tables.regions) == {"data"})
        numbers = [each.newest.number for each in b.changes]
        assert numbers == sorted(set(numbers))


def test_the_lease_counts_from_when_the_question_was_sent_and_is_renewed():
    with locator(member_timeout_ms=1000) as site:
        before = boot_us()
        with small_members(str(site.address), "a") as (a,):
            assert before < a.leases[0] <= boot_us() + 1_000_000
            eventually(lambda: boot_us() > before + 1_500_000)
            assert a.agent.lease_until_us > boot_us() and a.leases == sorted(a.leases)


def test_a_member_at_rest_sends_at_most_a_few_messages_a_second():
    with locator() as site, small_members(str(site.address), "a") as (a,):
        assert a.host()
        leases = len(a.leases)
        end = time.monotonic() + 2
        eventually(lambda: time.monotonic() > end)
        assert len(a.leases) - leases <= 6


def test_a_killed_member_is_seen_at_once_and_its_buckets_are_decided_again():
    with locator(member_timeout_ms=LONG_MS) as site, small_members(str(site.address), "a") as (a,):
        assert a.host()
        other = OtherProcess("b", site.address)
        try:
            a.see_all()
            eventually(lambda: other.me in {replica for each in a.buckets.values() for replica in each.isr})
            other.kill()
            began = time.monotonic()
            eventually(lambda: held_by(a), what="the buckets without the killed member")
            assert time.monotonic() - began < SOON_S  # Its lease is longer.
        finally:
            other.kill()


def test_a_stopped_member_is_given_up_after_its_lease_and_begins_anew_when_it_goes_on():
    with locator(member_timeout_ms=3000) as site, small_members(str(site.address), "a") as (a,):
        assert a.host()
        other = OtherProcess("b", site.address)
        try:
            a.see_all()
            eventually(lambda: other.me in {replica for each in a.buckets.values() for replica in each.isr})
            other.stop()
            began = time.monotonic()
            eventually(lambda: held_by(a), what="the buckets without the stopped member")
            assert time.monotonic() - began > 0.4
            other.go_on()
            eventually(lambda: any(each.name == "b" and each != other.me for each in a.agent.tables.members))
        finally:
            other.kill()


def test_a_killed_member_starts_again_under_its_name_at_once(tmp_path):
    with locator(member_timeout_ms=LONG_MS) as site:
        first = OtherProcess("b", site.address, tmp_path)
        first.kill()
        began = time.monotonic()
        second = OtherProcess("b", site.address, tmp_path)
        second.kill()
        assert time.monotonic() - began < SOON_S and first.me != second.me


def test_a_second_live_member_of_a_name_is_refused_by_name():
    with locator(member_timeout_ms=1000) as site, small_members(str(site.address), "a"):
        second = SmallMember("a", str(site.address))
        try:
            eventually(lambda: "another member of the name a" in second.agent.status()["problem"])
            assert not second.agent.is_joined
        finally:
            second.end()


def test_a_member_that_does_not_fit_is_refused_with_value_and_remedy():
    with locator() as site:
        member = SmallMember("a", str(site.address), site=2)
        try:
            with pytest.raises(IllegalStateError, match="distributed-system-id 2"):
                member.agent.wait_joined(LIMIT_S)
        finally:
            member.end()


def test_a_region_with_other_attributes_is_refused_with_the_difference():
    with locator() as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host()
        with pytest.raises(IllegalStateError, match="total-num-buckets is 8 here and 4 at the other members"):
            b.host(attributes=RegionAttributes(Kind.PARTITION, 8, 1, recovery_delay_ms=0))


def test_a_member_of_another_site_by_its_folder_is_refused(tmp_path):
    with locator() as site, small_members(str(site.address), "a"):
        file = tmp_path / "site.json"
        file.write_text(json.dumps({"coordinator": "M", "site_identity": "other", "seen": [7, 7], "incarnations": [7]}))
        member = SmallMember("b", str(site.address), file=file)
        try:
            with pytest.raises(IllegalStateError, match="belongs to the site other"):
                member.agent.wait_joined(LIMIT_S)
        finally:
            member.end()


def test_a_member_whose_file_is_damaged_says_so(tmp_path):
    (tmp_path / "site.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"site\.json"):
        SmallMember("b", "127.0.0.1[1]", file=tmp_path / "site.json")


def test_without_a_coordinator_the_member_waits_and_says_since_when(tmp_path):
    older = ControlServer("127.0.0.1", 0, dispatch({}, "locator old"), name="old").start()
    member = SmallMember("a", f"127.0.0.1[{older.port}]")
    try:
        assert not member.agent.host("data", ATTRIBUTES, 100, timeout=0.2) and not member.agent.is_joined
        status = member.agent.status()
        assert "without a coordinator" in status["problem"] and status["away_since"] and status["waiting"] == ["host"]
    finally:
        member.end()
        older.stop()


def test_what_was_asked_while_the_coordinator_was_away_is_done_when_it_is_back(tmp_path):
    with locator(dir=tmp_path) as site:
        port = site.port
        member = SmallMember("a", str(site.address))
        assert member.host()
    try:
        eventually(lambda: member.agent.status()["problem"])
        member.agent.destroy_region("data")
        assert "destroy-region" in member.agent.status()["waiting"] and "data" in member.agent.tables.regions
        with locator(port=port, dir=tmp_path):
            eventually(lambda: "data" not in member.agent.tables.regions)
            assert member.agent.me.member_id and not member.given_up
    finally:
        member.end()


def test_a_member_that_leaves_hands_over_first():
    with locator() as site, small_members(str(site.address), "a", "b") as (a, b):
        assert a.host() and b.host()
        a.see_all()
        eventually(lambda: all(len(each.isr) == 2 for each in a.buckets.values() if each))
        assert b.agent.leave(LIMIT_S).is_done
        eventually(lambda: held_by(a))


def test_leaving_ends_in_time_though_nobody_takes_over():
    with (
        locator() as site,
        small_members(str(site.address), "a", is_obliging=False) as (a,),
        small_members(str(site.address), "b") as (b,),
    ):
        assert a.host() and b.host()
        b.see_all()
        began = time.monotonic()
        b.agent.leave(timeout=1.0)
        assert time.monotonic() - began < SOON_S
