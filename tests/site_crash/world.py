"""Owns the processes of one site of a test: locators, and members that are killed, stopped, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pywan
from private_network import PrivateNetwork
from pywan.testing.waiting import LIMIT_S


class ProcessFailed(AssertionError):
    """A process could not do what it was asked, did not answer, or ended by itself."""


class Process:
    """One process. `name` is that of its locator or member. `prefix`: what stands before its command."""

    def __init__(self, name: str, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.name, self.folder = name, folder
        home = Path(pywan.__file__).parent.parent
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")])),
        }
        self._log = open(folder / f"{name}.log", "ab")  # noqa: SIM115 - it lives as long as the process.
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).with_name("member.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._is_stopped = False
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begin(self, what: str, *given: Any, **named: Any) -> None:
        """Asks for something. `finish` returns the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, "given": given, "named": named}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProcessFailed(f"{self.name} ended before it was asked to {what}: {self.last_words()}") from error

    def finish(self, timeout: float = LIMIT_S) -> Any:
        assert self._process.stdout is not None
        file, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._rest:
            if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ProcessFailed(f"{self.name} does not answer within {timeout:.0f} s: {self.last_words()}")
            data = os.read(file, 1 << 20)
            if not data:
                raise ProcessFailed(f"{self.name} ended by itself: {self.last_words()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise ProcessFailed(f"{self.name}: {answer['error']}\n{answer.get('trace', '')}{self.last_words()}")
        return answer

    def ask(self, what: str, *given: Any, timeout: float = LIMIT_S, **named: Any) -> Any:
        self.begin(what, *given, **named)
        return self.finish(timeout)

    def do(self, region: str, method: str, *arguments: Any) -> Any:
        """The answer of a region's method. An error of pywan is a ProcessFailed with its name."""
        answer = self.ask("do", region, method, *arguments)
        if "raised" in answer:
            raise ProcessFailed(f"{answer['raised']}: {answer['text']}")
        return answer["answer"]

    def stop(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_stopped = True

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._is_stopped = False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._close()

    def end(self) -> None:
        """A clean end."""
        if self._is_stopped:
            self.go_on()
        self.ask("end")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._close()

    def _close(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def last_words(self) -> str:
        return (self.folder / f"{self.name}.log").read_bytes()[-3000:].decode(errors="replace")


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
        self.port = process.ask("locate", "locator", self.port, folder, bind_address=host, **self._locator_options)[
            "port"
        ]
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
        return {
            name: process.ask("sharing", region)["answer"]
            for name, process in self.members.items()
            if process.is_running
        }

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self.members.values(), self.locator]:
            if process.is_running:
                process.kill()
