"""Owns a site's cluster configuration: the ordered log of applied management requests that joining members are given,
and how the logs of the site's locators become one."""
from __future__ import annotations

import hashlib
import json
from typing import Any

from pywan.errors import ConfigurationError, ProtocolError

MAX_ENTRIES = 10_000
MAX_BYTES = 4 * 1024 * 1024    # As JSON: several must fit into one control message.
VERSION = 1


class ClusterConfiguration:
    """A set of entries in one order, the same at every locator that has the same entries. Not thread-safe."""

    def __init__(self, entries: list[dict[str, Any]] | None = None) -> None:
        self._entries: dict[str, dict[str, Any]] = {}
        self._bytes = 0
        self._digest = ""
        self.merge(entries or [])

    def requests(self) -> list[dict[str, Any]]:
        """What a joining member is to apply, in order."""
        return [entry["request"] for entry in self.entries()]

    def entries(self) -> list[dict[str, Any]]:
        return sorted(self._entries.values(), key=lambda entry: (entry["time"], entry["id"]))

    def digest(self) -> str:
        if not self._digest:
            self._digest = hashlib.blake2b("".join(sorted(self._entries)).encode(), digest_size=12).hexdigest()
        return self._digest

    def add(self, request: Any, entry_id: str) -> dict[str, Any]:
        """Puts `request` behind all entries known here. ConfigurationError if it cannot be kept."""
        if not isinstance(request, dict) or not isinstance(request.get("op"), str):
            raise ConfigurationError(f"{request!r:.120} is not a management request: it needs a field 'op'")
        entry = {"id": entry_id, "time": 1 + max((e["time"] for e in self._entries.values()), default=0), "request": request}
        self._keep(entry)
        return entry

    def merge(self, entries: Any) -> bool:
        """Takes in another locator's entries; says whether any was new."""
        if not isinstance(entries, list):
            raise ProtocolError("a cluster configuration is a list of entries")
        fresh = [check_entry(entry) for entry in entries if isinstance(entry, dict) and entry.get("id") not in self._entries]
        for entry in fresh:
            self._keep(entry)
        return bool(fresh)

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, "entries": self.entries()}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ClusterConfiguration":
        """ConfigurationError if `text` is not what `to_json` wrote."""
        try:
            value = json.loads(text)
            if value["version"] != VERSION:
                raise ConfigurationError(f"its version is {value['version']!r}, this pywan reads {VERSION}")
            return cls(value["entries"])
        except (ValueError, KeyError, TypeError, ProtocolError) as error:
            raise ConfigurationError(f"not a cluster configuration: {error}") from None

    def _keep(self, entry: dict[str, Any]) -> None:
        try:
            size = len(json.dumps(entry, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the request {entry['request'].get('op')} cannot be kept in the cluster configuration: {error}") from None
        if len(self._entries) >= MAX_ENTRIES or self._bytes + size > MAX_BYTES:
            raise ConfigurationError(
                f"the cluster configuration is full ({len(self._entries)} entries, {self._bytes} bytes); the limits are {MAX_ENTRIES} and {MAX_BYTES}"
            )
        self._entries[entry["id"]] = entry
        self._bytes += size
        self._digest = ""


def check_entry(entry: Any) -> dict[str, Any]:
    if not (
        isinstance(entry, dict) and isinstance(entry.get("id"), str) and 0 < len(entry["id"]) <= 64
        and type(entry.get("time")) is int and 0 <= entry["time"] < 2**53 and isinstance(entry.get("request"), dict)
    ):
        raise ProtocolError(f"{entry!r:.120} is not an entry of a cluster configuration")
    return {"id": entry["id"], "time": entry["time"], "request": entry["request"]}
