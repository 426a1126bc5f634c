"""Waiting for the disk: a bulk call waits once, whatever it holds, and Ctrl-C ends a wait."""

from __future__ import annotations

import signal

import pytest

from faulty_disk import FaultyDisk
from pywan.callbacks import CacheListener
from pywan.errors import BatchError
from pywan.region.region import core_of

COUNT = 500
KEYS = [f"key {n}" for n in range(COUNT)]


class Member:
    """A member of ny whose region `data` and queue to ln are on a synchronous disk."""

    def __init__(self, site, folder, **region):
        site.cache.close()
        site.new_cache(dir=folder)
        self.sender = site.send_to("ln", enable_persistence=True)
        self.data = site.region(type="REPLICATE_PERSISTENT", **region)

    def syncs(self):
        """Blocks that were written, one sync each, of both logs."""
        return self.sender._core.queue.log_state()["commits"] + core_of(self.data).log_state()["commits"]

    def is_on_the_disk(self):
        return self.sender._core.queue.log_state()["pending"] == core_of(self.data).log_state()["pending"] == 0


@pytest.fixture
def ny(network):
    return network.add("ny")[0]


CALLS = {
    "put_all": lambda data: data.put_all(dict.fromkeys(KEYS, "new")),
    "update": lambda data: data.update(dict.fromkeys(KEYS, "new")),
    "remove_all": lambda data: data.remove_all(KEYS),
    "put_columns": lambda data: data.put_columns(KEYS, ["new"] * COUNT),
}


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_bulk_call_waits_for_the_disk_once(ny, tmp_path, name, listens):
    member = Member(ny, tmp_path)
    member.data.put_columns(KEYS, ["old"] * COUNT)
    if listens:
        member.data.add_listener(CacheListener())
    before = member.syncs()
    CALLS[name](member.data)
    assert member.is_on_the_disk()
    assert member.syncs() - before < COUNT // 5
    assert len(member.sender._core.queue) == 2 * COUNT


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
        assert process.wait(20) == 0
    finally:
        disk.let_go()
        process.kill()
        process.wait()
