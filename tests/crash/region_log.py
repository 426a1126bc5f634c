"""Owns reading the log of a persistent region as docs/segment_format.md has it, not as the core does: what a member
applied and had on its disk, change by change, whatever became of its process."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pywan import _core

PAGE = 4096
BLOCK = struct.Struct("<4sIIIQQQQ")
PART = struct.Struct("<IIQ")
LOGGED = struct.Struct("<IHBBQQBB6x")
RECORDS, DESTROY = 1, 2


class Applied(NamedTuple):
    key: str
    stamp: int
    site: int
    value: bytes | None  # None: destroyed.


def live_segments(folder: Path) -> list[int]:
    """Numbers of the segments that the manifest names. None: nothing was written yet."""
    manifest = folder / "MANIFEST"
    if not manifest.exists():
        return []
    head = manifest.read_bytes()
    count = struct.unpack_from("<I", head, 48)[0]
    return [struct.unpack_from("<Q", head, 72 + 16 * n)[0] for n in range(count)]


class RegionLog:
    """Reads on where it stopped last. While nobody writes: between a member's end and its next start, or at rest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = 0  # The commit of the last block that was read.
        self.is_whole = True  # No segment was dropped before it was read.
        self._places: dict[int, int] = {}

    def read(self) -> list[Applied]:
        found: list[Applied] = []
        numbers = live_segments(self.folder)
        for number in numbers:
            self._read_segment(number, found)
        self._places = {number: self._places[number] for number in numbers}
        return found

    def _read_segment(self, number: int, found: list[Applied]) -> None:
        start = self._places.get(number, PAGE)
        with open(self.folder / f"{number:012}.seg", "rb") as file:
            file.seek(start)
            data = file.read()
        at = 0
        while (end := block_end(data, at, number)) is not None:
            commit = commit_of(data, at)
            if commit != self.commit + 1:
                assert commit > self.commit, f"{self.folder}: block {commit} behind {self.commit}"
                self.is_whole = False
            self.commit = commit
            found += applications(data, at)
            at = end
        self._places[number] = start + at


def block_end(data: bytes, at: int, number: int) -> int | None:
    """Where the block at `at` of segment `number` ends. None if no whole one is there: the end, a torn end, or
    damage.
    """
    if at + BLOCK.size > len(data):
        return None
    magic, crc, length, _, _, segment, _, _ = BLOCK.unpack_from(data, at)
    end = at + BLOCK.size + length
    if (
        magic != b"PWBK"
        or segment != number
        or end > len(data)
        or _core.crc32c(data[at + BLOCK.size : end], _core.crc32c(data[at + 8 : at + BLOCK.size - 8])) != crc
    ):
        return None
    return end


def commit_of(data: bytes, at: int) -> int:
    return BLOCK.unpack_from(data, at)[4]


def applications(data: bytes, at: int, in_queue: bool = False) -> Iterator[Applied]:
    """The changes in a whole block of a region's log, or the records in a block of a queue's log. Moved ones were
    applied before, and are only written again.
    """
    parts = BLOCK.unpack_from(data, at)[3]
    at += BLOCK.size
    for _ in range(parts):
        kind, items, length = PART.unpack_from(data, at)
        at += PART.size
        end = at + length
        if in_queue and kind == RECORDS:
            from support.log_format import records  # Beside the tests, and not where a campaign runs.
            from support.records import read_record

            for record in records(data[at:end], items).values():
                fields = read_record(record)
                yield Applied(
                    fields.key.decode(), fields.stamp, 0, None if fields.operation == DESTROY else fields.value
                )
            at = end
        while kind == RECORDS and at < end:
            value_length, key_length, _, site, stamp, _, operation, _ = LOGGED.unpack_from(data, at)
            at += LOGGED.size
            key_end = at + key_length
            yield Applied(
                data[at:key_end].decode(),
                stamp,
                site,
                None if operation & 15 == DESTROY else data[key_end : key_end + value_length],
            )
            at += key_length + value_length + 7 & ~7
        at = end
