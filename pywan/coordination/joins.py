"""Reads the request of a joining member (`coordination-join`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pywan.base.nonces import nonce_of
from pywan.coordination import encoding, plain
from pywan.coordination.proofs import nonces_of
from pywan.coordination.tables import (
    BucketKey,
    DecisionId,
    Holding,
    Incarnation,
    MemberProfile,
    RegionAttributes,
    Standby,
)
from pywan.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Join:
    """A join request. `regions` describes exactly the regions of the profile's `hosting` and the regions with a
    holding. Holdings name no bucket above the buckets of their region."""

    profile: MemberProfile
    regions: dict[str, RegionAttributes]
    holdings: dict[BucketKey, Holding]
    stored: DecisionId
    coordinator: str  # The coordinating locator, as the member knows; empty: none.
    ended: Incarnation | None  # The earlier incarnation whose end the member has seen.
    term: int  # The latest term that the member knows.
    standby: Standby | None  # The locator that may take over, as far as the member knows.
    nonce: bytes | None = field(repr=False)  # None: the member sends no nonce, and is not believed.
    nonces_before: dict[int, bytes] = field(repr=False)  # Of earlier incarnations of the member's folder, by member id.

    @property
    def nonces(self) -> dict[int, bytes]:
        """The nonces of the member and of its earlier incarnations, by member id."""
        own = {} if self.nonce is None else {self.profile.incarnation.member_id: self.nonce}
        return {**self.nonces_before, **own}


def join_of(request: Mapping[str, Any]) -> Join:
    """Reads a join request. ProtocolError: the request cannot be used, and nothing of it may be adopted."""
    profile = encoding.profile_of(request.get("profile"))
    stored = encoding.decision_id_of(request.get("stored"))
    regions = encoding.regions_of(request.get("regions", {}))
    coordinator = request.get("coordinator") or ""
    ended = request.get("ended")
    packed, standby = request.get("holdings"), request.get("standby")
    holdings = {} if packed is None else encoding.holdings_of(plain.unpack(packed), regions)
    hosted = {region for region, _ in profile.hosting}
    if not hosted <= regions.keys():
        raise ProtocolError(f"member {profile.incarnation} has region {min(hosted - regions.keys())}, not described")
    named = hosted | {key.region for key in holdings}
    if named != regions.keys():
        raise ProtocolError(
            f"member {profile.incarnation} describes region {min(regions.keys() - named)}, which it does not have, and"
            " of which it holds nothing"
        )
    return Join(
        profile,
        regions,
        holdings,
        stored,
        encoding.locator_of(coordinator) if coordinator else "",
        None if ended is None else encoding.incarnation_of(ended),
        encoding.term_of(request.get("term", 0)),
        None if standby is None else encoding.standby_of(standby),
        nonce_of(request.get("nonce")),
        nonces_of(request.get("nonces_before")),
    )
