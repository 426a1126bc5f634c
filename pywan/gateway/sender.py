"""Owns what users see of a gateway sender."""

from __future__ import annotations

from typing import Any

from pywan.config.attributes import SenderAttributes, SenderChanges
from pywan.config.table import takes_changes
from pywan.errors import GatewaySenderError
from pywan.forks import of_one_process
from pywan.gateway.balance import Balance
from pywan.gateway.queue_face import QueueFace
from pywan.gateway.receiver_ends import ReceiverEnds


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

    @property
    def receivers(self) -> list[dict[str, Any]]:
        """Where each dispatcher is: a map for each, with "dispatcher" (its number), "receiver" (`host:port`) and
        "member" (the receiver's member). The last two are None while it is not connected."""
        return [
            {
                "dispatcher": index,
                "receiver": None if place is None else str(place),
                "member": None if place is None else place.name,
            }
            for index, place in enumerate(self._core.dispatchers.receiver_places())
        ]

    def load_balance(self) -> dict[str, int]:
        """Moves connections to receivers that have fewer, until the loads of the remote site's receivers are even.

        A connection moves when all that was sent over it is acknowledged: nothing is lost, sent twice or overtaken. If
        `enforce_threads_connect_same_receiver` is true, all connections move together, or none does. It takes 30 s at
        most.

        Returns:
            The number of "connections", how many of them "moved", and how many should have moved but were "busy":
                their receiver did not acknowledge within 10 s what was on its way.

        Raises:
            GatewaySenderError: The sender does not run, or a filter of its own calls this.
            NoLocatorError: No locator of the remote site answers.
        """
        if not self.is_running:
            raise GatewaySenderError(f"{self._core.what} does not run, so it has no connections to move; start it")
        ends = self._core.dispatchers.ends
        assert isinstance(ends, ReceiverEnds)
        with ends.balancing:
            return Balance(self._core.dispatchers, ends, self._core.what).even_out()._asdict()

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
        places = filter(None, self._core.dispatchers.receiver_places())
        return {"receiver": ", ".join(dict.fromkeys(map(str, places))) or "none"}
