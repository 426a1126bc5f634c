"""Moves of buckets that an operator asks for: what the coordinator decides, and what a locator answers."""

from __future__ import annotations

import pytest

from pywan.coordination.asked_moves import ASKED_AT_ONCE, ASKED_REPEATED_US, MoveAnswer, MoveOf, MoveRequest
from pywan.coordination.messages import MayLeave
from pywan.coordination.tables import BucketKey, Incarnation, Kind, RegionAttributes
from pywan.errors import IllegalStateError, ProtocolError
from pywan.site.bucket_moves import move_bucket
from pywan.transport.control import call_once
from support.coordinator_site import KEY, TIMEOUT, A, B, C, Site
from support.small_members import locator, small_members

DONE = MoveAnswer(is_done=True)


def ask(site: Site, what: MoveOf, to: Incarnation, source: Incarnation | None = None, number: int = 0) -> MoveAnswer:
    request = MoveRequest("data", number, what, to.name, "" if source is None else source.name)
    answer = site.core.move_bucket(request, site.now)
    site.act()
    return answer


def without(site: Site, *members: Incarnation) -> Incarnation:
    """The member that has no replica of the bucket."""
    return next(each for each in (A, B, C) if each not in (*site.bucket().named, *members))


def test_a_primary_moves_to_a_replica_and_the_one_before_stays_in_sync():
    site = Site(A, B)
    site.lead()
    before = site.bucket()
    (to,) = set(before.isr) - {before.primary}
    assert ask(site, MoveOf.PRIMARY, to) == MoveAnswer()
    assert site.bucket().primary == to and set(site.bucket().isr) == {A, B}
    assert site.bucket().epoch > before.epoch
    assert ask(site, MoveOf.PRIMARY, to) == MoveAnswer()  # The new primary is not ready.
    site.lead()
    assert ask(site, MoveOf.PRIMARY, to) == DONE


def test_a_replica_moves_by_a_learner_and_the_old_one_goes_when_that_has_all():
    site = Site(A, B, C)
    site.lead()
    before, to = site.bucket(), without(site)
    (source,) = set(before.isr) - {before.primary}
    assert ask(site, MoveOf.REPLICA, to) == MoveAnswer()
    assert site.bucket().learning == (to,) and site.bucket().isr == before.isr
    site.learn()
    assert ask(site, MoveOf.REPLICA, to) == DONE
    assert set(site.bucket().isr) == {before.primary, to} and site.bucket().primary == before.primary
    assert source not in site.bucket().named


def test_a_replica_that_leads_is_handed_over_before_it_goes():
    site = Site(A, B, C)
    site.lead()
    before, to = site.bucket(), without(site)
    ask(site, MoveOf.REPLICA, to, before.primary)
    site.learn()
    assert site.bucket().primary == to and before.primary in site.bucket().isr
    assert ask(site, MoveOf.REPLICA, to, before.primary) == MoveAnswer()
    site.lead()
    assert ask(site, MoveOf.REPLICA, to, before.primary) == DONE
    assert before.primary not in site.bucket().named and len(site.bucket().isr) == 2


def test_the_only_replica_moves_and_is_never_gone():
    site = Site(A, B, redundant_copies=0)
    site.lead()
    source = site.bucket().primary
    to = B if source == A else A
    while ask(site, MoveOf.REPLICA, to, source) != DONE:
        assert site.bucket().isr
        assert site.learn() or site.lead()
    assert site.bucket().isr == (to,)
    assert ask(site, MoveOf.REPLICA, to, source) == DONE  # The end was not heard.


def test_colocated_buckets_of_the_same_number_move_together():
    site = Site(A, B, C)
    site.host("more", RegionAttributes(Kind.PARTITION, 4, 1, colocated_with="data"), A, B, C)
    site.lead()
    more = BucketKey("more", 0)
    before, to = site.bucket(), without(site)
    assert set(site.bucket(more).isr) == set(before.isr)
    request = MoveRequest("more", 0, MoveOf.REPLICA, to.name, before.primary.name)
    while site.core.move_bucket(request, site.now) != DONE:
        site.act()
        assert site.learn(1) or site.lead(1)  # One after the other: the first one waits for the second.
    for key in (KEY, more):
        assert to in site.bucket(key).isr and before.primary not in site.bucket(key).named
        assert site.bucket(key).primary == to
    ((other),) = set(site.bucket().isr) - {to}
    while ask(site, MoveOf.PRIMARY, other) != DONE:
        assert site.lead()
    assert site.bucket(KEY).primary == site.bucket(more).primary == other


def test_what_cannot_be_moved_is_refused_in_words():
    site = Site(A, B, C)
    site.lead()
    bucket, to = site.bucket(), without(site)
    (replica,) = set(bucket.isr) - {bucket.primary}

    def refusal(*arguments: object) -> str:
        return site.core.move_bucket(MoveRequest(*arguments), site.now).problem

    decided = site.core.site.number
    assert "no member of the site has a region none" in refusal("none", 0, MoveOf.REPLICA, "a")
    assert "has 4 buckets: there is no 4" in refusal("data", 4, MoveOf.REPLICA, "a")
    assert "no member d can take a replica of region data" in refusal("data", 0, MoveOf.REPLICA, "d")
    assert "has a replica of bucket data[0] already" in refusal(
        "data", 0, MoveOf.REPLICA, replica.name, bucket.primary.name
    )
    assert "has a replica of bucket data[0] already" in refusal("data", 0, MoveOf.REPLICA, replica.name, replica.name)
    assert "has no whole replica of bucket data[0]" in refusal("data", 0, MoveOf.REPLICA, to.name, "d")
    assert "has no replica of bucket data[0]" in refusal("data", 0, MoveOf.PRIMARY, to.name)
    assert site.core.site.number == decided


def test_a_role_of_a_sender_is_no_region_of_which_a_bucket_moves():
    site = Site(A, B)
    site.host("__sender.ln", RegionAttributes(Kind.PARTITION, 1, 1), A, B)
    assert "no member" in site.core.move_bucket(MoveRequest("__sender.ln", 0, MoveOf.PRIMARY, "a"), site.now).problem


def test_a_move_ends_with_the_member_to_which_it_went():
    site = Site(A, B, C)
    site.lead()
    to = without(site)
    ask(site, MoveOf.REPLICA, to)
    site.is_down(to)
    assert "is not alive any more" in ask(site, MoveOf.REPLICA, to).problem


def test_a_bucket_goes_one_way_at_a_time_and_a_move_that_nobody_asks_for_again_is_given_up():
    site = Site(A, B, C)
    site.lead()
    bucket, to = site.bucket(), without(site)
    (replica,) = set(bucket.isr) - {bucket.primary}
    assert ask(site, MoveOf.REPLICA, to) == MoveAnswer()
    assert f"is on its way to member {to.name}" in ask(site, MoveOf.PRIMARY, replica).problem
    site.pass_time(ASKED_REPEATED_US + TIMEOUT, A, B, C)
    site.learn()
    assert ask(site, MoveOf.PRIMARY, replica) == MoveAnswer()
    site.lead()
    assert ask(site, MoveOf.PRIMARY, replica) == DONE


def test_only_so_many_moves_are_under_way():
    site = Site(A, B, C)
    site.host("large", RegionAttributes(Kind.PARTITION, ASKED_AT_ONCE + 1, 1), A, B, C)
    site.lead()
    problems = []
    for number in range(ASKED_AT_ONCE + 1):
        bucket = site.bucket(BucketKey("large", number))
        (to,) = set(bucket.isr) - {bucket.primary}
        problems.append(site.core.move_bucket(MoveRequest("large", number, MoveOf.PRIMARY, to.name), site.now).problem)
    assert not any(problems[:-1]) and f"{ASKED_AT_ONCE} buckets are being moved" in problems[-1]


def test_the_site_does_not_undo_what_an_operator_has_moved():
    site = Site(A, B)
    site.lead()
    for number in range(4):
        while ask(site, MoveOf.PRIMARY, A, number=number) != DONE:
            site.lead()
    decided = site.core.site.number
    site.pass_time(5 * TIMEOUT, A, B)
    assert all(each.primary == A for each in site.core.site.buckets.values())
    assert site.core.site.number == decided


def test_a_replica_that_is_being_moved_is_not_one_too_many():
    site = Site(A, B, C, recovery_delay_ms=0)
    site.host("more", RegionAttributes(Kind.PARTITION, 4, 1, colocated_with="data"), A, B, C)
    site.lead()
    to = without(site)
    ask(site, MoveOf.REPLICA, to)
    site._each(
        1,
        lambda key, bucket: [  # Only the first of the two has all: the replicas of both stay meanwhile.
            site.core.caught_up(bucket.primary, key, bucket.epoch, each, site.now) for each in bucket.learners[:1]
        ],
    )
    assert len(site.bucket().isr) == 3
    site.pass_time(5 * TIMEOUT, A, B, C)
    assert len(site.bucket().isr) == 3
    site.learn()
    assert ask(site, MoveOf.REPLICA, to) == DONE


def test_a_member_that_leaves_ends_while_its_bucket_is_moved():
    site = Site(A, B, C)
    site.lead()
    bucket, to = site.bucket(), without(site)
    ask(site, MoveOf.REPLICA, to, bucket.primary)
    site.leave(bucket.primary)
    for _ in range(20):
        site.learn()
        site.lead()
        site.leave(bucket.primary)
    assert site.last_of(bucket.primary, MayLeave) is not None
    assert bucket.primary not in site.bucket().named


def test_a_move_goes_on_in_a_coordinator_that_starts_again():
    site = Site(A, B, C)
    site.lead()
    to = without(site)
    ask(site, MoveOf.REPLICA, to)
    site.learn()
    site.start()
    site.renew(A, B, C)
    site.pass_time(2 * TIMEOUT, A, B, C)
    for _ in range(5):
        ask(site, MoveOf.REPLICA, to)
        site.lead()
    assert to in site.bucket().isr and len(site.bucket().isr) == 2


def test_the_site_that_ends_moves_nothing():
    site = Site(A, B, C)
    site.core.end_site(site.now)
    assert ask(site, MoveOf.REPLICA, without(site)).problem == "the site ends"


@pytest.mark.parametrize(
    "wrong",
    [
        {"region": "-"},
        {"region": None},
        {"bucket": -1},
        {"bucket": 1 << 31},
        {"bucket": True},
        {"what": "all"},
        {"what": None},
        {"to": ""},
        {"to": 7},
        {"source": "a b"},
        {"source": None},
    ],
)
def test_a_request_out_of_range_is_refused_by_the_locator(tmp_path, wrong):
    with locator(dir=tmp_path) as site, small_members(str(site.address), "a"):
        asked = {"region": "data", "bucket": 0, "what": "copy", "to": "a", "source": ""}
        with pytest.raises(ProtocolError):
            call_once(site.address, "coordination-move-bucket", **{**asked, **wrong})
        with pytest.raises(
            IllegalStateError, match=r"data\[0\] is not moved to member z: no member of the site has a region data"
        ):
            move_bucket(site.address, "data", 0, to="z", what="copy")
