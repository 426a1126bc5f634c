"""Owns what a coordinator tells members. Immutable values; each field says what it may hold, as in tables.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pywan.coordination.plain import Most, Name, Range, Text
from pywan.coordination.tables import (
    BUCKETS_MAX,
    DELAY_MAX_US,
    REGIONS_MAX,
    Bucket,
    BucketKey,
    DecisionId,
    Identity,
    MemberProfile,
    Number,
    RegionAttributes,
    RegionName,
    Standby,
)

REASON_MAX = 4_000  # Characters of a refusal.

Count = Annotated[int, Range(0, BUCKETS_MAX)]
Time = Annotated[int, Range(0, DELAY_MAX_US)]


@dataclass(frozen=True, slots=True)
class Tables:
    """Decisions behind number `since`. A later decision about a bucket replaces an earlier one; None: it is no more.

    A member that has not stored everything up to `since` ignores the message: the next answer to `renew` has it all.
    `lease_us` counts from the moment at which the member sent the request that is answered; 0: nothing was renewed.
    """

    since: Number
    newest: DecisionId  # The newest decision in it. The member reports it as stored when it has stored them all.
    coordinator: Annotated[str, Name()]
    site_identity: Identity
    lease_us: Time
    members: tuple[MemberProfile, ...] | None  # All that are in the view; None: they are as they were.
    regions: tuple[tuple[str, RegionAttributes | None], ...]
    buckets: tuple[tuple[BucketKey, Bucket | None], ...]
    # Where `since` is 0: buckets about which this generation has not decided yet. Members keep what they know of them.
    undecided: tuple[BucketKey, ...] = ()
    standby: Standby | None = None  # The locator that may take over. None: none may.


@dataclass(frozen=True, slots=True)
class Refused:
    """Says why, in words for the user. `retry_after_us` 0: the same request is refused again."""

    reason: Annotated[str, Text(REASON_MAX)]
    retry_after_us: Time = 0
    join_again: bool = False  # The coordinator does not count this incarnation as a member: it is to begin a new one.
    report: bool = False  # The member is to join as it is, with all that it holds.
    earlier: MemberProfile | None = None  # An earlier incarnation of the name, which may still be alive.


@dataclass(frozen=True, slots=True)
class MayLeave:
    """Nobody waits for the member any more: it may end."""

    lost: Annotated[
        tuple[tuple[RegionName, Count], ...], Most(REGIONS_MAX)
    ] = ()  # By region: the buckets that end with it, as nobody else can store them.


@dataclass(frozen=True, slots=True)
class StillNeeded:
    """The member wants to leave, and others need it still."""

    waits_for: Annotated[str, Name(or_none=True)] = (
        ""  # The member that leaves before it. Empty: its own buckets are handed over now.
    )
    # Region, number of buckets, and to which member they are handed over. That is empty while none is chosen.
    buckets: Annotated[tuple[tuple[RegionName, Count, Annotated[str, Name(or_none=True)]], ...], Most(BUCKETS_MAX)] = ()
