# Owns the measuring of a control message (msgpack) before any Python object is made of it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    MESSAGE_DEPTH_MAX = 64


cdef const char *_measure(const uint8_t *data, size_t length, uint64_t most, uint32_t deepest,
                          uint64_t *count) noexcept nogil:
    """Counts the values of one message, with the keys of maps. Returns NULL, or why the message is refused."""
    cdef uint64_t left[MESSAGE_DEPTH_MAX + 1]   # Values still to come, for each map or list that is open.
    cdef uint32_t depth = 0, code, width
    cdef size_t position = 0
    cdef uint64_t number, children
    cdef bint is_container
    left[0] = 1
    while True:
        while left[depth] == 0:
            if depth == 0:
                return NULL                     # The decoder reports bytes behind the message.
            depth -= 1
        left[depth] -= 1
        count[0] += 1
        if count[0] > most:
            return "too many"
        if position >= length:
            return "cut"
        code = data[position]
        position += 1
        children, number, width, is_container = 0, 0, 0, False
        if code < 0x80 or code >= 0xe0 or code == 0xc0 or code == 0xc2 or code == 0xc3:
            continue                            # A small number, nil, false, true.
        if code < 0x90:
            children, is_container = 2 * (code & 0x0f), True
        elif code < 0xa0:
            children, is_container = code & 0x0f, True
        elif code < 0xc0:
            number = code & 0x1f
        elif code == 0xc1:
            return "unknown code"
        elif code <= 0xc9:                      # Binaries and extensions with a length of 1, 2 or 4 bytes.
            width = 1 << (code - 0xc4) if code <= 0xc6 else 1 << (code - 0xc7)
        elif code <= 0xcb:
            number = 4 if code == 0xca else 8   # Floats.
        elif code <= 0xd3:
            number = 1 << ((code - 0xcc) & 3)   # Whole numbers.
        elif code <= 0xd8:
            number = 1 + (1 << (code - 0xd4))   # Extensions of a fixed length, behind their type.
        elif code <= 0xdb:
            width = 1 << (code - 0xd9)          # Strings.
        else:
            width, is_container = (2 if (code & 1) == 0 else 4), True
        if width > length - position:
            return "cut"
        for _ in range(width):
            number = number << 8 | data[position]
            position += 1
        if is_container:
            if width:
                children = 2 * number if code >= 0xde else number
            if children > length - position:    # Each child takes at least one byte.
                return "cut"
            depth += 1
            if depth > deepest:
                return "too deep"
            left[depth] = children
        else:
            if 0xc7 <= code <= 0xc9:
                number += 1                     # An extension's type.
            if number > length - position:
                return "cut"
            position += number


def measure_message(const uint8_t[::1] payload, uint64_t most, uint32_t deepest):
    """Returns (values in a msgpack message, None), or (values until then, why it is refused). The reasons are "too
    many", "too deep", "cut" and "unknown code". This takes no memory."""
    cdef uint64_t count = 0
    cdef const char *refused
    cdef size_t length = payload.shape[0]
    cdef const uint8_t *data = &payload[0] if length else NULL
    if deepest > MESSAGE_DEPTH_MAX:
        raise ValueError(f"a depth of {deepest} is over {MESSAGE_DEPTH_MAX}")
    with nogil:
        refused = _measure(data, length, most, deepest, &count)
    return count, None if refused == NULL else refused.decode()
