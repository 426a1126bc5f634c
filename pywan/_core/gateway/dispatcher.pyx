# Owns one dispatcher's side of a connection: when it sends, pings, waits, and gives the receiver up.
# `DispatcherSession` knows no socket and no clock: bytes and `now` come in, bytes and the next deadline go out.
# `BatchBuilder` chooses what is sent, `InFlight` has what was sent, and `Settlement` does what an acknowledgement
# means.
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
from pywan._core.wire.session cimport ENDED_DONE, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session
from pywan._core.gateway.settlement cimport Settlement
from pywan._core.base.status cimport raise_for
from pywan._core.wire.stream cimport buffer_frame


cdef enum:
    BATCH_EVENTS_MAX = 100000           # The largest batch with batch-size -1, where only time closes a batch.
    BATCH_BYTES_MAX = 32 << 20
    HEARTBEAT_US = 5000000
    # The receiver is given up after so long without progress while batches are in flight, or without a byte while none
    # are. The user may set another time.
    SILENCE_US = 30000000


cdef class DispatcherSession(Session):
    """The session of dispatcher `index` of a queue, over one connection after another.

    `transmit_filter(records, one by one) -> list of bool` and `acknowledged(records, one by one)` are the user's
    callbacks, or None. A record is (its bytes, (partition, sequence, whether it may have been applied before)).
    `parked` takes failed events."""
    cdef EventQueue queue
    cdef gateway_queue *gateway
    cdef readonly uint32_t index
    cdef SenderCallbacks callbacks
    cdef BatchBuilder builder
    cdef InFlight flights
    cdef Settlement settlement
    cdef uint64_t silence_us
    # A ping is sent after so long in which nothing was sent. It is well within the receiver's limit.
    cdef uint64_t heartbeat_us
    cdef uint64_t last_sent_us
    cdef uint64_t blocked_us                    # Time with batches to send and no room for them on the way.
    cdef wan_buffer floors                      # wan_floor, as last given to `tell_floors`. Under the queue's lock.
    cdef int floors_due                         # The floors were not sent on this connection.
    # Numbers of the floors given last, and of those that the receiver answered.
    cdef uint64_t floors_told, floors_heard
    cdef int is_given_up_flag, is_refused_flag
    cdef int leave_flag                         # The connection is left as soon as nothing is on its way.

    def __cinit__(self, EventQueue queue not None, uint32_t index, EventQueue parked not None, *, transmit_filter=None,
                  acknowledged=None, on_failure=None):
        self.queue, self.gateway, self.index = queue, queue.gateway, index
        self.callbacks = SenderCallbacks(transmit_filter, acknowledged, on_failure)
        self.builder = BatchBuilder(queue, index, self.callbacks)
        self.flights = InFlight()
        self.settlement = Settlement(queue, parked, self.callbacks)
        self.reads_while_writing, self.wake_file = True, queue.gateway.signals[index].file
        self.configure(100, 1000)

    def __dealloc__(self):
        wan_buffer_close(&self.floors)

    def configure(self, int batch_size, double batch_time_interval_ms, *, bint batch_conflation=False,
                  bint compress=False,
                  uint64_t batch_bytes_max=8 << 20, uint32_t alert_threshold_ms=0, uint64_t silence_ms=0):
        """Sets the options of the next batches. batch_size -1: only time closes a batch. Interval -1: a batch never
        waits.
        `silence_ms`: the connection is given up after so long without progress; 0: after 30 s."""
        cdef batch_options options
        options.events_max = BATCH_EVENTS_MAX if batch_size < 0 else min(batch_size, <int>BATCH_EVENTS_MAX)
        options.bytes_max = min(batch_bytes_max, <uint64_t>BATCH_BYTES_MAX)
        options.interval_us = -1 if batch_time_interval_ms < 0 else <int64_t>(batch_time_interval_ms * 1000)
        options.conflation, options.compress = batch_conflation, compress
        self.builder.configure(options)
        self.settlement.alert_threshold_ms = alert_threshold_ms
        self.silence_us = silence_ms * 1000 if silence_ms else SILENCE_US

    def set_callbacks(self, transmit_filter, acknowledged):
        """Replaces the user's callbacks, from the next batch on."""
        self.callbacks.transmit_filter, self.callbacks.acknowledged = transmit_filter, acknowledged

    # What other threads tell the session.

    cdef void wake(self) noexcept nogil:
        eventfd_write(self.gateway.signals[self.index].file, 1)

    def stop(self):
        """Makes `run` return soon."""
        wan_flag_set(&self.stop_flag, 1)
        self.wake()

    def pause(self, bint value):
        """No new batch is built while paused; acknowledgements are still taken."""
        wan_flag_set(&self.builder.pause_flag, value)
        self.wake()

    def leave(self, bint value):
        """While set, no new batch is built, and `run` returns "done" when all batches are acknowledged. A new
        connection begins without it."""
        wan_flag_set(&self.leave_flag, value)
        self.wake()

    def flush(self, bint value):
        """While set, a batch leaves as soon as there is an event for it."""
        wan_flag_set(&self.builder.flush_flag, value)
        self.wake()

    def tell_floors(self, bytes floors):
        """Tells the receiver these floors (wan_floor): with a ping at once, and again on every connection to come."""
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

    # What other threads ask the session.

    @property
    def floors_are_heard(self):
        """Whether a receiver has answered the ping with the floors that `tell_floors` was given last."""
        return wan_read(&self.floors_heard) == wan_read(&self.floors_told)

    def times(self, uint64_t now_us):
        """Times in microseconds so far, at `now_us`, that lag is made of. "filter": in the user's callbacks. "blocked":
        with events to send, waiting for the link or the receiver. "receiver": the receiver worked on what it
        acknowledged."""
        return {"filter": self.callbacks.time_us(now_us), "blocked": wan_read(&self.blocked_us),
                "receiver": wan_read(&self.flights.receiver_us)}

    def flow(self, uint64_t now_us):
        """The numbers of what is on its way at `now_us`. `window_bytes`: how much may be. `bytes_in_flight`,
        `events_in_flight`: how much is. `round_trip_us`: the shortest time known, and `link_us` without the receiver's
        work (0: none). `unanswered_us`: how long batches in flight have had no answer."""
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
        """Why events that lie in a file of the log are not sent; None: they are."""
        return self.builder.unreadable_reason()

    @property
    def is_given_up(self):
        """Whether the last connection ended because its receiver showed no progress, or no life."""
        return wan_flag_read(&self.is_given_up_flag) != 0

    @property
    def is_refused(self):
        """Whether the receiver ended the last connection, and said why."""
        return wan_flag_read(&self.is_refused_flag) != 0

    # A connection begins and ends.

    def connected(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us=0,
                  uint64_t heartbeat_us=HEARTBEAT_US):
        """Begins a new connection: batch ids start at 0, the receiver's credit is known, and no region has been named
        on it. It is there since `now_us`; 0: since `run` begins."""
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
        """Ends the connection: everything in flight is to be sent again, marked possible duplicate."""
        with nogil:
            self.builder.rewind(self.flights.batches())
        self.flights.end()
        self.forget_bytes()

    # What the receiver sends.

    cdef int heard(self) noexcept nogil:
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
            wan_set(&self.floors_heard, max(self.floors_heard, min(frame.id, wan_read(&self.floors_told))))
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
        """Settles every batch up to the acknowledged one. False: the acknowledgement makes no sense, or a failed event
        could not be parked."""
        cdef const wan_ack *ack = <const wan_ack *>(frame + 1)
        cdef const wan_failure *failures = <const wan_failure *>(ack + 1)
        cdef uint32_t begin = 0, count
        cdef uint64_t came_us = self.now_us
        cdef flight *batch
        if not self.flights.hear(frame, came_us):
            return False
        while self.flights.oldest_batch <= frame.id:
            batch = self.flights.oldest()
            count = failures_of_flight(batch, failures + begin, ack.failures - begin)
            if not self.settlement.settle(self, batch, failures + begin, count):
                return False
            begin += count
            self.flights.settled(frame.count, came_us)
        return True

    # What is due, and when.

    cdef uint64_t alive_until(self) noexcept nogil:
        """When the receiver is to be given up. Only what the receiver itself does counts as life: its kernel takes
        bytes, pings too, when it hangs. With batches in flight only work on them counts."""
        return (self.flights.progress_us if self.flights.batches() else self.last_heard_us) + self.silence_us

    cdef int ping(self) noexcept nogil:
        """Lays out a ping with the floors. The number of the floors comes back with the answer. 0: no memory."""
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
            self.push()             # The driver deals with bytes that did not leave, and with a connection that broke.
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
                         self.silence_us / 1e6, <unsigned long long>self.flights.events)
            else:
                wan_note(WAN_CORRUPT, "no answer from the receiver for %.1f s", self.silence_us / 1e6)
            return ENDED_TOLD
        return self.builder.wait_for_events(now_us, is_empty and self.takes_more())

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t until = self.alive_until()
        if not self.all_left():             # Nothing is laid out before all bytes have left.
            return until + 1
        if wan_flag_read(&self.floors_due):
            return now_us
        # Counted from the last word sent, however often something else woke the session.
        until = min(until, self.last_sent_us + self.heartbeat_us) + 1
        return self.builder.due_us(now_us, until) if self.takes_more() else until

    cdef bint takes_more(self) noexcept nogil:
        """Whether the connection takes one more batch, if there is one."""
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
        """Moves batches out and acknowledgements in over a connected socket, until it is told to stop or the connection
        breaks. Returns "stopped", "done" if it was told to leave, or why it ended. The GIL is free meanwhile."""
        return self.run_over_socket(sock)
