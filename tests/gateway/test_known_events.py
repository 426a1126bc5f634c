"""A site whose member is killed with kill -9 while events of another site come: what the other site was told is applied
stays applied, and a persistent queue here takes each event once.
"""

import hashlib
import json
import subprocess
import sys
import threading

import pytest

import pywan
from pywan import _core
from pywan.testing.waiting import eventually
from support.log_format import PLACES, StreamPlace, read_blocks, stream_places

MEMBER = """
import json, os, sys, pywan
locators, folder, told, region_type, synchronous = sys.argv[1:6]
file = os.open(told, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
def listener(events):
    queue = str(events.numbering)
    lines = [json.dumps([e.key, e.possible_duplicate, [queue, e.partition, e.sequence]]) for e in events]
    os.write(file, ("\\n".join(lines) + "\\n").encode())
    return True
cache = pywan.Cache("there", locators=locators, dir=folder)
cache.create_async_event_queue("q", listener, persistent=True, dispatcher_threads=1)
region = cache.create_region("data", type=region_type, async_event_queue_ids=["q"],
                             **({} if region_type == "REPLICATE" else {"disk_synchronous": synchronous}))
cache.create_gateway_receiver(start_port=0, end_port=0)
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(sorted(region)), flush=True)
"""


class Site:
    """Site 2, whose one member is a process of its own."""

    def __init__(self, locator, folder, region_type, synchronous):
        self.told = folder / "told"
        self.arguments = [str(locator.address), str(folder / "there"), str(self.told), region_type, synchronous]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", MEMBER, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline().strip() == "ready"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def keys(self):
        self.process.stdin.write("keys\n")
        self.process.stdin.flush()
        return set(json.loads(self.process.stdout.readline()))

    def received(self):
        """What the listener was told, in order: (key, whether it may be a repeat, its place in the queue)."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        return [json.loads(line) for line in lines if line.endswith("]]")]


@pytest.mark.parametrize(
    ("region_type", "synchronous"),
    [
        pytest.param("REPLICATE_PERSISTENT", "false", id="later", marks=pytest.mark.nightly),
        pytest.param("REPLICATE_PERSISTENT", "true", id="synced"),
        pytest.param("REPLICATE", "", id="memory"),
    ],
)
def test_what_another_site_was_told_stays_and_a_queue_here_takes_each_event_once_over_kills(
    tmp_path, region_type, synchronous
):
    with (
        pywan.Locator("l2", distributed_system_id=2, port=0, dir=tmp_path / "l2") as remote,
        pywan.Locator(
            "l1", distributed_system_id=1, port=0, dir=tmp_path / "l1", remote_locators=str(remote.address)
        ) as l1,
        pywan.Cache("here", locators=str(l1.address), dir=tmp_path / "here") as cache,
    ):
        sender = cache.create_gateway_sender(
            "s", remote_distributed_system_id=2, batch_time_interval=2, dispatcher_threads=1, retry_interval_ms=50
        )
        data = cache.create_region("data", type="REPLICATE", gateway_sender_ids=["s"])
        site = Site(remote, tmp_path, region_type, synchronous)
        stop, keys = threading.Event(), []

        def write():
            while not stop.wait(0.0005):
                data.put(len(keys), "x")
                keys.append(len(keys))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(4):
                sent = sender.stats["events_distributed"]
                eventually(lambda sent=sent: sender.stats["events_distributed"] > sent + 200)
                site.kill()
                site.start()
        finally:
            stop.set()
            writer.join()
        try:
            assert sender.wait_until_flushed(60)
            if region_type != "REPLICATE":  # Nothing that the sender removed is missing.
                assert site.keys() == set(keys)
            eventually(lambda: {key for key, _, _ in site.received()} == set(keys))
        finally:
            site.kill()
        places = {}
        for key, may_repeat, place in site.received():
            assert key not in places or may_repeat, f"{key} was told again unmarked"
            assert places.setdefault(key, place) == place, f"{key} was told from another place"
        assert len({tuple(place) for place in places.values()}) == len(keys)


WRITER = """
import sys, pywan
cache = pywan.Cache("here", locators=sys.argv[1], dir=sys.argv[2])
cache.create_gateway_sender("s", remote_distributed_system_id=2, batch_time_interval=-1, retry_interval_ms=50)
region = cache.create_region("data", type="REPLICATE_PERSISTENT", disk_synchronous="false", gateway_sender_ids=["s"])
print(" ".join(region), flush=True)
sys.stdin.readline()
n = 0
while True:
    n += 1
    region[f"{sys.argv[3]}-{n}"] = n
"""


def test_what_another_site_has_of_a_persistent_region_is_here_after_a_kill(tmp_path):
    with (
        pywan.Locator("l2", distributed_system_id=2, port=0, dir=tmp_path / "l2") as remote,
        pywan.Locator(
            "l1", distributed_system_id=1, port=0, dir=tmp_path / "l1", remote_locators=str(remote.address)
        ) as locator,
        pywan.Cache("there", locators=str(remote.address), dir=tmp_path / "there") as cache,
    ):
        there = cache.create_region("data", type="REPLICATE")
        receiver = cache.create_gateway_receiver(start_port=0, end_port=0)
        sent = set()
        for attempt in range(4):
            arguments = [str(locator.address), str(tmp_path / "here"), str(attempt)]
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", WRITER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert sent <= set(process.stdout.readline().split())
                before = len(there)
                process.stdin.write("go\n")
                process.stdin.flush()
                eventually(lambda before=before: len(there) > before + 300)
            finally:
                process.kill()
                process.wait()
            eventually(lambda: receiver.connection_count == 0)
            sent = set(there)


class Relay:
    """A site 2 between two others: events of site 1 come by a session, and go into the persistent queue of a sender to
    site 3. Its region's table is lost whenever the process ends."""

    NAME = "1/ln/queue/7/1"

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.open()

    def open(self):
        self.queue = _core.EventQueue(
            "tk", remote_site=3, log_directory=self.folder, log_id=5, synchronous=False, mount=9
        )
        self.queue.running = True
        self.region = _core.RegionCore("data", _core.Clock(), site=2, member=2)
        self.region.attach([self.queue])
        self.memory = _core.SourceMemory(1, None, self.NAME)

    def receive(self, dispatcher, mount):
        """Carries what a dispatcher of site 1 sends. The acknowledgements are lost."""
        receiver = _core.ReceiverSession(
            self.memory, _core.ReceiverCounts(), {"data": self.region}.get, None, mount=mount
        )
        receiver.connected(1)
        while data := dispatcher.data_to_send(1):
            receiver.receive_data(data, 1)


class Source:
    """The sender at site 1."""

    def __init__(self):
        self.queue = _core.EventQueue("ln", remote_site=2)
        self.queue.running = True
        self.region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
        self.region.attach([self.queue])
        self.dispatcher = _core.DispatcherSession(self.queue, 0, _core.EventQueue("parked", partitions=8))
        self.dispatcher.configure(10, -1)

    def send_to(self, relay, mount=4):
        self.dispatcher.disconnected()
        self.dispatcher.connected(1_000_000, 64 << 20, 1)
        relay.receive(self.dispatcher, mount)


def queued(relay):
    return [_core.record_fields(record)["key"][1].decode() for _, _, record in relay.queue.records(1 << 20)]


def test_a_queue_has_the_places_of_its_events_in_its_log_and_knows_them_after_a_crash(tmp_path):
    source, relay = Source(), Relay(tmp_path / "log")
    for n in range(25):
        source.region.put(f"k{n}", n)
    source.send_to(relay)
    relay.queue.commit_once(False)
    source.region.put("k25", 25)
    del relay.queue
    found = [
        place
        for block in read_blocks(tmp_path / "log")
        for kind, _, data in block.parts
        if kind == PLACES
        for place in stream_places(data)
    ]
    digest = hashlib.blake2b(Relay.NAME.encode(), digest_size=16).digest()
    assert found == [StreamPlace(digest, 4, 25, 0)]
    relay.region = None
    relay.open()
    assert queued(relay) == [f"k{n}" for n in range(25)]
    source.send_to(relay)
    assert queued(relay) == [f"k{n}" for n in range(26)]
    assert len(relay.region) == 26  # Its table had lost all, and has all again.
    counts = relay.queue.counts()
    assert (counts["received"], counts["queued"]) == (26, 26)


def test_what_comes_by_another_mount_enters_again_with_the_mark(tmp_path):
    source, relay = Source(), Relay(tmp_path / "log")
    source.region.put("k", 1)
    source.send_to(relay)
    relay.memory = _core.SourceMemory(1, None, Relay.NAME)
    source.send_to(relay, mount=5)
    assert queued(relay) == ["k", "k"]
    flags = [_core.record_fields(record)["flags"] for _, _, record in relay.queue.records(1 << 20)]
    assert flags == [0, 4]
