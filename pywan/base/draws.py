"""Owns the numbers that tell one life of a thing from another one: nobody can guess them, and none comes twice."""

from __future__ import annotations

import os


def drawn_number(bits: int) -> int:
    """Returns a number below 2**bits, drawn at random by the system.

    It is what `secrets.randbits` returns, but an import of `secrets` loads OpenSSL.
    """
    return int.from_bytes(os.urandom((bits + 7) // 8), "little") >> -bits % 8
