"""Defines the messages of a coordinator to members. All values are immutable; fields declare their ranges, as in
tables.py."""

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

REASON_MAX = 4_000  # Characters in the reason of a refusal.

Count = Annotated[int, Range(0, BUCKETS_MAX)]
Time = Annotated[int, Range(0, DELAY_MAX_US)]


@dataclass(frozen=True, slots=True)
class Tables:
    """Metadata records behind number `since`. A later record about a bucket replaces an earlier one; None: the bucket
    is gone.

    A member that has not stored everything up to `since` ignores the message: the next answer to `renew` has
    everything. `lease_us` counts from the sending of the member's request; 0: no lease was renewed.
    """

    since: Number
    newest: DecisionId  # The newest record here. The member reports it as stored after storing all records.
    coordinator: Annotated[str, Name()]
    site_identity: Identity
    lease_us: Time
    members: tuple[MemberProfile, ...] | None  # All members of the view; None: no change.
    regions: tuple[tuple[str, RegionAttributes | None], ...]
    buckets: tuple[tuple[BucketKey, Bucket | None], ...]
    # If `since` is 0: buckets without a record from the present metadata recovery. Members keep their own metadata
    # about these buckets.
    undecided: tuple[BucketKey, ...] = ()
    standby: Standby | None = None  # The locator that may take over. None: no standby.


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal with the reason, in words for the user. `retry_after_us` 0: the same request is refused again."""

    reason: Annotated[str, Text(REASON_MAX)]
    retry_after_us: Time = 0
    join_again: bool = False  # The incarnation is not a member for the coordinator: begin a new one.
    report: bool = False  # The member has to join again unchanged, with a full report of its buckets.
    earlier: MemberProfile | None = None  # An earlier incarnation of the name, perhaps still alive.


@dataclass(frozen=True, slots=True)
class MayLeave:
    """The site waits for the member no more: the process may end."""

    lost: Annotated[
        tuple[tuple[RegionName, Count], ...], Most(REGIONS_MAX)
    ] = ()  # By region: the buckets that end with the member, as no other member can store the region.


@dataclass(frozen=True, slots=True)
class StillNeeded:
    """The member drains, and the site still needs the member."""

    waits_for: Annotated[str, Name(or_none=True)] = (
        ""  # The member that drains first. Empty: the buckets of this member are handed over now.
    )
    # Region, number of buckets, and the name of the next primary. The name is empty until a next primary is chosen.
    buckets: Annotated[tuple[tuple[RegionName, Count, Annotated[str, Name(or_none=True)]], ...], Most(BUCKETS_MAX)] = ()
