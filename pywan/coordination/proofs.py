"""Owns how a member shows that it is the one that has joined, and that its earlier incarnations were of its folder.

Each incarnation draws a nonce (pywan.base.nonces) and tells it to the coordinator only. Its profile has the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pywan.base.nonces import fits, nonce_of
from pywan.coordination.tables import INCARNATIONS_KEPT, Incarnation, MemberProfile
from pywan.errors import ProtocolError


def is_proved(profile: MemberProfile | None, nonce: bytes | None) -> bool:
    """Whether a sender that knows this nonce is the member of this profile. None: there is no profile, or no nonce."""
    return profile is not None and fits(profile.mark, nonce)


def with_proved(
    profile: MemberProfile, nonces: Mapping[int, bytes], members: Mapping[Incarnation, MemberProfile]
) -> MemberProfile:
    """Returns the profile without the earlier incarnations that it names and does not prove to be of its folder.

    A coordinator that has lost its file has no mark of an incarnation that did not come back. It believes the folder.

    Args:
        nonces: Those that the member tells, by the member id of the earlier incarnation.
        members: The profiles that the coordinator has.
    """
    name = profile.incarnation.name

    def is_of_folder(member_id: int) -> bool:
        known = members.get(Incarnation(name, member_id))
        return known is None or is_proved(known, nonces.get(member_id))

    before = tuple(filter(is_of_folder, profile.before))
    return profile if before == profile.before else replace(profile, before=before)


def nonces_of(value: Any) -> dict[int, bytes]:
    """Reads the nonces of earlier incarnations, as `plain_nonces` has them."""
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
