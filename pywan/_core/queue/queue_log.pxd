# The interface of queue_log.pyx.
from pywan._core.c_base cimport *
from pywan._core.queue.queue cimport durable_log, gateway_queue


cdef inline bint has_taken(const durable_log *durable) noexcept nogil:
    """A round that failed took something, and has not written it."""
    return durable.records.taken.used != 0 or durable.holes.taken.used != 0 or durable.superseded.taken.used != 0


cdef wan_status durable_commit(gateway_queue *gateway, bint checkpoint, wan_buffer *moved) noexcept nogil
cdef wan_status durable_write_block(gateway_queue *gateway) noexcept nogil
