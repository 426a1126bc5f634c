"""Waiting for the disk: a bulk call waits once, whatever it holds, and Ctrl-C ends a wait."""

from __future__ import annotations

import signal

import pytest

from pywan.errors import BatchError
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S
from support.faulty_disk import FaultyDisk


class Member:
    """A member of ny whose region `data` and queue to ln are on a synchronous disk."""

    def __init__(self, site, folder, **region):
        site.cache.close()
        site.start_member(dir=folder)
        self.sender = site.send_to("ln", enable_persistence=True)
        self.data = site.region(type="REPLICATE_PERSISTENT", **region)

    def is_on_the_disk(self):
        return self.sender._core.queue.log_state()["pending"] == core_of(self.data).log_state()["pending"] == 0


@pytest.fixture
def ny(network):
    return network.add("ny")[0]


BULK_CALLS = """
import sys, threading
import pywan
from pywan.callbacks import CacheListener
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
locators, folder, listens = sys.argv[1:]
COUNT = 500
KEYS = [f"key {n}" for n in range(COUNT)]
CALLS = {
    "put_all": lambda: data.put_all(dict.fromkeys(KEYS, "new")),
    "update": lambda: data.update(dict.fromkeys(KEYS, "new")),
    "put_columns": lambda: data.put_columns(KEYS, ["new"] * COUNT),
    "remove_all": lambda: data.remove_all(KEYS),
}

def say(word):
    print(word, flush=True)
    assert sys.stdin.readline()

cache = pywan.Cache("slow", locators=locators, dir=folder)
sender = cache.create_gateway_sender("ln", remote_distributed_system_id=2, enable_persistence=True)
data = cache.create_region("data", "REPLICATE_PERSISTENT", gateway_sender_ids=["ln"])
data.put_columns(KEYS, ["old"] * COUNT)
if listens == "True":
    data.add_listener(CacheListener())
queue, core = sender._core.queue, core_of(data)
for name, call in CALLS.items():
    say(f"{name} begins")
    before = len(queue)
    thread = threading.Thread(target=call)
    thread.start()
    eventually(lambda: len(queue) == before + COUNT)    # Every entry is in, though nothing gets to the disk.
    assert thread.is_alive() and queue.log_state()["pending"] and core.log_state()["pending"]
    say(f"{name} waits")
    thread.join()
    assert queue.log_state()["pending"] == core.log_state()["pending"] == 0
cache.close()
say("closed")
"""


@pytest.mark.parametrize("listens", [False, True])
def test_a_bulk_call_waits_for_the_disk_once(ny, tmp_path, listens):
    """While the disk hangs, a bulk call does all its entries. It returns when they are on the disk."""
    disk = FaultyDisk(tmp_path)
    process = disk.start(BULK_CALLS, ny.locator.address, tmp_path / "member", listens)
    try:
        for name in ("put_all", "update", "put_columns", "remove_all"):
            assert process.stdout.readline().strip() == f"{name} begins"
            disk.hold()
            process.stdin.write("go on\n")
            assert process.stdout.readline().strip() == f"{name} waits"
            disk.let_go()
            process.stdin.write("go on\n")
        assert process.stdout.readline().strip() == "closed"
        process.stdin.write("go on\n")
        assert process.wait(LIMIT_S) == 0
    finally:
        disk.let_go()
        process.kill()
        process.wait()


def test_entries_that_were_stored_before_a_refused_one_are_on_the_disk_and_those_refused_are_told(ny, tmp_path):
    member = Member(ny, tmp_path)
    with pytest.raises(BatchError, match=r"1 of 3 entries were refused.*entry 1") as refused:
        member.data.put_all([("a", 1), ("b", object()), ("c", 3)])
    assert member.is_on_the_disk() and dict(member.data) == {"a": 1, "c": 3}
    assert [row for row, _ in refused.value.failures] == [1]


def test_entries_that_were_stored_before_their_iterator_failed_are_on_the_disk(ny, tmp_path):
    member = Member(ny, tmp_path)

    def entries():
        yield "a", 1
        raise ArithmeticError("no more")

    with pytest.raises(ArithmeticError, match="no more"):
        member.data.put_all(entries())
    assert member.is_on_the_disk() and dict(member.data) == {"a": 1}


WAITING = """
import sys, threading
import pywan
from pywan.testing.waiting import eventually
locators, folder, call, kind = sys.argv[1:]

def say(word):
    print(word, flush=True)
    assert sys.stdin.readline()

cache = pywan.Cache("slow", locators=locators, dir=folder)
cache.create_gateway_sender("ln", remote_distributed_system_id=2, enable_persistence=kind == "queue")
type = "REPLICATE" if kind == "queue" else "REPLICATE_PERSISTENT"
data = cache.create_region("data", type, gateway_sender_ids=["ln"])
data["before"] = 1
say("ready")

def say_when_it_waits():
    eventually(lambda: "k" in data)     # Changed, and not on the disk.
    print("waits", flush=True)

threading.Thread(target=say_when_it_waits).start()
try:
    if call == "put":
        data["k"] = 2
    else:
        data.put_columns(["k"], ["2"])
    say("done")
except KeyboardInterrupt:
    say("interrupted")
assert data["k"] in (2, "2")
cache.close()
say("closed")
"""


@pytest.mark.parametrize("kind", ["queue", "region"])
@pytest.mark.parametrize("call", ["put", "put_columns"])
def test_ctrl_c_ends_a_wait_for_the_disk(ny, tmp_path, call, kind):
    disk = FaultyDisk(tmp_path)
    process = disk.start(WAITING, ny.locator.address, tmp_path / "member", call, kind)

    def word():
        return process.stdout.readline().strip()

    def tell():
        process.stdin.write("go on\n")

    try:
        assert word() == "ready"
        disk.hold()
        tell()
        assert word() == "waits"
        process.send_signal(signal.SIGINT)
        assert word() == "interrupted"
        disk.let_go()
        tell()
        assert word() == "closed"
        tell()
        assert process.wait(LIMIT_S) == 0
    finally:
        disk.let_go()
        process.kill()
        process.wait()


QUEUES = """
import sys, threading
import pywan
from pywan.testing.waiting import eventually
locators, folder, synchronous = sys.argv[1:]

def say(word):
    print(word, flush=True)
    assert sys.stdin.readline()

def region(name, **sender):
    cache.create_gateway_sender(name, remote_distributed_system_id=2, **sender)
    return cache.create_region(name, "REPLICATE", gateway_sender_ids=[name])

cache = pywan.Cache("slow", locators=locators, dir=folder)
first = region("first", enable_persistence=True, disk_synchronous=synchronous == "True")
later = region("later", enable_persistence=True, disk_synchronous=False)
overflowing = region("overflowing", maximum_queue_memory=1)
say("ready")
thread = threading.Thread(target=first.put, args=("k", 1))
thread.start()
eventually(lambda: cache.gateway_sender("first").queue_size == 1)
for n in range(1000):
    overflowing[n] = b"v" * 5000
    later[n] = n
assert cache.gateway_sender("overflowing").stats["overflow_files_made"] > 0
say("waits" if thread.is_alive() else "returned")
thread.join()
cache.close()
say("closed")
"""


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_put_waits_for_the_disk_of_a_synchronous_queue_and_of_no_other(ny, tmp_path, synchronous):
    """C-118: while no sync of the disk ends, puts into a queue that only overflows return, and so do those into a
    persistent queue with `disk-synchronous=false`."""
    disk = FaultyDisk(tmp_path)
    process = disk.start(QUEUES, ny.locator.address, tmp_path / "member", synchronous)
    try:
        assert process.stdout.readline().strip() == "ready"
        disk.hold()
        process.stdin.write("go on\n")
        assert process.stdout.readline().strip() == ("waits" if synchronous else "returned")
        disk.let_go()
        process.stdin.write("go on\n")
        assert process.stdout.readline().strip() == "closed"
        process.stdin.write("go on\n")
        assert process.wait(LIMIT_S) == 0
    finally:
        disk.let_go()
        process.kill()
        process.wait()
