"""Waiting for what another thread or process makes true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], timeout: float = 10.0, what: str = "the condition") -> None:
    """Returns as soon as `condition()` is true; AssertionError if it is not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        threading.Event().wait(0.01)
