"""How long an event takes at 10,000 events a second with a batch-time-interval of 1 ms: from just before `put` until
its acknowledgement has been taken in and it has left the queue, which is later than its being applied by the
acknowledgement's way back. Beside it: a message of the same size sent to another process and back at the same pace, one
at a time.

Percentiles over all events of a run; the change logs hold whatever else runs on the machine."""

from __future__ import annotations

import collections
import socket
import statistics
import sys
import time
from collections.abc import Iterator

from measure import arguments, json_like, report
from two_sites import Child, queue_of, two_sites

EVENTS_PER_S = 10_000
MESSAGE_BYTES = 160

ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := connection.recv(65536):
    connection.sendall(data)
"""


def ticks(seconds: float) -> Iterator[float]:
    """The moments at which an event is due; a late one does not make the next ones late."""
    started = time.perf_counter()
    for n in range(int(seconds * EVENTS_PER_S)):
        yield started + n / EVENTS_PER_S


def percentiles(latencies: list[float]) -> tuple[float, float]:
    ordered = sorted(latencies)
    return ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3


def enqueue_to_acknowledged(sites, sender, seconds: float) -> list[float]:
    region, positions, clock = sites.region, queue_of(sender).positions, time.perf_counter
    keys = [b"%016d" % n for n in range(1000)]
    value = json_like(1)
    sent: collections.deque[float] = collections.deque()
    latencies: list[float] = []
    gone = positions()[0][0]

    def look() -> None:
        nonlocal gone
        removed = positions()[0][0]
        if removed != gone:
            now = clock()
            for _ in range(removed - gone):
                latencies.append(now - sent.popleft())
            gone = removed

    for n, due in enumerate(ticks(seconds)):
        while clock() < due:
            look()
        sent.append(clock())
        region.put(keys[n % 1000], value)
    deadline = clock() + 10
    while sent:
        look()
        assert clock() < deadline, f"{len(sent)} events were not acknowledged"
    return latencies


def round_trips(connection: socket.socket, seconds: float) -> list[float]:
    message, clock = b"m" * MESSAGE_BYTES, time.perf_counter
    latencies = []
    for due in ticks(seconds):
        while clock() < due:
            pass
        started, left = clock(), MESSAGE_BYTES
        connection.sendall(message)
        while left:
            left -= len(connection.recv(left))
        latencies.append(clock() - started)
    return latencies


def main() -> None:
    options = arguments(__doc__)
    seconds = options.size(5.0, 1.0, 0.1)
    with (
        Child(sys.executable, "-c", ECHO) as echo,
        two_sites() as sites,
        socket.create_connection(("127.0.0.1", int(echo.finish()))) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = sites.sender("ln", batch_size=1000, batch_time_interval=1)
        sites.use(sender)
        enqueue_to_acknowledged(sites, sender, min(seconds, 1.0))
        subject, reference = [], []
        for _ in range(options.rounds):
            subject.append(percentiles(enqueue_to_acknowledged(sites, sender, seconds)))
            reference.append(percentiles(round_trips(connection, seconds)))
        for n, (name, goal) in enumerate((("p50", ""), ("p99", "5 ms or less"))):
            report(
                f"latency at 10,000/s, {name}",
                statistics.median(each[n] for each in subject),
                statistics.median(each[n] for each in reference),
                f"a bare round trip's {name}",
                goal,
                "ms",
            )


if __name__ == "__main__":
    main()
