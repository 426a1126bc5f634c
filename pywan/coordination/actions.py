"""The actions that a coordinator requests from its driver, as immutable values.

Members load only coordination/messages, and do not load this module.
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
    """The driver tries to connect to the member's replication link, and reports the result (`Coordinator.probed`)."""

    member: MemberProfile


@dataclass(frozen=True, slots=True)
class Store:
    """To be on the disk before any later action of the same list is done. An entry with None has been removed."""

    newest: DecisionId
    recovery_epoch: int  # As `Decisions.recovery_epoch`.
    # Controller epochs, each with the last metadata record that it made.
    controller_epochs: tuple[tuple[int, int], ...]
    site_identity: str
    members: tuple[tuple[Incarnation, MemberProfile | None], ...]
    regions: tuple[tuple[str, RegionAttributes | None], ...]
    buckets: tuple[tuple[BucketKey, Bucket | None], ...]
    standby: Standby | None = None
    term: int = 0  # How often another locator has taken the coordination over.


@dataclass(frozen=True, slots=True)
class Lost:
    """Reports to an operator that buckets of a region have lost their last replicas. The buckets begin anew, empty."""

    region: str
    buckets: int


Action = Tell | Probe | Store | Lost
