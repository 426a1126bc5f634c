"""Owns the options of commands that say what is encrypted, and what a run of the program takes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pywan.base.files import given_path
from pywan.config.options import Option
from pywan.config.ssl_attributes import SslAttributes
from pywan.config.table import table

_FILES = frozenset(("certificate", "key", "trusted_certificates", "revoked_certificates"))

SSL_OPTIONS = tuple(
    Option(
        row.option,
        row.help(),
        flag=row.is_flag,
        variable="PYWAN_" + row.option.upper().replace("-", "_"),
    )
    for row in table(SslAttributes)
)
SSL_PROPERTIES = tuple(row.option for row in table(SslAttributes))


def ssl_in(values: Mapping[str, Any], properties: Mapping[str, str] = {}) -> dict[str, Any] | None:
    """Returns the map `ssl` for a member or a connection, from options, and from properties for those that are not
    given. Files have absolute names, since a member works elsewhere. None: nothing is given."""
    found = {}
    for row in table(SslAttributes):
        value = values.get(row.option.replace("-", "_")) or properties.get(row.option)
        if value:
            found[row.name] = str(given_path(value).absolute()) if row.name in _FILES else value
    return found or None


def ssl_of_environment() -> dict[str, Any] | None:
    """Returns the same from environment variables, for commands that have no such options."""
    given = {option.key: os.environ.get(option.variable, "").strip() for option in SSL_OPTIONS}
    return ssl_in({key: text for key, text in given.items() if text})


__all__ = ["SSL_OPTIONS", "SSL_PROPERTIES", "ssl_in", "ssl_of_environment"]
