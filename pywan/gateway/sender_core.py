"""Owns the life cycle of one gateway sender or asynchronous event queue. Puts its parts together: queued events, parked
events, filters and dispatchers."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pywan import _core
from pywan.config.attributes import QueueAttributes
from pywan.disk.store import StoreCore
from pywan.errors import ConfigurationError, GatewaySenderError, IllegalStateError
from pywan.gateway.dispatchers import Dispatchers, Ends
from pywan.gateway.filters import SenderFilters
from pywan.gateway.lag import Lag
from pywan.gateway.logs import SenderLogs
from pywan.gateway.parked import Led, ParkedEvents, shown_event
from pywan.gateway.queue import SenderQueue, overflow_directory
from pywan.gateway.status import SenderStatus
from pywan.gateway.telling import FloorTelling
from pywan.region.callback_lock import LifeCycleLock
from pywan.stats import sender_statistics

log = logging.getLogger("pywan.sender")


class ParkedAtOthers(Protocol):
    """The parked events that other members lead."""

    def alone(self, core: SenderCore) -> Led: ...
    def records(self, core: SenderCore, limit: int) -> list[tuple[bytes, str]]: ...
    def replay(self, core: SenderCore, count: int, *, force: bool) -> int: ...
    def drop(self, core: SenderCore, count: int) -> int: ...
    def drop_here(self, core: SenderCore) -> int: ...
    def look(self) -> None: ...


class SenderCore:
    """A sender as its member works with it: the core of a `GatewaySender`, and of an `AsyncEventQueue`, which differs
    in where its dispatchers send: `make_ends(core)` says that.

    `buckets` is the number of buckets of the regions that feed a parallel sender. None: no region feeds it yet.
    `on_state(core)` is called after each start and stop, so that regions stamp events only with sites that will be
    reached. `on_destroy(core)` refuses while a region refers to the sender. `on_running(core)` is called when it has
    begun to run, and when it has ended; `wait_known()` returns when the other members know that. `is_primary()` says
    whether this member is the one that sends, if it runs. `queued_at_others()` asks the other members how many events
    they send; `flush_others(seconds)` has them send those without waiting for full batches, and returns whether all
    have left. `kept_by_others()` says how many of the events here others have too. `parked_at_others` asks other
    members for the parked events that they lead; None: this member has all. `memory` is the limit that the queues count
    for.
    """

    def __init__(
        self,
        attributes: QueueAttributes,
        *,
        make_ends: Callable[[SenderCore], Ends],
        site: int,
        directory: str,
        clock: _core.Clock,
        buckets: int | None = None,
        store: StoreCore | None = None,
        on_state: Callable[[SenderCore], None] = lambda core: None,
        on_destroy: Callable[[SenderCore], None] = lambda core: None,
        on_running: Callable[[SenderCore], None] = lambda core: None,
        wait_known: Callable[[], None] = lambda: None,
        is_primary: Callable[[], bool] = lambda: True,
        queued_at_others: Callable[[], int] = lambda: 0,
        flush_others: Callable[[float], bool] = lambda _: True,
        kept_by_others: Callable[[], int] = lambda: 0,
        lacks: Callable[[], list[str]] = list,
        memory: _core.MemoryLimit | None = None,
        parked_at_others: ParkedAtOthers | None = None,
    ) -> None:
        self.attributes = attributes
        self.id, self.what, self.label = attributes.core_id, attributes.what, attributes.label
        self.filters = SenderFilters(attributes)  # An error in them is raised before a log is opened.
        self._on_state, self._on_destroy, self._on_running = on_state, on_destroy, on_running
        self._wait_known = wait_known
        self._is_primary, self._queued_at_others = is_primary, queued_at_others
        self._flush_others = flush_others
        self._kept_by_others = kept_by_others
        self._parked_at_others = parked_at_others
        # Whether it takes events, and whether regions stamp them as reaching its site: because it runs here, or
        # because it is serial and runs on another member. The lock of them guards them.
        self._takes_here = self._reaches_here = self._runs_on_others = False
        self._running_lock = threading.Lock()
        overflow = overflow_directory(attributes, directory)
        self.logs = SenderLogs(attributes, store, site)
        self.outgoing = SenderQueue(attributes, self.logs, directory=overflow, buckets=buckets)
        self.queue = self.outgoing.events
        self.parked = ParkedEvents(attributes, self.logs, directory=overflow)
        if memory is not None:
            self.queue.limit_memory(memory)
            self.parked.queue.limit_memory(memory)
        ends = make_ends(self)
        self.parked.words_of = ends.words
        self.dispatchers = self._make_dispatchers(ends)
        self.dispatchers.configure(attributes, self.filters)
        self.lag = Lag(
            self.queue,
            self.dispatchers,
            clock,
            lambda: self.status,
            lambda: self.attributes.batch_time_interval,
            lacks,
        )
        # What other sites are told about destroyed keys. None: the events reach none.
        self.floors = (
            None
            if not attributes.reaches
            else FloorTelling(
                self.id,
                site=site,
                remote_site=min(attributes.reaches),
                low=clock.raise_low(),
                queue=self.queue,
                parked=self.parked,
                dispatchers=self.dispatchers,
            )
        )
        # Guards the life cycle of the sender and of its dispatchers, and the fields below.
        self._lock = LifeCycleLock(self.what, self._is_waited_for)
        self._is_paused = False
        self._is_destroyed = False
        # The logs start last: if the constructor fails before, no thread is left that writes them.
        self.logs.start({"queue": self.queue, "parked": self.parked.queue})

    def _make_dispatchers(self, ends: Ends) -> Dispatchers:
        """What has threads and sockets. A simulation makes it in its own way."""
        return Dispatchers(self.attributes, self.outgoing, self.parked, ends)

    # State

    @property
    def is_running(self) -> bool:
        return self.dispatchers.is_running

    @property
    def is_primary(self) -> bool:
        """Whether this member sends its events."""
        return self.is_running and self._is_primary()

    @property
    def is_secondary(self) -> bool:
        """Whether it is serial, and another member sends its events."""
        return not self.attributes.parallel and self.is_running and not self._is_primary()

    def note_runs_on_others(self, runs: bool) -> bool:
        """Notes whether it runs on another member of the site. Returns whether it takes events now and did not before,
        or the other way round."""
        return self._note_running(on_others=runs)

    def _note_running(
        self, *, takes: bool | None = None, reaches: bool | None = None, on_others: bool | None = None
    ) -> bool:
        """Notes what is given. Returns whether it takes events now and did not before, or the other way round."""
        with self._running_lock:
            before = bool(self.queue.running)
            self._takes_here = self._takes_here if takes is None else takes
            self._reaches_here = self._reaches_here if reaches is None else reaches
            self._runs_on_others = self._runs_on_others if on_others is None else on_others
            self.queue.reachable = self._reaches_here or self._runs_on_others
            self.queue.running = self._takes_here or self._runs_on_others
            return bool(self.queue.running) != before

    @property
    def buckets(self) -> int | None:
        """The number of buckets that the regions of a parallel sender must have. None: any number."""
        return self.queue.partitions if self.attributes.parallel else None

    @property
    def status(self) -> SenderStatus:
        words = self.dispatchers.ends.running_words
        return SenderStatus(self.is_running, self._is_paused, self.dispatchers.is_connected, words)

    @property
    def is_draining(self) -> bool:
        """Whether events are queued that the sender sends, or tries to send."""
        return self.is_running and not self._is_paused and self.local_queue_size > 0

    @property
    def queue_size(self) -> int:
        """The number of queued events. A stopped serial sender shows 0. Of a parallel one those of other members count
        too, which are asked."""
        if not self.is_running and not self.attributes.parallel:
            return 0
        if self.attributes.parallel and self.queue.runs():
            return self.local_queue_size + self._queued_at_others()
        return len(self.queue)

    @property
    def local_queue_size(self) -> int:
        """The number of queued events that this member sends."""
        return int(self.queue.led_events)

    @property
    def secondary_queue_size(self) -> int:
        """The number of queued events that another member sends, and of which this one has a replica."""
        return max(len(self.queue) - self.local_queue_size, 0)

    def statistics(self) -> dict[str, int]:
        """Returns GatewaySenderStatistics, in snake_case."""
        return sender_statistics(self, self.queue.counts())

    def flows(self) -> list[dict[str, int]]:
        """Returns for each dispatcher how much is on its way."""
        return [each.flow() for each in self.dispatchers]

    @property
    def renewals(self) -> int:
        """How often the queue took another identity, in this process."""
        return self.outgoing.renewals

    def volatile_events(self) -> dict[str, int]:
        """Counts the events that would be lost with the process."""
        if self.queue.persistent:
            return {}
        counts = {"queued": max(len(self.queue) - self._kept_by_others(), 0), "parked": self._parked_here_alone()}
        return {what: count for what, count in counts.items() if count}

    # Parked events

    def _parked_here_alone(self) -> int:
        at_others = self._parked_at_others
        return len(self.parked) if at_others is None else self.parked.count(at_others.alone(self))

    def parked_events(self, limit: int) -> list[dict[str, Any]]:
        """Returns up to `limit` parked events of all members, the oldest first. See `GatewaySender.parked`."""
        at_others = self._parked_at_others
        if at_others is None:
            return self.parked.shown(limit)
        records = [*self.parked.records(limit), *at_others.records(self, limit)]
        records.sort(key=lambda each: _core.place_in_order(each[0]))
        return [shown_event(*each) for each in records[:limit]]

    def replay_parked(self, *, force: bool) -> int:
        """Has all members queue their parked events again. Returns how many."""
        count, at_others = self.replay_parked_here(force=force), self._parked_at_others
        return count if at_others is None else at_others.replay(self, count, force=force)

    def replay_parked_here(self, *, force: bool) -> int:
        """The same on this member."""
        count = self.parked.replay_into(self.queue, self.filters.mask_again, force=force)
        if self._parked_at_others is not None:
            self._parked_at_others.look()
        return count

    def drop_parked(self) -> int:
        """Has all members forget their parked events. Returns how many."""
        count, at_others = self.drop_parked_here(), self._parked_at_others
        return count if at_others is None else at_others.drop(self, count)

    def drop_parked_here(self) -> int:
        """The same on this member."""
        at_others = self._parked_at_others
        return self.parked.drop() if at_others is None else at_others.drop_here(self)

    def say_unwritten(self) -> None:
        """Logs why some events could not be written. It is called after the logs have ended."""
        state = self.queue.log_state()
        if not state.get("failing"):
            return
        if state["pending"]:
            log.error(
                "%s: the newest events, %d of them, could not be written: %s",
                self.label,
                state["pending"],
                state["failing"],
            )
        else:
            log.error("%s: the end of its log could not be written: %s", self.label, state["failing"])

    # Life cycle

    def start(self, *, clean_queues: bool = False, paused: bool = False) -> None:
        """Starts the sender, which is `paused` then. See `GatewaySender.start`."""
        with self._lock:
            self._check_alive()
            if self.is_running:
                if clean_queues:
                    raise GatewaySenderError(
                        f"{self.what} runs, and its queues are cleaned only as it starts; stop it first"
                    )
                return
            if self.dispatchers.is_own_thread():
                raise GatewaySenderError(
                    f"{self.what} cannot be started by its own filter or listener; start it from another thread"
                )
            late = self.dispatchers.late_threads()
            if late:
                raise GatewaySenderError(
                    f"{self.what} cannot start: {late} of its last run did not end yet; a filter or a listener may hang"
                )
            if clean_queues:
                self._clean()
            self.dispatchers.begin(paused)
            self._is_paused = paused
            self._note_running(takes=True, reaches=True)
            self._on_state(self)
            try:
                self.dispatchers.start()
            except IllegalStateError:
                self._stop()
                raise
            self._on_running(self)
        log.info("%s started", self.label)
        self._wait_known()

    def clean(self) -> int:
        """Drops all queued events of a sender that runs nowhere. Returns how many they were."""
        with self._lock:
            self._check_alive()
            if self.is_running:
                raise GatewaySenderError(
                    f"{self.what} runs, and its queues are cleaned while it is stopped; stop it first"
                )
            return self._clean()

    def _clean(self) -> int:
        if self._runs_on_others:
            raise GatewaySenderError(
                f"{self.what} runs on another member, and its queues are cleaned on all members at once; stop it"
                " everywhere first (`start gateway-sender --clean-queues` then cleans and starts it everywhere)"
            )
        dropped = self.queue.clear()
        self.queue.wait_removed()
        log.warning("%s: %d queued events were dropped, as its queues were cleaned", self.label, dropped)
        return dropped

    def stop(self) -> None:
        """Stops the sender. See `GatewaySender.stop`."""
        if self._stop():
            self._wait_known()

    def _stop(self) -> bool:
        """Stops the sender, and returns at once. Returns whether it ran."""
        with self._lock:
            if not self.is_running:
                return False
            # First, regions stop stamping events as reaching the remote site through this sender, so that other sites
            # relay them. Then the queue takes no more events.
            self._note_running(reaches=False)
            try:
                self._on_state(self)
            except BaseException:  # Ctrl-C came while a region's callbacks were waited for. The sender runs on.
                self._note_running(reaches=True)
                raise
            self._note_running(takes=False)
            self._is_paused = False
            try:
                self.dispatchers.end()
            finally:
                self._on_running(self)
        log.info("%s stopped with %d events queued", self.label, len(self.queue))
        return True

    def pause(self, is_paused: bool) -> None:
        with self._lock:
            self._check_alive()
            if self.is_running:
                self._is_paused = is_paused
                self.dispatchers.pause(is_paused)

    def destroy(self) -> None:
        """Ends the sender, and drops its events and logs."""
        with self._lock:
            self._on_destroy(self)
            self.say_goodbye()
            self.close()
            dropped, parked = len(self.queue), len(self.parked)
            if dropped or parked:
                log.warning(
                    "%s is destroyed with %d queued and %d parked events, which are dropped",
                    self.label,
                    dropped,
                    parked,
                )
            self.logs.forget()

    def say_goodbye(self) -> None:
        """Tells other sites that nothing comes from this sender any more."""
        if self.floors is not None:
            self.floors.say_goodbye()

    def retire(self, wanted: str) -> None:
        """Ends the sender and removes its logs, because another one takes its place.

        IllegalStateError, whose text begins with `wanted`, if the sender holds events. Then nothing was changed.
        """
        with self._lock:
            self._check_alive()
            queued, parked = len(self.queue), len(self.parked.queue)
            if queued or parked:
                raise IllegalStateError(
                    f"{wanted}; the queue of {self.what} has {self.queue.partitions} partitions, one for"
                    f" each bucket, and holds {queued} events and {parked} parked ones: let it empty, or destroy it"
                )
            self.say_goodbye()
            self.close()
            self.logs.forget()

    def close(self) -> None:
        """Ends the sender, and its logs when all that was enqueued is written. Its disk store waits for that."""
        with self._lock:
            self._is_destroyed = True
            try:
                self._stop()
            finally:
                self.logs.stop()
                self.dispatchers.ends.close()

    def alter(self, **attributes: Any) -> None:
        """Changes attributes. See `GatewaySender.alter`."""
        with self._lock:
            self._check_alive()
            altered = self.attributes.altered(**attributes)
            filters = SenderFilters(altered)
            self.attributes, self.filters = altered, filters
            self.dispatchers.configure(altered, filters)
        self._on_state(self)

    def wait_until_flushed(self, timeout: float | None) -> bool:
        """Waits for an empty queue. See `GatewaySender.wait_until_flushed`."""
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise ConfigurationError(
                f"{self.what}: wait_until_flushed({timeout!r}): the timeout is a"
                " number of seconds of at least 0, or None (no limit)"
            )
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self.flushing():
            while True:
                left = deadline - time.monotonic()
                # What this one holds for other members leaves when these send it.
                is_alone = 0 < len(self.queue) == self.local_queue_size
                if not is_alone and self._flush_others(max(left, 0.0)) and not len(self.queue):
                    return True
                if left <= 0 or (self.dispatchers.wait_stopping(min(left, 0.005)) and len(self.queue)):
                    return False

    def flush_for(self, seconds: float) -> int:
        """Sends without waiting for full batches, for a member that waits: until all that this one sends has left, and
        so many seconds at most. Returns how many events that it sends are left."""
        deadline = time.monotonic() + seconds
        with self.flushing():
            while self.local_queue_size:
                left = deadline - time.monotonic()
                if left <= 0 or self.dispatchers.wait_stopping(min(left, 0.005)):
                    break
        return self.local_queue_size

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """A context in which the sender sends without waiting for full batches."""
        self.dispatchers.ask_to_flush(1)
        try:
            yield
        finally:
            self.dispatchers.ask_to_flush(-1)

    def _check_alive(self) -> None:
        if self._is_destroyed:
            raise GatewaySenderError(f"{self.what} was destroyed; create it again")

    def _is_waited_for(self) -> bool:
        """Returns whether the calling thread is a dispatcher of this sender that was told to end."""
        return not self.is_running and self.dispatchers.is_own_thread()
