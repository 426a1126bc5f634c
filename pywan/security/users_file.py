"""Owns the security managers that go by a file of users."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

from pywan.base.files import file_state
from pywan.base.lines import Lines
from pywan.errors import AuthenticationError, ConfigurationError
from pywan.security.manager import Credentials
from pywan.security.passwords import fits
from pywan.security.permissions import Permission
from pywan.security.users import User, Users, read_users

log = logging.getLogger("pywan.security")

LOOK_S = 1.0  # So often at most it is looked whether the file has changed.


@dataclass(frozen=True, slots=True)
class Known:
    """A user who has shown the right credentials. With another password it is somebody else."""

    name: str
    proof: str = field(repr=False)

    def __str__(self) -> str:
        return self.name


class UsersFile:
    """Knows users by the passwords in a file, and by the names of certificates in it. The file is read again when it
    has changed; one that cannot be used is not taken, and what was read before stays.

    Args:
        file: The file.
        by_password: Whether passwords count. False: only certificates do.
    """

    def __init__(self, file: str | os.PathLike[str], *, by_password: bool = True) -> None:
        self._file, self._by_password = Path(file).absolute(), by_password
        self._lock = threading.Lock()  # Guards what follows.
        self._lines, self._what = Lines(log), f"{self._file} has changed and is not taken, the users before stay"
        self._seen = file_state(self._file)
        self._users = read_users(self._file)
        self._looked_s = time.monotonic()

    def authenticate(self, credentials: Credentials) -> Hashable:
        users = self._now().users
        if credentials.user or not credentials.certificate:
            if not self._by_password:
                raise AuthenticationError("only certificates count here, and a user and a password came")
            user = users.get(credentials.user)
            if user is None or user.password is None:
                fits(credentials.password, None)
                raise AuthenticationError(f"there is no user {credentials.user!r:.300} with a password")
            if not fits(credentials.password, user.password):
                raise AuthenticationError(f"the password of user {credentials.user!r:.300} is wrong")
            return Known(credentials.user, user.proof)
        user = users.get(credentials.certificate)
        if user is None or user.password is not None:
            raise AuthenticationError(f"there is no user with a certificate of {credentials.certificate!r:.300}")
        return Known(credentials.certificate, user.proof)

    def authorize(self, principal: Hashable, permission: Permission) -> bool:
        users, user = self._found(principal)
        return user is not None and users.may(user, permission)

    def authorize_in_some_region(self, principal: Hashable, permission: Permission) -> bool:
        users, user = self._found(principal)
        return user is not None and users.may_in_some_region(user, permission)

    def _found(self, principal: Hashable) -> tuple[Users, User | None]:
        """Returns what the file says, and the user. None: the user was removed, or has another password by now."""
        users = self._now()
        user = users.users.get(principal.name) if isinstance(principal, Known) else None
        is_the_same = user is not None and isinstance(principal, Known) and user.proof == principal.proof
        return users, user if is_the_same else None

    def _now(self) -> Users:
        """Returns what the file says, as far as it can be used."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s < LOOK_S:
                return self._users
            self._looked_s = now_s
            state = file_state(self._file)
            if state == self._seen:
                return self._users
            try:
                self._users = read_users(self._file)
            except ConfigurationError as error:
                self._lines.failed(self._what, error)
            else:
                self._seen = state
                self._lines.works(self._what)
                log.info("%s was read again: %d users", self._file, len(self._users.users))
            return self._users


class CertificatesFile(UsersFile):
    """Knows users by the names of their certificates alone, which the same kind of file lists with their roles.

    Args:
        file: The file.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        super().__init__(file, by_password=False)


__all__ = ["CertificatesFile", "UsersFile"]
