# The interface of queue_acknowledged.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.queue.queue cimport gateway_queue

cdef struct taken_event:
    # An event that another member sent, and that left the queue. Its record follows.
    uint64_t sequence
    uint32_t partition, length
    uint8_t possible_duplicate

cdef void acknowledged_wait(gateway_queue *gateway) noexcept nogil
cdef wan_status acknowledged_take(gateway_queue *gateway, uint32_t count, wan_buffer *taken) noexcept nogil
cdef void removal_park(void *parker, uint32_t number, uint64_t sequence, uint32_t failure) noexcept nogil
