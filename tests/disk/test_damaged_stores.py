"""Disk stores that something happened to: each opens with all that was acknowledged, or says which file is wrong and
what to do, changing nothing; and what is whole of it can be saved."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
from pathlib import Path

import pytest

import pywan
from crash.region_log import PAGE, applications, block_end, live_segments
from pywan import _core
from pywan.disk.salvage import salvage_store
from pywan.errors import ConfigurationError, DiskError, EventTooLargeError, IllegalStateError, PywanError
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.records import read_record

STORE = "disk-store-small"
LOGS = "queue-ln", "region-data"
SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 80))]


def opened(site, home, *, store_mb=4, **sender):
    """The member's persistent queue (its sender does not run yet) and region, recovered from below `home`."""
    site.cache.close()
    site.start_member(dir=home)
    site.cache.create_disk_store("small", directories=((str(home), store_mb),))
    made = site.send_to(
        "ln",
        **{
            "parallel": False,
            "dispatcher_threads": 2,
            "enable_persistence": True,
            "disk_store_name": "small",
            "manual_start": True,
            **sender,
        },
    )
    return made, site.region(type="REPLICATE_PERSISTENT", disk_store_name="small")


def queued(sender):
    events = [read_record(record) for _, _, record in sender._core.queue.records(1 << 20)]
    return {event.key.decode(): event.value for event in events}


def image(store):
    """Every file but the lock."""
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in store.rglob("*")
        if file.is_file() and file.name != "LOCK"
    }


class Kept:
    """A store with some 300 events in its queue and as many entries in its region, each key once, in several segments;
    `entries` in the order in which they were acknowledged. `stopped`: as a regular end leaves it; `killed`: as kill -9
    does."""

    def __init__(self, site, directory):
        source = random.Random(1)
        sender, data = opened(site, directory / "written")
        sender.start()
        self.entries = {
            f"key {n}": f"{n}:".encode() + source.randbytes(source.randrange(100, 3000)) for n in range(300)
        }
        keys = list(self.entries)
        for n in range(120):
            data[keys[n]] = self.entries[keys[n]]
        for n in range(120, 300, 20):
            data.put_columns(keys[n : n + 20], [self.entries[key] for key in keys[n : n + 20]])
        assert queued(sender) == self.entries == dict(data)
        self.killed = directory / "killed" / STORE
        shutil.copytree(directory / "written" / STORE, self.killed)
        site.cache.close()
        self.stopped = directory / "written" / STORE
        assert all(len(live_segments(self.stopped / log)) > 2 for log in LOGS)


@pytest.fixture(scope="module")
def kept_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def ny(network):
    return network.site("ny")


_kept: list[Kept] = []


@pytest.fixture
def kept(ny, kept_directory):
    if not _kept:
        _kept.append(Kept(ny, kept_directory))
    return _kept[0]


def copied(store, home):
    shutil.copytree(store, home / STORE)
    return home / STORE


def whole_entries(folder):
    """The entries in whole blocks of the segments that are there, as docs/segment_format.md describes them."""
    found = {}
    for file in folder.glob("*.seg"):
        data, at = file.read_bytes(), PAGE
        while at < len(data):
            end = block_end(data, at, int(file.stem))
            if end is not None:
                found.update(
                    (applied.key, applied.value)
                    for applied in applications(data, at, in_queue=folder.name.startswith("queue"))
                )
            at = end if end is not None else at + 8
    return found


# Damage anywhere


def damage(source, store):
    """One thing goes wrong in one file. Says what."""
    file = source.choice(
        sorted(
            path for path in store.rglob("*") if path.is_file() and path.name != "LOCK" and "parked" not in str(path)
        )
    )
    data = bytearray(file.read_bytes())
    at = source.randrange(len(data))
    # Half of it where it matters most: headers, and the first blocks.
    at = at if source.random() < 0.5 else source.randrange(min(len(data), PAGE + 4000))
    length = source.choice((1, 8, 100, 5000))
    what = source.choice(("flipped", "flipped", "zeroed", "overwritten", "truncated", "removed"))
    if what == "flipped":
        data[at] ^= 1 << source.randrange(8)
    elif what == "zeroed":
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif what == "overwritten":
        data[at : at + length] = source.randbytes(len(data[at : at + length]))
    elif what == "truncated":
        del data[at:]
    if what == "removed":
        file.unlink()
    else:
        file.write_bytes(data)
    return f"{file.relative_to(store)} {what} at {at} for {length}"


def check_damaged(ny, kept, store, what, caplog, *, may_cut):
    log, file = what.split(" ")[0].split("/")
    before = image(store / log)
    try:
        sender, data = opened(ny, store.parent)
    except PywanError as error:
        ny.cache.close()
        assert isinstance(error, (DiskError, ConfigurationError)), what
        assert str(store / log) in str(error), what
        assert image(store / log) == before or (file == "owner.json" and not (store / log / "MANIFEST").exists()), what
        if file == "owner.json":
            assert "write that into it" in str(error) or "configure it as it was" in str(error), what
            shutil.copy(kept.stopped / log / file, store / log / file)
            sender, data = opened(ny, store.parent)
            assert queued(sender) == dict(data) == kept.entries, what
            return
        assert "salvage disk-store" in str(error) or "upgrade before" in str(error), what
        check_salvage(ny, kept, store, what)
        return
    keys = list(kept.entries)
    for found in (queued(sender), dict(data)):
        if found == kept.entries:
            continue
        # Only what cannot be told from a write that a crash cut off, which then was not acknowledged: the newest, and
        # the log says so.
        assert may_cut and found == {key: kept.entries[key] for key in keys[: len(found)]}, what
        assert "is not whole" in caplog.text, what
    assert sender.ledger()["balanced"], what


def check_salvage(ny, kept, store, what):
    before = image(store)
    saved = store.parent / "saved" / STORE
    told = {each["log"]: each for each in salvage_store(store, saved)}
    assert image(store) == before, what
    assert told[what.split("/")[0]]["damage"], what
    expected = {log: whole_entries(store / log) for log in LOGS}
    sender, data = opened(ny, saved.parent)
    for log, found in zip(LOGS, (queued(sender), dict(data)), strict=True):
        assert found.items() >= expected[log].items(), (
            f"{what}: {log} lacks {[*(expected[log].keys() - found.keys())][:5]}"
        )
        assert found.items() <= kept.entries.items(), what
        assert len(found) == told[log]["saved"], what
    assert sender.ledger()["balanced"], what


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stopped_store_that_is_damaged_anywhere_opens_whole_or_says_so(ny, kept, tmp_path, caplog, seed):
    store = copied(kept.stopped, tmp_path)
    check_damaged(ny, kept, store, damage(random.Random(seed), store), caplog, may_cut=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_store_of_a_killed_member_that_is_damaged_anywhere_opens_whole_or_says_so(ny, kept, tmp_path, caplog, seed):
    store = copied(kept.killed, tmp_path)
    check_damaged(ny, kept, store, damage(random.Random(f"killed {seed}"), store), caplog, may_cut=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '{"kind": "queue"}', "\xff\xfe\0"])
def test_a_damaged_owner_file_says_what_it_should_say(ny, kept, tmp_path, text):
    store = copied(kept.stopped, tmp_path)
    owner = store / "queue-ln" / "owner.json"
    right = owner.read_text()
    owner.write_bytes(text.encode("latin-1"))
    with pytest.raises((DiskError, ConfigurationError), match=r"owner.json|configure it as it was") as raised:
        opened(ny, tmp_path)
    if right in str(raised.value):  # A person who does what the error says has the store again.
        owner.write_text(right)
        assert queued(opened(ny, tmp_path)[0]) == kept.entries
    else:
        assert str(owner.parent) in str(raised.value)


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("is_gone", [False, True])
def test_salvage_saves_the_logs_beside_one_whose_owner_is_not_known(ny, kept, tmp_path, log, is_gone):
    store = copied(kept.stopped, tmp_path)
    if is_gone:
        (store / log / "owner.json").unlink()
    else:
        (store / log / "owner.json").write_text("{")
    told = {each["log"]: each for each in salvage_store(store, tmp_path / "saved")}
    assert told[log]["saved"] == 0 and f"{store / log / 'owner.json'} is gone or damaged" in told[log]["damage"]
    assert not (tmp_path / "saved" / log).exists()
    (other,) = {*LOGS} - {log}
    assert told[other] == {"log": other, "kind": other.partition("-")[0], "saved": 300, "damage": ""}


# Other damage


def rewrite(file, **fields):
    """Gives a manifest or a segment's header other fields, with a checksum that holds."""
    data = bytearray(file.read_bytes())
    places = {"version": ("<I", 8), "kind": ("<I", 12), "log_id": ("<Q", 16)}
    for name, value in fields.items():
        struct.pack_into(places[name][0], data, places[name][1], value)
    if file.name == "MANIFEST":
        length = (
            72
            + 16 * struct.unpack_from("<I", data, 48)[0]
            + struct.unpack_from("<I", data, 64)[0]
            + struct.unpack_from("<Q", data, 56)[0]
        )
        struct.pack_into("<I", data, 68, _core.crc32c(bytes(data[72:length]), _core.crc32c(bytes(data[:68]))))
    else:
        struct.pack_into("<I", data, 52, _core.crc32c(bytes(data[:52])))
    file.write_bytes(data)


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("file", ["MANIFEST", "000000000001.seg", "000000000002.seg"])
def test_a_newer_format_is_refused_by_name_and_not_touched(ny, kept, tmp_path, log, file):
    store = copied(kept.stopped, tmp_path)
    rewrite(store / log / file, version=_core.RECORD_FORMAT + 1)
    before = image(store / log)
    with pytest.raises(
        (ConfigurationError, DiskError),
        match=f"{store / log / file} was written by a newer version.*format {_core.RECORD_FORMAT + 1}.*upgrade",
    ):
        opened(ny, tmp_path)
    assert image(store / log) == before


@pytest.mark.parametrize("log", LOGS)
def test_an_older_format_is_refused_by_name_and_not_touched(ny, kept, tmp_path, log):
    store = copied(kept.stopped, tmp_path)
    rewrite(store / log / "MANIFEST", version=1)
    before = image(store / log)
    with pytest.raises(
        (ConfigurationError, DiskError),
        match=r"MANIFEST is in record format 1.*drain it with the version that wrote it",
    ):
        opened(ny, tmp_path)
    assert image(store / log) == before


@pytest.mark.parametrize(
    "changed", [{"dispatcher_threads": 3}, {"parallel": True}, {"remote_distributed_system_id": 3}]
)
def test_a_queue_that_is_configured_otherwise_than_its_log_is_refused_and_opens_again_as_it_was(
    ny, kept, tmp_path, changed
):
    store = copied(kept.stopped, tmp_path)
    before = image(store)
    with pytest.raises(
        ConfigurationError,
        match=f"{store / 'queue-ln'} was written with .* and is opened with .*configure it as it was",
    ):
        opened(ny, tmp_path, **changed)
    assert image(store) == before
    assert queued(opened(ny, tmp_path)[0]) == kept.entries


def test_the_log_of_another_queue_or_region_is_refused(ny, kept, tmp_path):
    store = copied(kept.stopped, tmp_path)
    for log, other, word in (("queue-ln", "queue-tk", "sender 'ln'"), ("region-data", "region-other", "region 'data'")):
        shutil.copytree(store / log, store / other)
        with pytest.raises(ConfigurationError, match=f"{store / other} was written with {word}"):
            ny.cache.close()
            ny.start_member(dir=tmp_path)
            ny.cache.create_disk_store("small", directories=((str(tmp_path), 4),))
            if other == "queue-tk":
                ny.send_to("tk", parallel=False, dispatcher_threads=2, enable_persistence=True, disk_store_name="small")
            else:
                ny.region("other", type="REPLICATE_PERSISTENT", disk_store_name="small")


@pytest.mark.parametrize("file", ["MANIFEST", "000000000002.seg"])
def test_a_file_of_another_log_is_named(ny, kept, tmp_path, file):
    store = copied(kept.stopped, tmp_path)
    shutil.copy(store / "queue-ln" / file, store / "region-data" / file)
    with pytest.raises((DiskError, ConfigurationError), match=str(store / "region-data" / file)):
        opened(ny, tmp_path)


def test_a_segment_of_an_older_life_of_the_queue_is_named(ny, kept, tmp_path):
    store = copied(kept.stopped, tmp_path)
    rewrite(store / "queue-ln" / "000000000002.seg", log_id=99)
    with pytest.raises(DiskError, match=r"000000000002.seg, offset 0: .*another log's.*salvage disk-store"):
        opened(ny, tmp_path)


def test_what_was_saved_is_a_new_queue_each_time(ny, kept, tmp_path):
    """A receiver that remembers the old one, or what was saved before, must not take its events for known."""
    numberings = set()
    for n in range(2):
        salvage_store(kept.stopped, tmp_path / str(n) / STORE)
        numberings.add(opened(ny, tmp_path / str(n))[0]._core.outgoing.numbering)
    numberings.add(opened(ny, copied(kept.stopped, tmp_path).parent)[0]._core.outgoing.numbering)
    assert len(numberings) == 3


# Directories


@pytest.fixture
def unprivileged():
    """A directory that anybody can enter, and a process without the right to write where it may not."""
    directory = Path(tempfile.mkdtemp(prefix="pywan-rights-"))
    directory.chmod(0o755)
    is_root = os.geteuid() == 0
    yield directory, lambda: os.seteuid(65534) if is_root else None
    if is_root:
        os.seteuid(0)
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(directory)


def test_a_read_only_directory_is_named_and_nothing_is_lost(ny, kept, unprivileged, tmp_path):
    directory, give_rights_up = unprivileged
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    directory.chmod(0o555)
    give_rights_up()
    with pytest.raises(
        DiskError, match=f"{directory}.*cannot be used: Permission denied; make it writable, or name another"
    ):
        ny.cache.create_disk_store("small", directories=((str(directory), 4),))


@pytest.mark.parametrize("log", LOGS)
def test_a_store_that_became_read_only_is_named_and_opens_when_it_is_writable_again(
    ny, kept, unprivileged, tmp_path, log
):
    directory, give_rights_up = unprivileged
    store = copied(kept.stopped, directory)
    for path in [store, *store.rglob("*")]:
        shutil.chown(path, 65534 if os.geteuid() == 0 else None, os.getegid())
    for file in (store / log).iterdir():
        file.chmod(0o400)
    (store / log).chmod(0o500)
    euid = os.geteuid()
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    give_rights_up()
    ny.cache.create_disk_store("small", directories=((str(directory), 4),))
    with pytest.raises(DiskError, match=f"{store / log}.*Permission denied"):
        ny.send_to(
            "ln",
            parallel=False,
            dispatcher_threads=2,
            enable_persistence=True,
            disk_store_name="small",
            manual_start=True,
        )
        ny.region(type="REPLICATE_PERSISTENT", disk_store_name="small")
    ny.cache.close()
    os.seteuid(euid)
    (store / log).chmod(0o700)
    for file in (store / log).iterdir():
        file.chmod(0o600)
    sender, data = opened(ny, directory)
    assert queued(sender) == dict(data) == kept.entries


def test_a_queue_whose_directory_vanishes_takes_no_more_and_says_which(ny, tmp_path):
    """Bytes that are written to a file which nobody can reach by name are gone with the process."""
    sender, _ = opened(ny, tmp_path, disk_synchronous=False)
    ny.cache.destroy_region("data")
    data = ny.region(type="REPLICATE")
    sender.start()
    data["before"] = b"v"
    sender._core.queue.wait_durable()
    shutil.rmtree(tmp_path / STORE)
    with pytest.raises(DiskError, match=f"{tmp_path / STORE}/queue-ln/.*removed while it was in use"):
        data["after"] = b"v"
        sender._core.queue.wait_durable(1.0)


def test_a_region_whose_directory_vanishes_says_which(ny, tmp_path):
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="REPLICATE_PERSISTENT", disk_synchronous=False)
    data["before"] = b"v"
    eventually(lambda: core_of(data).log_state()["pending"] == 0)
    shutil.rmtree(tmp_path / "disk-store-DEFAULT")
    data["after"] = b"v"
    eventually(lambda: core_of(data).log_state()["failing"])
    assert (
        "region-data" in core_of(data).log_state()["failing"]
        and "removed while it was in use" in core_of(data).log_state()["failing"]
    )


def test_a_directory_that_is_a_file_is_named(ny, tmp_path):
    ny.cache.close()
    ny.start_member(dir=tmp_path / "member")
    (tmp_path / "place").write_text("")
    with pytest.raises(DiskError, match=f"{tmp_path / 'place'}.*cannot be used.*name another"):
        ny.cache.create_disk_store("small", directories=((str(tmp_path / "place"), 4),))


# Two in one place


def test_two_stores_in_one_directory_keep_apart(ny, tmp_path):
    def both():
        ny.cache.close()
        ny.start_member(dir=tmp_path / "member")
        found = []
        for name in ("one", "two"):
            ny.cache.create_disk_store(name, directories=(str(tmp_path / "place"),))
            found.append(ny.region(f"of-{name}", type="REPLICATE_PERSISTENT", disk_store_name=name))
        return found

    for region in both():
        region["k"] = region.name
    assert [dict(region) for region in both()] == [{"k": "of-one"}, {"k": "of-two"}]


def test_one_store_twice_is_refused_whatever_the_directory_is_called(ny, tmp_path):
    ny.cache.close()
    ny.start_member(dir=tmp_path / "member")
    (tmp_path / "place").mkdir()
    (tmp_path / "other-name").symlink_to(tmp_path / "place")
    place, other = str(tmp_path / "place"), str(tmp_path / "other-name")
    with pytest.raises(ConfigurationError, match="named twice"):
        ny.cache.create_disk_store("small", directories=(place, place))
    with pytest.raises(IllegalStateError, match=f"other-name/disk-store-small is open in process {os.getpid()}"):
        ny.cache.create_disk_store("small", directories=(place, other))
    ny.cache.create_disk_store("small", directories=(place,))
    with pytest.raises(IllegalStateError, match="exists already"):
        ny.cache.create_disk_store("small", directories=(other,))
    with pywan.Cache("second", locators=str(ny.locator.address), dir=tmp_path / "second") as second:
        with pytest.raises(
            IllegalStateError,
            match=(
                f"other-name/disk-store-small is open in process {os.getpid()}; stop that one, or name another "
                "directory"
            ),
        ):
            second.create_disk_store("small", directories=(other,))
        second.create_disk_store("small")


# Sizes


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**62, "0", "x", 1.5])
def test_a_size_that_cannot_be_is_refused(ny, tmp_path, size):
    for directories in (((str(tmp_path), size),), f"{tmp_path}#{size}"):
        with pytest.raises(ConfigurationError, match=r"directories.*"):
            ny.cache.create_disk_store("small", directories=directories)
    assert not list(tmp_path.glob("disk-store-*"))


def test_a_size_beyond_the_disk_is_refused_with_the_disk_s(ny, tmp_path):
    disk = os.statvfs(tmp_path)
    mb = disk.f_blocks * disk.f_frsize >> 20
    with pytest.raises(
        ConfigurationError, match=f"{tmp_path}/disk-store-small may take {mb + 1} MB, and its disk has {mb} MB in all"
    ):
        ny.cache.create_disk_store("small", directories=((str(tmp_path), mb + 1),))
    ny.cache.create_disk_store("small", directories=((str(tmp_path), mb),))


def test_the_smallest_store_works_and_refuses_what_can_never_fit(ny, tmp_path):
    sender, data = opened(ny, tmp_path, store_mb=1)
    sender.start()
    with pytest.raises(EventTooLargeError, match=r"1 MB|give the disk store more room"):
        data["large"] = bytes(1 << 20)
    data["small"] = bytes(50_000)
    assert "large" not in data
    sender, data = opened(ny, tmp_path, store_mb=1)
    assert (
        {key: len(value) for key, value in queued(sender).items()}
        == {"small": 50_000}
        == {key: len(value) for key, value in data.items()}
    )


def test_an_event_that_no_log_of_the_remote_site_can_take_is_parked_and_the_rest_goes_on(network, tmp_path):
    ny, ln = network.add("ny ln")
    ln.cache.close()
    ln.start_member(dir=tmp_path)
    ln.cache.create_disk_store("small", directories=((str(tmp_path), 1),))
    ln.region(type="REPLICATE_PERSISTENT", disk_store_name="small")
    ln.receive()
    sender = ny.send_to(ln, parallel=False)
    data = ny.region(type="REPLICATE")
    data["large"] = bytes(500_000)
    data["small"] = b"v"
    eventually(lambda: sender.parked_count == 1 and dict(ln.data) == {"small": b"v"})
    network.settle()


# Keys and values

KEY_MAX, VALUE_MAX, CALLBACK_MAX = 65_535, 62_914_560, 65_535


def test_keys_and_values_at_their_limits_are_kept_and_those_over_them_change_nothing(ny, tmp_path):
    sender, data = opened(ny, tmp_path, store_mb=None)
    sender.start()
    data["k" * KEY_MAX] = b"v"
    data["large"] = b"v" * VALUE_MAX
    data.put("with-argument", b"v", callback_argument=b"c" * CALLBACK_MAX)
    data[""] = b""
    for key, value, more in (
        ("k" * (KEY_MAX + 1), b"v", {}),
        ("large", b"w" * (VALUE_MAX + 1), {}),
        ("with-argument", b"w", {"callback_argument": b"c" * (CALLBACK_MAX + 1)}),
    ):
        with pytest.raises(EventTooLargeError, match="limit"):
            data.put(key, value, **more)
    expected = {"k" * KEY_MAX: b"v", "large": b"v" * VALUE_MAX, "with-argument": b"v", "": b""}
    assert sender.ledger()["received"] == len(expected)
    sender, data = opened(ny, tmp_path, store_mb=None)
    assert dict(data) == queued(sender) == expected
    assert sender.ledger()["balanced"]


def test_columns_with_rows_over_a_limit_keep_the_others(ny, tmp_path):
    sender, data = opened(ny, tmp_path)
    sender.start()
    with pytest.raises(pywan.BatchError) as raised:
        data.put_columns(["a", "k" * (KEY_MAX + 1), "b"], [b"1", b"2", b"3"])
    assert [row for row, _ in raised.value.failures] == [1]
    sender, data = opened(ny, tmp_path)
    assert dict(data) == queued(sender) == {"a": b"1", "b": b"3"}
