"""The opening of a connection between two members."""

from __future__ import annotations

import contextlib
import random

import pytest

from pywan.base import versions
from pywan.coordination.tables import Incarnation
from pywan.errors import IncompatibleSystemError, ProtocolError, PywanError
from pywan.protocol import between_members as wire

ONE, OTHER = Incarnation("one", 1), Incarnation("other", 2)


def body_of(message: bytes, protocol: bytes = wire.REPLICATION) -> bytes:
    length = wire.length_of_body(protocol, message[: wire.HEAD_BYTES])
    assert len(message) == wire.HEAD_BYTES + length
    return message[wire.HEAD_BYTES :]


def test_an_opening_arrives_as_it_was_sent():
    opening = wire.Opening(ONE, OTHER, "site-7", 5)
    assert wire.decode_opening(body_of(wire.encode_opening(wire.REPLICATION, opening))) == opening


def test_an_answer_says_why_it_is_refused():
    wire.check_answer(body_of(wire.encode_answer(wire.REPLICATION)), "member other")
    with pytest.raises(IncompatibleSystemError, match="member other refused the connection: it is late"):
        wire.check_answer(body_of(wire.encode_answer(wire.REPLICATION, "it is late")), "member other")


def test_a_member_of_another_life_or_site_is_refused_by_name():
    assert wire.refusal_of(wire.Opening(ONE, OTHER, "site-7", 5), OTHER, "site-7") == ""
    assert "it has ended" in wire.refusal_of(wire.Opening(ONE, OTHER, "site-7", 5), Incarnation("other", 3), "site-7")
    assert "site-8" in wire.refusal_of(wire.Opening(ONE, OTHER, "site-8", 5), OTHER, "site-7")


def test_a_version_that_does_not_go_with_ours_is_refused_with_the_remedy(monkeypatch):
    later = wire.Opening(ONE, OTHER, "site-7", 5, versions.VERSION + 1)
    assert wire.decode_opening(body_of(wire.encode_opening(wire.REPLICATION, later))).version == versions.VERSION
    message = wire.encode_opening(wire.REPLICATION, wire.Opening(ONE, OTHER, "site-7", 5, versions.VERSION + 2))
    with pytest.raises(IncompatibleSystemError, match=f"member {ONE.name} speaks version 3 .* upgrade the site"):
        wire.decode_opening(body_of(message))
    answer = body_of(wire.encode_answer(wire.REPLICATION))
    monkeypatch.setattr(versions, "VERSION", versions.VERSION + 2)
    with pytest.raises(IncompatibleSystemError, match="member other speaks version 1"):
        wire.check_answer(answer, "member other")


def test_another_protocol_and_too_long_a_body_are_refused_before_they_are_read():
    with pytest.raises(ProtocolError, match="PWL1"):
        wire.length_of_body(wire.REPLICATION, b"GET / HT")
    with pytest.raises(ProtocolError, match="at most 4096"):
        wire.length_of_body(wire.REPLICATION, wire.REPLICATION + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("seed", range(300))
def test_damaged_openings_are_refused_and_nothing_else_happens(seed):
    chance = random.Random(seed)
    body = bytearray(body_of(wire.encode_opening(wire.REPLICATION, wire.Opening(ONE, OTHER, "site-7", 5))))
    for _ in range(chance.randint(1, 4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    with contextlib.suppress(PywanError):  # Any other error fails the test.
        wire.decode_opening(bytes(body[: chance.randint(1, len(body))]))
