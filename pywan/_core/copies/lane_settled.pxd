# The interface of lane_settled.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport wan_tail
from pywan._core.c_lane cimport wan_lane_settled
from pywan._core.region.region_state cimport region_core

cdef enum:
    SETTLED_WAITS = 1, SETTLED_FULL = 2, SETTLED_NO_MEMORY = 4

cdef int settled_collect(wan_tail *tail, uint32_t lane, uint32_t region, wan_buffer *items) noexcept nogil
cdef bint settled_hear(region_core *core, const wan_lane_settled *item, uint32_t member) noexcept nogil
cdef void settled_go_on(region_core *core, uint32_t bucket) noexcept nogil
