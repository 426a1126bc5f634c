"""Owns what a coordinator asks its driver to do. Immutable values.

Members hear of none of them; they load coordination/messages only.
"""

from __future__ import annotations

from dataclasses import dataclass

from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    DecisionId,
    Incarnation,
    MemberProfile,
    RegionAttributes,
    Standby,
)


@dataclass(frozen=True, slots=True)
class Tell:
    to: Incarnation
    message: Tables | Refused | MayLeave | StillNeeded


@dataclass(frozen=True, slots=True)
class Probe:
    """The driver tries to connect to the member's lane, and reports what came of it (`Coordinator.probed`)."""

    member: MemberProfile


@dataclass(frozen=True, slots=True)
class Store:
    """To be on the disk before any later action of the same list is done. None: the entry is no more."""

    newest: DecisionId
    generation: int  # As `Decisions.generation`.
    runs: tuple[tuple[int, int], ...]  # Runs of the coordinator, each with the last decision that it made.
    site_identity: str
    members: tuple[tuple[Incarnation, MemberProfile | None], ...]
    regions: tuple[tuple[str, RegionAttributes | None], ...]
    buckets: tuple[tuple[BucketKey, Bucket | None], ...]
    standby: Standby | None = None
    term: int = 0  # How often another locator has taken the coordination over.


@dataclass(frozen=True, slots=True)
class Lost:
    """An operator is told that buckets of a region have lost their last copies. They begin anew, empty."""

    region: str
    buckets: int


Action = Tell | Probe | Store | Lost
