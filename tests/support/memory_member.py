"""The program of the processes of a `MemorySite`: locator and members that fill a region, or read it, for a while."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from pywan.base.machine_memory import process_bytes
from pywan.errors import LowMemoryError
from pywan.testing.site_processes import SiteOfProcesses, SiteProcess, serve_site


class MemorySite(SiteOfProcesses):
    program: ClassVar[Path] = Path(__file__).resolve()


class MemoryProcess(SiteProcess):
    def fill(self, region: str, prefix: str, length: int, count: int) -> tuple[int, str]:
        """Puts up to `count` new keys, until one is refused. Returns how many there are, and the words."""
        there, value = self.cache.region(region), "v" * length
        for n in range(count):
            try:
                there[f"{prefix} {n}"] = value
            except LowMemoryError as error:
                return n, str(error)
        return count, ""

    def put_each(self, region: str, prefix: str, length: int, count: int) -> int:
        """Puts new keys, and returns how many of them were refused."""
        return sum(self.fill(region, f"{prefix} {n}", length, 1)[0] == 0 for n in range(count))

    def fill_for(self, region: str, prefix: str, length: int, seconds: float) -> dict[str, float]:
        """Puts new keys all the time, also those that are refused. Returns what happened, and the most bytes of the
        process."""
        there, value = self.cache.region(region), "v" * length
        until, n, refused, most, looked = time.monotonic() + seconds, 0, 0, 0, 0.0
        while (now := time.monotonic()) < until:
            try:
                there[f"{prefix} {n}"] = value
            except LowMemoryError:
                refused += 1
            n += 1
            if now - looked > 0.01:
                most, looked = max(most, process_bytes()), now
        return {"entries": len(there), "puts": n, "refused": refused, "most": most}

    def read_for(self, region: str, prefix: str, seconds: float) -> dict[str, float]:
        """Reads the first keys all the time. Returns how many reads there were, and the longest."""
        there = self.cache.region(region)
        until, reads, longest, found = time.monotonic() + seconds, 0, 0.0, 0
        while (begun := time.monotonic()) < until:
            found += there.get(f"{prefix} {reads % 1000}") is not None
            reads += 1
            longest = max(longest, time.monotonic() - begun)
        return {"reads": reads, "found": found, "longest": longest}

    def destroy(self, region: str, prefix: str, first: int, count: int) -> None:
        there = self.cache.region(region)
        for n in range(first, first + count):
            del there[f"{prefix} {n}"]


if __name__ == "__main__":
    serve_site(MemoryProcess())
