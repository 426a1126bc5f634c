"""Owns the program that makes one operation of a region meet one command again and again, in a process of its own. If a
round stands still, the process prints the stacks of its threads and ends with status 1: also if the GIL is never free.

    python tests/support/lock_stress.py KIND COMMAND ROUNDS [OPERATION ...]
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pywan
from pywan.testing.waiting import eventually

STANDS_STILL_S = 20  # A round takes milliseconds.
ROWS = 50
HOST = "127.0.0.1"

Region = Any
OPERATIONS: dict[str, Callable[[Region, list[str]], Any]] = {
    "put": lambda region, keys: [region.put(key, key) for key in keys[:10]],
    "put_all": lambda region, keys: region.put_all({key: key for key in keys}),
    "put_columns": lambda region, keys: region.put_columns(keys, keys),
    "remove_all": lambda region, keys: (region.put(keys[0], 1), region.remove_all(keys)),
    "clear": lambda region, keys: (region.put(keys[0], 1), region.clear(local=True)),
    "conditional": lambda region, keys: [
        (region.put_if_absent(key, 1), region.replace(key, 1, 2), region.remove(key, 2)) for key in keys[:5]
    ],
    "destroy": lambda region, keys: [(region.put(key, 1), region.pop(key, None)) for key in keys[:5]],
    "get": lambda region, keys: [(region.put(keys[0], 1), region.get(key)) for key in keys[:10]],
    "get_all": lambda region, keys: (region.put(keys[0], 1), len(region), dict(region.items())),
}


class Member:
    """A member with a sender whose site is away, and a region that feeds it."""

    def __init__(self, name: str, folder: str, kind: str, locators: str) -> None:
        self.name, self.kind, self.locators, self.folder = name, kind, locators, folder
        self.number = 0
        self.open()

    def open(self) -> None:
        self.cache = pywan.Cache(
            self.name,
            dir=f"{self.folder}/{self.name}",
            bind_address=HOST,
            call_timeout=2.0,
            locators=self.locators,
        )
        self.begin()

    def begin(self) -> None:
        """The next pair has a queue and a region of its own."""
        self.create_sender()
        self.create_region()

    def create_sender(self) -> None:
        self.sender = self.cache.create_gateway_sender(
            f"s{self.number}", remote_distributed_system_id=2, batch_time_interval=20
        )

    def create_region(self) -> None:
        shared = {"total_num_buckets": 7, "redundant_copies": 1, "recovery_delay": 0, "startup_recovery_delay": 0}
        self.region = self.cache.create_region(
            f"r{self.number}",
            type="PARTITION" if self.kind == "shared" else "REPLICATE",
            gateway_sender_ids=[self.sender.id],
            **(shared if self.kind == "shared" else {}),
        )

    def end_region(self) -> None:
        with contextlib.suppress(pywan.RegionNotFoundError):  # Another member has destroyed it for all.
            self.cache.destroy_region(self.region.name)

    # Commands. `others` have the same region.

    def alter_senders(self, others: list[Member]) -> None:
        self.region.alter(gateway_sender_ids=[])
        self.region.alter(gateway_sender_ids=[self.sender.id])

    def destroy_region(self, others: list[Member]) -> None:
        self.end_region()
        for member in (self, *others):
            eventually(lambda member=member: member.region.is_closed)
        for member in (self, *others):
            member.create_region()

    def restart_sender(self, others: list[Member]) -> None:
        self.sender.stop()
        self.sender.start()

    def pause_sender(self, others: list[Member]) -> None:
        self.sender.pause()
        self.sender.resume()

    def destroy_sender(self, others: list[Member]) -> None:
        self.region.alter(gateway_sender_ids=[])
        self.sender.destroy()
        self.create_sender()
        self.region.alter(gateway_sender_ids=[self.sender.id])

    def alter_sender(self, others: list[Member]) -> None:
        for size in (10, 100):
            self.sender.alter(batch_size=size)

    def close_cache(self, others: list[Member]) -> None:
        self.cache.close(maximum_shutdown_wait_time=0)
        self.open()


COMMANDS = (
    "alter_senders",
    "destroy_region",
    "restart_sender",
    "pause_sender",
    "destroy_sender",
    "alter_sender",
    "close_cache",
)


class Operators:
    """Threads that do one operation until they are stopped."""

    def __init__(self, operation: str, members: list[Member]) -> None:
        self._operation = OPERATIONS[operation]
        self._over = threading.Event()
        self.done = self.refused = 0
        self.why = ""  # The last one was refused.
        self._threads = [
            threading.Thread(target=self._run, args=(member, f"{member.name} {n}"), name=f"{operation} {member.name}")
            for n in range(2 if len(members) == 1 else 1)
            for member in members
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, member: Member, about: str) -> None:
        for count in itertools.count():
            if self._over.is_set():
                return
            try:
                self._operation(member.region, [f"{about} {count % 20} {row}" for row in range(ROWS)])
                self.done += 1
            except (pywan.PywanError, KeyError) as error:
                self.refused += 1  # The region is not there at the moment.
                self.why = repr(error)
                self._over.wait(0.001)

    def wait_for_some(self) -> None:
        before = self.done
        while self.done == before:
            time.sleep(0.001)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def members(kind: str, folder: str) -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        locator = pywan.Locator("l", distributed_system_id=1, port=0, bind_address=HOST, dir=f"{folder}/l")
        locators = str(stack.enter_context(locator).address)
        made: list[Member] = []
        for n in range(3 if kind == "shared" else 1):
            made.append(Member(f"m{n}", folder, kind, locators))
            stack.callback(lambda member: member.cache.close(maximum_shutdown_wait_time=0), made[-1])
        yield made


def meet(made: list[Member], operation: str, command: str, rounds: int) -> Operators:
    """The pair meets so many times."""
    operators = Operators(operation, made)
    operators.wait_for_some()
    for _ in range(rounds):
        faulthandler.dump_traceback_later(STANDS_STILL_S, exit=True)
        getattr(made[0], command)(made[1:])
        operators.wait_for_some()
    faulthandler.dump_traceback_later(STANDS_STILL_S, exit=True)
    operators.end()
    return operators


def main(kind: str, command: str, rounds: int, operations: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, members(kind, folder) as made:
        for operation in operations or OPERATIONS:
            faulthandler.dump_traceback_later(STANDS_STILL_S, exit=True)
            began = time.monotonic()
            operators = meet(made, operation, command, rounds)
            print(
                f"{kind} {command} {operation}: {rounds} rounds in {time.monotonic() - began:.2f} s, "
                f"{operators.done} operations done, {operators.refused} refused {operators.why[:200]}",
                flush=True,
            )
            for member in made:
                member.end_region()
            for member in made:
                eventually(lambda member=member: member.region.is_closed)
                member.sender.destroy()
                member.number += 1
                member.begin()
        faulthandler.cancel_dump_traceback_later()
    print("held", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
