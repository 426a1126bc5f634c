"""Checks a member's proof of its identity, and of earlier incarnations of the same folder.

Each incarnation draws a nonce (pywan.base.nonces) and tells the nonce to the coordinator only. The profile has the
digest of the nonce (`mark`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pywan.base.nonces import fits, nonce_of
from pywan.coordination.tables import INCARNATIONS_KEPT, Incarnation, MemberProfile
from pywan.errors import ProtocolError


def is_proved(profile: MemberProfile | None, nonce: bytes | None) -> bool:
    """Whether a sender with this nonce is the member of the profile. None: no profile, or no nonce."""
    return profile is not None and fits(profile.mark, nonce)


def with_proved(
    profile: MemberProfile, nonces: Mapping[int, bytes], members: Mapping[Incarnation, MemberProfile]
) -> MemberProfile:
    """Returns the profile without unproved earlier incarnations: the profile names such incarnations, but the nonces do
    not prove their folder.

    A coordinator that has lost its file has no digest of an incarnation that never returned. The coordinator then
    believes the folder.

    Args:
        nonces: The nonces from the member, by the member id of the earlier incarnation.
        members: The profiles at the coordinator.
    """
    name = profile.incarnation.name

    def is_of_folder(member_id: int) -> bool:
        known = members.get(Incarnation(name, member_id))
        return known is None or is_proved(known, nonces.get(member_id))

    before = tuple(filter(is_of_folder, profile.before))
    return profile if before == profile.before else replace(profile, before=before)


def nonces_of(value: Any) -> dict[int, bytes]:
    """Reads the nonces of earlier incarnations, in the form of `plain_nonces`."""
    if value is None:
        return {}
    if not isinstance(value, list) or len(value) > INCARNATIONS_KEPT:
        raise ProtocolError(f"the nonces of earlier incarnations are a list of at most {INCARNATIONS_KEPT}")
    found: dict[int, bytes] = {}
    for each in value:
        if not isinstance(each, list) or len(each) != 2 or type(each[0]) is not int:
            raise ProtocolError("the nonce of an earlier incarnation has a member id and the nonce")
        nonce = nonce_of(each[1])
        if nonce is not None:
            found[each[0]] = nonce
    return found


def plain_nonces(nonces: Iterable[tuple[int, bytes]]) -> list[Any]:
    return [[member_id, nonce] for member_id, nonce in nonces if nonce]
