"""Owns completion: which values an option could have, and what bash is told. It leaves out a member that does not
answer in time."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pywan.base.addresses import parse_locators
from pywan.cli import grammar
from pywan.cli.encryption import ssl_of_environment
from pywan.cli.grammar import Command
from pywan.cli.identity import identity_of_environment
from pywan.cli.session import DEFAULT_LOCATOR
from pywan.config.attributes import REGION_TYPES
from pywan.config.options import Option
from pywan.config.security_attributes import security_of
from pywan.errors import PywanError
from pywan.protocol.members import check_servers
from pywan.security.configured import identity_of
from pywan.transport.control import call_once
from pywan.transport.links import Links

ASK_TIMEOUT_S = 1.0  # A person waits for it, with a finger on Tab.
MAX_MEMBERS = 4  # That are asked: they have mostly the same things.

_PATHS = ("dir", "to", "file", "xml_file", "cache_xml_file", "properties_file", "overflow_directory")
# What an option names, by its key. `id` and `name` depend on the command.
_KINDS = {
    "member": "member",
    "region": "region",
    "regions": "region",
    "colocated_with": "region",
    "gateway_sender_ids": "gateway-sender",
    "async_event_queue_ids": "async-event-queue",
    "async_event_queue_id": "async-event-queue",
    "disk_store_name": "disk-store",
    "locator": "locator",
    "locators": "locator",
    **dict.fromkeys(
        ("dir", "to", "file", "xml_file", "cache_xml_file", "properties_file", "overflow_directory"), "path"
    ),
}
_QUEUE_THINGS = dict.fromkeys(("async-event-queue", "async-event-queue-dispatcher"), "async-event-queue")
_OWN_OPTIONS = ("-e", "--help", "--json", "--locator=", "--version")
_BASH = """\
_pywan() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" last given candidate
    last="${{line##*[[:space:]]}}"
    given="${{last%"${{last##*[$COMP_WORDBREAKS]}}"}}"  # bash replaces only what stands behind it.
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${{candidate#"$given"}}")
        [[ $candidate == *[=/] ]] && compopt -o nospace
    done < <("${{COMP_WORDS[0]}}" completion --line="$line" 2> /dev/null)
}}
complete -F _pywan {names}
"""


def bash_script(names: Iterable[str] = ("pywan", "gfsh")) -> str:
    """What bash has to read so that it completes commands, options and values."""
    return _BASH.format(names=" ".join(names))


def last_words(line: str, commands: Iterable[Command]) -> list[str]:
    """What the last word of a line of bash could become. The first word of the line is the program."""
    words = line.split(" ")[1:]
    locator = os.environ.get("PYWAN_LOCATOR")
    while len(words) > 1 and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--locator" and len(words) > 1:
            locator = words.pop(0)
        elif word.startswith("--locator="):
            locator = word.removeprefix("--locator=")
        if word == "-e":
            return []  # A whole line in quotes.
    if len(words) == 1 and words[0].startswith("-"):
        return [option for option in _OWN_OPTIONS if option.startswith(words[0])]
    if words[:1] == ["demo"] and len(words) > 1:
        return _demo_options(words[-1])
    wholes = grammar.complete(" ".join(words), commands, values_for(locator))
    before = len(" ".join(words[:-1])) + 1 if len(words) > 1 else 0
    found = dict.fromkeys(whole[before:].partition(" ")[0] for whole in wholes)
    return [*found, *(["demo"] if len(words) == 1 and "demo".startswith(words[0]) else [])]


def _demo_options(begun: str) -> list[str]:
    from pywan.demo.main import command

    names = [option for parameter in command.params for option in parameter.opts]
    return sorted(name for name in names if name.startswith(begun))


def values_for(locator: str | None) -> Callable[[Command, Option, str], list[str]]:
    """Gives the values that an option could have, from the part of the value that is written. It asks the site behind
    `locator`, or behind the default locator."""

    def values(command: Command, option: Option, begun: str) -> list[str]:
        last = begun.rpartition(",")[2]
        kind = _kind(command, option)
        if option.words:
            found: Iterable[str] = option.words
        elif option.flag:
            found = ("true", "false")
        elif kind == "region type":
            found = REGION_TYPES
        elif kind == "path":
            found = _paths(last)
        elif kind == "process":
            found = _processes()
        else:
            try:
                found = _of_site(kind, locator)
            except (PywanError, OSError, KeyError, TypeError, ValueError, AttributeError):  # Not there, or no pywan.
                found = ()
        return sorted({value for value in found if value.startswith(last)})

    return values


def _kind(command: Command, option: Option) -> str:
    verb, _, thing = command.name.partition(" ")
    if option.key == "type" and thing == "region":
        return "region type"
    if option.key in ("id", "name"):
        if thing in ("server", "locator"):
            return "process"
        if verb == "create":
            return ""  # Nothing has that name yet.
        return thing if thing in ("region", "disk-store") else _QUEUE_THINGS.get(thing, "gateway-sender")
    return _KINDS.get(option.key, "")


def _paths(begun: str) -> list[str]:
    """Files and folders, the latter with `/`."""
    expanded = os.path.expanduser(begun)
    return [
        begun + path[len(expanded) :] + "/" * os.path.isdir(path)
        for path in glob.glob(glob.escape(expanded) + "*")
        if not any(character.isspace() for character in path)
    ]


def _processes() -> list[str]:
    """The members with a folder in the current directory, whether they run or not."""
    return [path.name for path in Path(".").iterdir() if (path / f".{path.name}.lock").exists()]


def _of_site(kind: str, locator: str | None) -> list[str]:
    """Names of things of one kind in the site. Other processes make the answers, so anything can be wrong with them."""
    if not kind:
        return []
    address = parse_locators(locator or DEFAULT_LOCATOR)[0]
    links = Links(ssl_of_environment(), identity=identity_of(security_of(identity_of_environment())))
    servers = check_servers(call_once(address, "servers", timeout=ASK_TIMEOUT_S, way=links.locator))
    if kind == "locator":
        return [str(address)]
    if kind == "member":
        return [server["name"] for server in servers]
    op, items, name = {
        "gateway-sender": ("list gateways", "senders", "id"),
        "async-event-queue": ("list async-event-queues", "async_event_queues", "id"),
        "region": ("list regions", "regions", "name"),
        "disk-store": ("list disk-stores", "disk_stores", "name"),
    }[kind]
    found: list[str] = []
    for server in servers[:MAX_MEMBERS]:
        there = (server["host"], server["port"])
        reply: dict[str, Any] = call_once(there, op, timeout=ASK_TIMEOUT_S, way=links.cluster)
        found += [str(item[name]) for item in reply[items]]
    return found
