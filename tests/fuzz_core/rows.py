"""Fuzzes the staging of a client's rows: batches of no or several sections, of rows that were sent or are not next, and
wrong commits.

Whatever comes: the rows are taken and applied as they were sent, or refused with words that say nothing of what lies
behind them.
"""

from __future__ import annotations

import itertools
import socket
import tempfile
from random import Random

from pywan import _core
from support.records import PING, UPDATE, make_record

from .grammar import BATCH, SectionPlan, frame, odd_number, payload_of, spoil

COMMIT = 11
SECRET = 7_301_234_567_890_123_456  # Lies behind every payload, where no reader has any business.
_names = itertools.count()


def rows_of(source: Random, first: int, count: int) -> list[bytes]:
    return [make_record(b"k%d" % source.randrange(50), b"v%d" % n, operation=UPDATE) for n in range(count)]


def run(source: Random) -> None:
    sent, told, right, expected = [], 0, True, {}
    for number in range(source.choice((0, 1, 3, 10))):
        count = source.choice((1, 1, 5, 100))
        first = told + 1
        if source.random() < 0.05:
            first = max(1, odd_number(source, told + 1, 62))
            right = right and first == told + 1
        records = rows_of(source, first, count)
        plans = [SectionPlan(0, first, first + count - 1, 0, records)]
        payload = payload_of(plans)
        if source.random() < 0.04:
            plans = plans * source.choice((0, 2, 5))
            payload, right = payload_of(plans), False
        elif source.random() < 0.04:
            before = payload
            spoil(source, plans[0])
            payload = payload_of(plans)
            right = right and (
                payload == before
                or (plans[0].acknowledged < first and payload[:32] + payload[40:] == before[:32] + before[40:])
            )
        total = sum(len(p.records) for p in plans)
        if source.random() < 0.03:
            total, right = odd_number(source, total, 32), False
        sent.append(frame(source, BATCH, payload, number, total))
        if not right:
            sent.append(SECRET.to_bytes(8, "little") * 8)
        told += count
        for record in records:
            length = len(record)
            key_length = record[4]
            expected[record[40 : 40 + key_length]] = record[40 + key_length : 40 + key_length + record[0]]
            assert length % 8 == 0
        if source.random() < 0.1:
            sent.append(frame(source, PING, b""))
    commits = odd_number(source, told) if source.random() < 0.1 else told
    sent.append(frame(source, COMMIT, b"", commits))
    sent.append(SECRET.to_bytes(8, "little") * 8)
    with tempfile.TemporaryDirectory() as directory:
        stage = _core.RowStage(directory, _core.StageBudget(1 << 30, source.choice((0, 1 << 22))))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"".join(sent))  # Small enough for the kernel to take without a reader.
            ours.shutdown(socket.SHUT_WR)
            outcome = stage.run(theirs, 10_000)
        assert str(SECRET) not in outcome, f"the words tell what lies behind: {outcome}"
        if outcome == "done":
            assert stage.rows == told == commits, (stage.rows, told, commits)
            region = _core.RegionCore(f"fuzz-rows{next(_names)}", _core.Clock(), site=1, stores=True)
            assert stage.apply(region)
            if right:
                assert {key: region.get(key) for key in expected} == expected and len(region) == len(expected)
        else:
            assert not right or commits != told, f"honest rows were refused: {outcome}"
