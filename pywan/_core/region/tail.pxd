# The interface of tail.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport wan_buffer
from pywan._core.c_copies cimport wan_lane_state, wan_tail

cdef class LaneState:
    cdef wan_lane_state state   # What tails know of the lane.

cdef class Tail:
    cdef wan_tail tail
    cdef wan_buffer heard       # The change that listeners are being told. The thread that tells owns it.
    cdef MemoryBudget budget    # None: nobody counts what the tail holds.
    cdef dict lanes             # Keeps the lanes alive that the tail names.
    cdef tuple fed              # Keeps the queues alive that the tail feeds.
    cdef uint64_t contact       # Of a driver that has no lanes. 0: there is none.
    cdef int check(self, bucket) except -1

cdef void tail_count_events(wan_tail *tail, uint32_t bucket) noexcept nogil
