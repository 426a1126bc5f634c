"""Owns how tests read a log by docs/segment_format.md, and not by the core's own code: manifest, segments, blocks, parts, items."""
from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from records import RECORD

from pywan import _core

SEGMENT = struct.Struct("<8sIIQQII")
BLOCK = struct.Struct("<4sIIIQQ")
PART = struct.Struct("<IIQ")
HOLE = struct.Struct("<IIQ")
STATE = struct.Struct("<QIIQQ")
MANIFEST = struct.Struct("<8sIIQQQQIIQII")
NAME = struct.Struct("<HHI")
PAGE = 4096
RECORDS, HOLES, STATES, MOVED, NAMES = range(1, 6)
QUEUE, REGION = 1, 2


class Manifest(NamedTuple):
    kind: int
    id: int
    next_number: int
    commit: int
    first_commit: int
    partitions: int
    segments: list[tuple[int, int]]
    identity: bytes
    state: bytes


class Block(NamedTuple):
    commit: int
    at: int
    end: int
    parts: list[tuple[int, int, bytes]]     # (kind, items, bytes)


class State(NamedTuple):
    commit: int
    conflated: int
    counters: tuple[int, ...]
    positions: list[tuple[int, int]]        # (removed, appended) of each partition.
    names: dict[int, str]


def read_manifest(folder: Path) -> Manifest:
    data = (folder / "MANIFEST").read_bytes()
    magic, version, kind, number, next_number, commit, first, count, partitions, state_bytes, identity_bytes, crc = MANIFEST.unpack_from(data)
    end = MANIFEST.size + 16 * count + identity_bytes + state_bytes
    assert (magic, version) == (b"PWANMAN\0", 1)
    assert crc == _core.crc32c(data[MANIFEST.size:end], _core.crc32c(data[:MANIFEST.size - 4]))
    segments = [struct.unpack_from("<QQ", data, MANIFEST.size + 16 * n) for n in range(count)]
    return Manifest(kind, number, next_number, commit, first, partitions, segments,
                    data[end - state_bytes - identity_bytes:end - state_bytes], data[end - state_bytes:end])


def segment_file(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.seg"


def read_segment(folder: Path, number: int, manifest: Manifest) -> list[Block]:
    """Its whole blocks. Behind them are zeros."""
    data = segment_file(folder, number).read_bytes()
    magic, version, kind, log_id, own_number, reserved, crc = SEGMENT.unpack_from(data)
    assert (magic, version, kind, log_id, own_number, reserved) == (b"PWANSEG\0", 1, manifest.kind, manifest.id, number, 0)
    assert crc == _core.crc32c(data[:SEGMENT.size - 4])
    assert not any(data[SEGMENT.size:PAGE])
    found, at = [], PAGE
    while data[at:at + 4] == b"PWBK":
        _, crc, length, count, commit, segment = BLOCK.unpack_from(data, at)
        end = at + BLOCK.size + length
        assert segment == number and crc == _core.crc32c(data[at + 8:end])
        found.append(Block(commit, at, end, list(_parts(data[at + BLOCK.size:end], count))))
        at = end
    assert not any(data[at:])
    return found


def _parts(payload: bytes, count: int):
    at = 0
    for _ in range(count):
        kind, items, length = PART.unpack_from(payload, at)
        at += PART.size + length
        assert length % 8 == 0
        yield kind, items, payload[at - length:at]
    assert at == len(payload)


def read_blocks(folder: Path) -> list[Block]:
    """Of the whole log, in order."""
    manifest = read_manifest(folder)
    found = [block for number, _ in manifest.segments for block in read_segment(folder, number, manifest)]
    assert [block.commit for block in found] == list(range(manifest.first_commit, manifest.first_commit + len(found)))
    return found


def records(part: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(part):
        length = struct.unpack_from("<I", part, at)[0]
        found.append(part[at:at + length])
        at += length
    return found


def holes(part: bytes) -> list[tuple[int, int, int]]:
    """(partition, reason, sequence)"""
    return list(HOLE.iter_unpack(part))


def names(part: bytes) -> dict[int, str]:
    found, at = {}, 0
    while at < len(part):
        number, length, _ = NAME.unpack_from(part, at)
        found[number] = part[at + NAME.size:at + NAME.size + length].decode()
        at += NAME.size + (length + 7 & ~7)
    return found


def read_state(data: bytes) -> State:
    commit, partitions, counters, conflated, names_bytes = STATE.unpack_from(data)
    at = STATE.size + 8 * counters
    positions = [struct.unpack_from("<QQ", data, at + 16 * n) for n in range(partitions)]
    assert len(data) == at + 16 * partitions + names_bytes
    return State(commit, conflated, struct.unpack_from(f"<{counters}Q", data, STATE.size), positions, names(data[len(data) - names_bytes:]))


class Recovered(NamedTuple):
    events: dict[tuple[int, int], bytes]        # (partition, sequence) -> the record as it lies in the log.
    removed: list[int]
    appended: list[int]
    names: dict[int, str]


def recover_queue(folder: Path) -> Recovered:
    """What a queue holds whose log this is, by the words of the description under "Recovery"."""
    manifest = read_manifest(folder)
    newest = read_state(manifest.state) if manifest.state else State(0, 0, (), [(0, 0)] * manifest.partitions, {})
    events: dict[tuple[int, int], bytes] = {}
    known = dict(newest.names)
    appended = [0] * manifest.partitions
    for block in read_blocks(folder):
        for kind, items, data in block.parts:
            if kind in (RECORDS, MOVED):
                assert items == len(records(data))
                for record in records(data):
                    fields = RECORD.unpack_from(record)
                    events[fields[8], fields[2]] = record
                    appended[fields[8]] = max(appended[fields[8]], fields[2])
            elif kind == HOLES:
                for partition, _, sequence in holes(data):
                    events.pop((partition, sequence), None)
            elif kind == STATES and read_state(data).commit >= newest.commit:
                newest = read_state(data)
            elif kind == NAMES:
                known |= names(data)
        known |= newest.names
    removed = [removed for removed, _ in newest.positions]
    appended = [max(a, b) for a, (_, b) in zip(appended, newest.positions)]
    return Recovered({place: record for place, record in events.items() if place[1] > removed[place[0]]}, removed, appended, known)
