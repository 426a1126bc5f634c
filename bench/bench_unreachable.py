"""Senders whose remote sites are not there: what member and locator take together of each second with 50 such senders,
beside 5, in processor time; and the threads that each of the 45 more senders adds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from measure import arguments, report

LOCATOR = """import sys, pywan
with pywan.Locator("locator", distributed_system_id=1, port=0) as locator:
    print(locator.port, flush=True)
    sys.stdin.read()"""
MEMBER = """import sys, pywan
cache = pywan.Cache("member", locators=f"127.0.0.1[{sys.argv[1]}]")
for n in range(int(sys.argv[2])):
    cache.create_gateway_sender(f"s{n}", remote_distributed_system_id=100 + n % int(sys.argv[3]))
print("ready", flush=True)
sys.stdin.read()"""


class Child:
    """A process of the given program, which has said its first line."""

    def __init__(self, program: str, *given: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()

    @property
    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def at_rest(senders: int, sites: int, seconds: float) -> tuple[float, int]:
    """Milliseconds of processor time each second, and the member's threads, some seconds after the start."""
    locator = Child(LOCATOR)
    children = [locator]
    try:
        member = Child(MEMBER, locator.first_line, senders, sites)
        children.append(member)
        assert member.first_line == "ready", "the member did not start"
        time.sleep(min(seconds, 3.0))  # The first retries come faster.
        before = sum(each.cpu_s for each in children)
        time.sleep(seconds)
        return (sum(each.cpu_s for each in children) - before) * 1000 / seconds, member.threads
    finally:
        for each in children:
            each.end()


def main() -> None:
    options = arguments(__doc__)
    seconds = options.size(10.0, 5.0, 1.0)
    os.chdir(tempfile.mkdtemp())
    for what, sites in (("one site", 1), ("as many sites", 50)):
        few, many = at_rest(5, min(sites, 5), seconds), at_rest(50, sites, seconds)
        report(f"50 senders to {what}, processor", many[0], max(few[0], 1.0), "5 senders", "", "ms each second")
        report(f"threads of a sender, {what}", (many[1] - few[1]) / 45, 2, "the limit", "2 or less", "threads")


if __name__ == "__main__":
    main()
