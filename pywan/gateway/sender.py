"""Owns what users see of a gateway sender."""

from __future__ import annotations

from typing import Any

from pywan.base.faces import Face
from pywan.config.attributes import SenderAttributes, SenderChanges
from pywan.config.table import takes_changes
from pywan.forks import of_one_process
from pywan.gateway.sender_core import SenderCore
from pywan.stats import check_ledger, ledger


@of_one_process(lambda sender: f"gateway sender {sender._core.id!r}")
class GatewaySender(Face):
    """Sends the events of the regions it is attached to to one remote site. Made by `Cache.create_gateway_sender`."""

    def __init__(self, core: SenderCore) -> None:
        self._core = core

    def _take_place(self, core: SenderCore) -> None:
        """From now on it is this one that it shows."""
        self._core = core

    # What it is

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def attributes(self) -> SenderAttributes:
        return self._core.attributes

    @property
    def is_running(self) -> bool:
        return self._core.is_running

    @property
    def is_paused(self) -> bool:
        return self._core.status.is_paused

    @property
    def is_connected(self) -> bool:
        return self._core.status.is_connected

    @property
    def is_primary(self) -> bool:
        """Whether this member dispatches: with one member in the site, whenever it runs."""
        return self._core.is_running

    @property
    def status(self) -> str:
        """As `list gateways` shows it."""
        return self._core.status.text

    @property
    def receiver_location(self) -> str | None:
        """host:port of a receiver it is connected to."""
        place = self._core.dispatchers.receiver_place
        return None if place is None else str(place)

    @property
    def queue_size(self) -> int:
        """Events waiting or on their way. A stopped serial sender shows 0, as Geode's does; its events are kept."""
        return self._core.queue_size

    @property
    def stats(self) -> dict[str, Any]:
        """GatewaySenderStatistics, in snake_case."""
        return self._core.statistics()

    def ledger(self) -> dict[str, Any]:
        """What became of every event; see docs/operations.md. DataLossError, which has the entries, if they do not
        add up."""
        entry = ledger(self._core.queue.counts())
        check_ledger(self._core.id, entry)
        return entry

    def lag(self) -> dict[str, Any]:
        """How far the remote site is behind: events, bytes, seconds (age of the oldest event), and the cause."""
        return self._core.lag.measure()

    def volatile_events(self) -> dict[str, int]:
        """Events that would go with the process, "queued" and "parked": those of a sender without persistence. Zeros
        are left out."""
        return self._core.volatile_events()

    # Life cycle

    def start(self, *, clean_queues: bool = False) -> None:
        """Accepts events and begins to send what is queued. No-op while it runs.

        `clean_queues`: what is queued is dropped first (the ledger counts it as cleared), from the disk too; parked
        events stay. Not while it runs.
        """
        self._core.start(clean_queues=clean_queues)

    def stop(self) -> None:
        """Ends dispatching. Queued events are kept for the next start; new ones are dropped and counted."""
        self._core.stop()

    def pause(self) -> None:
        """Queues, but sends no further batch. No effect while stopped."""
        self._core.pause(True)

    def resume(self) -> None:
        """Ends a pause. No effect while stopped."""
        self._core.pause(False)

    def destroy(self) -> None:
        """Stops it and drops its queue. GatewaySenderError while a region is attached to it."""
        self._core.destroy()

    @takes_changes(SenderChanges)
    def alter(self, changes: dict[str, Any]) -> None:
        """Changes some attributes of a sender, running or not. Refused as a whole if one of them cannot be."""
        self._core.alter(**changes)

    def wait_until_flushed(self, timeout: float | None = 30.0) -> bool:
        """Sends without waiting for full batches until the queue is empty. False if it is not within `timeout` seconds
        (None: without limit), or if the sender stops before."""
        return self._core.wait_until_flushed(timeout)

    # Parked events

    @property
    def parked_count(self) -> int:
        """Events that the remote site could not apply, kept here."""
        return len(self._core.parked)

    def parked(self, limit: int = 100) -> list[dict[str, Any]]:
        """Up to `limit` parked events, with the reason."""
        return self._core.parked.shown(limit)

    def replay_parked(self, *, force: bool = False) -> int:
        """Queues every event that is parked now again, behind what waits. Returns how many. With `force` the remote
        site also applies those whose keys may have been destroyed later."""
        return self._core.parked.replay_into(self._core.queue, force=force)

    def drop_parked(self) -> int:
        """Forgets every parked event; they stay counted as parked. Returns how many."""
        return self._core.parked.drop()

    def __repr__(self) -> str:
        return f"<GatewaySender {self._core.id} to site {self._core.attributes.remote_distributed_system_id}>"
