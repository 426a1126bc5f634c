# The interface of stream.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef enum:
    BUFFER_KEPT_BYTES = 32 << 20    # An empty buffer that is larger gives its memory back: only events of many MiB make one. Others need no more.

cdef enum:
    BUFFER_BYTES_MAX = 1 << 30      # What nobody comes near: the frames of one read, or a batch with its acknowledgements.
    RECEIVE_BYTES = 262144          # Read at once, at least: less than a batch or two costs calls, and copies of what begins the next one.

cdef struct byte_buffer:
    uint8_t *data           # 8-aligned: frames are padded to 8, so records are read where they lie.
    size_t capacity
    size_t start            # data[start..end) is what was put in and not taken out.
    size_t end

cdef inline int buffer_reserve(byte_buffer *b, size_t room) noexcept nogil:
    """Makes `room` bytes behind `end`; moves what is there to the front first. 0: no memory, or more than BUFFER_BYTES_MAX together."""
    cdef size_t used = b.end - b.start
    cdef size_t capacity
    cdef uint8_t *data
    if b.capacity - b.end >= room:
        return 1
    if room > BUFFER_BYTES_MAX - used:
        return 0
    if b.start:
        memmove(b.data, b.data + b.start, used)
        b.start, b.end = 0, used
        if b.capacity - used >= room:
            return 1
    capacity = b.capacity if b.capacity else 65536
    while capacity - used < room:
        capacity *= 2
    data = <uint8_t *>realloc(b.data, capacity)
    if data == NULL:
        return 0
    b.data, b.capacity = data, capacity
    return 1

cdef inline void buffer_close(byte_buffer *b) noexcept nogil:
    free(b.data)
    memset(b, 0, sizeof(byte_buffer))


cdef inline void buffer_trim(byte_buffer *b) noexcept nogil:
    """Its content was used."""
    b.start = b.end = 0
    if b.capacity > BUFFER_KEPT_BYTES:
        buffer_close(b)


cdef wan_frame *buffer_open_frame(byte_buffer *b, uint8_t type, uint64_t id, uint32_t count, size_t length) noexcept nogil


cdef inline void buffer_close_frame(byte_buffer *b, wan_frame *frame) noexcept nogil:
    frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
    b.end += sizeof(wan_frame) + wan_align8(frame.length)


cdef int buffer_frame(byte_buffer *b, uint8_t type, uint64_t id, uint32_t count, const void *payload, size_t length) noexcept nogil

cdef enum:
    STREAM_OK = 0, STREAM_WAIT = 1, STREAM_CLOSED = 2, STREAM_BROKEN = 3, STREAM_MEMORY = 4

cdef int stream_next_frame(byte_buffer *b, wan_frame **frame, size_t *missing) noexcept nogil


cdef inline void stream_take(byte_buffer *b, const wan_frame *frame) noexcept nogil:
    b.start += sizeof(wan_frame) + wan_align8(frame.length)
    if b.start == b.end:
        buffer_trim(b)
