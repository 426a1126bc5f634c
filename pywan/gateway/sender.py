"""Owns what users see of a gateway sender."""

from __future__ import annotations

from typing import Any

from pywan.config.attributes import SenderAttributes, SenderChanges
from pywan.config.table import takes_changes
from pywan.forks import of_one_process
from pywan.gateway.queue_face import QueueFace


@of_one_process(lambda sender: sender._core.what)
class GatewaySender(QueueFace):
    """Sends the events of the regions that it is attached to, to one remote site.

    A sender is made by `Cache.create_gateway_sender`.
    """

    @property
    def attributes(self) -> SenderAttributes:
        """The attributes that the sender has now."""
        attributes = self._core.attributes
        assert isinstance(attributes, SenderAttributes)
        return attributes

    @property
    def is_connected(self) -> bool:
        """Whether at least one dispatcher is connected to a receiver."""
        return self._core.status.is_connected

    @property
    def receiver_location(self) -> str | None:
        """`host:port` of a receiver that the sender is connected to. None: it is not connected."""
        place = self._core.dispatchers.receiver_place
        return None if place is None else str(place)

    @takes_changes(SenderChanges)
    def alter(self, changes: dict[str, Any]) -> None:
        """Changes attributes of the sender, which may be running. Either all changes are made or none.

        Keyword Args:
            **changes (Any): The attributes to change (docs/configuration.md says which ones can be changed).

        Raises:
            GatewaySenderConfigurationError: An attribute cannot be used.
            GatewaySenderError: The sender was destroyed.
        """
        self._core.alter(**changes)

    # How it shows itself

    def _names(self) -> dict[str, object]:
        return {"id": self._core.id, "remote site": str(min(self._core.attributes.reaches))}

    def _far_end(self) -> dict[str, object]:
        return {"receiver": str(self._core.dispatchers.receiver_place or "none")}
