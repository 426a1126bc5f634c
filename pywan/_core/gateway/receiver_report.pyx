# Owns the reports of a receiver to a sender, and the counts, about one connection: progress, acknowledgements with
# failed events, and the reason of a refusal.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.base.status cimport detail_text
from pywan._core.wire.stream cimport (
    BUFFER_KEPT_BYTES, STREAM_CLOSED, buffer_close_frame, buffer_frame, buffer_open_frame)

cdef enum:
    CREDIT_EVENTS = 4000000
    # Shortest time between two progress reports, in the middle of a batch or while a batch is still arriving.
    PROGRESS_US = 1000000


cdef class ReceiverReport(Session):
    """A session that tells a sender the results of its events."""

    def __cinit__(self):
        self.born = wan_forks

    def __dealloc__(self):
        free(self.failures)

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        Session.begin(self, now_us)
        self.told_us = now_us

    cdef int tell_progress(self) noexcept nogil:
        """Tells the sender, in the middle of a batch, about the work on the batch and about earlier batches. 0: the
        session is to end."""
        cdef uint64_t now
        self.untold = 0
        if wan_flag_read(&self.stop_flag):
            wan_note(WAN_CORRUPT, "this connection was told to stop, in the middle of a batch")
            return 0
        now = self.work_us()
        if now < self.told_us + PROGRESS_US:
            return 1
        self.told_us = now
        if not buffer_frame(&self.out, WAN_FRAME_PROGRESS, self.steps, 0, NULL, 0):
            return 0
        if self.push() == STREAM_CLOSED:
            wan_note(WAN_CORRUPT, "the sender closed the connection in the middle of a batch")
            return 0
        return 1

    cdef int note_failure(self, uint64_t number, uint32_t partition, uint64_t sequence,
                          uint32_t reason) noexcept nogil:
        """Notes a failure for the acknowledgement. `number`: the event's number on this connection."""
        cdef size_t capacity
        if self.failure_count == self.failure_capacity:
            capacity = self.failure_capacity * 2 if self.failure_capacity else 64
            grown = realloc(self.failures, capacity * sizeof(failed_event))
            if grown == NULL:
                wan_note(WAN_CORRUPT, "no memory to note a failed event")
                return 0
            self.failures, self.failure_capacity = <failed_event *>grown, capacity
        self.failures[self.failure_count].number = number
        self.failures[self.failure_count].failure.partition = partition
        self.failures[self.failure_count].failure.reason = reason
        self.failures[self.failure_count].failure.sequence = sequence
        self.failure_count += 1
        return 1

    cdef int acknowledge(self, uint64_t id, uint64_t number, uint32_t worked_us) noexcept nogil:
        """Acknowledges all batches up to one batch. `number`: the number of the batch's last event."""
        cdef size_t n, count = 0, failures_bytes
        cdef wan_frame *frame
        cdef wan_failure *told
        cdef wan_ack *ack
        while count < self.failure_count and self.failures[count].number <= number:
            count += 1
        failures_bytes = count * sizeof(wan_failure)
        frame = buffer_open_frame(&self.out, WAN_FRAME_ACK, id, worked_us, sizeof(wan_ack) + failures_bytes)
        if frame == NULL:
            return 0
        ack = <wan_ack *>(frame + 1)
        ack.credit_events = CREDIT_EVENTS
        ack.credit_bytes = self.credit_bytes
        ack.failures = <uint32_t>count
        told = <wan_failure *>(ack + 1)
        for n in range(count):
            told[n] = self.failures[n].failure
        buffer_close_frame(&self.out, frame)
        self.failure_count -= count
        if self.failure_count:      # Failures of a round that goes on.
            memmove(self.failures, self.failures + count, self.failure_count * sizeof(failed_event))
        elif failures_bytes > BUFFER_KEPT_BYTES // 32:
            free(self.failures)
            self.failures, self.failure_capacity = NULL, 0
        return 1

    cdef void refuse(self, object error):
        """Takes no more events of the batches in flight, and tells the sender the reason."""
        text = str(error).encode() or b"out of memory: the process has none to apply it"
        wan_note(WAN_CORRUPT, "%s", <const char *>text)
        self.refused_code = 1

    cdef int give_up(self, error):
        """Notes the reason why a round cannot end. Returns 0."""
        from pywan.errors import QueueFullError
        text = str(error).encode() or type(error).__name__.encode()
        wan_note(WAN_CORRUPT, "%s", <const char *>text)
        self.refused_code = isinstance(error, QueueFullError)
        return 0

    cdef object error_of_end(self):
        from pywan.errors import QueueFullError
        return QueueFullError(detail_text()) if self.refused_code else Session.error_of_end(self)

    # Counts.

    cdef void add_applied(self) noexcept nogil:
        """Adds the events of a section to their region's count at once: one atomic operation for each event would be
        slow."""
        if self.applied:
            wan_add_shared(&self.applied_in.applied, self.applied)
            self.applied = 0

    cdef void add_counts(self, const wan_receiver_counts *counts) noexcept nogil:
        """Adds the counts of events that are replicated now."""
        cdef uint64_t *own = <uint64_t *>&self.own
        cdef const uint64_t *held = <const uint64_t *>counts
        cdef size_t n
        for n in range(sizeof(wan_receiver_counts) // 8):
            own[n] += held[n]

    cdef void tell_counts(self) noexcept nogil:
        cdef uint64_t *own = <uint64_t *>&self.own
        cdef uint64_t *shared = <uint64_t *>&self.counts.counters
        cdef size_t n
        for n in range(sizeof(wan_receiver_counts) // 8):
            if own[n]:
                wan_add_shared(&shared[n], own[n])
        memset(&self.own, 0, sizeof(wan_receiver_counts))
