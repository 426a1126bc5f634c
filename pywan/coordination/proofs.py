"""Owns how a member shows that it is the one that has joined: it knows a nonce, of which the other side has the mark.

Each incarnation draws a nonce and tells it to the coordinator only, and others that it tells to one locator each. The
mark in its profile is public: it is the SHA-256 of the nonce, which nobody can turn back. A nonce is never written to a
log, to a status or to the tables, and whoever checks it keeps the mark alone.
"""

from __future__ import annotations

import os
from _operator import _compare_digest  # `hmac`, which has it too, loads OpenSSL.
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pywan.coordination.tables import INCARNATIONS_KEPT, Incarnation, MemberProfile
from pywan.errors import ProtocolError

try:  # `hashlib` loads OpenSSL, for which a member has no other use.
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:  # Before Python 3.12.
    from _sha256 import sha256  # type: ignore[import-not-found]

NONCE_BYTES = 16


def draw_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def mark_of(nonce: bytes) -> bytes:
    """Returns what may be known of a nonce by others, such as in the profile of a member."""
    return sha256(nonce).digest()  # type: ignore[no-any-return]


def fits(mark: bytes, nonce: object) -> bool:
    """Whether a sender that tells this, as it came, knows the nonce of this mark."""
    return isinstance(nonce, bytes) and bool(_compare_digest(mark_of(nonce), mark))


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


def nonce_of(value: Any) -> bytes | None:
    """Reads a nonce. None: the message has none. ProtocolError names no part of what is not one: it may be a secret."""
    return None if value is None else needed_nonce_of(value)


def needed_nonce_of(value: Any) -> bytes:
    """As `nonce_of`, of a message that has one. ProtocolError: it has none."""
    if isinstance(value, bytes) and len(value) == NONCE_BYTES:
        return value
    raise ProtocolError(f"a member proves that it speaks by a nonce of {NONCE_BYTES} bytes")


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
