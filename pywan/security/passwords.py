"""Owns the form in which passwords are kept: salted, and costly to try out (scrypt)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import threading

from pywan.base.threads import Workers
from pywan.errors import ConfigurationError
from pywan.security.manager import PASSWORD_BYTES_MAX

# The cost of one try: 16 MiB, and about 50 ms of a processor. It is the same for all, so that a try says nothing of
# whether there is such a user, and no file can make tries cost more.
_N, _R, _P = 1 << 14, 8, 1
_MEMORY_MAX = 64 << 20
_SALT_BYTES, _HASH_BYTES = 16, 32
_FORM = re.compile(r"scrypt:16384:8:1:([A-Za-z0-9+/]{22}==):([A-Za-z0-9+/]{43}=)")


def check_password(password: str, what: str) -> str:
    """Returns the password. ConfigurationError if none can be that."""
    if not password or len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
        raise ConfigurationError(f"{what}: a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    return password


def hash_of(password: str) -> str:
    """Returns what is kept of a password."""
    salt = os.urandom(_SALT_BYTES)
    return f"scrypt:{_N}:{_R}:{_P}:{_text(salt)}:{_text(_scrypt(password, salt))}"


def is_hash(text: object) -> bool:
    """Returns whether this is what `hash_of` returns."""
    return isinstance(text, str) and _FORM.fullmatch(text) is not None


def fits(password: str, kept: str | None) -> bool:
    """Returns whether it is the password of which `kept` was kept. None: there is no such user; that takes as long."""
    if len(password.encode(errors="surrogatepass")) > PASSWORD_BYTES_MAX:
        password, kept = "", None
    found = _FORM.fullmatch(kept or _NOBODY)
    assert found is not None, "files are checked when they are read"
    tried = _scrypt(password, base64.b64decode(found[1]))
    return hmac.compare_digest(tried, base64.b64decode(found[2])) and kept is not None


def _scrypt(password: str, salt: bytes) -> bytes:
    """Works in one of two threads. In the threads of connections, the system's allocator would keep 16 MiB for each of
    its arenas."""
    data, found, done = password.encode(errors="surrogatepass"), bytearray(), threading.Event()

    def work() -> None:
        try:
            found.extend(hashlib.scrypt(data, salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY_MAX, dklen=_HASH_BYTES))
        finally:
            done.set()

    _workers.submit(work)
    done.wait()
    if not found:
        raise MemoryError("a password could not be looked at")
    return bytes(found)


def _begin_anew() -> None:
    """A forked child has none of these threads."""
    global _workers
    _workers = Workers(_AT_ONCE, name="passwords")


_AT_ONCE = 2
_workers = Workers(_AT_ONCE, name="passwords")
os.register_at_fork(after_in_child=_begin_anew)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY = f"scrypt:{_N}:{_R}:{_P}:{_text(bytes(_SALT_BYTES))}:{_text(bytes(_HASH_BYTES))}"

__all__ = ["check_password", "fits", "hash_of", "is_hash"]
