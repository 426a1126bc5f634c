"""Owns the words for the state of gateway senders and receivers. They are Geode's."""

from __future__ import annotations

from typing import NamedTuple

NOT_RUNNING = "Not running"


class SenderStatus(NamedTuple):
    """What a sender does at one moment."""

    is_running: bool
    is_paused: bool
    is_connected: bool  # Whether at least one dispatcher is connected to a receiver.

    @property
    def text(self) -> str:
        """The state in words, as `list gateways` shows it."""
        if not self.is_running:
            return NOT_RUNNING
        if self.is_paused:
            return "Paused"
        return "Running and Connected" if self.is_connected else "Running, not Connected"


def receiver_status(is_running: bool) -> str:
    """Returns the state of a receiver in words."""
    return "Running" if is_running else NOT_RUNNING
