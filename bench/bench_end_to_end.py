"""Two processes over loopback: enqueue, send, apply, acknowledge, remove; beside two bare C processes that do the same
steps without a queue, and beside a pickle-over-socket pipeline in pure Python. With lz4 beside the rate at which one
core compresses the same batches.

16-byte keys, 100-byte values, a million keys, batches of 1,000, no compression unless said. `--quick` for a short run.
"""

from __future__ import annotations

import collections
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

import lz4.block
import numpy

from measure import (
    VALUE_BYTES,
    Rates,
    arguments,
    busiest_thread_s,
    c_program,
    cpu_seconds,
    in_turn,
    key_column,
    processor_s,
    report,
    value_column,
)
from pywan import _core
from two_sites import Child, two_sites

BATCH = 1_000


class Pickled:
    """The reference: a queue of tuples, batches pickled over a socket, last writer wins into a dict, acknowledged in
    order.
    """

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
        self.process = Child(sys.executable, "-c", self.RECEIVER)
        self.sock = socket.create_connection(("127.0.0.1", int(self.process.finish())))

    def rate(self, events: int) -> float:
        queue: collections.deque = collections.deque()
        value = b"v" * VALUE_BYTES
        keys = [b"%016d" % n for n in range(events)]
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
            batch = [(key, value, at) for key in keys[at : at + BATCH]]
            queue.extend(batch)
            data = pickle.dumps(batch, 5)
            self.sock.sendall(struct.pack("<I", len(data)) + data)
        acknowledged.wait()
        taken = time.perf_counter() - started
        reader.join()
        return events / taken

    def close(self) -> None:
        self.sock.close()
        self.process.end()


def lz4_rate(keys: numpy.ndarray, values: numpy.ndarray, events: int) -> Callable[[], float]:
    """Compresses the batches that a sender would send, in one thread, and does nothing else."""
    queue = _core.EventQueue("batches", remote_site=2, memory_limit=1 << 30)
    queue.running = True
    region = _core.RegionCore("batches", _core.Clock(), site=1, member=1, stores=False)
    region.attach([queue])
    region.put_columns(keys[:events], values[:events])
    batches = [b"".join(queue.peek(0, BATCH)) for _ in range(events // BATCH)]
    return lambda: (
        events
        / cpu_seconds(
            lambda: [lz4.block.compress(batch, mode="fast", acceleration=1, store_size=False) for batch in batches]
        )
    )


def main() -> None:
    options = arguments(__doc__)
    events = options.size(5_000_000, 1_000_000, 50_000)
    bare = Child(c_program("bare_pair"), str(events), str(BATCH), str(options.keys))
    pickled = Pickled()
    keys, values = key_column(options.keys), value_column(options.keys)
    try:
        with two_sites() as sites:
            senders = {
                compression: sites.sender(
                    f"ln-{compression}", batch_size=BATCH, batch_time_interval=5, compression=compression
                )
                for compression in ("none", "lz4")
            }

            def end_to_end(sender) -> float:
                return sites.send_all(sender, keys, values, events)

            def with_processor_time(run: Callable[[], float], pids: tuple[int, ...], spent: list[float]) -> float:
                before = sum(map(processor_s, pids))
                rate = run()
                spent.append((sum(map(processor_s, pids)) - before) / events * 1e9)
                return rate

            own, theirs = [], []
            sites.use(senders["none"])
            report(
                "end to end",
                *in_turn(
                    options.rounds,
                    lambda: with_processor_time(lambda: end_to_end(senders["none"]), sites.pids, own),
                    lambda: with_processor_time(lambda: float(bare.ask()), (bare.pid,), theirs),
                ),
                "two bare C processes",
                "40%",
            )
            report(
                "the same, processor time",
                Rates(own[1:]),
                Rates(theirs[1:]),
                "both processes of each",
                "250% or less",
                "ns an event",
            )
            report(
                "end to end, beside Python",
                *in_turn(options.rounds, lambda: end_to_end(senders["none"]), lambda: pickled.rate(events // 10)),
                "pickle over a socket",
            )
            sites.use(senders["lz4"])
            busiest: list[float] = []

            def with_busiest_thread() -> float:
                _, before = busiest_thread_s(sites.pids)
                rate = end_to_end(senders["lz4"])
                busiest.append(busiest_thread_s(sites.pids, before)[0] / events * 1e9)
                return rate

            alone = lz4_rate(keys, values, min(len(keys), 200_000))
            report(
                "end to end, lz4",
                *in_turn(options.rounds, with_busiest_thread, alone),
                "lz4.block on the same batches, one core",
                "80%",
            )
            report(
                "the same, its busiest thread",
                Rates(busiest[1:]),
                1e9 / alone(),
                "compressing alone",
                "125% or less",
                "ns an event",
            )
            assert sites.remote_keys() == len(keys), "the remote site has not all keys"
            for sender in senders.values():
                assert sender.ledger()["balanced"] and sender.queue_size == 0
    finally:
        pickled.close()
        bare.end()


if __name__ == "__main__":
    main()
