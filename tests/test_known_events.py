"""A site whose member is killed with kill -9 while events of another site come: what the other site was told is applied
stays applied, and a persistent queue here takes each event once.
"""

import json
import subprocess
import sys
import threading

import pytest

import pywan
from pywan.testing.waiting import eventually

MEMBER = """
import json, os, sys, pywan
locators, folder, told, region_type, synchronous = sys.argv[1:6]
file = os.open(told, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
def listener(events):
    lines = [json.dumps([e.key, e.possible_duplicate, [str(events.numbering), e.partition, e.sequence]]) for e in events]
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

    def heard(self):
        """What the listener was told, in order: (key, whether it may be a repeat, its place in the queue)."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        return [json.loads(line) for line in lines if line.endswith("]]")]


@pytest.mark.parametrize(
    ("region_type", "synchronous"),
    [
        pytest.param("REPLICATE_PERSISTENT", "false", id="later"),
        pytest.param("REPLICATE_PERSISTENT", "true", id="synced"),
        pytest.param("REPLICATE", "", id="memory"),
    ],
)
def test_what_another_site_was_told_stays_and_a_queue_here_takes_each_event_once_over_kills(
    tmp_path, region_type, synchronous
):
    with (
        pywan.Locator("l2", distributed_system_id=2, port=0, dir=tmp_path / "l2") as remote,
        pywan.Locator("l1", distributed_system_id=1, port=0, dir=tmp_path / "l1", remote_locators=str(remote.address)) as l1,
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
            eventually(lambda: {key for key, _, _ in site.heard()} == set(keys))
        finally:
            site.kill()
        places = {}
        for key, may_repeat, place in site.heard():
            assert key not in places or may_repeat, f"{key} was told again unmarked"
            assert places.setdefault(key, place) == place, f"{key} was told from another place"
        assert len({tuple(place) for place in places.values()}) == len(keys)
