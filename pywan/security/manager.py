"""Owns what a class has to do that decides who somebody is, and what they may do."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from pywan.security.permissions import Permission

PASSWORD_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody shows.

    Attributes:
        user: The name of the user. "": none was told.
        password: The password of the user.
        certificate: The name in the certificate of the other end of an encrypted connection. "": it showed none.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    certificate: str = ""


class SecurityManager(Protocol):
    """Decides who somebody is, and what they may do. pywan calls it from many threads, authenticates two at once, and
    keeps what it says for some seconds.

    It may also have `authorize_in_some_region(principal, permission)`: whether `principal` may do this in one region at
    least. pywan asks that of the user of a sender who may not write all regions. Without the method it lets the
    sender in, and asks `authorize` for each region whose events come.
    """

    def authenticate(self, credentials: Credentials) -> Hashable:
        """Returns who it is, in any form whose text can be logged.

        Raises:
            AuthenticationError: Nobody is known by these credentials. The text goes to the log of this process; the
                other end hears "refused".
        """
        ...

    def authorize(self, principal: Hashable, permission: Permission) -> bool:
        """Returns whether `principal`, as `authenticate` returned it, may do this now. It is asked again while the
        connection lasts, so it says no for who is removed."""
        ...


__all__ = ["PASSWORD_BYTES_MAX", "Credentials", "SecurityManager"]
