"""Owns what the writers of a crash campaign do. An operation is its writer's number and its own: both ends compute the
rest, so only numbers travel from a process that may be killed at any moment."""

from __future__ import annotations

import struct

WRITERS = 4
COLUMNS = WRITERS - 1  # This one writes rows by the column, the others single entries.
KEYS, COLUMN_KEYS = 8, 40  # Keys of one writer. No key has two writers.
OUTCOME = struct.Struct("<HHI")  # writer, what became of it, number
# Stored and durable; not there to be destroyed; nothing was stored; nobody knows.
DONE, ABSENT, REFUSED, UNKNOWN = range(4)


def destroys(writer: int, number: int) -> bool:
    """Every few rounds over its keys a writer destroys them all. Never the same key twice without a put between."""
    return writer != COLUMNS and (number // KEYS) % (4 + writer) == 3


def keys(writer: int, number: int) -> list[str]:
    if writer == COLUMNS:
        return [f"{writer}/{n}" for n in range(COLUMN_KEYS)]
    return [f"{writer}/{number % KEYS}"]


def value(writer: int, number: int) -> bytes:
    """Says which operation wrote it; of very different sizes."""
    size = 20_000 if writer != COLUMNS and number % 97 == 96 else 16 + number * 37 % 400
    return (b"%d/%d:" % (writer, number)).ljust(size, b".")


def number_of(written: bytes) -> int:
    """Which operation wrote a value. ValueError if none did: it is damaged."""
    writer, number = map(int, written.partition(b":")[0].split(b"/"))
    if written != value(writer, number):
        raise ValueError(f"a value that nobody wrote: {written[:60]!r}")
    return number
