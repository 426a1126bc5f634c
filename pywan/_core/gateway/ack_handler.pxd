# The interface of ack_handler.pyx.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport wan_buffer
from pywan._core.c_record cimport wan_failure
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.gateway.in_flight cimport flight
from pywan._core.queue.queue cimport gateway_queue
from pywan._core.gateway.sender_callbacks cimport SenderCallbacks
from pywan._core.wire.session cimport Session

cdef class AckHandler:
    cdef EventQueue queue, parked       # Kept alive.
    cdef gateway_queue *gateway
    cdef SenderCallbacks callbacks
    cdef wan_buffer copies              # parked_copy: copies of failed events that may not be on the disk yet.
    cdef size_t copies_before           # Number of sorted copies in front, from earlier attempts.
    cdef uint32_t alert_threshold_ms    # Acknowledged events older than this are counted; 0: not counted.

    cdef bint acknowledge(self, Session session, const flight *batch, const wan_failure *failures,
                          uint32_t failure_count) noexcept nogil
