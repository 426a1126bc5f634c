"""Owns what can be configured of who a process is, and of whom it lets in: a table with a row for each option.

Options of commands, properties, environment variables, the map `security` of Python and a table of
docs/configuration.md are made from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pywan.config.ssl_attributes import to_file
from pywan.config.table import Attribute, Attributes
from pywan.errors import ConfigurationError

USERS_FILE, CERTIFICATES_FILE = "users-file", "certificates-file"


def to_manager(value: Any, what: str) -> Any:
    """Reads the name of a manager, or takes a class or an instance. None, or an empty text: there is none."""
    return None if value == "" else value


def to_password(value: Any, what: str) -> str | None:
    """Reads a password. It is in no error."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} is no text")
    return value


@dataclass(kw_only=True)
class SecurityAttributes(Attributes):
    """Who a process is, and whom it lets in: a member, a locator, the command line or a client."""

    kind, title = "security", "security"

    manager: Annotated[
        Any,
        Attribute(
            f"decides who may do what: {USERS_FILE}, {CERTIFICATES_FILE}, or a class package.module:Class",
            read=to_manager,
            option="security-manager",
            unset="nobody is asked who they are",
            more=f"`{USERS_FILE}`: users with passwords or certificates in `security-users-file`."
            f" `{CERTIFICATES_FILE}`: only those with certificates. In Python a class or an instance, too. For members"
            " and locators",
        ),
    ] = None
    users_file: Annotated[
        str | None,
        Attribute(
            "the file of users and roles, which `user add` makes",
            read=to_file,
            option="security-users-file",
            more="Nobody else can read or write it (0600). It is read again when it changes",
        ),
    ] = None
    username: Annotated[
        str | None,
        Attribute(
            "the user that this process is to members and locators of its own site",
            option="security-username",
            more="Other sites never see it: `gateway-username` is for them",
        ),
    ] = None
    password: Annotated[
        str | None,
        Attribute(
            "the password of that user",
            read=to_password,
            option="security-password",
            more="Not on a command line, where all users of the machine see it: in the environment or a property",
        ),
    ] = field(default=None, repr=False)
    password_file: Annotated[
        str | None,
        Attribute(
            "the file with that password in its first line",
            read=to_file,
            option="security-password-file",
            more="Nobody else can read or write it (0600). It is read for each connection",
        ),
    ] = None
    gateway_username: Annotated[
        str | None,
        Attribute(
            "the user that this process is to other sites",
            option="gateway-username",
            unset="other sites see its certificate only",
            more="For their locators, for their receivers if a sender has no `security-username` of its own, and for"
            " their senders with `authenticate-receiver`",
        ),
    ] = None
    gateway_password: Annotated[
        str | None,
        Attribute(
            "the password of that user",
            read=to_password,
            option="gateway-password",
            more="Not on a command line, where all users of the machine see it: in the environment or a property",
        ),
    ] = field(default=None, repr=False)
    gateway_password_file: Annotated[
        str | None,
        Attribute(
            "the file with that password in its first line",
            read=to_file,
            option="gateway-password-file",
            more="Nobody else can read or write it (0600). It is read for each connection",
        ),
    ] = None
    members_secret_file: Annotated[
        str | None,
        Attribute(
            "the file with the secret that members and locators of the site prove to each other",
            read=to_file,
            option="members-secret-file",
            more="The same for all of them; for members and locators. Nobody else can read or write it (0600). It is"
            " read again when it changes",
        ),
    ] = None
    allow_plaintext: Annotated[
        bool,
        Attribute(
            "send passwords over connections without TLS, too",
            option="security-allow-plaintext",
            more="Whoever can listen on the way then has them",
        ),
    ] = False

    def check(self) -> None:
        by_file = self.manager in (USERS_FILE, CERTIFICATES_FILE)
        if by_file and self.users_file is None:
            raise ConfigurationError(
                f"security-manager {self.manager} needs security-users-file: the file that `user add` makes"
            )
        if self.users_file is not None and not by_file:
            raise ConfigurationError(
                f"security-users-file has no effect without security-manager={USERS_FILE} or {CERTIFICATES_FILE}; name"
                " one of them, too, or leave it out"
            )
        _check_user("security", self.username, self.password, self.password_file)
        _check_user("gateway", self.gateway_username, self.gateway_password, self.gateway_password_file)
        if self.gateway_username is not None and (
            (self.password is not None and self.password == self.gateway_password)
            or (self.password_file is not None and self.password_file == self.gateway_password_file)
        ):
            raise ConfigurationError(
                "gateway-username has the same password as security-username: what other sites are shown must be of no"
                " use in the own one; take another password for it"
            )


def _check_user(prefix: str, user: str | None, password: str | None, file: str | None) -> None:
    """ConfigurationError: a user without a password, a password without a user, or two passwords."""
    has_password = password is not None or file is not None
    if user is not None and not has_password:
        raise ConfigurationError(f"{prefix}-username needs {prefix}-password-file or {prefix}-password")
    if has_password and user is None:
        raise ConfigurationError(f"{prefix}-password and {prefix}-password-file need {prefix}-username")
    if password is not None and file is not None:
        raise ConfigurationError(f"{prefix}-password and {prefix}-password-file are both given; leave one out")


def security_of(given: Mapping[str, Any] | None) -> SecurityAttributes:
    """Returns checked attributes from what a program or a command gives, by the names of the table: `username`, or
    `security-username` as commands have it. None: nobody is asked, and nothing is shown."""
    if given is None:
        return SecurityAttributes()
    if not isinstance(given, Mapping):
        raise ConfigurationError("security: it is no map of options, such as {'manager': 'users-file', ...}")
    values = {str(name).replace("-", "_").removeprefix("security_"): value for name, value in given.items()}
    return SecurityAttributes.make(**values)


__all__ = ["CERTIFICATES_FILE", "USERS_FILE", "SecurityAttributes", "security_of"]
