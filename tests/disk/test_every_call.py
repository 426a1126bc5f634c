"""Recovery at the owner's level, at every cut: a queue with holes, states, moved parts and a region go through a fixed
piece of work, once for every call that they make of the disk: it fails, the power goes, or there is no room from there
on. What was acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pywan import _core
from pywan.errors import DiskError, PywanError, QueueFullError
from pywan.stats import ledger
from simulator.disk import Disk
from support.log_format import (
    HOLES,
    MOVED,
    NAMES,
    PAGE,
    RECORDS,
    STATES,
    Manifest,
    read_blocks,
    read_manifest,
    read_segment,
    recover_queue,
    segment_file,
)
from support.records import RECORD_BYTES, pack_head, read_head

# 1: really every one. Else every tenth, from a place that differs from one outage to the next.
EVERY = int(os.environ.get("EVERY_CALL", "10"))
STORE_BYTES = 2 << 20
OUTAGES = ("fails once", "power goes", "is full")


class FailingDisk(Disk):
    """Fails at call number `fail_at`, in one of OUTAGES."""

    def __init__(self, outage: str = "", fail_at: int = 0):
        super().__init__(random.Random(fail_at))
        self.outage, self.fail_at = outage, fail_at

    def _fails(self) -> bool:
        if self.calls + 1 == self.fail_at:
            if self.outage == "is full":
                self.capacity = 1
            elif self.outage == "power goes":
                self.is_off = True
            else:
                self.calls += 1
                return True
        return super()._fails()

    def folder(self, name: str, to: Path) -> Path:
        """The files of one log as they are on it."""
        to.mkdir(exist_ok=True)
        for path, file in self._names.items():
            if path.startswith(f"/{name}/"):
                (to / path.rpartition("/")[2]).write_bytes(file.now)
        return to


class PersistentQueue:
    """A queue that conflates, and what has to be in it."""

    def __init__(self, disk: FailingDisk):
        self.disk, self.clock = disk, _core.Clock()
        # The events in the queue when the last commit that succeeded began, by partition and sequence.
        self.at_commit: dict[tuple[int, int], bytes] = {}
        self.since: set[tuple[int, int]] = set()  # Appended after that began.
        self.in_the_end: dict[tuple[int, int], bytes] = {}  # The events in the queue when it was let go.

    def open(self) -> None:
        self.queue = _core.EventQueue(
            "ln",
            remote_site=2,
            partitions=2,
            conflate=True,
            log_directory="/queue",
            log_id=5,
            synchronous=False,
            log_budget=_core.LogBudget(STORE_BYTES),
            environment=self.disk.environment,
        )
        self.queue.running = True
        self.queue.set_full_policy("refuse")
        self.regions = [
            _core.RegionCore(name, self.clock, site=1, member=7, stores=False) for name in ("every-a", "every-b")
        ]
        for region in self.regions:
            region.attach([self.queue])

    def let_go(self) -> None:
        self.in_the_end = self.events()
        for region in self.regions:
            region.attach([])
        self.queue = None

    def events(self) -> dict[tuple[int, int], bytes]:
        return {
            (partition, sequence): identity(record) for partition, sequence, record in self.queue.records(1_000_000)
        }

    def put(self, region: int, key: str, value: bytes) -> None:
        before = [appended for _, _, appended in self.queue.positions()]
        try:
            self.regions[region].put(key, value)
        except QueueFullError:
            return
        self.since |= {
            (p, appended) for p, (_, _, appended) in enumerate(self.queue.positions()) if appended > before[p]
        }

    def commit(self) -> bool:
        before = self.events()
        if not self.queue.commit_once(True):
            return False
        self.at_commit, self.since = before, set()
        return True

    def work(self) -> None:
        for round_ in range(24):
            for n in range(8):
                self.put(n % 2, f"key {n if round_ % 4 == 0 else n % 3}", b"%04d" % round_ * 2000)
            self.put(0, f"once {round_}", b"%d" % round_)
            self.commit()
            if round_ % 3 == 2:
                # The other partition's dispatcher is away: what lives in old segments is moved out of them.
                self.queue.peek(0, 2)
                _, peeked, appended = self.queue.positions()[0]
                if appended > peeked + 1:
                    self.queue.make_hole(0, peeked + 1)
                self.queue.remove(0, peeked)

    def check_recovered(self) -> None:
        found = self.events()
        missing = [
            place for place in self.at_commit if place in self.in_the_end and found.get(place) != self.at_commit[place]
        ]
        assert not missing, f"acknowledged and not there, or another: {missing}"
        strange = [place for place in found if place not in self.at_commit and place not in self.since]
        assert not strange, f"was gone when the last commit succeeded: {strange}"
        assert ledger(self.queue.counts())["balanced"], ledger(self.queue.counts())


class PersistentRegion:
    """A region, and what has to be in it."""

    KEYS = tuple(f"key {n}" for n in range(12))

    def __init__(self, disk: FailingDisk):
        self.disk, self.clock = disk, _core.Clock()
        self.at_commit: dict[str, tuple] = {}
        self.since: dict[str, list] = {}  # The values that were found under a key after the last commit that succeeded.

    def open(self) -> None:
        region = _core.RegionCore("every-stored", self.clock, site=1, member=7)
        region.open_log(
            "/region",
            log_id=6,
            synchronous=False,
            log_budget=_core.LogBudget(STORE_BYTES),
            environment=self.disk.environment,
        )
        self.region = region

    def let_go(self) -> None:
        self.region.close()
        self.region = None

    def events(self) -> dict[str, tuple]:
        return {key: self.region.lookup(key) for key in self.KEYS}

    def change(self, what, key: str, *value) -> None:
        with contextlib.suppress(QueueFullError, KeyError):
            what(key, *value)
        self.since.setdefault(key, []).append(self.region.lookup(key))

    def commit(self) -> bool:
        before = self.events()
        if not self.region.commit_once():
            return False
        self.at_commit, self.since = before, {}
        return True

    def work(self) -> None:
        for round_ in range(24):
            for n in range(12):
                if n < 4 or (n < 10 and round_ % 8 == n % 8) or round_ == n - 10:
                    self.change(self.region.put, f"key {n}", b"%04d" % round_ * 3000)
            if round_ % 5 == 1:
                self.change(self.region.destroy, "key 1")
                self.change(self.region.local_destroy, "key 2")
                self.change(self.region.invalidate, "key 3")
            if not self.commit() and not self.commit_again():
                return

    def commit_again(self) -> bool:
        """A change waits long for a log that takes nothing: there is none before it takes something again."""
        self.disk.capacity = None
        return not self.disk.is_off and (self.commit() or self.commit())

    def check_recovered(self) -> None:
        for key, found in self.events().items():
            assert found in [self.at_commit.get(key), *self.since.get(key, [])], key


def identity(record: bytes) -> bytes:
    fields = _core.record_fields(record)
    return repr(
        (fields["stamp"], fields["operation"], fields["key"], fields["value"], _core.region_name(fields["region"]))
    ).encode()


def is_opened(log) -> bool:
    """A call that fails refuses the opening; the next one succeeds. False: the power went meanwhile."""
    for _ in range(3):
        try:
            log.open()
            return True
        except PywanError:
            log.disk.raise_error()
            log.disk.capacity = None
            if log.disk.is_off:
                return False
    raise AssertionError("it does not open")


def run(kind, outage: str, fail_at: int) -> tuple[int, Disk]:
    """The work twice, with a restart between; then the end of the machine, and recovery. Gives the number of calls
    before that.
    """
    disk = FailingDisk(outage, fail_at)
    log = kind(disk)
    for _ in range(2):
        if not is_opened(log):
            break
        log.work()
        disk.raise_error()
        disk.capacity = None
        assert disk.is_off or any(log.commit() for _ in range(3)) or disk.is_off, (
            "the disk is well again, and it does not go on"
        )
        log.let_go()
        if disk.is_off:
            break
    calls, disk.fail_at = disk.calls, 0
    disk.crash(power=outage != "is full")
    assert is_opened(log)
    log.check_recovered()
    assert log.commit()
    disk.raise_error()
    log.let_go()
    return calls, disk


KINDS: dict[str, type[Any]] = {"queue": PersistentQueue, "region": PersistentRegion}


@pytest.mark.long
@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_whichever_call_goes_wrong(kind, outage):
    calls, _ = run(KINDS[kind], "", 0)
    assert calls > 200
    for fail_at in range(1 + OUTAGES.index(outage) * 3 % EVERY, calls + 1, EVERY):
        try:
            run(KINDS[kind], outage, fail_at)
        except BaseException as error:
            error.add_note(f"{kind}: call {fail_at} of {calls} {outage}")
            raise


@pytest.mark.parametrize(
    "kind, wanted", [("queue", {RECORDS, HOLES, STATES, MOVED, NAMES}), ("region", {RECORDS, MOVED})]
)
def test_the_work_writes_every_kind_of_part(tmp_path, monkeypatch, kind, wanted):
    seen = set()

    def commit(self, succeeds=KINDS[kind].commit):
        whole = succeeds(self)
        seen.update(part[0] for block in read_blocks(self.disk.folder(kind, tmp_path / kind)) for part in block.parts)
        return whole

    monkeypatch.setattr(KINDS[kind], "commit", commit)
    run(KINDS[kind], "", 0)
    assert seen == wanted


def test_a_queue_cut_at_any_block_is_what_the_blocks_before_the_cut_say(tmp_path):
    """The log is zeroed from every boundary of its blocks on, and from places within each. The description of the
    format, read by other code than the core's, says what is left; below what the manifest knows of it is damage."""
    queue = PersistentQueue(FailingDisk())
    queue.open()
    queue.work()
    whole, cut = queue.disk.folder("queue", tmp_path / "whole"), tmp_path / "cut"
    queue.let_go()
    manifest = read_manifest(whole)
    segments = [number for number, _ in manifest.segments if read_segment(whole, number, manifest)][-6:]
    opened = refused = 0
    for number in segments:
        for block in read_segment(whole, number, manifest):
            zero_from(whole, cut, manifest, number, block.at)
            expected = recover_queue(cut)
            for at in (block.at, block.at + 8, block.at + 40, (block.at + block.end) // 2 & ~7, block.end - 8):
                zero_from(whole, cut, manifest, number, at)
                if block.commit <= manifest.commit:
                    with pytest.raises(
                        DiskError, match=f"blocks are missing from here on: they end with number {block.commit - 1}"
                    ):
                        open_image(cut)
                    refused += 1
                    continue
                assert {place: identity(record) for place, record in open_image(cut).items()} == {
                    place: identity(renumbered(record, expected.names)) for place, record in expected.events.items()
                }
                opened += 1
    assert opened >= 5 and refused > 15


def zero_from(whole: Path, cut: Path, manifest: Manifest, number: int, at: int) -> None:
    """A copy of the log with nothing from this place on."""
    shutil.rmtree(cut, ignore_errors=True)
    shutil.copytree(whole, cut)
    for later, size in manifest.segments:
        if later >= number:
            kept = segment_file(whole, later).read_bytes()[: at if later == number else PAGE]
            segment_file(cut, later).write_bytes(kept + bytes(size - len(kept)))


def open_image(folder: Path) -> dict[tuple[int, int], bytes]:
    """The events that a queue finds in this log."""
    queue = _core.EventQueue(
        "ln",
        remote_site=2,
        partitions=2,
        log_directory=str(folder),
        log_id=5,
        synchronous=False,
        log_budget=_core.LogBudget(STORE_BYTES),
    )
    assert ledger(queue.counts())["balanced"]
    return {(partition, sequence): record for partition, sequence, record in queue.records(1_000_000)}


def renumbered(record: bytes, names: dict[int, str]) -> bytes:
    """With the number of its region in this process instead of the log's."""
    head = read_head(record)
    head["region"] = next(number for number in range(1, 65536) if _core.region_name(number) == names[head["region"]])
    return pack_head(head) + record[RECORD_BYTES:]
