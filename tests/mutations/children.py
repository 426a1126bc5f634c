"""Owns the processes that a trial starts: each is ended with all that it has started, when the command is to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO


class Stopped(Exception):
    """The command is to end."""


class Children:
    """The processes that were started, so that all of them can be ended. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def start(self, command: list[str], tree: Path, errors: IO[str], output: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise Stopped
            child = subprocess.Popen(
                command,
                cwd=tree,
                env=environment_of(tree),
                stdout=output,
                stderr=errors,
                bufsize=0,  # So a line that has come is never in a buffer while the next one is waited for.
                start_new_session=True,  # Ctrl-C reaches this process, which ends them.
            )
            self._running.add(child)
            return child

    def end(self, child: subprocess.Popen[bytes]) -> None:
        """Ends a process with all that it has started."""
        with self._lock:
            self._running.discard(child)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()
        child.wait()

    def stop(self) -> None:
        """Ends all, and lets none begin."""
        with self._lock:
            self._is_stopped = True
            for child in self._running:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)

    def check(self) -> None:
        if self._is_stopped:
            raise Stopped


def environment_of(tree: Path) -> dict[str, str]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    compiler = "ccache cc" if shutil.which("ccache") else "cc"
    given = {"CC": compiler, "CCACHE_NOHASHDIR": "1", "PYWAN_BUILD_CACHE": f"{cache}/pywan", **os.environ}
    return {**given, "CCACHE_BASEDIR": str(tree), "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
