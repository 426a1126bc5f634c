"""Owns the tree of errors. Split by who is at fault; every message names the thing, the value and the remedy."""

from __future__ import annotations

from typing import Any


class PywanError(Exception):
    """Anything pywan raises on purpose."""


# The caller's fault: a wrong value, a wrong name, a wrong state.


class ConfigurationError(PywanError, ValueError):
    """A value in the configuration or in a call that cannot be used."""


class GatewaySenderConfigurationError(ConfigurationError):
    """A sender's attributes contradict each other, the region it is attached to, or the site."""


class AsyncEventQueueConfigurationError(ConfigurationError):
    """The same for an asynchronous event queue."""


class CacheXmlError(ConfigurationError):
    """A configuration file cannot be used; the message starts with `file:line:`."""


class IllegalStateError(PywanError, RuntimeError):
    """The call does not fit the state of the object: already there, not running, closed, still attached."""


class GatewaySenderError(IllegalStateError):
    """A gateway sender cannot do this now."""


class GatewayReceiverError(IllegalStateError):
    """A gateway receiver cannot do this now, or cannot listen where it was told to."""


class IncompatibleSystemError(PywanError):
    """Two processes of one site disagree about what the site is (its distributed-system-id, a sender's attributes)."""


class NotFoundError(PywanError, LookupError):
    """No region, sender, member or disk store of that name."""


class RegionNotFoundError(NotFoundError):
    """No region of that name on the member."""


class SerializationError(PywanError, TypeError):
    """A key or value cannot be turned into bytes, or bytes cannot be turned back."""


class EventTooLargeError(PywanError, ValueError):
    """A key, value or callback argument is over its limit; nothing was stored."""


# The world's fault: network, disk, the other side.


class ConnectivityError(PywanError, ConnectionError):
    """No connection, or it broke; says where to and what became of the data."""


class NoLocatorError(ConnectivityError):
    """No locator answers at the given addresses."""


class PortInUseError(ConnectivityError):
    """Somebody listens on that port already."""


class ProtocolError(PywanError):
    """The other side sent bytes that are not of this protocol, or are damaged."""


class RemoteError(PywanError):
    """The other side understood the request and refused it; its words are the message."""


class QueueFullError(PywanError):
    """A queue could not take an event in time (disk full, or a limit); the operation did not happen."""


class DiskError(PywanError, OSError):
    """A file operation under a queue or store failed; names the file and the reason."""


class DiskAccessError(QueueFullError, DiskError):
    """A log is not written, and not since its disk is full; the operation did not happen."""


class OutOfMemoryError(PywanError, MemoryError):
    """A process had no memory for what it was asked; part of it may have been done."""


class BatchError(PywanError):
    """Some rows of a bulk operation failed; `failures` lists (row, reason), the others were done."""

    def __init__(self, message: str, failures: list[tuple[int, str]] | None = None):
        super().__init__(message)
        self.failures = failures or []


# Our fault.


class DataLossError(PywanError):
    """The ledger of a sender does not balance: events are unaccounted for. `ledger` holds all of its entries."""

    def __init__(self, message: str, ledger: dict[str, Any] | None = None):
        super().__init__(message)
        self.ledger = ledger or {}


class InternalError(PywanError):
    """An invariant of pywan itself does not hold; please report it."""
