"""Owns what tells one process of the machine from another: when it began, and a name made of that, by which others tell
whether it has ended."""

from __future__ import annotations

import os
from pathlib import Path

_ENDED = "ZX"  # States of a process that runs no code any more, and that its parent has not collected yet.


def this_process() -> str:
    """Returns machine, pid and start of this process: "machine/pid/start". Empty if the system does not tell them."""
    machine, start = this_machine(), start_of(os.getpid())
    return f"{machine}/{os.getpid()}/{start}" if machine and start else ""


def has_ended(process: str) -> bool:
    """Returns whether that process is known to have ended. False also if it runs on another machine: nothing is known
    of it then."""
    machine, _, rest = process.partition("/")
    pid, _, start = rest.partition("/")
    return (
        bool(machine) and machine == this_machine() and pid.isascii() and pid.isdigit() and start_of(int(pid)) != start
    )


def this_machine() -> str:
    """Names this run of the machine, and the space of pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """Returns when the process began, in ticks of the system. Empty: there is no such process. One that has ended, and
    that its parent has not collected yet, does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # The command's name is in brackets, and may hold any character.
    if fields[0] not in _ENDED:
        return fields[19]
    try:  # The first thread may have ended before the others. Files and locks are open until the last one has.
        return fields[19] if len(os.listdir(f"/proc/{pid}/task")) > 1 else ""
    except OSError:
        return ""
