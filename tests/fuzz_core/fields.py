"""Changes each field of each frame and call, one at a time, to each value of interest, and mends the checksum.

The tables below are those of docs/wire_format.md. A session hears all that a right peer says, but for the one number.
Whatever comes: the session goes on or ends with a ProtocolError, what it sends is whole, no count is beyond what came,
and memory follows the bytes that came. A run goes through all tables; it takes some seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import lz4.block

from pywan import _core
from pywan.errors import ProtocolError, PywanError
from pywan.gateway.floors import Floor, decode_floors, encode_floors
from pywan.protocol import gateway
from support.records import (
    ACK,
    BATCH,
    BYE,
    FAILURE,
    FRAME,
    FRAME_ACK,
    PING,
    PONG,
    REGION,
    REWIND,
    check_ledger,
    make_batch,
    make_record,
    make_stream,
    split_frames,
)

from . import calls, repl_link
from .receiver import packed_frame

# The fields of a layout and their bytes, in order. Zeros have fields of their own; a checksum is made anew.
HEAD = "magic:4 type:1 flags:1 zero:2 length:4 checksum:4 raw_length:4 count:4 id:8"
BATCH_HEAD = "sections:4 zero:4"
SECTION = "partition:4 count:4 first:8 through:8 acknowledged:8 bytes:4 unsure:4 duplicates:4 zero:4"
RECORD = (
    "value_length:4 key_length:2 callback_length:2 stamp:8 event_sequence:8 event_member:4 event_thread:4 region:2"
    " flags:1 recipients_count:1 stamp_site:1 origin_site:1 operation_and_key_form:1 other_forms:1"
)
SEQUENCE = "sequence:8"
STREAM_NAME = "region:2 bucket:2 buckets:2 zero:2 timeline:8"
ACK_HEAD = "credit:4 failures:4 credit_bytes:8"
FAILURES = "partition:4 reason:4 sequence:8"
REWIND_TO = "partition:4 zero:4 expected:8"
FLOOR = "stamp:8 site:1 zero:7 sites:32"
POSITION = "partition:4 unacknowledged:4 last:8 mount:8"
REPL_REGION = "number:4 buckets:4 length:4 zero:4"
REPL_SECTION = "region:4 bucket:4 timeline:8 epoch:8 transfer:8 first:8 high_watermark:8 notified:8 count:4 bytes:4"
ENTRY = "bytes:4 decided:4 found:4 outcome:1 form:1 flags:1 kind:1"
IDENTITY = "caller:8 call:8"
CLEARED = "entries:8"
VERDICT = "sender:8 bytes:4 what:1 has_value:1 form:1 zero:1"
PIECE = "region:4 bucket:4 timeline:8 epoch:8 transfer:8 through:8 count:4 bytes:4 shards:4 part:1 is_last:1 zero:2"
TOMBSTONE = "hash:8 stamp:8"
REMEMBERED = "caller:8 call:8 sequence:8 rows:4 changed:4 found:4 outcome:1 form:1 state:1 kind:1"
QUEUED = "sender:8 sequence:8 bytes:4 never_there:4"
ITEM = "region:4 bucket:4 timeline:8 epoch:8 sequence:8 kind:1 zero:7"
REMOVAL_ITEM = "sender:8 timeline:8 after:8 through:8 explained:8 region:4 bucket:4 exceptions:4 leads:1 zero:3"
EXCEPTION = "first:8 count:4 reason:1 failure:1 zero:2"
CALL = (
    "magic:4 kind:1 flags:1 form:1 condition:1 length:4 checksum:4 id:4 region:2 within:2 bucket:4 count:4 epoch:8"
    " shard:8 caller:8 call:8"
)
ANSWER = "magic:4 kind:1 status:1 outcome:1 form:1 length:4 checksum:4 id:4 flags:1 zero:3 number:8 done:8"
KEPT_BYTES = 1 << 20  # A session keeps less of a frame, whatever that says.
STAGED_BYTES = 2 << 20  # Rows are staged in blocks of this size.
TAKEN_BYTES = 32 << 20  # Less is taken meanwhile: a frame says up to 64 MiB, and a region begins with some of its own.
IS_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # What is given back is kept for a while there.
NOW_US = 10_000_000
PARTITIONS = 4
_LIBC = ctypes.CDLL(None)
_repl_links = itertools.count()


class Field(NamedTuple):
    name: str
    at: int
    size: int


def size_of(layout: str) -> int:
    return sum(int(each.partition(":")[2]) for each in layout.split())


@dataclass
class Whole:
    """A frame or a call, and where its fields are."""

    name: str
    data: bytes
    fields: list[Field] = field(default_factory=list)
    is_call: bool = False

    def lay(self, layout: str, at: int, of: str = "") -> Whole:
        """Notes the fields of a layout that begins there."""
        for each in layout.split():
            name, _, size = each.partition(":")
            if name != "checksum":
                self.fields.append(Field(f"{of}{name}", at, int(size)))
            at += int(size)
        assert at <= len(self.data), (self.name, layout)
        return self

    def changed(self) -> Iterator[tuple[str, bytes]]:
        """Yields all changes, each with its name."""
        for name, at, size in self.fields:
            right = int.from_bytes(self.data[at : at + size], "little")
            for value in values(right, size):
                made = bytearray(self.data)
                made[at : at + size] = value.to_bytes(size, "little")
                yield f"{self.name}: {name} is {value} in place of {right}", self.mended(made)

    def mended(self, data: bytearray) -> bytes:
        """The checksum fits the rest."""
        head = 64 if self.is_call and data[4] != calls.ANSWER else 40 if self.is_call else 32
        length = int.from_bytes(data[8:12], "little")
        data[12:16] = bytes(4)
        data[12:16] = _core.crc32c(bytes(data[: head + length])).to_bytes(4, "little")
        return bytes(data)


def values(right: int, size: int) -> list[int]:
    top = 1 << 8 * size
    near = (right + 1, right - 1, right + 2**31, right + 2**33)
    odd = {each % top for each in (0, 1, top - 1, top - 2, 65_535, 2**31, 2**32, top >> 1, *near)}
    return sorted(odd - {right})


def framed(name: str, kind: int, payload: bytes, number: int = 0, count: int = 0) -> Whole:
    return Whole(name, _core.pack_frame(kind, payload, number, count)).lay(HEAD, 0, "header ")


# --- what is sent to a receiver ---


def to_receiver() -> list[Whole]:
    record = make_record(b"k", b"value", recipients=b"\2", callback=b"c")
    batch, count = make_batch((0, 1, 3, 0, [(1, record), (3, record)]), (PARTITIONS, 1, 2, 0, [record, record]))
    runs = 8 + 2 * size_of(SECTION)
    sequences = runs + 16
    second = sequences + 2 * len(record)
    whole = framed("BATCH", BATCH, batch, 0, count).lay(BATCH_HEAD, 32)
    for n, place in enumerate((8, 8 + size_of(SECTION))):
        whole.lay(SECTION, 32 + place, f"section {n} ")
    whole.lay(SEQUENCE, 32 + runs).lay(RECORD, 32 + sequences, "record ").lay(RECORD, 32 + second, "of a stream ")
    packed = Whole("BATCH, packed", packed_frame(Random(1), batch, 0, count)).lay(HEAD, 0, "header ")
    assert packed.data[32:].startswith(lz4.block.compress(batch, store_size=False))
    floors = encode_floors({3: Floor(1 << 20, frozenset({1, 2}))})
    stream = Whole("STREAM", make_stream(PARTITIONS + 1, bucket=1, buckets=3, timeline=2))
    return [
        framed("REGION", REGION, b"other", 2),
        stream.lay(HEAD, 0, "header ").lay(STREAM_NAME, 32),
        whole,
        packed,
        framed("PING", PING, b"", 5),
        framed("PING with floors", PING, floors, 5).lay(FLOOR, 32),
        framed("BYE", BYE, b""),
    ]


def receive_as_receiver(frame: bytes, source: Random) -> bool:
    floors: list[Any] = []
    cores = {name: _core.RegionCore(f"fields-{name}", _core.Clock(), site=2) for name in ("data", "other")}
    memory, counts = _core.SourceMemory(PARTITIONS, _core.StreamMemory()), _core.ReceiverCounts()
    session = _core.ReceiverSession(
        memory, counts, cores.get, None, on_floors=lambda data: floors.extend(decode_floors(data).items())
    )
    before = _core.pack_frame(REGION, b"data", 1) + make_stream(PARTITIONS, timeline=1)
    goes_on = feed(session.receive_data, before + frame, source)
    sent = split_frames(drained(session.data_to_send)) if goes_on else []
    assert all(each.type in (FRAME_ACK, REWIND, PONG, 14) for each in sent), sent
    assert memory.failures <= 4, memory.failures
    assert sum(len(each) for each in cores.values()) <= 2
    return goes_on


# --- what is sent to a dispatcher ---


def to_dispatcher() -> list[Whole]:
    answer = framed("ACK", FRAME_ACK, ACK.pack(1000, 1, 1 << 20) + FAILURE.pack(0, 3, 1), 0, 50)
    return [
        answer.lay(ACK_HEAD, 32).lay(FAILURES, 32 + size_of(ACK_HEAD), "failure "),
        framed("REWIND", REWIND, struct.pack("<IIQ", 0, 0, 1)).lay(REWIND_TO, 32),
        framed("PROGRESS", 14, b"", 5),
        framed("PONG", PONG, b"", 0),
        framed("BYE to a sender", BYE, b""),
        framed("ERROR", 10, b"[PywanError] words"),
    ]


def receive_as_dispatcher(frame: bytes, source: Random) -> bool:
    queue = _core.EventQueue("fields", remote_site=2, partitions=PARTITIONS, dispatchers=1)
    queue.running = True
    region = _core.RegionCore("fields-sender", _core.Clock(), site=1, stores=False)
    region.attach([queue])
    parked = _core.EventQueue("fields-parked", partitions=8)
    session = _core.DispatcherSession(queue, 0, parked)
    session.configure(10, -1)
    session.connected(1000, 1 << 20, 1)
    for key in range(8):
        region.put(key, b"v")
    while session.data_to_send(1000):
        pass
    goes_on = feed(lambda data: session.receive_data(data, 2000), frame, source)
    counts = queue.counts()
    check_ledger(counts)
    assert counts["parked"] == len(parked) <= 1, counts
    return goes_on


# --- replication links ---


def _bucket_keys(bucket: int) -> list[bytes]:
    return [key for key in (b"k%d" % n for n in range(40)) if repl_link.bucket_of(key) == bucket]


def to_repl_receiver() -> list[Whole]:
    key, learned = _bucket_keys(0)[0], _bucket_keys(1)[0]
    decided = repl_link.enters(repl_link.SENDER)
    entries = [
        repl_link.entry(key, b"value", decided=decided, found=b"found", flags=3),
        repl_link.forget(8),
        repl_link.clear_entry(4, number=2),
    ]
    data = repl_link.changes([repl_link.section(entries, 1, high_watermark=1)], 1)
    at = 32 + 8 + size_of(REPL_SECTION)
    whole = Whole("REPL_CHANGES", data).lay(HEAD, 0, "header ").lay(BATCH_HEAD, 32).lay(REPL_SECTION, 40, "section ")
    whole.lay(ENTRY, at, "entry ").lay(IDENTITY, at + 16, "entry ").lay(RECORD, at + 32, "record ")
    whole.lay(VERDICT, at + len(entries[0]) - len(repl_link.padded(b"found")) - len(decided), "decided ")
    at += len(entries[0])
    whole.lay(ENTRY, at, "forgotten ").lay(IDENTITY, at + 16, "forgotten ")
    at += len(entries[1])
    whole.lay(ENTRY, at, "cleared ").lay(IDENTITY, at + 16, "cleared ").lay(CLEARED, at + 32, "cleared ")

    def snapshot(name: str, pieces: list[bytes], part: int, *layouts: tuple[str, int]) -> Whole:
        made = Whole(
            name, repl_link._core.pack_frame(repl_link.SNAPSHOT, repl_link.piece(pieces, 5, bucket=1, part=part), 1)
        )
        made.lay(HEAD, 0, "header ").lay(PIECE, 32, "piece ")
        for layout, offset in layouts:
            made.lay(layout, 32 + size_of(PIECE) + offset, "item ")
        return made

    event = make_record(learned, b"v")
    queued = struct.pack("<QQII", repl_link.SENDER, 4, len(event), 0) + event
    left = struct.pack("<QQII", repl_link.SENDER, 2, 0, 0)
    first = struct.pack("<QQQIIIBBBB", 0, 0, 5, 0, 0, 0, 0, 0, 0, 0)
    call = struct.pack("<QQQIIIBBBB", 9, 1, 4, 0, 0, 5, 0, 0, 1, 1) + repl_link.padded(b"found")
    removals = repl_link.removal_frame(
        [{"sender": repl_link.SENDER, "through": 3, "explained": 1, "exceptions": [(2, 1, 3)]}]
    )
    regions = Whole("REPL_REGIONS", repl_link.region_frame(2, "another")).lay(HEAD, 0, "header ").lay(REPL_REGION, 32)
    item = size_of(REMOVAL_ITEM)
    return [
        regions,
        whole,
        snapshot(
            "REPL_SNAPSHOT of entries", [repl_link.entry(learned, b"v", found=bytes(8))], 0, (ENTRY, 0), (RECORD, 16)
        ),
        snapshot(
            "REPL_SNAPSHOT of tombstones", [struct.pack("<QQ", _core.key_hash(learned), 1 << 30)], 1, (TOMBSTONE, 0)
        ),
        snapshot("REPL_SNAPSHOT of calls", [first, call], 2, (REMEMBERED, 0), (REMEMBERED, size_of(REMEMBERED))),
        snapshot("REPL_SNAPSHOT of events", [left, queued], 3, (QUEUED, 0), (QUEUED, 24), (RECORD, 48)),
        Whole("REPL_REMOVAL", removals)
        .lay(HEAD, 0, "header ")
        .lay(BATCH_HEAD, 32)
        .lay(REMOVAL_ITEM, 40, "item ")
        .lay(EXCEPTION, 40 + item, "exception "),
        framed("PING of a replication link", PING, b"", 1),
    ]


def _shared(name: str) -> tuple[_core.RegionCore, _core.Changelog, _core.EventQueue]:
    core = _core.RegionCore(name, _core.Clock(), site=1, buckets=repl_link.BUCKETS)
    changelog = _core.Changelog(repl_link.BUCKETS, core.shards)
    core.share(changelog, None, False)
    queue = _core.EventQueue("ln", remote_site=2, partitions=repl_link.BUCKETS, by_bucket=True)
    core.attach([queue])
    return core, changelog, queue


def receive_as_replica(frame: bytes, source: Random) -> bool:
    name = f"fields-replication link{next(_repl_links) % 8}"
    core, changelog, queue = _shared(name)
    for bucket, role in enumerate((_core.REPLICA_IN_SYNC, _core.REPLICA_LEARNER, _core.REPLICA_IN_SYNC)):
        transfer = repl_link.TRANSFER * (role == _core.REPLICA_LEARNER)
        changelog.set_role(bucket, role, repl_link.TIMELINE, repl_link.EPOCH, transfer, 7)
        changelog.set_holders(bucket, [7])
    receiver = _core.ReplReceiver({name: core}.get, 5000, 7)
    session = receiver.open_session()
    goes_on = feed(lambda data: session.receive_data(data, NOW_US), repl_link.region_frame(1, name) + frame, source)
    sent = split_frames(drained(lambda: session.data_to_send(NOW_US))) if goes_on else []
    assert len([each for each in sent if each.id]) <= 1, sent
    for bucket in range(repl_link.BUCKETS):
        assert changelog.state(bucket)["high_watermark"] <= changelog.log_end(bucket) < 1 << 63, changelog.state(bucket)
    repl_link.check_queue(queue)
    assert receiver.read_lease.left_us(NOW_US) <= repl_link.READ_LEASE_KEPT_US
    return goes_on


def to_repl_sender() -> list[Whole]:
    answer = Whole("REPL_ANSWER", repl_link.answer([(1, 0, repl_link.TIMELINE, repl_link.EPOCH, 1, 0)], 1))
    refusal = Whole(
        "REPL_ANSWER without a question", repl_link.answer([(1, 0, repl_link.TIMELINE, repl_link.EPOCH + 1, 0, 1)], 0)
    )
    return [
        answer.lay(HEAD, 0, "header ").lay(BATCH_HEAD, 32).lay(ITEM, 40, "item "),
        refusal.lay(HEAD, 0, "header ").lay(BATCH_HEAD, 32).lay(ITEM, 40, "item "),
    ]


def receive_as_primary(frame: bytes, source: Random) -> bool:
    name = f"fields-replication link{next(_repl_links) % 8}"
    core, changelog, _ = _shared(name)
    sender = _core.ReplSender(3, "a member", 5000)
    changelog.add_repl_link(3, sender)
    for bucket in range(repl_link.BUCKETS):
        changelog.set_role(bucket, _core.REPLICA_PRIMARY, repl_link.TIMELINE, repl_link.EPOCH)
    core.put(_bucket_keys(0)[0], b"v")
    for bucket in range(repl_link.BUCKETS):
        changelog.set_replicas(bucket, [(3, _core.REPLICA_WAITED, 0, 0)])
    sender.add_region(1, name, core)
    session = sender.session
    drained(lambda: session.data_to_send(NOW_US))
    goes_on = feed(lambda data: session.receive_data(data, NOW_US), frame, source)
    for bucket in range(repl_link.BUCKETS):
        shown = changelog.state(bucket)
        assert shown["high_watermark"] <= shown["log_end"] <= 1, shown
        assert all(replica["acked"] <= shown["log_end"] for replica in shown["copies"]), shown
    assert sender.read_lease_until_us <= NOW_US + repl_link.READ_LEASE_US
    sender.remove_region(name)
    return goes_on


# --- calls ---


def to_server() -> list[Whole]:
    key = _bucket_keys(0)[0]
    record, row = calls.record(key, b"value"), calls.record(key, b"v", sequence=2)
    event = make_record(key, b"v", stamp_site=3, origin_site=3)
    at = size_of(CALL)

    def whole(name: str, kind: int, payload: bytes = b"", *layouts: tuple[str, int], **fields: int) -> Whole:
        made = Whole(name, calls.call(kind, payload, **fields), is_call=True).lay(CALL, 0, "head ")
        for layout, offset in layouts:
            made.lay(layout, at + offset, "record ")
        return made

    marks = (1).to_bytes(8, "little")
    return [
        whole("REGION of calls", calls.REGION, b"fields-more", region=2),
        whole("GET", calls.GET, key),
        whole("CHANGE", calls.CHANGE, record, (RECORD, 0)),
        whole("CHANGE under a condition", calls.CHANGE, record + b"expected", (RECORD, 0), condition=3),
        whole("a repeated CHANGE", calls.CHANGE, record, (RECORD, 0), flags=calls.REPEAT, shard=repl_link.EPOCH),
        whole("ROWS", calls.ROWS, record + row, (RECORD, 0), (RECORD, len(record)), count=2),
        whole("COUNT", calls.COUNT),
        whole("SCAN", calls.SCAN, flags=2),
        whole("CLEAR", calls.CLEAR),
        whole("EVENTS", calls.EVENTS, event + marks, (RECORD, 0), ("marks:8", len(event)), count=1, flags=calls.MARKS),
    ]


def receive_as_server(frame: bytes, source: Random) -> bool:
    cores = {name: _core.RegionCore(name, _core.Clock(), site=1, buckets=repl_link.BUCKETS) for name in CALLED}
    session = _core.CallSession(cores.get)
    before = calls.call(calls.REGION, CALLED[0].encode())
    goes_on = feed(lambda data: session.receive_data(data, 1), before + frame, source)
    found = calls.answers(drained(lambda: session.data_to_send(1))) if goes_on else []
    assert len(found) <= 1, found
    assert sum(len(each) for each in cores.values()) <= 2
    return goes_on


CALLED = ("fields-calls", "fields-more")
CALL_ID = 1024  # A line names its first call so.


def _answered(name: str, payload: bytes, *layouts: tuple[str, int], **given: int) -> Whole:
    fields = {"status": 0, "outcome": 0, "form": 0, "flags": 0, "number": 0, "done": 0, **given}
    head = calls.ANSWER_HEAD.pack(
        calls.MAGIC,
        calls.ANSWER,
        fields["status"],
        fields["outcome"],
        fields["form"],
        len(payload),
        0,
        CALL_ID,
        fields["flags"],
        fields["number"],
        fields["done"],
    )
    made = Whole(name, b"", is_call=True)
    made.data = made.mended(bytearray(head + calls.padded(payload)))
    made.lay(ANSWER, 0, "head ")
    for layout, offset in layouts:
        made.lay(layout, size_of(ANSWER) + offset, "item ")
    return made


def to_caller() -> list[Whole]:
    return [
        _answered("answer to GET", b"value", flags=3),
        _answered("answer that another one is primary", b"", status=1, number=9),
        _answered("answer in words", b"[PywanError] words", status=2),
        _answered("answer in doubt", b"[ConnectivityError] words", status=3, flags=8, number=1 | 2 << 32),
        _answered("answer that the caller is given up", b"[PywanError] words", status=4),
    ]


def receive_as_caller(frame: bytes, source: Random) -> bool:
    core = _core.RegionCore("fields-calls", _core.Clock(), site=1, buckets=repl_link.BUCKETS)
    route, line = calls.Route(core), _core.CallLine(None)
    steps = _core.CallSteps(route, None, b"k", b"v", (7, 1, 1), 1, None)
    assert steps.send(line, 1, 1_000_000)
    assert calls.sent_ids(line.data_to_send()) == [CALL_ID]
    feed(line.receive_data, frame, source)
    try:
        ended = steps.take()
        assert ended in (True, False, None)
    except PywanError:
        pass
    goes_on = not line.is_broken
    line.close()
    return goes_on


# --- rows of clients ---


def to_stage() -> list[Whole]:
    record = make_record(b"k", b"value", stamp=0, stamp_site=0, origin_site=0, event=(0, 0, 0))
    batch, count = make_batch((0, 1, 2, 0, [record, record]))
    at = 32 + 8 + size_of(SECTION)
    return [
        framed("BATCH of rows", BATCH, batch, 0, count).lay(BATCH_HEAD, 32).lay(SECTION, 40, "section ")
        .lay(RECORD, at, "record "),
        framed("PING of a client", PING, b"", 0),
        framed("COMMIT", 11, b"", 0),
    ]  # fmt: skip


def receive_as_stage(frame: bytes, source: Random) -> bool:
    stage = _core.RowStage(None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame)
        ours.shutdown(socket.SHUT_WR)
        with bounded_memory(KEPT_BYTES + STAGED_BYTES):
            outcome = stage.run(theirs, 10_000)
    assert stage.rows <= 2, stage.rows
    if outcome == "done":
        region = _core.RegionCore("fields-rows", _core.Clock(), site=1)
        stage.apply(region)
        assert len(region) <= 1
    return ", is refused: " not in outcome and "refused" not in outcome


# --- positions of partitions, which are read in Python ---


def to_sender_that_opens() -> list[Whole]:
    position = struct.pack("<IIQQ", 0, 0, 5, 77)
    return [framed("KNOWN", _core.FRAME_KNOWN, position).lay(POSITION, 32)]


def receive_as_sender_that_opens(frame: bytes, source: Random) -> bool:
    try:
        _, padded, _ = _core.check_frame_header(frame[: FRAME.size])
        if len(frame) < FRAME.size + padded:
            return True  # It waits for more.
        assert len(gateway.decode_known(frame[: FRAME.size + padded])) == 1
    except ProtocolError:
        return False
    return True


# By session: what it is told, and what hears that.
SESSIONS: dict[str, tuple[Callable[[], list[Whole]], Callable[[bytes, Random], bool]]] = {
    "receiver": (to_receiver, receive_as_receiver),
    "dispatcher": (to_dispatcher, receive_as_dispatcher),
    "copy": (to_repl_receiver, receive_as_replica),
    "primary": (to_repl_sender, receive_as_primary),
    "server of calls": (to_server, receive_as_server),
    "caller": (to_caller, receive_as_caller),
    "stage of rows": (to_stage, receive_as_stage),
    "sender that opens": (to_sender_that_opens, receive_as_sender_that_opens),
}
# A right frame after which a connection ends.
ENDS = {"BYE", "REWIND", "BYE to a sender", "ERROR"}


def feed(receive: Callable[[bytes], object], data: bytes, source: Random) -> bool:
    """Whether the connection goes on."""
    cut = source.choice((1 << 20, 1 << 20, 7, 40))
    with bounded_memory():
        try:
            for at in range(0, len(data), cut):
                if receive(data[at : at + cut]) is False:
                    return False
        except ProtocolError:
            return False
    return True


@contextlib.contextmanager
def bounded_memory(most: int = KEPT_BYTES) -> Iterator[None]:
    """What a frame says costs little memory. The filler takes what was given back before, so that each large piece is
    seen."""
    with mmap.mmap(-1, max(addresses() - addresses("VmSize"), mmap.PAGESIZE)):
        before, kept = addresses(), kept_bytes()
        yield
        took, kept = addresses() - before, kept_bytes() - kept
        assert IS_SANITIZED or took < TAKEN_BYTES, f"it took {took >> 20} MiB"
        assert kept < most, f"it keeps {kept >> 10} KiB"


def drained(send: Callable[[], bytes]) -> bytes:
    sent = b""
    try:
        while out := send():
            sent += out
    except ProtocolError:
        pass
    return sent


def addresses(name: str = "VmPeak") -> int:
    """The bytes of addresses that this process has had at most, or has: also those that were never touched."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10


class _Kept(ctypes.Structure):
    """What glibc tells of its memory (mallinfo2)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def kept_bytes() -> int:
    """The bytes that were taken by `malloc` and not given back. 0: nobody tells."""
    tell = getattr(_LIBC, "mallinfo2", None)
    if tell is None or IS_SANITIZED:
        return 0
    tell.restype = _Kept
    told = tell()
    return int(told.uordblks + told.hblkhd)


def run_session(name: str, source: Random) -> int:
    """Returns how many changes there were."""
    told, receive = SESSIONS[name]
    wholes, done = told(), 0
    for whole in wholes:
        assert receive(whole.data, source) or whole.name in ENDS, f"a right {whole.name} is refused"
    for whole in wholes:
        for what, data in whole.changed():
            try:
                receive(data, source)
            except BaseException as error:
                raise AssertionError(f"{name}: {what}: {type(error).__name__}: {error}") from error
            done += 1
    return done


def run(source: Random) -> None:
    for name in SESSIONS:
        assert run_session(name, source) > 10
