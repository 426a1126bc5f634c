"""Owns the words for the state of gateway senders and receivers. They are Geode's."""

from __future__ import annotations

from typing import NamedTuple

NOT_RUNNING = "Not running"


class SenderStatus(NamedTuple):
    """What a sender does at one moment."""

    is_running: bool
    is_paused: bool
    is_connected: bool  # Whether at least one dispatcher is connected to a receiver, or its listener works.
    running_words: tuple[str, str]  # The state in words while it is connected, and while it is not.

    @property
    def text(self) -> str:
        """The state in words, as `list gateways` shows it."""
        if not self.is_running:
            return NOT_RUNNING
        if self.is_paused:
            return "Paused"
        return self.running_words[0 if self.is_connected else 1]


def receiver_status(is_running: bool) -> str:
    """Returns the state of a receiver in words."""
    return "Running" if is_running else NOT_RUNNING
