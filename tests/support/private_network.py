"""Owns a network of its own for the processes of a test, in which links are cut and healed.

Each process gets a network namespace with one address. A bridge in another namespace connects them. No packet leaves
the machine, and nothing of its own network changes. It needs root, `ip` (iproute2) and `unshare` (util-linux).
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterable
from types import TracebackType

from pywan.testing.waiting import LIMIT_S

HOLD_S = 600  # The namespaces end after this time, if nobody ends them before.


@functools.cache
def why_not() -> str:
    """Returns why no network can be made here. Empty: it can."""
    missing = [each for each in ("ip", "unshare", "nsenter") if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} is not there; install iproute2 and util-linux"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "hub", "type", "bridge"], capture_output=True, text=True, timeout=30
    )
    return "" if tried.returncode == 0 else f"no network namespace can be made: {tried.stderr.strip()}"


class PrivateNetwork:
    """A context manager: its namespaces are gone at its end, with the links in them."""

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._hold("")
        self._ip("", "link add hub type bridge")
        self._ip("", "link set hub up")

    def _hold(self, name: str) -> None:
        """A namespace lives as long as a process in it."""
        holder = self._holders[name] = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", f"echo; exec sleep {HOLD_S}"], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdout.readline(), "no network namespace could be made"

    def prefix(self, name: str) -> list[str]:
        """Returns what stands before a command to run it in the namespace."""
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net", "--"]

    def _ip(self, name: str, arguments: str) -> None:
        subprocess.run([*self.prefix(name), "ip", *arguments.split()], check=True, timeout=30)

    def address(self, name: str) -> str:
        """Returns the address of a process, and makes its namespace the first time."""
        if name not in self._holders:
            number = len(self._holders)
            self._hold(name)
            self._ip("", f"link add port{number} type veth peer name eth0 netns {self._holders[name].pid}")
            self._ip("", f"link set port{number} master hub up")
            self._ip(name, f"addr add 10.9.0.{number}/24 dev eth0")
            self._ip(name, "link set eth0 up")
            self._ip(name, "link set lo up")
        return f"10.9.0.{list(self._holders).index(name)}"

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """From now on nothing that a sender sends arrives at a receiver; the other way stays."""
        receivers = list(receivers)
        for sender in senders:
            for receiver in receivers:
                self._ip(sender, f"route add blackhole {self.address(receiver)}/32")
                self._cut.add((sender, receiver))

    def part(self, some: Iterable[str], others: Iterable[str]) -> None:
        """From now on nothing passes between two groups."""
        some, others = list(some), list(others)
        self.cut(some, others)
        self.cut(others, some)

    def heal(self) -> None:
        for sender, receiver in sorted(self._cut):
            self._ip(sender, f"route del blackhole {self.address(receiver)}/32")
        self._cut.clear()

    def __enter__(self) -> PrivateNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait(LIMIT_S)
            assert holder.stdout is not None
            holder.stdout.close()
