# The interface of event_queue.pyx.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.log.disk_log cimport LogBudget
from pywan._core.queue.queue cimport gateway_queue

cdef class EventQueue:
    cdef gateway_queue *gateway
    cdef readonly object name
    cdef object environment, clock, parked  # The queue keeps these alive, and the budget too.
    cdef LogBudget budget
    cdef MemoryLimit memory
    # Events are stamped as reaching the remote site through this queue. It is read when regions attach.
    cdef public bint reachable

    cdef int open_log(self, const wan_env *env, str directory, uint64_t log_id, uint8_t synchronous, uint32_t flush_ms,
                      bint salvage, uint64_t mount) except -1
    cdef bint gives_up(self, uint64_t waited_us)
    cdef uint32_t partition_count(self) noexcept
    cdef uint32_t make_run(self, uint16_t region, uint32_t buckets, const uint64_t *timelines) except? 0
    cdef int wait_for_log(self, int what, double timeout, str meanwhile) except -1
    cdef list take(self, uint32_t partition, uint32_t count, bint with_positions)
    cdef int check_partition(self, uint32_t partition) except -1
    cdef wan_status replay_some(self, EventQueue other, const uint64_t *ends, uint64_t *through, uint64_t *moved,
                                uint8_t flags) except *


cdef int check_whole(EventQueue self) except -1
