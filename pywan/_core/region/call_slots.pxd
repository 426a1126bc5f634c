# The interface of call_slots.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_replication cimport wan_call_identity, wan_slots

cdef class CallSlots:
    cdef wan_slots slots
    cdef readonly uint32_t member       # The number of the incarnation that makes the calls now.

    cdef int take(self, wan_call_identity *call) except -1
    cdef void give(self, wan_call_identity call) noexcept
    cdef int rename(self, wan_call_identity *call) except -1
