"""Owns the histories that clients wrote: reads them, and checks each key."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from linearizability import Operation, Verdict, check


def read(paths: Iterable[Path]) -> dict[str, list[Operation]]:
    """The operations on each key. A call without a return has an unknown outcome."""
    calls: dict[tuple[int, int], tuple[str, str, tuple[object, ...], float]] = {}
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for path in paths:
        for line in path.read_bytes().split(b"\n"):
            try:
                what, process, number, *rest = json.loads(line)
            except ValueError:
                continue  # The end of a file whose writer was killed.
            if what == "call":
                key, name, arguments, at = rest
                calls[process, number] = key, name, tuple(arguments), at
            elif what == "done":
                key, name, arguments, at = calls.pop((process, number))
                operations[key].append(Operation(process, name, arguments, rest[0], at, rest[1]))
    for (process, _), (key, name, arguments, at) in calls.items():
        if name != "get":
            operations[key].append(Operation(process, name, arguments, None, at, math.inf))
    return operations


def violations(operations: dict[str, list[Operation]]) -> tuple[list[str], Counter[Verdict]]:
    """The keys whose history no order explains, and how many keys had which verdict."""
    verdicts = {key: check(history) for key, history in operations.items()}
    return [key for key, verdict in verdicts.items() if verdict is Verdict.VIOLATION], Counter(verdicts.values())
