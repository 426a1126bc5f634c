"""The coordinator's decisions, one promise each. Members are names here; whole sites are in
tests/site/test_site_simulation.py."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pywan.base.nonces import mark_of
from pywan.config.attributes import MAX_BUCKETS
from pywan.coordination import decisions, encoding, plain
from pywan.coordination.actions import Store, Tell
from pywan.coordination.coordinator import BELIEVED_LEASES, Coordinator
from pywan.coordination.grace_period import METADATA_RECOVERIES_MAX
from pywan.coordination.journal import Journal
from pywan.coordination.leavers import LEAVE_REPEATED_US, SITE_ENDS_US
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.moves import HANDOVERS_AT_ONCE
from pywan.coordination.recovery import LEARNERS_AT_ONCE
from pywan.coordination.standbys import Follower
from pywan.coordination.tables import (
    BELIEVED_CONTROLLER_EPOCHS,
    BELIEVED_DECISIONS,
    BUCKETS_MAX,
    CONTROLLER_EPOCH_MAX,
    CONTROLLER_EPOCH_STEP_MAX,
    DECISION_MAX,
    FORGOTTEN_CONTROLLER_EPOCHS,
    MEMBERS_MAX,
    NO_DECISION,
    UNTIMED,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Kind,
    Learner,
    Reach,
    RegionAttributes,
    Standby,
)
from pywan.coordination.unclean_recovery import READ_LEASES_END_US
from pywan.errors import DiskAccessError, IllegalStateError, ProtocolError
from support.coordinator_site import KEY, OVER, TIMEOUT, A, B, C, Site, profile

REGIONS = tuple((name, RegionAttributes(Kind.PARTITION)) for name in ("data", "other"))


def test_members_that_end_together_leave_each_bucket_by_two_decisions_at_most():
    """One names the next primary, one takes out all that left it: whatever the number of the members is."""
    members = [Incarnation(f"m{number:02}", number) for number in range(1, 13)]
    site = Site(*members, kind=Kind.REPLICATE)
    site.pass_time(2 * TIMEOUT, *members)
    first, *others = members
    buckets = site.core.site.buckets
    assert buckets and all(set(bucket.isr) == set(members) for bucket in buckets.values())
    site.deaf.update(others)
    decided = 0
    while site.core.site.members.keys() & set(others) - site.core.liveness.expired:
        before = site.core.site.number
        site.now += TIMEOUT // 10
        site.core.tick(site.now)
        decided = site.core.site.number - before
        site.act()
        site.renew(first)
    assert all(bucket.primary == first and bucket.isr == (first,) for bucket in buckets.values())
    assert decided <= 2 * len(buckets) + len(others)


def test_members_that_have_a_region_at_once_get_all_its_buckets_with_all_replicas_in_sync():
    site = Site(A, B, C)
    assert len(site.core.site.buckets) == site.attributes.total_num_buckets
    bucket = site.bucket()
    assert len(bucket.isr) == 2 and bucket.primary in bucket.isr and not bucket.learners


def test_a_coordinator_that_has_just_started_says_that_it_looks_at_no_regions_yet():
    site = Site(A, B)
    site.deaf.update((A, B))
    site.start(step=2)
    assert not site.core.heeds(A)
    site.core.host(A, "data", replace(site.attributes, senders="s"), 100, site.now)
    assert site.core.site.regions["data"].senders == ""
    site.deaf.clear()
    site.pass_time(OVER, A, B)
    assert site.core.heeds(A)
    site.core.host(A, "data", replace(site.attributes, senders="s"), 100, site.now)
    assert site.core.site.regions["data"].senders == "s"


def test_primaries_and_replicas_are_spread_over_the_members():
    site = Site(A, B, C, redundant_copies=0)
    primaries = [site.bucket(BucketKey("data", number)).primary for number in range(3)]
    assert sorted(primaries) == [A, B, C]


def test_a_replicated_region_has_a_replica_on_every_member_also_on_one_that_comes_later():
    site = Site(A, B, kind=Kind.REPLICATE)
    assert set(site.bucket().isr) == {A, B}
    site.join(C)
    site.core.host(C, "data", site.attributes, 100, site.now)
    site.core.tick(site.now)
    site.act()
    assert site.bucket().learning == (C,)


def test_members_must_create_a_region_alike_and_the_refusal_names_the_difference():
    site = Site(A)
    site.join(B)
    site.core.host(B, "data", RegionAttributes(Kind.PARTITION, 4, redundant_copies=2), 100, site.now)
    site.act()
    refusal = site.last(B)
    assert isinstance(refusal, Refused)
    assert "redundant-copies is 2 here and 1 at the other members" in refusal.reason


def test_two_members_of_one_name_are_refused_until_the_lease_of_the_first_is_over():
    site = Site(A, C, redundant_copies=0)
    site.deaf.update((A, C))
    again = Incarnation("a", 99)
    site.join(again)
    assert isinstance(site.last(again), Refused) and site.last(again).retry_after_us > 0 and site.probes == [A]
    for _ in range(20):
        site.pass_time(OVER // 10)
        site.join(again)
    assert isinstance(site.last(again), Tables)
    assert any(each.primary == A for each in site.core.site.buckets.values()), (
        "nothing proves that the first one is gone: it may hold its buckets still"
    )


def test_a_member_that_has_locked_the_folder_of_an_earlier_incarnation_proves_that_this_one_is_gone():
    site = Site(A, B)
    bucket = site.bucket()
    again = Incarnation(bucket.primary.name, 99)
    site.join(again, before=(5, bucket.primary.member_id, 6))
    assert isinstance(site.last(again), Tables)
    assert site.bucket().isr == (site.bucket().primary,) and bucket.primary not in site.bucket().isr


def test_a_coordinator_that_starts_again_knows_who_was_proved_to_be_gone():
    site = Site(A, B, redundant_copies=0)
    again = Incarnation("a", 99)
    site.now += 1
    site.core.join(profile(again, before=(A.member_id,)), {}, {}, NO_DECISION, site.now)
    stored = site.core.site.take_store()  # It was stopped before it decided what follows from that.
    site.journal.append(replace(stored, members=((again, profile(again, before=(A.member_id,))),), buckets=()))
    site.start(step=2)
    assert A in site.core.site.members and site.bucket(KEY).primary == A
    site.deaf.add(A)
    site.pass_time(2 * OVER, again, B)
    site.pass_time(2 * READ_LEASES_END_US, again, B)
    assert all(each.primary in (B, again) for each in site.core.site.buckets.values())


def test_a_member_is_asked_once_whether_an_earlier_incarnation_whose_lease_is_over_has_ended():
    site = Site(A, B, redundant_copies=0)
    site.deaf.add(A)
    site.pass_time(2 * OVER, B)
    again = Incarnation("a", 99)
    site.join(again)
    assert isinstance(site.last(again), Refused) and site.last(again).earlier.incarnation == A
    site.join(again)
    assert isinstance(site.last(again), Tables)
    assert any(each.primary == A for each in site.core.site.buckets.values()), "it may still be alive"


def test_a_site_has_a_largest_number_of_members():
    site = Site()
    for number in range(MEMBERS_MAX):
        site.join(Incarnation(f"m{number}", number + 1))
    site.join(A)
    assert isinstance(site.last(A), Refused) and f"the site has {MEMBERS_MAX} members" in site.last(A).reason
    site.core.left(Incarnation("m0", 1), site.now)
    site.join(A)
    assert isinstance(site.last(A), Tables)


@pytest.mark.long
def test_a_full_site_starts_again_though_its_buckets_wait_for_all_earlier_incarnations():
    """Nobody can take over, so the earlier ones stay in the view until the last member has come."""
    earlier = [Incarnation(f"m{number}", number + 1) for number in range(MEMBERS_MAX)]
    site = Site(earlier[0])
    for each in earlier[1:]:
        site.join(each)
    core = site.core.site
    for key, bucket in list(core.buckets.items()):
        core.set_bucket(key, replace(bucket, isr=tuple(earlier)))
    site.act()
    later = [Incarnation(each.name, 1000 + each.member_id) for each in earlier]
    for each, before in zip(later, earlier, strict=True):
        site.join(each, before=(before.member_id,))
        assert isinstance(site.last(each), Tables), site.last(each)
    told = plain.pack(encoding.plain_tables(core.tables(0, "locator", 1, ())))
    assert {*later} < {each.incarnation for each in encoding.tables_of(plain.unpack(told)).members or ()}


def test_a_member_that_knows_many_lost_controller_epochs_begins_one_metadata_recovery():
    site = Site(A, B)
    core = site.core.site
    before, entries = core.number, len(core.members) + len(core.regions) + len(core.buckets)
    above = (
        2 * FORGOTTEN_CONTROLLER_EPOCHS * CONTROLLER_EPOCH_STEP_MAX
    )  # Each of these runs is above the generation of the one before.
    holdings = {
        BucketKey("lost", number): Holding(Bucket(Epoch(1 + number * above, 1), primary=C, isr=(C,)), has_all=True)
        for number in range(30)
    }
    regions = {"lost": RegionAttributes(Kind.PARTITION, 30)}
    site.core.join(profile(C, hosting=(("lost", 1),)), regions, holdings, NO_DECISION, site.now)
    assert C in core.members and core.controller_epoch > 29 * above
    assert core.number - before < 2 * entries + 2 * 30


def test_a_member_of_another_site_is_refused_by_name():
    site = Site(A)
    site.join(B, site_identity="another")
    assert "belongs to the site another, and this is site" in site.last(B).reason


def test_a_decision_is_stored_before_anybody_is_told_of_it():
    site = Site()
    for member in (A, B):
        site.join(member)
    for member in (A, B):
        site.core.host(member, "data", site.attributes, 100, site.now)
    actions = site.core.take_actions()
    assert isinstance(actions[0], Store) and any(isinstance(each, Tell) for each in actions[1:])
    assert KEY in dict(actions[0].buckets)


def test_a_primary_that_is_refused_by_its_machine_is_replaced_at_once_where_there_is_another_replica():
    site = Site(A, B)
    bucket = site.bucket()
    other = next(each for each in bucket.isr if each != bucket.primary)
    site.core.suspect(other, bucket.primary, site.now)
    site.act()
    assert site.probes == [bucket.primary]
    site.core.probed(bucket.primary, Reach.REFUSED, site.now)
    site.act()
    after = site.bucket()
    assert after.primary == other and after.epoch > bucket.epoch and after.timeline == bucket.timeline
    assert after.isr == bucket.isr, "a probe proves nothing, so the set stays until its primary asks"
    site.core.unreachable(other, {KEY: after.epoch}, bucket.primary, site.now)
    site.act()
    assert site.bucket().isr == (other,)


def test_a_coordinator_that_receives_from_nobody_is_itself_the_suspect():
    site = Site(A, B)
    before = dict(site.core.site.buckets)
    site.now += 1
    for member in (A, B):
        site.core.suspect(member, member, site.now)
        site.act()
    for member in (A, B):
        site.core.probed(member, Reach.SILENT, site.now)
        site.act()
    site.pass_time(5 * OVER)
    assert site.core.site.buckets == before
    site.renew(A, B)
    site.pass_time(OVER, A, B)
    assert site.core.site.buckets == before


def test_a_coordinator_that_receives_from_members_of_its_own_machine_alone_is_itself_the_suspect():
    site = Site()
    site.core.liveness._machine = "here"
    for member, machine in ((A, "here"), (B, "there"), (C, "there")):
        site.join(member, process=f"{machine}/1/1")
        site.core.host(member, "data", replace(site.attributes, redundant_copies=2), 100, site.now)
        site.act()
    site.pass_time(OVER, A, B, C)
    before = dict(site.core.site.buckets)
    site.pass_time(3 * OVER, A)
    assert site.core.site.buckets == before
    site.pass_time(3 * OVER, A, B)
    assert C not in site.bucket().holders, "B is heard again, so C is the one that is silent"


def test_a_member_that_others_reach_keeps_its_replicas_when_its_lease_is_over():
    site = Site(A, B)
    bucket = site.bucket()
    for _ in range(30):
        site.now += OVER // 10
        site.core.renew(B, site.stored[B], site.now, [A])
        site.core.tick(site.now)
        site.act()
    assert site.bucket().isr == bucket.isr
    site.core.renew(B, site.stored[B], site.now, [])
    site.pass_time(OVER, B)
    assert site.bucket().isr == (B,)


def test_a_coordinator_that_was_stopped_gives_nobody_up_before_it_had_time_to_speak():
    site = Site(A, B)
    before = dict(site.core.site.buckets)
    site.core.next_us()
    site.now += 3 * OVER
    site.core.tick(site.now)
    site.act()
    site.renew(A)
    site.core.tick(site.now)
    site.act()
    assert site.core.site.buckets == before
    site.deaf.add(B)
    site.pass_time(2 * OVER, A)
    assert site.bucket().isr == (A,)


def test_a_coordinator_that_has_something_to_do_at_once_is_not_late():
    site = Site(A, B, redundant_copies=0)
    site.pass_time(TIMEOUT, A, B)
    site.core.left(A, site.now + TIMEOUT // 2)
    lease_us = site.core.status(site.now)["members"][0]["lease_us"]
    assert site.core.next_us() == UNTIMED
    site.core.tick(site.now + TIMEOUT // 2)
    assert site.core.status(site.now)["members"][0]["lease_us"] == lease_us


def test_a_sole_replica_that_is_unreachable_begins_a_new_and_empty_timeline_when_the_unclean_recovery_timeout_is_over():
    site = Site(A, B, redundant_copies=0, unclean_recovery_timeout_ms=3 * TIMEOUT // 1000)
    bucket = site.bucket()
    alive = B if bucket.primary == A else A
    site.deaf.add(bucket.primary)
    site.core.probed(bucket.primary, Reach.REFUSED, site.now)
    site.act()
    assert site.bucket() == bucket
    led = sum(each.primary == bucket.primary for each in site.core.site.buckets.values())
    site.pass_time(3 * TIMEOUT, alive)
    assert site.bucket().timeline == bucket.timeline and site.core.lost_buckets == 0
    site.pass_time(TIMEOUT, alive)
    site.pass_time(2 * READ_LEASES_END_US, alive)
    assert site.core.lost_buckets == led
    after = site.bucket()
    assert after.primary == alive and after.timeline != bucket.timeline and not after.inherits


def test_replicas_that_are_all_unreachable_may_be_alive_together_so_their_bucket_waits():
    site = Site(A, B, C)
    bucket = site.bucket()
    third = next(each for each in (A, B, C) if each not in bucket.isr)
    site.deaf.update(bucket.isr)
    for each in bucket.isr:
        site.core.probed(each, Reach.SILENT, site.now)
        site.act()
    site.pass_time(3 * OVER, third)
    assert site.core.lost_buckets == 0 and site.bucket().timeline == bucket.timeline
    for each in bucket.isr:
        site.core.probed(each, Reach.REFUSED, site.now)
        site.act()
    assert site.core.lost_buckets == 0 and site.bucket().timeline == bucket.timeline, (
        "a refused connection proves no death"
    )
    for each in bucket.isr:
        site.core.left(each, site.now)
        site.act()
    assert site.core.lost_buckets > 0
    site.pass_time(2 * READ_LEASES_END_US, third)
    assert site.bucket().primary == third and site.bucket().timeline > bucket.timeline


def test_an_operator_can_revoke_a_replica_that_never_comes_back():
    site = Site(A, B, C)
    bucket = site.bucket()
    third = next(each for each in (A, B, C) if each not in bucket.isr)
    site.deaf.update(bucket.isr)
    for each in bucket.isr:
        site.core.probed(each, Reach.SILENT, site.now)
        site.act()
    site.pass_time(3 * OVER, third)
    for each in bucket.isr:
        site.core.revoke(each, site.now)
        site.act()
    site.pass_time(2 * READ_LEASES_END_US, third)
    assert site.core.lost_buckets > 0 and site.bucket().primary == third


def test_buckets_whose_members_are_all_gone_begin_anew_when_a_member_comes_back():
    site = Site(A, B)
    bucket = site.bucket()
    site.deaf.update((A, B))
    for each in (A, B):
        site.core.left(each, site.now)
        site.act()
    assert site.bucket().primary is None and site.core.lost_buckets == len(site.core.site.buckets)
    again = Incarnation(A.name, A.member_id + 100)
    site.join(again)
    site.core.host(again, "data", site.attributes, 100, site.now)
    site.act()
    assert site.bucket().primary is None  # A promise of A or B may run still.
    site.deaf.clear()
    site.pass_time(2 * READ_LEASES_END_US, again)
    assert {each.primary for each in site.core.site.buckets.values()} == {again}
    assert site.bucket().timeline > bucket.timeline and not site.bucket().inherits


def test_buckets_of_a_colocated_region_wait_with_those_that_they_follow():
    site = Site(A, B)
    child = replace(site.attributes, colocated_with="data")
    site.deaf.update((A, B))
    for each in (A, B):
        site.core.left(each, site.now)
        site.act()
    for name, attributes in (("data", site.attributes), ("child", child)):
        site.join(C) if name == "data" else None
        site.core.host(C, name, attributes, 100, site.now)
        site.act()
    assert site.bucket().primary is None
    site.pass_time(2 * READ_LEASES_END_US, C)
    assert all(each.primary == C for each in site.core.site.buckets.values())


def test_a_probe_that_could_not_be_made_is_made_again():
    site = Site(A, B)
    site.core.suspect(A, B, site.now)
    site.act()
    site.core.not_probed(B)
    site.core.suspect(A, B, site.now)
    site.act()
    assert site.probes == [B, B]


def test_a_region_of_accessors_alone_gets_its_buckets_when_a_member_comes_that_stores():
    site = Site()
    for member, weight in ((A, 0), (B, 0), (C, 100)):
        assert not site.core.site.buckets
        site.join(member)
        site.core.host(member, "data", site.attributes, weight, site.now)
        site.act()
    assert {each.primary for each in site.core.site.buckets.values()} == {C}


def test_a_removal_counts_when_everybody_who_stays_has_stored_it():
    site = Site(A, B)
    bucket = site.bucket()
    other = next(each for each in bucket.isr if each != bucket.primary)
    site.deaf.add(bucket.primary)
    site.core.unreachable(bucket.primary, {KEY: bucket.epoch}, other, site.now)
    site.act()
    assert site.bucket().isr == (bucket.primary,) and site.bucket().leaving == (other,)
    site.deaf.clear()
    site.stored[bucket.primary] = site.core.site.newest
    site.renew(bucket.primary)
    assert site.bucket().leaving == ()


def test_a_coordinator_that_starts_ends_no_removal_before_the_grace_period_is_over():
    site = Site(A, B)
    first, second = site.bucket().isr
    site.deaf = {first}
    site.core.unreachable(first, {KEY: site.bucket().epoch}, second, site.now)
    site.act()
    leaves = site.bucket()
    site.deaf.clear()
    site.stored[first] = site.core.site.newest
    site.start(step=2)
    site.renew(first)
    assert site.bucket() == leaves and leaves.leaving == (second,), f"{second} may know a later decision"
    site.pass_time(OVER, first)
    assert site.bucket().leaving == () and site.bucket().version == leaves.version + 1


def test_a_region_that_a_member_closes_changes_no_bucket_before_the_grace_period_is_over():
    site = Site(A, B)
    before, (first, second) = site.bucket(), site.bucket().isr
    site.start(step=2)
    site.renew(first)
    site.core.unhost(first, "data", site.now)
    site.act()
    assert site.bucket() == before, f"{second} may know a later decision"
    site.pass_time(OVER, first, second)
    site.core.unhost(first, "data", site.now)
    site.act()
    assert site.bucket().isr == (second,) == (site.bucket().primary,)


def test_a_region_is_not_destroyed_before_the_grace_period_is_over():
    site = Site(A, B)
    before, members = site.bucket(), site.bucket().isr
    site.start(step=2)
    site.renew(members[0])
    site.core.destroy_region(members[0], "data")
    site.act()
    assert site.bucket() == before
    site.pass_time(OVER, *members)
    site.core.destroy_region(members[0], "data")
    site.act()
    assert KEY not in site.core.site.buckets and "data" not in site.core.site.regions


def test_a_replica_whose_removal_does_not_count_yet_may_still_become_primary():
    site = Site(A, B)
    bucket = site.bucket()
    other = next(each for each in bucket.isr if each != bucket.primary)
    site.deaf.add(bucket.primary)
    site.core.unreachable(bucket.primary, {KEY: bucket.epoch}, other, site.now)
    site.act()
    site.core.probed(bucket.primary, Reach.REFUSED, site.now)
    site.act()
    assert site.bucket().primary == other


def test_a_primary_that_reaches_none_of_several_members_is_taken_out_itself():
    site = Site(A, B, C, redundant_copies=2)
    bucket = site.bucket()
    first, second = (each for each in bucket.isr if each != bucket.primary)
    site.deaf.add(bucket.primary)
    for replica in (first, second):
        site.core.unreachable(bucket.primary, {KEY: bucket.epoch}, replica, site.now)
        site.act()
    assert site.bucket().primary in (first, second)
    assert bucket.primary not in site.bucket().isr


def test_a_request_under_an_earlier_epoch_changes_nothing():
    site = Site(A, B)
    bucket = site.bucket()
    other = next(each for each in bucket.isr if each != bucket.primary)
    site.core.unreachable(bucket.primary, {KEY: Epoch(1, 0)}, other, site.now)
    site.core.unreachable(other, {KEY: bucket.epoch}, bucket.primary, site.now)
    site.act()
    assert site.bucket() == bucket


def test_a_report_about_an_earlier_transfer_does_not_put_a_replica_into_the_isr():
    site = Site(A, startup_recovery_delay_ms=0)
    site.join(B)
    site.core.host(B, "data", site.attributes, 100, site.now)
    site.act()
    site.pass_time(TIMEOUT // 10, A, B)
    bucket = site.bucket()
    (learner,) = site.bucket().learners
    site.core.caught_up(A, KEY, bucket.epoch, Learner(B, learner.transfer - 1), site.now)
    assert site.bucket().isr == (A,)
    site.core.caught_up(A, KEY, bucket.epoch, learner, site.now)
    assert site.bucket().isr == (A, B) and site.bucket().learners == ()


def asks_to_host(site: Site, member: Incarnation, region: str = "data", *, weight: int = 100, **changes) -> None:
    site.join(member)
    site.core.host(member, region, replace(site.attributes, **changes), weight, site.now)
    site.act()


def test_the_first_member_of_a_region_has_all_its_buckets_by_one_decision():
    site = Site(A)
    buckets = list(site.core.site.buckets.values())
    assert len(buckets) == 4 and all(each is buckets[0] for each in buckets)
    assert buckets[0].is_only_of(A) and not site.core.site.regions["data"].shared


@pytest.mark.parametrize("kind", Kind)
def test_a_second_member_is_let_in_when_the_first_has_stored_that_others_may_have_the_region(kind):
    site = Site(A, kind=kind)
    site.deaf.add(A)
    asks_to_host(site, B)
    site.pass_time(TIMEOUT // 2, A, B)
    assert site.core.site.regions["data"].shared and site.core.site.hosts("data").keys() == {A}
    assert not any(bucket.learners for bucket in site.core.site.buckets.values())
    site.deaf.clear()
    site.stored[A] = site.core.site.newest
    site.renew(A)
    assert site.core.site.hosts("data").keys() == {A, B}
    site.pass_time(2 * TIMEOUT, A, B)
    assert {bucket.learning for bucket in site.core.site.buckets.values()} == {(B,)}


def test_a_second_member_waits_for_an_unreachable_first_one_until_that_is_gone():
    site = Site(A)
    timeline = site.bucket().timeline
    site.deaf.add(A)
    asks_to_host(site, B)
    site.pass_time(4 * TIMEOUT, B)
    assert site.core.site.hosts("data").keys() == {A} and site.bucket().timeline == timeline, (
        "A may work as if it were alone"
    )
    assert [each["waited_for"] for each in site.core.status(site.now)["members"]] == [4, 0]
    site.core.left(A, site.now)
    site.act()
    site.pass_time(TIMEOUT, B)
    assert site.bucket().primary == B and site.bucket().timeline > timeline


def test_a_member_that_was_unreachable_as_the_only_one_with_a_region_comes_back_as_it_is():
    site = Site(A)
    before = dict(site.core.site.buckets)
    site.pass_time(4 * TIMEOUT)
    site.renew(A)
    assert not isinstance(site.last(A), Refused) and site.core.site.buckets == before


def test_a_sole_replica_that_knows_of_others_is_given_up_when_its_unclean_recovery_timeout_is_over():
    site = Site(A, unclean_recovery_timeout_ms=2 * TIMEOUT // 1000)
    asks_to_host(site, B)
    assert site.core.site.hosts("data").keys() == {A, B}
    site.deaf.add(A)
    site.pass_time(2 * TIMEOUT, B)
    assert site.bucket().primary == A
    site.pass_time(2 * OVER, B)
    assert site.bucket().primary == B


def test_a_region_that_can_be_on_one_member_only_is_never_shared():
    site = Site(A, only_once="it is persistent")
    asks_to_host(site, B)
    assert isinstance(site.last(B), Refused)
    site.pass_time(4 * TIMEOUT, B)  # A is silent: nobody says no, and nobody may have it.
    site.core.host(B, "data", site.attributes, 100, site.now)
    site.act()
    assert site.core.site.hosts("data").keys() == {A} and not site.core.site.regions["data"].shared


def test_who_alone_has_a_region_may_say_newly_whether_others_can_have_it():
    site = Site(A)
    timeline = site.bucket().timeline
    alone = replace(site.attributes, only_once="it is persistent")
    for told, is_refused in ((alone, True), (site.attributes, False)):
        site.core.host(A, "data", told, 100, site.now)
        site.act()
        assert site.core.site.regions["data"].only_once == told.only_once and site.bucket().timeline == timeline
        site.core.host(B, "data", told, 100, site.now) if B in site.core.site.members else asks_to_host(site, B)
        site.act()
        assert isinstance(site.last(B), Refused) == is_refused
    site.core.host(A, "data", alone, 100, site.now)
    site.act()
    assert isinstance(site.last(A), Refused), "the other one knows already that it may have the region"


def test_a_region_that_nobody_has_any_more_begins_as_that_of_one_member():
    site = Site(A)
    asks_to_host(site, B)
    for member in (A, B):
        site.core.left(member, site.now)
        site.act()
    site.pass_time(TIMEOUT, C)
    asks_to_host(site, C)
    site.pass_time(TIMEOUT, C)
    assert site.bucket().is_only_of(C) and not site.core.site.regions["data"].shared


def test_a_request_that_is_repeated_decides_nothing_new():
    site = Site(A)
    number = site.core.site.number
    site.core.host(A, "data", site.attributes, 100, site.now)
    site.act()
    assert site.core.site.number == number


def test_a_region_that_its_member_closes_may_be_created_with_other_attributes():
    site = Site(A)
    site.core.unhost(A, "data", site.now)
    site.act()
    assert all(bucket.isr == () for bucket in site.core.site.buckets.values())
    assert site.core.status(site.now)["buckets_without_primary"] == 0
    other = RegionAttributes(Kind.REPLICATE, 4)
    site.core.host(A, "data", other, 100, site.now)
    site.act()
    assert site.core.site.regions["data"] == other and site.bucket().primary == A


def test_a_region_that_its_only_member_closes_begins_anew_at_one_that_learned_it():
    site = Site(A, startup_recovery_delay_ms=0)
    asks_to_host(site, B)
    site.pass_time(TIMEOUT // 10, A, B)
    assert site.bucket().learners
    site.core.unhost(A, "data", site.now)
    site.act()
    site.pass_time(TIMEOUT, B)
    assert site.bucket().primary == B


def has_and_closes(site: Site, member: Incarnation, *regions: str) -> None:
    for region in regions:
        asks_to_host(site, member, region)
        site.core.unhost(member, region, site.now)
        site.act()


@pytest.mark.parametrize(("limit", "most"), [("REGIONS_MAX", 4), ("BUCKETS_MAX", 4 * 4)])
def test_a_full_site_forgets_the_region_that_nobody_has_had_for_the_longest_time(monkeypatch, limit, most):
    site = Site(A, B)
    monkeypatch.setattr(f"pywan.coordination.regions.{limit}", most)
    has_and_closes(site, B, "r1", "r2", "r3", "r1")
    assert site.core.site.regions.keys() == {"data", "r1", "r2", "r3"}, "they are kept while there is room"
    asks_to_host(site, B, "r4")
    assert site.core.site.regions.keys() == {"data", "r1", "r3", "r4"}
    assert {key.region for key in site.core.site.buckets} == {"data", "r1", "r3", "r4"}
    site.start(step=2)
    site.renew(A, B)
    asks_to_host(site, B, "r5")
    assert "data" in site.core.site.regions and len(site.core.site.regions) == 4


def test_a_full_site_forgets_no_region_that_somebody_has_or_may_have_something_of(monkeypatch):
    site = Site(A, B)
    monkeypatch.setattr("pywan.coordination.regions.REGIONS_MAX", 2)
    asks_to_host(site, A, "r1")
    site.pass_time(2 * TIMEOUT, B)  # A is silent, and may have what is in r1 when it comes back.
    asks_to_host(site, B, "r2")
    assert "at most 2 regions" in site.last(B).reason
    assert site.core.site.regions.keys() == {"data", "r1"}
    site.core.join(profile(C, hosting=(("r2", 1),)), {"r2": site.attributes}, {}, NO_DECISION, site.now)
    site.act()
    assert "at most 2 regions" in site.last(C).reason and C not in site.core.site.members


def test_a_member_that_joins_with_a_region_keeps_it_in_a_full_site(monkeypatch):
    site = Site(A)
    monkeypatch.setattr("pywan.coordination.regions.REGIONS_MAX", 3)
    has_and_closes(site, A, "r1", "r2")
    told = dict.fromkeys(("r1", "r3"), site.attributes)
    site.core.join(profile(C, hosting=(("r1", 1), ("r3", 1))), told, {}, NO_DECISION, site.now)
    site.act()
    assert site.core.site.regions.keys() == {"data", "r1", "r3"}


def test_nothing_is_kept_by_the_names_of_regions_that_are_no_more():
    site = Site(A)
    before = {name: len(each) for name, each in vars(site.core.site).items() if isinstance(each, dict)}
    for number in range(20):
        region = f"r{number}"
        asks_to_host(site, A, region, colocated_with="data")
        site.core.destroy_region(A, region)
        site.act()
    after = {name: len(each) for name, each in vars(site.core.site).items() if isinstance(each, dict)}
    assert {name: count for name, count in after.items() if count > before[name]} == {}


def test_an_accessor_has_nothing_and_is_waited_for_all_the_same():
    site = Site()
    asks_to_host(site, A, weight=0)
    assert site.core.site.buckets == {} and not site.core.site.regions["data"].shared
    site.deaf.add(A)
    asks_to_host(site, B)
    assert site.core.site.hosts("data").keys() == {A}
    site.deaf.clear()
    site.stored[A] = site.core.site.newest
    site.renew(A)
    assert site.core.site.hosts("data").keys() == {A, B} and site.bucket().primary == B


def test_buckets_are_decided_after_the_grace_period_of_a_new_controller_epoch():
    site = Site()
    site.join(B)
    site.join(C)
    site.deaf.add(C)
    site.start(step=2)
    site.core.host(B, "data", site.attributes, 100, site.now)
    site.act()
    assert not site.core.site.buckets, "C may have the region, and was not heard yet"
    assert not site.core.site.hosts("data"), "B waits, and makes no change that C does not know of"
    site.pass_time(2 * TIMEOUT, B)
    site.core.host(B, "data", site.attributes, 100, site.now)
    site.act()
    assert site.bucket().primary == B


@pytest.mark.parametrize("file", ["lost", "older"])
@pytest.mark.parametrize("shared", [False, True])
def test_whether_others_may_have_a_region_outlives_the_coordinators_file(file, shared):
    site = Site(A)
    older = list(site.journal)
    if shared:
        asks_to_host(site, B)
    else:
        site.join(B)
    known, newest = dict(site.core.site.buckets), site.core.site.newest
    regions = dict(site.core.site.regions)
    site.journal = [] if file == "lost" else older
    site.start(step=2)
    holdings = {key: Holding(bucket, True) for key, bucket in known.items()}
    hosting = profile(A, site_identity="site", seen=newest, hosting=(("data", 100),))
    site.core.join(hosting, regions, holdings, newest, site.now)
    site.act()
    site.pass_time(2 * TIMEOUT, A)
    assert site.core.site.regions["data"].shared is shared
    assert site.bucket().is_only_of(A) and site.bucket().inherits == known[KEY].timeline


def test_colocated_regions_have_the_same_replicas_and_primaries():
    site = Site(A, B, C)
    child = replace(site.attributes, colocated_with="data")
    site.host("child", child, A, B, C)
    keys = [BucketKey("child", number) for number in range(4)]

    def are_alike() -> bool:
        pairs = [(site.bucket(key), site.bucket(BucketKey("data", key.number))) for key in keys]
        return all(set(one.isr) == set(other.isr) and one.primary == other.primary for one, other in pairs)

    assert are_alike()
    site.core.left(A, site.now)
    site.act()
    site.pass_time(TIMEOUT, B, C)
    assert are_alike()


def test_a_colocated_bucket_that_begins_beside_one_with_few_replicas_gets_the_others_too():
    site = Site(A)
    beside = replace(site.attributes, colocated_with="data")
    site.join(B)
    site.join(C)
    site.host("data", site.attributes, B)
    site.core.host(C, "more", beside, 100, site.now)
    site.core.host(A, "more", beside, 0, site.now)
    site.act()
    assert site.bucket(BucketKey("more", 0)).isr == (C,)
    site.pass_time(TIMEOUT // 10, A, B, C)
    assert site.bucket().isr == (A,) and site.bucket().learning == (B,)
    site.core.left(C, site.now)
    site.host("more", beside, A, B)  # They come before the buckets can begin anew: there is nothing to learn yet.
    site.pass_time(3 * TIMEOUT, A, B)
    site.learn()
    for number in range(4):
        assert sorted(site.bucket(BucketKey("more", number)).isr) == [A, B]


def test_snapshots_are_made_a_few_at_a_time():
    attributes = RegionAttributes(Kind.PARTITION, 64, 1)
    site = Site()
    site.join(A)
    site.core.host(A, "data", attributes, 100, 0)
    site.act()
    site.join(B)
    site.core.host(B, "data", attributes, 100, 0)
    site.act()
    site.core.tick(site.now)
    site.act()
    learning = [key for key, bucket in site.core.site.buckets.items() if bucket.learning == (B,)]
    assert len(learning) == LEARNERS_AT_ONCE
    site.core.caught_up(A, learning[0], site.bucket(learning[0]).epoch, site.bucket(learning[0]).learners[0], site.now)
    site.act()
    assert sum(bucket.learning == (B,) for bucket in site.core.site.buckets.values()) == LEARNERS_AT_ONCE


def test_a_planned_stop_hands_primaries_over_and_then_lets_the_member_go():
    site = Site(A, B, C)
    bucket = site.bucket()
    leaving = bucket.primary
    other = next(each for each in bucket.isr if each != leaving)
    site.core.leave(leaving, site.now)
    site.act()
    assert site.bucket().primary == other and leaving in site.bucket().isr
    assert not any(isinstance(each, MayLeave) for each in site.told[leaving])
    site.lead()
    assert leaving not in site.bucket().isr
    assert site.last_of(leaving, MayLeave) == MayLeave()


def test_members_that_all_leave_at_once_go_one_after_the_other_and_the_last_one_says_what_is_lost():
    site = Site(A, B)
    for member in (A, B):
        site.leave(member)
    assert site.last_of(B, StillNeeded).waits_for == "a" and site.last_of(B, MayLeave) is None
    site.lead()
    assert site.last_of(A, MayLeave) == MayLeave()
    site.leave(B)
    assert site.last_of(B, MayLeave) == MayLeave((("data", 4),))


def test_the_last_whole_replicas_are_made_elsewhere_before_their_member_may_leave():
    site = Site(A, B, redundant_copies=0)
    alone = {key for key, bucket in site.core.site.buckets.items() if bucket.isr == (A,)}
    assert alone
    site.leave(A)
    assert {key for key, bucket in site.core.site.buckets.items() if bucket.learning == (B,)} == alone
    assert site.last_of(A, StillNeeded).buckets == (("data", len(alone), "b"),)
    site.learn()
    assert all(site.bucket(key).primary == B and A in site.bucket(key).isr for key in alone)
    assert site.last_of(A, MayLeave) is None
    site.lead()
    assert site.last_of(A, MayLeave) == MayLeave()
    assert all(bucket.isr == (B,) and not bucket.leaving for bucket in site.core.site.buckets.values())


def test_a_member_that_waits_to_leave_takes_replicas_but_one_that_stays_takes_them_first():
    site = Site(A, B, C, redundant_copies=0)
    site.leave(A)
    site.leave(B)
    site.core.probed(C, Reach.REFUSED, site.now)
    site.core.left(C, site.now)
    site.act()
    site.learn()
    site.lead()
    assert {bucket.isr for bucket in site.core.site.buckets.values() if bucket.primary} == {(B,)}
    assert site.last_of(A, MayLeave) == MayLeave()


def test_a_target_that_dies_during_its_move_is_replaced_by_another_one():
    site = Site(A, B, C, redundant_copies=0)
    site.leave(A)
    key = next(key for key, bucket in site.core.site.buckets.items() if bucket.learners)
    (first,) = site.bucket(key).learning
    site.core.left(first, site.now)
    site.act()
    site.leave(A)
    (second,) = site.bucket(key).learning
    assert {first, second} == {B, C} and site.bucket(key).isr == (A,)


def test_a_new_primary_that_dies_before_it_is_ready_gives_the_bucket_back():
    site = Site(A, B)
    key = next(key for key, bucket in site.core.site.buckets.items() if bucket.primary == A)
    site.leave(A)
    assert site.bucket(key).primary == B
    site.core.left(B, site.now)
    site.act()
    assert site.bucket(key).primary == A
    site.leave(A)
    assert site.last_of(A, MayLeave) == MayLeave((("data", 4),))


def test_a_coordinator_that_starts_again_goes_on_when_the_member_asks_again():
    site = Site(A, B, redundant_copies=0)
    site.leave(A)
    site.start(step=2)
    site.renew(A, B)
    site.leave(A)
    site.learn()
    site.lead()
    assert site.last_of(A, MayLeave) == MayLeave()


def test_a_member_that_stays_after_all_or_asks_no_more_takes_replicas_again():
    site = Site(A, B, C)
    site.leave(A)
    site.core.stay(A, site.now)
    site.act()
    assert site.core.status(site.now)["members"][0]["state"] == "alive"
    site.leave(B)
    site.pass_time(LEAVE_REPEATED_US, A, B, C)
    assert site.core.status(site.now)["members"][1]["state"] == "alive"


def test_an_accessor_leaves_at_once_though_another_member_is_leaving():
    site = Site(A, B)
    site.join(C)
    site.core.host(C, "data", site.attributes, 0, site.now)
    site.act()
    site.leave(A)
    site.leave(C)
    assert site.last_of(C, MayLeave) == MayLeave() and site.last_of(A, MayLeave) is None


def test_colocated_buckets_move_together():
    site = Site(A, B, C, redundant_copies=0)
    child = replace(site.attributes, colocated_with="data")
    for member in (A, B, C):
        site.core.host(member, "child", child, 100, site.now)
    site.act()
    site.leave(A)
    site.learn()
    site.lead()
    assert site.last_of(A, MayLeave) == MayLeave()
    for number in range(4):
        assert site.bucket(BucketKey("child", number)).isr == site.bucket(BucketKey("data", number)).isr


def test_the_coordinator_keeps_no_counts_of_members_that_are_gone():
    site = Site(A, B)
    came = [Incarnation("b", number) for number in range(100, 110)]
    for before, after in itertools.pairwise((B, *came)):
        site.core.left(before, site.now)
        site.join(after)
        site.core.host(after, "data", site.attributes, 100, site.now)
        for _ in range(3):
            site.pass_time(TIMEOUT, A, after)
            site.learn()
            site.lead()
    decided, load = site.core.site, site.core.site.loads["data"]
    assert all(set(bucket.isr) == {A, came[-1]} for bucket in decided.buckets.values())
    counted = (load.replicas, load.primaries, load.learning, load.named, decided._naming, decided._partners)
    assert {*itertools.chain(*counted, decided._unfinished_of)} == {A, came[-1]}


@pytest.mark.parametrize("colocated", [False, True])
def test_primaries_are_spread_in_steps_when_a_member_has_come_and_learned(colocated):
    site = Site()
    site.attributes = RegionAttributes(Kind.PARTITION, 64, 1)
    regions = {"data": site.attributes} | (
        {"child": replace(site.attributes, colocated_with="data")} if colocated else {}
    )
    for member in (A, B):
        site.join(member)
        for region, attributes in regions.items():
            site.core.host(member, region, attributes, 100, site.now)
        site.act()
    site.core.tick(site.now)
    site.act()
    assert leads(site) == {A: 64}
    steps = []
    while site.learn(1) or site.lead(1):
        moved = leads(site)[B]
        steps += [moved - sum(steps)] if moved != sum(steps) else []
        assert leads(site)[A] == 64 or not any(
            bucket.learners for key, bucket in site.core.site.buckets.items() if key.region == "data"
        )
    assert leads(site) == {A: 32, B: 32} and max(steps) <= HANDOVERS_AT_ONCE
    assert all(len(bucket.isr) == 2 for bucket in site.core.site.buckets.values())
    if colocated:
        for number in range(64):
            assert site.bucket(BucketKey("child", number)).primary == site.bucket(BucketKey("data", number)).primary
    before = dict(site.core.site.buckets)
    site.pass_time(10 * TIMEOUT, A, B)
    assert site.core.site.buckets == before  # Nothing goes back and forth.


def crowded(*regions: str, **attributes) -> Site:
    """Three members. B was not heard for a moment when the replicas were looked at, so its buckets have three
    replicas."""
    site = Site(A, B, C, **attributes)
    for region in regions:
        site.host(region, replace(site.attributes, colocated_with="data"), A, B, C)
    site.start(step=2)
    site.renew(A, B, C)
    site.pass_time(TIMEOUT // 2, A, B, C)
    site.is_down(B)
    site.lead()
    site.pass_time(TIMEOUT, A, C)
    site.learn()
    site.deaf.clear()
    site.renew(B)
    assert any(len(each.isr) == 3 for each in site.core.site.buckets.values())
    return site


def test_a_replica_that_is_too_many_is_taken_out_after_a_while_and_not_the_primary():
    site = crowded()
    before = dict(site.core.site.buckets)
    site.pass_time(TIMEOUT // 2, A, B, C)
    assert site.core.site.buckets == before
    site.pass_time(TIMEOUT, A, B, C)
    for key, bucket in site.core.site.buckets.items():
        assert len(bucket.isr) == 2 and not bucket.leaving
        assert before[key].primary in bucket.isr and set(bucket.isr) <= set(before[key].isr)
    load = Counter(each for bucket in site.core.site.buckets.values() for each in bucket.isr)
    assert max(load.values()) - min(load.values()) <= 1
    decided = site.core.site.number
    site.pass_time(5 * TIMEOUT, A, B, C)
    assert site.core.site.number == decided


def test_the_recovery_delay_counts_before_a_replica_is_too_many():
    site = crowded(recovery_delay_ms=3 * TIMEOUT // 1000)
    before = dict(site.core.site.buckets)
    site.pass_time(2 * TIMEOUT, A, B, C)
    assert site.core.site.buckets == before
    site.pass_time(2 * TIMEOUT, A, B, C)
    assert all(len(each.isr) == 2 for each in site.core.site.buckets.values())


def test_a_replica_is_not_too_many_while_another_one_is_silent():
    site = crowded()
    bucket = next(each for each in site.core.site.buckets.values() if len(each.isr) == 3)
    unreachable = next(each for each in (A, B, C) if each != bucket.primary)
    site.is_down(unreachable)
    site.pass_time(TIMEOUT - 1, *({A, B, C} - {unreachable}))
    assert any(len(each.isr) == 3 for each in site.core.site.buckets.values())
    site.pass_time(TIMEOUT, *({A, B, C} - {unreachable}))  # Its lease is over.
    assert not any(unreachable in each.named for each in site.core.site.buckets.values())
    assert all(len(each.isr) == 2 for each in site.core.site.buckets.values())


def test_no_spare_replica_goes_beside_one_whose_member_was_silent_for_half_its_lease():
    site = crowded()
    bucket = next(each for each in site.core.site.buckets.values() if len(each.isr) == 3)
    site.pass_time(TIMEOUT // 2, A, B, C)
    site.deaf.add(bucket.primary)
    others = {A, B, C} - {bucket.primary}
    site.pass_time(TIMEOUT * 6 // 10, *others)  # Its lease runs.
    assert bucket in site.core.site.buckets.values()
    site.deaf.clear()
    site.pass_time(2 * TIMEOUT, A, B, C)
    assert all(len(each.isr) == 2 for each in site.core.site.buckets.values())


def test_colocated_buckets_keep_the_same_replicas_when_one_is_too_many():
    site = crowded("more")
    site.pass_time(3 * TIMEOUT, A, B, C)
    for number in range(site.attributes.total_num_buckets):
        replicas, beside = (set(site.bucket(BucketKey(name, number)).isr) for name in ("data", "more"))
        assert len(replicas) == 2 and replicas == beside


def test_the_end_of_the_site_lets_all_go_together_and_nobody_takes_over():
    site = Site(A, B)
    before = dict(site.core.site.buckets)
    site.core.end_site(site.now)
    site.leave(A)
    assert site.last_of(A, StillNeeded).waits_for == "b" and site.last_of(A, MayLeave) is None
    site.leave(B)
    assert site.last_of(A, MayLeave) == site.last_of(B, MayLeave) == MayLeave()
    assert site.core.site.buckets == before
    for member in (A, B):
        site.core.left(member, site.now)
        site.act()
        assert all(bucket.primary in (None, before[key].primary) for key, bucket in site.core.site.buckets.items())


def test_the_end_of_the_site_waits_for_a_member_that_does_not_ask_only_so_long():
    site = Site(A, B)
    site.core.end_site(site.now)
    site.leave(A)
    site.pass_time(SITE_ENDS_US // 2, A, B)
    site.leave(A)
    assert site.last_of(A, MayLeave) is None
    site.pass_time(SITE_ENDS_US // 2, A, B)
    assert site.last_of(A, MayLeave) == MayLeave()
    site.core.left(A, site.now)
    site.act()
    assert all(bucket.isr == (B,) for bucket in site.core.site.buckets.values())


def leads(site: Site, region: str = "data") -> Counter[Incarnation]:
    return Counter(bucket.primary for key, bucket in site.core.site.buckets.items() if key.region == region)


def test_a_coordinator_that_comes_back_decides_nothing_before_all_have_reported_or_a_lease_is_over():
    site = Site(A, B)
    bucket = site.bucket()
    site.start(step=2)
    site.core.probed(bucket.primary, Reach.REFUSED, site.now)
    site.act()
    assert site.bucket() == bucket
    other = next(each for each in bucket.isr if each != bucket.primary)
    site.pass_time(2 * OVER, other)
    assert site.bucket().primary == other


def test_a_coordinator_whose_file_is_gone_waits_for_the_reports_of_all_in_sync_replicas():
    site = Site(A, B)
    bucket, old = site.bucket(), site.core.site.newest
    site.journal.clear()
    site.start(step=2)
    knows = {KEY: Holding(bucket, True)}
    regions = {"data": site.attributes}
    first, second = bucket.isr
    hosting = (("data", 100),)
    site.core.join(profile(first, site_identity="site", seen=old, hosting=hosting), regions, knows, old, site.now)
    site.act()
    assert site.core.site.recovery_epoch > old.controller_epoch and site.bucket().epoch == bucket.epoch
    site.core.join(profile(second, site_identity="site", seen=old, hosting=hosting), regions, knows, old, site.now)
    site.act()
    assert site.bucket().epoch == bucket.epoch  # A third member may know of a later set.
    site.pass_time(OVER, first, second)
    after = site.bucket()
    assert after.epoch > bucket.epoch and after.epoch.controller_epoch == site.core.site.recovery_epoch
    assert after.isr == bucket.isr and after.goes_on_with(bucket.timeline)


@pytest.mark.parametrize("file", ["lost", "old"])
def test_a_replica_that_was_being_made_is_made_again_in_a_metadata_recovery(file):
    site = Site(A, B)
    earlier = list(site.journal)
    first, second = site.bucket().isr
    bucket = replace(site.bucket(), primary=first, isr=(first,), learners=(Learner(second, 1),))
    site.core.site.set_bucket(KEY, bucket)
    site.act()
    old = site.core.site.newest
    site.journal[:] = earlier if file == "old" else []
    site.start(step=2)
    for member in (first, second):
        site.core.join(
            profile(member, site_identity="site", seen=old, hosting=(("data", 100),)),
            {"data": site.attributes},
            {KEY: Holding(bucket, member == first)},
            old,
            site.now,
        )
    site.pass_time(2 * OVER, first, second)
    after = site.bucket()
    assert after.epoch.controller_epoch == site.core.site.recovery_epoch > old.controller_epoch and after.isr == (
        first,
    )
    assert after.learning == (second,) and after.learners != bucket.learners


def test_a_replica_that_an_older_file_still_names_as_leaving_does_not_lead_what_it_lacks():
    site = Site(A, B)
    first, second = site.bucket().isr
    site.deaf = {first}
    site.core.unreachable(first, {KEY: site.bucket().epoch}, second, site.now)
    site.act()
    leaves, earlier = site.bucket(), list(site.journal)
    site.deaf.clear()
    site.stored[first] = site.core.site.newest
    site.renew(first)
    left, newest = site.bucket(), site.core.site.newest
    assert leaves.leaving == (second,) and left.leaving == ()
    site.journal[:] = earlier
    site.start(step=2)
    for member, known in ((first, left), (second, leaves)):  # What `second` heard last is that it leaves.
        site.core.join(
            profile(member, site_identity="site", seen=newest, hosting=(("data", 100),)),
            {"data": site.attributes},
            {KEY: Holding(known, True)},
            newest,
            site.now,
        )
    site.pass_time(OVER, first, second)
    assert (
        site.bucket().isr == (first,)
        and site.bucket().epoch.controller_epoch == site.core.site.recovery_epoch > newest.controller_epoch
    )


def test_a_request_to_come_that_is_late_on_its_way_takes_no_region_away():
    site = Site(A, B)
    site.join(A)
    assert site.core.site.hosts("data").keys() == {A, B}
    site.pass_time(OVER, A, B)
    assert site.bucket().isr == (A, B) or site.bucket().isr == (B, A)


@pytest.mark.parametrize("gone", ["a replica", "one that leaves"])
def test_a_primary_that_is_down_by_a_probe_stays_in_the_isr_when_another_member_is_gone(gone):
    site = Site(A, B, C, redundant_copies=2)
    bucket = site.bucket()
    first, second, third = bucket.primary, *(each for each in bucket.isr if each != bucket.primary)
    if gone == "one that leaves":
        site.deaf = {first}
        site.core.unreachable(first, {KEY: bucket.epoch}, third, site.now)
        site.act()
        assert site.bucket().leaving == (third,)
        site.core.left(third, site.now)
    for member in (third, second, first):
        site.core.probed(member, Reach.REFUSED, site.now)
    assert site.bucket().primary == first
    site.core.renew(second, site.stored[second], site.now)
    if gone == "one that leaves":
        site.core.probed(third, Reach.REFUSED, site.now)
    else:
        site.core.left(third, site.now)
    site.act()
    assert site.bucket().primary == second and set(site.bucket().isr) == {first, second}


def test_replicas_that_were_unreachable_together_come_back_with_what_they_have():
    site = Site(A, B)
    bucket = site.bucket()
    site.pass_time(4 * TIMEOUT)
    assert site.bucket() == bucket, "nobody was heard that could have it, and nobody is known to be gone"
    site.renew(B)
    assert not isinstance(site.last(B), Refused)
    site.pass_time(2 * TIMEOUT, B)
    assert site.bucket().primary == B and site.bucket().timeline == bucket.timeline and site.bucket().isr == (B,)


def test_a_member_that_was_unreachable_alone_begins_anew():
    site = Site(A, B)
    site.deaf.add(B)
    site.pass_time(4 * TIMEOUT, A)
    assert site.bucket().isr == (A,)
    site.renew(B)
    assert isinstance(site.last(B), Refused) and site.last(B).join_again


def test_members_in_a_metadata_recovery_are_told_nothing_of_a_bucket_before_it_is_decided():
    site = Site(A, B)
    bucket, old = site.bucket(), site.core.site.newest
    site.journal.clear()
    site.start(step=2)
    first, second = bucket.isr
    knows, regions = {KEY: Holding(bucket, True)}, {"data": site.attributes}
    site.core.join(profile(first, seen=old), regions, knows, old, site.now)
    site.act()
    told = [
        each
        for each in site.told[first]
        if isinstance(each, Tables) and each.newest.controller_epoch > old.controller_epoch
    ]
    assert KEY in told[0].undecided and not any(each.buckets for each in told)
    site.core.join(profile(second, seen=old), regions, knows, old, site.now)
    site.pass_time(OVER, first, second)
    received = [
        each
        for each in site.told[first]
        if isinstance(each, Tables) and each.newest.controller_epoch > old.controller_epoch
    ]
    epochs = [bucket.epoch for each in received for key, bucket in each.buckets if key == KEY]
    assert [epoch.controller_epoch for epoch in epochs] == [site.core.site.recovery_epoch]


def test_a_bucket_that_may_have_lost_its_end_keeps_its_content_under_a_new_timeline():
    site = Site(A, B)
    bucket, old = site.bucket(), site.core.site.newest
    site.journal.clear()
    site.start(step=2)
    first, second = bucket.isr
    knows = {KEY: Holding(bucket, True)}
    site.core.join(profile(first, seen=old), {"data": site.attributes}, knows, old, site.now)
    site.core.revoke(second, site.now)
    site.pass_time(OVER, first)
    assert site.bucket().timeline != bucket.timeline and site.bucket().inherits == bucket.timeline
    assert site.bucket().isr == (first,)


def test_a_replica_that_was_not_told_of_the_newest_timeline_goes_on_in_the_next_one():
    """The file is lost twice, and between the two times one member alone hears of the decision."""
    site = Site(A, B)
    began, old = site.bucket(), site.core.site.newest
    regions, first, second = {"data": site.attributes}, *began.isr
    received = replace(
        began,
        epoch=Epoch(old.controller_epoch, 90),
        timeline=Epoch(old.controller_epoch, 90).word,
        inherits=began.timeline,
    )
    site.journal.clear()
    site.start(step=2)
    site.core.join(profile(first, seen=old), regions, {KEY: Holding(received, True)}, old, site.now)
    site.core.join(profile(second, seen=old), regions, {KEY: Holding(began, True)}, old, site.now)
    site.pass_time(OVER, first, second)
    after = site.bucket()
    assert after.isr == began.isr
    assert after.goes_on_with(began.timeline) and after.goes_on_with(received.timeline)


def test_a_replica_of_a_timeline_that_the_newest_one_does_not_go_on_with_is_left_out():
    site = Site(A, B)
    began, old = site.bucket(), site.core.site.newest
    regions, first, second = {"data": site.attributes}, *began.isr
    anew = replace(
        began, epoch=Epoch(old.controller_epoch, 90), timeline=Epoch(old.controller_epoch, 90).word
    )  # It began empty.
    site.journal.clear()
    site.start(step=2)
    site.core.join(profile(first, seen=old), regions, {KEY: Holding(anew, True)}, old, site.now)
    site.core.join(profile(second, seen=old), regions, {KEY: Holding(began, True)}, old, site.now)
    site.pass_time(OVER, first, second)
    assert site.bucket().isr == (first,) and site.bucket().inherits == anew.timeline


def test_of_a_lost_file_a_replica_that_leaves_goes_on_only_if_nobody_who_stays_has_reported():
    """The removal may have come into effect by a decision that was lost: then the replica lacks what was
    acknowledged."""
    for some in ((B, C), (C,)):
        site = Site(A, B, C, redundant_copies=2)
        bucket, old = site.bucket(), site.core.site.newest
        leaves = replace(bucket, primary=A, isr=(A, B), leaving=(C,), version=bucket.version + 1)
        site.journal.clear()
        site.start(step=2)
        for each in some:
            knows = {KEY: Holding(leaves, True)}
            site.core.join(profile(each, seen=old), {"data": site.attributes}, knows, old, site.now)
        for each in {A, B} - {*some}:
            site.core.revoke(each, site.now)
        site.pass_time(OVER, *some)
        assert site.bucket().isr == some[:1] and site.bucket().inherits == bucket.timeline


def test_a_member_that_is_proved_to_be_gone_loses_its_replicas_when_the_grace_period_of_a_new_epoch_is_over():
    site = Site(A, B)
    bucket = site.bucket()
    gone = bucket.primary
    other = next(each for each in bucket.isr if each != gone)
    site.deaf.add(gone)
    site.start(step=2)
    site.core.left(gone, site.now)
    site.core.tick(site.now)
    site.act()
    assert site.bucket() == bucket, f"{other} may know later decisions, and was not heard yet"
    site.core.renew(other, site.stored[other], site.now)
    site.act()
    assert site.bucket().primary == other and site.bucket().isr == (other,)
    site.pass_time(OVER, other)
    assert gone not in site.core.site.members


def test_a_bucket_that_is_decided_long_after_its_region_was_recovered_gets_its_replicas_too():
    site = Site(A, B)
    bucket, old = site.bucket(), site.core.site.newest
    site.journal.clear()
    site.start(step=2)
    knows, regions = {KEY: Holding(bucket, True)}, {"data": site.attributes}
    site.core.join(profile(A, seen=old, hosting=(("data", 100),)), regions, knows, old, site.now)
    site.core.join(profile(C, hosting=(("data", 100),)), regions, {}, NO_DECISION, site.now)
    site.pass_time(5 * TIMEOUT, A, C)
    assert KEY in site.core.reports.undecided and not site.bucket().learners, "B may know of a later decision"
    site.core.revoke(B, site.now)
    site.pass_time(TIMEOUT // 10, A, C)
    assert site.bucket().isr == (A,) and site.bucket().learning == (C,)


def test_a_metadata_recovery_that_was_interrupted_receives_all_reports_again():
    site = Site(A, B)
    bucket, old = site.bucket(), site.core.site.newest
    site.journal.clear()
    site.start(step=2)
    first, second = bucket.isr
    knows, regions = {KEY: Holding(bucket, True)}, {"data": site.attributes}
    site.core.join(profile(first, seen=old), regions, knows, old, site.now)
    site.act()
    interrupted = site.core.site.recovery_epoch
    site.start(step=3)
    assert interrupted < site.core.site.recovery_epoch == site.core.site.controller_epoch == interrupted + 3
    site.core.join(profile(second, seen=old), regions, knows, old, site.now)
    site.act()
    assert site.bucket().epoch == bucket.epoch
    site.core.join(profile(first, seen=old), regions, knows, old, site.now)
    site.pass_time(OVER, first, second)
    assert (
        site.bucket().epoch.controller_epoch == site.core.site.recovery_epoch > interrupted
        and site.bucket().isr == bucket.isr
    )


def test_two_controller_epochs_that_begin_with_the_same_older_file_give_no_epoch_twice():
    """Nobody tells the second one of what the first one decided: the only member that knows it is cut off."""
    site = Site(A, redundant_copies=0)
    earlier, began = list(site.journal), site.bucket()
    timelines = []
    for step, member in ((5, B), (9, C)):
        site.journal[:] = earlier
        site.start(step=step)
        site.core.left(A, site.now)
        site.join(member)
        site.host("data", site.attributes, member)
        site.pass_time(2 * OVER, member)
        assert site.bucket().primary == member and site.bucket().epoch > began.epoch
        timelines.append(site.bucket())
    first, second = timelines
    assert first.epoch != second.epoch and first.timeline != second.timeline
    # The member that was cut off is heard at last. What follows is above both.
    old, newest = (
        DecisionId(site.journal[0].newest.controller_epoch + 5, first.epoch.number + 100),
        site.core.site.newest,
    )
    site.core.join(profile(B, seen=old), {"data": site.attributes}, {KEY: Holding(first, True)}, old, site.now)
    site.act()
    assert site.bucket() == second and KEY in site.core.reports.undecided, "C has yet to report"
    site.core.join(
        profile(C, seen=newest, hosting=(("data", 100),)),
        {"data": site.attributes},
        {KEY: Holding(second, True)},
        newest,
        site.now,
    )
    site.pass_time(2 * OVER, B, C)
    assert site.bucket().epoch > max(first.epoch, second.epoch) and site.bucket().primary == C
    assert site.bucket().goes_on_with(second.timeline) and site.core.lost_buckets == 0


def test_a_controller_epoch_after_one_that_was_forgotten_is_above_it_when_somebody_names_its_decisions():
    site = Site(A, B)
    bucket = site.bucket()
    lost = DecisionId(site.core.site.controller_epoch + 7 * CONTROLLER_EPOCH_STEP_MAX, site.core.site.number)
    site.start(step=1)
    assert site.core.site.controller_epoch < lost.controller_epoch
    site.core.join(profile(A, seen=lost), {"data": site.attributes}, {KEY: Holding(bucket, True)}, lost, site.now)
    assert (
        site.core.site.controller_epoch
        == site.core.site.recovery_epoch
        > lost.controller_epoch + FORGOTTEN_CONTROLLER_EPOCHS * CONTROLLER_EPOCH_STEP_MAX
    )


def test_a_lost_decision_that_only_a_replica_follows_begins_a_metadata_recovery():
    """The new primary told it, before the coordinator told this member anything. Then it was lost with its file."""
    site = Site(A, B)
    stored, bucket = site.core.site.newest, site.bucket()
    follows = replace(
        bucket, epoch=Epoch(stored.controller_epoch + 3, bucket.epoch.number + 1), version=bucket.version + 1
    )
    site.start(step=2)
    site.core.join(profile(A, seen=stored), {"data": site.attributes}, {KEY: Holding(follows, True)}, stored, site.now)
    assert site.core.site.controller_epoch == site.core.site.recovery_epoch > follows.epoch.controller_epoch
    assert site.bucket() == follows


def test_members_that_name_different_lost_decisions_are_all_taken_in_at_once_also_if_the_highest_comes_last():
    site = Site()
    site.core.join(profile(A, seen=DecisionId(1_000, 50)), {}, {}, NO_DECISION, site.now)
    site.act()
    over_us = site.core.grace_period.next_us()
    for number in range(1, 10):
        site.now += TIMEOUT // 100
        seen = DecisionId(site.core.site.controller_epoch + number, 50 + number)
        site.core.join(profile(Incarnation("m", number), seen=seen), {}, {}, NO_DECISION, site.now)
        site.act()
        assert (
            Incarnation("m", number) in site.core.site.members and site.core.site.recovery_epoch > seen.controller_epoch
        )
        site.core.left(Incarnation("m", number), site.now)
    assert site.core.grace_period.next_us() == over_us, "the silence gets no longer by that"


def test_members_that_go_on_naming_lost_decisions_leave_the_site_half_of_the_time():
    site = Site(A)
    steps, decides, recovery_epochs = 400, 0, set()
    for number in range(steps):
        site.now += TIMEOUT // 20
        evil, controller_epoch = Incarnation(f"evil{number}", number), site.core.site.controller_epoch
        site.core.join(profile(evil, seen=DecisionId(controller_epoch + 1, 1)), {}, {}, NO_DECISION, site.now)
        site.act()
        if evil in site.core.site.members:
            site.core.left(evil, site.now)
        else:
            refused = site.last(evil)
            assert "names metadata record" in refused.reason and 0 < refused.retry_after_us <= 2 * OVER
            assert site.core.site.controller_epoch == controller_epoch
        site.core.tick(site.now)
        decides += not site.core.grace_period.is_on
        recovery_epochs.add(site.core.site.recovery_epoch)
    assert decides > steps * 2 // 5
    assert len(recovery_epochs) <= 1 + METADATA_RECOVERIES_MAX * (1 + steps // 20 // 2)


def test_a_stranger_that_names_lost_decisions_is_believed_only_by_a_coordinator_that_has_just_started():
    site = Site(A, B)
    before = site.core.site.newest.controller_epoch, site.bucket().timeline
    stranger, named = Incarnation("stranger", 1), DecisionId(2**24 - 1, 1)
    holds = {KEY: Holding(replace(site.bucket(), epoch=Epoch(2**24 - 1, 1)), True)}
    site.pass_time(BELIEVED_LEASES * OVER, A, B)
    for seen, holdings in ((named, {}), (NO_DECISION, holds)):
        regions = {key.region: site.attributes for key in holdings}
        site.core.join(profile(stranger, seen=seen), regions, holdings, NO_DECISION, site.now, {1: b"n" * 16})
        site.act()
        assert "has never made, and was no member when it started" in site.last(stranger).reason
        assert stranger not in site.core.site.members
        assert (
            site.core.site.newest.controller_epoch,
            site.bucket().timeline,
        ) == before and not site.core.grace_period.is_on
    site.start(step=2)
    site.core.join(profile(stranger, seen=named), {}, {}, NO_DECISION, site.now, {1: b"n" * 16})
    assert site.core.site.recovery_epoch > named.controller_epoch


@pytest.mark.parametrize("before", [(), (1, 2)], ids=["the same incarnation", "a later one of its folder"])
def test_who_was_a_member_when_the_coordinator_started_is_believed_at_any_time(before):
    nonce = b"n" * 16
    site = Site(B)
    site.join(A, mark=mark_of(nonce))
    site.start(step=2)
    site.pass_time(BELIEVED_LEASES * OVER, B)
    assert A not in site.core.site.members, "its lease is over, and no bucket needs it"
    named, comes = DecisionId(2**24 - 1, 1), A._replace(member_id=max((A.member_id, *before)))
    told = {A.member_id: nonce, comes.member_id: b"m" * 16, **({} if before else {A.member_id: nonce})}
    for nonces in ({A.member_id: b"o" * 16, comes.member_id: b"m" * 16}, told):
        site.core.join(profile(comes, seen=named, before=before), {}, {}, NO_DECISION, site.now, nonces)
        site.act()
        assert (comes in site.core.site.members) == (nonces is told)
    assert site.core.site.recovery_epoch > named.controller_epoch


def test_who_has_joined_since_the_coordinator_started_is_a_stranger_in_that():
    nonce = b"n" * 16
    site = Site(A)
    site.join(B, mark=mark_of(nonce))
    site.pass_time(BELIEVED_LEASES * OVER, A, B)
    named = DecisionId(2**24 - 1, 2**20)
    site.core.join(profile(B, seen=named), {}, {}, named, site.now, {B.member_id: nonce})
    site.act()
    assert site.core.site.recovery_epoch == 1 and "was no member when it started" in site.last(B).reason


def test_a_locator_that_names_lost_decisions_is_believed_only_by_a_coordinator_that_has_just_started():
    site = Site(A)
    told = Follower("M", "localhost[1]", DecisionId(2**24 - 1, 1), site.core.site.term, is_standby=True)
    site.pass_time(BELIEVED_LEASES * OVER, A)
    site.core.receive_from_locator(told, site.now)
    site.act()
    assert site.core.site.recovery_epoch == 1 and site.core.standbys.may_decide
    site.start(step=2)
    site.core.receive_from_locator(told, site.now)
    assert site.core.site.recovery_epoch > told.stored.controller_epoch


def test_a_member_that_names_many_lost_decisions_begins_one_metadata_recovery():
    site = Site(A)
    bucket, stored = site.bucket(), site.core.site.newest
    controller_epochs = range(
        stored.controller_epoch + 1,
        stored.controller_epoch + 1 + 4 * 100 * CONTROLLER_EPOCH_STEP_MAX,
        100 * CONTROLLER_EPOCH_STEP_MAX,
    )
    holdings = {
        BucketKey("data", number): Holding(replace(bucket, epoch=Epoch(controller_epoch, bucket.epoch.number)), True)
        for number, controller_epoch in enumerate(controller_epochs)
    }
    site.core.join(profile(B), {"data": site.attributes}, holdings, NO_DECISION, site.now)
    site.act()
    assert B in site.core.site.members
    assert len([each for each in site.core.site.controller_epochs if each > stored.controller_epoch]) == 1


def test_a_coordinator_that_starts_again_with_its_whole_file_asks_for_no_reports():
    site = Site(A, B)
    bucket, newest = site.bucket(), site.core.site.newest
    site.start(step=100)
    site.renew(A, B)
    assert site.core.site.recovery_epoch == 1 and site.core.site.newest == newest and site.bucket() == bucket
    assert not isinstance(site.last(A), Refused) and not isinstance(site.last(B), Refused)
    site.is_down(bucket.primary)
    after = site.bucket()
    assert (
        after.epoch == Epoch(site.core.site.controller_epoch, bucket.epoch.number + 1)
        and after.timeline == bucket.timeline
    )


def test_a_coordinator_without_a_number_for_another_controller_epoch_or_decision_says_so():
    site = Site(A)
    with pytest.raises(IllegalStateError, match="has no number for another controller epoch"):
        site.start(step=CONTROLLER_EPOCH_MAX)
    site.start()
    named = DecisionId(CONTROLLER_EPOCH_MAX - CONTROLLER_EPOCH_STEP_MAX, 1)
    site.core.join(profile(B, seen=named), {}, {}, NO_DECISION, site.now)
    site.act()
    assert "start the member in an empty folder" in site.last(B).reason and site.core.site.recovery_epoch == 1
    last = Store(DecisionId(1, DECISION_MAX), 1, ((1, DECISION_MAX),), "site", (), (), ())
    site.journal.append(last)
    site.start()
    with pytest.raises(IllegalStateError, match="has no number for another metadata record"):
        site.join(B)


@pytest.mark.parametrize("value", [[CONTROLLER_EPOCH_MAX + 1, 1], [1, DECISION_MAX + 1], [-1, 1], [1, 1, 1]])
def test_a_decision_or_an_epoch_that_fits_no_word_is_refused(value):
    for reader in (encoding.decision_id_of, encoding.epoch_of):
        with pytest.raises(ProtocolError):
            reader(value)
    highest = Epoch(CONTROLLER_EPOCH_MAX, DECISION_MAX)
    assert Epoch.of(highest.word) == highest
    assert (
        encoding.bucket_of(encoding.plain_bucket(Bucket(highest, timeline=highest.word)), KEY).timeline == highest.word
    )


def test_an_older_file_is_found_out_by_a_decision_that_it_does_not_have():
    site = Site(A, B)
    earlier = list(site.journal)
    site.join(C)
    newest = site.core.site.newest
    site.journal[:] = earlier
    site.start(step=2)
    site.core.renew(A, newest, site.now)
    site.act()
    assert site.last(A).report


def test_a_member_that_was_given_up_comes_back_as_another_incarnation_only():
    site = Site(A, B)
    site.deaf.add(A)
    site.pass_time(2 * OVER, B)
    site.core.renew(A, site.stored[A], site.now)
    site.act()
    assert site.last(A).join_again


def test_a_region_that_is_destroyed_goes_with_its_buckets():
    site = Site(A, B)
    site.bucket()
    site.core.destroy_region(A, "data")
    site.act()
    assert site.core.site.buckets == {} and site.core.site.regions == {}
    assert all(profile.hosting == () for profile in site.core.site.members.values())


def test_a_region_that_is_created_again_begins_above_all_epochs_of_the_earlier_one():
    site = Site(A, B)
    site.core.probed(site.bucket().primary, Reach.REFUSED, site.now)
    site.act()
    before = site.bucket()
    site.core.destroy_region(A, "data")
    site.act()
    site.host("data", site.attributes, A, B)
    after = site.bucket()
    assert after.epoch > before.epoch and after.timeline == after.epoch.word > before.epoch.word
    site.core.left(A, site.now)
    site.core.left(B, site.now)
    site.join(C)
    site.host("data", site.attributes, C)
    site.pass_time(TIMEOUT, C)
    assert site.bucket().timeline == site.bucket().epoch.word > after.epoch.word


# --- its file ---


incarnations = st.builds(
    Incarnation, st.from_regex(r"[a-zA-Z0-9_][a-z.-]{0,7}", fullmatch=True), st.integers(0, 2**32 - 1)
)
sets = st.lists(incarnations, max_size=3, unique=True).map(tuple)


@st.composite
def buckets(draw):
    isr = draw(sets)
    learning = [each for each in draw(sets) if each not in isr]
    return Bucket(
        Epoch(draw(st.integers(0, 9)), draw(st.integers(0, 9))),
        draw(st.integers(0, 2**62)),
        draw(st.integers(0, 2**62)),
        draw(st.integers(0, 99)),
        draw(st.sampled_from(isr)) if isr else None,
        isr,
        draw(sets),
        tuple(Learner(each, draw(st.integers(0, 99))) for each in learning),
        draw(sets),
    )


@given(buckets())
def test_a_bucket_in_plain_form_is_the_same_bucket(bucket):
    assert encoding.bucket_of(encoding.plain_bucket(bucket), BucketKey("data", 1)) == bucket


keys = st.builds(BucketKey, st.sampled_from(["data", "other"]), st.integers(0, 9))
decided = st.lists(buckets(), min_size=1, max_size=3).flatmap(
    lambda some: st.dictionaries(keys, st.sampled_from([None, *some]), max_size=20)
)


@given(decided, st.sets(keys))
def test_tables_in_plain_form_are_the_same_tables_and_neighbours_share_a_decision(decisions, undecided):
    others = tuple(undecided - decisions.keys())
    told = Tables(0, DecisionId(1, 1), "L", "site", 0, None, (), tuple(sorted(decisions.items())), others)
    read = encoding.tables_of(plain.unpack(plain.pack(encoding.plain_tables(told))))
    assert read == told
    for (key, bucket), (following, other) in itertools.pairwise(read.buckets):
        if following == (key.region, key.number + 1) and bucket == other:
            assert bucket is other


@given(decided)
def test_holdings_in_plain_form_are_the_same_holdings(decisions):
    held = {key: Holding(bucket, key.number % 2 == 0) for key, bucket in decisions.items() if bucket is not None}
    regions = {key.region: RegionAttributes(Kind.PARTITION, total_num_buckets=10) for key in held}
    assert encoding.holdings_of(encoding.plain_holdings(held), regions) == held


def test_a_region_of_one_member_is_one_run():
    site = Site()
    site.join(A)
    site.core.host(A, "data", RegionAttributes(Kind.PARTITION), 100, 0)
    site.act()
    ((first, count, bucket),) = encoding.runs(site.core.tables(0, 0).buckets)
    assert (first, count) == (KEY, 113) and bucket.is_only_of(A)


def tables_with(*runs: object) -> list:
    """The parts of tables with these runs of buckets."""
    head = encoding.plain_tables(Tables(0, DecisionId(1, 1), "L", "site", 0, None, (), ()))[0]
    return [[*head[:7], len(runs), *head[8:]], *runs]


@pytest.mark.parametrize("run", [["data", 0, 0, None], ["data", 0, 2**40, None], ["data", -1, 1, None], ["data", 0, 1]])
def test_a_run_that_is_none_is_refused(run):
    with pytest.raises(ProtocolError):
        encoding.tables_of(tables_with(run))


def test_runs_that_name_more_buckets_than_a_message_may_are_refused():
    bucket = encoding.plain_bucket(Bucket())
    for decided, most in ((bucket, BUCKETS_MAX), (None, encoding.GONE_MAX)):
        tables = tables_with(*(["data", 0, MAX_BUCKETS, decided] for _ in range(most // MAX_BUCKETS + 1)))
        with pytest.raises(ProtocolError, match="cannot be told in one message"):
            encoding.tables_of(tables)


@pytest.mark.parametrize("gone", [1, 2, 3, 4])
def test_tables_of_which_a_part_is_gone_or_is_there_twice_are_refused(gone):
    regions = (("data", RegionAttributes(Kind.PARTITION)), ("other", None))
    told = Tables(0, DecisionId(1, 1), "L", "site", 0, (profile(A), profile(B)), regions, ((KEY, Bucket()),))
    parts = encoding.plain_tables(told)
    assert encoding.tables_of(parts) == told
    with pytest.raises(ProtocolError):
        encoding.tables_of(parts[:gone])
    with pytest.raises(ProtocolError):
        encoding.tables_of([*parts[: gone + 1], *parts[gone:]])


def test_a_bucket_that_contradicts_itself_is_refused_by_its_name_and_its_members():
    twice = Bucket(primary=A, isr=(A, B), learners=(Learner(B, 7),))
    with pytest.raises(ProtocolError, match=re.escape(f"bucket data[3]: member {B} is among the in-sync replicas and")):
        encoding.bucket_of(encoding.plain_bucket(twice), BucketKey("data", 3))
    without = Bucket(primary=A, isr=(B,))
    with pytest.raises(ProtocolError, match=re.escape(f"bucket data[3]: its primary, member {A}, is not among")):
        encoding.bucket_of(encoding.plain_bucket(without), BucketKey("data", 3))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=20,
)


@given(
    json_like,
    st.sampled_from(
        [
            lambda value: encoding.bucket_of(value, BucketKey("data", 0)),
            encoding.profile_of,
            encoding.attributes_of,
            encoding.decision_id_of,
            encoding.key_of,
        ]
    ),
)
def test_whatever_is_not_of_the_plain_form_is_refused(value, reader):
    with contextlib.suppress(ProtocolError):
        reader(value)


def test_a_journal_gives_back_what_the_tables_were(tmp_path):
    site = Site(A, B, C)
    for number in range(4):
        site.bucket(BucketKey("data", number))
    site.core.probed(A, Reach.REFUSED, site.now)
    site.act()
    journal = Journal(tmp_path / "decisions")
    for store in site.journal:
        journal.append(store)
    journal.close()
    core = Coordinator(
        "locator", Journal(tmp_path / "decisions").read(), draw_step=lambda: 2, now_us=0, site_identity="new"
    )
    assert core.site.buckets == site.core.site.buckets
    assert core.site.members == site.core.site.members
    assert core.site.regions == site.core.site.regions
    assert core.site.newest == site.core.site.newest and core.site.identity == "site"
    assert core.site.made(DecisionId(1, 1)) and not core.site.made(DecisionId(1, 10_000))
    assert core.site.recovery_epoch == site.core.site.recovery_epoch and core.site.controller_epoch == 3


@given(st.lists(decided, min_size=1, max_size=6))
def test_a_journal_keeps_the_newest_decision_about_each_bucket_however_runs_overlap(appended):
    expected: dict[BucketKey, Bucket] = {}
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(os.path.join(folder, "decisions"))
        for number, decisions in enumerate(appended, 1):
            store = Store(
                DecisionId(7, number), 1, ((7, number),), "site", (), REGIONS, tuple(sorted(decisions.items()))
            )
            journal.append(store)
            for key, bucket in decisions.items():
                expected.pop(key, None)
                expected |= {} if bucket is None else {key: bucket}
        (store,) = journal.read()
        journal.close()
    assert dict(store.buckets) == expected and len(store.buckets) == len(expected)


def test_a_journal_keeps_the_standby_and_the_term(tmp_path):
    path = tmp_path / "decisions"
    store = Store(DecisionId(7, 1), 1, ((7, 1),), "site", (), REGIONS, ())
    journal = Journal(path)
    journal.append(store)
    assert [(each.standby, each.term) for each in journal.read()] == [(None, 0)]
    journal.append(replace(store, standby=Standby("n2", "n2[1]"), term=3))
    journal.close()
    assert [(each.standby, each.term) for each in Journal(path).read()] == [(Standby("n2", "n2[1]"), 3)]


def test_a_journal_that_is_damaged_or_newer_is_refused_by_name(tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DiskAccessError, match="damaged cannot be opened"):
        Journal(damaged)
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version=9")
    with pytest.raises(DiskAccessError, match="has format 9"):
        Journal(newer)


@pytest.mark.parametrize("left", [0, 100, 4096])
def test_a_journal_that_was_cut_off_is_refused_with_the_way_out_and_stays_as_it_is(tmp_path, left):
    path = tmp_path / "decisions"
    journal = Journal(path)
    regions = tuple((f"r{number}", RegionAttributes(Kind.PARTITION)) for number in range(500))
    journal.append(Store(DecisionId(7, 1), 1, ((7, 1),), "site", (), regions, ()))
    journal.close()
    os.truncate(path, left)
    for _ in range(2):
        with pytest.raises(DiskAccessError, match=rf"{path}.*start locator --recover-from-members"):
            Journal(path).read()
        assert path.stat().st_size == left
    path.unlink()
    assert Journal(path).read() == []


def test_a_crash_while_a_journal_is_made_leaves_none(tmp_path, monkeypatch):
    path = tmp_path / "decisions"
    monkeypatch.setattr(os, "replace", lambda *names: os.close(-1))
    with pytest.raises(DiskAccessError):
        Journal(path)
    monkeypatch.undo()
    assert not path.exists() and Journal(path).read() == []


def test_a_journal_and_what_lies_beside_it_are_for_the_owner_alone_whatever_they_were_before(tmp_path):
    path = tmp_path / "decisions"
    umask = os.umask(0)
    try:
        Journal(path).close()
        path.chmod(0o666)  # As somebody who restored a copy of it may have left it.
        for _ in range(2):
            journal = Journal(path)
            journal.append(Store(DecisionId(7, 1), 1, ((7, 1),), "site", (), (), ()))
            files = sorted(tmp_path.iterdir())
            assert path.with_name("decisions-wal") in files
            assert {each.name: oct(each.stat().st_mode & 0o777) for each in files} == dict.fromkeys(
                (each.name for each in files), "0o600"
            )
            journal.close()
            path.chmod(0o644)
    finally:
        os.umask(umask)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_journal_that_is_no_file_of_its_own_is_refused_by_name(tmp_path, kind):
    path = tmp_path / "decisions"
    (tmp_path / "elsewhere").write_bytes(b"")
    {"link": lambda: path.symlink_to("elsewhere"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(DiskAccessError, match="decisions cannot be opened"):
        Journal(path)
    assert (tmp_path / "elsewhere").read_bytes() == b""


WRITER = """
import sys
from pywan.coordination.journal import Journal
from pywan.coordination.actions import Store
from pywan.coordination.tables import *
journal = Journal(sys.argv[1])
regions = (("data", RegionAttributes(Kind.PARTITION)),)
for number in range(1, 1_000_000):
    buckets = tuple((BucketKey("data", n), Bucket(version=number)) for n in range(5))
    journal.append(Store(DecisionId(7, number), 1, ((7, number),), "site", (), regions, buckets))
    print(number, flush=True)
"""


def test_a_killed_coordinator_keeps_every_decision_that_it_told_and_each_as_a_whole(tmp_path):
    for appended in (1, 5, 20):
        path = tmp_path / f"decisions-{appended}"
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if int(line) >= appended:
                    break
            os.kill(process.pid, signal.SIGKILL)
            told = max([appended, *(int(line) for line in process.stdout.read().split())])
        (store,) = Journal(path).read()
        assert store.newest.number >= told
        assert {bucket.version for _, bucket in store.buckets} == {store.newest.number}


def test_members_that_lack_the_same_decisions_are_told_by_the_same_tables():
    site = Site(A, B, C)
    newest = site.core.site.number
    site.core.site.set_bucket(KEY, replace(site.bucket(), version=site.bucket().version + 1))
    told = {
        action.to: action.message
        for action in site.core.take_actions()
        if isinstance(action, Tell) and isinstance(action.message, Tables)
    }
    assert told[A] is told[B] is told[C] and [key for key, _ in told[A].buckets] == [KEY]
    assert site.core.tables(newest, 0) is told[A], "and an answer to a question for news has them too"


def test_an_answer_of_many_decisions_is_given_again_while_fewer_were_made_since():
    site = Site(A, B, C)
    newest = site.core.site.number
    keys = [BucketKey("data", number) for number in range(4)]

    def decide(*some: BucketKey) -> None:
        for key in some:
            site.core.site.set_bucket(key, replace(site.bucket(key), version=site.bucket(key).version + 1))

    decide(*keys)
    answer = site.core.answer(newest, 1)
    assert [key for key, _ in answer.buckets] == keys
    decide(*keys[:3])
    assert site.core.answer(newest, 1) is answer
    rest = site.core.answer(answer.newest.number, 1)
    assert [key for key, _ in rest.buckets] == keys[:3] and rest.newest == site.core.site.newest
    decide(keys[3])
    assert site.core.answer(newest, 1).newest == site.core.site.newest


def test_the_coordinator_shows_what_a_region_lacks():
    site = Site(A, B)
    site.deaf.add(B)
    shown = site.core.status(site.now)
    assert shown["missing_copies"] == shown["images"] == 0 and shown["incomplete_regions"] == {}
    site.core.left(B, site.now)
    site.act()
    shown = site.core.status(site.now)
    assert shown["incomplete_regions"] == {"data": {"buckets_without_primary": 0, "missing_copies": 4, "images": 0}}
    site.join(C)
    site.core.host(C, "data", site.attributes, 100, site.now)
    site.act()
    site.core.tick(site.now)
    site.act()
    shown = site.core.status(site.now)["incomplete_regions"]["data"]
    assert shown == {"buckets_without_primary": 0, "missing_copies": 4, "images": 4}


def test_replicas_go_to_a_member_that_comes_a_few_at_a_time_and_primaries_with_them():
    attributes = RegionAttributes(Kind.PARTITION, 64)
    site = Site(A)
    site.host("more", attributes, A)
    site.join(B)
    site.core.host(B, "more", attributes, 100, site.now)
    site.act()

    def led() -> list[int]:
        primaries = Counter(each.primary for key, each in site.core.site.buckets.items() if key.region == "more")
        return [primaries[A], primaries[B]]

    rounds = 0
    while led() != [32, 32] or any(len(each.isr) > 1 for each in site.core.site.buckets.values()):
        learning = [each for each in site.core.site.buckets.values() if each.learners]
        assert len(learning) <= LEARNERS_AT_ONCE
        site.learn()
        site.lead()
        site.pass_time(OVER, A, B)
        rounds += 1
        assert rounds < 20
    before = dict(site.core.site.buckets)
    site.pass_time(5 * OVER, A, B)
    assert site.core.site.buckets == before, "what is even stays where it is"


@pytest.mark.parametrize("attributes", [{"startup_recovery_delay_ms": -1}, {"startup_recovery_delay_ms": 1000}])
def test_replicas_stay_where_they_are_if_members_that_come_are_not_to_get_any_at_once(attributes):
    site = Site(A, redundant_copies=0, **attributes)
    site.join(B)
    site.host("data", site.attributes, B)
    site.pass_time(3 * OVER, A, B)
    assert all(each.isr == (A,) and not each.learners for each in site.core.site.buckets.values())


def test_what_has_gone_is_not_named_for_ever_and_who_lacks_it_is_told_all_that_there_is(monkeypatch):
    monkeypatch.setattr(decisions, "GONE_KEPT", 10)
    site = Site(A)
    since = site.core.site.number
    for number in range(20):
        site.host(f"r{number}", RegionAttributes(Kind.PARTITION, total_num_buckets=4), A)
        site.core.destroy_region(A, f"r{number}")
        site.act()
    assert len(site.core.site._last._at) < 30
    told = site.core.tables(since, 0)
    assert told.since == 0 and [name for name, _ in told.regions] == ["data"]
    assert {key.region for key, _ in told.buckets} == {"data"}
    newest = site.core.site.number
    site.core.destroy_region(A, "data")
    site.act()
    assert site.core.tables(newest, 0).regions == (("data", None),), "a member that is up to date hears of it"


def test_a_coordinator_that_starts_again_tells_a_member_that_is_behind_what_there_is():
    site = Site(A)
    since = site.core.site.number
    site.core.destroy_region(A, "data")
    site.act()
    site.start()
    told = site.core.tables(since, 0)
    assert told.since == 0 and not told.regions and not told.buckets


def test_no_number_of_messages_uses_up_the_numbers_of_a_site():
    site = Site(A)
    for count in range(2_000):
        believed = site.core.site.believed
        evil = Incarnation("evil", count)
        named = believed if count < 1_000 else DecisionId(site.core.site.controller_epoch, site.core.site.number + 1)
        site.core.join(profile(evil, seen=named), {}, {}, NO_DECISION, site.now)
        site.act()
        site.core.left(evil, site.now)
    assert (
        site.core.site.controller_epoch <= CONTROLLER_EPOCH_MAX // 4
        and site.core.site.number <= DECISION_MAX // 4 + 10_000
    )
    site.start()
    site.join(B)
    site.pass_time(OVER, A, B)
    site.host("later", RegionAttributes(Kind.PARTITION), B)
    assert site.core.site.buckets[BucketKey("later", 0)].primary == B


@pytest.mark.parametrize("above", [0, 1])
def test_a_member_is_believed_in_a_bounded_distance_above_what_is_known(above):
    site = Site(A)
    controller_epoch, number = site.core.site.controller_epoch, site.core.site.number
    seen = DecisionId(controller_epoch + BELIEVED_CONTROLLER_EPOCHS + above, number + BELIEVED_DECISIONS)
    site.core.join(profile(B, seen=seen), {}, {}, NO_DECISION, site.now)
    site.act()
    assert (B in site.core.site.members) == (not above)
    assert (site.core.site.recovery_epoch > seen.controller_epoch) == (not above) and (
        site.core.site.number > seen.number
    ) == (not above)


def test_a_join_that_is_not_believed_does_not_name_the_site():
    site = Site()
    seen = DecisionId(CONTROLLER_EPOCH_MAX, 1)
    site.core.join(profile(A, site_identity="evil", seen=seen), {}, {}, NO_DECISION, site.now)
    site.act()
    assert site.core.site.identity == "site" and isinstance(site.last(A), Refused)


def test_a_coordinator_that_has_lost_all_believes_more_than_one_that_knows_something():
    site = Site()
    seen = DecisionId(CONTROLLER_EPOCH_MAX // 4 + 1, DECISION_MAX // 4 + 1)
    site.core.join(profile(A, seen=seen), {}, {}, NO_DECISION, site.now)
    site.act()
    assert A in site.core.site.members and site.core.site.recovery_epoch > seen.controller_epoch
