"""Owns how the options of security become a guard and an identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pywan.config.classes import make_instance
from pywan.config.security_attributes import CERTIFICATES_FILE, USERS_FILE, SecurityAttributes
from pywan.security.guard import Guard
from pywan.security.identity import Identity

if TYPE_CHECKING:
    from pywan.security.members_secret import MembersSecret

METHODS = ("authenticate", "authorize")


def guard_of(given: SecurityAttributes, who: str) -> Guard:
    """Returns what lets others in at the ports of `who`. ConfigurationError if the manager or its file cannot be
    used."""
    return Guard(_manager_of(given), who=who, secret=secret_of(given))


def identity_of(given: SecurityAttributes) -> Identity:
    """Returns what the process shows of itself. ConfigurationError if the file with the password cannot be used."""
    return Identity(given.username, given.password, given.password_file, allow_plaintext=given.allow_plaintext)


def secret_of(given: SecurityAttributes) -> MembersSecret | None:
    """Returns what members and locators of the site prove to each other. ConfigurationError if its file cannot be
    used."""
    if given.members_secret_file is None:
        return None
    from pywan.security.members_secret import MembersSecret  # A process that proves nothing does not load it.

    return MembersSecret(given.members_secret_file)


def gateway_identity_of(given: SecurityAttributes) -> Identity:
    """Returns what the process shows of itself to other sites."""
    return Identity(
        given.gateway_username,
        given.gateway_password,
        given.gateway_password_file,
        allow_plaintext=given.allow_plaintext,
    )


def _manager_of(given: SecurityAttributes) -> Any:
    if given.manager is None:
        return None
    if given.manager in (USERS_FILE, CERTIFICATES_FILE):
        # A process that asks nobody does not load what passwords are kept by.
        from pywan.security.users_file import CertificatesFile, UsersFile

        cls = UsersFile if given.manager == USERS_FILE else CertificatesFile
        return cls(given.users_file or "")
    return make_instance(given.manager, "security-manager", METHODS)


__all__ = ["gateway_identity_of", "guard_of", "identity_of", "secret_of"]
