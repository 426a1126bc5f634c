"""A member closes while it writes. No lock is given up while anybody writes under it, and nothing is written
afterwards.
"""

from __future__ import annotations

import threading

import numpy
import pytest

import pywan
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk.store import StoreCore
from pywan.errors import DiskAccessError, DiskError, IllegalStateError, RegionNotFoundError
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually
from support.faulty_disk import FaultyDisk

MEMBER = """
import sys
import pywan, pywan.disk.store
from pywan.errors import DiskError
locators, folder = sys.argv[1:]

def say(word):
    print(word, flush=True)
    assert sys.stdin.readline()

pywan.disk.store.CLOSE_LIMIT_S = 1.0
cache = pywan.Cache("slow", locators=locators, dir=folder)
persistent = dict(enable_persistence=True, disk_synchronous=False)
sender = cache.create_gateway_sender("ln", remote_distributed_system_id=2, **persistent)
data = cache.create_region("data", "REPLICATE_PERSISTENT", gateway_sender_ids=["ln"], disk_synchronous=False)
data["before"] = 1
sender._core.queue.wait_durable()
say("ready")
data["during"] = 2
try:
    cache.close()
    say("closed")
except DiskError as error:
    say(f"held: {error}")
cache.close()
say("closed")
"""


@pytest.fixture
def ny(network):
    return network.add("ny")[0]


def word(process):
    line = process.stdout.readline().strip()
    assert line, process.wait()
    return line


def tell(process):
    process.stdin.write("go on\n")


def test_a_store_stays_locked_while_the_disk_holds_up_who_writes_in_it(ny, tmp_path):
    disk = FaultyDisk(tmp_path)
    folder = tmp_path / "member"
    process = disk.start(MEMBER, ny.locator.address, folder)
    try:
        assert word(process) == "ready"
        disk.hold()
        tell(process)
        said = word(process)
        assert (
            said.startswith("held")
            and "queue-ln, region-data did not end within 1 s" in said
            and "stays locked" in said
        )
        with pytest.raises(IllegalStateError, match=f"open in process {process.pid}"):
            StoreCore(DiskStoreAttributes("DEFAULT"), folder)
        disk.let_go()
        tell(process)
        assert word(process) == "closed"
        ny.cache.close()
        ny.start_member(dir=folder)
        data = ny.cache.create_region("data", "REPLICATE_PERSISTENT")
        assert dict(data) == {"before": 1, "during": 2}
        assert len(ny.send_to("ln", enable_persistence=True, dispatcher_threads=5)._core.queue) == 2
        tell(process)
        assert process.wait(LIMIT_S) == 0
    finally:
        disk.let_go()
        process.kill()
        process.wait()


def test_the_store_of_a_close_that_gave_up_is_free_when_its_last_writer_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("pywan.disk.store.CLOSE_LIMIT_S", 0.05)
    store, goes_on = StoreCore(DiskStoreAttributes("s"), tmp_path), threading.Event()
    store.start_writer("queue-ln", "writer", goes_on.wait)
    with pytest.raises(IllegalStateError, match="queue-ln is still being written by this process"):
        store.log_place("queue-ln", {})
    with pytest.raises(DiskError, match="queue-ln is destroyed, and its log is still being written"):
        store.forget("queue-ln")
    with pytest.raises(DiskError, match="'s': queue-ln did not end within"):
        store.close()
    with pytest.raises(IllegalStateError, match="is open in"):
        StoreCore(DiskStoreAttributes("s"), tmp_path)
    goes_on.set()

    def is_free():
        try:
            StoreCore(DiskStoreAttributes("s"), tmp_path).close()
            return True
        except IllegalStateError:
            return False

    eventually(is_free)


def files(folder):
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_bulk_call_ends_with_the_member_and_what_it_stored_is_queued(ny, tmp_path, synchronous):
    ny.cache.close()
    ny.start_member(dir=tmp_path / "member")
    sender = ny.send_to("ln", enable_persistence=True, disk_synchronous=synchronous)
    data = ny.region(type="REPLICATE_PERSISTENT", disk_synchronous=synchronous)
    rows = 20_000_000
    keys = numpy.arange(rows)
    outcome = []

    def put():
        try:
            outcome.append(data.put_columns(keys, keys))
        except BaseException as error:
            outcome.append(error)

    caller = threading.Thread(target=put)
    caller.start()
    eventually(lambda: len(sender._core.queue) > 10_000)
    ny.cache.close()
    written = files(tmp_path)
    caller.join(LIMIT_S)
    assert isinstance(outcome[0], RegionNotFoundError), outcome
    assert "the rows before were stored" in str(outcome[0]) and "nothing was changed" not in str(outcome[0])
    assert files(tmp_path) == written, "something was written after the member had closed"
    assert sender.ledger()["queued"] == sender.ledger()["received"], "what was stored was not queued"
    ny.start_member(dir=tmp_path / "member")
    queued = len(ny.send_to("ln", enable_persistence=True, manual_start=True)._core.queue)
    stored = len(ny.region(type="REPLICATE_PERSISTENT", disk_synchronous=synchronous))
    assert 10_000 < queued == stored < rows


def test_a_call_for_many_entries_that_a_closing_ends_says_what_it_did(ny):
    data = ny.region(type="REPLICATE")
    data.put_all({n: n for n in range(3)})

    def keys(count):
        yield from range(count)
        core_of(data).close()
        yield count

    with pytest.raises(RegionNotFoundError, match=r"stopped at key 3: .*3 were destroyed before"):
        data.remove_all(keys(3))
    data = ny.region("more", type="REPLICATE")
    with pytest.raises(RegionNotFoundError, match=r"stopped at entry 2: .*the entries before it were stored"):
        data.put_all((key, key) for key in keys(2))


def test_closing_waits_for_what_is_being_made(ny, tmp_path):
    """A region that is made while the member closes is there and ends with it, or is refused."""
    ny.cache.close()
    for _ in range(5):
        cache = ny.start_member(dir=tmp_path / "member")
        made = threading.Thread(target=lambda cache=cache: _make_regions(cache))
        made.start()
        eventually(lambda cache=cache: len(cache.regions()) > 2)
        cache.close()
        made.join(LIMIT_S)
        assert all(region.is_closed for region in cache.regions().values())
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("region-r")]


def _make_regions(cache):
    try:
        for n in range(1000):
            cache.create_region(f"r{n}", "REPLICATE_PERSISTENT")
    except pywan.errors.PywanError:
        pass


def test_a_log_that_cannot_be_written_is_told_once_by_its_own_reason(ny, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("pywan.member.housekeeper.HOUSEKEEPING_S", 0.02)
    ny.cache.close()
    ny.start_member(dir=tmp_path / "member")
    data = ny.region(type="REPLICATE_PERSISTENT", senders=[], disk_synchronous=False)
    data["k"] = 1
    eventually(lambda: core_of(data).log_state()["pending"] == 0)
    for file in (tmp_path / "member" / "disk-store-DEFAULT" / "region-data").glob("*.seg"):
        file.unlink()
    data["k"] = 2

    def told():
        return [record.message for record in caplog.records if "its log is not written" in record.message]

    eventually(told)
    with pytest.raises(
        DiskAccessError, match=r"refused: the log is not written now: .*was removed while it was in use"
    ):
        data["k"] = 3
    assert len(told()) == 1 and "region data" in told()[0] and "was removed while it was in use" in told()[0]
