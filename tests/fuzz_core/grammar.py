"""Owns what the fuzzers of data connections write: frames with right checksums whose numbers may be wrong."""
from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random

from pywan import _core
from records import ACK, BATCH, FAILURE, FRAME_ACK, FUTURE_STAMP, REGION_NOT_FOUND, SECTION, make_record

EDGES = (0, 1, 2, 7, 255, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 62) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1)
FUTURE = 1 << 62        # A stamp that no clock says.


def odd_number(source: Random, near: int = 0, bits: int = 64) -> int:
    """A number that breaks arithmetic, or one close to what is right."""
    return (source.choice(EDGES) if source.random() < 0.5 else near + source.randint(-3, 3)) % (1 << bits)


def frame(source: Random, kind: int, payload: bytes, number: int = 0, count: int = 0) -> bytes:
    return _core.pack_frame(kind, payload, number, count)


@dataclass
class SectionPlan:
    """One section as it is written; `size` None: as long as its records are."""
    partition: int
    first: int
    through: int
    settled: int
    records: list[bytes] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    count: int | None = None
    size: int | None = None


def payload_of(plans: list[SectionPlan], sections: int | None = None) -> bytes:
    heads = b"".join(
        SECTION.pack(p.partition, len(p.records) if p.count is None else p.count, p.first, p.through, p.settled,
                     sum(map(len, p.records)) if p.size is None else p.size) for p in plans)
    return struct.pack("<II", len(plans) if sections is None else sections, 0) + heads + b"".join(b"".join(p.records) for p in plans)


def plan_records(source: Random, plan: SectionPlan, regions: list[int], most: int) -> None:
    """Records of a section, ascending within it; rarely not."""
    room = plan.through - plan.first + 1
    sequence = plan.first
    for _ in range(source.randint(0, max(0, min(most, room)))):
        if sequence > plan.through:
            break
        key = bytes([source.randrange(97, 103)]) * source.choice((0, 1, 1, 8, 300))
        written = odd_number(source, sequence) if source.random() < 0.02 else sequence
        plan.records.append(make_record(
            key, b"v" * source.choice((0, 1, 5, 200)), operation=source.randrange(3), stamp=FUTURE if source.random() < 0.3 else source.randrange(1, 1 << 40),
            region=source.choice(regions), sequence=written, partition=source.randrange(4),
            recipients=source.randbytes(source.choice((0, 0, 0, 0, 1, 255))), flags=source.randrange(2)))
        plan.sequences.append(written)
        sequence += source.choice((1, 1, 1, 2))


def spoil(source: Random, plan: SectionPlan) -> None:
    """Makes one number of a section wrong."""
    name = source.choice(("partition", "first", "through", "settled", "count", "size"))
    bits = 32 if name in ("partition", "count") else 64
    right = getattr(plan, name)
    setattr(plan, name, odd_number(source, len(plan.records) if name == "count" else sum(map(len, plan.records)) if name == "size" else right, bits))


__all__ = ["ACK", "BATCH", "EDGES", "FAILURE", "FRAME_ACK", "FUTURE", "FUTURE_STAMP", "REGION_NOT_FOUND", "SectionPlan", "frame", "odd_number",
           "payload_of", "plan_records", "spoil"]
