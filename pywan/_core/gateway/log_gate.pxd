# The interface of log_gate.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport wan_buffer
from pywan._core.queue.queue cimport gateway_queue

cdef struct log_mark:
    uint64_t number         # Of a fed_log.
    uint64_t given          # So many records had been given to the log.

cdef struct log_gate:
    uint32_t capacity       # Partitions that the next two have.
    uint64_t *open          # By partition: events through this sequence may leave.
    uint64_t *asked         # The same once the logs have what `marks` says.
    wan_buffer marks        # Each a log_mark. Empty: nothing is waited for.

cdef bint gate_look(log_gate *gate, gateway_queue *gateway, uint32_t index) noexcept nogil
cdef bint gate_grow(log_gate *gate, uint32_t partitions) noexcept nogil
cdef void gate_close(log_gate *gate) noexcept nogil
