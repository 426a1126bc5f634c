"""Owns the tree of errors. They are grouped by who is at fault. Every message names the thing, the value and the
remedy."""

from __future__ import annotations

from typing import Any


class PywanError(Exception):
    """The base of all errors that pywan raises on purpose.

    Attributes:
        in_doubt: Whether the operation may have happened all the same. A connection broke before its answer came.
    """

    in_doubt: bool = False


# The caller is at fault: a wrong value, a wrong name, a wrong state.


class ConfigurationError(PywanError, ValueError):
    """A value in the configuration or in a call cannot be used."""


class GatewaySenderConfigurationError(ConfigurationError):
    """A sender's attributes contradict each other, the region that it is attached to, or the site."""


class AsyncEventQueueConfigurationError(ConfigurationError):
    """The attributes of an asynchronous event queue cannot be used."""


class CacheXmlError(ConfigurationError):
    """A configuration file cannot be used. The message begins with `file:line:`."""


class IllegalStateError(PywanError, RuntimeError):
    """The call does not fit the state of the object: it exists already, is not running, is closed, or is still
    attached."""


class GatewaySenderError(IllegalStateError):
    """A gateway sender cannot do this now."""


class GatewayReceiverError(IllegalStateError):
    """A gateway receiver cannot do this now, or cannot listen where its attributes say."""


class IncompatibleSystemError(PywanError):
    """Two processes of one site disagree about the site: its distributed-system-id, or a sender's attributes."""


class NotFoundError(PywanError, LookupError):
    """There is no region, sender, member or disk store of that name."""


class RegionNotFoundError(NotFoundError):
    """The member has no region of that name."""


class SerializationError(PywanError, TypeError):
    """A key or value cannot be turned into bytes, or bytes cannot be turned back into an object."""

    _steps: list[str] | None = None  # The way to the part that is refused, while the core goes back along it.


class EventTooLargeError(PywanError, ValueError):
    """A key, value or callback argument is over its limit. Nothing was stored."""


# The surroundings are at fault: the network, a disk, the other side.


class ConnectivityError(PywanError, ConnectionError):
    """There is no connection, or it broke. The message says where to, and what became of the data."""


class NoLocatorError(ConnectivityError):
    """No locator answers at the given addresses."""


class PortInUseError(ConnectivityError):
    """Another process listens on that port already."""


class ProtocolError(PywanError):
    """The other side sent bytes that are not of this protocol, or that are damaged."""


class AuthenticationError(PywanError):
    """The other side does not know who this is: credentials are missing or wrong, or may not be sent in the open."""


class NotAuthorizedError(PywanError):
    """The other side knows who this is, and does not let them do that."""


class RemoteError(PywanError):
    """The other side understood the request and refused it. The message holds its words."""


class QueueFullError(PywanError):
    """A queue could not take an event in time: the disk is full, or a limit is reached. The operation did not
    happen."""


class DiskError(PywanError, OSError):
    """An operation on a file of a queue or store failed. The message names the file and the reason."""


class DiskAccessError(QueueFullError, DiskError):
    """A log cannot be written at present, for example because its disk is full. The operation did not happen."""


class LowMemoryError(QueueFullError):
    """A member is above its limit of memory, and takes only changes that need no memory: destroys, clears, values that
    are not longer. The operation did not happen."""


class OutOfMemoryError(PywanError, MemoryError):
    """A process had no memory for what it was asked to do. A part of it may have been done."""


class BatchError(PywanError):
    """Some rows of a bulk operation failed. All others were done.

    Attributes:
        failures: The (row, reason) of each row that failed. Rows count from 0.
        applied: How many rows took effect.
    """

    def __init__(self, message: str, failures: list[tuple[int, str]] | None = None, applied: int = 0):
        super().__init__(message)
        self.failures = failures or []
        self.applied = applied


# pywan is at fault.


class DataLossError(PywanError):
    """The ledger of a sender does not balance: events are unaccounted for.

    Attributes:
        ledger: All entries of the ledger.
    """

    def __init__(self, message: str, ledger: dict[str, Any] | None = None):
        super().__init__(message)
        self.ledger = ledger or {}


class InternalError(PywanError):
    """An invariant of pywan itself does not hold. Please report it."""
