"""Owns permissions: what a request needs and a user has, as Geode writes it, `DATA:WRITE:region:key`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pywan.errors import ConfigurationError

ANY = "*"
DATA, CLUSTER = "DATA", "CLUSTER"
READ, WRITE, MANAGE = "READ", "WRITE", "MANAGE"
RESOURCES, OPERATIONS = (DATA, CLUSTER), (READ, WRITE, MANAGE)


def key_text(key: Any) -> str:
    """Returns a key as permissions have it. Two keys have the same text only if they are the same key.

    A text key is its own text: `a`. Every other key has `=` in front of what Python writes for it: `=1`, `=2.5`,
    `=True`. So has a text key that begins with `=`: `='=1'`.
    """
    return key if isinstance(key, str) and not key.startswith("=") else f"={key!r}"


@dataclass(frozen=True, slots=True)
class Permission:
    """What is asked for, or what a user has.

    Attributes:
        resource: "DATA": entries and regions. "CLUSTER": members, senders, and all else of a site. As what a user has,
            also "*": both.
        operation: "READ", "WRITE" or "MANAGE". As what a user has, also "*": all of them.
        region: The name of a region. "*": all regions.
        key: A key, as `key_text` writes it. "*": all keys.
    """

    resource: str
    operation: str = ANY
    region: str = ANY
    key: str = ANY

    @classmethod
    def of(cls, text: Any, what: str) -> Permission:
        """Reads what a user has. Parts that are left out at the end stand for all. ConfigurationError for others,
        without the text: it may be of a file with secrets."""
        parts = [part.strip() or ANY for part in text.split(":", 3)] if isinstance(text, str) and text.strip() else []
        if (
            not parts
            or parts[0].upper() not in (*RESOURCES, ANY)
            or (len(parts) > 1 and parts[1].upper() not in (*OPERATIONS, ANY))
        ):
            raise ConfigurationError(
                f"{what} is no permission; write RESOURCE:OPERATION:region:key, with"
                f" {', '.join(RESOURCES)} or {ANY}, and {', '.join(OPERATIONS)} or {ANY}"
            )
        region = parts[2].lstrip("/") if len(parts) > 2 else ANY
        return cls(
            parts[0].upper(),
            parts[1].upper() if len(parts) > 1 else ANY,
            region or ANY,
            parts[3] if len(parts) > 3 else ANY,
        )

    def covers(self, wanted: Permission) -> bool:
        """Returns whether who has this may do what needs `wanted`. Who wants all regions needs all regions."""
        return all(
            has in (ANY, wants)
            for has, wants in (
                (self.resource, wanted.resource),
                (self.operation, wanted.operation),
                (self.region, wanted.region),
                (self.key, wanted.key),
            )
        )

    def __str__(self) -> str:
        parts = [self.resource, self.operation, self.region, self.key]
        while len(parts) > 1 and parts[-1] == ANY:
            parts.pop()
        return ":".join(parts)


__all__ = ["ANY", "CLUSTER", "DATA", "MANAGE", "OPERATIONS", "READ", "RESOURCES", "WRITE", "Permission", "key_text"]
