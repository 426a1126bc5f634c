"""Where logs lie in a disk store: what may be named, what failed before it was made, and what is left of what was destroyed."""
from __future__ import annotations

import errno
import os
import shutil
import threading

import pytest

from pywan import disk_store
from pywan.config import make_disk_store_attributes
from pywan.disk_store import DiskStore
from pywan.errors import ConfigurationError, DiskError, IllegalStateError
from pywan.salvage import salvage_store

PERSISTENT = {"enable_persistence": True, "parallel": False}


@pytest.fixture
def ny(network, tmp_path):
    site = network.site("ny")
    site.cache.close()
    site.new_cache(dir=tmp_path)
    return site


def reopened(site, tmp_path):
    site.cache.close()
    site.new_cache(dir=tmp_path)
    return site


def test_a_sender_that_could_not_be_made_leaves_nobody_who_writes_its_log(ny, tmp_path):
    """Made again, it would have two that write one log."""
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ny.send_to("ln", gateway_event_filters="no.such:Filter", **PERSISTENT)
    assert not [thread for thread in threading.enumerate() if thread.name == "sender-ln-log"]
    ny.send_to("ln", **PERSISTENT)
    assert len([thread for thread in threading.enumerate() if thread.name == "sender-ln-log"]) == 2      # The queue's and the parked events'.


@pytest.mark.parametrize("make", [
    lambda ny: ny.region("r" * 250, type="REPLICATE_PERSISTENT"),
    lambda ny: ny.send_to("ln", id="s" * 250, **PERSISTENT),
], ids=["region", "sender"])
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
        return make_disk_store_attributes("s", directories=value).directories

    assert directories(tmp_path) == directories(str(tmp_path)) == directories([tmp_path]) == ((str(tmp_path), None),)
    assert directories("/a#10,/b") == directories([("/a", "10"), "/b"]) == (("/a", 10), ("/b", None))


@pytest.mark.parametrize("value", [5, [5], [("/a", 1, 2)], [None], [("", 1)], "", ["/a\0b"], [(b"/a", 1)]])
def test_directories_that_are_none_are_told(value):
    with pytest.raises(ConfigurationError, match="directories"):
        make_disk_store_attributes("s", directories=value)


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
    attributes = make_disk_store_attributes("s", directories=tmp_path)
    store = DiskStore(attributes, tmp_path)
    with pytest.raises(IllegalStateError, match="is open in another process"):
        DiskStore(attributes, tmp_path)
    store.close()
    DiskStore(attributes, tmp_path).close()


def test_a_log_that_was_being_removed_when_its_process_ended_is_gone(ny, tmp_path, monkeypatch):
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    store = tmp_path / "disk-store-DEFAULT"

    def ends(folder, **_):
        next(folder.glob("owner.json")).unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk_store.shutil, "rmtree", ends)
    with pytest.raises(DiskError, match="region-data is destroyed, and its files cannot be removed: .*by hand"):
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
    ny.send_to("ln", disk_store_name="s", parallel=False)
    ny.region(type="REPLICATE")
    assert f"gateway sender ln is not persistent now, and {tmp_path / 's' / 'disk-store-s' / 'queue-ln'} holds what it had" in caplog.text
    assert f"region data is not persistent now, and {tmp_path / 'disk-store-DEFAULT' / 'region-data'} holds what it had" in caplog.text


def test_a_lock_file_that_somebody_removed_does_not_let_another_process_in(tmp_path):
    """It looks as if it was left behind."""
    attributes = make_disk_store_attributes("s", directories=tmp_path)
    store = DiskStore(attributes, tmp_path)
    (tmp_path / "disk-store-s" / "LOCK").unlink()
    for _ in range(2):      # The second finds the file that the first has made.
        with pytest.raises(IllegalStateError, match="is open in another process; stop that one"):
            DiskStore(attributes, tmp_path)
    store.close()
    DiskStore(attributes, tmp_path).close()
