"""A queue's log with checksums that hold and numbers that cannot be: refused by name, with no time or memory that grows
with the number.
"""

from __future__ import annotations

import struct

import pytest

from pywan import _core
from pywan.errors import DiskError
from support.durable import DurableQueue
from support.forged_logs import place_of_state, with_checksum
from support.log_format import BLOCK, PART, RECORDS, STATE, STATES, read_blocks, read_manifest, seal_block, segment_file

ABSURD = [1 << 63, 1 << 40, 1 << 24]
SEQUENCE_AT = 8  # In the first place of a part of records.


@pytest.fixture
def queue(tmp_path):
    """20 events in two blocks, and a state behind them; closed."""
    made = DurableQueue(tmp_path)
    for n in range(20):
        made.region.put(f"k{n}", b"v" * 100)
        if n % 10 == 9:
            made.commit()
    made.send(3)
    made.commit()
    made.close()
    return made


def forge(file, at, number):
    """Writes a number where it lies in the file, and makes the checksum of the block around it hold."""
    data = bytearray(file.read_bytes())
    struct.pack_into("<Q", data, at, number)
    block = 4096
    while True:
        end = block + BLOCK.size + BLOCK.unpack_from(data, block)[2]
        if block < at < end:
            break
        block = end
    seal_block(data, block)
    file.write_bytes(data)
    return block


def place_of(queue, wanted, number=0):
    """(file, offset) of the `number`th part of a kind in the log."""
    folder = queue.folder / "log"
    segment, _ = read_manifest(folder).segments[0]
    for block in read_blocks(folder):
        at = block.at + BLOCK.size
        for kind, _, data in block.parts:
            if kind == wanted:
                if number == 0:
                    return segment_file(folder, segment), at + PART.size
                number -= 1
            at += PART.size + len(data)
    raise AssertionError(f"no such part {wanted}")


def refused(queue, file, offset, reason):
    before = file.read_bytes()
    with pytest.raises(DiskError, match=f"{file}, offset {offset}: {reason}"):
        queue.open()
    assert file.read_bytes() == before


def salvaged(queue):
    return _core.EventQueue(
        "ln", partitions=1, directory=str(queue.folder), log_directory=str(queue.folder / "log"), log_id=5, salvage=True
    )


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("which", [0, 1])
def test_a_record_further_ahead_than_can_be_is_damage(queue, number, which):
    file, at = place_of(queue, RECORDS, which)
    block = forge(file, at + SEQUENCE_AT, number)
    refused(queue, file, block, f"a record has the sequence {number} in partition 0, where there were not even")
    saved = salvaged(queue)  # The blocks that are whole.
    assert len(saved) == (7 if which else 10) and str(number) in saved.recovery()["damages"][0]["reason"]


@pytest.mark.parametrize("number", ABSURD)
def test_a_state_further_ahead_than_can_be_is_damage(queue, number):
    file, at = place_of(queue, STATES)
    counters = STATE.unpack_from(file.read_bytes(), at)[2]
    block = forge(file, at + STATE.size + 16 * counters + 8, number)
    manifest = queue.folder / "log" / "MANIFEST"
    manifest.write_bytes(without_state(manifest))
    refused(queue, file, block, f"a state says that the newest event is {number} in partition 0")
    assert len(salvaged(queue)) == 17  # The next state is whole.


@pytest.mark.parametrize(
    "number, reason",
    [
        (0, "number 0, which this version does not know"),
        (999, "number 999, which this version does not know"),
        (2**63, f"number {2**63}, which this version does not know"),
        (2, "number 2 twice"),
    ],
)
def test_a_counter_that_no_version_had_is_damage(queue, number, reason):
    file, at = place_of(queue, STATES)
    block = forge(file, at + STATE.size, number)  # The first counter, whose number is 1.
    manifest = queue.folder / "log" / "MANIFEST"
    manifest.write_bytes(without_state(manifest))
    refused(queue, file, block, f"the queue's state in the log has .*{reason}")


def without_state(manifest):
    data = bytearray(manifest.read_bytes())
    struct.pack_into("<Q", data, 56, 0)
    return with_checksum(data)


@pytest.mark.parametrize("number", ABSURD)
def test_a_manifest_further_ahead_than_can_be_is_damage(queue, number):
    manifest = queue.folder / "log" / "MANIFEST"
    data = bytearray(manifest.read_bytes())
    state_at = place_of_state(data)
    counters = STATE.unpack_from(data, state_at)[2]
    struct.pack_into("<Q", data, state_at + STATE.size + 16 * counters + 8, number)
    manifest.write_bytes(with_checksum(data))
    refused(queue, manifest, state_at, f"a state says that the newest event is {number} in partition 0")
    assert len(salvaged(queue)) == 17


def test_a_queue_with_one_old_event_and_millions_of_holes_is_recovered(tmp_path):
    """Where conflation goes on for long while the first event cannot leave, positions are far apart, and rightly so."""
    queue = DurableQueue(tmp_path, conflate=True)
    queue.region.put("created", b"and never sent")
    keys, updates = [b"updated %d" % n for n in range(10)], 0
    queue.region.put_columns(keys, [b"v"] * 10)
    queue.commit()
    for _ in range(10):
        queue.region.put_columns(keys * 10_000, [b"w"] * 100_000)
        updates += 100_000
        queue.commit()
    queue.crash()
    # Two segments of records and two of entries; 8 MB more if every hole took an entry.
    assert queue.queue.counts()["memory_bytes"] < 6 << 20
    sequences = queue.sequences()
    assert sequences[:11] == list(range(1, 12)) and sequences[-10:] == list(range(updates + 2, updates + 12))
    queue.region.put("next", b"v")
    assert queue.sequences()[-1] == updates + 12
    queue.check_ledger()


def test_what_is_left_of_an_old_log_is_saved_without_its_manifest(tmp_path):
    """Its first sequences are high, and nothing says so."""
    queue = DurableQueue(tmp_path, stores=False)
    for n in range(30):
        queue.region.put_columns([b"%06d" % n for n in range(10_000)], [b"v" * 100] * 10_000)
        queue.commit()
        queue.send(10_000 if n < 29 else 9_000)
        queue.commit()
    queue.close()
    log = queue.folder / "log"
    assert read_manifest(log).segments[0][0] > 2
    (log / "MANIFEST").unlink()
    with pytest.raises(DiskError, match="damaged"):
        queue.open()
    saved = [sequence for _, sequence, _ in salvaged(queue).records(1 << 20)]
    assert saved[-1_000:] == list(range(299_001, 300_001))
