# The interface of session.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_frame
from pywan._core.wire.byte_stream cimport ByteStream, Driver

cdef enum:
    # What a session returns. GOES_ON: it goes on with the next bytes or the next deadline. GOES_AGAIN: it goes on with
    # another step at once. Otherwise how it ended; ENDED_TOLD: the detail says why.
    GOES_ON = 0, GOES_AGAIN = 1, ENDED_STOPPED = 2, ENDED_CLOSED = 3, ENDED_DONE = 4, ENDED_TOLD = 5

cdef class GivenDriver(Driver):
    cdef object clock, send
    cdef uint64_t last_us

cdef class Session:
    cdef wan_buffer into, out
    cdef size_t wanted              # Bytes that make the next frame whole, as far as is known.
    cdef int stop_flag
    cdef int wake_file              # An eventfd that ends a wait; -1: none.
    cdef bint reads_while_writing   # False: the session reads nothing until all that is laid out has left.
    cdef bint reads_nothing         # The session takes no more bytes for now: it has as much as it holds.
    cdef bint speaks_last           # What is laid out when the session ends is sent, too.
    # The time, as the driver tells it.
    cdef uint64_t now_us            # 0: it told none yet.
    cdef uint64_t last_received_us
    cdef uint64_t waiting_us        # Since when bytes that are laid out wait to leave; 0: none do.
    cdef uint64_t unsent            # Bytes that the driver took and that have not left.
    # GOES_ON, or how the session ended. Only a driver without the loop uses it. Only what is laid out is still sent.
    cdef int ended
    cdef Driver driver              # None: no time passes in the middle of work, and nothing leaves then.

    # What each session does in its own way.
    cdef void begin(self, uint64_t now_us) noexcept nogil
    cdef int received(self) noexcept nogil
    cdef void received_nothing(self) noexcept nogil
    cdef int take_frame(self, wan_frame *frame) noexcept nogil
    cdef int step(self, uint64_t now_us) noexcept nogil
    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil
    cdef void sent(self, uint64_t now_us) noexcept nogil
    cdef void woken(self, uint64_t since_us, uint64_t now_us) noexcept nogil
    cdef int closed(self, bint while_reading) noexcept nogil
    cdef void keep_alive(self) noexcept nogil
    # What all sessions share.
    cdef uint64_t work_us(self) noexcept nogil
    cdef int push(self) noexcept nogil
    cdef bint all_left(self) noexcept nogil
    cdef int receive(self, uint64_t now_us) noexcept nogil
    cdef void say_why(self) noexcept nogil
    cdef void look(self, uint64_t now_us) noexcept nogil
    cdef int wait(self, ByteStream stream, bint to_read, bint to_write, uint64_t until_us) noexcept nogil
    cdef int take_frames(self) noexcept nogil
    cdef void forget_bytes(self) noexcept nogil
    cdef int run_over(self, ByteStream stream)
    cdef str run_over_socket(self, sock)
    cdef object error_of_end(self)

cdef int session_turn(Session session, ByteStream stream, uint64_t *now_us) noexcept nogil
cdef int session_loop(Session session, ByteStream stream) noexcept nogil
