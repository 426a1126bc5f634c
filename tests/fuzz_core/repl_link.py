"""Fuzzes the two ends of a replication link between members: frames that are whole in form and wrong in their numbers.

Whatever comes to a receiver: the connection goes on or ends with a ProtocolError; every question is answered once and
in order; a change log's numbers stay in their order; memory follows the bytes that came; a member that does not hold a
bucket removes none of its queued events. Whatever comes to a sender: no sequence counts that the bucket
does not have, and no promise is longer than the answers allow.
"""

from __future__ import annotations

import itertools
import resource
import struct
import time
from random import Random
from typing import Any

from pywan import _core
from pywan.errors import ProtocolError
from pywan.stats import ledger
from support.records import PING, PONG, make_record, split_frames

from . import calls
from .grammar import odd_number

REGIONS, CHANGES, SNAPSHOT, ANSWER, REMOVAL = 15, 16, 17, 18, 20
SECTION = struct.Struct("<IIQQQQQQII")
PIECE = struct.Struct("<IIQQQQIIIBBH")
ITEM = struct.Struct("<IIQQQB7x")
REMOVAL_ITEM = struct.Struct("<QQQQQIIIB3x")
EXCEPTION = struct.Struct("<QII")
ENTRY = struct.Struct("<IIIBBBB")
VERDICT = struct.Struct("<QIBBBB")
IDENTITY = struct.Struct("<QQ")
BUCKETS = 3
PARKED = 4  # wan_queue.h: WAN_HOLE_PARKED; why an event failed is in the byte above.
READ_LEASE_US = 300_000  # wan_repl_link.h: WAN_READ_LEASE_US
READ_LEASE_KEPT_US = 330_000  # and WAN_READ_LEASE_KEPT_US
AHEAD_MS = 300_000  # wan_clock.h: WAN_CLOCK_AHEAD_MS
TIMELINE, EPOCH, TRANSFER = 1, 5, 9
FAR = (65_540, 1 << 33, 1 << 40, (1 << 62) + 1)  # In their range, and far from everything that is there.
MEMORY_BYTES = 64 << 20  # A run takes less, whatever the numbers say.
_names = itertools.count()


def bucket_of(key: bytes) -> int:
    return ((_core.key_hash(key) >> 32) * BUCKETS) >> 32


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def region_frame(number: int, name: str, buckets: int = BUCKETS) -> bytes:
    text = name.encode()
    return _core.pack_frame(REGIONS, struct.pack("<IIII", number, buckets, len(text), 0) + padded(text))


def entry(
    key: bytes,
    value: bytes = b"",
    *,
    operation: int = 1,
    decided: bytes = b"",
    found: bytes = b"",
    outcome: int = 1,
    flags: int = 0,
    caller: int = 7,
    slot: int = 0,
    number: int = 1,
    stamp: int = 1 << 30,
) -> bytes:
    record = make_record(key, value, operation=operation, stamp=stamp, recipients=b"")
    identity = IDENTITY.pack(caller, slot << 48 | number) if flags & 1 else b""
    length = ENTRY.size + len(identity) + len(record) + len(decided) + len(padded(found))
    head = ENTRY.pack(length, len(decided), len(found), outcome, 0, flags, 0)
    return head + identity + record + decided + padded(found)


def enters(sender: int) -> bytes:
    """What an entry says if its event enters the queue of this sender."""
    return VERDICT.pack(sender, 0, 0, 0, 0, 0)


def forget(caller: int) -> bytes:
    """An entry that forgets a caller."""
    return ENTRY.pack(ENTRY.size + IDENTITY.size, 0, 0, 0, 0, 0, 1) + IDENTITY.pack(caller, 0)


def clear_entry(entries: int = 0, *, number: int = 1) -> bytes:
    """The entry of a clear that took out so many entries."""
    return ENTRY.pack(40, 0, 0, 2, 0, 1, 2) + IDENTITY.pack(7, number) + struct.pack("<Q", entries)


def section(
    entries: list[bytes],
    first: int,
    *,
    region: int = 1,
    bucket: int = 0,
    timeline: int = TIMELINE,
    epoch: int = EPOCH,
    transfer: int = 0,
    high_watermark: int = 0,
    notified: int = 0,
    count: int | None = None,
    size: int | None = None,
) -> bytes:
    body = b"".join(entries)
    count = len(entries) if count is None else count
    size = len(body) if size is None else size
    return SECTION.pack(region, bucket, timeline, epoch, transfer, first, high_watermark, notified, count, size) + body


def piece(
    entries: list[bytes],
    through: int,
    *,
    region: int = 1,
    bucket: int = 0,
    timeline: int = TIMELINE,
    epoch: int = EPOCH,
    transfer: int = TRANSFER,
    part: int = 0,
    is_last: int = 0,
    count: int | None = None,
    size: int | None = None,
) -> bytes:
    body = b"".join(entries)
    count = len(entries) if count is None else count
    size = len(body) if size is None else size
    return PIECE.pack(region, bucket, timeline, epoch, transfer, through, count, size, 1, part, is_last, 0) + body


def changes(sections: list[bytes], question: int, count: int | None = None) -> bytes:
    head = struct.pack("<II", len(sections) if count is None else count, 0)
    return _core.pack_frame(CHANGES, head + b"".join(sections), question)


def answer(items: list[tuple[int, int, int, int, int, int]], question: int, count: int | None = None) -> bytes:
    head = struct.pack("<II", len(items) if count is None else count, 0)
    return _core.pack_frame(ANSWER, head + b"".join(ITEM.pack(*item) for item in items), question)


def removal_item(exceptions: list[tuple[int, ...]] | int = 0, **given: int) -> bytes:
    """One item of what is settled, with its exceptions: (first sequence, count, reason). Or how many it says it has."""
    left = [] if isinstance(exceptions, int) else exceptions
    fields = {"sender": 0, "timeline": TIMELINE, "after": 0, "through": 1, "explained": 0, "region": 1, "bucket": 0}
    fields |= {"exceptions": exceptions if isinstance(exceptions, int) else len(left), "leads": 1, **given}
    return REMOVAL_ITEM.pack(*fields.values()) + b"".join(EXCEPTION.pack(*each) for each in left)


def removal_frame(items: list[dict[str, Any]], count: int | None = None) -> bytes:
    head = struct.pack("<II", len(items) if count is None else count, 0)
    return _core.pack_frame(REMOVAL, head + b"".join(removal_item(**item) for item in items))


def removal_items(payload: bytes) -> list[dict[str, Any]]:
    """What a frame tells as settled."""
    found, at = [], 8
    while at < len(payload):
        sender, timeline, after, through, explained, region, bucket, count, leads = REMOVAL_ITEM.unpack_from(
            payload, at
        )
        at += REMOVAL_ITEM.size
        left = [EXCEPTION.unpack_from(payload, at + n * EXCEPTION.size) for n in range(count)]
        at += count * EXCEPTION.size
        found.append(
            {"sender": sender, "timeline": timeline, "after": after, "through": through, "explained": explained}
            | {"region": region, "bucket": bucket, "leads": leads, "exceptions": left}
        )
    return found


def answered(payload: bytes) -> list[tuple[int, ...]]:
    """The items of an answer: (region, bucket, timeline, epoch, sequence, kind)."""
    return list(ITEM.iter_unpack(payload[8:]))


def shared_region(source: Random, name: str, clock: _core.Clock) -> tuple[_core.RegionCore, _core.Changelog]:
    """A region that members share. Changes may wait for listeners."""
    core = _core.RegionCore(name, clock, site=1, buckets=BUCKETS)
    changelog = _core.Changelog(BUCKETS, core.shards)
    if source.random() < 0.6:
        changelog.keep_notifications(source.random() < 0.7, source.random() < 0.5)
    core.share(changelog, None, False)
    return core, changelog


def tell_some(source: Random, changelog: _core.Changelog) -> None:
    """Listeners hear some changes."""
    for _ in range(source.choice((0, 0, 1, 5))):
        happened = changelog.next_notification(0)
        if happened is None:
            break
        assert happened[0] in ("create", "update", "destroy") and _core.record_fields(happened[2])["key"][1]


def check_notifications(changelog: _core.Changelog) -> None:
    for bucket in range(BUCKETS):
        assert changelog.notified_through(bucket) <= changelog.state(bucket)["high_watermark"]
    changelog.end_notifications()
    assert changelog.notifications_state()["bytes"] == 0, changelog.notifications_state()


def hash_of_sender(sender: str = "ln") -> int:
    """The number by which replication links name a sender: it is in what was decided for an entry of the stream."""
    name = f"lane{next(_names)}"
    core = _core.RegionCore(name, _core.Clock(), site=1, buckets=BUCKETS)
    changelog = _core.Changelog(BUCKETS, core.shards)
    core.share(changelog, None, False)
    queue = _core.EventQueue(sender, remote_site=2, partitions=BUCKETS, by_bucket=True)
    queue.running = True
    core.attach([queue])
    changelog.add_repl_link(3, _core.ReplSender(3, "a member", 5000))
    bucket = bucket_of(b"k")
    changelog.set_role(bucket, _core.REPLICA_PRIMARY, TIMELINE, EPOCH)
    changelog.set_replicas(bucket, [(3, _core.REPLICA_WAITED, 0, 0)])
    session = _core.CallSession({name: core}.get)
    session.receive_data(calls.call(calls.REGION, name.encode()), 1)
    session.receive_data(calls.call(calls.CHANGE, calls.record(b"k", b"v"), bucket=bucket), 1)
    changed = changelog.fetch(bucket, 0)
    length, decided = struct.unpack_from("<II", changed)
    return int(struct.unpack_from("<Q", changed, length - decided)[0])


SENDER = hash_of_sender()


def write_removals(source: Random, at: list[int]) -> bytes:
    items = []
    for _ in range(source.choice((1, 1, 3))):
        bucket = source.randrange(BUCKETS)
        item = {
            "sender": source.choice((SENDER, SENDER, 7)),
            "bucket": bucket,
            "through": odd_number(source, at[bucket]),
        }
        if source.random() < 0.5:  # Some left for other reasons, and some of the reasons are not told.
            sequences = sorted(source.sample(range(1, at[bucket] + 9), 4))
            item["explained"], item["leads"] = min(sequences[0], item["through"]), source.randrange(2)
            reason = source.choice((1, 2, 3, PARKED, 5, 6, 8, 9, PARKED | source.randrange(10) << 8))
            item["exceptions"] = [(sequences[1], sequences[2] - sequences[1], reason)]
            if item["through"] < sequences[2] - 1:
                del item["exceptions"]
        for name, near, bits in (
            ("bucket", bucket, 32),
            ("region", 1, 32),
            ("timeline", TIMELINE, 64),
            ("after", 1, 64),
            ("explained", 1, 64),
            ("leads", 1, 8),
        ):
            if source.random() < 0.03:
                item[name] = odd_number(source, near, bits)
        if source.random() < 0.03:
            item["exceptions"] = [tuple(odd_number(source, 3, bits) for bits in (64, 32, 32))]
        items.append(item)
    return removal_frame(items, odd_number(source, len(items), 32) if source.random() < 0.02 else None)


def move_queue(source: Random, queue: _core.EventQueue) -> None:
    """The member begins or ends to send, and sends, and callbacks hear of what others sent."""
    for _name, first, buckets in queue.runs():
        if source.random() < 0.1:
            queue.lead([first + source.randrange(buckets)], source.random() < 0.5)
        bucket = first + source.randrange(buckets)
        sent = queue.peek_with_positions(bucket, source.choice((0, 1, 5)))
        if sent and source.random() < 0.5:
            queue.remove(bucket, sent[0][0])
        elif source.random() < 0.3:
            queue.rewind(bucket)
    if source.random() < 0.2:
        queue.keep_acknowledged(source.random() < 0.7)  # It wakes `take_acknowledged`.
        queue.take_acknowledged(source.choice((1, 3)))


def check_queue(queue: _core.EventQueue) -> None:
    assert ledger(queue.counts())["balanced"], queue.counts()
    for removed, peeked, appended in queue.positions():
        assert removed <= peeked <= appended < 1 << 63, queue.positions()


def write_section(source: Random, at: list[int], decided: bytes) -> bytes:
    bucket = source.randrange(BUCKETS)
    first, more = at[bucket], {}
    kind = source.random()
    if kind < 0.15:
        first = max(1, first - source.randrange(1, 6))  # Once more.
    elif kind < 0.2:
        first += source.randrange(1, 4)  # A gap.
    keys = [b"k%d" % source.randrange(60) for _ in range(source.choice((0, 1, 2, 8)))]
    if source.random() < 0.97:
        keys = [key for key in keys if bucket_of(key) == bucket]
    entries = [
        entry(
            key,
            bytes(source.choice((0, 3, 200))),
            operation=source.choice((0, 1, 2)),
            decided=source.choice((b"", decided)),
            found=bytes(source.choice((0, 0, 8, 30))),
            outcome=source.randrange(3),
            flags=source.choice((0, 0, 1, 3)),
            caller=source.choice((7, 8, 9)),
            slot=source.randrange(4),
            number=source.randrange(1, 9),
            stamp=odd_number(source, (time.time_ns() // 1_000_000) << 16) if source.random() < 0.05 else 1 << 30,
        )
        for key in keys
    ]
    if source.random() < 0.05:
        entries.insert(source.randrange(len(entries) + 1), clear_entry(source.randrange(9)))
    if source.random() < 0.1:
        entries.insert(source.randrange(len(entries) + 1), forget(source.choice((7, 8, 9))))
    if source.random() < 0.03 and entries:
        broken = bytearray(entries[0])
        broken[source.randrange(len(broken))] = source.randrange(256)
        entries[0] = bytes(broken)
    for name, near in (
        ("region", 1),
        ("bucket", bucket),
        ("timeline", TIMELINE),
        ("epoch", EPOCH),
        ("transfer", TRANSFER),
    ):
        if source.random() < 0.02:
            more[name] = odd_number(source, near, 32 if name in ("region", "bucket") else 64)
    for name, near in (("count", len(entries)), ("size", sum(map(len, entries)))):
        if source.random() < 0.01:
            more[name] = odd_number(source, near, 32)
    if kind >= 0.2 and not more:
        at[bucket] = max(at[bucket], first + len(entries))
    high_watermark = odd_number(source, first)
    notified = min(high_watermark, odd_number(source, first)) if source.random() < 0.98 else odd_number(source, first)
    return section(entries, first, **{"bucket": bucket, "high_watermark": high_watermark, "notified": notified, **more})


def set_roles(source: Random, changelog: _core.Changelog) -> set[int]:
    """Makes the member a replica or a learner of each bucket. Returns those that another one than member 7 leads."""
    of_others = set()
    for bucket in range(BUCKETS):
        role = source.choice((_core.REPLICA_IN_SYNC, _core.REPLICA_IN_SYNC, _core.REPLICA_LEARNER))
        leader = source.choice((0, 7, 7, 7, 8))
        changelog.set_role(bucket, role, TIMELINE, EPOCH, TRANSFER if role == _core.REPLICA_LEARNER else 0, leader)
        if leader == 8:
            of_others.add(bucket)
    return of_others


def queued_event(source: Random, key: bytes, near: int) -> bytes:
    """A queued event of a snapshot."""
    record = make_record(key, b"v", recipients=b"")
    sequence = max(1, source.choice((near, near - 1, odd_number(source, near), source.choice(FAR))))
    return struct.pack("<QQII", source.choice((SENDER, 7)), sequence, len(record), 0) + record


def change_one_number(source: Random, stream: bytes) -> bytes:
    """The same stream, but for one number in one of its frames. The checksums are right."""
    frames = split_frames(stream)
    frame = source.choice([each for each in frames if each.payload])
    payload, size = bytearray(frame.payload), source.choice((4, 8))
    at = source.randrange(len(payload) // size) * size
    number = source.choice((*FAR, odd_number(source, int.from_bytes(payload[at : at + size], "little"))))
    payload[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    changed = _core.pack_frame(frame.type, bytes(payload), frame.id, frame.count)
    return b"".join(changed if each is frame else each.raw for each in frames)


def write_stream(source: Random, name: str, decided: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """What a primary may say, and the types and numbers of the answers to it. `decided`: of entries for a sender."""
    at, asked = [1] * BUCKETS, list[tuple[int, int]]()
    stream = region_frame(1, name, odd_number(source, BUCKETS, 32) or 1 if source.random() < 0.03 else BUCKETS)
    for question in range(1, source.randrange(2, 25)):
        kind = source.random()
        if kind < 0.1:
            data = _core.pack_frame(PING, b"", question)
        elif kind < 0.15:
            stream += write_removals(source, at)  # Not a question.
            continue
        elif kind < 0.25:
            bucket = source.randrange(BUCKETS)
            keys = [key for key in (b"k%d" % n for n in range(9)) if bucket_of(key) == bucket]
            pieces = [entry(key, b"i", found=bytes(8), operation=source.choice((0, 2))) for key in keys]
            more = {"is_last": source.choice((0, 1, 1, odd_number(source, 1, 8))), "bucket": bucket}
            if source.random() < 0.1:
                more["part"] = source.choice((1, 2, 3, 255))
            elif source.random() < 0.3:
                pieces, more["part"] = [queued_event(source, key, at[bucket] - 1) for key in keys], 3
            data = _core.pack_frame(
                SNAPSHOT, piece(pieces, max(0, odd_number(source, at[bucket] - 1)), **more), question
            )
        else:
            sections = [write_section(source, at, decided) for _ in range(source.choice((1, 1, 2, 5)))]
            count = odd_number(source, len(sections), 32) if source.random() < 0.01 else None
            data = changes(sections, question, count)
        asked.append((PONG if data[4] == PING else ANSWER, question))
        stream += data
    return stream, asked


def run_receiver(source: Random) -> None:
    name, clock = f"lane{next(_names)}", _core.Clock()
    core, changelog = shared_region(source, name, clock)
    of_others = set_roles(source, changelog)
    queue = _core.EventQueue("ln", remote_site=2, partitions=BUCKETS, by_bucket=True)
    decided = b""
    if source.random() < 0.5:
        core.attach([queue])
        queue.keep_acknowledged(source.random() < 0.5)
        decided = enters(SENDER)
    receiver = _core.ReplReceiver({name: core}.get, 5000, 7)
    session = receiver.open_session()
    stream, asked = write_stream(source, name, decided)
    if source.random() < 0.5:
        stream = change_one_number(source, stream)
    for bucket in range(BUCKETS):
        changelog.set_holders(bucket, source.choice(([], [7], [8], [7, 8])))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent, now, ended, place = b"", 10_000_000, False, 0
    while place < len(stream) and not ended:
        part = stream[place : place + source.choice((1, 40, 500, 5000, 50000))]
        place += len(part)
        now += source.choice((0, 1, 1000))
        try:
            assert session.receive_data(part, now)
        except ProtocolError:
            ended = True
        assert clock.ahead_ms <= AHEAD_MS, clock.ahead_ms  # No other member moves the clock further.
        if source.random() < 0.05 and not ended:
            bucket = source.randrange(BUCKETS)
            changelog.set_role(bucket, source.randrange(5), TIMELINE, EPOCH + source.randrange(2), TRANSFER)
            of_others.discard(bucket)
        tell_some(source, changelog)
        move_queue(source, queue)
        if source.random() < 0.05:
            changelog.set_holders(source.randrange(BUCKETS), source.choice(([7], [8])))
        if source.random() < 0.05:
            receiver.deny(name, source.randrange(BUCKETS), EPOCH + 1)
        while out := session.data_to_send(now):
            sent += out
    notified = [(f.type, f.id) for f in split_frames(sent) if f.type in (ANSWER, PONG) and f.id]
    assert notified == asked[: len(notified)], (notified, asked)
    assert ended or len(notified) == len(asked)
    for bucket in range(BUCKETS):
        assert changelog.state(bucket)["high_watermark"] <= changelog.log_end(bucket) < 1 << 63, changelog.state(bucket)
        assert bucket not in of_others or changelog.log_end(bucket) == 0
    check_notifications(changelog)
    check_queue(queue)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MEMORY_BYTES >> 10
    assert receiver.read_lease.left_us(now) <= READ_LEASE_KEPT_US


def write_items(source: Random, changelog: _core.Changelog) -> list[tuple[int, int, int, int, int, int]]:
    items = []
    for _ in range(source.choice((1, 1, 2, 4))):
        bucket, kind = source.randrange(BUCKETS), source.choice((0, 0, 0, 1, 2, 3, source.randrange(256)))
        sequence = source.choice((changelog.log_end(bucket), TRANSFER, odd_number(source, changelog.log_end(bucket))))
        region = odd_number(source, 1, 32) if source.random() < 0.05 else 1
        if source.random() < 0.05:
            bucket = odd_number(source, bucket, 32)
        timeline = odd_number(source, TIMELINE) if source.random() < 0.05 else TIMELINE
        epoch = odd_number(source, EPOCH) if source.random() < 0.1 else EPOCH
        items.append((region, bucket, timeline, epoch, sequence, kind))
    return items


def write_answer(source: Random, changelog: _core.Changelog, open_questions: list[tuple[int, int]]) -> bytes:
    """What a replica may say next. It answers the oldest question, which is open no more then, or something else."""
    items, chance = write_items(source, changelog), source.random()
    count = odd_number(source, len(items), 32) if source.random() < 0.03 else None
    if chance < 0.1:
        return answer(items, 0, count)  # Nobody asked for it.
    if chance < 0.15 or not open_questions:
        return answer(items, odd_number(source, 0), count)
    if chance < 0.18:
        return _core.pack_frame(source.randrange(1, 20), source.randbytes(source.randrange(60)), odd_number(source))
    kind, id_ = open_questions.pop(0)
    data = answer(items, id_, count) if kind != PING else _core.pack_frame(PONG, b"", id_)
    return data[:-8] + source.randbytes(8) if chance < 0.2 else data


def run_sender(source: Random) -> None:
    name = f"lane{next(_names)}"
    core, changelog = shared_region(source, name, _core.Clock())
    sender = _core.ReplSender(3, "a member", 5000)
    changelog.add_repl_link(3, sender)
    for bucket in range(BUCKETS):
        changelog.set_role(bucket, _core.REPLICA_PRIMARY, TIMELINE, EPOCH)
    for n in range(source.randrange(30)):
        core.put(b"k%d" % n, b"v")
    for bucket in range(BUCKETS):
        state = source.choice((_core.REPLICA_WAITED, _core.REPLICA_LEARNING))
        changelog.set_replicas(
            bucket, [(3, state, TRANSFER if state == _core.REPLICA_LEARNING else 0, changelog.log_end(bucket))]
        )
    sender.add_region(1, name, core)
    session, now, open_questions = sender.session, 10_000_000, []
    for _ in range(source.randrange(1, 20)):
        try:
            while data := session.data_to_send(now):
                open_questions += [(f.type, f.id) for f in split_frames(data) if f.type != REGIONS]
        except ProtocolError:
            break
        data = write_answer(source, changelog, open_questions)
        try:
            session.receive_data(data, now)
        except ProtocolError:
            break
        now += source.choice((0, 10, 60_000, 200_000))
        tell_some(source, changelog)
        for news in sender.news():  # A member does this with them.
            assert news[0] in ("slow", "refused", "learned") and (news[0] == "slow" or news[1] == name), news
    for bucket in range(BUCKETS):
        shown = changelog.state(bucket)
        assert shown["high_watermark"] <= shown["log_end"], shown
        for replica in shown["copies"]:
            assert replica["acked"] <= shown["log_end"], shown
    check_notifications(changelog)
    assert sender.read_lease_until_us <= now + READ_LEASE_US
    sender.remove_region(name)


def run(source: Random) -> None:
    (run_receiver if source.random() < 0.6 else run_sender)(source)
