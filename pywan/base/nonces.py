"""Owns the secrets by which a process shows that it is the one that has come before: it knows a nonce, of which the
other side keeps the mark.

A nonce is told to the one process that checks it. It is never written to a log, to a status or to the tables. The mark
is its SHA-256, which nobody can turn back: everybody may see it.
"""

from __future__ import annotations

import os
from _operator import _compare_digest  # `hmac`, which has it too, loads OpenSSL.
from typing import Any

from pywan.errors import ProtocolError

try:  # `hashlib` loads OpenSSL, for which a member has no other use.
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:  # Before Python 3.12.
    from _sha256 import sha256  # type: ignore[import-not-found]

NONCE_BYTES = 16


def draw_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def mark_of(nonce: bytes) -> bytes:
    return sha256(nonce).digest()  # type: ignore[no-any-return]


def fits(mark: bytes, nonce: object) -> bool:
    """Whether a sender that tells this, as it came, knows the nonce of this mark."""
    return isinstance(nonce, bytes) and bool(_compare_digest(mark_of(nonce), mark))


def nonce_of(value: Any) -> bytes | None:
    """Reads a nonce. None: the message has none. ProtocolError names no part of what is not one: it may be a secret."""
    return None if value is None else needed_nonce_of(value)


def needed_nonce_of(value: Any) -> bytes:
    """As `nonce_of`, of a message that has one. ProtocolError: it has none."""
    if isinstance(value, bytes) and len(value) == NONCE_BYTES:
        return value
    raise ProtocolError(f"a member proves that it speaks by a nonce of {NONCE_BYTES} bytes")
