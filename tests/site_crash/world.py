"""Owns the processes of one site of a test: locators, and members that are killed, stopped, and started again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from private_network import PrivateNetwork
from pywan.testing.processes import ChildProcess


class Process(ChildProcess):
    """One process. `name` is that of its locator or member. `prefix`: what stands before its command."""

    def __init__(self, name: str, folder: Path, prefix: Sequence[str] = ()) -> None:
        program = Path(__file__).with_name("member.py")
        super().__init__(name, [sys.executable, program], folder=folder, prefix=prefix)

    def do(self, region: str, method: str, *arguments: Any) -> Any:
        """The answer of a region's method. An error of pywan is a ProcessFailed with its name."""
        return self.ask("do", region, method, *arguments)


class Site:
    """A locator and members. Context manager: at its end no process is left.

    `network`: where each process has an address of its own, and links can be cut. None: all are on loopback.
    """

    def __init__(
        self, folder: Path, *, regions: list[dict[str, Any]], network: PrivateNetwork | None = None, **locator: Any
    ) -> None:
        self.folder, self.regions, self._locator_options = folder, regions, locator
        self._network = network
        self.members: dict[str, Process] = {}
        self.port = 0
        self.locator = self._start_locator()

    def _start_locator(self) -> Process:
        process, host = self._process("locator")
        folder = str(self.folder / "locator")
        self.port = process.ask("locate", "locator", self.port, folder, bind_address=host, **self._locator_options)
        return process

    def _process(self, name: str) -> tuple[Process, str]:
        """Returns a new process, and the address at which it listens."""
        if self._network is None:
            return Process(name, self.folder), "127.0.0.1"
        host = self._network.address(name)
        return Process(name, self.folder, self._network.prefix(name)), host

    def kill_locator(self) -> None:
        self.locator.kill()

    def restart_locator(self) -> None:
        self.locator = self._start_locator()

    def begin(self, name: str, regions: list[dict[str, Any]] | None = None, **more: Any) -> Process:
        """Starts a member and does not wait for it."""
        process, host = self._process(name)
        self.members[name] = process
        locator = "127.0.0.1" if self._network is None else self._network.address("locator")
        process.begin(
            "join",
            name,
            f"{locator}[{self.port}]",
            str(self.folder / name),
            self.regions if regions is None else regions,
            bind_address=host,
            **more,
        )
        return process

    def start(self, name: str, regions: list[dict[str, Any]] | None = None, **more: Any) -> Process:
        process = self.begin(name, regions, **more)
        process.finish()
        return process

    def counts(self, region: str) -> dict[str, dict[str, int]]:
        """For each member that runs: how many buckets it leads, follows and learns."""
        return {name: process.ask("sharing", region) for name, process in self.members.items() if process.is_running}

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self.members.values(), self.locator]:
            process.kill()
