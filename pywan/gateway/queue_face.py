"""Owns what users see alike of a gateway sender and of an asynchronous event queue."""

from __future__ import annotations

from typing import Any

from pywan.base.amounts import size_text
from pywan.base.faces import Described
from pywan.forks import is_inherited, of_one_process
from pywan.gateway.sender_core import SenderCore
from pywan.stats import Ledger, check_ledger, ledger


@of_one_process(lambda face: face._core.what)
class QueueFace(Described):
    """What users hold of a queue whose events go somewhere: a gateway sender, or an asynchronous event queue."""

    def __init__(self, core: SenderCore) -> None:
        self._core = core

    def _take_place(self, core: SenderCore) -> None:
        """Makes this object show another core: the one that replaced its first one."""
        self._core = core

    # State

    @property
    def id(self) -> str:
        """Its id."""
        return self._core.attributes.id

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._core.is_running

    @property
    def is_paused(self) -> bool:
        """Whether it is paused. It is never paused while it is stopped."""
        return self._core.status.is_paused

    @property
    def is_primary(self) -> bool:
        """Whether it runs, and this member sends its events. A serial sender has one primary in a site. Of a parallel
        one each member sends the events of the buckets of which it is primary, so this is true whenever it runs."""
        return self._core.is_primary

    @property
    def status(self) -> str:
        """Its state in words, as the command `list gateways` shows it."""
        return self._core.status.text

    @property
    def queue_size(self) -> int:
        """The number of events that wait or are on their way.

        Stopped and serial, it shows 0, as Geode's does. It keeps its events.
        """
        return self._core.queue_size

    @property
    def local_queue_size(self) -> int:
        """The number of events that wait or are on their way, and that this member sends."""
        return self._core.local_queue_size

    @property
    def secondary_queue_size(self) -> int:
        """The number of events of which this member has a replica, while another member sends them."""
        return self._core.secondary_queue_size

    @property
    def stats(self) -> dict[str, Any]:
        """The statistics: Geode's GatewaySenderStatistics in snake_case (docs/operations.md lists them)."""
        return self._core.statistics()

    def ledger(self) -> Ledger:
        """Accounts for every event that ever entered it.

        Returns:
            A map from entries of the ledger to numbers of events (docs/operations.md explains the entries). It prints
                as one line, and as a table in a notebook.

        Raises:
            DataLossError: The sums do not balance, so events are unaccounted for. The error has all entries.
        """
        entry = ledger(self._core.queue.counts())
        check_ledger(self._core.what, entry)
        return Ledger(entry)

    def lag(self) -> dict[str, Any]:
        """Measures how far the other end is behind.

        Returns:
            "events" and "bytes" that wait, "seconds" (the age of the oldest event), and "cause": why events wait. The
                cause also names members that lack the sender, so that their events are queued nowhere.
        """
        return self._core.lag.measure()

    def volatile_events(self) -> dict[str, int]:
        """Counts the events that would be lost with the process. With persistence there are none.

        Returns:
            The numbers of "queued" and "parked" events. Zeros are left out.
        """
        return self._core.volatile_events()

    # Life cycle

    def start(self, *, clean_queues: bool = False) -> None:
        """Accepts events, and lets those leave that are queued. It does nothing if it runs.

        Of a serial gateway sender it returns when all members of the site queue events for it.

        Args:
            clean_queues: Drop all queued events first, on the disk too. The ledger counts them as cleared. Parked
                events stay.

        Raises:
            GatewaySenderError: It was destroyed, or `clean_queues` is given while it runs, or a filter or listener of
                its own calls, or threads of its last run have not ended yet.
            IllegalStateError: The system has no more threads for this process.
        """
        self._core.start(clean_queues=clean_queues)

    def stop(self) -> None:
        """Ends the work. Queued events are kept for the next start. New events are dropped and counted.

        A serial gateway sender drops none while it runs on another member. This returns when all members know that it
        is stopped here, or logs which one did not say so for as long as a call is tried.

        Raises:
            GatewaySenderError: A thread did not end within 15 s. A filter or a listener may hang.
        """
        self._core.stop()

    def pause(self) -> None:
        """Lets no further batch leave. New events are queued. It does nothing while it is stopped.

        Raises:
            GatewaySenderError: It was destroyed.
        """
        self._core.pause(True)

    def resume(self) -> None:
        """Ends a pause. It does nothing while it is stopped.

        Raises:
            GatewaySenderError: It was destroyed.
        """
        self._core.pause(False)

    def destroy(self) -> None:
        """Stops it, and drops its queue and its parked events.

        Raises:
            GatewaySenderError: A region is attached to it.
        """
        self._core.destroy()

    def wait_until_flushed(self, timeout: float | None = 30.0) -> bool:
        """Does not wait for full batches until the queue is empty. Of a gateway sender that other members of the site
        have too, their queues are meant as well: they are asked.

        Args:
            timeout: How many seconds to wait at most. None: no limit.

        Returns:
            Whether the queue is empty. It is not if the time is over, or if it was stopped.

        Raises:
            ConfigurationError: `timeout` is not a number of seconds of at least 0.
        """
        return self._core.wait_until_flushed(timeout)

    # Parked events

    @property
    def parked_count(self) -> int:
        """The number of parked events: those that failed at the other end, or whose substitution filter failed. Of a
        gateway sender that several members have, each event counts at the member that sends the events of its
        bucket. Other members keep it too."""
        return len(self._core.parked)

    def parked(self, limit: int = 100) -> list[dict[str, Any]]:
        """Returns parked events, the oldest first. Of a gateway sender, those of all members of the site.

        Args:
            limit: How many events to return at most.

        Returns:
            One map for each event, with "region", "operation", "key", "value", "timestamp" (milliseconds since 1970)
                and "reason": why it could not be applied.
        """
        return self._core.parked_events(limit)

    def replay_parked(self, *, force: bool = False) -> int:
        """Queues every event again that is parked now, behind the events that wait.

        An event whose substitution filter failed is shown to the filter again. It stays parked if that fails again.

        Args:
            force: A remote site also applies events whose keys may have been destroyed later.

        Returns:
            The number of events that were queued again.
        """
        return self._core.replay_parked(force=force)

    def drop_parked(self) -> int:
        """Forgets every parked event. The ledger still counts them as parked.

        Returns:
            The number of events that were forgotten.
        """
        return self._core.drop_parked()

    # How it shows itself

    def _names(self) -> dict[str, object]:
        """Returns the rows of the table that say which one it is."""
        raise NotImplementedError

    def _far_end(self) -> dict[str, object]:
        """Returns the rows that say where its events go now. It is of this process."""
        raise NotImplementedError

    def _line(self) -> str:
        core, words = self._core, " to site ".join(map(str, self._names().values()))
        if is_inherited(self):
            return f"{words}, of the parent process"
        return f"{words}, {core.status.text}, {len(core.queue):,} queued, {len(core.parked):,} parked"

    def _facts(self) -> dict[str, object]:
        core, attributes = self._core, self._core.attributes
        if is_inherited(self):
            return {**self._names(), "state": "of the parent process"}
        return {
            **self._names(),
            "state": core.status.text,
            **self._far_end(),
            "queued events": len(core.queue),
            "queued bytes": size_text(core.queue.bytes),
            "parked events": len(core.parked),
            "parallel": attributes.parallel,
            "persistent": attributes.enable_persistence,
            "dispatcher threads": attributes.dispatcher_threads,
        }
