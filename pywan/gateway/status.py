"""Owns the words for the state of gateway senders and receivers: Geode's."""

from __future__ import annotations

from typing import NamedTuple

NOT_RUNNING = "Not running"


class SenderStatus(NamedTuple):
    """What a sender does, at one moment."""

    is_running: bool
    is_paused: bool
    is_connected: bool  # To a receiver, with one dispatcher at least.

    @property
    def text(self) -> str:
        """As `list gateways` shows it."""
        if not self.is_running:
            return NOT_RUNNING
        if self.is_paused:
            return "Paused"
        return "Running and Connected" if self.is_connected else "Running, not Connected"


def receiver_status(is_running: bool) -> str:
    return "Running" if is_running else NOT_RUNNING
