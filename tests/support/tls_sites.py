"""Owns two sites in this process that encrypt everything."""

from __future__ import annotations

import contextlib

import pywan

SENDER = {"batch_time_interval": 10, "retry_interval_ms": 200}


class Site:
    """A locator with members, each with the region `data`, and a receiver and a sender at the first one."""

    def __init__(self, stack, name, id, ssl_of, members=1, remote="", **more):
        self.id, self.stack = id, stack
        self.locator = stack.enter_context(
            pywan.Locator(
                f"loc_{name}",
                distributed_system_id=id,
                port=0,
                remote_locators=remote,
                ssl=ssl_of(f"loc_{name}", **more),
            )
        )
        self.caches = [
            stack.enter_context(
                pywan.Cache(f"{name}_{n}", locators=str(self.locator.address), ssl=ssl_of(f"{name}_{n}", **more))
            )
            for n in range(members)
        ]
        self.receiver = self.caches[0].create_gateway_receiver(start_port=0, end_port=0)
        self.regions = []

    def send_to(self, other, **attributes):
        self.sender = self.caches[0].create_gateway_sender(
            "out", remote_distributed_system_id=other.id, **{**SENDER, **attributes}
        )
        self.stack.callback(self.sender.stop)
        for cache in self.caches[1:]:
            cache.create_gateway_sender("out", remote_distributed_system_id=other.id, **{**SENDER, **attributes})

    def create_region(self, **attributes):
        kind = "PARTITION_REDUNDANT" if len(self.caches) > 1 else "PARTITION"
        self.regions = [
            cache.create_region("data", type=kind, gateway_sender_ids=["out"], **attributes) for cache in self.caches
        ]


@contextlib.contextmanager
def two(ssl_of, members=1, ny=None, ln=None):
    with contextlib.ExitStack() as stack:
        there = Site(stack, "ln", 2, ssl_of, members, **(ln or {}))
        here = Site(stack, "ny", 1, ssl_of, members, remote=str(there.locator.address), **(ny or {}))
        here.send_to(there)
        there.send_to(here)
        here.create_region()
        there.create_region()
        yield here, there
