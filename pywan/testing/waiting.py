"""Owns waiting for a condition that another thread or process makes true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A busy machine may need long for what usually takes a moment. A test that waits goes on as soon as it can, so only a
# test that fails takes this long.
LIMIT_S = 60.0

# What took less did not wait for a limit of `LIMIT_S` or more. A busy machine does in this time what takes no time.
SOON_S = LIMIT_S / 2


def eventually(condition: Callable[[], object], timeout: float = LIMIT_S, what: str = "the condition") -> None:
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
