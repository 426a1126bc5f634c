"""Persistent regions: what is put is there after a restart, with its version; kill -9 of a receiver loses nothing that
it acknowledged.
"""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

import pywan
from pywan.errors import ConfigurationError, DiskError, IllegalStateError
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually

persistent = pytest.mark.parametrize("type", ["REPLICATE_PERSISTENT", "PARTITION_PERSISTENT"])
ROUNDS = int(os.environ.get("ROUNDS", "4"))


def reopened(site, directory, type, **attributes):
    site.cache.close()
    site.start_member(dir=directory)
    return site.region(type=type, **attributes)


@persistent
def test_entries_versions_and_tombstones_are_recovered(network, tmp_path, type):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type=type)
    for n in range(500):
        data[n % 100] = {"n": n}
    data[b"bytes"], data["text"], data[None.__class__.__name__] = b"v", "v", None
    del data[7]
    data.local_destroy(8)
    before = {key: core_of(data).lookup(key) for key in [*data, 7]}
    data = reopened(ny, tmp_path, type)
    assert {key: core_of(data).lookup(key) for key in [*data, 7]} == before
    assert 7 not in data and 8 not in data and core_of(data).lookup(7)[3] is False
    stamp = core_of(data).lookup(1)[1]
    data[1] = "again"
    assert core_of(data).lookup(1)[1] > stamp


def test_what_was_cleared_stays_away(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="REPLICATE_PERSISTENT")
    data.put_all({n: n for n in range(300)})
    assert data.clear() == 300
    data["after"] = 1
    assert dict(reopened(ny, tmp_path, "REPLICATE_PERSISTENT")) == {"after": 1}


def test_the_log_of_keys_updated_for_long_stays_within_a_few_times_what_lives(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="REPLICATE_PERSISTENT", disk_synchronous=False)
    keys, value = [b"%08d" % n for n in range(10_000)], b"v" * 1000
    for _ in range(30):  # 300 MB written, 10 MB live.
        data.put_columns(keys, [value] * len(keys))
    data.put_columns(keys, [b"last"] * len(keys))
    # Live, three times over, and the segments made ahead.
    eventually(lambda: core_of(data).log_state()["pending"] == 0 and core_of(data).log_state()["bytes"] < 100 << 20)
    data = reopened(ny, tmp_path, "REPLICATE_PERSISTENT")
    assert len(data) == 10_000 and set(data.values()) == {b"last"}


def test_a_destroyed_region_leaves_no_file(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    ny.region(type="REPLICATE_PERSISTENT")["k"] = 1
    ny.cache.destroy_region("data")
    assert not list(tmp_path.glob("disk-store-*/region-data*"))
    assert len(ny.region(type="REPLICATE_PERSISTENT")) == 0


def test_a_persistent_region_needs_a_folder_that_stays(network):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match="dir"):
        ny.region(type="REPLICATE_PERSISTENT")


def test_two_members_do_not_open_one_store(network, tmp_path):
    ny = network.site("ny")
    with pywan.Cache("one", locators=str(ny.locator.address), dir=tmp_path) as one:
        one.create_region("data", type="REPLICATE_PERSISTENT")
        with (
            pywan.Cache("two", locators=str(ny.locator.address), dir=tmp_path) as two,
            pytest.raises(IllegalStateError, match=str(os.getpid())),
        ):
            two.create_region("other", type="REPLICATE_PERSISTENT")


def test_a_damaged_log_is_named_and_not_touched(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="REPLICATE_PERSISTENT")
    for n in range(50):
        data[n] = n
    ny.cache.close()
    segment = min(tmp_path.glob("disk-store-*/region-data/*.seg"))
    image = bytearray(segment.read_bytes())
    image[4096 + 700] ^= 1
    segment.write_bytes(image)
    ny.start_member(dir=tmp_path)
    with pytest.raises(DiskError, match=str(segment)):
        ny.region(type="REPLICATE_PERSISTENT")
    assert segment.read_bytes() == image


RECEIVER = """
import json, sys, threading
import pywan
from pywan.region.region import core_of
remote, directory, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
with pywan.Locator("locator_ln", distributed_system_id=2, port=port, remote_locators=remote) as locator:
    with pywan.Cache("server_ln", locators=str(locator.address), dir=directory) as cache:
        data = cache.create_region("data", type="REPLICATE_PERSISTENT")
        recovered = len(data)
        cache.create_gateway_receiver(start_port=0, end_port=0)
        print(json.dumps({"recovered": recovered, "port": locator.port}), flush=True)
        for line in sys.stdin:
            records = core_of(data).log_state()["commits"]
            told = {"entries": [[k, data[k]] for k in data], "applied": data.applied, "records": records}
            print(json.dumps(told), flush=True)
"""


class Receiver:
    """LN as a process of its own, with a persistent region."""

    def __init__(self, remote, directory):
        self.remote, self.directory, self.port = remote, directory, 0
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, self.remote, str(self.directory), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = json.loads(self.process.stdout.readline())
        self.port = told["port"]
        return told["recovered"]

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(LIMIT_S)
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


def test_a_receiver_killed_under_load_loses_nothing_that_it_acknowledged(network, tmp_path):
    """All that the sender has counted as distributed is in the region after each kill -9. In the end everything is
    there, and was applied once.
    """
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    ny = network.site("ny")
    receiver = Receiver(str(ny.locator.address), tmp_path)
    receiver.start()
    try:
        sender = ny.send_to("ln", parallel=False, dispatcher_threads=1, batch_size=50, order_policy=None)
        data = ny.region(type="REPLICATE")
        written = 0
        for _ in range(ROUNDS):
            until = sender.stats["events_distributed"] + chance.randrange(1, 1500)

            def write_on(until=until):
                nonlocal written
                for _ in range(100):
                    data[written] = written
                    written += 1
                return sender.stats["events_distributed"] >= until

            eventually(write_on)
            receiver.end(signal.SIGKILL)
            acknowledged = sender.stats["events_distributed"]
            assert receiver.start() >= acknowledged  # Keys are new and sent in order: so many are the first ones.
        assert sender.wait_until_flushed(30)
        entries = dict(map(tuple, receiver.ask()["entries"]))
        assert entries == {n: n for n in range(written)}
        assert sender.ledger()["balanced"] and sender.ledger()["distributed"] == written
    finally:
        receiver.end()


def test_events_applied_before_a_restart_are_not_applied_again(network, tmp_path):
    """Their acknowledgement was lost with the process: they come again, and are recognised by their version."""
    ny, ln = network.add("ny ln")
    ln.cache.close()
    ln.start_member(dir=tmp_path)
    sender = ny.send_to(ln, parallel=False, dispatcher_threads=1, batch_size=10)
    ny.region(type="REPLICATE"), ln.region(type="REPLICATE_PERSISTENT")
    ln.receive(through_proxy=True)
    eventually(lambda: sender.is_connected)
    ny.data["warm"] = 0
    network.settle()
    ln.proxy.cut_after_bytes("to_client", 0)
    for n in range(10):
        ny.data[n] = n
    eventually(lambda: len(ln.data) == 11)
    ln.proxy.stop()
    ln.proxy = None
    ln.cache.close()
    ln.start_member(dir=tmp_path)
    data = ln.region(type="REPLICATE_PERSISTENT")
    history = ln.keep_history()
    ln.receive()
    network.settle()
    assert dict(data) == dict(ny.data) and data.applied == 0 and history.events == []
