"""What a member and a locator keep of members that join and are killed: nothing that grows."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pywan
from pywan.testing import eventually

MEMBERS = 10
PROGRAM = """
import sys
import pywan

cache = pywan.Cache(sys.argv[1], locators=sys.argv[2])
cache.create_gateway_sender("ln", remote_distributed_system_id=2)
trades = cache.create_region("trades", type="REPLICATE", gateway_sender_ids=["ln"])
parts = cache.create_region("parts", redundant_copies=1)
for n in range(100):
    trades[n] = parts[n] = n
print("up", flush=True)
sys.stdin.read()
"""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_members_that_are_killed_leave_no_open_files_behind():
    """The collector of Python's cycles is off: a process that is idle may not run it for hours."""
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("stays", locators=str(locator.address)) as cache,
    ):
        cache.create_gateway_sender("ln", remote_distributed_system_id=2)
        trades = cache.create_region("trades", type="REPLICATE", gateway_sender_ids=["ln"])
        parts = cache.create_region("parts", redundant_copies=1)
        gc.collect()
        gc.disable()
        most = 0
        try:
            for n in range(MEMBERS):
                command = [sys.executable, "-c", PROGRAM, f"goes{n}", str(locator.address)]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout.readline() == "up\n"
                    trades["of it"] = parts["of it"] = n
                    process.kill()
                trades["after it"] = n  # It waits until the member is given up.
                if n < 2:  # What is made once is made.
                    most = max(most, open_files())
                    continue
                # Threads that end close their files.
                eventually(
                    lambda most=most: open_files() <= most, what=f"that {n + 1} killed members left no file open"
                )
        finally:
            gc.enable()
