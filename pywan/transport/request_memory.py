"""Owns how much memory the control requests of a process take together: those that are not whole yet, those that are
worked on, and answers that nobody takes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from pywan.base.amounts import size_text
from pywan.errors import ProtocolError
from pywan.forks import in_child

ARRIVING_BYTES_MAX = 256 << 20
UNPACKED_BYTES_MAX = 128 << 20
ANSWER_BYTES_MAX = 128 << 20
FREE_BYTES = 1 << 16  # So many bytes of a request or an answer are not counted.
VALUE_BYTES = 96  # About what a value takes once it is unpacked: an empty map, and its place in a list.


class Pot:
    """Bytes of one use, for all connections of the process together. Any thread may use it.

    Args:
        most: How many bytes there may be.
        what: What they are, for errors.
    """

    def __init__(self, most: int, what: str) -> None:
        self.most, self._what = most, what
        self._changed = threading.Condition()
        self._taken = 0  # `_changed` guards it.

    def change(self, before: int, now: int, wait_s: float = 0.0) -> None:
        """Counts `now` bytes for what took `before`. If there is no room, it waits that long.

        ProtocolError: there was no room. Nothing is changed, then.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            while now > before and self._taken + now - before > self.most:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise ProtocolError(
                        f"{self._what} take {size_text(self._taken)}, and {size_text(self.most)} are possible; ask"
                        " again later"
                    )
                self._changed.wait(left_s)
            self._taken += now - before
            if now < before:
                self._changed.notify_all()

    @contextlib.contextmanager
    def holding(self, bytes_: int) -> Iterator[None]:
        """Counts that many bytes while the block runs, without the free ones. ProtocolError: there is no room."""
        counted = max(0, bytes_ - FREE_BYTES)
        self.change(0, counted)
        try:
            yield
        finally:
            self.change(counted, 0)


class RequestMemory:
    """The three pots of a process."""

    def __init__(self) -> None:
        self.arriving = Pot(ARRIVING_BYTES_MAX, "requests that are not whole yet")
        self.unpacked = Pot(UNPACKED_BYTES_MAX, "requests that are worked on")
        self.answers = Pot(ANSWER_BYTES_MAX, "answers that nobody has taken yet")


class RequestCounts:
    """What one connection has in the pots. Its own thread uses it.

    Args:
        memory: Of the process.
        wait_s: So long a request waits for room to be unpacked. Those before it are worked on meanwhile.
    """

    def __init__(self, memory: RequestMemory, wait_s: float) -> None:
        self._memory, self._wait_s = memory, wait_s
        self._arriving = self._unpacked = 0

    def arrives(self, buffered: int) -> None:
        """So many bytes of a request are here. ProtocolError: there is no room for them."""
        now = max(0, buffered - FREE_BYTES)
        self._memory.arriving.change(self._arriving, now)
        self._arriving = now

    def unpacks(self, length: int, values: int) -> None:
        """A whole request is about to be unpacked. ProtocolError: there was no room for it in time."""
        wanted = max(0, length + values * VALUE_BYTES - FREE_BYTES)
        self._memory.unpacked.change(0, wanted, self._wait_s)
        self._unpacked = wanted
        self.arrives(0)

    def is_done(self) -> None:
        """Nothing is left of the request that was unpacked."""
        self._memory.unpacked.change(self._unpacked, 0)
        self._unpacked = 0

    def end(self) -> None:
        """The connection has ended."""
        self.is_done()
        self.arrives(0)


# A child counts anew: the connections are its parent's.
MEMORY = in_child(RequestMemory(), RequestMemory.__init__)

__all__ = ["MEMORY", "Pot", "RequestCounts", "RequestMemory"]
