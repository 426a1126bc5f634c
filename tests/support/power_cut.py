"""Owns processes that end with a power cut: afterwards their folder has what was synced, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("power_cut.c")


class PowerCut:
    """A folder `disk`, which is empty at first, and processes that work in it.

    A file is lost if its folder was not synced since the file got its name. Bytes are lost that were not synced.
    """

    def __init__(self, folder: Path) -> None:
        self.disk, self._noted = folder / "disk", folder / "noted"
        self._library = folder / "power_cut.so"
        self.disk.mkdir()
        self._noted.mkdir()
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(self._library), "-pthread"], check=True)

    def start(self, program: str) -> subprocess.Popen[str]:
        """Runs a Python program, whose `disk` is the path of the folder."""
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "POWER_CUT": str(self._noted),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        head = "import pathlib, sys; disk = pathlib.Path(sys.argv[1])\n"
        return subprocess.Popen(
            [sys.executable, "-c", head + program, str(self.disk)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def there(self) -> dict[str, bytes]:
        """Returns the bytes of all files by their paths, as a process sees them."""
        return {
            str(path.relative_to(self.disk)): path.read_bytes()
            for path in sorted(self.disk.rglob("*"))
            if path.is_file() and path.stat().st_size <= 1 << 20
        }

    def left(self) -> dict[str, bytes]:
        """Returns the same as it would be after a power cut now."""
        return dict(self._left(self.disk.stat().st_ino, ""))

    def renamed_before_synced(self) -> set[str]:
        """Returns the names that files got before their bytes were synced. A power cut may leave empty files there."""
        listed = self._noted / "renamed"
        names = listed.read_text().splitlines() if listed.exists() else []
        return {str(Path(name).relative_to(self.disk)) for name in names}

    def _left(self, inode: int, prefix: str) -> list[tuple[str, bytes]]:
        found = []
        for line in self._note_of(inode).decode().splitlines():
            number, kind, name = line.split(" ", 2)
            if kind == "d":
                found += self._left(int(number), f"{prefix}{name}/")
            else:
                found.append((prefix + name, self._note_of(int(number))))
        return found

    def _note_of(self, inode: int) -> bytes:
        noted = self._noted / str(inode)
        return noted.read_bytes() if noted.exists() else b""
