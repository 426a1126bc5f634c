"""Owns processes whose disk can be made to hang or to fail: a library before the C library's looks at a file with
orders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty_disk.c")


class FaultyDisk:
    """`hold()` makes every sync of the processes that `start` starts wait, `fail(...)` makes calls fail; `let_go()`
    ends that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.orders = folder, folder / "orders"
        self._library = folder / "faulty_disk.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(self._library), "-ldl"], check=True)

    def hold(self) -> None:
        self.orders.touch()

    def fail(self, **errors: int) -> None:
        """Each of these calls of the C library has this error, for the files of stores and of overflow."""
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(" ".join(f"{call} {error}" for call, error in errors.items()))
        fresh.rename(self.orders)

    def let_go(self) -> None:
        self.orders.unlink(missing_ok=True)

    def start(self, program: str, *arguments: object, **more: object) -> subprocess.Popen:
        """Runs a Python program that says a word a line and is told by lines when to go on."""
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "FAULTY_DISK": str(self.orders),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            **more,
        )
