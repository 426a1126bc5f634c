"""What a member with interest policy ALL says of the buckets of which its listeners are not told."""

from __future__ import annotations

import pytest

from pywan.config.attributes import RegionAttributes
from pywan.coordination.tables import Bucket, Incarnation, MemberProfile
from pywan.errors import IllegalStateError
from pywan.member.interest import Interest, check_interest, receives_all, storing

ME, OTHER, THIRD = (Incarnation(name, 1) for name in ("me", "other", "third"))


def made(**given) -> RegionAttributes:
    return RegionAttributes.make("data", **{"redundant_copies": 1, "interest_policy": "all", **given})


def of(*isr: Incarnation) -> Bucket:
    return Bucket(primary=isr[0] if isr else None, isr=isr)


@pytest.fixture
def interest() -> Interest:
    """Of a member that has replicas of both buckets beside one other member."""
    found = Interest(made())
    found.see_members(1)
    found.see_buckets(ME, {0: of(ME, OTHER), 1: of(OTHER, ME)})
    found.say()
    return found


def test_only_a_partitioned_region_can_miss_buckets():
    assert receives_all(made())
    assert not receives_all(made(interest_policy="cache-content"))
    assert not receives_all(made(type="REPLICATE", redundant_copies=0))


@pytest.mark.parametrize(("copies", "others"), [(0, 0), (1, 0), (1, 1), (3, 3)])
def test_a_member_is_taken_where_each_one_has_a_replica(copies, others):
    check_interest(made(redundant_copies=copies), others)


@pytest.mark.parametrize(
    ("copies", "others", "remedy"),
    [(0, 1, "take redundant_copies 1 at all members, type REPLICATE"), (3, 4, "; take type REPLICATE, or")],
)
def test_a_member_that_would_miss_buckets_is_refused_with_a_remedy(copies, others, remedy):
    with pytest.raises(IllegalStateError) as refused:
        check_interest(made(redundant_copies=copies), others)
    assert "region 'data'" in str(refused.value) and remedy in str(refused.value)
    check_interest(made(redundant_copies=copies, interest_policy="cache-content"), others)


def test_members_that_store_nothing_need_no_replica():
    members = [
        MemberProfile(each, "127.0.0.1", 1, 1, hosting=(("data", weight), ("more", 1)))
        for each, weight in ((ME, 1), (OTHER, 5), (THIRD, 0))
    ]
    assert storing(members, "data", ME) == 1


def test_a_member_that_has_just_come_says_nothing_until_it_is_whole(caplog):
    interest = Interest(made())
    interest.see_members(1)
    interest.see_buckets(ME, {0: of(OTHER), 1: of(OTHER)})
    interest.say()
    interest.see_buckets(ME, {0: of(OTHER, ME)})
    interest.say()
    assert interest.unnotified == 1 and not caplog.records
    interest.see_buckets(ME, {1: of(OTHER, ME)})
    interest.say()
    assert interest.unnotified == 0 and not caplog.records


def test_a_bucket_that_waits_for_its_replicas_has_no_changes_that_could_be_missed(interest, caplog):
    interest.see_buckets(ME, {0: Bucket(isr=(OTHER,)), 1: None})
    interest.say()
    assert interest.unnotified == 0 and not caplog.records


def test_a_member_that_loses_a_replica_says_so_once_and_when_it_is_whole_again(interest, caplog):
    caplog.set_level("INFO")
    for _ in range(3):
        interest.see_buckets(ME, {0: of(OTHER)})
        interest.say()
    (line,) = caplog.messages
    assert "region data" in line and "not told of 1 of its buckets" in line
    interest.see_buckets(ME, {0: of(OTHER, ME)})
    interest.say()
    assert caplog.messages[1:] == ["region data: its listeners here are told of all its buckets again"]


def test_one_member_too_many_is_said_before_a_replica_moves_to_it(interest, caplog):
    interest.see_members(2)
    interest.say()
    (line,) = caplog.messages
    assert "3 members store 2 replicas of each; take redundant_copies 2 at all members" in line


def test_a_member_that_begins_anew_learns_its_replicas_again_without_a_word(interest, caplog):
    interest.forget()
    interest.see_buckets(ME, {0: of(OTHER), 1: of(OTHER)})
    interest.say()
    assert interest.unnotified == 2 and not caplog.records
