# The interface of in_flight.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_record cimport wan_failure, wan_frame, wan_section
from pywan._core.c_session cimport wan_window, wan_window_sending

# A batch on its way. The batch builder fills in `events`, `bytes`, the sections and their lives.
cdef struct flight:
    uint64_t id
    uint64_t events
    uint64_t bytes
    uint32_t sections
    uint32_t capacity
    wan_section *section
    uint64_t *lives             # Of each section: the life of the stream that it was sent under; 0: it is of none.
    wan_window_sending sending

cdef class InFlight:
    cdef flight *ring                           # By batch id.
    cdef uint32_t capacity                      # Power of two.
    cdef uint64_t next_batch, oldest_batch      # In flight: oldest_batch..next_batch-1. Others read the oldest first.
    cdef uint64_t events, bytes
    cdef uint64_t credit_events                 # As the receiver last said.
    # The bytes that may be on their way: within the receiver's credit, as many as the link carries.
    cdef wan_window window
    # When the last acknowledgement came, or the oldest batch in flight left.
    cdef uint64_t answered_us
    # The shortest way there and back known, without the receiver's work; 0: none yet.
    cdef uint64_t link_us
    # The time that the receiver says it worked on all that it has acknowledged.
    cdef uint64_t receiver_us
    # When the receiver last showed that it works on what is in flight, or the oldest batch in flight left.
    cdef uint64_t progress_us
    cdef uint64_t steps                         # The highest count that the receiver told of its work.
    cdef int has_progressed_flag                # The receiver has shown progress on this connection.

    cdef void begin(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us) noexcept nogil
    cdef void begins_at(self, uint64_t now_us) noexcept nogil
    cdef void end(self) noexcept nogil
    cdef uint64_t batches(self) noexcept nogil
    cdef bint has_room(self) noexcept nogil
    cdef flight *next(self, uint32_t sections) noexcept nogil
    cdef void left(self, flight *batch, uint64_t now_us) noexcept nogil
    cdef void note_steps(self, uint64_t steps, uint64_t now_us) noexcept nogil
    cdef bint hear(self, const wan_frame *frame, uint64_t now_us) noexcept nogil
    cdef flight *oldest(self) noexcept nogil
    cdef void settled(self, uint32_t worked_us, uint64_t now_us) noexcept nogil
    cdef dict flow(self, uint64_t now)

cdef uint32_t failures_of_flight(const flight *batch, const wan_failure *failures, uint32_t count) noexcept nogil
