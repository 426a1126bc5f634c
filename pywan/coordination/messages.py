"""Owns what a coordinator tells members. Immutable values."""

from __future__ import annotations

from dataclasses import dataclass

from pywan.coordination.tables import Bucket, BucketKey, DecisionId, MemberProfile, RegionAttributes


@dataclass(frozen=True, slots=True)
class Tables:
    """Decisions behind number `since`. A later decision about a bucket replaces an earlier one; None: it is no more.

    A member that has not stored everything up to `since` ignores the message: the next answer to `renew` has it all.
    `lease_us` counts from the moment at which the member sent the request that is answered; 0: nothing was renewed.
    """

    since: int
    newest: DecisionId  # The newest decision in it. The member reports it as stored when it has stored them all.
    coordinator: str
    site_identity: str
    lease_us: int
    members: tuple[MemberProfile, ...] | None  # All that are in the view; None: they are as they were.
    regions: tuple[tuple[str, RegionAttributes | None], ...]
    buckets: tuple[tuple[BucketKey, Bucket | None], ...]
    # Where `since` is 0: buckets about which this generation has not decided yet. Members keep what they know of them.
    undecided: tuple[BucketKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Says why, in words for the user. `retry_after_us` 0: the same request is refused again."""

    reason: str
    retry_after_us: int = 0
    join_again: bool = False  # The coordinator does not count this incarnation as a member: it is to begin a new one.
    report: bool = False  # The member is to join as it is, with all that it holds.
    earlier: MemberProfile | None = None  # An earlier incarnation of the name, which may still be alive.


@dataclass(frozen=True, slots=True)
class MayLeave:
    """Nobody waits for the member any more: it may end."""

    lost: tuple[tuple[str, int], ...] = ()  # By region: the buckets that end with it, as nobody else can store them.


@dataclass(frozen=True, slots=True)
class StillNeeded:
    """The member wants to leave, and others need it still."""

    waits_for: str = ""  # The member that leaves before it. Empty: its own buckets are handed over now.
    # Region, number of buckets, and to which member they are handed over. That is empty while none is chosen.
    buckets: tuple[tuple[str, int, str], ...] = ()
