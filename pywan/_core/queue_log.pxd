# The interface of queue_log.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_store cimport *
from pywan._core.disk_log cimport disk_wait
from pywan._core.c_tables cimport wan_queue_counts
from pywan._core.queue cimport gateway_queue

cdef inline void count_hole(uint64_t *conflated, wan_queue_counts *counts, uint32_t reason, int64_t by) noexcept nogil:
    if reason == WAN_HOLE_CONFLATED:
        conflated[0] += by
    elif reason == WAN_HOLE_FILTERED:
        counts.filtered_transmit += by
    elif reason == WAN_HOLE_PARKED:
        counts.parked += by
    elif reason == WAN_HOLE_DROPPED:
        counts.dropped_oldest += by
    elif reason == WAN_HOLE_RESTAMPED:
        counts.restamped += by
    else:
        counts.conflated_batch += by


cdef void durable_loop(gateway_queue *g) noexcept nogil
cdef wan_status durable_step(gateway_queue *g, bint checkpoint) noexcept nogil
cdef disk_wait durable_begin_wait(gateway_queue *g, int what, uint64_t limit_us) noexcept nogil
cdef int durable_wait(gateway_queue *g, disk_wait *wait) noexcept nogil
