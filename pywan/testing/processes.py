"""Owns child processes that are asked by lines and answer with lines of JSON, and the child's end of that."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pywan
from pywan.testing.waiting import LIMIT_S, eventually

_SHOWN = 3000  # Bytes of what a process wrote last, in an error.


class ProcessFailed(AssertionError):
    """A process could not do what it was asked, did not answer, or ended by itself."""


def python_environment(**more: str) -> dict[str, str]:
    """Returns this environment for a child, which imports the same `pywan`. `more` replaces variables."""
    path = [str(Path(pywan.__file__).parent.parent), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **more}


def go_first(pid: int) -> None:
    """Gives a process the cores before all others, on a machine that others use too. It needs root."""
    os.setpriority(os.PRIO_PROCESS, pid, -20)
    with contextlib.suppress(FileNotFoundError):  # A kernel that groups processes by session weighs groups.
        Path(f"/proc/{pid}/autogroup").write_text("-20")


class ChildProcess:
    """One child process. It ends with its standard input, at the latest.

    The other end is `serve` and `tell`. A subclass asks programs that speak otherwise: it has `question`, `is_answer`
    and `answer` of its own. As a context manager, it asks for a clean end; after an exception it kills the process.

    Attributes:
        name: The name of the process in errors, and of its log.
        timeout_s: How long an answer may take, unless the call says otherwise.
    """

    timeout_s: ClassVar[float] = LIMIT_S

    def __init__(
        self,
        name: str,
        command: Sequence[object],
        *,
        folder: Path | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        goes_first: bool = False,
    ) -> None:
        """Starts the process.

        Args:
            name: The name of the process.
            command: The program and its arguments, each in the form that `str` gives.
            folder: Where `NAME.log` gets the standard error of the process, behind that of its earlier lives. None: a
                file without a name gets it.
            cwd: The working directory. None: that of this process.
            environment: Variables that differ from `python_environment()`.
            prefix: What stands before the command, to run it in a network namespace for example.
            goes_first: Whether it gets the cores before others that use this machine (needs root).
        """
        self.name = name
        # The file lives as long as the process.
        self._log = tempfile.TemporaryFile() if folder is None else open(folder / f"{name}.log", "a+b")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [*prefix, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=cwd,
                env=python_environment(**(environment or {})),
                start_new_session=goes_first,
            )
        except OSError:
            self._log.close()
            raise
        self._is_stopped = False
        self._rest = b""
        self._last_words = ""  # After its end.
        if goes_first:
            try:
                go_first(self.pid)
            except OSError:
                self.kill()
                raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended. A stopped one has not."""
        return self._process.poll() is None

    # What the lines are

    def question(self, *words: Any, **named: Any) -> str:
        """Returns the line that asks for something: for the answer of a method of that name, with its arguments."""
        what, *given = words
        return json.dumps({"what": what, "given": given, "named": named})

    def is_answer(self, line: bytes) -> bool:
        """Whether a line answers a question. Another line is skipped."""
        return True

    def answer(self, line: bytes) -> Any:
        """Returns what the process answers with a line.

        Raises:
            ProcessFailed: It says that it failed.
        """
        said = json.loads(line)
        if "error" in said:
            raise ProcessFailed(f"{self.name}: {said['error']}\n{said.get('trace', '')}{self.last_words()}")
        return said["answer"]

    # Asking

    def begin(self, *words: Any, **named: Any) -> None:
        """Asks for something. `finish` returns the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self.question(*words, **named).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: we closed the file when the process ended.
            raise ProcessFailed(f"{self.name} ended before it was asked {words}: {self.last_words()}") from error

    def finish(self, timeout: float | None = None) -> Any:
        """Returns the next answer. `timeout`: how many seconds it may take. None: `timeout_s`."""
        timeout = self.timeout_s if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if not newline:
                self._read(deadline, timeout)
                continue
            self._rest = rest
            if self.is_answer(line):
                return self.answer(line)

    def _read(self, deadline: float, timeout: float) -> None:
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise ProcessFailed(f"{self.name} does not answer within {timeout:g} s: {self.last_words()}")
        data = os.read(file, 1 << 20)
        if not data:
            raise ProcessFailed(f"{self.name} ended by itself: {self.last_words()}")
        self._rest += data

    def ask(self, *words: Any, timeout: float | None = None, **named: Any) -> Any:
        """Asks for something and returns the answer."""
        self.begin(*words, **named)
        return self.finish(timeout)

    def last_words(self) -> str:
        """Returns the end of what the process wrote to its standard error."""
        if self._log.closed:
            return self._last_words
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _SHOWN, max(0, size - _SHOWN)).decode(errors="replace")

    # Its life

    def stop(self) -> None:
        """Sends SIGSTOP, and returns when it has come: the process is there, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_stopped = True
        eventually(self._stands_still, what=f"the stop of process {self.pid}")

    def _stands_still(self) -> bool:
        """Returns whether all threads have stopped. A thread that runs on another core goes on for a moment."""
        try:
            stats = [stat.read_text() for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # A thread has ended.
            return False
        return {stat.rpartition(")")[2].split()[0] for stat in stats} <= {"T", "t", "X", "Z"}

    def go_on(self) -> None:
        """Sends SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self._is_stopped = False

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process is gone. Does nothing if it is."""
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._close()

    def end(self, timeout: float = LIMIT_S) -> None:
        """Closes the standard input of the process, and returns when it has ended.

        Raises:
            ProcessFailed: It did not end in time, and was killed; or it ended with another status than 0.
        """
        if self._is_stopped and self.is_running:
            self.go_on()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ProcessFailed(f"{self.name} does not end within {timeout:g} s: {self.last_words()}") from error
        self._close()
        if status:
            raise ProcessFailed(f"{self.name} ended with {status}: {self.last_words()}")

    def _close(self) -> None:
        self._last_words = self.last_words()
        for file in (self._process.stdin, self._process.stdout, self._log):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill()
        elif not self._log.closed:  # We have not killed or ended it before.
            self.end()


# In the child


def tell(answer: Any) -> None:
    """Prints an answer that was not asked for: that the process is ready, for example."""
    print(json.dumps({"answer": answer}, default=str), flush=True)


def serve(handlers: object) -> None:
    """Answers each line of the standard input, until that ends: calls the method of `handlers` that the line names."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(handlers, asked["what"])(*asked["given"], **asked["named"])
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            print(json.dumps(said), flush=True)
        else:
            tell(answer)
