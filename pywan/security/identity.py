"""Owns what a process shows of itself to others: a user, and a password from the configuration or from a file."""

from __future__ import annotations

from pywan.base.files import FileError, read_secret
from pywan.errors import AuthenticationError, ConfigurationError
from pywan.security.manager import PASSWORD_BYTES_MAX, Credentials


class Identity:
    """Any thread may use it.

    Args:
        user: The name of the user. None: nothing is shown.
        password: The password. None: it is in the file.
        password_file: The file with the password in its first line. It is read each time, so that it can be changed.
        allow_plaintext: Whether a connection that is not encrypted may carry the password.
    """

    def __init__(
        self,
        user: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
        *,
        allow_plaintext: bool = False,
    ) -> None:
        self._user, self._password, self._file = user, password, password_file
        self._allow_plaintext = allow_plaintext

    def as_user(self, user: str | None, password_file: str | None) -> Identity:
        """Returns another user's, with the same rule for plain connections. None: this one."""
        return Identity(user, None, password_file, allow_plaintext=self._allow_plaintext) if user else self

    def shown_over(self, is_encrypted: bool, to: str) -> Credentials | None:
        """Returns what a connection is to carry. None: nothing.

        AuthenticationError: the connection is not encrypted, or the file with the password cannot be used.
        """
        if not self._user:
            return None
        if not is_encrypted and not self._allow_plaintext:
            raise AuthenticationError(
                f"the password of user {self._user!r} is not sent to {to} over a connection without TLS; encrypt it"
                " (ssl-enabled-components), or set security-allow-plaintext=true where nobody can listen"
            )
        try:
            return Credentials(self._user, self._password if self._password is not None else _first_line(self._file))
        except ConfigurationError as error:
            raise AuthenticationError(str(error)) from None


def _first_line(file: str | None) -> str:
    """Returns the password in a file. ConfigurationError if there is none, or if others can read it."""
    what = f"security-password-file {file}"
    try:
        data = read_secret(str(file), 2 * PASSWORD_BYTES_MAX)
    except FileError as error:
        raise ConfigurationError(f"{what} {error}") from None
    try:
        password = data.decode().partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what} is not in UTF-8") from None
    if not password:
        raise ConfigurationError(f"{what} has no password in its first line")
    return password


NOBODY = Identity()

__all__ = ["NOBODY", "Identity"]
