# The interface of queue_older.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.queue.queue cimport gateway_queue

cdef wan_status older_copy(gateway_queue *gateway, uint32_t number, uint64_t after, uint64_t most,
                           uint64_t *through, wan_buffer *events) noexcept nogil
cdef wan_status older_take(gateway_queue *gateway, uint32_t number, uint8_t *events, uint64_t bytes) noexcept nogil
