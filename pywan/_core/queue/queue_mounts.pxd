# The interface of queue_mounts.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.queue.queue cimport gateway_queue

cdef wan_status durable_mount(gateway_queue *gateway) noexcept nogil
cdef bint is_of_this_past(const gateway_queue *gateway, uint64_t mount, uint32_t partition,
                          uint64_t last) noexcept nogil
cdef wan_status durable_renew(gateway_queue *gateway) noexcept nogil
