"""A member with a gateway receiver, in a process of its own, for tests of a site that has several receivers. Its region
"data" is its own: the members of the site do not share it. The other end is `ReceivingMember`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pywan
from pywan.base.addresses import Address
from pywan.testing.processes import ChildProcess
from pywan.testing.site_processes import SiteProcess, serve_site

FREE_PORT = {"start_port": 0, "end_port": 0}


class ReceivingMember(ChildProcess):
    """Such a process. It has its receiver when the constructor returns.

    Attributes:
        port: The port on which its receiver listens.
    """

    def __init__(self, name: str, locator: Address, folder: Path, *, takes_s: float = 0.0, **receiver: Any) -> None:
        """`takes_s`: how long its listener takes for each event. The other arguments are those of its receiver."""
        super().__init__(name, [sys.executable, __file__], folder=folder)
        region = {"name": "data", "type": "NORMAL"}
        try:
            self.ask("join", name, str(locator), str(folder / name), [region])
            self.port = self.ask("receive", takes_s, **{**FREE_PORT, **receiver})
        except BaseException:
            self.kill()
            raise

    @property
    def connections(self) -> int:
        """The number of dispatchers that are connected to it, as it says itself."""
        return int(self.ask("connections"))

    @property
    def history(self) -> list[tuple[int, Any, Any]]:
        """The events of its region: when each was applied, by a clock of the machine, with key and value."""
        return [tuple(each) for each in self.ask("history")]


class _Noting(pywan.CacheListener):
    def __init__(self, events: list[tuple[int, Any, Any]], takes_s: float) -> None:
        self._events, self._takes_s = events, takes_s

    def _note(self, event: Any) -> None:
        time.sleep(self._takes_s)
        self._events.append((time.monotonic_ns(), event.key, event.new_value))

    after_create = after_update = _note


class _Receiving(SiteProcess):
    """The child's end."""

    def receive(self, takes_s: float, **attributes: Any) -> int:
        self._events: list[tuple[int, Any, Any]] = []
        self.cache.region("data").add_listener(_Noting(self._events, takes_s))
        return self.cache.create_gateway_receiver(**attributes).port

    @property
    def _receiver(self) -> pywan.GatewayReceiver:
        return self.cache.gateway_receiver

    def stop_receiver(self) -> None:
        self._receiver.stop()

    def start_receiver(self) -> int:
        self._receiver.start()
        return self._receiver.port

    def connections(self) -> int:
        return self._receiver.connection_count

    def history(self) -> list[tuple[int, Any, Any]]:
        return list(self._events)

    def sources(self) -> list[dict[str, Any]]:
        return self.cache._core.tombstones.sources.view()


if __name__ == "__main__":
    serve_site(_Receiving())
