"""Owns the dispatchers of one queue: their threads, and when each one opens its other end again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import start_essential, start_thread, told_error
from pywan.config.attributes import QueueAttributes
from pywan.errors import GatewaySenderError, PywanError
from pywan.gateway.dispatched_by_others import DispatchedByOthers
from pywan.gateway.filters import SenderFilters
from pywan.gateway.parked import ParkedEvents
from pywan.gateway.queue import SenderQueue
from pywan.gateway.remote_site import ReceiverPlace

log = logging.getLogger("pywan.sender")

# The wait before the first attempt after a connection that worked. It doubles each time, up to the longest of the ends.
FIRST_RETRY_S = 0.05
JOIN_TIMEOUT_S = 15.0


class End(Protocol):
    """The other end of a dispatcher's connection: a receiver of the remote site, or a listener in this process."""

    @property
    def place(self) -> ReceiverPlace | None: ...

    @property
    def held_back_us(self) -> int: ...

    @property
    def untaken_bytes(self) -> int: ...

    def begin(self, session: _core.DispatcherSession) -> None: ...

    def run(self, session: _core.DispatcherSession) -> str:
        """Returns "stopped", "done" (it was left as `DispatcherSession.leave` asked), or why it ended."""

    def ended(self, session: _core.DispatcherSession, outcome: str) -> str:
        """Returns why it ended, in words for people."""

    def shut(self) -> None:
        """Ends what is under way. Any thread may call it."""

    def close(self) -> None: ...


class Ends(Protocol):
    """Opens the other ends."""

    # The beginning of `lag`'s cause while no end is open; the cause while the end is slow.
    trouble_word: str
    slow_word: str
    link_word: str  # The cause while the way to the end is slow.
    running_words: tuple[str, str]  # The state in words while it is connected, and while it is not.
    # Whether an end ends only by a failure. Then the queue counts as not connected while a dispatcher has a batch that
    # failed; otherwise, while no end is open.
    each_end_is_trouble: bool

    @property
    def longest_retry_s(self) -> float: ...

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is one that every dispatcher waits for."""

    def configure(self, attributes: Any) -> None:
        """Takes altered attributes."""

    def session_options(self, attributes: Any) -> dict[str, Any]:
        """Returns the options of `DispatcherSession.configure` that depend on the kind of end."""

    def words(self, event_id: tuple[int, int, int]) -> str | None:
        """Returns what the end said of a parked event. None: nothing is known."""

    def begin(self, dispatchers: Dispatchers) -> None:
        """Notes whose dispatchers begin to run."""

    def unreachable_reason(self, index: int) -> str | None:
        """Returns why dispatcher number `index` cannot open its end now. None: it can, as far as is known."""

    def wait_reachable(
        self, stopping: threading.Event, on_opening: Callable[[Any], None], told: Callable[[str], None]
    ) -> None:
        """Returns when ends can be opened, as far as is known, or `stopping` is set. `told` gets the reason of the
        wait: at once, when it changes, and every minute. `on_opening` as for `open`."""

    def close(self) -> None:
        """Nothing is opened any more."""

    def open(self, index: int, stopping: threading.Event, on_opening: Callable[[Any], None]) -> End:
        """Opens the end of dispatcher number `index`. `on_opening` gets what `shut` ends while that lasts, then
        None."""


class Dispatcher:
    """One dispatcher of a sender. Only its own thread changes the fields; other threads read them."""

    def __init__(self, index: int, session: _core.DispatcherSession) -> None:
        self.index, self.session = index, session
        self.opening: Any = None  # An end that is being opened.
        self.end_open: End | None = None
        # Why the last connection was given up or refused. None again when a receiver shows progress.
        self.given_up: str | None = None
        self.unopened: str | None = None  # Why the last attempt to connect failed. None: it succeeded.
        self.has_left = False  # Whether the last connection was left for another one, and did not end by itself.
        self.retry_s = FIRST_RETRY_S  # The pause after the next attempt that fails.
        self.again_at = 0.0  # When the next attempt may begin.

    def note_opening(self, opening: Any) -> None:
        self.opening = opening

    def end(self) -> None:
        """Ends its connection and its work. Any thread may call it."""
        self.session.stop()
        for each in (self.opening, self.end_open):
            if each is not None:
                each.shut()

    @property
    def hung_reason(self) -> str | None:
        """Why the last connection was given up, as long as no receiver shows progress."""
        return self.given_up if not self.session.has_progressed else None

    def times(self) -> dict[str, int]:
        """Returns the microseconds spent so far in each kind of work or waiting. `Lag` makes shares of them."""
        end = self.end_open
        held_back = end.held_back_us if end is not None else 0
        return {**self.session.times(time.monotonic_ns() // 1000), "held_back": held_back}

    def flow(self) -> dict[str, int]:
        """Returns how many batches and bytes are on their way, and how fast they are acknowledged."""
        return {**self.session.flow(time.monotonic_ns() // 1000), "batches_in_flight": self.session.in_flight}

    def is_left_waiting(self, is_held_back: bool) -> bool:
        """Returns whether the receiver has been silent for longer than the link takes.

        It is not counted as silent while its host has not taken all bytes, unless that host has no room for more
        (`is_held_back`).
        """
        flow, end = self.flow(), self.end_open
        if end is None or flow["unanswered_us"] <= max(1_000_000, 4 * flow["link_us"]):
            return False
        return is_held_back or end.untaken_bytes == 0


class Dispatchers:
    """All dispatchers of one sender. They run from `begin` and `start` to `end`."""

    def __init__(self, attributes: QueueAttributes, queue: SenderQueue, parked: ParkedEvents, ends: Ends) -> None:
        self._attributes, self._queue, self.ends = attributes, queue, ends
        self._what = attributes.what
        self._each = [
            Dispatcher(n, _core.DispatcherSession(queue.events, n, parked.queue, on_failure=parked.note_failure))
            for n in range(queue.dispatchers)
        ]
        self._threads_lock = threading.Lock()  # Guards the three below.
        self._threads: list[threading.Thread] = []
        # While the remote site cannot be reached, one dispatcher waits for it. The threads of others end, and are begun
        # again by the one that waits.
        self._waiting: Dispatcher | None = None
        self._parked: list[Dispatcher] = []
        self._stopping = threading.Event()
        self._stopping.set()
        self._dispatched_by_others = DispatchedByOthers(queue.events, self._stopping)
        # The reason why the last attempt to connect failed. None while a dispatcher is connected.
        self.trouble: str | None = None
        self._lines = Lines(log)  # About troubles, until a receiver shows progress.
        self._flushes_lock = threading.Lock()
        self._flushes = 0  # The number of callers that wait until the queue is flushed.

    # State

    def __iter__(self) -> Iterator[Dispatcher]:
        return iter(self._each)

    @property
    def is_running(self) -> bool:
        return not self._stopping.is_set()

    @property
    def is_connected(self) -> bool:
        if self.ends.each_end_is_trouble:
            return all(each.hung_reason is None for each in self._each)
        return any(each.end_open is not None for each in self._each)

    @property
    def receiver_place(self) -> ReceiverPlace | None:
        """The address of a receiver that one of the dispatchers is connected to. None: no dispatcher is connected."""
        return next((end.place for each in self._each if (end := each.end_open) is not None), None)

    def receiver_places(self) -> list[ReceiverPlace | None]:
        """Returns the receiver that each dispatcher is connected to. None: it is not connected."""
        return [end.place if (end := each.end_open) is not None else None for each in self._each]

    @property
    def is_sending(self) -> bool:
        """Whether a batch is on its way."""
        return any(each.session.in_flight for each in self._each)

    def wait_stopping(self, seconds: float) -> bool:
        """Waits until the dispatchers are told to end, `seconds` at most. Returns whether they were."""
        return self._stopping.wait(seconds)

    def is_own_thread(self) -> bool:
        """Returns whether the calling thread is one of the dispatchers, for example in a filter, or one that they wait
        for."""
        return threading.current_thread() in self._threads or self.ends.is_own_thread

    def late_threads(self) -> str:
        """Returns the names of the threads that were told to end and have not, apart from those that wait for the
        caller."""
        if self.ends.is_own_thread:
            return ""
        return ", ".join(t.name for t in self._threads if t.is_alive() and t is not threading.current_thread())

    # Orders

    def configure(self, attributes: QueueAttributes, filters: SenderFilters) -> None:
        """Gives all dispatchers the attributes and filters that hold from now on."""
        a = self._attributes = attributes
        self.ends.configure(a)
        for each in self._each:
            each.session.configure(
                a.batch_size,
                a.batch_time_interval,
                batch_conflation=a.enable_batch_conflation,
                **self.ends.session_options(a),
            )
            each.session.set_filters(filters)
        self._dispatched_by_others.configure(filters, tells=filters.wants_acknowledgements and not a.acknowledge_once)
        if self.is_running:
            self._follow_others()
        self._queue.events.wake()  # A dispatcher that waits for a full batch must look at the new attributes.

    def pause(self, is_paused: bool) -> None:
        """Pauses all dispatchers, or ends their pause."""
        for each in self._each:
            each.session.pause(is_paused)

    def ask_to_flush(self, by: int) -> None:
        """Counts the callers that wait for an empty queue: `by` is 1 or -1.

        As long as there is such a caller, the dispatchers send without waiting for full batches.
        """
        with self._flushes_lock:
            self._flushes += by
            for each in self._each:
                each.session.flush(self._flushes > 0)

    def begin(self, paused: bool) -> None:
        """Makes the dispatchers count as running. `start` follows."""
        self._stopping.clear()
        self.pause(paused)
        if self.ends.each_end_is_trouble:  # What failed before the stop may be gone, with clean queues for example.
            for each in self._each:
                each.given_up = None
        for each in self._each:
            each.unopened, each.retry_s, each.again_at = None, FIRST_RETRY_S, 0.0
        self._threads, self._waiting, self._parked = [], None, []

    def start(self) -> None:
        """Starts the threads: one if the remote site is known to be unreachable. IllegalStateError if the system has
        not enough of them; the caller must call `end` then."""
        self.ends.begin(self)
        at_once = len(self._each) if self.ends.unreachable_reason(0) is None else 1
        with self._threads_lock:
            self._parked = self._each[at_once:]
            for each in self._each[:at_once]:
                self._start_dispatcher(each)
        self._follow_others()

    def _start_dispatcher(self, own: Dispatcher) -> None:
        """The caller holds the lock of the threads."""
        name = f"{self._attributes.thread_name}-{own.index}"
        self._add_thread(start_essential(f"{self._what} is not started", name, self._dispatch, own))

    def _add_thread(self, thread: threading.Thread) -> None:
        """The caller holds the lock of the threads."""
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def run_aside(self, what: str, run: Callable[[], object]) -> None:
        """Runs something in a thread, for which `end` waits. IllegalStateError if the system has none."""
        with self._threads_lock:
            if self.is_running:
                name = f"{self._attributes.thread_name}-{what}"
                self._add_thread(start_thread(f"{self._what} does not {what}", name, run))

    def _follow_others(self) -> None:
        """Has the filters hear of events that other members sent, if they want to."""
        thread = self._dispatched_by_others.follow(
            f"{self._what} is not started", f"{self._attributes.thread_name}-elsewhere"
        )
        if thread is not None:
            with self._threads_lock:
                self._add_thread(thread)

    def end(self) -> None:
        """Ends the threads. GatewaySenderError if one of them does not end in time."""
        self._stopping.set()
        for each in self._each:
            each.end()
        self._dispatched_by_others.end()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        with self._threads_lock:  # A thread that is started after this sees that it is to stop.
            threads = self._threads
        for thread in threads:
            if thread is not threading.current_thread() and not self.ends.is_own_thread:
                thread.join(max(0.0, deadline - time.monotonic()))
        late = self.late_threads()
        if late:
            raise GatewaySenderError(
                f"{self._what}: {late} did not end within {JOIN_TIMEOUT_S:.0f} s; a filter or a listener may hang"
            )
        self._threads = []

    # The work of one dispatcher, in its own thread

    def _dispatch(self, own: Dispatcher) -> None:
        """Connects, serves the connection, and connects again, until the sender is stopped."""
        while not self._stopping.is_set():
            longest = self.ends.longest_retry_s
            own.has_left = False
            try:
                if not self._is_to_connect(own):
                    return
                if self._serve_connection(own, longest):
                    own.retry_s = FIRST_RETRY_S
            except Exception as error:
                with contextlib.suppress(MemoryError):  # There may be no memory even for the line of the log.
                    is_told = isinstance(error, (PywanError, OSError, MemoryError))
                    if is_told:
                        own.unopened = str(error) or "out of memory: the process cannot get any for a connection"
                    else:
                        own.unopened = f"dispatcher {own.index} failed to connect: {told_error(error)}"
                    self._note_trouble(own.unopened)
                    if not is_told:
                        log.debug("%s: dispatcher %d failed", self._attributes.label, own.index, exc_info=True)
            if own.has_left:
                continue
            retry_s = min(own.retry_s, longest)
            own.again_at = time.monotonic() + retry_s
            own.retry_s = min(2 * retry_s, longest)

    def _is_to_connect(self, own: Dispatcher) -> bool:
        """Returns when a dispatcher is to make its next attempt. False: its thread ends, because the sender stops, or
        another dispatcher waits for the remote site and begins this one again."""
        self._stopping.wait(max(0.0, own.again_at - time.monotonic()))
        with self._threads_lock:
            reason = self.ends.unreachable_reason(own.index)
            if reason is not None:
                if self._waiting is not None:
                    own.unopened = reason
                    self._parked.append(own)
                    return False
                self._waiting = own
        if reason is not None:
            try:
                self.ends.wait_reachable(self._stopping, own.note_opening, lambda reason: self._note_wait(own, reason))
            finally:
                with self._threads_lock:
                    self._waiting = None
        self._start_parked()
        return not self._stopping.is_set()

    def _note_wait(self, own: Dispatcher, reason: str) -> None:
        """Notes why the remote site cannot be reached, for `own`, which waits, and for all that are parked."""
        with self._threads_lock:
            for each in (own, *self._parked):
                each.unopened = reason
        self._note_trouble(reason)

    def _start_parked(self) -> None:
        with self._threads_lock:
            while self._parked and self.is_running:
                self._start_dispatcher(self._parked[-1])
                self._parked.pop()

    def _serve_connection(self, own: Dispatcher, long_s: float) -> bool:
        """Serves one connection from its opening to its end.

        Returns whether it worked: the receiver showed progress, or the connection lasted longer than `long_s`.
        """
        session = own.session
        try:
            end = self.ends.open(own.index, self._stopping, own.note_opening)
        finally:
            own.opening = None
        try:
            since = time.monotonic()
            end.begin(session)
            own.end_open = end
            self.trouble = own.unopened = None
            if self._stopping.is_set():  # `end` may have stopped the session just before `begin` cleared that.
                session.stop()
            outcome = end.run(session)
        finally:
            own.end_open = None
            session.disconnected()
            end.close()
        if outcome == "stopped":
            return False
        if outcome == "done":
            own.has_left = True
            return True
        if session.has_progressed:
            own.given_up = None
            self._lines.ended()
        reason = end.ended(session, outcome)
        if session.is_given_up or session.is_refused or self.ends.each_end_is_trouble:
            own.given_up = reason
        self._note_trouble(reason)
        return session.has_progressed or (not session.is_given_up and time.monotonic() - since > long_s)

    def _note_trouble(self, reason: str) -> None:
        """Logs a trouble when it is new, and every minute while it lasts."""
        if self._stopping.is_set():
            return
        self._lines.warning(
            "%s: %s; %d events wait in the queue; it tries again, in the end every %d ms",
            self._attributes.label,
            reason,
            len(self._queue.events),
            self.ends.longest_retry_s * 1000,
            once=(reason,),
        )
        self.trouble = reason
