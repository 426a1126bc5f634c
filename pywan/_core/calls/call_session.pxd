# The interface of call_session.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_session cimport *
from pywan._core.calls.call_groups cimport GroupCalls
from pywan._core.calls.pending_calls cimport pending_call
from pywan._core.region.region_state cimport region_core

cdef enum:
    CALLERS_MAX = 17        # Incarnations whose calls a connection may bring: the opener, and earlier ones.

cdef class CallSession(GroupCalls):
    cdef uint32_t callers[CALLERS_MAX]      # Numbers of the incarnations.
    cdef uint32_t caller_count              # 0: calls of all incarnations are allowed.
    cdef bint is_of_opener(self, const wan_call *call) noexcept nogil
    cdef int take_calls(self) noexcept nogil
    cdef int do_call(self, const wan_call *call, uint64_t held_until_us, uint64_t until_us) noexcept nogil
    cdef int take_call(self, const wan_call *call, uint64_t held_until_us) noexcept nogil
    cdef int hold(self, region_core *region, const wan_call *call, uint64_t until_us) noexcept nogil
    cdef int go_on_with_held(self, pending_call *call, uint64_t held_until_us) noexcept nogil
    cdef bint collect(self, uint64_t now_us) noexcept nogil
