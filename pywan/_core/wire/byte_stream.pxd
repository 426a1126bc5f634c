# The interface of byte_stream.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.wire.stream cimport STREAM_OK

cdef enum:
    # Why a wait ended. None of them: the time has come.
    READY_TO_READ = 1, WOKEN = 2, OTHER_READY = 4, READY_TO_WRITE = 8

cdef class Driver:
    cdef bint took_all              # Nothing more lay there when bytes came last, as far as is known.

    cdef uint64_t now_us(self) noexcept nogil
    cdef int push(self, wan_buffer *out) noexcept nogil

cdef class ByteStream(Driver):
    cdef int read(self, wan_buffer *into, size_t missing) noexcept nogil
    cdef int await_read(self, wan_buffer *into, size_t missing) noexcept nogil
    cdef int write(self, wan_buffer *out) noexcept nogil
    cdef int wait(self, bint to_read, bint to_write, int wake_file, uint64_t until_us) noexcept nogil
    cdef int wait_beside(self, bint to_write, int wake_file, int other_file, uint64_t until_us) noexcept nogil
    cdef int wait_for_end(self, int wake_file, uint64_t until_us) noexcept nogil
    cdef void give_back(self, wan_buffer *out) noexcept nogil

cdef class SocketStream(ByteStream):
    cdef int file

    cdef int receive(self, wan_buffer *into, size_t missing, int flags) noexcept nogil

cdef bint make_room(wan_buffer *into, size_t missing) noexcept nogil
cdef int took_first(wan_buffer *into, const uint8_t *first, size_t length) noexcept nogil
cdef ssize_t receive_from(int file, uint8_t *to, size_t room, int flags) noexcept nogil
cdef int send_from(int file, wan_buffer *out) noexcept nogil
cdef int wait_for_files(int file, short events, int wake_file, int other_file, uint64_t until_us) noexcept nogil


cdef inline int took(wan_buffer *into, size_t length) noexcept nogil:
    """Bytes came behind the content."""
    into.used += length
    return STREAM_OK
