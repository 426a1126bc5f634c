"""Makes the golden files: what the record format of stores and of the wire looks like, and what is in it.

    python tests/golden/make_golden.py            writes tests/golden/version-N.tar.xz and version-N.json
    python tests/golden/make_golden.py FOLDER     writes the same, not packed, into FOLDER: for comparing

The segments are of the smallest size (256 KiB) and mostly zeros, so they are packed. These files are made once for a
version of the format: a later version reads them, and a test that fails because of them is not mended by making them
anew. Everything is decided here: clock, member, thread (the first of this process), order. What is not the format's to
say - how many segments are made ahead, when a log is shortened - is only in the stores called `...-moved`, which are
read and never compared byte by byte."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import sys
import tarfile
import tempfile
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))

from pywan import _core
from pywan.protocol import gateway
from support.log_format import MOVED, read_blocks

HERE = Path(__file__).parent
VERSION = _core.RECORD_FORMAT
START_MS = 1_700_000_000_000
STORE_BYTES = 32 << 20  # Makes segments of 256 KiB.
QUEUE_ID, REGION_ID, MOUNT_ID = 77, 78, 79
ENTRIES: list[tuple[Any, Any, Any]] = [  # (key, value, callback argument): every form there is.
    (b"bytes", b"\x00\x01\xff", None),
    ("text", "grüße", "by whom"),
    (7, -1, 5),
    (2.5, 1e300, 0.25),
    ("none", None, None),
    (b"", b"", b""),
    ("list", [1, "two", b"three", None, True], None),
    ("map", {"a": {"b": [1.5]}}, {"user": 1}),
    (("tuple", 1), (1, (2, 3)), None),
    ("large", 2**70, None),
    ("date", datetime.date(2024, 2, 29), None),
    ("time", datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000), None),
    ("utc", datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC), None),
    ("set", {3}, None),
    ("long", "v" * 5000, None),
    ("zoned", datetime.datetime(2024, 2, 29, 12, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), None),
    ("frozen", frozenset({(3, None)}), None),
    ("duration", datetime.timedelta(days=-1, microseconds=5), None),
    ("of day", datetime.time(12, 30, 15, 250_000), None),
    ("decimal", decimal.Decimal("-1.50"), None),
    (uuid.UUID(int=5), uuid.UUID(int=1 << 127), None),
    ("enum", _core.Undecodable(2, bytes.fromhex("c7 0e 0c 92 a8") + b"trade:Si" + bytes.fromhex("a3") + b"BUY"), None),
    ("user", _core.Undecodable(6, bytes.fromhex("92 a6") + b"golden" + bytes.fromhex("c4 02 01 02")), None),
    ("nanoseconds", [numpy.datetime64("2024-02-29T12:30:15.250000001"), numpy.timedelta64(1, "ns")], None),
]


class Clock:
    """A millisecond passes with every look."""

    def __init__(self) -> None:
        self.clock, self.now_ms = _core.Clock(), START_MS

    def tick(self) -> None:
        self.now_ms += 1
        self.clock.set_time(self.now_ms)


def open_queue(folder: Path, **options: Any) -> _core.EventQueue:
    folder.mkdir(parents=True, exist_ok=True)
    options = {"partitions": 3, "conflate": True, **options}
    queue = _core.EventQueue(
        "ln",
        remote_site=2,
        log_directory=str(folder),
        log_id=QUEUE_ID,
        mount=MOUNT_ID,
        synchronous=False,
        log_budget=_core.LogBudget(STORE_BYTES),
        **options,
    )
    queue.running = True
    return queue


def open_region(folder: Path, clock: _core.Clock) -> _core.RegionCore:
    folder.mkdir(parents=True, exist_ok=True)
    region = _core.RegionCore("golden-stored", clock, site=1, member=7)
    region.open_log(str(folder), log_id=REGION_ID, synchronous=False, log_budget=_core.LogBudget(STORE_BYTES))
    return region


def end(log: _core.EventQueue | _core.RegionCore) -> None:
    """As a regular end: everything is written, and the manifest knows it."""
    log.stop_log()
    log.commit_loop()


def make_queue(folder: Path) -> None:
    time = Clock()
    time.tick()
    queue = open_queue(folder)
    orders, prices = (
        _core.RegionCore(name, time.clock, site=1, member=7) for name in ("golden-orders", "golden/prices")
    )
    for region in (orders, prices):
        region.attach([queue])
    for key, value, callback in ENTRIES:
        time.tick()
        orders.put(key, value, callback)
    assert queue.commit_once(False)
    for round_ in range(3):  # Updates; each replaces the one before it, once it is on the disk.
        for n in range(40):
            time.tick()
            prices.put(f"price {n}", n * 1.5 + round_)
        assert queue.commit_once(False)
    for key in ("text", 7, ("tuple", 1)):
        time.tick()
        orders.destroy(key, "gone")
    assert queue.commit_once(False)
    for partition in range(3):  # A few have left; of those behind them one was filtered, and one is on its way.
        queue.peek(partition, 4)
        _removed, peeked, _ = queue.positions()[partition]
        queue.remove(partition, peeked)
        queue.make_hole(partition, peeked + 2)
        queue.peek(partition, 1)
    assert queue.commit_once(True)
    for n in range(10):
        time.tick()
        prices.put(f"late {n}", [n])
    assert queue.commit_once(False)
    for region in (orders, prices):
        region.attach([])
    end(queue)


def make_moved_queue(folder: Path) -> None:
    time = Clock()
    queue = open_queue(folder)
    region = _core.RegionCore("golden-moved", time.clock, site=1, member=7)
    region.attach([queue])
    for round_ in range(60):
        for n in range(30):
            if n < 10 or round_ == 0 or (n < 25 and round_ % 6 == 0):
                time.tick()
                region.put(f"key {n}", b"%06d" % round_ * 500)
        assert queue.commit_once(True)
    region.attach([])
    end(queue)


def make_region(folder: Path) -> None:
    time = Clock()
    region = open_region(folder, time.clock)
    for key, value, callback in ENTRIES:
        time.tick()
        region.put(key, value, callback)
    assert region.commit_once()
    for key in ("map", 2.5):
        time.tick()
        region.put(key, "newer")
    for key in ("text", 7):
        time.tick()
        region.destroy(key)
    time.tick()
    region.local_destroy("large")
    time.tick()
    region.change(1, "from afar", "there", None, None, (START_MS + 5 << 16 | 3, 9))
    assert region.commit_once()
    end(region)


def make_moved_region(folder: Path) -> None:
    time = Clock()
    region = open_region(folder, time.clock)
    for round_ in range(60):
        for n in range(30):
            if n < 10 or round_ == 0 or (n < 25 and round_ % 6 == 0):
                time.tick()
                region.put(f"key {n}", b"%06d" % round_ * 500)
        assert region.commit_once()
    end(region)


def make_wire(folder: Path) -> None:
    """Writes the frames that a sender sends, plain and packed, and the openings of connections."""
    folder.mkdir(parents=True, exist_ok=True)
    time = Clock()
    # The same events for both.
    queues = [_core.EventQueue(name, remote_site=2, partitions=3) for name in ("plain", "packed")]
    for queue in queues:
        queue.running = True
    for name in ("golden-orders", "golden/prices"):
        region = _core.RegionCore(name, time.clock, site=1, member=7)
        region.attach(queues)
        for key, value, callback in ENTRIES:
            time.tick()
            region.put(key, value, callback)
        time.tick()
        region.destroy("text")
        region.attach([])
    for queue in queues:
        queue.make_hole(0, 2)
        session = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
        session.configure(12, -1, compress=queue.name == "packed")
        session.connected(1_000_000, 64 << 20, 1)
        (folder / f"{queue.name}.sent").write_bytes(
            b"".join(iter(lambda session=session: session.data_to_send(1), b""))
        )
    hello = gateway.SenderHello(
        site=1, remote_site=2, member="server1", sender="ln", dispatcher=0, numbering=77, mount=79, partitions=3
    )
    welcome = gateway.Welcome(site=2, member="server2", credit_events=1000, credit_bytes=1 << 20)
    client = gateway.ClientHello(region="golden-orders", run_id=bytes(range(16)), task=3)
    committed = gateway.Committed(rows=10, applied=9, missing=1, duplicate=False)
    for name, message, kind in (
        ("hello", hello, 1),
        ("client", client, 1),
        ("welcome", welcome, 2),
        ("committed", committed, 12),
    ):
        (folder / f"{name}.frame").write_bytes(gateway.encode(message, kind))


def make_all(folder: Path) -> None:
    make_queue(folder / "queue")
    make_moved_queue(folder / "queue-moved")
    make_region(folder / "region")
    make_moved_region(folder / "region-moved")
    make_wire(folder / "wire")
    for name in ("queue-moved", "region-moved"):
        assert any(kind == MOVED for block in read_blocks(folder / name) for kind, _, _ in block.parts), (
            f"{name}: nothing was moved"
        )


# The content of the stores. It is made from the stores as they are read, and a person has looked at it once.


def queue_contents(folder: Path) -> dict[str, Any]:
    queue = open_queue(folder)
    counts = queue.counts()
    return {
        "positions": [list(each) for each in queue.positions()],
        "events": [event_contents(*each) for each in queue.records(1_000_000)],
        "counts": {
            name: counts[name]
            for name in ("queued", "received", "distributed", "conflated", "filtered_transmit", "events", "bytes")
        },
    }


TOLD = "operation", "stamp", "stamp_site", "origin_site", "recipients", "event_id", "length", "key", "value", "callback"


def event_contents(partition: int, sequence: int, record: bytes) -> dict[str, Any]:
    found = _core.record_fields(record)
    fields = {"partition": partition, "sequence": sequence, **{name: found[name] for name in TOLD}}
    fields["region"] = _core.region_name(found["region"])
    for name in ("key", "value", "callback"):
        form, data = fields[name]
        fields[name] = [form, data.hex() if len(data) < 100 else f"{len(data)} bytes, crc {_core.crc32c(data)}"]
    fields["recipients"], fields["event_id"] = list(fields["recipients"]), list(fields["event_id"])
    return fields


def region_contents(folder: Path) -> list[list[Any]]:
    """[key, value, stamp, site, is it live] of every entry and tombstone, as text where Python's."""
    region = open_region(folder, _core.Clock())
    keys = [key for key, _, _ in ENTRIES] + ["from afar"] + [f"key {n}" for n in range(30)]
    found = [(key, region.lookup(key)) for key in keys]
    assert len(region) == sum(entry is not None and entry[3] for _, entry in found)
    return [[repr(key), short(told(entry[0])), *entry[1:]] for key, entry in found if entry is not None]


def told(value: Any) -> str:
    """Stands for a value that cannot be shown here by its bytes. The reason has nothing to do with the format."""
    return f"form {value.form}: {value.data.hex()}" if isinstance(value, _core.Undecodable) else repr(value)


def short(text: str) -> str:
    return text if len(text) < 100 else f"{len(text)} letters, crc {_core.crc32c(text.encode())}"


def contents(folder: Path) -> dict[str, Any]:
    return {
        "queue": queue_contents(folder / "queue"),
        "queue-moved": queue_contents(folder / "queue-moved"),
        "region": region_contents(folder / "region"),
        "region-moved": region_contents(folder / "region-moved"),
    }


def as_text(value: Any, depth: int = 3) -> str:
    """JSON with an event, or an entry, on a line."""
    if depth == 0 or not isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(as_text(each, 0) for each in value) + "]"
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {as_text(each, depth - 1)}" for name, each in value.items()) + "}"


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != "MANIFEST.new":  # Only keeps room for the next one.
                entry = tarfile.TarInfo(str(file.relative_to(folder)))
                entry.size = file.stat().st_size
                packed.addfile(entry, io.BytesIO(file.read_bytes()))


def unpack(folder: Path) -> None:
    with tarfile.open(HERE / f"version-{VERSION}.tar.xz") as packed:
        # Not in the oldest 3.11.
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_all(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            make_all(Path(scratch))
            pack(Path(scratch), HERE / f"version-{VERSION}.tar.xz")
            (HERE / f"version-{VERSION}.json").write_text(as_text(contents(Path(scratch))) + "\n")
