"""Owns the rules by which changes of members come into the cluster configuration, and by which a file takes its place.

The site wants a thing that at least one member has: the thing must come back when that member is restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pywan.errors import ConfigurationError, PywanError

Reply = Mapping[str, Any]  # Of a member: `ok`, `member`, and what it answered, or `error` and its `kind`.

_ABOUT_THE_COMMAND = ("id", "name", "if_exists", "if_not_exists")


def members_that_changed(replies: Iterable[Reply]) -> list[str]:
    """Returns the members on which a command changed something."""
    return [reply["member"] for reply in replies if reply["ok"] and reply.get("changed")]


def has_no_such_thing(reply: Reply) -> bool:
    """Whether a member refused to remove a thing because it has none."""
    return not reply["ok"] and reply["kind"] in ("NotFoundError", "RegionNotFoundError")


def members_that_may_have_it(replies: Iterable[Reply]) -> list[str]:
    """Returns the members that may still have a thing which all were to remove."""
    return [reply["member"] for reply in replies if not reply["ok"] and not has_no_such_thing(reply)]


def attributes_to_keep(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of the thing, of all that a command was given."""
    return {key: value for key, value in values.items() if key not in _ABOUT_THE_COMMAND}


def check_saved(reply: Reply) -> None:
    """PywanError if the locator could not write a change that it took."""
    if reply["problem"]:
        raise PywanError(f"{reply['problem']} (the locator has it in memory, and tries again with the next change)")


def check_has_nothing(server: str, regions: Reply, gateways: Reply, queues: Reply) -> None:
    """Raises an error unless a server that runs can make what a file holds, because it has nothing yet.

    Args:
        server: Its name.
        regions: Its answer to `list regions`.
        gateways: Its answer to `list gateways`.
        queues: Its answer to `list async-event-queues`.
    """
    for reply in (regions, gateways, queues):
        if not reply["ok"]:
            raise PywanError(
                f"import cluster-configuration: server {server} could not be asked for what it has, and"
                f" nothing was changed: {reply['error']}"
            )
    if regions["regions"] or gateways["senders"] or gateways["receivers"] or queues["async_event_queues"]:
        raise ConfigurationError(
            f"import cluster-configuration: server {server} has regions, senders, queues or a receiver already, and"
            " nothing was changed; stop it, or give --action=STAGE: servers then have what the file says when they"
            " are started"
        )
