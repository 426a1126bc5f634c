"""Owns the secret that the members and locators of a site have together, and how two of them prove to each other that
they have it without sending it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
import time
from typing import Any, NamedTuple, TypeGuard

from pywan.base.files import FileError, file_state, read_secret
from pywan.base.lines import Lines
from pywan.errors import AuthenticationError, ConfigurationError

log = logging.getLogger("pywan.security")

SECRETS_MAX = 2  # Both hold while it is changed from one to the other.
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 1024  # Nobody guesses 32 random bytes, so a proof may be shown to anybody.
NONCE_BYTES, PROOF_BYTES, ID_BYTES = 32, 32, 8
LOOK_S = 3.0  # So often at most it is looked whether the file has changed.
_lines = Lines(log)


class Challenge(NamedTuple):
    """What the end that listens keeps between its answer and the proof of the other one."""

    key: bytes
    words: bytes


class MembersSecret:
    """Any thread may use it. The file is read again when it changes; one that cannot be used then changes nothing.

    Args:
        file: One or two lines, each a secret. The first one is preferred.

    Raises:
        ConfigurationError: The file cannot be used.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._lock = threading.Lock()  # Guards all below.
        self._state, self._looked_s = file_state(file), time.monotonic()
        self._keys = _read(file)

    def keys(self) -> tuple[bytes, ...]:
        """Returns the secrets, the preferred one first."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s, state = now_s, file_state(self._file)
                if state != self._state:
                    self._state = state
                    try:
                        self._keys = _read(self._file)
                        log.info("the secret of the members was read again: %s", self._file)
                    except ConfigurationError as error:
                        _lines.error("the secret of the members has changed and is not taken: %s", error)
            return self._keys

    # The end that connects

    def begin(self) -> tuple[dict[str, Any], bytes]:
        """Returns the fields of the first message, and the nonce that is in them."""
        nonce = os.urandom(NONCE_BYTES)
        return {"nonce": nonce, "keys": [_id(key) for key in self.keys()]}, nonce

    def finish(self, nonce: bytes, reply: dict[str, Any], bound_to: bytes) -> dict[str, Any]:
        """Returns the fields of the second message, which prove this end.

        Args:
            nonce: That of `begin`.
            reply: What the other end has answered.
            bound_to: What tells the connection from those to other processes: `Link.bound_to`.

        Raises:
            AuthenticationError: The other end has not proven that it has the secret.
        """
        theirs, id_, proof = reply.get("nonce"), reply.get("key"), reply.get("proof")
        key = next((each for each in self.keys() if _id(each) == id_), None)
        if key is None or not _is_bytes(theirs, NONCE_BYTES) or not _is_bytes(proof, PROOF_BYTES):
            raise AuthenticationError("it does not prove the secret of the members")
        words = _words(nonce, theirs, bound_to)
        if not hmac.compare_digest(proof, _proof(key, b"listens", words)):
            raise AuthenticationError("it does not prove the secret of the members")
        return {"proof": _proof(key, b"connects", words)}

    # The end that listens

    def answer(self, request: dict[str, Any], bound_to: bytes) -> tuple[dict[str, Any], Challenge]:
        """Returns the reply to the first message, which proves this end, and what to keep for the second one.

        AuthenticationError: the other end has another secret.
        """
        nonce, ids = request.get("nonce"), request.get("keys")
        if not _is_bytes(nonce, NONCE_BYTES) or not isinstance(ids, list) or len(ids) > SECRETS_MAX:
            raise AuthenticationError("no challenge")
        key = next((each for each in self.keys() if _id(each) in ids), None)
        if key is None:
            raise AuthenticationError("another secret of members")
        ours = os.urandom(NONCE_BYTES)
        words = _words(nonce, ours, bound_to)
        return {"nonce": ours, "key": _id(key), "proof": _proof(key, b"listens", words)}, Challenge(key, words)

    @staticmethod
    def is_proven(challenge: Challenge, request: dict[str, Any]) -> bool:
        """Whether the second message proves the other end."""
        proof = request.get("proof")
        return _is_bytes(proof, PROOF_BYTES) and hmac.compare_digest(
            proof, _proof(challenge.key, b"connects", challenge.words)
        )


def _is_bytes(value: Any, length: int) -> TypeGuard[bytes]:
    return isinstance(value, bytes) and len(value) == length


def _words(connecting: bytes, listening: bytes, bound_to: bytes) -> bytes:
    return connecting + listening + (hashlib.sha256(bound_to).digest() if bound_to else b"")


def _proof(key: bytes, end: bytes, words: bytes) -> bytes:
    return hmac.digest(key, end + b"\0" + words, "sha256")


def _id(key: bytes) -> bytes:
    """Tells two secrets apart, and nothing of either."""
    return hmac.digest(key, b"id", "sha256")[:ID_BYTES]


def _read(file: str) -> tuple[bytes, ...]:
    what = f"members-secret-file {file}"
    try:
        data = read_secret(file, SECRETS_MAX * (SECRET_BYTES_MAX + 2))
    except FileError as error:
        raise ConfigurationError(f"{what} {error}") from None
    secrets = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not 0 < len(secrets) <= SECRETS_MAX or not all(
        SECRET_BYTES_MIN <= len(each) <= SECRET_BYTES_MAX for each in secrets
    ):
        raise ConfigurationError(
            f"{what} has {len(secrets)} lines that are not empty, or one of them has not {SECRET_BYTES_MIN} to"
            f" {SECRET_BYTES_MAX} bytes: it has one secret, or two while one takes the place of the other; `openssl"
            f" rand -hex 32 > {file}` makes one"
        )
    return secrets


__all__ = ["Challenge", "MembersSecret"]
