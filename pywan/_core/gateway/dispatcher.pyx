# Owns one dispatcher's side of a connection: when the dispatcher sends, pings, waits, and gives the receiver up.
# `DispatcherSession` has no socket and no clock: bytes and `now` come in, bytes and the next deadline go out.
# `BatchBuilder` chooses the events to send, `InFlight` has the sent batches, and `AckHandler` applies acknowledgements.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.gateway.batch_builder cimport BatchBuilder, batch_options
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_system cimport *
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.gateway.in_flight cimport InFlight, failures_of_flight, flight
from pywan._core.queue.queue cimport gateway_queue
from pywan._core.gateway.sender_callbacks cimport SenderCallbacks
from pywan._core.region.event_filters cimport EventFilters
from pywan._core.wire.session cimport ENDED_DONE, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.gateway.ack_handler cimport AckHandler
from pywan._core.base.status cimport raise_for
from pywan._core.wire.stream cimport buffer_frame


cdef enum:
    BATCH_EVENTS_MAX = 100000           # The largest batch with batch-size -1 (only time closes a batch).
    BATCH_BYTES_MAX = 32 << 20
    HEARTBEAT_US = 5000000
    # The receiver is given up after this time without progress while batches are in flight, or without a byte
    # otherwise. The user may set another time.
    RECEIVE_TIMEOUT_US = 30000000


cdef class DispatcherSession(Session):
    """The session of dispatcher `index` of a queue, over one connection after another.

    `filters` has the user's filters, or is None. `parked` takes failed events."""
    cdef EventQueue queue
    cdef gateway_queue *gateway
    cdef readonly uint32_t index
    cdef SenderCallbacks callbacks
    cdef BatchBuilder builder
    cdef InFlight flights
    cdef AckHandler ack_handler
    cdef uint64_t receive_timeout_us
    # A ping is sent after this time without sent bytes. The time is well within the receiver's limit.
    cdef uint64_t heartbeat_us
    cdef uint64_t last_sent_us
    cdef uint64_t blocked_us                    # Time with batches to send, but a full window.
    cdef wan_buffer floors                      # wan_floor, as last given to `tell_floors`. Under the queue's lock.
    cdef int floors_due                         # The tombstone watermarks were not sent on this connection.
    # Number of the last given tombstone watermarks, and number of the last watermarks that the receiver answered.
    cdef uint64_t floors_told, floors_acked
    cdef int is_given_up_flag, is_refused_flag
    cdef int leave_flag                         # The connection is left as soon as no batch is in flight.

    def __cinit__(self, EventQueue queue not None, uint32_t index, EventQueue parked not None, *,
                  EventFilters filters=None, on_failure=None):
        self.queue, self.gateway, self.index = queue, queue.gateway, index
        self.callbacks = SenderCallbacks(filters, on_failure)
        self.builder = BatchBuilder(queue, index, self.callbacks)
        self.flights = InFlight()
        self.ack_handler = AckHandler(queue, parked, self.callbacks)
        self.reads_while_writing, self.wake_file = True, queue.gateway.signals[index].file
        self.configure(100, 1000)

    def __dealloc__(self):
        wan_buffer_close(&self.floors)

    def configure(self, int batch_size, double batch_time_interval_ms, *, bint batch_conflation=False,
                  bint compress=False,
                  uint64_t batch_bytes_max=8 << 20, uint32_t alert_threshold_ms=0, uint64_t receive_timeout_ms=0):
        """Sets the options of the next batches. batch_size -1: only time closes a batch. Interval -1: a batch never
        waits.

        `receive_timeout_ms`: the connection is given up after this time without progress; 0: after 30 s."""
        cdef batch_options options
        options.events_max = BATCH_EVENTS_MAX if batch_size < 0 else min(batch_size, <int>BATCH_EVENTS_MAX)
        options.bytes_max = min(batch_bytes_max, <uint64_t>BATCH_BYTES_MAX)
        options.interval_us = -1 if batch_time_interval_ms < 0 else <int64_t>(batch_time_interval_ms * 1000)
        options.conflation, options.compress = batch_conflation, compress
        self.builder.configure(options)
        self.ack_handler.alert_threshold_ms = alert_threshold_ms
        self.receive_timeout_us = receive_timeout_ms * 1000 if receive_timeout_ms else RECEIVE_TIMEOUT_US

    def set_filters(self, EventFilters filters):
        """Replaces the user's filters, from the next batch on. None: no filters."""
        self.callbacks.set_filters(filters)

    # Messages of other threads

    cdef void wake(self) noexcept nogil:
        eventfd_write(self.gateway.signals[self.index].file, 1)

    def stop(self):
        """Makes `run` return soon."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    def pause(self, bint value):
        """No new batch is built while paused. Acknowledgements are still accepted."""
        wan_flag_set(&self.builder.pause_flag, value)
        self.wake()

    def leave(self, bint value):
        """While set, no new batch is built, and `run` returns "done" when all batches are acknowledged. A new
        connection begins with the flag cleared."""
        wan_flag_set(&self.leave_flag, value)
        self.wake()

    def flush(self, bint value):
        """While set, a batch leaves as soon as there is an event."""
        wan_flag_set(&self.builder.flush_flag, value)
        self.wake()

    def tell_floors(self, bytes floors):
        """Tells the receiver these tombstone watermarks (wan_floor): in a ping at once, and again on every later
        connection."""
        cdef wan_status status
        cdef const char *told = PyBytes_AS_STRING(floors)
        cdef uint64_t length = <uint64_t>PyBytes_GET_SIZE(floors)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            wan_buffer_empty(&self.floors)
            status = wan_buffer_add(&self.floors, told, length)
            wan_add_guarded(&self.floors_told, 1)
            wan_lock_release(&self.gateway.lock)
        raise_for(status, f"queue {self.queue.name!r}: floors")
        wan_flag_set(&self.floors_due, 1)
        self.wake()

    # Questions of other threads

    @property
    def floors_are_acked(self):
        """Whether a receiver has answered the ping with the tombstone watermarks of the last `tell_floors`."""
        return wan_read(&self.floors_acked) == wan_read(&self.floors_told)

    def times(self, uint64_t now_us):
        """Returns the parts of lag in microseconds so far, at `now_us`. "filter": time in the user's callbacks.
        "blocked": time with events to send, waiting for the link or the receiver. "receiver": the receiver's work on
        acknowledged batches."""
        return {"filter": self.callbacks.time_us(now_us), "blocked": wan_read(&self.blocked_us),
                "receiver": wan_read(&self.flights.receiver_us)}

    def flow(self, uint64_t now_us):
        """Returns the numbers about batches in flight at `now_us`. `window_bytes`: the limit. `bytes_in_flight`,
        `events_in_flight`: the present amounts. `round_trip_us`: the shortest known time, and `link_us` without the
        receiver's work (0: unknown). `unanswered_us`: how long batches in flight have had no answer."""
        return self.flights.flow(now_us)

    @property
    def in_flight(self):
        """Batches sent and not acknowledged."""
        return self.flights.batches()

    @property
    def has_progressed(self):
        """Whether the receiver has acknowledged, or told of its work, on this connection or the last one."""
        return wan_flag_read(&self.flights.has_progressed_flag) != 0

    @property
    def unreadable_reason(self):
        """The reason why events in a file of the log are not sent; None: all events can be sent."""
        return self.builder.unreadable_reason()

    @property
    def is_given_up(self):
        """Whether the last connection ended because the receiver showed no progress, or no sign of life."""
        return wan_flag_read(&self.is_given_up_flag) != 0

    @property
    def is_refused(self):
        """Whether the receiver ended the last connection with a reason."""
        return wan_flag_read(&self.is_refused_flag) != 0

    # Start and end of a connection

    def connected(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us=0,
                  uint64_t heartbeat_us=HEARTBEAT_US):
        """Begins a new connection: batch ids start at 0, the receiver's credit is known, and no region has been named.
        The connection exists since `now_us`; 0: since the start of `run`."""
        self.flights.begin(credit_events, credit_bytes, now_us)
        self.builder.begin()
        self.heartbeat_us = max(<uint64_t>1000, min(heartbeat_us, <uint64_t>HEARTBEAT_US))
        self.forget_bytes()
        wan_flag_set(&self.floors_due, self.floors.used != 0)
        self.begin(now_us)
        wan_flag_set(&self.is_given_up_flag, 0)
        wan_flag_set(&self.is_refused_flag, 0)
        wan_flag_set(&self.leave_flag, 0)
        wan_flag_set(&self.stop_flag, 0)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        Session.begin(self, now_us)
        self.last_sent_us = now_us
        self.flights.begins_at(now_us)

    def disconnected(self):
        """Ends the connection: all events in flight are to be sent again, marked as possible duplicates."""
        with nogil:
            self.builder.rewind(self.flights.batches())
        self.flights.end()
        self.forget_bytes()

    # Frames of the receiver

    cdef int received(self) noexcept nogil:
        cdef const wan_breakage *broken = wan_breakage_of(&self.gateway.queue.broken)
        if broken != NULL:
            wan_refuse_broken(broken)
            return ENDED_TOLD
        return self.take_frames()

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.type == WAN_FRAME_ACK:
            return GOES_ON if self.acknowledge(frame) else ENDED_TOLD
        if frame.type == WAN_FRAME_PROGRESS:
            self.flights.note_steps(frame.id, self.now_us)
            return GOES_ON
        if frame.type == WAN_FRAME_PONG:
            wan_set(&self.floors_acked, max(self.floors_acked, min(frame.id, wan_read(&self.floors_told))))
            return GOES_ON
        if frame.type == WAN_FRAME_REWIND and frame.length < sizeof(wan_rewind):
            wan_note(WAN_CORRUPT, "rewind of %u bytes", frame.length)
        elif frame.type == WAN_FRAME_REWIND:
            wan_note(WAN_CORRUPT, "the receiver expects partition %u from sequence %llu",
                     (<const wan_rewind *>(frame + 1)).partition,
                     <unsigned long long>(<const wan_rewind *>(frame + 1)).expected)
        elif frame.type == WAN_FRAME_BYE:
            wan_note(WAN_CORRUPT, "the receiver is stopping")
        elif frame.type == WAN_FRAME_ERROR:
            wan_flag_set(&self.is_refused_flag, 1)
            wan_note(WAN_CORRUPT, "the receiver says: %.*s", <int>min(frame.length, 400), <const char *>(frame + 1))
        else:
            wan_note(WAN_CORRUPT, "frame of type %u from a receiver", frame.type)
        return ENDED_TOLD

    cdef bint acknowledge(self, const wan_frame *frame) noexcept nogil:
        """Handles every batch up to the acknowledged batch. False: the acknowledgement is invalid, or a failed event
        could not be parked."""
        cdef const wan_ack *ack = <const wan_ack *>(frame + 1)
        cdef const wan_failure *failures = <const wan_failure *>(ack + 1)
        cdef uint32_t begin = 0, count
        cdef uint64_t came_us = self.now_us
        cdef flight *batch
        if not self.flights.receive(frame, came_us):
            return False
        while self.flights.oldest_batch <= frame.id:
            batch = self.flights.oldest()
            count = failures_of_flight(batch, failures + begin, ack.failures - begin)
            if not self.ack_handler.acknowledge(self, batch, failures + begin, count):
                return False
            begin += count
            self.flights.acknowledged(frame.count, came_us)
        return True

    # Deadlines

    cdef uint64_t alive_until(self) noexcept nogil:
        """Returns the time when the receiver is to be given up. Only actions of the receiver itself are a sign of life:
        the kernel of a hanging receiver still accepts bytes, pings too. While batches are in flight, only work on these
        batches is a sign."""
        return (self.flights.progress_us if self.flights.batches() else self.last_received_us) + self.receive_timeout_us

    cdef int ping(self) noexcept nogil:
        """Lays out a ping with the tombstone watermarks. The answer repeats the number of the watermarks. 0: no
        memory."""
        cdef int done
        wan_flag_set(&self.floors_due, 0)
        wan_lock_take(&self.gateway.lock)
        done = buffer_frame(&self.out, WAN_FRAME_PING, self.floors_told, 0, self.floors.bytes,
                            <uint32_t>self.floors.used)
        wan_lock_release(&self.gateway.lock)
        return done

    cdef void keep_alive(self) noexcept nogil:
        cdef uint64_t now = self.work_us()
        if now <= self.last_sent_us + self.heartbeat_us:
            return
        if self.out.start < self.out.used or self.ping():
            self.push()             # The driver handles unsent bytes and broken connections.
            self.last_sent_us = now

    cdef int step(self, uint64_t now_us) noexcept nogil:
        cdef bint is_empty = self.all_left()
        cdef const wan_breakage *broken = wan_breakage_of(&self.gateway.queue.broken)
        if broken != NULL:
            wan_refuse_broken(broken)
            return ENDED_TOLD
        if is_empty and wan_flag_read(&self.leave_flag) and not self.flights.batches():
            return ENDED_DONE
        if is_empty and self.batch_may_leave(now_us) and self.builder.is_due(now_us):
            if not self.builder.build(self, self.flights, now_us):
                wan_note(WAN_NO_MEMORY, "no memory for a batch")
                return ENDED_TOLD
            return GOES_AGAIN
        if is_empty and (now_us > self.last_sent_us + self.heartbeat_us or wan_flag_read(&self.floors_due)):
            if not self.ping():
                return ENDED_TOLD
            self.last_sent_us = now_us
            return GOES_AGAIN
        if now_us > self.alive_until():
            wan_flag_set(&self.is_given_up_flag, 1)
            if self.flights.batches():
                wan_note(WAN_CORRUPT, "no progress by the receiver for %.1f s, with %llu events on their way to it",
                         self.receive_timeout_us / 1e6, <unsigned long long>self.flights.events)
            else:
                wan_note(WAN_CORRUPT, "no answer from the receiver for %.1f s", self.receive_timeout_us / 1e6)
            return ENDED_TOLD
        return self.builder.wait_for_events(now_us, is_empty and self.takes_more())

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t until = self.alive_until()
        if not self.all_left():             # No frame is laid out before all bytes have left.
            return until + 1
        if wan_flag_read(&self.floors_due):
            return now_us
        # From the last sent byte on, however often other reasons woke the session.
        until = min(until, self.last_sent_us + self.heartbeat_us) + 1
        return self.builder.due_us(now_us, until) if self.takes_more() else until

    cdef bint takes_more(self) noexcept nogil:
        """Returns whether the connection can take one more batch."""
        return self.flights.has_room() and not wan_flag_read(&self.leave_flag)

    cdef bint batch_may_leave(self, uint64_t now_us) noexcept nogil:
        return self.builder.may_build(now_us) and self.takes_more()

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        self.last_sent_us = now_us

    cdef void woken(self, uint64_t since_us, uint64_t now_us) noexcept nogil:
        if self.out.start < self.out.used or not self.flights.has_room():
            wan_add_shared(&self.blocked_us, now_us - since_us)
        self.builder.stop_waiting()

    cdef int closed(self, bint while_reading) noexcept nogil:
        if while_reading:
            wan_note(WAN_CORRUPT, "the receiver closed the connection")
        else:
            wan_note(WAN_CORRUPT, "the connection to the receiver broke")
        return ENDED_TOLD

    def run(self, sock):
        """Moves batches out and acknowledgements in over a connected socket, until a stop or the end of the connection.
        Returns "stopped", "done" after `leave`, or the reason of the end. The GIL is free meanwhile."""
        return self.run_over_socket(sock)
