"""Owns waiting for a condition that another thread or process makes true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], timeout: float = 10.0, what: str = "the condition") -> None:
    """Returns as soon as `condition()` is true.

    Args:
        condition: A function without arguments.
        timeout: How many seconds to wait at most.
        what: The words for the condition in the error.

    Raises:
        AssertionError: The condition did not come true in time.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        threading.Event().wait(0.01)
