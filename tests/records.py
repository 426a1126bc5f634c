"""Owns how tests write records and read frames by the layouts of csrc/record/wan_record.h and
csrc/record/wan_frame.h, so that a change of either is noticed here and not only by the code that makes both ends."""
from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pywan import _core

RECORD = struct.Struct("<IIQQQIIHHHHBBBBBBBB")
FRAME = struct.Struct("<IBBHIIIIQ")
SECTION = struct.Struct("<IIQQQQ")
ACK = struct.Struct("<IIQ")
FAILURE = struct.Struct("<IIQ")

CREATE, UPDATE, DESTROY = 0, 1, 2
BYTES, TEXT, NONE = 0, 1, 3
POSSIBLE_DUPLICATE = 1
REGION, BATCH, FRAME_ACK, REWIND, PING, PONG, BYE, ERROR = 3, 4, 5, 6, 7, 8, 9, 10
MAGIC = 0x31445750
REGION_NOT_FOUND, FUTURE_STAMP = 1, 2


def make_record(key: bytes, value: bytes = b"", *, operation: int = UPDATE, stamp: int = 1, stamp_site: int = 1, origin_site: int = 1,
                recipients: bytes = b"", region: int = 1, callback: bytes = b"", event: tuple[int, int, int] = (1, 1, 0),
                key_form: int = BYTES, value_form: int = BYTES, flags: int = 0, sequence: int = 0, partition: int = 0) -> bytes:
    body = key + value + callback + recipients
    length = (RECORD.size + len(body) + 7) & ~7
    member, thread, number = event
    head = RECORD.pack(length, len(value), sequence, stamp, number, member, thread, region, partition, len(key), len(callback),
                       operation, flags, stamp_site, origin_site, len(recipients), key_form, value_form, BYTES if callback else NONE)
    return (head + body).ljust(length, b"\0")


class Fields(NamedTuple):
    """What a test looks at of a record."""
    sequence: int
    stamp: int
    operation: int
    flags: int
    partition: int
    key: bytes
    value: bytes


def read_record(record: bytes) -> Fields:
    (length, value_length, sequence, stamp, _, _, _, _, partition, key_length, _, operation, flags, *_rest) = RECORD.unpack_from(record)
    assert length == len(record)
    key_end = RECORD.size + key_length
    return Fields(sequence, stamp, operation, flags, partition, record[RECORD.size:key_end], record[key_end:key_end + value_length])


class Frame(NamedTuple):
    type: int
    id: int
    count: int
    payload: bytes
    raw: bytes


def split_frames(data: bytes) -> list[Frame]:
    """Every whole frame in `data`, which must end with one."""
    found, at = [], 0
    while at < len(data):
        kind, padded, _ = _core.check_frame_header(data[at:at + FRAME.size])
        whole = data[at:at + FRAME.size + padded]
        _, number, count, payload = _core.check_frame(whole)
        found.append(Frame(kind, number, count, payload, whole))
        at += len(whole)
    assert at == len(data)
    return found


class Section(NamedTuple):
    partition: int
    count: int
    first: int
    through: int
    settled: int
    records: list[Fields]


def read_batch(payload: bytes) -> list[Section]:
    """The runs of an unpacked batch."""
    sections, _ = struct.unpack_from("<II", payload)
    at = 8 + sections * SECTION.size
    found = []
    for n in range(sections):
        partition, count, first, through, settled, size = SECTION.unpack_from(payload, 8 + n * SECTION.size)
        records, end = [], at + size
        while at < end:
            length = struct.unpack_from("<I", payload, at)[0]
            records.append(read_record(payload[at:at + length]))
            at += length
        assert len(records) == count
        found.append(Section(partition, count, first, through, settled, records))
    return found


def make_batch(*sections: tuple[int, int, int, int, list[bytes]]) -> tuple[bytes, int]:
    """(payload, number of records) of runs given as (partition, first, through, settled, records with their sequences)."""
    heads = b"".join(SECTION.pack(p, len(records), first, through, settled, sum(map(len, records))) for p, first, through, settled, records in sections)
    body = b"".join(b"".join(records) for *_, records in sections)
    return struct.pack("<II", len(sections), 0) + heads + body, sum(len(records) for *_, records in sections)


def read_ack(payload: bytes) -> tuple[int, int, list[tuple[int, int, int]]]:
    """(events of credit, bytes of credit, [(partition, reason, sequence)])."""
    events, failures, size = ACK.unpack_from(payload)
    return events, size, [FAILURE.unpack_from(payload, ACK.size + n * FAILURE.size) for n in range(failures)]


def check_queue_ledger(counts: dict[str, Any]) -> None:
    """What became of the events that were queued."""
    went = sum(counts[name] for name in ("distributed", "conflated", "conflated_batch", "filtered_transmit", "parked", "dropped_cleared", "dropped_oldest", "restamped"))
    assert counts["queued"] == went + counts["events"], counts


def check_ledger(counts: dict[str, Any]) -> None:
    """The two sums of the design's ledger."""
    came = sum(counts[name] for name in ("not_queued", "not_queued_loop", "filtered_enqueue", "dropped_stopped"))
    assert counts["received"] == counts["queued"] + came, counts
    check_queue_ledger(counts)
