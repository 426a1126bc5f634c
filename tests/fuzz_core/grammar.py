"""Owns what the fuzzers of data connections write: frames with right checksums whose numbers may be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random

from pywan import _core
from support.records import ACK, BATCH, FAILURE, FRAME_ACK, FUTURE_STAMP, REGION_NOT_FOUND, SECTION, make_record

EDGES = (
    0,
    1,
    2,
    7,
    255,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 62) - 1,
    1 << 63,
    (1 << 64) - 2,
    (1 << 64) - 1,
)
FUTURE = 1 << 62  # A stamp that no clock says.


def odd_number(source: Random, near: int = 0, bits: int = 64) -> int:
    """A number that breaks arithmetic, or one close to what is right."""
    return (source.choice(EDGES) if source.random() < 0.5 else near + source.randint(-3, 3)) % (1 << bits)


def frame(source: Random, kind: int, payload: bytes, number: int = 0, count: int = 0) -> bytes:
    return _core.pack_frame(kind, payload, number, count)


@dataclass
class SectionPlan:
    """One section as it is written; `size` None: as long as its records and their sequences are."""

    partition: int
    first: int
    through: int
    acknowledged: int
    records: list[bytes] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    count: int | None = None
    size: int | None = None
    duplicates: int = 0

    @property
    def run(self) -> bytes:
        """The bytes that follow the heads. They hold the sequences, if these do not follow from the first one."""
        records = b"".join(self.records)
        if len(self.sequences) == self.through - self.first + 1:
            return records
        return struct.pack(f"<{len(self.sequences)}Q", *self.sequences) + records

    @property
    def carried(self) -> list[int]:
        """The sequences of its records, as a receiver has to read them from the section."""
        count = len(self.records) if self.count is None else self.count
        is_whole = count == self.through - self.first + 1 and count <= len(self.records)
        return list(range(self.first, self.through + 1)) if is_whole else self.sequences


def payload_of(plans: list[SectionPlan], sections: int | None = None) -> bytes:
    runs = [p.run for p in plans]
    heads = b"".join(
        SECTION.pack(
            p.partition,
            len(p.records) if p.count is None else p.count,
            p.first,
            p.through,
            p.acknowledged,
            len(run) if p.size is None else p.size,
            0,
            p.duplicates,
            0,
        )
        for p, run in zip(plans, runs, strict=True)
    )
    return struct.pack("<II", len(plans) if sections is None else sections, 0) + heads + b"".join(runs)


def plan_records(source: Random, plan: SectionPlan, regions: list[int], most: int) -> None:
    """Records of a section, ascending within it; rarely not."""
    room = plan.through - plan.first + 1
    sequence = plan.first
    for _ in range(source.randint(0, max(0, min(most, room)))):
        if sequence > plan.through:
            break
        key = bytes([source.randrange(97, 103)]) * source.choice((0, 1, 1, 8, 300))
        written = odd_number(source, sequence) if source.random() < 0.02 else sequence
        plan.records.append(
            make_record(
                key,
                b"v" * source.choice((0, 1, 5, 200)),
                operation=source.randrange(3),
                stamp=FUTURE if source.random() < 0.3 else source.randrange(1, 1 << 40),
                region=source.choice(regions),
                recipients=source.randbytes(source.choice((0, 0, 0, 0, 1, 255))),
                flags=source.randrange(4),
            )
        )
        plan.sequences.append(written)
        sequence += source.choice((1, 1, 1, 2))
    plan.duplicates = source.choice((0, 0, len(plan.records)))


def spoil(source: Random, plan: SectionPlan) -> None:
    """Makes one number of a section wrong."""
    name = source.choice(("partition", "first", "through", "acknowledged", "count", "size", "duplicates"))
    plan.sequences = list(plan.sequences)
    bits = 32 if name in ("partition", "count", "size", "duplicates") else 64
    right = getattr(plan, name)
    setattr(
        plan,
        name,
        odd_number(source, len(plan.records) if name == "count" else len(plan.run) if name == "size" else right, bits),
    )


__all__ = [
    "ACK",
    "BATCH",
    "EDGES",
    "FAILURE",
    "FRAME_ACK",
    "FUTURE",
    "FUTURE_STAMP",
    "REGION_NOT_FOUND",
    "SectionPlan",
    "frame",
    "odd_number",
    "payload_of",
    "plan_records",
    "spoil",
]
