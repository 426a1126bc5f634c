"""Owns events of other sites as calls, and the answers to them."""

from __future__ import annotations

from typing import Any

from fuzz_core import calls
from pywan import _core
from support.records import make_record
from support.served import EPOCH, Served

NOW = _core.Clock().now_ms << 16
FAR = (_core.Clock().now_ms + 3_600_000) << 16


def event(key: str, value: bytes = b"v", *, stamp: int = NOW, **more: Any) -> bytes:
    return make_record(key.encode(), value, stamp=stamp, key_form=1, stamp_site=9, origin_site=9, **more)


def send_events(served: Served, bucket: int, *records: bytes, marks: int | None = None, epoch: int = EPOCH) -> int:
    id = served.next_id
    served.next_id += 1
    payload = b"".join(records) + (b"" if marks is None else marks.to_bytes(8, "little"))
    flags = 0 if marks is None else calls.MARKS
    served.session.receive_data(
        calls.call(calls.EVENTS, payload, id=id, bucket=bucket, epoch=epoch, count=len(records), flags=flags)
    )
    return id


def became(payload: bytes) -> tuple[int, list[tuple[int, int]]]:
    """(conflicts, [(record, reason)]) of an answer."""
    numbers = [int.from_bytes(payload[at : at + 4], "little") for at in range(0, len(payload), 4)]
    assert numbers[1] == (len(numbers) - 2) / 2
    return numbers[0], list(zip(numbers[2::2], numbers[3::2], strict=True))
