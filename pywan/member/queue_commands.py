"""Owns the member's commands about asynchronous event queues, and the commands about parked events, common to queues
and gateway senders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pywan.config import values
from pywan.config.attributes import AsyncEventQueueAttributes, AsyncEventQueueChanges
from pywan.config.options import Answer, Option, Shown, attribute_options, command
from pywan.config.table import to_plain
from pywan.errors import ConfigurationError, IllegalStateError, NotFoundError
from pywan.member.answers import (
    GATEWAYS,
    IF_EXISTS,
    MAX_PARKED_SHOWN,
    QUEUES,
    ledger_of,
    plain_map,
    sender_of,
    shown_value,
)

if TYPE_CHECKING:
    from pywan.member.core import MemberCore

QUEUE_ID = Option("id", "the queue's id", required=True)
# Options of commands about parked events: the user gives one of the two.
_OF_SENDER = Option("id", "the sender's id")
_OF_QUEUE = Option("async-event-queue-id", "the id of an asynchronous event queue, in place of a sender's")


class QueueCommands:
    """A part of `ManagementService`."""

    _member: MemberCore

    def on_create_async_event_queue(self, id: str, if_not_exists: Any = False, **attributes: Any) -> Answer:
        if id in self._member.senders.queues_by_id():
            if values.to_bool(if_not_exists, "if-not-exists"):
                return {"status": f'AsyncEventQueue "{id}" exists already; skipped', "changed": False}
            raise IllegalStateError(
                f"an async event queue with id {id!r} is already defined in member {self._member.name}; destroy it"
                " first, or choose another id"
            )
        self._member.create_async_event_queue(AsyncEventQueueAttributes.make(id, **attributes))
        return {"status": f'AsyncEventQueue "{id}" created on "{self._member.name}"', "changed": True}

    @command(
        QUEUES,
        "change a queue, also while it runs",
        attribute_options("async-event-queue", AsyncEventQueueChanges),
        keeps="alter",
        more="Geode changes it at the next start of a member",
    )
    def on_alter_async_event_queue(self, id: str, **attributes: Any) -> Answer:
        queue = self._queue(id)
        altered = queue.attributes.altered(**attributes)
        queue.alter(**{name: getattr(altered, name) for name in attributes})
        return {"status": f'AsyncEventQueue "{id}" altered on "{self._member.name}"', "changed": True}

    @command(QUEUES, "remove a queue (detach it from regions first)", QUEUE_ID, IF_EXISTS, keeps="remove")
    def on_destroy_async_event_queue(self, id: str, if_exists: Any = False) -> Answer:
        if id not in self._member.senders.queues_by_id() and values.to_bool(if_exists, "if-exists"):
            return {"status": f'AsyncEventQueue "{id}" is not there; skipped', "changed": False}
        self._queue(id).destroy()
        return {"status": f'AsyncEventQueue "{id}" destroyed on "{self._member.name}"', "changed": True}

    @command(
        QUEUES,
        "queue, but hand nothing to the listener",
        QUEUE_ID,
        more="It is an error if the queue does not run. Geode has no such command",
    )
    def on_pause_async_event_queue(self, id: str) -> Answer:
        queue = self._running_queue(id)
        if queue.is_paused:
            return {"status": f"AsyncEventQueue {id} is already paused on member {self._member.name}"}
        queue.pause()
        return {"status": f"AsyncEventQueue {id} is paused on member {self._member.name}"}

    @command(
        QUEUES,
        "hand events to the listener again, or at last: after `--pause-event-processing`",
        QUEUE_ID,
        more="It is an error if the queue does not run",
    )
    def on_resume_async_event_queue_dispatcher(self, id: str) -> Answer:
        queue = self._running_queue(id)
        if not queue.is_paused:
            return {"status": f"AsyncEventQueue {id} is not paused on member {self._member.name}"}
        queue.resume()
        return {"status": f"AsyncEventQueue {id} is resumed on member {self._member.name}"}

    def on_list_async_event_queues(self) -> Answer:
        return {
            "async_event_queues": [
                _queue_view(queue) for _, queue in sorted(self._member.senders.queues_by_id().items())
            ]
        }

    def on_describe_async_event_queue(self, id: str) -> Answer:
        queue = self._queue(id)
        return {**_queue_view(queue), "attributes": to_plain(queue.attributes), "stats": plain_map(queue.stats)}

    # --- parked events ---

    @command(
        GATEWAYS,
        "list events that the other site refused, or on which a listener failed",
        _OF_SENDER,
        _OF_QUEUE,
        Option("limit", "how many (100)"),
        shown=Shown(items="events", none="no events are parked"),
        more="Give the id of a sender, or of a queue",
    )
    def on_list_parked_events(
        self, id: str | None = None, async_event_queue_id: str | None = None, limit: Any = 100
    ) -> Answer:
        of = self._either("list parked-events", id, async_event_queue_id)
        shown = of._core.parked.shown(values.to_int(limit, "limit", 1, MAX_PARKED_SHOWN))
        return {
            "parked_count": of.parked_count,
            "events": [{name: shown_value(value) for name, value in event.items()} for event in shown],
        }

    @command(
        GATEWAYS,
        "send parked events again, or hand them to the listener again",
        _OF_SENDER,
        _OF_QUEUE,
        Option("force", "also events whose key may have been destroyed later", flag=True),
        shown=Shown(line=lambda answer: f"{answer['replayed']} parked events are sent again"),
    )
    def on_replay_parked_events(
        self, id: str | None = None, async_event_queue_id: str | None = None, force: Any = False
    ) -> Answer:
        of = self._either("replay parked-events", id, async_event_queue_id)
        return {"replayed": of._core.replay_parked_here(force=values.to_bool(force, "force"))}

    @command(
        GATEWAYS,
        "forget parked events",
        _OF_SENDER,
        _OF_QUEUE,
        shown=Shown(line=lambda answer: f"{answer['dropped']} parked events are dropped"),
    )
    def on_drop_parked_events(self, id: str | None = None, async_event_queue_id: str | None = None) -> Answer:
        return {"dropped": self._either("drop parked-events", id, async_event_queue_id)._core.drop_parked_here()}

    # --- look-up ---

    def _queue(self, id: Any) -> Any:
        queues = self._member.senders.queues_by_id()
        if id not in queues:
            raise NotFoundError(
                f"AsyncEventQueue {id} is not available on member {self._member.name}; queues there:"
                f" {', '.join(sorted(queues)) or 'none'}"
            )
        return queues[id]

    def _running_queue(self, id: Any) -> Any:
        queue = self._queue(id)
        if not queue.is_running:
            raise IllegalStateError(
                f"AsyncEventQueue {id} is not running on member {self._member.name}; start it first"
            )
        return queue

    def _either(self, op: str, sender_id: str | None, queue_id: str | None) -> Any:
        if (sender_id is None) == (queue_id is None):
            raise ConfigurationError(f"{op}: give either --id, of a sender, or --async-event-queue-id")
        return sender_of(self._member, sender_id) if queue_id is None else self._queue(queue_id)


def _queue_view(queue: Any) -> dict[str, Any]:
    """Returns the fields of an answer about a queue."""
    attributes = queue.attributes
    plain = to_plain(attributes)
    return {
        "id": queue.id,
        "type": "Parallel" if attributes.parallel else "Serial",
        "listener": plain["async_event_listener"],
        **{name: plain[name] for name in ("batch_size", "persistent", "disk_store_name", "maximum_queue_memory")},
        "pause_event_processing": attributes.pause_event_processing,
        "running": bool(queue.is_running),
        "paused": bool(queue.is_paused),
        "primary": bool(queue.is_primary),
        "queue_size": queue.queue_size,
        "parked_count": queue.parked_count,
        "ledger": plain_map(ledger_of(queue)),
        "lag": plain_map(queue.lag()),
        "status": queue.status,
    }
