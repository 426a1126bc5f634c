"""Where logs lie in a disk store: what may be named, what failed before it was made, and what is left of what was
destroyed.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading

import pytest

from pywan import _core
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk import store as disk_store
from pywan.disk.salvage import salvage_store
from pywan.disk.store import StoreCore
from pywan.errors import ConfigurationError, DiskError, IllegalStateError

PERSISTENT = {"enable_persistence": True, "parallel": False}


@pytest.fixture
def ny(network, tmp_path):
    site = network.site("ny")
    site.cache.close()
    site.start_member(dir=tmp_path)
    return site


def reopened(site, tmp_path):
    site.cache.close()
    site.start_member(dir=tmp_path)
    return site


def test_a_sender_that_could_not_be_made_leaves_nobody_who_writes_its_log(ny, tmp_path):
    """Made again, it would have two that write one log."""
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ny.send_to("ln", gateway_event_filters="no.such:Filter", **PERSISTENT)
    assert not [thread for thread in threading.enumerate() if thread.name == "sender-ln-log"]
    ny.send_to("ln", **PERSISTENT)
    # The queue's and the parked events'.
    assert len([thread for thread in threading.enumerate() if thread.name == "sender-ln-log"]) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda ny: ny.region("r" * 250, type="REPLICATE_PERSISTENT"),
        lambda ny: ny.send_to("ln", id="s" * 250, **PERSISTENT),
    ],
    ids=["region", "sender"],
)
def test_a_name_that_no_folder_can_have_is_told(ny, make):
    with pytest.raises(DiskError, match="name too long; take a shorter name"):
        make(ny)


@pytest.mark.parametrize("name", ["ab\n", "a/b", "../x", "", " ", "-a"])
def test_a_name_that_would_lead_elsewhere_is_refused(ny, name):
    with pytest.raises(ConfigurationError, match="not a name"):
        ny.cache.create_disk_store(name)
    with pytest.raises(ConfigurationError, match="not a name"):
        ny.cache.create_gateway_sender(name, remote_distributed_system_id=2, **PERSISTENT)


def test_directories_are_paths_with_or_without_a_size(tmp_path):
    def directories(value):
        return DiskStoreAttributes.make("s", directories=value).directories

    assert directories(tmp_path) == directories(str(tmp_path)) == directories([tmp_path]) == ((str(tmp_path), None),)
    assert directories("/a#10,/b") == directories([("/a", "10"), "/b"]) == (("/a", 10), ("/b", None))


@pytest.mark.parametrize("value", [5, [5], [("/a", 1, 2)], [None], [("", 1)], "", ["/a\0b"], [(b"/a", 1)]])
def test_directories_that_are_none_are_told(value):
    with pytest.raises(ConfigurationError, match="directories"):
        DiskStoreAttributes.make("s", directories=value)


def test_of_two_logs_of_one_owner_none_is_taken_by_chance(ny, tmp_path):
    homes = tmp_path / "a", tmp_path / "b"
    for home in homes:
        ny.cache.create_disk_store("s", directories=[home])
        ny.region(type="REPLICATE_PERSISTENT", disk_store_name="s")["home"] = home.name
        reopened(ny, tmp_path)
    ny.cache.create_disk_store("s", directories=homes)
    with pytest.raises(ConfigurationError, match=f"lies in {homes[0]}/.* and another one in {homes[1]}/.*move away"):
        ny.region(type="REPLICATE_PERSISTENT", disk_store_name="s")
    shutil.rmtree(homes[0] / "disk-store-s" / "region-data")
    assert ny.region(type="REPLICATE_PERSISTENT", disk_store_name="s")["home"] == "b"


def test_a_store_on_a_full_disk_is_locked_all_the_same(tmp_path, monkeypatch):
    """Its LOCK file cannot even take the number of the process."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_store.os, "pwrite", full)
    attributes = DiskStoreAttributes.make("s", directories=tmp_path)
    store = StoreCore(attributes, tmp_path)
    with pytest.raises(IllegalStateError, match="is open in another process"):
        StoreCore(attributes, tmp_path)
    store.close()
    StoreCore(attributes, tmp_path).close()


def test_a_log_that_was_being_removed_when_its_process_ended_is_gone(ny, tmp_path, monkeypatch):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    store = tmp_path / "disk-store-DEFAULT"

    def ends(folder, **_):
        next(folder.glob("owner.json")).unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk_store.shutil, "rmtree", ends)
    with pytest.raises(DiskError, match=r"region-data is destroyed, and its files cannot be removed: .*by hand"):
        ny.cache.destroy_region("data")
    monkeypatch.undo()
    assert len(ny.region(type="REPLICATE_PERSISTENT")) == 0
    ny.data["k"] = 2
    ny.cache.close()
    assert [each["log"] for each in salvage_store(store, tmp_path / "saved")] == ["region-data"]
    reopened(ny, tmp_path)
    assert dict(ny.region(type="REPLICATE_PERSISTENT")) == {"k": 2}
    assert sorted(path.name for path in store.iterdir()) == ["LOCK", "region-data"]


def test_a_log_that_is_not_used_any_more_is_told(ny, tmp_path, caplog):
    """Its entries and events are not there, and old ones come back with it."""
    ny.cache.create_disk_store("s", directories=tmp_path / "s")
    ny.send_to("ln", disk_store_name="s", **PERSISTENT)
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    reopened(ny, tmp_path)
    assert "not persistent now" not in caplog.text
    ny.cache.create_disk_store("s", directories=tmp_path / "s")
    ny.send_to("ln", parallel=False)
    ny.region(type="REPLICATE")
    assert (
        f"gateway sender ln is not persistent now, but its old log is still in"
        f" {tmp_path / 's' / 'disk-store-s' / 'queue-ln'}." in caplog.text
    )
    assert (
        f"region data is not persistent now, but its old log is still in"
        f" {tmp_path / 'disk-store-DEFAULT' / 'region-data'}." in caplog.text
    )


def test_a_lock_file_that_somebody_removed_does_not_let_another_process_in(tmp_path):
    """It looks as if it was left behind."""
    attributes = DiskStoreAttributes.make("s", directories=tmp_path)
    store = StoreCore(attributes, tmp_path)
    (tmp_path / "disk-store-s" / "LOCK").unlink()
    for _ in range(2):  # The second finds the file that the first has made.
        with pytest.raises(IllegalStateError, match="is open in another process; stop that one"):
            StoreCore(attributes, tmp_path)
    store.close()
    StoreCore(attributes, tmp_path).close()


# Files that are not the store's own


def test_the_files_of_a_store_are_for_their_owner_alone(ny, tmp_path):
    before = os.umask(0)
    try:
        ny.send_to("ln", **PERSISTENT)
        ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    finally:
        os.umask(before)
    store = tmp_path / "disk-store-DEFAULT"
    ny.cache.close()
    found = {str(file.relative_to(store)): file.stat().st_mode & 0o777 for file in store.rglob("*")}
    assert len(found) > 8 and not {name: oct(mode) for name, mode in found.items() if mode & 0o077}


def links_to_elsewhere(file, elsewhere):
    elsewhere.write_bytes(b"precious")
    file.unlink(missing_ok=True)
    file.symlink_to(elsewhere)


def pipes(file, elsewhere):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize("put_there", [links_to_elsewhere, pipes])
@pytest.mark.parametrize(
    "name",
    [
        "LOCK",
        "region-data/owner.json",
        "region-data/MANIFEST",
        "region-data/000000000001.seg",
        "region-data/000000000003.seg",
    ],
)
def test_a_file_of_a_store_that_is_a_link_or_a_pipe_is_refused_at_once(ny, tmp_path, name, put_there):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    ny.cache.close()
    file, elsewhere = tmp_path / "disk-store-DEFAULT" / name, tmp_path / "elsewhere"
    put_there(file, elsewhere)
    with pytest.raises(DiskError, match=f"{file.name}|disk-store-DEFAULT"):
        reopened(ny, tmp_path).region(type="REPLICATE_PERSISTENT")
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"precious"


@pytest.mark.parametrize("put_there", [links_to_elsewhere, pipes])
@pytest.mark.parametrize("name", ["MANIFEST.new", "owner.json.new"])
def test_a_link_or_a_pipe_where_a_log_makes_a_file_is_not_written_through(ny, tmp_path, name, put_there):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    ny.cache.close()
    file, elsewhere = tmp_path / "disk-store-DEFAULT" / "region-data" / name, tmp_path / "elsewhere"
    put_there(file, elsewhere)
    data = reopened(ny, tmp_path).region(type="REPLICATE_PERSISTENT")
    for n in range(20):
        data[n] = b"v" * 1_000_000
    assert len(data) == 21
    ny.cache.close()
    assert len(reopened(ny, tmp_path).region(type="REPLICATE_PERSISTENT")) == 21
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"precious"


TRACED = """
import os, sys
import pywan
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk.store import StoreCore

synced = []
real = os.fsync

def fsync(descriptor):
    synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    real(descriptor)

os.fsync = fsync
store = StoreCore(DiskStoreAttributes("s"), sys.argv[1])
store.log_place("queue-ln", {"kind": "queue"})
print(*synced, sep="\\n")
print("--")
synced.clear()
store.forget("queue-ln")
print(*synced, sep="\\n")
"""


def test_folders_that_are_made_and_removed_are_on_the_disk_with_their_parents(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", TRACED, str(tmp_path / "a" / "b")], capture_output=True, text=True, check=True
    ).stdout
    made, removed = (part.split() for part in told.split("--"))
    store = tmp_path / "a" / "b" / "disk-store-s"
    assert {
        str(folder) for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", store, store / "queue-ln")
    } <= set(made)
    assert removed == [str(store)]


def test_a_state_of_many_long_region_names_is_read_again(tmp_path):
    """More than 8 MiB of them."""

    def opened():
        return _core.EventQueue("ln", remote_site=2, log_directory=str(tmp_path), log_id=5, synchronous=False)

    queue, clock = opened(), _core.Clock()
    queue.running = True
    for n in range(9_000):
        region = _core.RegionCore(f"{n:0>1000}", clock, site=1)
        region.attach([queue])
        region.put("k", n)
        region.attach([])
    assert queue.commit_once(True)
    assert len(queue.peek(0, 10)) == 10
    queue.remove(0, 10)
    assert queue.commit_once(True)
    queue.stop_log()
    queue.commit_loop()
    del queue, region
    assert (tmp_path / "MANIFEST").stat().st_size > 8 << 20
    assert len(opened()) == 8_990


def test_a_folder_of_a_log_that_is_a_link_is_refused_and_the_store_itself_may_lie_behind_one(ny, tmp_path):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    ny.cache.close()
    log, elsewhere = tmp_path / "disk-store-DEFAULT" / "region-data", tmp_path / "elsewhere"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    before = sorted((file.name, file.stat().st_mtime_ns) for file in elsewhere.iterdir())
    with pytest.raises(DiskError, match="region-data is a symbolic link, and a log lies in its store alone"):
        reopened(ny, tmp_path).region(type="REPLICATE_PERSISTENT")
    assert sorted((file.name, file.stat().st_mtime_ns) for file in elsewhere.iterdir()) == before
    ny.cache.close()
    log.unlink()
    elsewhere.rename(log)
    other_name = tmp_path.with_name(tmp_path.name + "-link")
    other_name.symlink_to(tmp_path)
    assert dict(reopened(ny, other_name).region(type="REPLICATE_PERSISTENT")) == {"k": 1}


@pytest.mark.parametrize(
    "name, words",
    [
        ("LOCK", "LOCK in it is a symbolic link, which is not followed; put what it leads to in its place"),
        ("region-data/owner.json", "owner.json is a symbolic link, which is not followed; it should say"),
    ],
)
def test_a_link_is_called_a_link(ny, tmp_path, name, words):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    ny.cache.close()
    links_to_elsewhere(tmp_path / "disk-store-DEFAULT" / name, tmp_path / "elsewhere")
    with pytest.raises(DiskError, match=words):
        reopened(ny, tmp_path).region(type="REPLICATE_PERSISTENT")
