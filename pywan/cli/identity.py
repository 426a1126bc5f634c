"""Owns the options of commands that say who a process is and whom it lets in, and what a run of the program takes of
them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from pywan.base.files import given_path
from pywan.config.options import Option
from pywan.config.security_attributes import SecurityAttributes
from pywan.config.table import Row, table
from pywan.errors import ConfigurationError

_FILES = frozenset(("users_file", "password_file", "gateway_password_file", "members_secret_file"))
PASSWORDS = ("security-password", "gateway-password")  # Options that no command line has.


def _variable(row: Row) -> str:
    return "PYWAN_" + row.option.upper().replace("-", "_")


def _options(rows: Iterable[Row]) -> tuple[Option, ...]:
    """A password is no option: all users of a machine see command lines."""
    return tuple(
        Option(row.option, row.help(), flag=row.is_flag, variable=_variable(row))
        for row in rows
        if row.option not in PASSWORDS
    )


_ROWS = table(SecurityAttributes)
# Who a process is that is no member and no locator.
_OWN = tuple(row for row in _ROWS if row.name in ("username", "password", "password_file", "allow_plaintext"))
SECURITY_OPTIONS = _options(_ROWS)
IDENTITY_OPTIONS = _options(_OWN)
SECURITY_PROPERTIES = tuple(row.option for row in _ROWS)


def check_no_password(names: Iterable[str]) -> None:
    """Raises ConfigurationError if the command line sets the password as a property (`--J`)."""
    for each in PASSWORDS:
        if each in names:
            raise ConfigurationError(
                f"--J: {each} on a command line can be seen by all users of the machine; give it in a file"
                f" ({each}-file), in {each.upper().replace('-', '_')} of the environment with PYWAN_ in front, or in a"
                " properties file"
            )


def security_in(values: Mapping[str, Any], properties: Mapping[str, str] = {}) -> dict[str, Any] | None:
    """Returns the map `security` for a member, from options, and from properties and the environment for what is not
    given. Files have absolute names, since a member works elsewhere. None: nothing is given."""
    return _found(_ROWS, values, properties)


def identity_in(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the map `security` for a connection from options, and from the environment what they do not give. None:
    no option is given."""
    given = [row for row in _OWN if values.get(row.option.replace("-", "_"))]
    return _found(_OWN, values, {}) if given else None


def identity_of_environment() -> dict[str, Any] | None:
    """Returns the same from environment variables, for commands that have no such options."""
    texts = {row.option.replace("-", "_"): os.environ.get(_variable(row), "").strip() for row in _OWN}
    return _found(_OWN, {key: text for key, text in texts.items() if text}, {})


def _found(rows: Iterable[Row], values: Mapping[str, Any], properties: Mapping[str, str]) -> dict[str, Any] | None:
    found = {}
    for row in rows:
        value = values.get(row.option.replace("-", "_")) or properties.get(row.option)
        if not value and row.option in PASSWORDS:
            value = os.environ.get(_variable(row))
        if value:
            found[row.name] = str(given_path(value).absolute()) if row.name in _FILES else value
    for option, name in zip(PASSWORDS, ("password", "gateway_password"), strict=True):
        if name + "_file" in found and not (values.get(option.replace("-", "_")) or properties.get(option)):
            found.pop(name, None)  # A file that is named counts more than the environment.
    return found or None


__all__ = [
    "IDENTITY_OPTIONS",
    "PASSWORDS",
    "SECURITY_OPTIONS",
    "SECURITY_PROPERTIES",
    "check_no_password",
    "identity_in",
    "identity_of_environment",
    "security_in",
]
