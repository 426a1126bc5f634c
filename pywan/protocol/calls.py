"""Owns the words in which a member says why a call failed, and who is primary instead of it. Calls themselves are
compiled (pywan._core.calls.call_session)."""

from __future__ import annotations

import re
from typing import Any

import msgpack

from pywan import errors
from pywan.base.names import is_host, is_name, printable

MAX_PRIMARY_BYTES = 1024
EPOCH_MAX = 2**63 - 1  # As `Epoch.word`.
# Name and number of the member (from 1 to 2^32 - 1), its host and port, the epoch word (from 1 to EPOCH_MAX).
Primary = tuple[str, int, str, int, int]


def error_of(words: bytes) -> errors.PywanError:
    """Returns the error that the other member had: "[kind of a pywan error] words". RemoteError for other kinds."""
    text = printable(words.rstrip(b"\0").decode("utf-8", "replace"))
    named = re.match(r"\[(\w+)\] ", text)
    cls: Any = getattr(errors, named[1], None) if named else None
    if named and isinstance(cls, type) and issubclass(cls, errors.PywanError):
        error: errors.PywanError = cls(text[named.end() :])
        return error
    return errors.RemoteError(text)


def encode_primary(primary: Primary) -> bytes:
    """Returns the payload of an answer "not primary", which says who is."""
    return msgpack.packb(primary)  # type: ignore[no-any-return]


def decode_primary(payload: bytes) -> Primary | None:
    """Returns who is primary, as another member says. None: it does not say, or it says what cannot be."""
    if not 0 < len(payload) <= MAX_PRIMARY_BYTES:
        return None
    try:
        fields = msgpack.unpackb(payload)
    except ValueError:
        return None
    if not isinstance(fields, list) or len(fields) != 5:
        return None
    name, member_id, host, port, epoch = fields
    if not is_name(name) or not is_host(host):
        return None
    for number, most in ((member_id, 2**32 - 1), (port, 65535), (epoch, EPOCH_MAX)):
        if type(number) is not int or not 0 < number <= most:
            return None
    return name, member_id, host, port, epoch
