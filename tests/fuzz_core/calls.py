"""Fuzzes both ends of calls between members: heads and payloads that are whole in form and wrong in their numbers.

Whatever comes to who serves: each call is answered once, in words if it cannot be done, or the connection ends with a
ProtocolError whose words are the last answer; and no key is changed that no call named. Whatever comes to who calls:
each call ends, waits or is tried again; an error is one of pywan; and a change that was sent, and of which no answer
says that nothing was done, stays in doubt.
"""

from __future__ import annotations

import itertools
import struct
from random import Random

import msgpack

from pywan import _core
from pywan.errors import ConnectivityError, ProtocolError, PywanError
from pywan.protocol.calls import error_of
from support.records import make_record

from .grammar import odd_number

MAGIC = 0x314B5750
REGION, GET, CHANGE, ROWS, COUNT, SCAN, CLEAR, EVENTS, ANSWER = range(1, 10)
REPEAT, MARKS = 1, 4  # Flags of a call.
BUCKETS = 3
CALL = struct.Struct("<IBBBBIIIHHIIQQQQ")
ANSWER_HEAD = struct.Struct("<IBBBBIIIB3xQQ")
RECORD = struct.Struct("<IHHQQIIHBBBBBB")
_names = itertools.count()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def call(
    kind: int,
    payload: bytes = b"",
    *,
    id: int = 1,
    flags: int = 0,
    form: int = 0,
    condition: int = 0,
    region: int = 1,
    bucket: int = 0,
    count: int = 0,
    epoch: int = 0,
    shard: int = 0,
    caller: int | None = None,
    slot: int | None = None,
    number: int | None = None,
    length: int | None = None,
    crc: int | None = None,
    within: int | None = None,
) -> bytes:
    """A whole call. Its checksum is right unless it is given. A change is the first one in a slot of its own, unless
    the identity is given. Its caller waits for 10 s."""
    length = len(payload) if length is None else length
    shard = shard or flags & REPEAT  # There it says since when it is a repeat.
    changes = kind in (CHANGE, ROWS, CLEAR)
    caller = 7 * changes if caller is None else caller
    slot = id % 65536 * changes if slot is None else slot
    number = int(changes) if number is None else number
    place = slot << 48 | number
    within = 1000 * (kind != REGION) if within is None else within
    fields = [
        MAGIC,
        kind,
        flags,
        form,
        condition,
        length,
        0,
        id,
        region,
        within,
        bucket,
        count,
        epoch,
        shard,
        caller,
        place,
    ]
    fields[6] = _core.crc32c(CALL.pack(*fields) + payload[:length]) if crc is None else crc
    return CALL.pack(*fields) + padded(payload)


def record(key: bytes, value: bytes = b"", *, operation: int = 1, key_form: int = 0, sequence: int = 1) -> bytes:
    head = RECORD.pack(len(value), len(key), 0, 0, sequence, 7, 1, 0, 0, 0, 1, 1, operation | key_form << 4, 0 | 3 << 4)
    return padded(head + key + value)


def event(source: Random, key: bytes) -> bytes:
    """A record of another site."""
    stamp = source.choice((1, 2, source.getrandbits(40), odd_number(source)))
    return make_record(
        key,
        bytes(source.randrange(40)),
        operation=source.choice((0, 1, 1, 2)),
        stamp=stamp,
        stamp_site=source.choice((1, 3)),
        origin_site=3,
        recipients=bytes(source.randrange(4)),
        flags=source.choice((0, 0, 1, 2)),
    )


def numbers(data: bytes) -> list[tuple[int, int]]:
    """(status, number) of each answer."""
    found = []
    while data:
        _, _, status, _, _, length, _, _, _, number, _ = ANSWER_HEAD.unpack_from(data)
        found.append((status, number))
        data = data[40 + len(padded(bytes(length))) :]
    return found


def answers(data: bytes) -> list[tuple[int, int, bytes]]:
    """(id, status, payload) of each answer."""
    found = []
    while data:
        _, kind, status, _, _, length, _, id_, _, _, _ = ANSWER_HEAD.unpack_from(data)
        assert kind == ANSWER
        found.append((id_, status, data[40 : 40 + length]))
        data = data[40 + len(padded(bytes(length))) :]
    return found


def bucket_of(key: bytes) -> int:
    return ((_core.key_hash(key) >> 32) * BUCKETS) >> 32


def odd(source: Random) -> int:
    return source.choice((0, 1, 2, 3, 7, 255, 65535, 0xFFFFFFFF, source.getrandbits(32)))


def plan(source: Random, id_: int) -> bytes:
    kind = source.choice((GET, CHANGE, CHANGE, ROWS, EVENTS, COUNT, SCAN, CLEAR, source.randrange(256)))
    key = b"k%d" % source.randrange(20)
    payload, more = b"", {"bucket": bucket_of(key), "id": id_}
    if kind == GET:
        payload = key
    elif kind == CHANGE:
        payload = record(key, bytes(source.randrange(40)), operation=source.choice((0, 1, 1, 2, 15)))
        if source.random() < 0.4:
            more["condition"] = source.randrange(6)
            payload += bytes(source.randrange(20))
    elif kind == ROWS:
        rows = [record(key, b"v", operation=source.choice((1, 2)), sequence=n) for n in range(source.randrange(5))]
        payload, more["count"] = b"".join(rows), len(rows)
    elif kind == EVENTS:
        events = [event(source, key) for _ in range(source.randrange(5))]
        payload, more["count"] = b"".join(events), len(events)
        if source.random() < 0.5:
            payload += source.randrange(1 << len(events)).to_bytes(8, "little")
            more["flags"] = MARKS
    elif kind == SCAN:
        more["flags"] = source.choice((0, 2))
        more["shard"] = source.choice((0, 1, odd(source)))
    if kind in (CHANGE, ROWS, CLEAR) and source.random() < 0.2:
        more["flags"], more["shard"] = REPEAT, source.choice((1, odd(source)))
    if source.random() < 0.15:
        more[
            source.choice(
                (
                    "flags",
                    "form",
                    "condition",
                    "bucket",
                    "count",
                    "shard",
                    "length",
                    "crc",
                    "epoch",
                    "caller",
                    "slot",
                    "number",
                    "within",
                )
            )
        ] = odd(source) & 0xFF
    if source.random() < 0.1 and payload:
        at = source.randrange(len(payload))
        payload = payload[:at] + bytes([source.randrange(256)]) + payload[at + 1 :]
    return call(kind, payload, **more)


class Route(_core.CallRoute):
    """What the calling end needs of a route. Nobody says where calls go: the fuzzer does."""

    def __init__(self, core: _core.RegionCore) -> None:
        self.slots = _core.CallSlots(7)

    def failure(self, words: bytes, in_doubt: bool) -> Exception:
        error = error_of(words)
        error.in_doubt = in_doubt
        return error

    def too_few(self, bucket: int, made: int, wanted: int, key: object) -> Exception:
        error = ConnectivityError(f"{made} of {wanted}")
        error.in_doubt = True
        return error


def write_answer(source: Random, id_: int) -> bytes:
    """An answer to a call of this id, whose numbers are often such that they cannot be."""
    value = source.choice((b"", b"v", bytes(8), bytes(source.randrange(300))))
    payload = source.choice((value, value, b"[BatchError] x", b"[int] x", msgpack.packb(["m", 1, "h", 1, odd(source)])))
    fields = [
        MAGIC,
        ANSWER,
        source.choice((0, 0, 0, 1, 2, 3, 4, source.randrange(256))),
        source.choice((0, 1, 2, 3, 4, source.randrange(256))),
        source.choice((3, 0, 1, source.randrange(256))),
        len(payload),
        0,
        id_ if source.random() < 0.9 else odd(source),
        source.choice((0, 1, 2, 3, source.randrange(256))),
        odd_number(source),
        odd_number(source),
    ]
    for at, bits in ((1, 8), (5, 32)):
        if source.random() < 0.01:
            fields[at] = odd_number(source, fields[at], bits)
    whole = padded(payload)
    fields[6] = _core.crc32c(ANSWER_HEAD.pack(*fields) + payload) if source.random() < 0.99 else odd(source)
    return ANSWER_HEAD.pack(*fields) + whole


def sent_ids(data: bytes) -> list[int]:
    """The ids of the calls in these bytes."""
    found, at = [], 0
    while at < len(data):
        fields = CALL.unpack_from(data, at)
        if fields[1] != REGION:
            found.append(fields[7])
        at += CALL.size + len(padded(bytes(fields[5])))
    return found


def run_caller(source: Random) -> None:
    """Answers of a hostile primary."""
    core = _core.RegionCore(f"calls{next(_names)}", _core.Clock(), site=1, buckets=BUCKETS)
    route, line = Route(core), _core.CallLine(None)
    waiting: list[_core.CallSteps] = []
    for n in range(source.randrange(1, 30)):
        operation = source.choice((None, _core.UPDATE, _core.DESTROY))
        condition = _core.Condition("equal", b"v") if operation is not None and source.random() < 0.3 else None
        steps = _core.CallSteps(route, operation, b"k%d" % source.randrange(9), b"v", (7, 1, n + 1), 1, condition)
        if not steps.send(line, odd_number(source) or 1, 1_000_000):
            assert steps.trouble is not None and (line.is_broken or line.on_their_way)
            continue
        waiting.append(steps)
        ids = sent_ids(line.data_to_send()) if source.random() < 0.5 else []
        stream = b"".join(write_answer(source, id_) for id_ in ids if source.random() < 0.9)
        while stream:
            cut = source.choice((1, 40, 100, 5000))
            line.receive_data(stream[:cut])
            stream = stream[cut:]
        for each in list(waiting):
            try:
                ended = each.take()
            except PywanError:
                waiting.remove(each)
                continue
            if ended is not None:
                waiting.remove(each)
                assert ended or each.trouble is not None
                assert ended or each.is_read or each.trouble[0] != "broken" or each.in_doubt
    line.close()


def run(source: Random) -> None:
    (run_server if source.random() < 0.6 else run_caller)(source)


def run_server(source: Random) -> None:
    name = f"calls{next(_names)}"
    region = _core.RegionCore(name, _core.Clock(), site=1, buckets=BUCKETS)
    session = _core.CallSession({name: region}.get)
    stream = call(REGION, name.encode()) + b"".join(plan(source, id_) for id_ in range(1, source.randrange(2, 30)))
    sent, at, ended = b"", 0, False
    while at < len(stream) and not ended:
        piece = stream[at : at + source.choice((1, 7, 48, 200, 5000))]
        at += len(piece)
        try:
            assert session.receive_data(piece, 1)
        except ProtocolError:
            ended = True
        while out := session.data_to_send(1) if not ended else b"":
            sent += out
    found = answers(sent)
    ids = [id_ for id_, _, _ in found]
    assert ids == sorted(set(ids)), ids
    if not ended:
        assert session.served == len(ids)
    assert all(isinstance(key, (str, int, float, tuple)) or key.startswith(b"k") or key for key in region.scan_keys())
