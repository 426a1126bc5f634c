"""Owns the opening of a connection between two members of a site. Bytes come in, and bytes and values go out.

The opening is four bytes that name the protocol, the length of what follows, and a map in msgpack. It is answered in
the same way. In between, the member that gets it asks the member that it names, by a control request: is this opening
yours (docs/decisions/0085)? docs/wire_format.md describes the same, byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from pywan.base import versions
from pywan.base.names import is_name, printable, quoted
from pywan.coordination.tables import Incarnation
from pywan.errors import IncompatibleSystemError, ProtocolError

REPLICATION = b"PWL1"  # Changes of buckets, from their primary to a replica.
CALLS = b"PWK1"  # Operations on keys whose primary is the member that is called.
HEAD_BYTES = 8
BODY_BYTES_MAX = 4096
MEMBER_ID_MAX = 2**32 - 1
SITE_CHARACTERS_MAX = 64  # A site's identity has 16.
DEPTH_MAX = 255  # Of what an opening can say. A member serves fewer (WAN_CALL_DEPTH_MAX).
LINE_MAX = 2**63 - 1
WORD_BITS = 63
WORD_MAX = 2**WORD_BITS - 1
OWNS_OPENING = "owns-opening"  # The control request by which a member asks another one whether an opening is its own.
# A member that has just joined may be known to the opener before the called member hears of it. The called member waits
# so long for its tables to bring the opener. It is less than an opener waits for the answer.
VIEW_WAIT_S = 0.5

_HEAD = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a member says first. `to` is the incarnation that it means to reach.

    Of both, the name keeps the rule for names, and the number is from 1 to MEMBER_ID_MAX.
    """

    from_: Incarnation
    to: Incarnation
    site_identity: str  # At most SITE_CHARACTERS_MAX.
    # Drawn at random for this opening, from 1 to WORD_MAX. Only the two members hear it. Who gets the opening asks
    # `from_` whether it is its own.
    word: int
    version: int = field(default_factory=lambda: versions.VERSION)  # Read: the one that both ends speak.
    # Of calls: how many calls the caller's thread is serving, one within the other. Connections of one depth never wait
    # for those of a lower one. At most DEPTH_MAX.
    depth: int = 0
    # Of calls: counts the connections that the caller has opened. A later one takes the place of those before it of the
    # same depth: the caller has given them up. At most LINE_MAX.
    line: int = 0


def encode_opening(protocol: bytes, opening: Opening) -> bytes:
    body = {
        "from": [opening.from_.name, opening.from_.member_id],
        "to": [opening.to.name, opening.to.member_id],
        "site": opening.site_identity,
        "word": opening.word,
        "version": opening.version,
        "depth": opening.depth,
        "line": opening.line,
    }
    return _encode(protocol, body)


def encode_answer(protocol: bytes, refusal: str = "") -> bytes:
    """`refusal`: why the connection is refused; empty: it is accepted."""
    return _encode(protocol, {"refusal": refusal[:1000], "version": versions.VERSION})


def length_of_body(protocol: bytes, head: bytes) -> int:
    """Returns how many bytes follow the first HEAD_BYTES. ProtocolError if it is another protocol, or too much."""
    found, length = _HEAD.unpack(head)
    if found != protocol:
        raise ProtocolError(f"it speaks {found!r} where {protocol!r} is expected")
    if length > BODY_BYTES_MAX:
        raise ProtocolError(f"its opening has {length} bytes, at most {BODY_BYTES_MAX} are possible")
    return int(length)


def decode_opening(body: bytes) -> Opening:
    """Reads an opening. ProtocolError names the field that cannot be; IncompatibleSystemError: another version."""
    fields = _decode(body)
    agreed = versions.agreed(fields.get("version"), _opener(fields), "this member")
    site = fields.get("site")
    if not isinstance(site, str) or len(site) > SITE_CHARACTERS_MAX:
        raise ProtocolError(f"the opening of a member: site is {quoted(site)}, and no identity of a site")
    return Opening(
        _incarnation(fields, "from"),
        _incarnation(fields, "to"),
        site,
        _number(fields, "word", 1, WORD_MAX),
        agreed,
        _number(fields, "depth", 0, DEPTH_MAX),
        _number(fields, "line", 0, LINE_MAX),
    )


def check_answer(body: bytes, who: str) -> None:
    """Raises IncompatibleSystemError, with the words of the other side, if it refused; or in our own, if it speaks a
    version that does not go with ours."""
    fields = _decode(body)
    refusal = fields.get("refusal")
    if not isinstance(refusal, str):
        raise ProtocolError(f"{who}: the answer to the opening is not whole")
    if refusal:
        raise IncompatibleSystemError(f"{who} refused the connection: {printable(refusal)}")
    versions.agreed(fields.get("version"), who, "this member")


def refusal_of(opening: Opening, me: Incarnation, site_identity: str) -> str:
    """Returns why a member does not take this opening; empty: it does, if the opener is in its view."""
    if opening.to != me:
        return f"this is member {me}, and member {opening.to} is meant: it has ended"
    if opening.site_identity != site_identity:
        return (
            f"member {opening.from_} belongs to the site {quoted(opening.site_identity)}, and this is {site_identity}"
        )
    return ""


def stranger(opening: Opening, me: Incarnation) -> str:
    """Returns the words for an opener that is not in the view of the member that is called. It tries again soon, and an
    honest one is in the view by then."""
    return (
        f"member {opening.from_} is not among the members that member {me} knows of its site: it has come a moment ago,"
        " or the site has given it up"
    )


class Claim(NamedTuple):
    """What is to be an opening of the member `from_`, to the member `to`, which asks. Fields as those of `Opening`."""

    protocol: bytes  # replication link or CALLS.
    word: int
    from_: Incarnation
    to: Incarnation


def claim_request(claim: Claim) -> dict[str, Any]:
    """Returns the fields of a request OWNS_OPENING."""
    return {
        "protocol": claim.protocol.decode(),
        "word": claim.word,
        "from": [claim.from_.name, claim.from_.member_id],
        "to": [claim.to.name, claim.to.member_id],
    }


def claim_of(request: Mapping[str, Any]) -> Claim:
    """Reads a request OWNS_OPENING. ProtocolError names the field that cannot be."""
    protocol = request.get("protocol")
    if not isinstance(protocol, str) or protocol.encode(errors="replace") not in (REPLICATION, CALLS):
        raise ProtocolError(f"the opening of a member: protocol is {quoted(protocol)}, and no protocol of members")
    return Claim(
        protocol.encode(),
        _number(request, "word", 1, WORD_MAX),
        _incarnation(request, "from"),
        _incarnation(request, "to"),
    )


def claim_reply(is_own: bool) -> dict[str, Any]:
    return {"is_own": is_own}


def is_own(reply: Mapping[str, Any]) -> bool:
    """Whether a member says that the opening is its own. Nothing but a plain yes counts."""
    return reply.get("is_own") is True


def _encode(protocol: bytes, body: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(body)
    return _HEAD.pack(protocol, len(packed)) + packed


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(body, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the opening of a member cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError("the opening of a member is no map")
    return fields


def _opener(fields: dict[str, Any]) -> str:
    """Names the member that an opening is from, before it is read."""
    told = fields.get("from")
    return f"member {told[0]}" if isinstance(told, list) and told and is_name(told[0]) else "the other member"


def _number(fields: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A bool and a float are no numbers here, whatever they equal."""
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"the opening of a member: {name} is {quoted(value)}, and no number from {least} to {most}")
    return value


def _incarnation(fields: Mapping[str, Any], name: str) -> Incarnation:
    value = fields.get(name)
    if isinstance(value, list) and len(value) == 2:
        member, member_id = value
        if is_name(member) and type(member_id) is int and 0 < member_id <= MEMBER_ID_MAX:
            return Incarnation(member, member_id)
    raise ProtocolError(f"the opening of a member: {name} is {quoted(value)}, and no incarnation of a member")
