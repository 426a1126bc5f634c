"""Owns processes whose disk can be made slow: every sync waits while a file is there."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")


class SlowDisk:
    """`hold()` makes the disk of the processes that `start` starts hang; `let_go()` ends that."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.flag = folder, folder / "hold"
        self._library = folder / "slow_disk.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(self._library), "-ldl"], check=True)

    def hold(self) -> None:
        self.flag.touch()

    def let_go(self) -> None:
        self.flag.unlink(missing_ok=True)

    def start(self, program: str, *arguments: object) -> subprocess.Popen:
        """Runs a Python program that says a word a line and is told by lines when to go on."""
        environment = {**os.environ, "LD_PRELOAD": str(self._library), "SLOW_DISK": str(self.flag), "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
