"""Owns the opening of a connection between two members of a site. Bytes come in, and bytes and values go out.

The opening is four bytes that name the protocol, the length of what follows, and a map in msgpack. It is answered in
the same way. docs/wire_format.md describes the same, byte by byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from pywan.base.names import check_name, quoted
from pywan.coordination.tables import Incarnation
from pywan.errors import IncompatibleSystemError, ProtocolError

LANE = b"PWL1"  # Changes of buckets, from their primary to a copy.
CALLS = b"PWK1"  # Operations on keys whose primary is the member that is called.
VERSION = 2
HEAD_BYTES = 8
BODY_BYTES_MAX = 4096

_HEAD = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a member says first. `to` is the incarnation that it means to reach."""

    from_: Incarnation
    to: Incarnation
    site_identity: str
    version: int = VERSION
    # Of calls: how many calls the caller's thread is serving, one within the other. Connections of one depth never wait
    # for those of a lower one.
    depth: int = 0
    # Of calls: counts the connections that the caller has opened. A later one takes the place of those before it of the
    # same depth: the caller has given them up.
    line: int = 0


def encode_opening(protocol: bytes, opening: Opening) -> bytes:
    body = {
        "from": [opening.from_.name, opening.from_.member_id],
        "to": [opening.to.name, opening.to.member_id],
        "site": opening.site_identity,
        "version": opening.version,
        "depth": opening.depth,
        "line": opening.line,
    }
    return _encode(protocol, body)


def encode_answer(protocol: bytes, refusal: str = "") -> bytes:
    """`refusal`: why the connection is refused; empty: it is accepted."""
    return _encode(protocol, {"refusal": refusal[:1000]})


def length_of_body(protocol: bytes, head: bytes) -> int:
    """Returns how many bytes follow the first HEAD_BYTES. ProtocolError if it is another protocol, or too much."""
    found, length = _HEAD.unpack(head)
    if found != protocol:
        raise ProtocolError(f"it speaks {found!r} where {protocol!r} is expected")
    if length > BODY_BYTES_MAX:
        raise ProtocolError(f"its opening has {length} bytes, at most {BODY_BYTES_MAX} are possible")
    return int(length)


def decode_opening(body: bytes) -> Opening:
    fields = _decode(body)
    try:
        version = int(fields["version"])
        if version != VERSION:
            raise IncompatibleSystemError(
                f"the other member speaks version {version} of the protocol between members, and this one {VERSION}:"
                " run the same version of pywan on all members of a site"
            )
        return Opening(
            _incarnation(fields["from"]),
            _incarnation(fields["to"]),
            str(fields["site"]),
            version,
            int(fields.get("depth", 0)),
            int(fields.get("line", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the opening of a member is not whole: {error!r}") from None


def check_answer(body: bytes, who: str) -> None:
    """Raises IncompatibleSystemError, with the words of the other side, if it refused."""
    refusal = _decode(body).get("refusal")
    if not isinstance(refusal, str):
        raise ProtocolError(f"{who}: the answer to the opening is not whole")
    if refusal:
        raise IncompatibleSystemError(f"{who} refused the connection: {refusal}")


def refusal_of(opening: Opening, me: Incarnation, site_identity: str) -> str:
    """Returns why a member does not take this opening; empty: it does."""
    if opening.to != me:
        return f"this is member {me}, and member {opening.to} is meant: it has ended"
    if opening.site_identity != site_identity:
        return (
            f"member {opening.from_} belongs to the site {quoted(opening.site_identity)}, and this is {site_identity}"
        )
    return ""


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


def _incarnation(value: Any) -> Incarnation:
    name, member_id = value
    return Incarnation(check_name(name, "member"), int(member_id))
