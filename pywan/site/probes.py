"""Owns the threads of a locator's probes: a probe checks whether a member still listens."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from pywan.base.lines import Lines
from pywan.base.processes import has_ended
from pywan.base.threads import Workers
from pywan.coordination.tables import MemberProfile, Reach
from pywan.errors import ConnectivityError, PywanError
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.coordinator")

PROBE_TIMEOUT_S = 1.0
PROBES_AT_ONCE = 8  # Further probes wait in a queue.


class Prober:
    """Any thread may call the prober. A thread of the prober calls `on_end(profile, reach, has_gone)`."""

    def __init__(
        self, locator: str, on_end: Callable[[MemberProfile, Reach, bool], object], way: Way = PLAIN.cluster
    ) -> None:
        """`way`: connects to members."""
        self._way = way
        self._locator, self._on_end, self._lines = locator, on_end, Lines(log)
        self._pool = Workers(PROBES_AT_ONCE, name=f"locator {locator}-probe")

    def stop(self) -> None:
        self._pool.stop(wait=False)

    def begin(self, profile: MemberProfile) -> bool:
        """Returns whether the member will be probed."""
        try:
            self._pool.submit(self._probe, profile)
        except (RuntimeError, MemoryError) as error:  # The locator is being stopped, or no thread is free now.
            self._lines.warning("locator %s: member %s is not probed: %s", self._locator, profile.incarnation, error)
            return False
        return True

    def _probe(self, profile: MemberProfile) -> None:
        """Probes a member. For a process of this machine the operating system is asked first: an ended process is
        proof."""
        has_gone = has_ended(profile.process)
        reach = Reach.REFUSED if has_gone else reach_of(profile, self._way)
        has_gone = has_gone or (reach is Reach.REFUSED and has_ended(profile.process))
        if self._on_end(profile, reach, has_gone) and reach is not Reach.ANSWERED:
            self._lines.warning(
                "locator %s: member %s at %s[%d] %s",
                self._locator,
                profile.incarnation,
                profile.host,
                profile.port,
                "has ended" if has_gone else "does not listen any more" if reach is Reach.REFUSED else "is silent",
            )


def reach_of(profile: MemberProfile, way: Way = PLAIN.cluster) -> Reach:
    """Connects to a member's port, and asks for the incarnation of the process behind the port.

    A stopped process (SIGSTOP) still accepts connections. An ending process may accept a last connection and reset the
    connection.
    """
    address = (profile.host, profile.port)
    for is_last in (False, True):
        try:
            socket.create_connection(address, PROBE_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return Reach.REFUSED
        except OSError:
            return Reach.SILENT
        try:
            reply = call_once(address, "ping", timeout=PROBE_TIMEOUT_S, way=way)
        except ConnectivityError:
            if not is_last:
                time.sleep(0.02)  # The process may be ending: the port is closed a moment later.
            continue
        except PywanError:
            return Reach.ANSWERED
        there = reply.get("incarnation", profile.incarnation.member_id)
        return Reach.ANSWERED if there == profile.incarnation.member_id else Reach.REFUSED
    return Reach.ANSWERED
