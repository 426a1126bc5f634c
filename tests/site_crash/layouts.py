"""Owns which regions a site of the campaign has, and when they come."""

from __future__ import annotations

from typing import Any, NamedTuple

BUCKETS = 7
BUCKETS_OF_A_REPLICATE = 113


class Layout(NamedTuple):
    early: list[dict[str, Any]]  # From the start on.
    late: list[dict[str, Any]]  # They are created while clients work.


def _partition(name: str, copies: int, **more: Any) -> dict[str, Any]:
    copied = {"redundant_copies": copies, "recovery_delay": 0} if copies else {}
    return {"name": name, "type": "PARTITION", "total_num_buckets": BUCKETS, **copied, **more}


_MORE = _partition("more", 1, colocated_with="data")
LAYOUTS = {
    "replicate": Layout([{"name": "data", "type": "REPLICATE"}], []),
    "copies-1": Layout([_partition("data", 1)], []),
    "copies-0": Layout([_partition("data", 0)], []),
    "colocated": Layout([_partition("data", 1), _MORE], []),
    "copies-2": Layout([_partition("data", 2)], []),
    "colocated-late": Layout([_partition("data", 1)], [_MORE]),
}
