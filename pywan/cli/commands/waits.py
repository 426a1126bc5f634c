"""Owns the options that say how long a server waits: in a call, and at its end; and whether it may lose something
then."""

from __future__ import annotations

import math

from pywan.cli.commands.of_members import Values
from pywan.config.options import Option
from pywan.config.values import to_call_timeout, to_wait_time

WAIT_OPTION = Option(
    "maximum-shutdown-wait-time",
    "seconds that a server waits at its end for its senders' queues to empty; -1: until they are (0)",
)


HANDOVER_OPTION = Option(
    "handover-time",
    "seconds that a server waits at its end for other members to take over what only it has; -1: until they have (60)",
)


CALL_TIMEOUT_OPTION = Option(
    "call-timeout",
    "seconds that a call about a region of several members is tried (10, or twice the site's member-timeout)",
)


def wait_time_of(values: Values, otherwise: str | None = None) -> float | None:
    return _seconds(values.get("maximum_shutdown_wait_time") or otherwise, "maximum-shutdown-wait-time")


def handover_time_of(values: Values, otherwise: str | None = None) -> float | None:
    return _seconds(values.get("handover_time") or otherwise, "handover-time")


def call_timeout_of(values: Values, otherwise: str | None = None) -> float | None:
    return to_call_timeout(values.get("call_timeout") or otherwise, "call-timeout")


def _seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    wait = to_wait_time(text, option)
    return -1 if wait == math.inf else wait


def is_forced(values: Values) -> bool:
    return str(values.get("force", "false")).lower() == "true"
