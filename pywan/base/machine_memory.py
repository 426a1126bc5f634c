"""Owns what the system says of memory: of this process, and of the machine or the cgroup that the process is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUPS = Path("/sys/fs/cgroup")
NO_CGROUP_LIMIT = 1 << 60  # A cgroup of version 1 without a limit names a number above this.


def process_bytes() -> int:
    """Returns how many bytes of memory this process takes that the system cannot take back: those of mapped files do
    not count."""
    with open("/proc/self/statm", "rb") as file:
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * PAGE_BYTES


def machine_bytes() -> int:
    """Returns how many bytes the machine has, or the cgroup may take if that is less."""
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _cgroups())])


def left_bytes() -> int:
    """Returns how many bytes the machine can still give, or the cgroup may still take if that is less."""
    left = [_meminfo("MemAvailable")]
    for limit, folder in _cgroups():
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if used is not None:
            left.append(max(0, limit - (used - _inactive_file(folder))))
    return min(left)


def _meminfo(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return NO_CGROUP_LIMIT


def _cgroups() -> Iterator[tuple[int, Path]]:
    """The cgroups with a limit that this process is in, with that limit, from the innermost one outwards."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = CGROUPS / "memory" if controllers else CGROUPS
            folder = top / name.lstrip("/")
            # In a container the name may be that outside it, where there is no such folder inside.
            for each in (folder, *folder.parents) if folder.is_dir() else (top,):
                limit = _number(each, "memory.max", "memory.limit_in_bytes")
                if limit is not None and limit < NO_CGROUP_LIMIT:
                    yield limit, each
                if each == top:
                    break


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text(encoding="ascii"))
    return None


def _inactive_file(folder: Path) -> int:
    """The bytes of files in the cgroup that the system can take back at once."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
