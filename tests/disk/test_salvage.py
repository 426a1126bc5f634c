"""Salvage: what is whole of a damaged disk store is written anew, and the damaged one is not touched."""

import errno
import os

import pytest

import pywan
from pywan import _core
from pywan.cli.main import main
from pywan.disk.salvage import salvage_store
from pywan.disk.store import locked
from pywan.errors import ConfigurationError, DiskError, IllegalStateError
from pywan.region.region import core_of


@pytest.fixture
def damaged(network, tmp_path):
    """A member's store with a queue and a region of 200 events, a block of each of them damaged in the middle."""
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path / "ny")
    ny.send_to("ln", parallel=True, enable_persistence=True)
    data = ny.region(type="PARTITION_PERSISTENT")
    for n in range(200):
        data[n] = f"value {n}"
    ny.cache.close()
    store = tmp_path / "ny" / "disk-store-DEFAULT"
    for segment in store.glob("*/000000000001.seg"):
        image = bytearray(segment.read_bytes())
        image[4096 + 3000] ^= 1
        segment.write_bytes(image)
    return ny, store


def contents(store):
    return {file.relative_to(store): file.read_bytes() for file in store.glob("*/*")}


def test_what_is_whole_is_saved_and_goes_on(network, damaged, tmp_path):
    ny, store = damaged
    before = contents(store)
    ny.start_member(dir=tmp_path / "ny")
    with pytest.raises(DiskError, match="salvage disk-store"):
        ny.send_to("ln", parallel=True, enable_persistence=True)
    ny.cache.close()
    found = {each["log"]: each for each in salvage_store(store, tmp_path / "saved" / store.name)}
    assert contents(store) == before
    for log in ("queue-ln", "region-data"):
        assert 150 < found[log]["saved"] < 200 and "000000000001.seg" in found[log]["damage"]
    assert found["parked-ln"]["saved"] == 0 and found["parked-ln"]["damage"] == ""
    ny.start_member(dir=tmp_path / "saved")
    sender = ny.send_to("ln", parallel=True, enable_persistence=True)
    data = ny.region(type="PARTITION_PERSISTENT")
    assert sender.queue_size == found["queue-ln"]["saved"] and len(data) == found["region-data"]["saved"]
    assert all(value == f"value {key}" for key, value in data.items())
    data["after"] = 1
    assert sender.queue_size == found["queue-ln"]["saved"] + 1 and sender.ledger()["balanced"]


def test_a_region_is_saved_with_its_destroyed_and_invalidated_keys_and_all_versions(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path / "ny")
    data = ny.region(type="REPLICATE_PERSISTENT")
    keys = ["text", 7, b"bytes", 2.5, (1, "tuple"), "gone", "invalid", "none", "forgotten"]
    for key in keys:
        data[key] = {"of": str(key)}
    old_stamp = core_of(data).lookup("gone")[1]
    data.destroy("gone"), data.invalidate("invalid"), data.put("none", None), data.local_destroy("forgotten")
    core_of(data).change(2, "never here", version=(old_stamp, 9), origin_=(9, b"", (1, 1, 1)))
    before = {key: core_of(data).lookup(key) for key in [*keys, "never here"]}
    store = tmp_path / "ny" / "disk-store-DEFAULT"
    ny.cache.close()
    (found,) = salvage_store(store, tmp_path / "saved" / store.name)
    assert (found["saved"], found["damage"]) == (7, "")
    ny.start_member(dir=tmp_path / "saved")
    data = ny.region(type="REPLICATE_PERSISTENT")
    assert {key: core_of(data).lookup(key) for key in before} == before
    assert (
        core_of(data).change(0, "gone", "an older create", version=(old_stamp, 1), origin_=(9, b"", (1, 1, 2)))
        == "lost"
    )
    assert (
        "gone" not in data
        and data.get("invalid", "no value") == "no value"
        and data.get("none", 1) is None
        and core_of(data).lookup("forgotten") is None
    )


def test_the_command_tells_what_was_saved(damaged, tmp_path, capsys):
    _, store = damaged
    with pytest.raises(SystemExit) as ended:
        main(["salvage", "disk-store", f"--dir={store}", f"--to={tmp_path / 'saved'}"])
    assert not ended.value.code
    assert "queue-ln" in capsys.readouterr().out


def test_a_store_that_is_open_or_no_store_or_a_full_folder_is_refused(network, damaged, tmp_path):
    ny, store = damaged
    with pytest.raises(ConfigurationError, match="holds no log"):
        salvage_store(tmp_path, tmp_path / "to")
    with pytest.raises(ConfigurationError, match="not empty"):
        salvage_store(store, store)
    ny.start_member(dir=tmp_path / "ny")
    ny.cache.create_disk_store("other")
    ny.cache.create_region("other", type="REPLICATE_PERSISTENT")
    with pytest.raises(IllegalStateError, match="open in process"):
        salvage_store(store, tmp_path / "to")


class Point:
    def __init__(self, x):
        self.x = x


def test_what_users_serializers_made_is_saved_where_they_are_not_known(network, tmp_path, monkeypatch):
    """The command runs in a process of its own, which has registered nothing."""
    pywan.register_serializer(Point, lambda point: str(point.x).encode(), lambda data: Point(int(data)), name="point")
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    ny.send_to("ln", enable_persistence=True)
    data = ny.region(type="PARTITION_PERSISTENT")
    data[Point(1)] = Point(2)
    ny.cache.close()
    with monkeypatch.context() as unknown:
        unknown.setattr("pywan.serializers._by_name", {})
        found = {
            each["log"]: each["saved"]
            for each in salvage_store(tmp_path / "disk-store-DEFAULT", tmp_path / "saved" / "disk-store-DEFAULT")
        }
    assert found == {"parked-ln": 0, "queue-ln": 1, "region-data": 1}
    ny.start_member(dir=tmp_path / "saved")
    assert (
        ny.send_to("ln", enable_persistence=True).queue_size == 1
        and ny.region(type="PARTITION_PERSISTENT")[Point(1)].x == 2
    )


def test_a_place_that_cannot_be_written_is_told(damaged, tmp_path):
    _, store = damaged
    (tmp_path / "file").touch()
    for to, says in (
        (tmp_path / "file", "no folder"),
        (store / "inside", "is inside of"),
        (store / "queue-ln", "is inside of"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            salvage_store(store, to)
    for to in (tmp_path / "file" / "below", "/proc/salvaged"):
        with pytest.raises(DiskError, match=r"cannot be written: .*; free space, or name another folder"):
            salvage_store(store, to)


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_store_on_a_read_only_disk_is_saved_all_the_same(damaged, tmp_path, monkeypatch, is_locked):
    """A system makes a disk that fails read-only: then most of all."""
    _, store = damaged
    if not is_locked:
        (store / "LOCK").unlink()
    real = os.open

    def open_to_read(path, flags, *more, **named):
        if str(path).startswith(str(store)) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *more, **named)

    monkeypatch.setattr("pywan.disk.store.os.open", open_to_read)
    assert sum(each["saved"] for each in salvage_store(store, tmp_path / "saved")) > 300
    with locked(store):
        if is_locked:
            with pytest.raises(IllegalStateError, match="is open in process"):
                salvage_store(store, tmp_path / "again")


def test_what_was_saved_and_found_no_room_is_told_with_one_remedy(damaged, tmp_path, monkeypatch):
    _, store = damaged

    class Full(_core.EventQueue):
        def log_state(self):
            return {**super().log_state(), "failing": "no space left"}

    monkeypatch.setattr("pywan.disk.salvage._core.EventQueue", Full)
    with pytest.raises(
        DiskError,
        match=(
            r"^what was saved could not be written: no space left; put that right .on a full disk free space. "
            r"and begin again with an empty folder$"
        ),
    ):
        salvage_store(store, tmp_path / "to")
