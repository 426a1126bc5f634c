"""Owns the comparison of what sites hold: key by key, by form, length, hash and stamp of the value."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pywan.errors import ProtocolError

SCAN_LIMIT = 20_000  # Entries asked for at once.
_ENTRY = struct.Struct("<HBBIQQB7x")
_EXAMPLES = 5

# scan(cursor) -> (next cursor or None, a run of entries), as Region.scan gives it.
Scan = Callable[[int], "tuple[int | None, bytes]"]
Contents = dict[
    tuple[int, bytes], tuple[Any, ...]
]  # (key form, key) -> (value form, value length, value hash, stamp, site)


@dataclass
class Difference:
    """How one site's contents differ from the reference site's."""

    site: str
    missing: int = 0  # Keys that the reference has and this one does not.
    extra: int = 0
    value: int = 0  # Keys of both with different values.
    stamp: int = 0  # Same value, but not the same update.
    examples: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.value or self.stamp)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{getattr(self, name):,} {name}" for name in ("missing", "extra", "value", "stamp") if getattr(self, name)
        )
        return f"{self.site}: {counts or 'equal'}" + (f" (such as {'; '.join(self.examples)})" if self.examples else "")


def entries(run: bytes) -> Iterator[tuple[tuple[int, bytes], tuple[int, int, int, int, int]]]:
    """The entries of one scan answer; ProtocolError if it is cut short."""
    at, end = 0, len(run)
    while at < end:
        if end - at < _ENTRY.size:
            raise ProtocolError(f"a scan answer of {end} bytes ends inside an entry's header at byte {at}")
        key_length, key_form, value_form, value_length, value_hash, stamp, site = _ENTRY.unpack_from(run, at)
        at += _ENTRY.size
        if end - at < key_length:
            raise ProtocolError(f"a scan answer of {end} bytes ends inside a key of {key_length} bytes at byte {at}")
        yield (key_form, run[at : at + key_length]), (value_form, value_length, value_hash, stamp, site)
        at += key_length


def read_contents(scan: Scan) -> Contents:
    """Everything that a region holds now; each key once, though writes go on."""
    contents: Contents = {}
    scan_position: int | None = 0
    while scan_position is not None:
        scan_position, run = scan(scan_position)
        contents.update(entries(run))
    return contents


def contents_of(rows: Any, key: str, values: Sequence[str]) -> Contents:
    """What a region would hold after these rows of an Arrow table were put into it. The values of a row are one
    dict."""
    from pywan import _core

    region = _core.RegionCore("expected", _core.Clock())
    for batch in rows.to_batches():
        region.put_columns(batch.column(key), _core.encode_rows(list(values), [batch.column(name) for name in values]))
    return read_contents(region.scan)


def compare(contents: Mapping[str, Contents], *, stamps: bool = True) -> list[Difference]:
    """Every site against the first one. `stamps=False` for contents that were put separately and only mean the same."""
    (_, expected), *others = contents.items()
    return [_difference(site, expected, found, stamps) for site, found in others]


def _difference(site: str, expected: Contents, found: Contents, stamps: bool) -> Difference:
    difference = Difference(site)
    if stamps and expected == found:
        return difference

    def note(kind: str, key: tuple[int, bytes]) -> None:
        setattr(difference, kind, getattr(difference, kind) + 1)
        if len(difference.examples) < _EXAMPLES:
            difference.examples.append(f"{kind} {key[1][:60].decode('utf-8', 'backslashreplace')}")

    for key, entry in expected.items():
        other = found.get(key)
        if other is None:
            note("missing", key)
        elif other[:3] != entry[:3]:
            note("value", key)
        elif stamps and other[3:] != entry[3:]:
            note("stamp", key)
    for key in found.keys() - expected.keys():
        note("extra", key)
    return difference
