"""Owns what users see of an asynchronous event queue."""

from __future__ import annotations

from typing import Any

from pywan.async_queue.listener_ends import ListenerEnds
from pywan.base.amounts import size_text
from pywan.config.attributes import AsyncEventQueueAttributes, AsyncEventQueueChanges
from pywan.config.table import takes_changes
from pywan.forks import is_inherited, of_one_process
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

    def _line(self) -> str:
        core = self._core
        words = core.attributes.id
        if is_inherited(self):
            return f"{words}, of the parent process"
        return f"{words}, {core.status.text}, {len(core.queue):,} queued, {len(core.parked):,} parked"

    def _facts(self) -> dict[str, object]:
        core, attributes = self._core, self._core.attributes
        facts: dict[str, object] = {"id": attributes.id}
        if is_inherited(self):
            return {**facts, "state": "of the parent process"}
        return {
            **facts,
            "state": core.status.text,
            "listener": repr(self._ends().listener),
            "queued events": len(core.queue),
            "queued bytes": size_text(core.queue.bytes),
            "parked events": len(core.parked),
            "parallel": attributes.parallel,
            "persistent": attributes.enable_persistence,
            "dispatcher threads": attributes.dispatcher_threads,
        }
