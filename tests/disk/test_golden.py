"""Golden files: stores and frames of the record format as they were written once (tests/golden). Today's code reads
them, event by event; and writes the same bytes for the same input, where the format leaves no choice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lz4.block
import pytest

from golden import make_golden
from pywan import _core
from pywan.protocol import gateway
from support.log_format import (
    HOLES,
    MOVED,
    NAMES,
    QUEUE,
    RECORDS,
    REGION,
    STATES,
    Manifest,
    read_blocks,
    read_manifest,
    read_segment,
    recover_queue,
    segment_file,
)
from support.records import BATCH, FRAME, Frame, read_batch, read_head, split_frames

EXPECTED = json.loads((make_golden.HERE / f"version-{make_golden.VERSION}.json").read_text())


@pytest.fixture
def golden(tmp_path) -> Path:
    make_golden.unpack(tmp_path / "golden")
    return tmp_path / "golden"


@pytest.fixture(scope="module")
def today(tmp_path_factory) -> Path:
    """The same input, written now: by a process of its own, whose first thread and first regions have the numbers that
    they had.
    """
    folder = tmp_path_factory.mktemp("today")
    subprocess.run([sys.executable, make_golden.__file__, str(folder)], check=True, timeout=100)
    return folder


def kinds(folder: Path) -> set[int]:
    return {kind for block in read_blocks(folder) for kind, _, _ in block.parts}


# Stores


def test_the_files_hold_every_kind_of_part(golden):
    assert kinds(golden / "queue") == {RECORDS, HOLES, STATES, NAMES}
    assert kinds(golden / "queue-moved") >= {RECORDS, HOLES, STATES, MOVED}
    assert kinds(golden / "region") == {RECORDS} and MOVED in kinds(golden / "region-moved")
    assert read_manifest(golden / "queue").kind == QUEUE and read_manifest(golden / "region").kind == REGION
    assert read_manifest(golden / "queue").id == make_golden.QUEUE_ID


@pytest.mark.parametrize("name", ["queue", "queue-moved"])
def test_a_queue_is_read_event_by_event(golden, name):
    assert json.loads(json.dumps(make_golden.queue_contents(golden / name))) == EXPECTED[name]


@pytest.mark.parametrize("name", ["queue", "queue-moved"])
def test_the_description_of_the_format_leads_to_the_same_events(golden, name):
    """Read by docs/segment_format.md alone."""
    found = recover_queue(golden / name)
    by_description = []
    for (partition, sequence), record in sorted(found.events.items()):
        fields = make_golden.event_contents(partition, sequence, record)
        fields["region"] = found.names[read_head(record)["region"]]
        by_description.append(fields)
    assert json.loads(json.dumps(by_description)) == EXPECTED[name]["events"]
    assert [
        [removed, removed, appended] for removed, appended in zip(found.removed, found.appended, strict=True)
    ] == EXPECTED[name]["positions"]


def test_a_read_queue_goes_on_and_sends_what_is_left_as_possible_duplicates(golden):
    queue = make_golden.open_queue(golden / "queue")
    assert queue.log_state()["commits"] == read_manifest(golden / "queue").commit
    parts = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
    parts.configure(1000, -1)
    parts.connected(100_000, 64 << 20, 1)
    sent = [
        record
        for frame in split_frames(parts.data_to_send(1))
        if frame.type == BATCH
        for section in read_batch(frame.payload)
        for record in section.records
    ]
    assert sent and all(record.possible_duplicate for record in sent)
    region = _core.RegionCore("golden-orders", _core.Clock(), site=1, member=7)
    region.attach([queue])
    region.put("new", 1)
    assert queue.commit_once(True)
    before = len(queue)
    region.attach([])
    del queue, parts
    assert len(make_golden.open_queue(golden / "queue")) == before == EXPECTED["queue"]["counts"]["events"] + 1


@pytest.mark.parametrize("name", ["region", "region-moved"])
def test_a_region_is_read_entry_by_entry(golden, name):
    assert json.loads(json.dumps(make_golden.region_contents(golden / name))) == EXPECTED[name]


def unsealed(folder: Path, number: int, manifest: Manifest) -> bytes:
    """A segment's bytes without what is drawn for it: its secret, and what that makes of the heads of its blocks
    (`read_segment` has looked at them).
    """
    data = bytearray(segment_file(folder, number).read_bytes())
    data[32:48], data[52:56] = bytes(16), bytes(4)
    for block in read_segment(folder, number, manifest):
        data[block.at + 40 : block.at + 48] = bytes(8)
    return bytes(data)


@pytest.mark.parametrize("name", ["queue", "region"])
def test_the_same_input_gives_the_same_bytes(golden, today, name):
    was, is_ = read_manifest(golden / name), read_manifest(today / name)
    # How many are made ahead is free.
    assert was._replace(next_number=0, segments=[]) == is_._replace(next_number=0, segments=[])
    assert len(read_blocks(today / name)) == is_.commit
    for number, size in was.segments:
        if read_segment(golden / name, number, was):
            assert unsealed(today / name, number, is_) == unsealed(golden / name, number, was), (name, number, size)


# The wire


def receive(data: bytes) -> tuple[dict[str, _core.RegionCore], bytes]:
    """The regions to which `data` was applied, and the answer."""
    clock = _core.Clock()
    clock.set_time(make_golden.START_MS + 1000)
    regions = {name: _core.RegionCore(name, clock, site=2, member=8) for name in ("golden-orders", "golden/prices")}
    session = _core.ReceiverSession(_core.SourceMemory(3), _core.ReceiverCounts(), regions.get, None)
    session.receive_data(data)
    return regions, session.data_to_send()


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_frames_are_applied_event_by_event(golden, name):
    regions, answer = receive((golden / "wire" / f"{name}.sent").read_bytes())
    holes = 0
    for region in regions.values():
        for key, value, _ in make_golden.ENTRIES:
            found = region.lookup(key)
            if found is None:
                holes += 1
            elif key == "text":
                assert not found[3]
            else:
                assert found[0] == value and found[2:] == (1, True), key
    assert holes == 1  # One event was filtered on its way.
    assert answer


def unpacked(frame: Frame) -> tuple[int, int, int, bytes]:
    _, kind, flags, _, length, _, raw_length, count, number = FRAME.unpack_from(frame.raw)
    payload = frame.raw[FRAME.size : FRAME.size + length]
    return kind, number, count, lz4.block.decompress(payload, uncompressed_size=raw_length) if flags & 1 else payload


def test_packed_frames_say_what_plain_ones_say(golden):
    plain, packed = (split_frames((golden / "wire" / f"{name}.sent").read_bytes()) for name in ("plain", "packed"))
    assert [unpacked(each) for each in plain] == [unpacked(each) for each in packed]
    assert sum(len(each.raw) for each in packed) < sum(len(each.raw) for each in plain) / 4


def test_the_same_events_give_the_same_frames(golden, today):
    assert (today / "wire" / "plain.sent").read_bytes() == (golden / "wire" / "plain.sent").read_bytes()
    # lz4 is free to pack better.
    was, is_ = (split_frames((folder / "wire" / "packed.sent").read_bytes()) for folder in (golden, today))
    assert [unpacked(each) for each in was] == [unpacked(each) for each in is_]


@pytest.mark.parametrize(
    "name, kind, fields",
    [
        (
            "hello",
            gateway.SenderHello,
            {"site": 1, "remote_site": 2, "sender": "ln", "numbering": 77, "mount": 79, "partitions": 3},
        ),
        ("client", gateway.ClientHello, {"region": "golden-orders", "run_id": bytes(range(16)), "task": 3}),
        ("welcome", gateway.Welcome, {"site": 2, "member": "server2", "credit_events": 1000, "credit_bytes": 1 << 20}),
        ("committed", gateway.Committed, {"rows": 10, "applied": 9, "missing": 1, "duplicate": False}),
    ],
)
def test_openings_are_read_and_written_the_same(golden, today, name, kind, fields):
    frame = (golden / "wire" / f"{name}.frame").read_bytes()
    message = gateway.decode(frame, kind)
    assert {field: getattr(message, field) for field in fields} == fields
    assert (today / "wire" / f"{name}.frame").read_bytes() == frame
