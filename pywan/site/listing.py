"""Makes the list of a site's processes from a locator's data and the coordinator's view of the members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]


def processes_of(locator: Row, servers: Iterable[Row], coordination: Mapping[str, Any]) -> list[Row]:
    """Returns a row for the locator, a row for each server known to the locator, and a row for each member known to the
    coordinator alone: such a member is lost.

    Args:
        locator: The status of the asked locator.
        servers: The servers known to the locator.
        coordination: The coordinator's view, or the locator's if no locator coordinates.
    """
    view = {each["name"]: each for each in coordination.get("members", [])}
    is_coordinator = coordination["decides"] and coordination["locator"] == locator["name"]
    rows = [
        _row({"pid": None, **locator}, "locator", {"view": "coordinator" if is_coordinator else "", "lease_ms": None})
    ]
    unseen = {"view": "waiting" if coordination["decides"] else "unknown", "lease_ms": None}
    known = set()
    for server in servers:
        known.add(server["name"])
        seen = view.get(server["name"])
        rows.append(_row(server, "server", unseen if seen is None else _seen(seen)))
    return rows + [
        _row({**each, "pid": None}, "server", _seen(each)) for name, each in view.items() if name not in known
    ]


def _seen(member: Row) -> Row:
    return {"view": member["state"], "lease_ms": member["lease_us"] // 1000}


def _row(process: Row, kind: str, seen: Row) -> Row:
    return {
        "name": process["name"],
        "kind": kind,
        **{name: process[name] for name in ("host", "port", "pid")},
        **seen,
    }
