"""The log of a persistent region while it is shortened: on a small limit, near it, and with changes that come in
between.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import shutil
import time
from typing import ClassVar

import pytest

from pywan import _core
from pywan.errors import EventTooLargeError
from support.log_format import INVALID, RESTAMPED, changes, read_blocks
from support.records import NONE, TEXT

LIMIT = 2 << 20
OK, EMPTY = 0, 1  # Numbers of wan_status.
UPDATE, DESTROY = 1, 2
DECIDED = 2  # A resolver has been asked.


class WatchedDisk:
    """The functions of csrc/base/wan_env.h over real files; `before_open(path)` is called whenever one is opened."""

    _KINDS: ClassVar = {  # Argument types behind the table itself.
        "create": (ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)),
        "open": (ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64)),
        "write": (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64),
        "read": (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64),
        "sync": (ctypes.c_int, ctypes.c_char_p),
        "replace": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
        "remove": (ctypes.c_char_p,),
        "close": (ctypes.c_int,),
        "list": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p),
    }
    _ORDER = ("map_overflow", "unmap", "map_file", *_KINDS, "fetch", "state")

    def __init__(self):
        self.before_open = lambda path: None
        self._table = (ctypes.c_void_p * len(self._ORDER))()
        self._functions = []  # Kept: the table only has their addresses.
        for name, kinds in self._KINDS.items():
            kind = ctypes.CFUNCTYPE(None if name == "close" else ctypes.c_int, ctypes.c_void_p, *kinds)
            self._functions.append(kind(getattr(self, "_" + name)))
            self._table[self._ORDER.index(name)] = ctypes.cast(self._functions[-1], ctypes.c_void_p).value
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = make(ctypes.addressof(self._table), b"wan_env", None)

    def _create(self, env, path, size, file):
        file[0] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(file[0], 0, size)
        return OK

    def _open(self, env, path, writable, file, size):
        self.before_open(path.decode())
        try:
            file[0] = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            return EMPTY
        size[0] = os.fstat(file[0]).st_size
        return OK

    def _write(self, env, file, path, at, data, size):
        os.pwrite(file, ctypes.string_at(data, size), at)
        return OK

    def _read(self, env, file, path, at, to, size):
        found = os.pread(file, size, at)
        ctypes.memmove(to, found.ljust(size, b"\0"), size)
        return OK

    def _sync(self, env, file, path):
        return OK

    def _replace(self, env, from_, to, directory):
        os.replace(from_, to)
        return OK

    def _remove(self, env, path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return OK

    def _close(self, env, file):
        os.close(file)

    def _list(self, env, directory, found, owner):
        tell = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(found)
        return next(filter(None, (tell(owner, name) for name in os.listdir(directory))), OK)


def opened(folder, size=LIMIT, **options):
    folder.mkdir(exist_ok=True)
    region = _core.RegionCore("data", _core.Clock(), site=1, member=7)
    region.open_log(str(folder), log_id=5, **{"log_budget": _core.LogBudget(size), "synchronous": False, **options})
    return region


def recovered(folder):
    """Opens a copy of the files, which are as kill -9 at this moment would leave them."""
    image = folder.with_name("after-the-crash")
    shutil.rmtree(image, ignore_errors=True)
    shutil.copytree(folder, image)
    return opened(image)


def after_a_crash(folder):
    region = recovered(folder)
    return {key: region.get(key) for key in region.scan_keys()}


def test_a_value_stays_in_the_log_until_the_one_that_replaced_it_is_on_the_disk(tmp_path):
    """The log is shortened by segments, and a change may come between a look at the table and the end of a segment."""
    watched = WatchedDisk()
    region = opened(tmp_path / "log", environment=watched.capsule)
    region.put("k", b"old")
    assert region.commit_once()
    came = []

    def replace_it(path):
        if path.endswith("000000000001.seg") and not came:
            came.append(path)
            region.put("k", b"new")

    watched.before_open = replace_it
    while not came:
        region.put("other", b"v" * 60_000)
        assert region.commit_once()
        assert region.log_state()["bytes"] < LIMIT
    assert not (tmp_path / "log" / "000000000001.seg").exists()
    assert after_a_crash(tmp_path / "log")["k"] in (b"old", b"new")
    region.commit_once()
    assert after_a_crash(tmp_path / "log")["k"] == b"new"


@pytest.mark.parametrize("live", [0.1, 0.3, 0.5])
def test_a_region_whose_entries_take_up_to_half_of_its_limit_is_written_for_ever(tmp_path, live):
    source = random.Random(3)
    region = opened(tmp_path / "log", 4 << 20)
    keys = [f"k{n}" for n in range(int(live * (4 << 20) / 2_000))]
    newest = {}
    for n in range(6_000):
        key = keys[n] if n < len(keys) else source.choice(keys)
        newest[key] = b"%d " % n + b"v" * 1_850
        region.put(key, newest[key])
        if n % 70 == 69:
            assert region.commit_once(), f"change {n}: {region.log_state()['failing']}"
    assert region.commit_once()
    assert region.log_state()["bytes"] <= 4 << 20
    assert after_a_crash(tmp_path / "log") == newest


def test_an_invalidation_is_in_the_log_as_described(tmp_path):
    region = opened(tmp_path / "log")
    region.put("k", b"value")
    region.invalidate("k")
    region.invalidate("k")  # Changes nothing, and is not logged.
    _, stamp, site, _ = region.lookup("k")
    assert region.commit_once()
    (block,) = read_blocks(tmp_path / "log")
    ((_, _, part),) = block.parts
    put, invalidated = changes(part)
    assert (
        (put.kinds, invalidated.kinds) == (0, INVALID)
        and put.value == b"value"
        and (invalidated.value_form, invalidated.value) == (NONE, b"")
    )
    assert [(c.key_form, c.key, c.stamp, c.site, c.other_stamp) for c in (put, invalidated)] == [
        (TEXT, b"k", stamp, site, 0)
    ] * 2


def test_a_copy_waits_for_a_disk_that_is_slower_and_goes_on(tmp_path):
    region = _core.RegionCore("data", _core.Clock(), site=1, member=7)
    region.put_columns([f"k{n}" for n in range(2_000)], [b"v" * 1_000] * 2_000)
    for n in range(0, 2_000, 7):
        region.destroy(f"k{n}") if n % 2 else region.invalidate(f"k{n}")
    copy = opened(tmp_path / "log", size=8 << 20)
    rounds, scan_position = 1, region.copy_into(copy)
    while scan_position is not None:
        assert copy.commit_once()
        rounds, scan_position = rounds + 1, region.copy_into(copy, scan_position)
    assert copy.commit_once() and rounds > 1
    del copy
    copy = opened(tmp_path / "log", size=8 << 20)
    for key in (f"k{n}" for n in range(2_000)):
        assert copy.lookup(key) == region.lookup(key) and copy.get(key, "no value") == region.get(key, "no value")


def test_entries_beyond_the_limit_are_refused_by_name_and_kept_with_a_higher_one(tmp_path):
    region = opened(tmp_path / "log")
    written = 0
    while region.commit_once():
        for _ in range(100):
            region.put(f"k{written}", b"v" * 1_000)
            written += 1
    assert f"limit of {LIMIT} bytes" in region.log_state()["failing"]
    del region
    region = opened(tmp_path / "log", 2 * LIMIT)
    assert len(region) > 0.6 * LIMIT / 1_100
    region.put("next", b"v")
    assert region.commit_once()


def test_a_change_that_no_log_of_this_size_can_take_is_refused_at_once(tmp_path):
    region = opened(tmp_path / "log")
    with pytest.raises(EventTooLargeError, match="give the disk store more room"):
        region.put("k", b"v" * (LIMIT // 8))
    region.put("k", b"v" * (LIMIT // 20))
    assert region.commit_once()
    assert len(after_a_crash(tmp_path / "log")["k"]) == LIMIT // 20


def decided_by_a_resolver(region, clock):
    """An earlier change of another site takes the place of the later one."""
    stamp = region.lookup("k")[1] - (1 << 16)
    assert (
        region.change(UPDATE, "k", b"earlier", version=(stamp, 2), origin_=(2, b"", (9, 1, 1)), ask=DECIDED)
        == "updated"
    )


def repaired(region, clock):
    """The version was of the future, and has a stamp of now."""
    repair = _core.ClockRepair(clock, [region], site=1)
    assert repair.begin() and repair.restamp_key(region, "k")


REPLACE_A_LATER_VERSION = pytest.mark.parametrize("replace", [decided_by_a_resolver, repaired])


def put_ahead(region, clock, value):
    now_ms = time.time_ns() // 1_000_000
    clock.set_time(now_ms + 3_600_000)
    region.put("k", value)
    clock.set_time(0)


def test_what_a_resolver_decided_is_in_the_log_as_described_whenever_a_crash_comes(tmp_path):
    """Each change here is earlier than the one that it takes the place of; the last one is a destroy."""
    region = opened(tmp_path / "log")
    region.put("k", b"first")
    assert region.commit_once()
    stamp, states = region.lookup("k")[1], [b"first"]
    for n, (operation, value) in enumerate([(UPDATE, b"second"), (UPDATE, b"third"), (DESTROY, None)], 1):
        assert region.change(
            operation, "k", value, version=(stamp - n, 2 + n), origin_=(2 + n, b"", (9, 1, n)), ask=DECIDED
        ) in ("updated", "destroyed")
        assert region.commit_once()
        states.append(value)
        assert after_a_crash(tmp_path / "log").get("k") == value
    written = [
        change for block in read_blocks(tmp_path / "log") for _, _, part in block.parts for change in changes(part)
    ]
    assert [(c.kinds, c.other_stamp, c.stamp) for c in written] == [
        (0, 0, stamp),
        *((RESTAMPED, stamp - n + 1, stamp - n) for n in (1, 2, 3)),
    ]
    again = opened(tmp_path / "log")
    assert "k" not in again and again.lookup("k")[1:3] == (stamp - 3, 5)


def test_a_resolvers_choice_of_two_of_one_stamp_stays(tmp_path):
    region = opened(tmp_path / "log")
    region.change(UPDATE, "k", b"of the higher site", version=(1 << 40, 3), origin_=(3, b"", (9, 1, 1)))
    region.change(UPDATE, "k", b"of the lower site", version=(1 << 40, 2), origin_=(2, b"", (9, 1, 2)), ask=DECIDED)
    assert region.commit_once()
    assert after_a_crash(tmp_path / "log") == {"k": b"of the lower site"}


@REPLACE_A_LATER_VERSION
@pytest.mark.parametrize("is_looked_through", [True, False], ids=["after-the-look", "before-the-look"])
def test_near_the_limit_a_later_version_is_not_put_behind_what_took_its_place(tmp_path, replace, is_looked_through):
    """The log keeps old versions of keys whose newest change is not written yet. The process is killed whenever a file
    is opened.
    """
    watched, clock, numbers = WatchedDisk(), _core.Clock(), itertools.count()
    folder = tmp_path / "log"
    folder.mkdir()
    region = _core.RegionCore("data", clock, site=1, member=7)
    region.open_log(
        str(folder), log_id=5, log_budget=_core.LogBudget(4 * LIMIT), synchronous=False, environment=watched.capsule
    )

    def fill(count):
        for _ in range(count):
            region.put(f"filler {next(numbers)}", b"f" * 30_000)
            assert region.commit_once(), region.log_state()

    fill(10)
    put_ahead(region, clock, b"later")
    assert region.commit_once()
    later = region.lookup("k")[:2]
    (place,) = (path for path in folder.glob("*.seg") if b"later" in path.read_bytes())
    fill(10)
    replace(region, clock)
    assert region.commit_once()
    earlier = region.lookup("k")[:2]
    assert earlier[1] < later[1]
    while region.log_state()["bytes"] < 3 * LIMIT:
        fill(1)
    opened_places, found = [], []

    def look(path):
        opened_places.append(path)
        if opened_places.count(str(place)) == 2 and is_looked_through:
            region.put("k", b"new")  # All of the log has been looked through, and this segment is to be given up now.
        if not place.exists() and len(found) < 20:
            found.append(recovered(folder).lookup("k")[:2])

    for n in range(30):
        region.put(f"filler {n}", b"F" * 30_000)
    if not is_looked_through:
        region.put("k", b"new")
    watched.before_open = look
    for _ in range(5):
        region.commit_once()
    found.append(recovered(folder).lookup("k")[:2])
    assert set(found) <= {earlier, region.lookup("k")[:2]} and len(found) == 21 and region.get("k") == b"new"
