"""Owns the driver's end of a campaign's processes: starting, asking, killing them, and hearing what their
writers did.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pywan.testing.processes import python_environment

from . import load

ANSWER_TIMEOUT_S = 60.0
MESSAGE_BYTES = 1 << 17


class MemberFailed(Exception):
    """A member could not start, did not answer, or ended by itself."""


class Nursery:
    """The process that forks members. Context manager: at its end it is gone, and its members with it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="pywan-faulty-disk-")
        faulty_disk = Path(self._folder.name) / "faulty_disk.so"
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-O1",
                str(Path(__file__).parent.parent / "support" / "faulty_disk.c"),
                "-o",
                str(faulty_disk),
                "-ldl",
            ],
            check=True,
        )
        with other:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("member.py")), str(other.fileno())],
                pass_fds=[other.fileno()],
                env=python_environment(LD_PRELOAD=str(faulty_disk)),
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, spec: dict[str, Any], control: socket.socket, outcomes: int) -> int:
        socket.send_fds(self._socket, [json.dumps({"start": spec}).encode()], [control.fileno(), outcomes])
        return self._answer()

    def wait_for_end(self, pid: int) -> int:
        """The exit code of a member, or minus the signal that ended it, once it is gone with all its locks."""
        self._socket.send(json.dumps({"end": pid}).encode())
        return self._answer()

    def _answer(self) -> int:
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        answer = self._socket.recv(MESSAGE_BYTES)
        if not answer:
            raise MemberFailed("the process that starts members is gone")
        return json.loads(answer)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        self._process.wait(ANSWER_TIMEOUT_S)
        self._folder.cleanup()


class Member:
    """One member of a world over all its lives, on the same directory."""

    def __init__(self, nursery: Nursery, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.pid = 0  # 0: not running.
        self._nursery = nursery
        self._control: socket.socket | None = None
        self._outcomes = -1  # The reading end of the pipe of this life's writers.
        self._ready = False
        self._hold = Path(spec["directory"] + ".hold")  # While it is there, the disk is held up.
        Path(spec["directory"]).mkdir(parents=True, exist_ok=True)

    def start(self, **more: Any) -> None:
        """Returns while it starts."""
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_TIMEOUT_S)
        self._outcomes, outcomes = os.pipe()
        with control:
            self.pid = self._nursery.start({**self.spec, "hold": str(self._hold), **more}, control, outcomes)
        os.close(outcomes)
        self._ready = False

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._answer()
            self._ready = True

    def ask(self, what: str, meanwhile: Callable[[], None] | None = None) -> dict[str, Any]:
        """Its answer. `meanwhile` is called again and again until it comes: a writer that is not heard cannot go on."""
        self.wait_until_ready()
        assert self._control is not None
        try:
            self._control.send(what.encode())
        except OSError as error:
            raise MemberFailed(f"{self} ended by itself before it was asked to {what}") from error
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (
            meanwhile is not None and time.monotonic() < deadline and not select.select([self._control], [], [], 0)[0]
        ):
            meanwhile()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._control is not None
        try:
            answer = self._control.recv(MESSAGE_BYTES)
        except TimeoutError as error:
            raise MemberFailed(f"{self} does not answer within {ANSWER_TIMEOUT_S:.0f} s") from error
        except ConnectionError:
            answer = b""
        found = json.loads(answer) if answer else {"error": "it ended by itself"}
        if "error" in found:
            raise MemberFailed(f"{self}: {found['error']}")
        return found

    def outcomes(self, seconds: float = 0.0) -> Iterator[tuple[int, int, int]]:
        """(writer, what became of it, number) of what the writers did until `seconds` from now, as it comes."""
        deadline = time.monotonic() + seconds
        while select.select([self._outcomes], [], [], max(0.0, deadline - time.monotonic()))[0]:
            got = os.read(self._outcomes, 1 << 16)  # Whole ones: each was written at once.
            yield from load.OUTCOME.iter_unpack(got)
            if not got or (time.monotonic() >= deadline and len(got) < 1 << 16):
                return

    def kill(self) -> None:
        """With SIGKILL; returns when it is gone. What its writers said last can still be heard."""
        if self.kill_while_it_ends() != -signal.SIGKILL:
            raise MemberFailed(f"{self} ended by itself")

    def kill_while_it_ends(self) -> int:
        """The same for one that was told to stop: it may be faster. Returns its exit code, or minus the signal."""
        os.kill(self.pid, signal.SIGKILL)
        ended = self._nursery.wait_for_end(self.pid)
        self.pid = 0
        return ended

    def hold_disk(self) -> None:
        """Every sync of its disk takes until `let_disk_go`."""
        self._hold.touch()

    def let_disk_go(self) -> None:
        self._hold.unlink(missing_ok=True)

    def begin_stop(self) -> None:
        self.wait_until_ready()
        assert self._control is not None
        self._control.send(b"stop")

    def stop(self) -> None:
        self.begin_stop()
        self.end_stop()

    def end_stop(self) -> None:
        """It was told to stop, and does."""
        self._answer()
        ended = self._nursery.wait_for_end(self.pid)
        self.pid = 0
        if ended != 0:
            raise MemberFailed(f"{self} stopped with {ended}")

    def let_go(self) -> None:
        """After its end and the last `outcomes`."""
        if self._control is not None:
            self._control.close()
            os.close(self._outcomes)
            self._control = None

    def __str__(self) -> str:
        return f"member {self.spec['site']}"
