# The interface of stream.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef enum:
    # An empty buffer that is larger gives its memory back. Only events of many MiB make one that large.
    BUFFER_KEPT_BYTES = 32 << 20

cdef enum:
    BUFFER_BYTES_MAX = 1 << 30      # Far more than the frames of one read, or a batch with its acknowledgements.
    # A read takes at least so much. Less than a batch or two costs more calls, and copies of the beginning of the next
    # one.
    RECEIVE_BYTES = 262144
    FIRST_BYTES = 4096              # The room for the first bytes of a connection. When they fill it, they need more.

cdef inline int buffer_reserve(wan_buffer *buffer, size_t room) noexcept nogil:
    """Makes room for `room` bytes behind the content, which moves to the front if it must. 0: no memory, or more than
    BUFFER_BYTES_MAX together."""
    return wan_buffer_make_room(buffer, room, BUFFER_BYTES_MAX) == WAN_OK


cdef inline void buffer_trim(wan_buffer *buffer) noexcept nogil:
    """Empties a buffer whose content was used."""
    wan_buffer_trim(buffer, BUFFER_KEPT_BYTES)


cdef wan_frame *buffer_open_frame(wan_buffer *buffer, uint8_t type, uint64_t id, uint32_t count,
                                  size_t length) noexcept nogil


cdef inline void buffer_close_frame(wan_buffer *buffer, wan_frame *frame) noexcept nogil:
    frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
    buffer.used += sizeof(wan_frame) + wan_align8(frame.length)


cdef int buffer_frame(wan_buffer *buffer, uint8_t type, uint64_t id, uint32_t count, const void *payload,
                      size_t length) noexcept nogil

cdef enum:
    STREAM_OK = 0, STREAM_WAIT = 1, STREAM_CLOSED = 2, STREAM_BROKEN = 3, STREAM_MEMORY = 4

cdef int stream_next_frame(wan_buffer *buffer, wan_frame **frame, size_t *missing) noexcept nogil


cdef inline void stream_take(wan_buffer *buffer, const wan_frame *frame) noexcept nogil:
    buffer.start += sizeof(wan_frame) + wan_align8(frame.length)
    if buffer.start == buffer.used:
        buffer_trim(buffer)
