"""Owns two sites on this machine for benchmarks: this process sends, another one receives; with a proxy in a third
between them where a link is to have a length."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

import pywan
from pywan.testing.processes import ChildProcess

PROXY_HOST = "127.0.1.77"

SITE = """
import sys, pywan
with pywan.Locator("locator_ln", distributed_system_id=2, port=0, remote_locators=sys.argv[2]) as locator:
    with pywan.Cache("server_ln", locators=f"127.0.0.1[{locator.port}]", dir=sys.argv[1]) as cache:
        cache.create_region("data", type="REPLICATE")
        receiver = cache.create_gateway_receiver(hostname_for_senders=sys.argv[3])
        print(receiver.port, flush=True)
        for line in sys.stdin:
            print(len(cache.region("data")), flush=True)
"""

PROXY = """
import sys
from pywan.testing.fault_proxy import FaultProxy
with FaultProxy(("127.0.0.1", int(sys.argv[1])), sys.argv[2], int(sys.argv[1])) as proxy:
    print("ready", flush=True)
    for line in sys.stdin:
        latency_ms, bytes_per_s = map(float, line.split())
        proxy.set_latency_ms(latency_ms)
        proxy.set_bandwidth(bytes_per_s)
        print("set", flush=True)
"""


def queue_of(sender: Any) -> Any:
    """The compiled queue of a sender. `compare.py` also asks trees in which the sender itself has it."""
    return getattr(sender, "_core", sender).queue


class Child(ChildProcess):
    """A program, in C for example, that answers each line of words with a line of text."""

    timeout_s = 600.0

    def __init__(self, *command: object, **more: Any) -> None:
        super().__init__(Path(str(command[0])).name, command, **more)

    def question(self, *words: Any, **named: Any) -> str:
        return " ".join(map(str, words))

    def answer(self, line: bytes) -> str:
        return line.decode().strip()


class TwoSites:
    """`stores`: at both ends. Else this end only enqueues. `remote`: None: the caller has the other site."""

    def __init__(self, cache: pywan.Cache, remote: Child | None, proxy: Child | None, stores: bool) -> None:
        self.cache, self.remote, self.proxy = cache, remote, proxy
        self.region = cache.create_region("data", type="REPLICATE" if stores else "REPLICATE_PROXY")

    @property
    def pids(self) -> tuple[int, int]:
        assert self.remote is not None
        return os.getpid(), self.remote.pid

    def sender(self, id: str, **attributes: Any) -> Any:
        """A sender to the other site, connected; events go to it once `use` says so."""
        sender = self.cache.create_gateway_sender(
            id,
            **{
                "remote_distributed_system_id": 2,
                "dispatcher_threads": 1,
                "maximum_queue_memory": 2000,
                **attributes,
            },
        )
        deadline = time.monotonic() + 30
        while not sender.is_connected:
            assert time.monotonic() < deadline, "the sender did not connect"
            time.sleep(0.05)
        return sender

    def use(self, sender: Any) -> None:
        self.region.alter(gateway_sender_ids=[sender.id])

    def send_all(
        self,
        sender: Any,
        keys: numpy.ndarray,
        values: numpy.ndarray,
        events: int,
        rows_a_call: int = 10_000,
        ahead: int = 50_000,
    ) -> float:
        """Events a second from the first enqueue until the last acknowledgement. The producer keeps about `ahead`
        events before the sender, as a full ring would make it."""
        started = time.perf_counter()
        for row in range(0, events, rows_a_call):
            while len(queue_of(sender)) > ahead:
                time.sleep(0.0005)
            start = row % len(keys)
            self.region.put_columns(keys[start : start + rows_a_call], values[start : start + rows_a_call])
        assert sender.wait_until_flushed(120)
        return events / (time.perf_counter() - started)

    def remote_keys(self) -> int:
        assert self.remote is not None
        return int(self.remote.ask("size"))

    def link(self, *, round_trip_ms: float, bits_per_s: float) -> None:
        assert self.proxy.ask(round_trip_ms / 2, bits_per_s / 8) == "set"


@contextlib.contextmanager
def two_sites(*, proxy: bool = False, stores: bool = False) -> Iterator[TwoSites]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        locator = stack.enter_context(pywan.Locator("locator_ny", distributed_system_id=1, port=0))
        host = PROXY_HOST if proxy else ""
        command = (sys.executable, "-c", SITE, directory / "ln", f"127.0.0.1[{locator.port}]", host)
        remote = stack.enter_context(Child(*command))
        port, between = remote.finish(), None
        if proxy:
            between = stack.enter_context(Child(sys.executable, "-c", PROXY, port, PROXY_HOST))
            assert between.finish() == "ready"
        cache = stack.enter_context(
            pywan.Cache("server_ny", locators=f"127.0.0.1[{locator.port}]", dir=str(directory / "ny"))
        )
        yield TwoSites(cache, remote, between, stores)
