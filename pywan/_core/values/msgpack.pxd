# Owns how numbers, texts and heads are written in msgpack.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_arrow cimport *
from pywan._core.c_record cimport *

cdef inline void _column_put_be16(uint8_t *out, uint16_t number) noexcept nogil:
    out[0] = <uint8_t>(number >> 8)
    out[1] = <uint8_t>number


cdef inline void _column_put_be32(uint8_t *out, uint32_t number) noexcept nogil:
    out[0] = <uint8_t>(number >> 24)
    out[1] = <uint8_t>(number >> 16)
    out[2] = <uint8_t>(number >> 8)
    out[3] = <uint8_t>number


cdef inline void _column_put_be64(uint8_t *out, uint64_t number) noexcept nogil:
    _column_put_be32(out, <uint32_t>(number >> 32))
    _column_put_be32(out + 4, <uint32_t>number)


cdef inline int _msgpack_int_size(int64_t number) noexcept nogil:
    if number >= 0:
        if number < 128:
            return 1
        if number < 256:
            return 2
        if number < 65536:
            return 3
        return 5 if number <= <int64_t>_COLUMN_UINT32_MAX else 9
    if number >= -32:
        return 1
    if number >= -128:
        return 2
    if number >= -32768:
        return 3
    return 5 if number >= _COLUMN_INT32_MIN else 9


cdef inline uint8_t *_column_put_msgpack_int(uint8_t *out, int64_t number) noexcept nogil:
    cdef int size = _msgpack_int_size(number)
    if size == 1:
        out[0] = <uint8_t>number
    elif size == 2:
        out[0] = 0xcc if number >= 0 else 0xd0
        out[1] = <uint8_t>number
    elif size == 3:
        out[0] = 0xcd if number >= 0 else 0xd1
        _column_put_be16(out + 1, <uint16_t>number)
    elif size == 5:
        out[0] = 0xce if number >= 0 else 0xd2
        _column_put_be32(out + 1, <uint32_t>number)
    else:
        out[0] = 0xcf if number >= 0 else 0xd3
        _column_put_be64(out + 1, <uint64_t>number)
    return out + size


cdef inline uint8_t *_column_put_msgpack_head(uint8_t *out, uint8_t form, uint32_t length) noexcept nogil:
    cdef uint8_t code = 0xd9 if form == WAN_FORM_TEXT else 0xc4   # 8 bit length; the next two codes: 16 and 32 bit.
    if form == WAN_FORM_TEXT and length < 32:
        out[0] = <uint8_t>(0xa0 | length)
        return out + 1
    if length < 256:
        out[0] = code
        out[1] = <uint8_t>length
        return out + 2
    if length < 65536:
        out[0] = code + 1
        _column_put_be16(out + 1, <uint16_t>length)
        return out + 3
    out[0] = code + 2
    _column_put_be32(out + 1, length)
    return out + 5


cdef inline uint8_t *put_msgpack_count(uint8_t *out, uint8_t few, uint8_t many, uint32_t count) noexcept nogil:
    """Writes the head of an array (0x90, 0xdc) or a map (0x80, 0xde), up to 5 bytes. Returns where it ends."""
    if count < 16:
        out[0] = few | <uint8_t>count
        return out + 1
    if count < 65536:
        out[0] = many
        _column_put_be16(out + 1, <uint16_t>count)
        return out + 3
    out[0] = many + 1
    _column_put_be32(out + 1, count)
    return out + 5


cdef inline uint8_t *_column_put_bytes(uint8_t *out, const uint8_t *start, uint32_t length) noexcept nogil:
    # Most contents are short: two fixed copies that overlap beat a call of memcpy.
    if length > 16 or length < 4:
        if length > 16:
            memcpy(out, start, length)
        elif length:
            out[0] = start[0]
            out[length >> 1] = start[length >> 1]
            out[length - 1] = start[length - 1]
    elif length >= 8:
        memcpy(out, start, 8)
        memcpy(out + length - 8, start + length - 8, 8)
    else:
        memcpy(out, start, 4)
        memcpy(out + length - 4, start + length - 4, 4)
    return out + length
