# The interface of session.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_frame

cdef enum:
    READY_TO_READ = 1, WOKEN = 2        # Why a wait ended; neither: it is time, or there is room to write.

cdef enum:
    # What a session says to go on with: with the next bytes or deadline; with another step; or how it ended.
    GOES_ON = 0, GOES_AGAIN = 1, ENDED_STOPPED = 2, ENDED_CLOSED = 3, ENDED_DONE = 4, ENDED_TOLD = 5     # The detail tells.

cdef class ByteStream:
    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil
    cdef int write(self, wan_buffer *out) noexcept nogil
    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil

cdef class SocketStream(ByteStream):
    cdef int file

cdef class Session:
    cdef wan_buffer into, out
    cdef size_t wanted              # Bytes that make the next frame whole, as far as is known.
    cdef int stop_flag
    cdef ByteStream stream          # None: sans-IO.
    cdef int wake_file              # An eventfd that ends a wait; -1: none.
    cdef bint reads                 # False: what the other end says is for somebody else.
    cdef bint reads_while_writing   # False: nothing is taken in before what is laid out has left.
    cdef bint speaks_last           # What is laid out at the end is sent, too.

    # What a session is.
    cdef int heard(self, uint64_t now_us) noexcept nogil
    cdef int take_frame(self, wan_frame *frame) noexcept nogil
    cdef int step(self, uint64_t now_us, uint64_t *until_us) noexcept nogil
    cdef void sent(self, uint64_t now_us) noexcept nogil
    cdef void woken(self, uint64_t since_us, int ready) noexcept nogil
    cdef int closed(self, bint while_reading) noexcept nogil
    cdef void keep_alive(self) noexcept nogil
    # What it has of this unit.
    cdef int take_frames(self) noexcept nogil
    cdef void forget_bytes(self) noexcept nogil
    cdef str run_over(self, int file)
    cdef object error_of_end(self)
    cdef int take_in(self, const uint8_t[::1] data, uint64_t now_us) except -1
    cdef bytes take_out(self)

cdef int session_loop(Session s, ByteStream stream) noexcept nogil
