# The interface of lz4.pyx.
from libc.stdint cimport uint8_t, uint32_t

cdef int lz4_load() except -1


cdef inline uint32_t lz4_bound(uint32_t size) noexcept nogil:
    return size + size // 255 + 16


cdef int lz4_pack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t capacity) noexcept nogil
cdef bint lz4_is_direct() noexcept nogil
cdef int lz4_pack_behind(const uint8_t *head, uint32_t head_size, const uint8_t *source, uint32_t size, uint8_t *to,
                         uint32_t capacity) noexcept nogil
cdef int lz4_unpack(const uint8_t *source, uint32_t size, uint8_t *to, uint32_t raw_size) noexcept nogil
