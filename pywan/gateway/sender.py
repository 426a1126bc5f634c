"""Owns one gateway sender of a member: its queue, its dispatcher threads with their connections, its life cycle."""
from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from typing import Any, Callable, Iterable, Iterator

from pywan import _core
from pywan.region.callback_lock import LifeCycleLock
from pywan.callbacks import GatewayEventFilter
from pywan.base.clocks import clock_trouble
from pywan.config.attributes import CALLBACK_METHODS, SenderAttributes, altered_sender_attributes, let_through, make_instance, to_int
from pywan.disk.store import DiskStore
from pywan.errors import (
    ConfigurationError, ConnectivityError, DataLossError, GatewaySenderConfigurationError, GatewaySenderError, IllegalStateError,
    ProtocolError, PywanError,
)
from pywan.events import GatewayQueueEvent
from pywan.gateway.floors import GOODBYE, Floors, QueueFloors, encode_floors
from pywan.forks import of_one_process
from pywan.site.membership import Membership
from pywan.protocol.gateway import Known, SenderHello, Welcome, encode
from pywan.base.repeats import Repeats
from pywan.stats import check_ledger, ledger, sender_statistics
from pywan.base.threads import start_thread
from pywan.transport import data
from pywan.transport.sockets import connect, shut

log = logging.getLogger("pywan.sender")

CONNECT_TIMEOUT_S = 5.0
FIRST_RETRY_S = 0.05    # After a connection that worked; then twice as long each time, up to retry-interval-ms.
AVOID_S = 60.0          # A receiver that did not answer is not chosen for so long where there is another one.
JOIN_TIMEOUT_S = 15.0
GOODBYE_S = 2.0         # How long a sender that is destroyed waits for its receivers to hear it.
BUCKETS = 113
DISK_SLOW_S = 0.1       # Events that wait for longer than this, most of them for the disk, do so since it is slow.
FLUSH_LIMIT_MS = 10     # Without disk-synchronous: an event is sent only when it is on the disk, so that delay is kept short.
REASONS = {
    1: "the region does not exist at the remote site", 2: "its timestamp is too far in the future for the remote site",
    3: "the remote site is out of memory", 5: "the remote site could not apply it (see its log)",
    6: "it is older than destroys that the remote site does not remember any more, or by a hash only: its key may have been one of them",
}


@of_one_process(lambda sender: f"gateway sender {sender.attributes.id!r}", nothing_in_child=("close",))
class GatewaySender:
    """Sends the events of the regions it is attached to to one remote site. Made by `Cache.create_gateway_sender`.

    `on_state(sender)` is called after each start and stop, so that regions stamp only sites that will be reached.
    """

    def __init__(
        self, attributes: SenderAttributes, *, membership: Membership, member_name: str, site: int, directory: str,
        clock: _core.Clock, buckets: int = BUCKETS, store: DiskStore | None = None, on_state: Callable[["GatewaySender"], None] = lambda sender: None,
        on_destroy: Callable[["GatewaySender"], None] = lambda sender: None,
    ) -> None:
        self.attributes = attributes
        self._membership = membership
        self._member_name, self._site = member_name, site
        self._on_state, self._on_destroy = on_state, on_destroy
        self._clock = clock                         # Of the member: its stamps are on the events.
        self._store = store                         # Where its queue is kept; None without persistence.
        self._take_filters()                        # What can be wrong with them is said before a log is opened.
        partitions = buckets if attributes.parallel else attributes.dispatcher_threads
        dispatchers = min(attributes.dispatcher_threads, partitions)
        memory = attributes.maximum_queue_memory << 20
        overflow = attributes.overflow_directory or directory
        if not os.access(overflow, os.W_OK | os.X_OK):
            raise GatewaySenderConfigurationError(
                f"gateway sender {attributes.id!r}: overflow_directory {overflow} is not a directory that can be written to; make it, or name another")
        self._queue = _core.EventQueue(
            attributes.id, remote_site=attributes.remote_distributed_system_id, partitions=partitions, dispatchers=dispatchers,
            memory_limit=memory, directory=overflow, conflate=attributes.enable_batch_conflation,
            by_thread=attributes.order_policy == "thread" and not attributes.parallel,
            by_bucket=attributes.parallel or attributes.order_policy == "partition", **self._log_options("queue", partitions))
        self._parked = _core.EventQueue(f"{attributes.id} (parked)", partitions=8, memory_limit=4 << 20, directory=overflow,
                                        **self._log_options("parked", 8))
        self._parked.running = True
        self.queue.set_full_policy(attributes.full_policy, attributes.full_timeout_ms)
        self._own_identity = secrets.randbits(63) | 1       # Of a queue without persistence, whose sequences start afresh here.
        self._renewals = 0                          # How often the queue took another identity, in this process.
        if self.queue.persistent:
            self._say_recovered()
        self._sessions = [
            _core.DispatcherSession(self.queue, n, self._parked, on_failure=self._note_failure) for n in range(dispatchers)]
        self._lock = LifeCycleLock(f"gateway sender {attributes.id!r}", self._is_waited_for)     # Guards the life cycle, below.
        self._flushes_lock = threading.Lock()
        self._flushes = 0                           # Callers that wait until the queue is flushed.
        self._times_lock = threading.Lock()
        self.parked_lock = threading.Lock()         # One replay, drop or repair at a time.
        self._floors = QueueFloors(site, clock.raise_low())    # Of the housekeeper.
        self._tell_lock = threading.Lock()          # One word to the receivers at a time; after the goodbye there is none.
        self._has_said_goodbye = False
        self._stopping = threading.Event()
        self._stopping.set()
        self._paused = False
        self._destroyed = False
        self._threads: list[threading.Thread] = []
        self._connections: dict[int, tuple[socket.socket, str]] = {}   # dispatcher -> (socket, receiver's "host:port")
        self._connecting: dict[int, socket.socket] = {}                # dispatcher -> socket that is not welcome yet
        self._times: tuple[float, list[dict[str, int]], dict[str, float]] = (
            time.monotonic(), self._measure_times(), dict.fromkeys(("filter", "blocked", "receiver", "held_back"), 0.0))
        self._trouble: str | None = None            # Why the last attempt to connect failed; None while connected.
        self._hung: dict[int, str] = {}             # Dispatchers whose last connection was given up, or refused -> why, until a receiver shows progress.
        self._avoided: dict[int, float] = {}        # Members whose receiver did not answer -> until when. Guarded by _avoided_lock.
        self._avoided_lock = threading.Lock()
        self._repeats = Repeats()                   # Of troubles, until a receiver shows progress.
        self._failures_logged = 0
        self._callbacks_logged_at = 0.0
        self._configure_sessions()
        data.warn_if_buffer_too_large(attributes.socket_buffer_size, socket.SO_SNDBUF, f"gateway sender {attributes.id!r}")
        if store is not None:       # Last: a sender that could not be made leaves nobody behind who writes its logs.
            try:
                for kind, queue in (("queue", self.queue), ("parked", self._parked)):
                    store.start_writer(f"{kind}-{attributes.id}", f"sender-{attributes.id}-log", queue.commit_loop)
            except BaseException:
                self._close_logs()
                raise

    def _log_options(self, kind: str, partitions: int) -> dict[str, Any]:
        a = self.attributes
        if self._store is None:
            return {}
        place = self._store.log_place(f"{kind}-{a.id}", {
            "kind": kind, "sender": a.id, "remote_distributed_system_id": a.remote_distributed_system_id, "parallel": a.parallel,
            "partitions": partitions, "site": self._site})
        # Events that failed find room also in a full store: until they are kept apart, the queue cannot go on.
        return {"log_directory": place.folder, "log_id": secrets.randbits(63) | 1, "synchronous": a.disk_synchronous,
                "log_budget": place.budget, "log_known": place.known, "log_may_take_kept": kind == "parked",
                "flush_ms": min(self._store.attributes.time_interval, FLUSH_LIMIT_MS)}

    @property
    def incarnation(self) -> int:
        """Of the queue. With persistence it outlives the process, as its sequences do."""
        return self.queue.incarnation or self._own_identity

    def _say_recovered(self) -> None:
        found = self.queue.recovery()
        if found["cut_bytes"]:
            log.warning("gateway sender %s: the log ended in the middle of a write, which was not acknowledged; %d bytes were cut", self.id, found["cut_bytes"])
        if len(self.queue) or found["records"]:
            log.info("gateway sender %s: %d events recovered from disk store %s", self.id, len(self.queue), self._store.name if self._store else "")
        try:
            self.ledger()
        except DataLossError as error:      # What is there can be sent all the same.
            log.error("after recovery: %s", error)

    # What it is

    @property
    def id(self) -> str:
        return self.attributes.id

    @property
    def is_running(self) -> bool:
        return not self._stopping.is_set()

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def is_connected(self) -> bool:
        return bool(self._connections)

    @property
    def is_primary(self) -> bool:
        """Whether this member dispatches: with one member in the site, whenever it runs."""
        return self.is_running

    @property
    def receiver_location(self) -> str | None:
        """host:port of a receiver it is connected to."""
        for _, place in list(self._connections.values()):
            return place
        return None

    @property
    def queue(self) -> _core.EventQueue:
        """What waits for the remote site."""
        return self._queue

    @property
    def queue_size(self) -> int:
        """Events waiting or on their way. A stopped serial sender shows 0, as Geode's does; its events are kept."""
        if not self.is_running and not self.attributes.parallel:
            return 0
        return len(self.queue)

    @property
    def stats(self) -> dict[str, Any]:
        """GatewaySenderStatistics, in snake_case."""
        flows = [session.flow() for session in self._sessions]
        return sender_statistics(self.queue.counts(), more={
            "event_queue_size": self.queue_size, "events_in_flight_batches": sum(s.in_flight for s in self._sessions),
            "bytes_in_flight": sum(flow["bytes_in_flight"] for flow in flows), "window_bytes": sum(flow["window_bytes"] for flow in flows),
            "round_trip_us": max(flow["round_trip_us"] for flow in flows), "identities_renewed": self._renewals})

    def ledger(self) -> dict[str, Any]:
        """What became of every event; see docs/operations.md. DataLossError, which has the entries, if they do not add up."""
        entry = ledger(self.queue.counts())
        check_ledger(self.id, entry)
        return entry

    def lag(self) -> dict[str, Any]:
        """How far the remote site is behind: events, bytes, seconds (age of the oldest event), and the cause."""
        counts = self.queue.counts()
        oldest = self.queue.oldest_ms()
        seconds = max(0.0, time.time() - oldest / 1000) if oldest is not None else 0.0
        return {"events": counts["events"], "bytes": counts["bytes"], "seconds": round(seconds, 3), "cause": self._cause(counts["events"], seconds)}

    def _cause(self, events: int, seconds: float) -> str:
        if not self.is_running:
            return "stopped"
        log_state = self.queue.log_state()
        trouble = clock_trouble(self._clock)
        if log_state and log_state["failing"]:
            return f"disk: {log_state['failing']}"      # It takes no event now, whatever else there is.
        if events == 0:
            return f"clock: {trouble.text}" if trouble else "none"
        if self._paused:
            return "paused"
        if not self._connections:
            return f"link down: {self._trouble}" if self._trouble else "link down"
        unreadable = next((reason for session in self._sessions if (reason := session.unreadable_reason)), None)
        if unreadable:
            return f"disk: {unreadable}"
        hung = [reason for n, reason in list(self._hung.items()) if not self._sessions[n].has_progressed]
        if hung:
            return f"link down: {hung[0]}"
        if trouble:
            return f"clock: {trouble.text}"
        if log_state and log_state["staged"] * 2 >= events and seconds > DISK_SLOW_S:
            return "disk slow"
        shares = self._time_shares()
        if shares["filter"] > max(0.3, shares["blocked"]):
            return "filter slow"
        is_late = seconds > 1.0 + self.attributes.batch_time_interval / 1000
        is_sending = any(s.in_flight for s in self._sessions)
        if shares["blocked"] > 0.3 or (is_late and is_sending):
            return "receiver slow" if shares["receiver"] > 0.5 or self._is_receiver_stuck(shares) else "link slow"
        return "in flight" if is_sending else "waiting for a batch to fill"

    def _is_receiver_stuck(self, shares: dict[str, float]) -> bool:
        """Whether a receiver says nothing for longer than the link takes, though its host has all that was sent, or no room for more."""
        for session, connection in zip(self._sessions, [self._connections.get(n) for n in range(len(self._sessions))]):
            flow = session.flow()
            if connection is not None and flow["unanswered_us"] > max(1_000_000, 4 * flow["link_us"]):
                if data.untaken_bytes(connection[0]) == 0 or shares["held_back"] > 0.5:
                    return True
        return False

    def _time_shares(self) -> dict[str, float]:
        """Which part of the time since it was last asked the busiest dispatcher spent in callbacks ("filter") and waiting with events to
        send ("blocked"), its receiver worked ("receiver"), and its receiver's host had no room for more ("held_back")."""
        with self._times_lock:
            now, before = time.monotonic(), self._times
            if now - before[0] < 0.2:       # Too short a while to say more than before.
                return before[2]
            times = self._measure_times()
            elapsed = (now - before[0]) * 1e6
            shares = {name: max((new[name] - old[name]) / elapsed for new, old in zip(times, before[1])) for name in times[0]}
            self._times = now, times, shares
            return shares

    def _measure_times(self) -> list[dict[str, int]]:
        connections = dict(self._connections)
        return [{**session.times(), "held_back": data.held_back_us(connections[n][0]) if n in connections else 0}
                for n, session in enumerate(self._sessions)]

    def volatile_events(self) -> dict[str, int]:
        """Events that would go with the process, "queued" and "parked": those of a sender without persistence. Zeros are left out."""
        counts = {} if self.queue.persistent else {"queued": len(self.queue), "parked": len(self._parked)}
        return {what: count for what, count in counts.items() if count}

    @property
    def is_draining(self) -> bool:
        """Whether events are queued that it sends, or tries to."""
        return self.is_running and not self._paused and len(self.queue) > 0

    @property
    def status(self) -> str:
        """As `list gateways` shows it."""
        if not self.is_running:
            return "Not running"
        if self._paused:
            return "Paused"
        return "Running and Connected" if self.is_connected else "Running, not Connected"

    # Life cycle

    def start(self, *, clean_queues: bool = False) -> None:
        """Accepts events and begins to send what is queued. No-op while it runs.

        `clean_queues`: what is queued is dropped first (the ledger counts it as cleared), from the disk too; parked events stay. Not while it runs.
        """
        with self._lock:
            self._check_alive()
            if self.is_running:
                if clean_queues:
                    raise GatewaySenderError(f"gateway sender {self.id!r} runs, and its queues are cleaned only as it starts; stop it first")
                return
            if threading.current_thread() in self._threads:
                raise GatewaySenderError(f"gateway sender {self.id!r} cannot be started by its own filter; start it from another thread")
            late = self._late_threads()
            if late:
                raise GatewaySenderError(f"gateway sender {self.id!r} cannot start: {late} of its last run did not end yet; a filter may hang")
            if clean_queues:
                dropped = self.queue.clear()
                self.queue.wait_removed()
                log.warning("gateway sender %s: %d queued events were dropped, as it was started with clean queues", self.id, dropped)
            self._stopping.clear()
            self._paused = False
            self.queue.running = self.queue.reachable = True
            for session in self._sessions:
                session.pause(False)
            self._threads = []
            self._on_state(self)
            try:
                for n in range(len(self._sessions)):
                    self._threads.append(start_thread(f"gateway sender {self.id!r} is not started", f"sender-{self.id}-{n}", self._dispatch, n))
            except IllegalStateError:
                self.stop()
                raise
        log.info("gateway sender %s started", self.id)

    def stop(self) -> None:
        """Ends dispatching. Queued events are kept for the next start; new ones are dropped and counted."""
        with self._lock:
            if not self.is_running:
                return
            # First nobody stamps events as reaching the remote site through here, so that others relay them; then none is taken.
            self.queue.reachable = False
            try:
                self._on_state(self)
            except BaseException:       # Ctrl-C, while a region's callbacks were waited for: it runs on as before.
                self.queue.reachable = True
                raise
            self.queue.running = False
            self._paused = False
            self._end_threads()
        log.info("gateway sender %s stopped with %d events queued", self.id, len(self.queue))

    def _end_threads(self) -> None:
        self._stopping.set()
        for session in self._sessions:
            session.stop()
        for sock in [*list(self._connecting.values()), *(sock for sock, _ in list(self._connections.values()))]:
            shut(sock)
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        late = self._late_threads()
        if late:
            raise GatewaySenderError(f"gateway sender {self.id!r}: {late} did not end within {JOIN_TIMEOUT_S:.0f} s; a filter may hang")
        self._threads = []

    def _late_threads(self) -> str:
        """Names of dispatchers that were told to end and have not."""
        return ", ".join(t.name for t in self._threads if t.is_alive() and t is not threading.current_thread())

    def _is_waited_for(self) -> bool:
        """Whether this thread is a dispatcher of its own that was told to end."""
        return self._stopping.is_set() and threading.current_thread() in self._threads

    def pause(self) -> None:
        """Queues, but sends no further batch. No effect while stopped."""
        with self._lock:
            self._check_alive()
            if not self.is_running:
                return
            self._paused = True
            for session in self._sessions:
                session.pause(True)

    def resume(self) -> None:
        """Ends a pause. No effect while stopped."""
        with self._lock:
            self._check_alive()
            if not self.is_running:
                return
            self._paused = False
            for session in self._sessions:
                session.pause(False)

    def destroy(self) -> None:
        """Stops it and drops its queue. GatewaySenderError while a region is attached to it."""
        with self._lock:
            self._on_destroy(self)      # Refuses while a region refers to it.
            self._say_goodbye()
            self.close()
            dropped, parked = len(self.queue), len(self._parked)
            if dropped or parked:
                log.warning("gateway sender %s is destroyed with %d queued and %d parked events, which are dropped", self.id, dropped, parked)
            if self._store is not None:
                for kind in ("queue", "parked"):
                    self._store.forget(f"{kind}-{self.id}")

    def _say_goodbye(self) -> None:
        """The receivers that it is connected to hear that nothing more comes from here: they keep no destroyed keys for it. Others need `forget site`."""
        for session in self._sessions:
            session.pause(True)
        with self._tell_lock:
            self._has_said_goodbye = True
            for session in self._sessions:
                session.tell_floors(GOODBYE)
        deadline = time.monotonic() + (GOODBYE_S if threading.current_thread() not in self._threads else 0)
        while any(not session.floors_are_heard for n, session in enumerate(self._sessions) if n in self._connections):
            left = deadline - time.monotonic()
            if left <= 0 or self._stopping.wait(min(left, 0.005)):
                log.warning("gateway sender %s is destroyed, and its receiver did not answer that it knows: destroyed keys may be kept for it at site %d until that is told "
                            "to forget this one (forget site --distributed-system-id=%d)", self.id, self.attributes.remote_distributed_system_id, self._site)
                return

    def close(self) -> None:
        """Ends it, and its logs with what was enqueued: its disk store waits for that."""
        with self._lock:
            self._destroyed = True
            try:
                self.stop()
            finally:
                self._close_logs()

    def _close_logs(self) -> None:
        for queue in (self.queue, self._parked):
            queue.stop_log()

    def log_trouble(self) -> str | None:
        """Why one of its logs is not written now; None: they are."""
        return self.queue.log_state().get("failing") or self._parked.log_state().get("failing")

    def say_unwritten(self) -> None:
        """After its logs have ended: why some of them could not be written."""
        failing = self.queue.log_state().get("failing")
        if failing:
            log.error("gateway sender %s: the newest events could not be written: %s", self.id, failing)

    def _check_alive(self) -> None:
        if self._destroyed:
            raise GatewaySenderError(f"gateway sender {self.id!r} was destroyed; create it again")

    def alter(self, **attributes: Any) -> None:
        """Changes batch_size, batch_time_interval, gateway_event_filters, alert_threshold or group_transaction_events of
        a sender, running or not. Refused as a whole if one of them cannot be."""
        with self._lock:
            self._check_alive()
            old = self.attributes
            self.attributes = altered_sender_attributes(old, **attributes)
            try:
                self._take_filters()
            except PywanError:
                self.attributes = old
                raise
            self._configure_sessions()
        self._on_state(self)

    def wait_until_flushed(self, timeout: float | None = 30.0) -> bool:
        """Sends without waiting for full batches until the queue is empty. False if it is not within `timeout` seconds (None: without
        limit), or if the sender stops before."""
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0):
            raise ConfigurationError(f"gateway sender {self.id!r}: wait_until_flushed({timeout!r}): the timeout is a number of seconds of at least 0, or None (no limit)")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self.flushing():
            while len(self.queue):
                left = deadline - time.monotonic()
                if left <= 0 or (self._stopping.wait(min(left, 0.005)) and len(self.queue)):
                    return False
            return True

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Meanwhile it sends without waiting for full batches."""
        self._ask_to_flush(1)
        try:
            yield
        finally:
            self._ask_to_flush(-1)

    def _ask_to_flush(self, by: int) -> None:
        with self._flushes_lock:        # Several may wait at once: the first one turns it on, the last one off.
            self._flushes += by
            for session in self._sessions:
                session.flush(self._flushes > 0)

    # User's callbacks

    def _take_filters(self) -> None:
        a = self.attributes
        what = f"gateway sender {a.id!r}: gateway_event_filter"
        self._filters = tuple(make_instance(f, what, CALLBACK_METHODS["gateway_event_filters"]) for f in a.gateway_event_filters)
        substitution = a.gateway_event_substitution_filter
        self.substitution_filter = None if substitution is None else make_instance(
            substitution, f"gateway sender {a.id!r}: gateway_event_substitution_filter", CALLBACK_METHODS["gateway_event_substitution_filter"])
        self.enqueue_filters = self._overriding("before_enqueue")
        self._transmit_filters = self._overriding("before_transmit")
        self._acknowledgement_filters = self._overriding("after_acknowledgement")

    def _overriding(self, method: str) -> tuple[Any, ...]:
        """The filters that do something in `method`: the others need not be asked, nor the GIL taken for them."""
        return tuple(f for f in self._filters if getattr(type(f), method, None) is not getattr(GatewayEventFilter, method))

    def _configure_sessions(self) -> None:
        a = self.attributes
        for session in self._sessions:
            session.configure(a.batch_size, a.batch_time_interval, batch_conflation=a.enable_batch_conflation, compress=a.compression == "lz4",
                              alert_threshold_ms=a.alert_threshold, silence_ms=a.socket_read_timeout)
            session.set_callbacks(self._filter_batch if self._transmit_filters else None,
                                  self._tell_acknowledged if self._acknowledgement_filters else None)
        self.queue.wake()       # A dispatcher that waits for a batch to fill goes by what holds now.

    def decide_enqueue(self, event: GatewayQueueEvent) -> Any:
        """What the region does for this sender: None (enqueue), False (filtered) or (form, bytes) to send instead of the value."""
        substitute = None
        if self.substitution_filter is not None and event.operation != "destroy":
            try:
                substitute = _core.encode_object(self.substitution_filter.get_substitute_value(event))
            except BaseException as error:
                let_through(error)
                self._log_callback("the substitution filter failed; the original value is sent")
        for each in self.enqueue_filters:
            try:
                if not each.before_enqueue(event):
                    return False
            except BaseException as error:
                let_through(error)
                self._log_callback(f"before_enqueue of {each!r} failed; the event is queued")
        return substitute

    def _filter_batch(self, records: Iterable[bytes]) -> list[bool]:
        verdicts = []
        for record in records:
            event = GatewayQueueEvent.from_record(record)
            keep = True
            for each in self._transmit_filters:
                try:
                    if not each.before_transmit(event):
                        keep = False
                        break
                except BaseException as error:
                    let_through(error)
                    self._log_callback(f"before_transmit of {each!r} failed; the event is sent")
            verdicts.append(keep)
        return verdicts

    def _tell_acknowledged(self, records: Iterable[bytes]) -> None:
        for record in records:
            event = GatewayQueueEvent.from_record(record)
            for each in self._acknowledgement_filters:
                try:
                    each.after_acknowledgement(event)
                except BaseException as error:
                    let_through(error)
                    self._log_callback(f"after_acknowledgement of {each!r} failed")

    def _log_callback(self, text: str) -> None:
        """Once a second at most: a filter that fails does so for every event."""
        now = time.monotonic()
        if now - self._callbacks_logged_at >= 1.0:
            self._callbacks_logged_at = now
            log.exception("gateway sender %s: %s", self.id, text)

    # Parked events

    def _note_failure(self, partition: int, sequence: int, reason: int) -> None:
        self._failures_logged += 1
        if self._failures_logged <= 10 or self._failures_logged % 10000 == 0:
            if reason == 0xFFFF:
                log.error("gateway sender %s: event %d/%d failed and could not be parked: no room in the parked queue", self.id, partition, sequence)
            else:
                log.warning("gateway sender %s: event %d/%d failed at site %d and is parked: %s", self.id, partition, sequence,
                            self.attributes.remote_distributed_system_id, REASONS.get(reason, REASONS[5]))

    @property
    def parked_count(self) -> int:
        """Events that the remote site could not apply, kept here."""
        return len(self._parked)

    @property
    def parked_queue(self) -> _core.EventQueue:
        """Where they are kept."""
        return self._parked

    def parked(self, limit: int = 100) -> list[dict[str, Any]]:
        """Up to `limit` parked events, with the reason."""
        limit = to_int(limit, f"gateway sender {self.id!r}: parked: limit", 0, 2**31 - 1)
        found = []
        for reason, record in self._parked.records(limit):
            event = GatewayQueueEvent.from_record(record)
            found.append({"region": event.region, "operation": event.operation, "key": event.key, "value": event.value,
                          "timestamp": event.creation_timestamp, "reason": REASONS.get(reason, REASONS[5])})
        return found

    def tell_floors(self, still_coming: Floors) -> None:
        """The receiver hears below which stamps nothing comes from here any more. `still_coming`: of what can still be queued, by site of origin."""
        positions = self.queue.positions()
        parked = self._parked.lowest_copied(until_empty=True)
        told = self._floors.look(positions, parked, self.queue.lowest_copied(), still_coming)
        with self._tell_lock:
            for session in self._sessions if not self._has_said_goodbye else ():
                session.tell_floors(encode_floors(told))

    def replay_parked(self, *, force: bool = False) -> int:
        """Queues every event that is parked now again, behind what waits. Returns how many. With `force` the remote site also applies those whose
        keys may have been destroyed later."""
        with self.parked_lock:
            self._parked.wait_durable(10.0)     # What was parked just now can be replayed once it is on the disk.
            return self._parked.replay_into(self.queue, force)

    def drop_parked(self) -> int:
        """Forgets every parked event; they stay counted as parked. Returns how many."""
        with self.parked_lock:
            return self._parked.clear()

    # Dispatching

    def _dispatch(self, index: int) -> None:
        longest = self.attributes.retry_interval_ms / 1000
        retry = min(FIRST_RETRY_S, longest)
        while not self._stopping.is_set():
            try:
                if self._serve_connection(index, longest):
                    retry = min(FIRST_RETRY_S, longest)
            except Exception as error:
                with contextlib.suppress(MemoryError):      # Not even for the line.
                    if isinstance(error, (PywanError, OSError, MemoryError)):
                        self._note_trouble(str(error) or "out of memory: the process has none for a connection")
                    else:
                        log.exception("gateway sender %s: dispatcher %d failed to connect", self.id, index)
            self._stopping.wait(retry)
            retry = min(2 * retry, longest)

    def _serve_connection(self, index: int, long_s: float) -> bool:
        """One connection from its opening to its end. Whether it worked: the receiver showed progress, or it stood for longer than `long_s`."""
        session = self._sessions[index]
        try:
            sock, place, member, welcome = self._connect(index)
        finally:
            self._connecting.pop(index, None)
        try:
            since = time.monotonic()
            session.connected(welcome.credit_events, welcome.credit_bytes, 0, welcome.maximum_time_between_pings * 1000 // 3)
            self._connections[index] = sock, place
            self._trouble = None
            if self._stopping.is_set():     # `stop` may have come between: `connected` clears what it told the session.
                session.stop()
            outcome = session.run(sock.fileno())
        finally:
            self._connections.pop(index, None)
            session.disconnected()
            sock.close()
        if outcome == "stopped":
            return False
        if session.has_progressed:
            self._hung.pop(index, None)
            self._repeats.clear()
        reason = f"connection to the receiver at {place} ended: {outcome}"
        if session.is_given_up or session.is_refused:
            self._hung[index] = reason
        if session.is_given_up:
            self._avoid(member)
        self._note_trouble(reason)
        return session.has_progressed or not session.is_given_up and time.monotonic() - since > long_s

    def _avoid(self, member: int) -> None:
        with self._avoided_lock:
            self._avoided[member] = time.monotonic() + AVOID_S

    def _find_receiver(self) -> dict[str, Any] | None:
        """The least loaded receiver; one that did not answer only where there is no other."""
        now = time.monotonic()
        with self._avoided_lock:
            self._avoided = {member: until for member, until in self._avoided.items() if until > now}
            avoided = list(self._avoided)
        site = self.attributes.remote_distributed_system_id
        found = self._membership.find_receiver(site, avoided, timeout=CONNECT_TIMEOUT_S) if avoided else None
        return found or self._membership.find_receiver(site, timeout=CONNECT_TIMEOUT_S)

    def _connect(self, index: int) -> tuple[socket.socket, str, int, Welcome]:
        a = self.attributes
        found = self._find_receiver()
        if found is None:
            known = self._membership.remote_locators(a.remote_distributed_system_id)
            raise ProtocolError(
                f"no receiver of site {a.remote_distributed_system_id} is known to its locators {', '.join(map(str, known))}" if known else
                f"site {a.remote_distributed_system_id} is not known to this site's locators; check their remote-locators")
        place = f"{found['host']}:{found['port']}"
        member = found["member_id"]
        try:
            sock = connect((found["host"], found["port"]), CONNECT_TIMEOUT_S, what=f"receiver of site {a.remote_distributed_system_id}",
                           on_socket=lambda opened: self._note_connecting(index, opened))
        except ConnectivityError:
            self._avoid(member)
            raise
        try:
            data.set_socket_options(sock, a.socket_buffer_size, socket.SO_SNDBUF, f"gateway sender {self.id!r}")
            hello = SenderHello(site=self._site, remote_site=a.remote_distributed_system_id, member=self._member_name, sender=self.id,
                                dispatcher=index, incarnation=self.incarnation, mount=self.queue.mount or self._own_identity, partitions=self.queue.partitions)
            sock.sendall(encode(hello, _core.FRAME_HELLO))
            try:
                welcome = data.receive_message(sock, Welcome)
            except ConnectivityError as error:
                self._avoid(member)
                raise ConnectivityError(f"the receiver at {place} does not answer: {error}") from None
            self._check_past(hello.incarnation, place, data.receive_known(sock, welcome.known))
            if welcome.site != a.remote_distributed_system_id:
                raise ProtocolError(f"the receiver at {place} belongs to site {welcome.site}, not to {a.remote_distributed_system_id}")
            sock.settimeout(None)
            return sock, place, member, welcome
        except BaseException:
            sock.close()
            raise

    def _check_past(self, incarnation: int, place: str, known: list[Known]) -> None:
        """What the receiver has of other mounts was sent by this queue, before. If not, the disk store is an older copy, or there is another one: sequences were given
        twice, or events settled that are queued here, and the receiver would take them for known. Then the queue goes on under another identity, and connects again."""
        foreign = next((each for each in known if not self.queue.is_past(each.mount, each.partition, each.last, each.settled)), None)
        if foreign is None:
            return
        fresh = secrets.randbits(63) | 1
        self.queue.renew(incarnation, fresh)
        renewed = self.queue.incarnation
        found = (f"the receiver at {place} knows events up to {foreign.last} of partition {foreign.partition}, settled up to {foreign.settled}, of which the disk store "
                 f"{self._store.name if self._store else ''} does not know: it was restored from a copy, or is a copy. Its queue goes on as {renewed:x}, in place of {incarnation:x}; what is queued is sent as possible "
                 "duplicates, and what only the other copy had is not here")
        if renewed == fresh:        # Else another dispatcher came first, and has said it.
            self._renewals += 1
            log.error("gateway sender %s: %s", self.id, found)
        raise GatewaySenderError(found)

    def _note_connecting(self, index: int, sock: socket.socket) -> None:
        """So that `stop` need not wait for what does not answer."""
        self._connecting[index] = sock
        if self._stopping.is_set():
            raise GatewaySenderError(f"gateway sender {self.id!r} is stopping")

    def _note_trouble(self, reason: str) -> None:
        """In the log when it is new, and every minute while it lasts."""
        if self._stopping.is_set():
            return
        if self._repeats.is_due(reason):
            log.warning("gateway sender %s: %s; %d events wait in the queue; trying again, every %d ms in the end", self.id, reason, len(self.queue),
                        self.attributes.retry_interval_ms)
        self._trouble = reason
