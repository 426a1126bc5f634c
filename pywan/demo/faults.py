"""Owns what goes wrong in the demo, and the writes that go on meanwhile."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pywan.base.addresses import Address
from pywan.demo.members import Members
from pywan.demo.topology import REGION, Site
from pywan.errors import PywanError
from pywan.testing.fault_proxy import FaultProxy

WRITE_BURST = 20
WRITE_INTERVAL_S = 0.025  # A burst each: 800 events a second and site.
_STEP_LIMIT_S = 60.0


class Link:
    """The way into one site: a proxy on each port that its receiver may listen on."""

    def __init__(self, site: Site) -> None:
        first, last = site.receiver_ports
        self._proxies = [
            FaultProxy(Address(site.address, port), listen_host=site.hostname_for_senders, listen_port=port)
            for port in range(first, last + 1)
        ]

    def start(self) -> None:
        for proxy in self._proxies:
            proxy.start()

    def stop(self) -> None:
        for proxy in self._proxies:
            proxy.stop()

    def cut(self) -> None:
        """Connections break, new ones are refused."""
        for proxy in self._proxies:
            proxy.cut()

    def restore(self) -> None:
        for proxy in self._proxies:
            proxy.restore()


class Writer(threading.Thread):
    """Updates the same keys as the other writers, at one site, until it is stopped. `failure`: why it ended before."""

    def __init__(self, site: Site, keys: Sequence[Any], members: Members, seed: int) -> None:
        super().__init__(name=f"writer-{site.name}", daemon=True)
        self.site = site
        self.written = 0
        self.failure: BaseException | None = None
        self._keys = keys
        self._members = members
        self._random = random.Random(seed * 1_000 + site.distributed_system_id)
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            with self._members.writer(self.site.name) as server:
                while not self._stopped.wait(WRITE_INTERVAL_S):
                    for key in self._random.choices(self._keys, k=WRITE_BURST):
                        value = {
                            "writer": self.site.name,
                            "number": self.written,
                            "price": self._random.randint(1, 10**6) / 100,
                        }
                        server.call("put", region=REGION, key=key, value=value)
                        self.written += 1
        except Exception as error:  # Reported by whoever watches the writers.
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()


class Writers:
    """Writers at several sites at once."""

    def __init__(self, sites: Sequence[Site], keys: Sequence[Any], members: Members, seed: int) -> None:
        self._writers = [Writer(site, keys, members, seed) for site in sites]

    def __enter__(self) -> Writers:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for writer in self._writers:
            writer.stop()
        for writer in self._writers:
            writer.join(_STEP_LIMIT_S)
        if exc[0] is None:
            self.check()

    @property
    def written(self) -> dict[str, int]:
        return {writer.site.name: writer.written for writer in self._writers}

    def check(self) -> None:
        """PywanError if a writer failed."""
        for writer in self._writers:
            if writer.failure is not None:
                raise PywanError(f"writes at {writer.site.name} failed: {writer.failure}") from writer.failure

    def go_on_for(self, seconds: float) -> None:
        """Returns when that time has passed and every writer has written since."""
        before = self.written
        started = time.monotonic()
        pause = threading.Event()
        while True:
            pause.wait(0.05)
            self.check()
            passed = time.monotonic() - started
            if passed >= seconds and all(count > before[site] for site, count in self.written.items()):
                return
            if passed > seconds + _STEP_LIMIT_S:
                raise PywanError(f"writes stand still: {self.written} after {passed:.0f} s")


def move_receiver(members: Members, site: Site) -> tuple[int, int]:
    """Stop the site's receiver and start it on another port of its range; (old port, new port)."""
    old = members.ask(site.name, "status gateway-receiver")["port"]
    members.ask(site.name, "stop gateway-receiver")
    with socket.socket() as occupant:  # Someone else has taken the port meanwhile.
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Its broken connections may still linger.
        occupant.bind((site.address, old))
        occupant.listen(1)
        members.ask(site.name, "start gateway-receiver")
    new = members.ask(site.name, "status gateway-receiver")["port"]
    if new == old:
        raise PywanError(f"the receiver of {site.name} came back on port {old}, which was taken")
    return old, new


def restart_locator(members: Members, site: Site, meanwhile: Callable[[], None]) -> None:
    """Kill the site's locator, let `meanwhile` happen without it, start it again by the same command."""
    members.kill(site.locator_name)
    meanwhile()
    members.start_locator(site)


def restart_server(members: Members, site: Site, meanwhile: Callable[[], None]) -> None:
    """The same with the site's server, whose queues and region are on disk."""
    members.kill(site.server_name)
    meanwhile()
    members.start_server(site)
