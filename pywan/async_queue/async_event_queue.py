"""Owns what users see of an asynchronous event queue."""

from __future__ import annotations

from typing import Any

from pywan.async_queue.listener_ends import ListenerEnds
from pywan.config.attributes import AsyncEventQueueAttributes, AsyncEventQueueChanges
from pywan.config.table import takes_changes
from pywan.forks import of_one_process
from pywan.gateway.queue_face import QueueFace


@of_one_process(lambda queue: queue._core.what)
class AsyncEventQueue(QueueFace):
    """Hands the events of the regions that it is attached to, to a listener in this member.

    A queue is made by `Cache.create_async_event_queue`.
    """

    @property
    def attributes(self) -> AsyncEventQueueAttributes:
        """The attributes that the queue has now."""
        attributes = self._core.attributes
        assert isinstance(attributes, AsyncEventQueueAttributes)
        return attributes

    @property
    def async_event_listener(self) -> Any:
        """The listener."""
        return self._ends().listener.made

    def _ends(self) -> ListenerEnds:
        ends = self._core.dispatchers.ends
        assert isinstance(ends, ListenerEnds)
        return ends

    @takes_changes(AsyncEventQueueChanges)
    def alter(self, changes: dict[str, Any]) -> None:
        """Changes attributes of the queue, which may be running. Either all changes are made or none.

        Keyword Args:
            **changes (Any): The attributes to change (docs/configuration.md says which ones can be changed).

        Raises:
            AsyncEventQueueConfigurationError: An attribute cannot be used.
            GatewaySenderError: The queue was destroyed.
        """
        self._core.alter(**changes)

    # How it shows itself

    def _names(self) -> dict[str, object]:
        return {"id": self._core.attributes.id}

    def _far_end(self) -> dict[str, object]:
        return {"listener": repr(self._ends().listener)}
