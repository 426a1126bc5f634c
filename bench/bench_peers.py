"""Two sites beside other systems that carry changes to another process, only with `--peers`: Redis replication
(pipelined SETs by redis-benchmark until the replica has them) and a NATS JetStream mirror (until the mirror has all
messages).

They have to be installed (Debian: apt-get install redis-server redis-tools nats-server); nats-py is put into a virtual
environment under build/. 16-byte keys, 100-byte values; in memory on all sides."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import BUILD, KEYS, VALUE_BYTES, arguments, in_turn, key_column, report, value_column
from site_processes import free_port
from two_sites import two_sites

NATS = """
import asyncio, sys, time, nats
from nats.js.api import StorageType, StreamSource
url, events, value_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def main():
    connection = await nats.connect(url, pending_size=8 << 20)
    stream = connection.jetstream(timeout=60)
    value = b"v" * value_bytes
    for line in sys.stdin:
        for name in ("replica", "data"):
            try:
                await stream.delete_stream(name)
            except nats.js.errors.NotFoundError:
                pass
        await stream.add_stream(name="data", subjects=["data.*"], storage=StorageType.MEMORY)
        await stream.add_stream(name="replica", mirror=StreamSource(name="data"), storage=StorageType.MEMORY)
        started = time.perf_counter()
        for first in range(0, events, 1000):
            for n in range(first, first + 1000):
                await connection.publish("data.%011d" % n, value)
            await connection.flush()
        while (await stream.stream_info("replica")).state.messages < events:
            await asyncio.sleep(0.002)
        print(events / (time.perf_counter() - started), flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def server(*command: str, port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, f"{command[0]} did not start"
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def redis_info(port: int, *fields: str) -> list[str]:
    text = subprocess.run(
        ["redis-cli", "-p", str(port), "info", "replication"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(line.strip().split(":", 1) for line in text.splitlines() if ":" in line)
    return [found.get(field, "") for field in fields]


@contextlib.contextmanager
def redis(events: int) -> Iterator[Callable[[], float]]:
    """Rate of pipelined SETs from the first one to the moment at which the replica has taken in all of them."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        first, second = free_port(), free_port()
        plain = ("--save", "", "--appendonly", "no", "--dir", directory, "--bind", "127.0.0.1")
        stack.enter_context(server("redis-server", "--port", str(first), *plain, port=first))
        stack.enter_context(
            server("redis-server", "--port", str(second), "--replicaof", "127.0.0.1", str(first), *plain, port=second)
        )
        deadline = time.monotonic() + 20
        while redis_info(second, "master_link_status") != ["up"]:
            assert time.monotonic() < deadline, "the replica did not connect"
            time.sleep(0.1)

        def rate() -> float:
            started = time.perf_counter()
            subprocess.run(
                [
                    "redis-benchmark",
                    "-p",
                    str(first),
                    "-q",
                    "-n",
                    str(events),
                    "-P",
                    "1000",
                    "-c",
                    "1",
                    "-d",
                    str(VALUE_BYTES),
                    "-r",
                    str(KEYS),
                    "-t",
                    "set",
                ],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            while int(redis_info(first, "master_repl_offset")[0]) > int(redis_info(second, "slave_repl_offset")[0]):
                pass
            return events / (time.perf_counter() - started)

        yield rate


@contextlib.contextmanager
def nats_mirror(events: int) -> Iterator[Callable[[], float]]:
    """Rate from the first publication to the moment at which the mirror has all messages."""
    python = BUILD / "nats" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(BUILD / "nats")], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "nats-py"], check=True
        )
    from two_sites import Child

    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        stack.enter_context(
            server(
                "nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(Path(directory) / "js"), port=port
            )
        )
        command = (python, "-c", NATS, f"nats://127.0.0.1:{port}", events, VALUE_BYTES)
        client = stack.enter_context(Child(*command))
        yield lambda: float(client.ask())


def main() -> None:
    options = arguments(__doc__)
    if not options.peers:
        print("beside Redis and NATS: not measured; install them and give --peers")
        return
    missing = [
        name for name in ("redis-server", "redis-benchmark", "redis-cli", "nats-server") if not shutil.which(name)
    ]
    if missing:
        sys.exit(f"{', '.join(missing)} not found; Debian: apt-get install redis-server redis-tools nats-server")
    events = 1_000_000 if options.quick else 5_000_000
    keys, values = key_column(KEYS), value_column(KEYS)
    with two_sites() as sites:
        sender = sites.sender("ln", batch_size=1_000, batch_time_interval=5)
        sites.use(sender)

        def subject() -> float:
            return sites.send_all(sender, keys, values, events)

        with redis(300_000 if options.quick else 1_000_000) as rate:
            report(
                "end to end, beside Redis",
                *in_turn(options.rounds, subject, rate),
                "replication of pipelined SETs",
                "10 times",
            )
        with nats_mirror(50_000 if options.quick else 200_000) as rate:
            report(
                "end to end, beside NATS",
                *in_turn(min(options.rounds, 3), subject, rate),
                "a JetStream mirror in memory, fed by nats-py",
                "10 times",
            )


if __name__ == "__main__":
    main()
