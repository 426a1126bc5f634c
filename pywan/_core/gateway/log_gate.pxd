# The interface of log_gate.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport wan_buffer
from pywan._core.queue.queue cimport gateway_queue

cdef struct log_mark:
    uint64_t number         # The number of a fed_log.
    uint64_t given          # The number of records given to the log until now.

cdef struct log_gate:
    uint32_t capacity       # Number of partitions in `open` and `asked`.
    uint64_t *open          # By partition: events through this sequence may leave.
    uint64_t *asked         # The next value of `open`, after the logs have reached `marks`.
    wan_buffer marks        # Array of log_mark. Empty: no wait.

cdef bint gate_look(log_gate *gate, gateway_queue *gateway, uint32_t index) noexcept nogil
cdef bint gate_grow(log_gate *gate, uint32_t partitions) noexcept nogil
cdef void gate_close(log_gate *gate) noexcept nogil
