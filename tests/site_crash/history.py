"""Owns the histories that clients wrote: reads them, and checks each key."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pywan import _core
from support.linearizability import ABSENT, Operation, Verdict, check

from .decisions import BucketOf, Reset, Timelines


class KeyOf(NamedTuple):
    region: str
    key: str


@dataclass(frozen=True)
class Call(Operation):
    """An operation, and when its caller heard of it for the last time: also if it heard nothing that is sure."""

    over: float = math.inf


Histories = defaultdict[KeyOf, list[Call]]


def read(paths: Iterable[Path]) -> Histories:
    """The operations on each key. A call without a return has an unknown outcome. One whose error says that nothing was
    changed is left out: nobody may ever see its value."""
    calls: dict[tuple[int, int], tuple[KeyOf, str, tuple[object, ...], float]] = {}
    histories: Histories = defaultdict(list)

    def take(process: int, number: int, over: float, returned: float = math.inf, answer: Any = None) -> None:
        of, name, arguments, called = calls.pop((process, number))
        if name != "get" or returned < math.inf:
            histories[of].append(Call(process, name, arguments, answer, called, returned, over))

    for path in paths:
        for line in path.read_bytes().split(b"\n"):
            try:
                what, process, number, *rest = json.loads(line)
            except ValueError:
                continue  # The end of a file whose writer was killed.
            if what == "call":
                region, key, name, arguments, at = rest
                calls[process, number] = KeyOf(region, key), name, tuple(arguments), at
            elif what == "done":
                take(process, number, rest[1], rest[1], rest[0])
            elif what == "doubt":
                take(process, number, rest[0])
            else:
                del calls[process, number]
    for process, number in list(calls):
        take(process, number, math.inf)
    return histories


def bucket_of(of: KeyOf, buckets: Mapping[str, int]) -> BucketOf:
    """The bucket of a key. `buckets`: how many each region has."""
    return BucketOf(of.region, ((_core.key_hash(of.key) >> 32) * buckets[of.region]) >> 32)


def over_timelines(operations: list[Call], resets: Iterable[Reset]) -> list[Operation]:
    """The history of a key whose bucket began anew: everything in it was gone then.

    A change that was under way meanwhile is made in one timeline at most: the new timeline knows by its epoch that a
    repeat is of an earlier one, and answers it as in doubt.
    """
    begins = [
        Operation(-1 - number, "put", (ABSENT,), None, reset.since, reset.until) for number, reset in enumerate(resets)
    ]
    return [*operations, *begins]


class Verdicts(NamedTuple):
    wrong: list[KeyOf]  # No order explains them.
    counts: Counter[str]


def violations(histories: Histories, timelines: Timelines, buckets: Mapping[str, int]) -> Verdicts:
    """Checks each key but those of buckets that are left out."""
    wrong, counts = [], Counter[str]()
    for of, operations in histories.items():
        bucket = bucket_of(of, buckets)
        if bucket in timelines.left_out:
            counts[f"keys left out: {timelines.left_out[bucket]}"] += 1
            continue
        verdict = check(over_timelines(operations, timelines.resets.get(bucket, ())))
        counts[f"keys {verdict.value}"] += 1
        counts["keys checked over a lost timeline"] += bucket in timelines.resets
        if verdict is Verdict.VIOLATION:
            wrong.append(of)
    return Verdicts(wrong, counts)


def shown(operations: Iterable[Operation], count: int = 60) -> str:
    """The last operations of a history, by their calls."""
    last = sorted(operations, key=lambda each: each.called)[-count:]
    return "\n".join(
        f"  {each.called:.4f}-{each.returned:.4f} {each.process} {each.name}{each.arguments} = {each.answer}"
        for each in last
    )
