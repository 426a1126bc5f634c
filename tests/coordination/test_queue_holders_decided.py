"""What the coordinator decides about members that hold the queued events of a bucket and no copy of it, and about the
roles of senders."""

from __future__ import annotations

from pywan.coordination.messages import MayLeave
from pywan.coordination.tables import ROLE_PREFIX, Bucket, BucketKey, Epoch, Incarnation, Kind, RegionAttributes
from support.coordinator_site import OVER, TIMEOUT, A, B, C, Site

SERIAL, PARALLEL = "parallel=false; order-policy=key", "parallel=true; order-policy=key"


def runs(site: Site, *members: Incarnation, id: str = "s", words: str = SERIAL, weight: int = 100) -> None:
    """The members run a sender; with a weight of 0 they have it, and it does not run there."""
    for member in members:
        site.core.host(member, f"{ROLE_PREFIX}{id}", RegionAttributes(Kind.PARTITION, 1, 1, senders=words), weight, 0)
        site.act()


def site_of(*members: Incarnation, redundant_copies: int = 0, **more) -> Site:
    site = Site(*members, redundant_copies=redundant_copies, senders="s", **more)
    runs(site, *members)
    while site.learn() or site.lead():
        pass
    return site


def buckets(site: Site) -> list[Bucket]:
    return [bucket for key, bucket in sorted(site.core.site.buckets.items()) if key.region == "data"]


def test_every_member_that_runs_a_serial_sender_is_in_the_isr_and_has_a_replica_or_the_queued_events_alone():
    for each in buckets(site_of(A, B, C)):
        assert set(each.isr) == {A, B, C} and len(each.replicas) == 1
        assert set(each.queue_only) == {A, B, C} - {each.primary}


def test_a_parallel_sender_and_one_that_the_region_does_not_name_have_no_holders_without_a_replica():
    site = Site(A, B, redundant_copies=0, senders="s,p")
    runs(site, A, B, id="p", words=PARALLEL)
    runs(site, A, B, id="other")
    assert not any(each.queue_only or each.learners for each in buckets(site))


def test_an_accessor_that_runs_the_sender_holds_the_events_of_all_buckets():
    site = Site(A, redundant_copies=0, senders="s")
    site.join(B)
    site.core.host(B, "data", site.attributes, 0, site.now)
    site.act()
    runs(site, A, B)
    site.learn()
    assert all(each.primary == A and each.isr == (A, B) and each.queue_only == (B,) for each in buckets(site))


def test_a_holder_of_events_alone_learns_before_it_is_waited_for():
    site = Site(A, B, redundant_copies=0, senders="s")
    runs(site, A, B)
    for each in buckets(site):
        assert each.isr == (each.primary,) and {*each.learning} == {*each.queue_only} == {A, B} - {each.primary}


def test_a_sender_that_stops_on_a_member_lets_the_primary_wait_for_it_until_the_rest_has_stored_that():
    site = site_of(A, B)
    led = [key for key, each in site.core.site.buckets.items() if key.region == "data" and each.primary == A]
    site.deaf.add(A)
    runs(site, B, weight=0)
    assert led and all(site.bucket(key).leaving == (B,) and site.bucket(key).queue_only == (B,) for key in led)
    site.deaf.clear()
    site.renew(A, B)
    site.core.renew(A, site.core.site.newest, site.now)
    site.act()
    assert all(site.bucket(key).named == {A} and not site.bucket(key).queue_only for key in led)
    runs(site, B)
    site.learn()
    assert all(site.bucket(key).queue_only == (B,) for key in led)


def test_events_alone_make_nobody_primary_and_keep_no_bucket_from_beginning_anew():
    site = site_of(A, B)
    before = {key: each for key, each in site.core.site.buckets.items() if key.region == "data" and each.primary == A}
    site.deaf.add(A)
    site.core.left(A, site.now)
    site.act()
    assert all(site.bucket(key).primary is None and not site.bucket(key).isr for key in before)
    site.pass_time(OVER, B)
    for key, was in before.items():
        bucket = site.bucket(key)
        assert bucket.timeline > was.timeline and not bucket.inherits and bucket.isr == (B,) and not bucket.queue_only
    assert site.core.lost_buckets == len(before) > 0


def test_a_bucket_that_begins_anew_waits_for_its_holders_at_once():
    site = site_of(A, B, C)
    lost = [key for key, each in site.core.site.buckets.items() if key.region == "data" and each.primary == A]
    site.deaf.add(A)
    site.core.left(A, site.now)
    site.act()
    site.pass_time(OVER, B, C)
    assert all({*site.bucket(key).isr} == {B, C} and len(site.bucket(key).queue_only) == 1 for key in lost)


def test_a_member_that_has_events_alone_becomes_a_whole_replica_when_the_other_one_leaves():
    site = site_of(A, B)
    for _ in range(20):
        site.leave(A)
        site.learn()
        site.lead()
    assert all(each.isr == each.replicas == (B,) and not each.queue_only for each in buckets(site))
    assert site.core.lost_buckets == 0


def test_a_holder_of_events_alone_that_is_unresponsive_for_its_lease_leaves_the_isr_and_comes_back_as_a_learner():
    site = site_of(A, B, C, redundant_copies=1)
    for each in buckets(site):
        assert len(each.replicas) == 2 and len(each.queue_only) == 1
    spare = buckets(site)[0].queue_only[0]
    site.is_down(spare)
    site.pass_time(2 * TIMEOUT, *({A, B, C} - {spare}))
    assert all(spare not in each.isr for each in buckets(site))
    site.deaf.clear()
    site.join(spare, hosting=(("data", 100), (f"{ROLE_PREFIX}s", 100)))
    site.pass_time(2 * TIMEOUT, A, B, C)
    assert spare in buckets(site)[0].learning and spare in buckets(site)[0].queue_only


def test_a_holder_of_events_alone_that_learns_the_entries_does_not_speak_for_the_replicas_of_before():
    """The primary is silent, and the other replica ends before it hears that it leads alone: nobody who has the entries
    knows that the primary is out, so the bucket does not begin anew without it."""
    site = site_of(A, B, C, redundant_copies=1, recovery_delay_ms=0)
    before = site.bucket()
    unresponsive, (heir,), (spare,) = before.primary, {*before.replicas} - {before.primary}, before.queue_only
    site.deaf.update((unresponsive, heir))
    site.pass_time(OVER, heir, spare)
    assert site.bucket().primary == heir and site.bucket().learning == (spare,)
    assert unresponsive in site.bucket().unfenced
    site.core.left(heir, site.now)
    site.act()
    site.pass_time(OVER, spare)
    assert unresponsive in site.bucket().content and site.core.lost_buckets == 0


def test_a_primary_that_has_events_alone_is_refused():
    bucket = Bucket(Epoch(1, 1), 1, 0, 1, A, (A, B), queue_only=(A,))
    assert "only its queued events" in bucket.problem()


def test_a_member_on_which_a_sender_was_stopped_does_not_get_its_role_by_the_isr_of_before():
    """The site is cut, the sender's primary ends, and the decision that took the other one out is not in effect."""
    site = site_of(A, B)
    key = BucketKey(f"{ROLE_PREFIX}s", 0)
    primary = site.bucket(key).primary
    other = ({A, B} - {primary}).pop()
    site.core.unhost(other, key.region, site.now)
    assert site.bucket(key).content == {primary}  # Nobody has stored that yet.
    site.deaf.add(primary)
    site.core.left(primary, site.now)
    site.act()
    assert other not in site.bucket(key).named
    runs(site, other)
    site.pass_time(OVER, other)  # It begins anew when promises to earlier primaries are over.
    assert site.bucket(key).primary == other


def test_a_member_leaves_at_once_that_leads_the_role_of_a_parallel_sender_another_one_is_learning():
    site = Site(A, B)
    runs(site, A, id="p", words=PARALLEL)
    runs(site, B, id="p", words=PARALLEL)
    site.pass_time(OVER, A, B)
    key = BucketKey(f"{ROLE_PREFIX}p", 0)
    assert site.bucket(key).primary == A and site.bucket(key).learning == (B,)
    site.leave(A)
    site.lead()
    assert site.last_of(A, MayLeave) == MayLeave()
