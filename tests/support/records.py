"""Owns how tests write records and read frames by the layouts of csrc/record/wan_record.h and
csrc/record/wan_frame.h, so that a change of either is noticed here and not only by the code that makes both ends."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from pywan import _core

# The head of a record: each field and its bits, in their order, least significant first. A new field is entered here
# too.
RECORD = {
    "value_length": 32,
    "key_length": 16,
    "callback_length": 16,
    "stamp": 64,
    "event_sequence": 64,
    "event_member": 32,
    "event_thread": 32,
    "region": 16,
    "flags": 8,
    "recipients_count": 8,
    "stamp_site": 8,
    "origin_site": 8,
    "operation": 4,
    "key_form": 4,
    "value_form": 4,
    "callback_form": 4,
}
RECORD_BYTES = sum(RECORD.values()) // 8
FRAME = struct.Struct("<IBBHIIIIQ")
SECTION = struct.Struct("<IIQQQIIII")
ACK = struct.Struct("<IIQ")
FAILURE = struct.Struct("<IIQ")
STREAM_NAME = struct.Struct("<HHHHQ")

CREATE, UPDATE, DESTROY = 0, 1, 2
BYTES, TEXT, NONE = 0, 1, 3
GIVEN, FORCED = 1, 2
REGION, BATCH, FRAME_ACK, REWIND, PING, PONG, BYE, ERROR = 3, 4, 5, 6, 7, 8, 9, 10
STREAM = 19
MAGIC = 0x31445750
REGION_NOT_FOUND, FUTURE_STAMP = 1, 2


def make_record(
    key: bytes,
    value: bytes = b"",
    *,
    operation: int = UPDATE,
    stamp: int = 1,
    stamp_site: int = 1,
    origin_site: int = 1,
    recipients: bytes = b"",
    region: int = 1,
    callback: bytes = b"",
    event: tuple[int, int, int] = (1, 1, 0),
    key_form: int = BYTES,
    value_form: int = BYTES,
    flags: int = 0,
) -> bytes:
    body = key + value + callback + recipients
    member, thread, number = event
    head = pack_head(
        {
            "value_length": len(value),
            "key_length": len(key),
            "callback_length": len(callback),
            "stamp": stamp,
            "event_sequence": number,
            "event_member": member,
            "event_thread": thread,
            "region": region,
            "flags": flags,
            "recipients_count": len(recipients),
            "stamp_site": stamp_site,
            "origin_site": origin_site,
            "operation": operation,
            "key_form": key_form,
            "value_form": value_form,
            "callback_form": BYTES if callback else NONE,
        }
    )
    return padded(head + body)


def pack_head(fields: dict[str, int]) -> bytes:
    """Fields that are not given are 0."""
    head = shift = 0
    for name, bits in RECORD.items():
        assert 0 <= fields.get(name, 0) < 1 << bits, name
        head |= fields.get(name, 0) << shift
        shift += bits
    return head.to_bytes(RECORD_BYTES, "little")


def read_head(data: bytes, at: int = 0) -> dict[str, int]:
    """The fields of the record that begins there."""
    head, found = int.from_bytes(data[at : at + RECORD_BYTES], "little"), {}
    for name, bits in RECORD.items():
        found[name] = head & (1 << bits) - 1
        head >>= bits
    return found


def padded(data: bytes) -> bytes:
    return data.ljust(len(data) + 7 & ~7, b"\0")


def record_length(data: bytes, at: int = 0) -> int:
    """The length of the record that begins there, with its padding."""
    head = read_head(data, at)
    parts = ("value_length", "key_length", "callback_length", "recipients_count")
    return RECORD_BYTES + sum(head[name] for name in parts) + 7 & ~7


def split_records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        found.append(data[at : at + record_length(data, at)])
        at += len(found[-1])
    assert at == len(data)
    return found


class Fields(NamedTuple):
    """The fields of a record that tests look at, and its position, as it was said beside it."""

    sequence: int
    stamp: int
    operation: int
    flags: int
    partition: int
    key: bytes
    value: bytes
    possible_duplicate: bool = False


def read_record(record: bytes, sequence: int = 0, partition: int = 0, possible_duplicate: bool = False) -> Fields:
    head = read_head(record)
    assert len(record) == record_length(record)
    key_end = RECORD_BYTES + head["key_length"]
    return Fields(
        sequence,
        head["stamp"],
        head["operation"],
        head["flags"],
        partition,
        record[RECORD_BYTES:key_end],
        record[key_end : key_end + head["value_length"]],
        possible_duplicate,
    )


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
        kind, padded, _ = _core.check_frame_header(data[at : at + FRAME.size])
        whole = data[at : at + FRAME.size + padded]
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
    acknowledged: int
    records: list[Fields]


def read_batch(payload: bytes) -> list[Section]:
    """The runs of an unpacked batch."""
    sections, _ = struct.unpack_from("<II", payload)
    at = 8 + sections * SECTION.size
    found = []
    for n in range(sections):
        partition, count, first, through, acknowledged, size, _, duplicates, reserved = SECTION.unpack_from(
            payload, 8 + n * SECTION.size
        )
        run = payload[at : at + size]
        at += size
        sequences: Sequence[int] = range(first, through + 1)
        if count != through - first + 1:
            sequences = struct.unpack_from(f"<{count}Q", run)
            run = run[8 * count :]
        raw = split_records(run)
        assert len(raw) == len(sequences) == count and reserved == 0 and list(sequences) == sorted(set(sequences))
        assert not count or (first <= sequences[0] and sequences[-1] <= through)
        records = [
            read_record(record, sequence, partition, k < duplicates)
            for k, (record, sequence) in enumerate(zip(raw, sequences, strict=True))
        ]
        found.append(Section(partition, count, first, through, acknowledged, records))
    assert at == len(payload)
    return found


def make_batch(
    *sections: tuple[int, int, int, int, list[bytes] | list[tuple[int, bytes]]], duplicates: int = 0, unsure: int = 0
) -> tuple[bytes, int]:
    """(payload, number of records) of runs given as (partition, first, through, settled, records): from `first` on, or
    each with its sequence. Of each run the first `duplicates` are possible ones."""
    heads, body = bytearray(), bytearray()
    for partition, first, through, acknowledged, given in sections:
        records = [each if isinstance(each, tuple) else (first + n, each) for n, each in enumerate(given)]
        run = b"".join(record for _, record in records)
        if len(records) != through - first + 1:
            run = struct.pack(f"<{len(records)}Q", *(sequence for sequence, _ in records)) + run
        heads += SECTION.pack(
            partition, len(records), first, through, acknowledged, len(run), unsure, min(duplicates, len(records)), 0
        )
        body += run
    return bytes(struct.pack("<II", len(sections), 0) + heads + body), sum(len(records) for *_, records in sections)


def make_stream(partition: int, region: int = 1, bucket: int = 0, buckets: int = 1, timeline: int = 1) -> bytes:
    """The frame that names the stream that a partition is from then on."""
    return bytes(_core.pack_frame(STREAM, STREAM_NAME.pack(region, bucket, buckets, 0, timeline), partition))


class StreamName(NamedTuple):
    partition: int
    region: int
    bucket: int
    buckets: int
    timeline: int


def read_stream(frame: Frame) -> StreamName:
    region, bucket, buckets, reserved, timeline = STREAM_NAME.unpack(frame.payload)
    assert frame.type == STREAM and reserved == 0
    return StreamName(frame.id, region, bucket, buckets, timeline)


def read_ack(payload: bytes) -> tuple[int, int, list[tuple[int, int, int]]]:
    """(events of credit, bytes of credit, [(partition, reason, sequence)])."""
    events, failures, size = ACK.unpack_from(payload)
    return events, size, [FAILURE.unpack_from(payload, ACK.size + n * FAILURE.size) for n in range(failures)]


def check_queue_ledger(counts: dict[str, Any]) -> None:
    """Checks that the ledger balances: it says what became of all events that were queued."""
    went = sum(
        counts[name]
        for name in (
            "distributed",
            "conflated",
            "conflated_batch",
            "filtered_transmit",
            "parked",
            "dropped_cleared",
            "dropped_oldest",
            "restamped",
            "forgotten",
        )
    )
    assert counts["queued"] == went + counts["events"], counts


def check_ledger(counts: dict[str, Any]) -> None:
    """The two sums of the design's ledger."""
    names = ("not_queued", "not_queued_loop", "filtered_enqueue", "withheld", "dropped_stopped")
    came = sum(counts[name] for name in names)
    assert counts["received"] == counts["queued"] + came, counts
    check_queue_ledger(counts)
