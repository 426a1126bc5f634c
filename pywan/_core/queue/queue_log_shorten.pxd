# The interface of queue_log_shorten.pyx.
from pywan._core.c_base cimport *
from pywan._core.queue.queue cimport gateway_queue

cdef bint log_is_long(gateway_queue *gateway) noexcept nogil
cdef wan_status durable_shorten(gateway_queue *gateway) noexcept nogil
cdef bint durable_make_room(gateway_queue *gateway) noexcept nogil
