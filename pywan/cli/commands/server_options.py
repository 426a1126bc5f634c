"""Owns the options of commands that are attributes of a server, and what a run of the program takes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pywan.cli.commands.of_members import Values
from pywan.config.member_attributes import ServerOptions
from pywan.config.options import Option
from pywan.config.table import table

_ROWS = {row.name: row for row in table(ServerOptions)}

SERVER_OPTIONS = {
    row.name: Option(row.option, row.help(), flag=row.is_flag, words=row.attribute.words) for row in _ROWS.values()
}


def server_options_in(values: Values, properties: Mapping[str, str] = {}) -> dict[str, Any]:
    """Returns arguments of `Cache` from options, and from properties for those that are not given. They stay texts,
    since a member reads them itself. ConfigurationError if a text cannot be used."""
    found = {}
    for name, row in _ROWS.items():
        text = values.get(row.option.replace("-", "_")) or properties.get(row.option)
        if text:
            row.read(text, row.option)
            found[name] = text
    return found


def seconds_of(values: Values, name: str) -> float | None:
    """Returns an attribute in seconds as requests have it: -1 stands for no limit. None: it is not given."""
    text = server_options_in(values).get(name)
    return None if text is None else float(text)


def is_forced(values: Values) -> bool:
    return str(values.get("force", "false")).lower() == "true"
