"""Queues beyond their memory: overflow files, full disks, and that everything goes on when there is room again."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from pywan import _core
from pywan.errors import DiskError, QueueFullError
from pywan.testing.waiting import eventually
from support.sites import at_once
from support.tasks import send

both = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
VALUE = os.urandom(10_000)
MB = 1 << 20


def waiting_for(network, parallel, region="data", **sender):
    """NY with a sender to a site that is not there, and a megabyte of memory for its queue."""
    ny, ln = network.add("ny ln")
    made = ny.send_to(ln, parallel=parallel, maximum_queue_memory=1, **sender)
    ny.region(), ln.region()
    return ny, ln, made


@both
def test_a_queue_beyond_its_memory_overflows_and_loses_nothing(network, parallel):
    """C-023: with events of some size, in the order of their keys' writes."""
    ny, ln, sender = waiting_for(network, parallel)
    for n in range(2000):
        ny.data[n % 1500] = VALUE + b"%d" % n
    stats = sender.stats
    assert (
        stats["overflow_files_made"] > 0
        and stats["entries_overflowed_bytes"] > 10 * MB
        and stats["queue_memory_bytes"] < 6 * MB
    )
    assert sender.queue_size == 2000
    ln.receive()
    network.settle()
    assert len(ln.data) == 1500
    network.assert_equal()
    assert sender.stats["entries_overflowed_bytes"] == 0
    assert ln.receiver.stats["events_received"] == 2000


@both
def test_overflow_files_are_the_owners_and_leave_nothing_behind(network, parallel, tmp_path):
    ny, _ln, sender = waiting_for(network, parallel, overflow_directory=str(tmp_path))
    for n in range(1000):
        ny.data[n] = VALUE
    assert sender.stats["entries_overflowed_bytes"] > 0
    assert all(file.stat().st_mode & 0o77 == 0 for file in tmp_path.iterdir())
    ny.cache.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 12 MB; where none can be mounted, one that refuses larger files."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True).returncode
        == 0
    )
    if mounted:
        yield place, lambda: None
        subprocess.run(["umount", "-l", str(place)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MB, before[1]))
    import signal

    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def fill_up(region):
    """Puts until the queue refuses. How many were taken."""
    for n in range(100_000):
        try:
            region[n] = VALUE
        except QueueFullError as error:
            assert "nothing was stored" in str(error) and "disk space" in str(error)
            return n
    raise AssertionError("the disk was never full")


@both
def test_a_full_disk_refuses_a_put_and_keeps_everything_else(network, parallel, small_disk):
    ny, ln, sender = waiting_for(network, parallel, overflow_directory=str(small_disk[0]))
    taken = fill_up(ny.data)
    assert len(ny.data) == sender.queue_size == taken and taken not in ny.data
    with pytest.raises(QueueFullError):
        ny.data[0] = VALUE * 2
    assert ny.data[0] == VALUE
    with pytest.raises(QueueFullError):
        ny.data.put_all({"x": VALUE * 400})
    with pytest.raises(QueueFullError, match="row"):
        ny.data.put_columns([b"c%d" % n for n in range(2000)], [VALUE] * 2000)
    network.check_ledgers()
    ln.receive()
    network.settle()
    assert ny.data.put("after", VALUE) is None
    network.settle()
    network.assert_equal()
    assert sender.stats["entries_overflowed_bytes"] == 0


def test_a_full_queue_of_one_sender_stores_nothing_in_the_others(network, small_disk):
    """One step for all: what one queue cannot take, no queue and not the region has."""
    ny, ln, tk = network.add("ny ln tk")
    tk.receive()
    full = ny.send_to(ln, maximum_queue_memory=1, overflow_directory=str(small_disk[0]))
    works = ny.send_to(tk)
    for site in (ny, tk):
        site.region(type="REPLICATE")
    other = ny.region("other", "REPLICATE", senders="tk")
    tk.region("other", "REPLICATE")
    taken = fill_up(ny.data)
    network_size = works.stats["events_queued"]
    assert network_size == full.stats["events_queued"] == taken == len(ny.data)
    other["k"] = 1  # The rest of the member works on.
    eventually(lambda: len(tk.data) == taken and works.queue_size == 0)
    assert tk.cache.region("other")["k"] == 1
    network.check_ledgers()
    ln.region(type="REPLICATE")
    ln.receive()
    eventually(lambda: full.queue_size == 0)
    ny.data["after"] = 1
    network.settle()
    assert len(ln.data) == len(tk.data) == taken + 1


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "with-a-listener"])
def test_a_site_whose_own_queue_is_full_takes_no_more_and_the_sender_waits(network, small_disk, slow):
    """LN passes events on to TK, which is away; its disk is full: NY keeps what LN could not take, and nothing is
    parked.
    """
    ny, ln, tk = network.add("ny ln tk")
    first = ny.send_to(ln, parallel=True, maximum_queue_memory=100)
    ln.receive()
    second = ln.send_to(tk, parallel=True, maximum_queue_memory=1, overflow_directory=str(small_disk[0]))
    for site in (ny, ln, tk):
        site.region()
    if slow:
        ln.keep_history()
    for n in range(2500):
        ny.data[n] = VALUE
    eventually(lambda: first.stats["batches_redistributed"] > 0)
    assert first.queue_size > 0 and first.parked_count == 0 and len(ln.data) < 2500
    assert second.queue_size == len(ln.data) == second.stats["events_queued"]
    tk.receive()
    network.settle()
    network.assert_equal()
    assert (
        first.parked_count == 0 and ln.receiver.stats["events_received"] == tk.receiver.stats["events_received"] == 2500
    )


def test_rows_of_a_client_wait_for_room(network, small_disk):
    ny, ln, sender = waiting_for(network, True, overflow_directory=str(small_disk[0]))

    def make_room():
        eventually(lambda: sender.queue_size > 500)
        ln.receive()

    done = []
    at_once(lambda: done.append(send(ny, 1, [(n, VALUE) for n in range(2500)], timeout=60)), make_room)
    assert done[0]["rows"] == 2500
    network.settle()
    assert len(ln.data) == 2500 and sender.ledger()["queued"] == 2500


def test_an_overflow_folder_that_vanished(network, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    ny, ln, sender = waiting_for(network, True, overflow_directory=str(folder))
    folder.rmdir()
    stored = 0
    with pytest.raises((DiskError, QueueFullError), match="gone"):
        for n in range(2000):
            ny.data[n] = VALUE
            stored += 1
    assert len(ny.data) == sender.queue_size == stored
    folder.mkdir()
    ny.data["after"] = VALUE
    ln.receive()
    network.settle()
    assert len(ln.data) == stored + 1
    network.assert_equal()


def test_a_long_backlog_holds_little_memory(network):
    """A hundred megabytes wait in a queue with one megabyte of memory."""
    ny, ln = network.add("ny ln")
    sender = ny.send_to(ln, parallel=True, maximum_queue_memory=1)
    proxy = ny.region("proxy", "PARTITION_PROXY")
    status = Path("/proc/self/status")

    def anonymous():
        _core.trim_memory()  # The C library may keep what other tests of this process have given back.
        return (
            int(next(line for line in status.read_text().splitlines() if line.startswith("RssAnon")).split()[1]) << 10
        )

    keys, values = [b"k%05d" % n for n in range(2000)], [VALUE] * 2000
    before = anonymous()
    for _ in range(5):
        proxy.put_columns(keys, values)
    assert sender.lag()["bytes"] > 100 * 10**6 - MB and sender.queue_size == 10_000
    assert anonymous() - before < 30 * MB
    assert sender.stats["queue_memory_bytes"] <= 4 * MB


FULL = {"maximum_queue_memory": 1, "batch_time_interval": 10}


@pytest.mark.parametrize("policy", ["block", "refuse"])
def test_a_full_queue_refuses_and_says_what_became_of_the_data(network, small_disk, policy):
    ny, _ln, sender = waiting_for(
        network, True, overflow_directory=str(small_disk[0]), full_policy=policy, full_timeout_ms=50
    )
    stored = 0
    with pytest.raises(QueueFullError, match="nothing was stored or sent"):
        for n in range(100_000):
            ny.data[n] = VALUE
            stored += 1
    assert len(ny.data) == sender.queue_size == stored
    assert sender.ledger()["balanced"]


def test_a_blocked_enqueue_goes_on_when_room_returns(network, small_disk):
    ny, ln, sender = waiting_for(
        network, True, overflow_directory=str(small_disk[0]), full_policy="block", full_timeout_ms=60_000
    )

    def make_room():
        eventually(lambda: sender.queue_size > 500)
        ln.receive()

    at_once(lambda: [ny.data.put(n, VALUE) for n in range(2500)], make_room)
    network.settle()
    assert len(ln.data) == 2500
    assert sum(sender.ledger()["dropped"].values()) == 0


def drop_some(network, small_disk, policy, *counted_as):
    """2500 events for a queue that has no room for all: how many were dropped, and what arrived."""
    ny, ln, sender = waiting_for(network, True, overflow_directory=str(small_disk[0]), full_policy=policy)
    for n in range(2500):
        ny.data[n] = VALUE
    ledger = sender.ledger()
    dropped = ledger[counted_as[0]][counted_as[1]]
    assert ledger["balanced"] and 0 < dropped == 2500 - sender.queue_size
    ln.receive()
    network.settle()
    return dropped, sorted(ln.data)


def test_the_newest_are_dropped_and_counted(network, small_disk):
    dropped, arrived = drop_some(network, small_disk, "drop-newest", "dropped", "queue full, newest")
    assert arrived == list(range(2500 - dropped))


def test_the_oldest_are_dropped_and_counted(network, small_disk):
    dropped, arrived = drop_some(network, small_disk, "drop-oldest", "dropped_from_queue", "queue full, oldest")
    assert len(arrived) == 2500 - dropped and 2499 in arrived
