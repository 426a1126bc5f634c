"""Owns how tests read a log by docs/segment_format.md, and not by the core's own code: manifest, segments, blocks,
parts, items.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from pywan import _core
from support.records import split_records

SEGMENT = struct.Struct("<8sIIQQ16sII")
BLOCK = struct.Struct("<4sIIIQQQQ")
SEAL_BYTES = 8
PLACE = struct.Struct("<IIQ")
LOGGED = struct.Struct("<IHBBQQBB6x")
PART = struct.Struct("<IIQ")
HOLE = struct.Struct("<IIQ")
STATE = struct.Struct("<QIIQQQ")
STREAM_PLACE = struct.Struct("<16sQQII")
MANIFEST = struct.Struct("<8sIIQQQQIIQII")
NAME = struct.Struct("<HHI")
PAGE = 4096
RECORDS, HOLES, STATES, MOVED, NAMES, PLACES = range(1, 7)
QUEUE, REGION = 1, 2
FORGET, INVALID, MARK, LET_GO, RESTAMPED = 1, 2, 4, 8, 16
VERSION = _core.RECORD_FORMAT


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
    parts: list[tuple[int, int, bytes]]  # (kind, items, bytes)


class StreamPlace(NamedTuple):
    source: bytes
    timeline: int
    through: int
    partition: int


class State(NamedTuple):
    commit: int
    conflated: int
    counters: dict[str, int]
    positions: list[tuple[int, int]]  # (removed, appended) of each partition.
    names: dict[int, str]
    places: list[StreamPlace]


def read_manifest(folder: Path) -> Manifest:
    data = (folder / "MANIFEST").read_bytes()
    magic, version, kind, number, next_number, commit, first, count, partitions, state_bytes, identity_bytes, crc = (
        MANIFEST.unpack_from(data)
    )
    end = MANIFEST.size + 16 * count + identity_bytes + state_bytes
    assert (magic, version) == (b"PWANMAN\0", VERSION)
    assert crc == _core.crc32c(data[MANIFEST.size : end], _core.crc32c(data[: MANIFEST.size - 4]))
    segments = [struct.unpack_from("<QQ", data, MANIFEST.size + 16 * n) for n in range(count)]
    return Manifest(
        kind,
        number,
        next_number,
        commit,
        first,
        partitions,
        segments,
        data[end - state_bytes - identity_bytes : end - state_bytes],
        data[end - state_bytes : end],
    )


def segment_file(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.seg"


def read_segment(folder: Path, number: int, manifest: Manifest) -> list[Block]:
    """Its whole blocks. Behind them are zeros."""
    data = segment_file(folder, number).read_bytes()
    magic, version, kind, log_id, own_number, _secret, reserved, crc = SEGMENT.unpack_from(data)
    assert (magic, version, kind, log_id, own_number, reserved) == (
        b"PWANSEG\0",
        VERSION,
        manifest.kind,
        manifest.id,
        number,
        0,
    )
    assert crc == _core.crc32c(data[: SEGMENT.size - 4])
    assert not any(data[SEGMENT.size : PAGE])
    found, at = [], PAGE
    while data[at : at + 4] == b"PWBK":
        _, crc, length, count, commit, segment, synced, seal = BLOCK.unpack_from(data, at)
        end = at + BLOCK.size + length
        assert (
            segment == number and synced < commit and crc == block_checksum(data, at) and seal == block_seal(data, at)
        )
        found.append(Block(commit, at, end, list(_parts(data[at + BLOCK.size : end], count))))
        at = end
    assert not any(data[at:])
    return found


def siphash(secret: bytes, data: bytes) -> int:
    """SipHash-2-4."""
    mask = (1 << 64) - 1
    low, high = struct.unpack("<QQ", secret)
    v = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]

    def turn(number: int, bits: int) -> int:
        return (number << bits | number >> 64 - bits) & mask

    def mix(rounds: int) -> None:
        for _ in range(rounds):
            v[0] = v[0] + v[1] & mask
            v[2] = v[2] + v[3] & mask
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2] = v[2] + v[1] & mask
            v[0] = v[0] + v[3] & mask
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    whole = len(data) & ~7
    tail = data[whole:].ljust(7, b"\0") + bytes([len(data) & 255])
    for word in struct.unpack(f"<{whole // 8 + 1}Q", data[:whole] + tail):
        v[3] ^= word
        mix(2)
        v[0] ^= word
    v[2] ^= 0xFF
    mix(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def block_checksum(data: bytes, at: int) -> int:
    """The checksum of the block at `at`: of its head behind the field, up to the seal, and of its payload."""
    payload = at + BLOCK.size
    length = struct.unpack_from("<I", data, at + 8)[0]
    return _core.crc32c(
        bytes(data[payload : payload + length]), _core.crc32c(bytes(data[at + 8 : payload - SEAL_BYTES]))
    )


def block_seal(data: bytes, at: int) -> int:
    """The seal of the block at `at` of the segment with these bytes."""
    secret = SEGMENT.unpack_from(data)[5]
    return siphash(secret, struct.pack("<Q", at) + bytes(data[at : at + BLOCK.size - SEAL_BYTES]))


def seal_block(data: bytearray, at: int) -> None:
    """Makes checksum and seal of a block hold, whatever was written into it."""
    struct.pack_into("<I", data, at + 4, block_checksum(data, at))
    struct.pack_into("<Q", data, at + BLOCK.size - SEAL_BYTES, block_seal(data, at))


def _parts(payload: bytes, count: int):
    at = 0
    for _ in range(count):
        kind, items, length = PART.unpack_from(payload, at)
        at += PART.size + length
        assert length % 8 == 0
        yield kind, items, payload[at - length : at]
    assert at == len(payload)


def read_blocks(folder: Path) -> list[Block]:
    """The blocks of the whole log, in order."""
    manifest = read_manifest(folder)
    found = [block for number, _ in manifest.segments for block in read_segment(folder, number, manifest)]
    assert [block.commit for block in found] == list(range(manifest.first_commit, manifest.first_commit + len(found)))
    return found


def records(part: bytes, items: int) -> dict[tuple[int, int], bytes]:
    """{(partition, sequence): record} of a part of a queue's log, in its order."""
    places = [PLACE.unpack_from(part, n * PLACE.size) for n in range(items)]
    found = split_records(part[items * PLACE.size :])
    each = [(partition, first + n) for partition, count, first in places for n in range(count)]
    assert len(each) == len(found) == len(set(each)) and all(count for _, count, _ in places)
    return dict(zip(each, found, strict=True))


class Logged(NamedTuple):
    """A change as it lies in a region's log."""

    kinds: int
    stamp: int
    site: int
    other_stamp: int
    operation: int
    key: bytes
    value: bytes
    key_form: int
    value_form: int


def changes(part: bytes) -> list[Logged]:
    """The changes in a part of a region's log."""
    found, at = [], 0
    while at < len(part):
        value, key, kinds, site, stamp, other, operation, value_form = LOGGED.unpack_from(part, at)
        assert not any(part[at + 26 : at + 32])
        at += LOGGED.size
        found.append(
            Logged(
                kinds,
                stamp,
                site,
                other,
                operation & 15,
                part[at : at + key],
                part[at + key : at + key + value],
                operation >> 4,
                value_form,
            )
        )
        end = at + (key + value + 7 & ~7)
        assert not any(part[at + key + value : end])
        at = end
    assert at == len(part)
    return found


def holes(part: bytes) -> list[tuple[int, int, int]]:
    """(partition, reason, sequence) of each."""
    return list(HOLE.iter_unpack(part))


def names(part: bytes) -> dict[int, str]:
    found, at = {}, 0
    while at < len(part):
        number, length, _ = NAME.unpack_from(part, at)
        found[number] = part[at + NAME.size : at + NAME.size + length].decode()
        at += NAME.size + (length + 7 & ~7)
    return found


def read_state(data: bytes) -> State:
    commit, partitions, counters, conflated, names_bytes, places_bytes = STATE.unpack_from(data)
    at = STATE.size + 16 * counters
    positions = [struct.unpack_from("<QQ", data, at + 16 * n) for n in range(partitions)]
    assert len(data) == at + 16 * partitions + names_bytes + places_bytes
    saved = [struct.unpack_from("<QQ", data, STATE.size + 16 * n) for n in range(counters)]
    fields = {number: field for number, field, *_ in _core.queue_counter_rows()}
    counts = {fields[number]: value for number, value in saved}
    end = len(data) - places_bytes
    return State(commit, conflated, counts, positions, names(data[end - names_bytes : end]), stream_places(data[end:]))


def stream_places(data: bytes) -> list[StreamPlace]:
    """The items of a places part: how far a queue has taken streams of other sites."""
    found = list(STREAM_PLACE.iter_unpack(data))
    assert all(reserved == 0 for *_, reserved in found)
    return [StreamPlace(*each[:4]) for each in found]


class Recovered(NamedTuple):
    events: dict[tuple[int, int], bytes]  # (partition, sequence) -> the record as it lies in the log.
    removed: list[int]
    appended: list[int]
    names: dict[int, str]


def recover_queue(folder: Path) -> Recovered:
    """The events that a queue with this log holds, by the words of the description under "Recovery"."""
    manifest = read_manifest(folder)
    newest = read_state(manifest.state) if manifest.state else State(0, 0, (), [(0, 0)] * manifest.partitions, {}, [])
    events: dict[tuple[int, int], bytes] = {}
    known = dict(newest.names)
    appended = [0] * manifest.partitions
    for block in read_blocks(folder):
        for kind, items, data in block.parts:
            if kind in (RECORDS, MOVED):
                for (partition, sequence), record in records(data, items).items():
                    events[partition, sequence] = record
                    appended[partition] = max(appended[partition], sequence)
            elif kind == HOLES:
                for partition, _, sequence in holes(data):
                    events.pop((partition, sequence), None)
            elif kind == STATES and read_state(data).commit >= newest.commit:
                newest = read_state(data)
            elif kind == NAMES:
                known |= names(data)
        known |= newest.names
    removed = [removed for removed, _ in newest.positions]
    appended = [max(a, b) for a, (_, b) in zip(appended, newest.positions, strict=True)]
    return Recovered(
        {place: record for place, record in events.items() if place[1] > removed[place[0]]}, removed, appended, known
    )
