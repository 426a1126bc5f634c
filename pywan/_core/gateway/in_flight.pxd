# The interface of in_flight.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_record cimport wan_failure, wan_frame, wan_section
from pywan._core.c_session cimport wan_window, wan_window_sending

# A batch in flight. The batch builder fills in `events`, `bytes`, the sections and their timelines.
cdef struct flight:
    uint64_t id
    uint64_t events
    uint64_t bytes
    uint32_t sections
    uint32_t capacity
    wan_section *section
    # By section: the timeline of the stream at the time of sending; 0: no stream.
    uint64_t *timelines
    wan_window_sending sending

cdef class InFlight:
    cdef flight *ring                           # By batch id.
    cdef uint32_t capacity                      # Power of two.
    cdef uint64_t next_batch, oldest_batch      # In flight: oldest_batch..next_batch-1. Read the oldest first.
    cdef uint64_t events, bytes
    cdef uint64_t credit_events                 # As in the receiver's last message.
    # Limit of the bytes in flight: the capacity of the link, within the receiver's credit.
    cdef wan_window window
    # Time of the last acknowledgement, or of sending the oldest batch in flight.
    cdef uint64_t answered_us
    # The shortest known round trip, without the receiver's work; 0: unknown.
    cdef uint64_t link_us
    # The receiver's own measure of its work on all acknowledged batches.
    cdef uint64_t receiver_us
    # Time of the receiver's last progress on batches in flight, or of sending the oldest batch in flight.
    cdef uint64_t progress_us
    cdef uint64_t steps                         # The highest progress count of the receiver.
    cdef int has_progressed_flag                # The receiver has shown progress on this connection.

    cdef void begin(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us) noexcept nogil
    cdef void begins_at(self, uint64_t now_us) noexcept nogil
    cdef void end(self) noexcept nogil
    cdef uint64_t batches(self) noexcept nogil
    cdef bint has_room(self) noexcept nogil
    cdef flight *next(self, uint32_t sections) noexcept nogil
    cdef void left(self, flight *batch, uint64_t now_us) noexcept nogil
    cdef void note_steps(self, uint64_t steps, uint64_t now_us) noexcept nogil
    cdef bint receive(self, const wan_frame *frame, uint64_t now_us) noexcept nogil
    cdef flight *oldest(self) noexcept nogil
    cdef void acknowledged(self, uint32_t worked_us, uint64_t now_us) noexcept nogil
    cdef dict flow(self, uint64_t now)

cdef uint32_t failures_of_flight(const flight *batch, const wan_failure *failures, uint32_t count) noexcept nogil
