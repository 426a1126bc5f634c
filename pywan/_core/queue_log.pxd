# The interface of queue_log.pyx.
from pywan._core.c_base cimport *
from pywan._core.queue cimport gateway_queue

cdef wan_status durable_commit(gateway_queue *g, bint checkpoint, wan_buffer *moved) noexcept nogil
