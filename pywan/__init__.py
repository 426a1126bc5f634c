"""pywan keeps regions consistent over several sites.

The names of this package are loaded when they are first used. So a Spark executor that imports `pywan` loads only what
it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Cache": "pywan.member.cache",
    "Region": "pywan.region.region",
    "Locator": "pywan.site.locator",
    "GatewaySender": "pywan.gateway.sender",
    "GatewayReceiver": "pywan.gateway.receiver",
    "GatewayEventFilter": "pywan.callbacks",
    "GatewayEventSubstitutionFilter": "pywan.callbacks",
    "GatewayConflictResolver": "pywan.callbacks",
    "CacheListener": "pywan.callbacks",
    "AsyncEventListener": "pywan.callbacks",
    "AsyncEventQueue": "pywan.async_queue.async_event_queue",
    "AsyncEvent": "pywan.events",
    "register_serializer": "pywan.serializers",
    "decode_tagged": "pywan.serializers",
    "Undecodable": "pywan.serializers",
}
_ERRORS = (
    "PywanError",
    "ConfigurationError",
    "GatewaySenderConfigurationError",
    "AsyncEventQueueConfigurationError",
    "CacheXmlError",
    "IllegalStateError",
    "GatewaySenderError",
    "GatewayReceiverError",
    "IncompatibleSystemError",
    "NotFoundError",
    "RegionNotFoundError",
    "SerializationError",
    "EventTooLargeError",
    "ConnectivityError",
    "NoLocatorError",
    "PortInUseError",
    "ProtocolError",
    "AuthenticationError",
    "NotAuthorizedError",
    "RemoteError",
    "QueueFullError",
    "LowMemoryError",
    "DiskError",
    "DiskAccessError",
    "OutOfMemoryError",
    "BatchError",
    "DataLossError",
    "InternalError",
)
_HOME.update(dict.fromkeys(_ERRORS, "pywan.errors"))

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - The keys are names.

if TYPE_CHECKING:
    from pywan.async_queue.async_event_queue import AsyncEventQueue as AsyncEventQueue
    from pywan.callbacks import (
        AsyncEventListener as AsyncEventListener,
        CacheListener as CacheListener,
        GatewayConflictResolver as GatewayConflictResolver,
        GatewayEventFilter as GatewayEventFilter,
        GatewayEventSubstitutionFilter as GatewayEventSubstitutionFilter,
    )
    from pywan.errors import *  # noqa: F403
    from pywan.events import AsyncEvent as AsyncEvent
    from pywan.gateway.receiver import GatewayReceiver as GatewayReceiver
    from pywan.gateway.sender import GatewaySender as GatewaySender
    from pywan.member.cache import Cache as Cache
    from pywan.region.region import Region as Region
    from pywan.serializers import (
        Undecodable as Undecodable,
        decode_tagged as decode_tagged,
        register_serializer as register_serializer,
    )
    from pywan.site.locator import Locator as Locator


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'pywan' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
