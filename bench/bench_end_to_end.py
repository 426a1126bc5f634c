"""Two processes over loopback: enqueue, send, apply, acknowledge, remove; beside a pickle-over-socket pipeline in pure Python
that does the same steps.

16-byte keys, 100-byte values, a million keys, batches of 1,000, no compression unless said. `--quick` for a short run."""
from __future__ import annotations

import collections
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy

from measure import KEY_BYTES, VALUE_BYTES, arguments, in_turn, report

BATCH = 1_000
KEYS = 1_000_000
ROWS_A_CALL = 10_000

SITE = """
import sys, pywan
with pywan.Locator("locator_ln", distributed_system_id=2, port=0, remote_locators=sys.argv[2]) as locator:
    with pywan.Cache("server_ln", locators=f"127.0.0.1[{locator.port}]", dir=sys.argv[1]) as cache:
        cache.create_region("data", type="REPLICATE")
        cache.create_gateway_receiver()
        print("ready", flush=True)
        for line in sys.stdin:
            print(len(cache.region("data")), flush=True)
"""


class Pickled:
    """The reference: a queue of tuples, batches pickled over a socket, last writer wins into a dict, acknowledged in order."""

    RECEIVER = """
import pickle, socket, struct, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
stream = connection.makefile("rb", 1 << 20)
table = {}
while head := stream.read(4):
    for key, value, stamp in pickle.loads(stream.read(struct.unpack("<I", head)[0])):
        stored = table.get(key)
        if stored is None or stored[1] <= stamp:
            table[key] = (value, stamp)
    connection.sendall(b"+")
"""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", self.RECEIVER], stdout=subprocess.PIPE, text=True)
        self.sock = socket.create_connection(("127.0.0.1", int(self.process.stdout.readline())))

    def rate(self, events: int) -> float:
        queue: collections.deque = collections.deque()
        value = b"v" * VALUE_BYTES
        keys = [b"%016d" % (n % KEYS) for n in range(events)]
        batches = (events + BATCH - 1) // BATCH
        acknowledged = threading.Event()

        def acknowledge() -> None:
            left = batches
            while left:
                for _ in range(len(got := self.sock.recv(4096))):
                    for _ in range(min(BATCH, len(queue))):
                        queue.popleft()
                left -= len(got)
            acknowledged.set()

        reader = threading.Thread(target=acknowledge)
        started = time.perf_counter()
        reader.start()
        for at in range(0, events, BATCH):
            batch = [(key, value, at) for key in keys[at:at + BATCH]]
            queue.extend(batch)
            data = pickle.dumps(batch, 5)
            self.sock.sendall(struct.pack("<I", len(data)) + data)
        acknowledged.wait()
        taken = time.perf_counter() - started
        reader.join()
        return events / taken

    def close(self) -> None:
        self.sock.close()
        self.process.wait(10)
        self.process.stdout.close()


def main() -> None:
    options = arguments(__doc__)
    events = 1_000_000 if options.quick else 5_000_000
    import pywan

    with tempfile.TemporaryDirectory() as directory, pywan.Locator("locator_ny", distributed_system_id=1, port=0) as locator:
        remote = subprocess.Popen(
            [sys.executable, "-c", SITE, str(Path(directory) / "ln"), f"127.0.0.1[{locator.port}]"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pickled = Pickled()
        try:
            assert remote.stdout.readline() == "ready\n"
            with pywan.Cache("server_ny", locators=f"127.0.0.1[{locator.port}]") as cache:
                keys = numpy.array([b"%016d" % n for n in range(KEYS)], dtype=f"S{KEY_BYTES}")
                values = numpy.array([json_like(n) for n in range(KEYS)], dtype=f"S{VALUE_BYTES}")

                region = cache.create_region("data", type="REPLICATE_PROXY")     # Enqueues only: the put path is measured elsewhere.
                senders = {
                    compression: cache.create_gateway_sender(
                        f"ln-{compression}", remote_distributed_system_id=2, dispatcher_threads=1, batch_size=BATCH, batch_time_interval=5,
                        maximum_queue_memory=2000, compression=compression)
                    for compression in ("none", "lz4")}
                wait_connected(senders.values())

                def end_to_end(sender) -> float:
                    started = time.perf_counter()
                    for at in range(0, events, ROWS_A_CALL):
                        start = at % KEYS
                        region.put_columns(keys[start:start + ROWS_A_CALL], values[start:start + ROWS_A_CALL])
                    assert sender.wait_until_flushed(120)
                    return events / (time.perf_counter() - started)

                for compression, goal in (("none", "1.5 M/s"), ("lz4", "")):
                    sender = senders[compression]
                    region.alter(gateway_sender_ids=[sender.id])
                    subject, reference = in_turn(options.rounds, lambda: end_to_end(sender), lambda: pickled.rate(events // 10))
                    report(f"end to end, compression {compression}", subject, reference, "pickle over a socket", goal)
                remote.stdin.write("size\n")
                remote.stdin.flush()
                assert int(remote.stdout.readline()) == KEYS, "the remote site has not all keys"
                for sender in senders.values():
                    assert sender.ledger()["balanced"] and sender.queue_size == 0
        finally:
            pickled.close()
            remote.stdin.close()
            remote.wait(30)
            remote.stdout.close()


def json_like(n: int) -> bytes:
    """100 bytes as a price feed would send them: words that repeat, numbers that do not."""
    mixed = n * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFF
    text = f'{{"symbol":"S{n % 5000:05d}","bid":{mixed % 100000 / 100},"ask":{mixed % 99991 / 100},"size":{mixed >> 40},"t":{mixed}}}'
    return text.encode()[:VALUE_BYTES].ljust(VALUE_BYTES)


def wait_connected(senders) -> None:
    deadline = time.monotonic() + 30
    while not all(sender.is_connected for sender in senders):
        assert time.monotonic() < deadline, "the sender did not connect"
        time.sleep(0.05)


if __name__ == "__main__":
    main()
