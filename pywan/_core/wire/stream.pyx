# Owns the byte buffers of a connection and the frames in them, which both ends of a data connection share.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.base.status cimport detail_text, raise_for


cdef wan_frame *buffer_open_frame(wan_buffer *buffer, uint8_t type, uint64_t id, uint32_t count,
                                  size_t length) noexcept nogil:
    """Appends a frame whose payload is `length` zero bytes. The caller writes the payload and then closes the frame.
    NULL: there is no memory, or the frame would be too long; the detail says which."""
    cdef size_t padded = wan_align8(length)
    cdef wan_frame *frame
    if length > WAN_FRAME_BYTES_MAX:
        wan_note(WAN_CORRUPT, "a frame of type %u with %llu bytes; at most %u are possible", type,
                 <unsigned long long>length, WAN_FRAME_BYTES_MAX)
        return NULL
    if not buffer_reserve(buffer, sizeof(wan_frame) + padded):
        wan_note(WAN_CORRUPT, "no memory for a frame of type %u with %llu bytes", type, <unsigned long long>length)
        return NULL
    frame = <wan_frame *>(buffer.bytes + buffer.used)
    memset(frame, 0, sizeof(wan_frame) + padded)
    frame.magic = WAN_FRAME_MAGIC
    frame.type = type
    frame.length = frame.raw_length = <uint32_t>length
    frame.count = count
    frame.id = id
    return frame


cdef int buffer_frame(wan_buffer *buffer, uint8_t type, uint64_t id, uint32_t count, const void *payload,
                      size_t length) noexcept nogil:
    """Appends a whole small frame. 0: the frame could not be opened; the detail says why."""
    cdef wan_frame *frame = buffer_open_frame(buffer, type, id, count, length)
    if frame == NULL:
        return 0
    if length:
        memcpy(frame + 1, payload, length)
    buffer_close_frame(buffer, frame)
    return 1


cdef int stream_next_frame(wan_buffer *buffer, wan_frame **frame, size_t *missing) noexcept nogil:
    """Finds the next frame. STREAM_OK: *frame is whole, is at the front, and has the right checksum; advance with
    stream_take. STREAM_WAIT: *missing more bytes are needed. STREAM_BROKEN: the detail says why."""
    cdef size_t have = buffer.used - buffer.start, whole
    cdef wan_frame *head
    missing[0] = sizeof(wan_frame)
    if have < sizeof(wan_frame):
        # wan_frame_check of the first four bytes would show another protocol, whose client may wait for us to speak.
        missing[0] = sizeof(wan_frame) - have
        return STREAM_WAIT
    head = <wan_frame *>(buffer.bytes + buffer.start)
    if wan_frame_check(head) != WAN_OK:
        return STREAM_BROKEN
    whole = sizeof(wan_frame) + wan_align8(head.length)
    if have < whole:
        missing[0] = whole - have
        return STREAM_WAIT
    if wan_frame_crc(head, head + 1, head.length) != head.crc:
        wan_note(WAN_CORRUPT, "frame of type %u with %u bytes has a wrong checksum", head.type, head.length)
        return STREAM_BROKEN
    frame[0] = head
    return STREAM_OK


def pack_frame(int type, const uint8_t[::1] payload, uint64_t id=0, uint32_t count=0):
    """Returns a whole frame as bytes, for handshakes and tests."""
    cdef wan_buffer buffer
    memset(&buffer, 0, sizeof(buffer))
    cdef size_t length = <size_t>payload.shape[0]
    if not buffer_frame(&buffer, <uint8_t>type, id, count, &payload[0] if length else NULL, length):
        raise MemoryError(detail_text())
    try:
        return PyBytes_FromStringAndSize(<char *>buffer.bytes, buffer.used)
    finally:
        wan_buffer_close(&buffer)


def check_frame_header(const uint8_t[::1] head):
    """(type, payload length with padding, payload length) of a 32-byte frame header. ProtocolError if it is none."""
    if head.shape[0] != sizeof(wan_frame):
        raise ValueError(f"a frame header has {sizeof(wan_frame)} bytes, not {head.shape[0]}")
    cdef wan_frame frame
    memcpy(&frame, &head[0], sizeof(wan_frame))
    raise_for(wan_frame_check(&frame), "")
    return frame.type, wan_align8(frame.length), frame.length


def check_frame(const uint8_t[::1] data):
    """(type, id, count, payload bytes) of a whole frame. ProtocolError if anything about it is wrong."""
    cdef wan_frame frame
    if data.shape[0] < <Py_ssize_t>sizeof(wan_frame):
        from pywan.errors import ProtocolError
        raise ProtocolError(f"a frame needs {sizeof(wan_frame)} bytes, {data.shape[0]} are there")
    memcpy(&frame, &data[0], sizeof(wan_frame))
    raise_for(wan_frame_check(&frame), "")
    if <uint64_t>data.shape[0] < sizeof(wan_frame) + frame.length or \
            wan_frame_crc(&frame, &data[0] + sizeof(wan_frame), frame.length) != frame.crc:
        from pywan.errors import ProtocolError
        raise ProtocolError(f"frame of type {frame.type} with {frame.length} bytes is cut off or has a wrong checksum")
    return frame.type, frame.id, frame.count, PyBytes_FromStringAndSize(<char *>&data[0] + sizeof(wan_frame),
                                                                        frame.length)


FRAME_HELLO, FRAME_WELCOME, FRAME_ERROR = WAN_FRAME_HELLO, WAN_FRAME_WELCOME, WAN_FRAME_ERROR
FRAME_COMMIT, FRAME_COMMITTED = WAN_FRAME_COMMIT, WAN_FRAME_COMMITTED
FRAME_BATCH, FRAME_PING = WAN_FRAME_BATCH, WAN_FRAME_PING
FRAME_KNOWN, FRAME_PROGRESS = WAN_FRAME_KNOWN, WAN_FRAME_PROGRESS
